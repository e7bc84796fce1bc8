# SPDX-License-Identifier: BSD-3-Clause
"""Meanings of n in laws."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from .._base.rows import CallRows

NMeans = Literal[
    "visible keys",
    "row size",
    "query position",
    "query position + 1",
    "query position + 2",
    "query-key distance",
    "row entropy",
    "row gaps",
    "row spread",
    "not used",
]


@dataclass(frozen=True)
class Meaning(ABC):
    """A meaning of n: the number that attention counts for each query."""

    name: NMeans  # the value of a law's ``n_means``
    description: str  # the definition of n in attention
    least: int = 1  # the smallest n
    #: n minus i for a causal query at position i that sees the keys 0 ... i; None if n is not a count.
    at_position: int | None = 1

    is_used: ClassVar[bool] = True  # whether the scale depends on n
    is_row_size: ClassVar[bool] = False  # whether n is the end of the visible keys
    is_position: ClassVar[bool] = False  # whether n follows from the query's position alone
    is_distance: ClassVar[bool] = False  # whether each key of a row has its own n
    measures_the_row: ClassVar[bool] = False  # whether n needs a first pass over the row's scores
    reads_the_mask: ClassVar[bool] = False  # whether n depends on attn_mask

    @abstractmethod
    def of(self, call: CallRows) -> Any:
        """The n of each query of a call; the result broadcasts to (..., heads, n_queries)."""


class _VisibleKeys(Meaning):
    reads_the_mask: ClassVar[bool] = True

    def of(self, call: CallRows) -> Any:
        return call.visible_keys()


class _RowSize(Meaning):
    is_row_size: ClassVar[bool] = True

    def of(self, call: CallRows) -> Any:
        return call.row_sizes()


class _QueryPosition(Meaning):
    is_position: ClassVar[bool] = True

    def of(self, call: CallRows) -> Any:
        return call.positions() + self.at_position


class _QueryKeyDistance(Meaning):
    is_distance: ClassVar[bool] = True

    def of(self, call: CallRows) -> Any:
        raise ValueError(f"a row has no one n where n is {self.description}")


class _RowEntropy(Meaning):
    measures_the_row: ClassVar[bool] = True
    reads_the_mask: ClassVar[bool] = True

    def of(self, call: CallRows) -> Any:
        return call.row_entropies()


class _RowGaps(Meaning):
    measures_the_row: ClassVar[bool] = True
    reads_the_mask: ClassVar[bool] = True

    def of(self, call: CallRows) -> Any:
        return call.row_gaps()


class _RowSpread(Meaning):
    measures_the_row: ClassVar[bool] = True
    reads_the_mask: ClassVar[bool] = True

    def of(self, call: CallRows) -> Any:
        return call.row_spreads()


class _NotUsed(Meaning):
    is_used: ClassVar[bool] = False

    def of(self, call: CallRows) -> Any:
        return 1


_ALIGNED = "index of the key that the query is aligned with"
_MEANINGS: tuple[Meaning, ...] = (
    _VisibleKeys("visible keys", "keys that the query may see, after every mask"),
    _RowSize(
        "row size",
        "keys up to the last one that causal, window and key_lengths let the query see "
        "(causal: i + 1); a mask or the window's left side does not shorten it",
    ),
    _QueryPosition("query position", f"0-based {_ALIGNED}, whatever is masked", 0, 0),
    _QueryPosition("query position + 1", f"1-based {_ALIGNED}, whatever is masked", 1, 1),
    _QueryPosition("query position + 2", f"0-based {_ALIGNED}, plus 2", 2, 2),
    _QueryKeyDistance(
        "query-key distance", "positions between the query and each key: one row has many n", 0, None
    ),
    _RowEntropy(
        "row entropy", "entropy of the row at the standard scale, in nats: a first pass measures it", 0, None
    ),
    _RowGaps(
        "row gaps",
        "sup over t > 0 of ln N(t) / t, N(t) = scores at most t below the row's top one, "
        "at the standard scale: measured from the row",
        *(0, None),
    ),
    _RowSpread(
        "row spread",
        "standard deviation of the scores that the row sees, at the standard scale: measured from the row",
        *(0, None),
    ),
    _NotUsed("not used", "the scale is the same at every length"),
)
_BY_NAME: dict[str, Meaning] = {meaning.name: meaning for meaning in _MEANINGS}

#: Meanings of n in laws, and how attention() finds it for each query.
MEANINGS_OF_N: dict[NMeans, str] = {meaning.name: meaning.description for meaning in _MEANINGS}


def meaning_of(name: str) -> Meaning:
    """The meaning named by ``n_means``."""
    return _BY_NAME[name]
