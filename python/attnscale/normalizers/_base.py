# SPDX-License-Identifier: BSD-3-Clause
"""The base class of all normalizers, and what the core takes for one."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol, cast

from .._checks import shown
from .._results import NAMES
from .._spelling import spell

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Rows(Protocol):
    """What a normalizer asks of a call."""

    @property
    def row_shape(self) -> tuple[int, ...]:
        """(..., heads, n_queries)."""

    def visible_keys(self) -> NDArray[Any]:
        """Keys that each query may see; broadcasts to (..., heads, n_queries)."""


class Rule(NamedTuple):
    """What the core takes for a normalizer, which reads its own numbers; those of a row may be arrays."""

    kind: str  # a name of the core's enum normalizer
    alpha: float = 1.5  # entmax
    k: int = 1  # top_k
    eps: float = 0.0  # added to the sum that the weights are divided by
    sink: Any = None  # softmax: score of one more outcome
    bias: Any = None  # sigmoid: added to the score
    factor: Any = None  # multiplies the weights; None: they are divided by their sum


class Normalizer:
    """Base of all normalizers; not one itself.

    Attributes
    ----------
    name : str
        What :func:`attnscale.normalizers.get` takes.
    statistics : tuple of str
        The fields of :class:`attnscale.AttentionStatistics` that its rows have.
    """

    name: ClassVar[str]
    statistics: ClassVar[tuple[str, ...]] = NAMES

    @property
    def _keeps_weights(self) -> Literal["always", "while small", "never"]:
        """When a positive factor on all scores of a row leaves its weights as they are.

        "while small": as long as the scores s are so small that exp(s) - 1 is s in float64.
        """
        return "never"

    @property
    def spelling(self) -> str:
        """The text that :func:`attnscale.normalizers.get` reads as this normalizer.

        Examples
        --------
        >>> import attnscale as at
        >>> at.normalizers.TopK(8).spelling
        'top_k(k=8)'
        """
        usual = {each.name: each.default for each in fields(cast(Any, self))}
        given = {name: getattr(self, name) for name in usual}
        return spell(self.name, {name: value for name, value in given.items() if value != usual[name]})

    def _rule(self, call: Rows) -> Rule:
        """What the core takes for this call; a normalizer that does not fit the call is refused."""
        raise TypeError(f"normalizer must be one of attnscale.normalizers, got {shown(self)}")
