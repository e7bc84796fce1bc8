# SPDX-License-Identifier: BSD-3-Clause
"""Visible keys of each query: an interval of keys, and a mask that hides more of them.

Every mask except an array is such an interval, cut at the ends of a packed document.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import numpy as np

from .._base.checks import as_array, boolean, fit_to, shown, warn
from .._core import Intervals
from .arrays import ARRAY, Extents, Unread, conversion, is_float_type

if TYPE_CHECKING:
    from numpy.typing import NDArray

_INT64 = np.dtype(np.int64)
# Alignments beyond this could overflow the sums of indices.
_MOST = 2**60
# A side of a window beyond the reach of any array: it is open.
_OPEN = 2**61


def read_intervals(
    extents: Extents, is_causal: Any, causal: Any, window: Any, key_lengths: Any, document_ids: Any
) -> Intervals:
    """All that hides keys except attn_mask, as integers from which the core makes the intervals.

    Integers that are not read count as if all keys were of one document and in use.
    """
    leading, n_queries, n_keys, *_ = extents
    return Intervals(
        n_queries,
        n_keys,
        leading[:-1],
        read_causal(is_causal, causal),
        read_window(window),
        None if key_lengths is None else read_integers("key_lengths", key_lengths, n_keys),
        None if document_ids is None else read_integers("document_ids", document_ids),
    )


def read_mask(attn_mask: Any, extents: Extents) -> NDArray[Any] | Unread:
    """A boolean or additive mask in a shape that broadcasts to (..., heads, n_queries, n_keys)."""
    mask: Any = attn_mask
    if type(mask) is Unread:
        check_mask_type(mask, mask.dtype)
    else:
        mask = typed_mask(mask)
    shape = (*extents.leading, extents.n_queries, extents.n_keys)
    try:
        fitted = fit_to("attn_mask", mask, shape, "(..., heads, n_queries, n_keys)")
    except ValueError as error:
        if mask.ndim == 2 and len(shape) == 4 and mask.shape == (shape[0], shape[-1]):
            raise ValueError(f"{error}; of (batch, n_keys): attn_mask[:, None, None, :]") from None
        raise
    if mask.dtype != np.bool_ and type(mask) is not Unread:
        _warn_of_zeros_and_ones(mask, attn_mask)
    return fitted


def typed_mask(attn_mask: Any) -> NDArray[Any]:
    """A mask of booleans or numbers that the core reads, in native byte order, of any shape."""
    mask = attn_mask if type(attn_mask) is np.ndarray else as_array("attn_mask", attn_mask)
    if mask.dtype != np.bool_ and not is_float_type(mask.dtype):
        check_mask_type(attn_mask, mask.dtype)
        mask = mask.astype(mask.dtype.newbyteorder("="))
    return np.asarray(mask)


def check_mask_type(given: Any, dtype: np.dtype[Any]) -> None:
    """Refuse a mask, or the type of a tensor, whose NumPy type is neither boolean nor float."""
    if dtype != np.bool_ and not (is_float_type(dtype) or is_float_type(dtype.newbyteorder("="))):
        words = conversion("attn_mask", given, "bool")
        hint = f"; {words} if nonzero = take part" if dtype.kind in "iu" else ""
        raise TypeError(f"attn_mask must be bool or float, got {dtype}{hint}")


def shows(mask: NDArray[Any]) -> NDArray[np.bool_]:
    """Whether a mask shows each key: no number at or below half of its type's smallest finite one does.

    Other libraries hide keys by the smallest finite number. The core reads masks by the same rule.
    """
    if mask.dtype == np.bool_:
        return mask
    infinite = mask.dtype.type(-np.inf)
    with np.errstate(invalid="ignore"):  # NaN shows the key, and makes the row NaN
        return np.asarray(~(mask <= np.nextafter(infinite, mask.dtype.type(0)) / 2))


def _warn_of_zeros_and_ones(mask: NDArray[Any], given: Any) -> None:
    """Warn of a float mask of 0 and 1, which is added to the scores but probably meant to hide the zeros."""
    if mask.size and mask.flat[0] in (0, 1) and bool((mask == 1).any() and ((mask == 0) | (mask == 1)).all()):
        warn(
            "attn_mask is float and holds 0 and 1 only, which are added to the scores (as in PyTorch); "
            f"{conversion('attn_mask', given, 'bool')} hides the keys with 0"
        )


def read_causal(is_causal: Any, causal: Any) -> str | int | None:
    """Alignment of queries and keys: "top_left", "bottom_right" or an offset; None: all keys are visible."""
    if is_causal is not False:
        boolean("is_causal", is_causal)
    if causal is None:
        return "top_left" if is_causal else None
    if is_causal and not (isinstance(causal, str) and causal == "top_left"):
        same = isinstance(causal, str) and causal == "bottom_right"  # == with an array is an array
        given = 'causal="bottom_right"' if same else f"causal={shown(causal)}"
        raise ValueError(f'is_causal=True means causal="top_left"; {given} was also given. Pass one of them.')
    if isinstance(causal, str):
        if causal in ("top_left", "bottom_right"):
            return causal
    elif not isinstance(causal, (bool, np.bool_, np.ma.MaskedArray)):
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


def read_window(window: Any) -> tuple[int | None, int | None]:
    """Number of keys that a query sees on each side; None: that side is open."""
    if window is None:
        return None, None
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
    return None if keys > _OPEN else keys


def read_integers(name: str, given: Any, unread: int = 0) -> NDArray[Any]:
    """An array of 64-bit integers; `unread` in place of each that is not read, or the type's largest."""
    if type(given) is Unread:
        most = np.iinfo(given.dtype).max if given.dtype.kind in "iu" else 0
        given = np.broadcast_to(np.asarray(min(unread, most), given.dtype), given.shape)
    array = np.asarray(given) if type(given) in (int, ARRAY) else as_array(name, given)
    dtype = array.dtype
    if dtype is not _INT64 and dtype != _INT64:
        if dtype.kind not in "iu":
            raise TypeError(f"{name} must be integers, got {dtype}")
        array = array.astype(np.uint64 if dtype.kind == "u" else np.int64)
    return array
