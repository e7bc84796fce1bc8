# SPDX-License-Identifier: BSD-3-Clause
"""A few words that tell one array from another."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray


def describe_array(array: NDArray[Any]) -> str:
    """Type, shape and the beginning of the SHA-256 of the contents.

    Examples
    --------
    >>> describe_array(np.zeros((2, 3)))
    'float64 (2, 3) sha256:17b0761f87b081d5'
    """
    digest = hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()
    return f"{array.dtype} {array.shape} sha256:{digest[:16]}"
