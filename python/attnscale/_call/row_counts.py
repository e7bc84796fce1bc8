# SPDX-License-Identifier: BSD-3-Clause
"""The n of each query, in the meanings that scale laws give it.

Results broadcast to (..., heads, n_queries): they have one entry a query, and leading axes only
where key lengths or a mask differ.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .. import _core
from .rows import UNBOUNDED, Visibility

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["query_positions", "row_sizes", "visible_keys"]


def query_positions(n_queries: int, n_keys: int, visible: Visibility) -> NDArray[np.int64]:
    """Index of the key that each query is aligned with: i + offset."""
    positions: NDArray[np.int64] = np.arange(n_queries, dtype=np.int64)
    if visible.bottom_right:
        positions = positions + (_key_lengths(n_keys, visible) - n_queries)
    return positions


def row_sizes(n_queries: int, n_keys: int, visible: Visibility) -> NDArray[np.int64]:
    """Keys from the first one up to the last one that causal, window and key_lengths allow.

    A causal row i counts i + 1 (+ offset) whatever the window's left side or a mask hide.
    """
    lengths = _key_lengths(n_keys, visible)
    if visible.right == UNBOUNDED:
        return np.broadcast_to(lengths, (*lengths.shape[:-1], n_queries))
    last = query_positions(n_queries, n_keys, visible) + visible.right + 1
    return np.clip(last, 0, lengths)


def visible_keys(n_queries: int, n_keys: int, visible: Visibility, num_threads: int) -> NDArray[np.int64]:
    """Keys that each query may see: counted where there is a mask, else known from the interval."""
    if visible.mask is not None:
        return _core.count_visible(n_queries, n_keys, *visible, num_threads)
    last = row_sizes(n_queries, n_keys, visible)
    if visible.left == UNBOUNDED:
        return last
    first = query_positions(n_queries, n_keys, visible) - visible.left
    return np.maximum(last - np.maximum(first, 0), 0)


def _key_lengths(n_keys: int, visible: Visibility) -> NDArray[Any]:
    """Shape (1,), or (..., heads = 1, 1) to broadcast over queries."""
    lengths = visible.key_lengths
    return np.array([n_keys]) if lengths is None else lengths[..., None]
