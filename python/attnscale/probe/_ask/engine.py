# SPDX-License-Identifier: BSD-3-Clause
"""An engine that answers prompts, and log-probabilities from its logits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..._base.checks import InputError
from .folder import Prompt

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Log-probabilities that are kept of an answer in this process: tokens that are read, and silent ones.
KEPT = 24
_LONGEST = 300  # characters of an error of another package


class RefusedError(InputError):
    """An engine refused a prompt."""


class Engine(NamedTuple):
    """An engine that has loaded a checkpoint; `name` stands in the answers."""

    name: str
    answer: Callable[[Prompt], Mapping[int, float]]


def not_loaded(what: str, error: Exception) -> InputError:
    """The error of an engine that did not load a checkpoint, in one line."""
    return InputError(f"{what}: {type(error).__name__}: {' '.join(str(error).split())[:_LONGEST]}")


def largest(logits: NDArray[Any]) -> dict[int, float]:
    """The largest log-probabilities of a row of logits, in double precision, by token.

    Examples
    --------
    >>> largest(np.float32([0.0, 0.0]))
    {0: -0.6931471805599453, 1: -0.6931471805599453}
    """
    row = np.asarray(logits, np.float64)
    row = row - row.max()
    row -= np.log(np.exp(row).sum())
    kept = np.argsort(-row, kind="stable")[:KEPT]
    return {int(token): float(row[token]) for token in kept}
