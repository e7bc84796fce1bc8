# SPDX-License-Identifier: BSD-3-Clause
"""Measures of weights that are written out."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_Array = NDArray[np.float64]


def row_entropy(p: _Array) -> Any:
    """-sum p ln p along the last axis, in nats; 0 ln 0 = 0."""
    return -(p * np.log(np.where(p > 0, p, 1))).sum(axis=-1)


def effective_rank(singular: _Array) -> Any:
    """exp of the entropy of singular values (..., n) divided by their sum (Roy and Vetterli 2007)."""
    return np.exp(row_entropy(singular / singular.sum(axis=-1, keepdims=True)))
