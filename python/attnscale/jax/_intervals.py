# SPDX-License-Identifier: BSD-3-Clause
"""Which keys each query may see, from key lengths and documents that are traced."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from .._call.rows import read_causal

if TYPE_CHECKING:
    from ._traced import TracedCall

__all__ = ["traced_intervals"]


def traced_intervals(
    call: TracedCall, is_causal: Any, causal: Any, window: Any, key_lengths: Any, document_ids: Any
) -> tuple[Any, Any]:
    """What :func:`attnscale._call.rows.read_intervals` finds, for options that it has checked.

    Returns
    -------
    begin, end : array of int32 or None
        Of shape (1,), (n_queries,) or (..., heads = 1, 1 or n_queries).
    """
    n_queries, n_keys = call.inputs.query.shape[-2], call.inputs.key.shape[-2]
    lengths: Any = n_keys
    if key_lengths is not None:
        lengths = jnp.asarray(key_lengths, jnp.int32)
        lengths = lengths[..., None, None] if lengths.ndim else lengths[None]
    given = read_causal(is_causal, causal)
    offset = lengths - n_queries if given == "bottom_right" else given if isinstance(given, int) else 0
    left, right = (None, None) if window is None else window
    right = right if given is None else 0
    queries = _Queries(n_queries, n_keys, offset)
    begin = None if left is None else jnp.clip(queries.aligned(-int(left)), 0, lengths)
    end = lengths if right is None else jnp.clip(queries.aligned(int(right) + 1), 0, lengths)
    if document_ids is not None:
        first, past = _documents_of(jnp.asarray(document_ids), queries.aligned(0), n_keys)
        begin = first if begin is None else jnp.maximum(begin, first)
        end = jnp.minimum(past, end)
    return begin, None if isinstance(end, int) else end


class _Queries:
    """Where the queries of a call stand among its keys."""

    def __init__(self, n_queries: int, n_keys: int, offset: Any) -> None:
        self.n_queries, self.offset = n_queries, offset
        self.farthest = n_queries + n_keys  # no key is further from a query, and int32 holds it

    def aligned(self, step: int) -> Any:
        """Index of the key that is `step` behind the one that each query is aligned with."""
        queries = jnp.arange(self.n_queries, dtype=jnp.int32)
        if isinstance(self.offset, int):
            return queries + self._near(self.offset + step)
        return queries + (self.offset + self._near(step))

    def _near(self, step: int) -> int:
        return min(max(step, -self.farthest), self.farthest)


def _documents_of(ids: Any, aligned: Any, n_keys: int) -> tuple[Any, Any]:
    """First key of each query's document, and the one past its last: 0 and 0 before the first key."""
    if ids.size == 0:
        return jnp.zeros_like(aligned), jnp.zeros_like(aligned)
    edge = jnp.ones((*ids.shape[:-1], 1), bool)
    differs = ids[..., 1:] != ids[..., :-1]
    keys = jnp.arange(n_keys, dtype=jnp.int32)
    last = ids.ndim - 1
    starts = jnp.where(jnp.concatenate([edge, differs], -1), keys, 0)
    ends = jnp.where(jnp.concatenate([differs, edge], -1), keys + 1, n_keys)
    first = jax.lax.cummax(starts, axis=last)
    past = jax.lax.cummin(ends, axis=last, reverse=True)
    if ids.ndim > 1:
        first, past = first[..., None, :], past[..., None, :]
    lead = jnp.broadcast_shapes(first.shape[:-1], aligned.shape[:-1])
    at = jnp.broadcast_to(jnp.maximum(aligned, 0), (*lead, aligned.shape[-1]))
    spread = (jnp.broadcast_to(each, (*lead, n_keys)) for each in (first, past))
    first, past = (jnp.where(aligned < 0, 0, jnp.take_along_axis(each, at, -1)) for each in spread)
    return first, past
