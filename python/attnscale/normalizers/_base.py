# SPDX-License-Identifier: BSD-3-Clause
"""What every normalizer has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from .._results import NAMES

if TYPE_CHECKING:
    from .._call.call import Call

__all__ = ["Normalizer", "Rule"]

# (kind, order, constant): the core's enum normalizer, and what attention_problem says of the other two.
Rule = tuple[int, float, Any]

SOFTMAX, SIGMOID, RELU, SQUARED_RELU, SOFTPICK, ENTMAX, TOP_K = range(7)


class Normalizer:
    """Base of all normalizers; not one itself.

    Attributes
    ----------
    name : str
        What :func:`attnscale.normalizers.get` calls it.
    statistics : tuple of str
        The fields of :class:`attnscale.AttentionStatistics` that its rows have.
    """

    name: ClassVar[str]
    statistics: ClassVar[tuple[str, ...]] = NAMES

    def _rule(self, call: Call) -> Rule:
        """What the core takes for this call; refuses what does not fit them."""
        raise TypeError(f"normalizer must be one of attnscale.normalizers, got {self!r}")


def no_softmax_statistics(*also: str) -> tuple[str, ...]:
    """The fields that rows have whose weights are functions of single scores."""
    kept = {"max_score", "n_visible", "argmax", "max_weight", "support", *also}
    return tuple(name for name in NAMES if name in kept)
