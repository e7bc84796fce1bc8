# SPDX-License-Identifier: BSD-3-Clause
"""document_ids=: packed documents are attention calls of their own, on views of the arrays.

Every mask keeps its meaning inside a document, and a law's n counts there: nothing of size n x n is made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from .. import _core
from .._checks import as_array, fit_to
from .arrays import Inputs
from .distance import Tables, read_tables
from .rows import Visibility
from .scale import read_scale
from .weights import rule_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Packed", "Part", "attend_documents", "curve_documents", "read_documents", "solve_documents"]

_ARGMAX = 7  # among the statistics of the core: an index of keys


class Part(NamedTuple):
    """Queries that see the keys of one document, of one batch entry or (batch = ()) of all."""

    batch: tuple[int, ...]
    queries: slice
    keys: slice


class Packed(NamedTuple):
    """What a call over all documents shares."""

    inputs: Inputs
    visible: Visibility
    scale: Any
    softcap: float
    num_threads: int
    distance: tuple[Any, Any, Any] = (None, None, None)  # distance_scale, distance_bias, law
    normalizer: Any = None


def attend_documents(
    parts: Sequence[Part], how: Packed, view: NDArray[Any] | None, statistics: int
) -> tuple[NDArray[Any] | None, ...]:
    """Statistics of all parts; their outputs go into `view`."""
    from ..laws import Law

    # A law counts within the document; an array is of all queries and checked as such.
    is_law = isinstance(how.scale, (str, Law))
    rows = None if is_law else read_scale(how.scale, how.inputs, how.visible, how.num_threads)

    def attend(part: Part) -> tuple[NDArray[Any] | None, ...]:
        inputs, visible = _cut(how.inputs, how.visible, part)
        scale = (
            read_scale(how.scale, inputs, visible, how.num_threads, how.softcap)
            if is_law
            else _cut_rows(rows, how.inputs, part)
        )
        place = None if view is None else view[part.batch][..., part.queries, :]
        q, k, v = inputs.query, inputs.key, inputs.value
        tables = _cut_tables(how, inputs, visible, part)
        rule = rule_of(how.normalizer, inputs, visible, how.num_threads)
        results = _core.attend(
            *(q, k, v, place, statistics, scale), *visible, how.softcap, how.num_threads, *tables, rule
        )
        argmax = results[_ARGMAX]
        if argmax is not None:
            argmax[argmax >= 0] += part.keys.start
        return results

    return _gather(parts, how.inputs, attend)


def curve_documents(
    parts: Sequence[Part], how: Packed, scales: NDArray[np.float64]
) -> tuple[NDArray[Any], ...]:
    """Curves of all parts."""

    def curve(part: Part) -> tuple[NDArray[Any], ...]:
        inputs, visible = _cut(how.inputs, how.visible, part)
        q, k, tables = inputs.query, inputs.key, _cut_tables(how, inputs, visible, part)
        return _core.curve(q, k, scales, *visible, how.softcap, how.num_threads, *tables)

    return cast(tuple[Any, ...], _gather(parts, how.inputs, curve, axes_after=1))


def solve_documents(
    parts: Sequence[Part], how: Packed, target: NDArray[np.float64], tolerance: float
) -> tuple[NDArray[Any], ...]:
    """Scales of all parts for targets that broadcast to (..., heads, n_queries)."""

    def solve(part: Part) -> tuple[NDArray[Any], ...]:
        inputs, visible = _cut(how.inputs, how.visible, part)
        wanted = _cut_rows(target, how.inputs, part)
        return _core.solve(inputs.query, inputs.key, wanted, tolerance, *visible, how.num_threads)

    return cast(tuple[Any, ...], _gather(parts, how.inputs, solve))


def read_documents(document_ids: Any, inputs: Inputs, visible: Visibility) -> list[Part]:
    """The documents, checked. Every query is in exactly one part."""
    n_queries, n_keys = inputs.query.shape[-2], inputs.key.shape[-2]
    batch = inputs.leading[:-1]
    ids = as_array("document_ids", document_ids)
    if ids.dtype.kind not in "iu":
        raise TypeError(f"document_ids must be integers, got {ids.dtype}")
    ids = fit_to("document_ids", ids, (*batch, n_keys), "(..., n_keys)")
    if n_queries > n_keys:
        raise ValueError(
            "document_ids needs a key for each query, whose document the query is of, "
            f"got {n_queries} queries and {n_keys} keys"
        )
    lengths = visible.key_lengths
    if ids.ndim == 1 and lengths is None:
        return _parts((), np.broadcast_to(ids, (n_keys,)), n_keys, n_queries, visible.bottom_right)
    ids = np.broadcast_to(ids, (*batch, n_keys))
    every = np.broadcast_to(n_keys if lengths is None else lengths[..., 0], batch)
    return [
        part
        for index in np.ndindex(batch)
        for part in _parts(index, ids[index], int(every[index]), n_queries, visible.bottom_right)
    ]


def _cut(inputs: Inputs, visible: Visibility, part: Part) -> tuple[Inputs, Visibility]:
    """Views of the part. Its keys end at the key length, so that it has none of its own."""
    batch = inputs.leading[:-1] if part.batch else ()

    def entry(array: NDArray[Any]) -> NDArray[Any]:
        if not part.batch or array.ndim < 4:
            return array
        one: NDArray[Any] = np.broadcast_to(array, (*batch, *array.shape[-3:]))[part.batch]
        return one

    query, key = entry(inputs.query)[..., part.queries, :], entry(inputs.key)[..., part.keys, :]
    value = None if inputs.value is None else entry(inputs.value)[..., part.keys, :]
    leading = inputs.leading[len(part.batch) :]
    mask = visible.mask
    if mask is not None:
        mask = entry(mask)
        if mask.ndim > 1 and mask.shape[-2] > 1:
            mask = mask[..., part.queries, :]
        if mask.ndim > 0 and mask.shape[-1] > 1:
            mask = mask[..., part.keys]
    return Inputs(query, key, value, inputs.dtype, leading), visible._replace(mask=mask, key_lengths=None)


def _cut_tables(how: Packed, inputs: Inputs, visible: Visibility, part: Part) -> Tables:
    """Tables over the distance, which is the same within a document as within the pack."""
    distance_scale, distance_bias, law = how.distance
    batch = how.inputs.leading[:-1]
    factor, offset = _cut_table(distance_scale, batch, part), _cut_table(distance_bias, batch, part)
    return read_tables(factor, offset, law, inputs, visible)


def _cut_table(table: Any, batch: tuple[int, ...], part: Part) -> Any:
    if table is None or not part.batch:
        return table
    if callable(table):
        return lambda distances: _cut_table(table(distances), batch, part)
    array = np.asarray(table)
    return array if array.ndim < 3 else np.broadcast_to(array, (*batch, *array.shape[-2:]))[part.batch]


def _cut_rows(scale: Any, inputs: Inputs, part: Part) -> Any:
    """The part of a scale that broadcasts to (..., heads, n_queries); a number stays what it is."""
    if isinstance(scale, float):
        return scale
    rows: NDArray[Any] = np.broadcast_to(scale, (*inputs.leading, inputs.query.shape[-2]))
    return rows[part.batch][..., part.queries]


def _gather(
    parts: Sequence[Part],
    inputs: Inputs,
    compute: Callable[[Part], tuple[NDArray[Any] | None, ...]],
    *,
    axes_after: int = 0,
) -> tuple[NDArray[Any] | None, ...]:
    """Results of all parts side by side; they have `axes_after` axes behind that of the queries."""
    whole: list[NDArray[Any] | None] = []
    after = (slice(None),) * axes_after
    for part in parts:
        results = compute(part)
        if not whole:
            whole = [None if each is None else _room(each, inputs, axes_after) for each in results]
        for place, result in zip(whole, results, strict=True):
            if place is not None:
                place[part.batch][(..., part.queries, *after)] = result
    return tuple(whole)


def _room(result: NDArray[Any], inputs: Inputs, axes_after: int) -> NDArray[Any]:
    tail = result.shape[result.ndim - axes_after :]
    return np.empty((*inputs.leading, inputs.query.shape[-2], *tail), result.dtype)


def _parts(
    batch: tuple[int, ...], ids: NDArray[Any], length: int, n_queries: int, bottom_right: bool
) -> list[Part]:
    """Runs of equal ids. Query i is of the document of the key i + offset that it is aligned with."""
    starts = np.flatnonzero(np.append(True, ids[1:] != ids[:-1])[: ids.size])
    ends = np.append(starts, ids.size)[1:]
    runs, counts = np.unique(ids[starts], return_counts=True)
    if (counts > 1).any():
        raise ValueError(
            f"each document must be one run of document_ids, got {runs[counts > 1][0]} in {counts.max()} runs"
        )
    offset = length - n_queries if bottom_right else 0
    parts = []
    # Queries before the first key see nothing, and so does everything where there are no queries.
    if offset < 0 or n_queries == 0:
        parts.append(Part(batch, slice(0, -min(offset, 0)), slice(0, 0)))
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        first, last = max(start - offset, 0), min(end - offset, n_queries)
        if first < last:
            parts.append(Part(batch, slice(first, last), slice(start, max(start, min(end, length)))))
    return parts
