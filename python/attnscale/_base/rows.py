# SPDX-License-Identifier: BSD-3-Clause
"""Numbers of the rows of a call, from which laws and normalizers make scales and rules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from numpy.typing import NDArray


class CallRows(Protocol):
    """Numbers of the rows of a call; every array broadcasts to :attr:`row_shape`."""

    @property
    def row_shape(self) -> tuple[int, ...]:
        """(..., heads, n_queries)."""

    def visible_keys(self) -> NDArray[Any]:
        """Number of keys that each query may see."""

    def row_sizes(self) -> NDArray[Any]:
        """Number of keys up to the last that causal, window and key_lengths let the query see."""

    def positions(self) -> NDArray[Any]:
        """Index within its document of each query's aligned key."""

    def row_entropies(self) -> NDArray[Any]:
        """Entropy of each row at the standard scale, in nats."""

    def row_gaps(self) -> NDArray[Any]:
        """sup over t > 0 of ln N(t) / t of each row, at the standard scale."""

    def row_spreads(self) -> NDArray[Any]:
        """Standard deviation of the visible scores of each row, at the standard scale."""
