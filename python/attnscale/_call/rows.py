# SPDX-License-Identifier: BSD-3-Clause
"""Which keys each query may see: one interval of keys a query, and a mask that hides more of them.

Every mask but an array is such an interval, a packed document too: it is cut at the document's ends.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .._checks import as_array, boolean, fit_to, shown, warn
from .arrays import Inputs, is_float_type

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["EVERY_KEY", "Intervals", "causal_offset", "read_intervals", "read_mask", "shows", "typed_mask"]

# Alignments and sides beyond this could overflow the sums of indices.
_MOST = 2**60

# An int, or an array that broadcasts to (..., heads, n_queries).
_Keys = Any


class Intervals(NamedTuple):
    """Query i sees the keys begin[i] ... end[i] - 1; arrays broadcast to (..., heads, n_queries).

    Neither end decreases from a query to the next: kernels rely on it.
    """

    begin: NDArray[np.int64] | None  # None: from the first key
    end: NDArray[np.int64] | None  # None: to the last key
    offset: _Keys  # query i is aligned with the key i + offset
    origin: NDArray[np.int64] | None  # the first key of the query's document; None: 0

    def aligned(self, n_queries: int) -> NDArray[np.int64]:
        """Index of the key that each query is aligned with, which need not exist."""
        positions: NDArray[np.int64] = np.arange(n_queries) + self.offset
        return positions


EVERY_KEY = Intervals(None, None, 0, None)


def read_intervals(
    inputs: Inputs, is_causal: Any, causal: Any, window: Any, key_lengths: Any, document_ids: Any
) -> Intervals:
    """Check everything that masks but attn_mask."""
    n_queries, n_keys = inputs.query.shape[-2], inputs.key.shape[-2]
    lengths = n_keys if key_lengths is None else _read_lengths(key_lengths, inputs.leading[:-1], n_keys)
    given = causal_offset(is_causal, causal, n_queries, lengths)
    offset = 0 if given is None else given
    left, right = (None, None) if window is None else _read_window(window)
    if given is not None:
        right = 0
    begin: Any = None
    end: Any = lengths if key_lengths is not None else None
    if right is not None:
        end = _ascending(offset + (right + 1), n_queries, lengths)
    if left is not None:
        begin = _ascending(offset - left, n_queries, lengths)
    origin = None
    if document_ids is not None:
        first, past = _document_of_queries(document_ids, inputs, offset, np.arange(n_queries) + offset)
        begin = first if begin is None else np.maximum(begin, first)
        end = np.minimum(past, lengths if end is None else end)
        origin = first
    return Intervals(begin, None if end is None else np.asarray(end), offset, origin)


def _ascending(first: _Keys, n_queries: int, lengths: _Keys) -> NDArray[np.int64]:
    """Index first + i of a key for each query i, brought between 0 and the number of keys."""
    if isinstance(first, int) and isinstance(lengths, int):
        keys = np.arange(first, first + n_queries)
        if first >= 0 and first + n_queries <= lengths + 1:  # nothing to bring there: most calls
            return keys
    else:
        keys = np.arange(n_queries) + first
    return np.minimum(np.maximum(keys, 0), lengths)


def read_mask(attn_mask: Any, inputs: Inputs) -> NDArray[Any]:
    """A boolean or additive mask that broadcasts to (..., heads, n_queries, n_keys)."""
    mask = typed_mask(attn_mask)
    shape = (*inputs.row_shape, inputs.key.shape[-2])
    try:
        fitted = fit_to("attn_mask", mask, shape, "(..., heads, n_queries, n_keys)")
    except ValueError as error:
        if mask.ndim == 2 and len(shape) == 4 and mask.shape == (shape[0], shape[-1]):
            raise ValueError(f"{error}; of (batch, n_keys): attn_mask[:, None, None, :]") from None
        raise
    if mask.dtype != np.bool_:
        _warn_of_zeros_and_ones(mask)
    return fitted


def typed_mask(attn_mask: Any) -> NDArray[Any]:
    """A mask of booleans or of numbers that the core reads, in native byte order; of any shape."""
    mask = attn_mask if type(attn_mask) is np.ndarray else as_array("attn_mask", attn_mask)
    if mask.dtype != np.bool_ and not is_float_type(mask.dtype):
        if not is_float_type(mask.dtype.newbyteorder("=")):
            hint = "; attn_mask.astype(bool) if nonzero = take part" if mask.dtype.kind in "iu" else ""
            raise TypeError(f"attn_mask must be bool or float, got {mask.dtype}{hint}")
        mask = mask.astype(mask.dtype.newbyteorder("="))
    return np.asarray(mask)


def shows(mask: NDArray[Any]) -> NDArray[np.bool_]:
    """Where a mask lets the key be seen: not at a number as low as half of its type's smallest finite one.

    Other libraries hide keys by the smallest finite number. The core reads masks by the same rule.
    """
    if mask.dtype == np.bool_:
        return mask
    infinite = mask.dtype.type(-np.inf)
    with np.errstate(invalid="ignore"):  # NaN shows the key, and makes the row NaN
        return np.asarray(~(mask <= np.nextafter(infinite, mask.dtype.type(0)) / 2))


def _warn_of_zeros_and_ones(mask: NDArray[Any]) -> None:
    """A float mask is added to the scores; one of 0 and 1 was most likely meant to hide the zeros."""
    if mask.size and mask.flat[0] in (0, 1) and bool((mask == 1).any() and ((mask == 0) | (mask == 1)).all()):
        warn(
            "attn_mask is float and holds 0 and 1 only, which are added to the scores (as in PyTorch); "
            "attn_mask.astype(bool) hides the keys with 0"
        )


def causal_offset(is_causal: Any, causal: Any, n_queries: int, lengths: _Keys) -> _Keys:
    """Query i sees no key behind i + this; None: it may see all."""
    boolean("is_causal", is_causal)
    if causal is None:
        return 0 if is_causal else None
    if is_causal and not (isinstance(causal, str) and causal == "top_left"):
        same = isinstance(causal, str) and causal == "bottom_right"  # == of an array is an array
        given = 'causal="bottom_right"' if same else f"causal={shown(causal)}"
        raise ValueError(f'is_causal=True means causal="top_left"; {given} was also given. Pass one of them.')
    if isinstance(causal, str):
        if causal == "top_left":
            return 0
        if causal == "bottom_right":
            return lengths - n_queries
    elif not isinstance(causal, (bool, np.bool_)):
        try:
            offset = operator.index(causal)
        except TypeError:
            pass
        else:
            if abs(offset) > _MOST:
                raise ValueError(f"causal must be between -2**60 and 2**60, got {offset}")
            return offset
    meant = "; did you mean is_causal=True?" if causal is True else ""
    raise ValueError(f"causal must be 'top_left', 'bottom_right' or an integer, got {shown(causal)}{meant}")


def _read_window(window: Any) -> tuple[int | None, int | None]:
    try:
        left, right = window
    except (TypeError, ValueError):
        raise TypeError(f"window must be a pair (left, right), got {shown(window)}") from None
    return _read_side("left", left), _read_side("right", right)


def _read_side(side: str, extent: Any) -> int | None:
    if extent is None:
        return None
    try:
        keys = operator.index(extent)
    except TypeError:
        raise TypeError(f"window {side} must be an integer or None, got {shown(extent)}") from None
    if keys < 0:
        raise ValueError(f"window {side} must be at least 0, or None for an open side, got {keys}")
    # No array has so many keys: that side is open.
    return None if keys > 2 * _MOST else keys


def _read_lengths(key_lengths: Any, batch: tuple[int, ...], n_keys: int) -> _Keys:
    """An int, or (..., heads = 1, n_queries = 1): the same for the heads and queries of a batch entry."""
    lengths = as_array("key_lengths", key_lengths)
    if lengths.dtype.kind not in "iu":
        raise TypeError(f"key_lengths must be integers, got {lengths.dtype}")
    lengths = fit_to("key_lengths", lengths, batch, "the batch shape (query.shape[:-3])")
    if lengths.size and (lengths.min() < 0 or lengths.max() > n_keys):
        seen = lengths.min() if lengths.min() < 0 else lengths.max()
        raise ValueError(f"key_lengths must be between 0 and the number of keys, {n_keys}, got {seen}")
    return lengths.astype(np.int64)[..., None, None] if lengths.ndim else int(lengths)


def _document_of_queries(
    document_ids: Any, inputs: Inputs, offset: _Keys, aligned: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """First key of each query's document, and the one past its last: that of the key it is aligned with.

    Queries before the first key see nothing: 0 and 0.
    """
    n_queries, n_keys = inputs.query.shape[-2], inputs.key.shape[-2]
    batch = inputs.leading[:-1]
    ids = as_array("document_ids", document_ids)
    if ids.dtype.kind not in "iu":
        raise TypeError(f"document_ids must be integers, got {ids.dtype}")
    ids = fit_to("document_ids", ids, (*batch, n_keys), "(..., n_keys)")
    if n_queries + max(int(np.max(offset, initial=0)), 0) > n_keys:
        seen = f"{n_queries} queries and {n_keys} keys"
        if n_queries <= n_keys:
            seen = f"{n_queries} queries from key {offset} on and {n_keys} keys"
        raise ValueError(
            f"document_ids needs a key for each query, whose document the query is of, got {seen}"
        )
    if ids.size == 0:
        return np.zeros_like(aligned), np.zeros_like(aligned)
    first, past = _runs(np.broadcast_to(ids, (*ids.shape[:-1], n_keys)))
    if ids.ndim > 1:
        first, past = first[..., None, :], past[..., None, :]
    lead = np.broadcast_shapes(first.shape[:-1], aligned.shape[:-1])
    at = np.broadcast_to(np.maximum(aligned, 0), (*lead, n_queries))
    spread = (np.broadcast_to(keys, (*lead, n_keys)) for keys in (first, past))
    first, past = (np.where(aligned < 0, 0, np.take_along_axis(keys, at, -1)) for keys in spread)
    return first, past


def _runs(ids: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """For each key the first key of its run of equal ids, and the one past its last."""
    n_keys = ids.shape[-1]
    starts = np.ones(ids.shape, np.bool_)
    starts[..., 1:] = ids[..., 1:] != ids[..., :-1]
    for entry, is_start in zip(ids.reshape(-1, n_keys), starts.reshape(-1, n_keys), strict=True):
        runs, counts = np.unique(entry[is_start], return_counts=True)
        if (counts > 1).any():
            raise ValueError(
                "each document must be one run of document_ids, "
                f"got {runs[counts > 1][0]} in {counts.max()} runs"
            )
    at = np.arange(n_keys)
    ends = np.ones(ids.shape, np.bool_)
    ends[..., :-1] = starts[..., 1:]
    first = np.maximum.accumulate(np.where(starts, at, 0), axis=-1)
    past = np.minimum.accumulate(np.where(ends, at + 1, n_keys)[..., ::-1], axis=-1)[..., ::-1]
    return first, past
