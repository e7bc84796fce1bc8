# SPDX-License-Identifier: BSD-3-Clause
"""Which keys a query may see, and the other options that every call shares."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .._checks import as_array, boolean, choose, fit_to, number, positive_int
from .arrays import Inputs, is_float_type

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["UNBOUNDED", "Visibility", "read_num_threads", "read_softcap", "read_visibility"]

UNBOUNDED = 2**63 - 1  # attnscale::unbounded of problem.hpp: an open side of a window

_ALIGNMENTS = ("top_left", "bottom_right")


class Visibility(NamedTuple):
    """Query i may see the keys i + offset - left ... i + offset + right below its key length, where
    offset is 0, or the key length - n_queries for bottom_right; the mask hides more of them."""

    mask: NDArray[Any] | None  # broadcasts to (..., heads, n_queries, n_keys)
    key_lengths: NDArray[np.int64] | None  # (..., 1): one a batch entry, the same for its heads
    left: int
    right: int
    bottom_right: bool


_EVERYTHING = Visibility(None, None, UNBOUNDED, UNBOUNDED, False)


def read_visibility(
    inputs: Inputs, is_causal: Any, causal: Any, attn_mask: Any, window: Any, key_lengths: Any
) -> Visibility:
    """Check the masks and bring them into the form of the core."""
    if causal is None and attn_mask is None and window is None and key_lengths is None and is_causal is False:
        return _EVERYTHING
    alignment = _alignment(is_causal, causal)
    n_queries, n_keys = inputs.query.shape[-2], inputs.key.shape[-2]
    left, right = (UNBOUNDED, UNBOUNDED) if window is None else _window(window, n_queries + n_keys)
    if alignment is not None:
        right = 0
    return Visibility(
        None if attn_mask is None else _mask(attn_mask, (*inputs.leading, n_queries, n_keys)),
        None if key_lengths is None else _key_lengths(key_lengths, inputs.leading[:-1], n_keys),
        left,
        right,
        alignment == "bottom_right",
    )


def _alignment(is_causal: Any, causal: Any) -> str | None:
    boolean("is_causal", is_causal)
    if causal is None:
        return "top_left" if is_causal else None
    alignment = choose("causal", causal, _ALIGNMENTS)
    if is_causal and alignment != "top_left":
        raise ValueError(
            f'is_causal=True means causal="top_left"; causal="{alignment}" was also given. Pass one of them.'
        )
    return alignment


def _window(window: Any, everything: int) -> tuple[int, int]:
    try:
        left, right = window
    except (TypeError, ValueError):
        raise TypeError(f"window must be a pair (left, right), got {window!r}") from None
    return _window_side("left", left, everything), _window_side("right", right, everything)


def _window_side(side: str, extent: Any, everything: int) -> int:
    if extent is None:
        return UNBOUNDED
    try:
        keys = operator.index(extent)
    except TypeError:
        raise TypeError(f"window {side} must be an integer or None, got {extent!r}") from None
    if keys < 0:
        raise ValueError(f"window {side} must be at least 0, or None for an open side, got {keys}")
    # A side that reaches beyond all keys is open: the core's sums of indices then cannot overflow.
    return UNBOUNDED if keys >= everything else keys


def _mask(attn_mask: Any, shape: tuple[int, ...]) -> NDArray[Any]:
    mask = attn_mask if type(attn_mask) is np.ndarray else as_array("attn_mask", attn_mask)
    if mask.dtype != np.bool_ and not is_float_type(mask.dtype):
        if not is_float_type(mask.dtype.newbyteorder("=")):
            hint = "; attn_mask.astype(bool) if nonzero = take part" if mask.dtype.kind in "iu" else ""
            raise TypeError(f"attn_mask must be bool or float, got {mask.dtype}{hint}")
        mask = mask.astype(mask.dtype.newbyteorder("="))
    return fit_to("attn_mask", mask, shape, "(..., heads, n_queries, n_keys)")


def _key_lengths(key_lengths: Any, batch: tuple[int, ...], n_keys: int) -> NDArray[np.int64]:
    lengths = as_array("key_lengths", key_lengths)
    if lengths.dtype.kind not in "iu":
        raise TypeError(f"key_lengths must be integers, got {lengths.dtype}")
    lengths = fit_to("key_lengths", lengths, batch, "the batch shape (query.shape[:-3])")
    if lengths.size and (lengths.min() < 0 or lengths.max() > n_keys):
        seen = lengths.min() if lengths.min() < 0 else lengths.max()
        raise ValueError(f"key_lengths must be between 0 and the number of keys, {n_keys}, got {seen}")
    return lengths.astype(np.int64)[..., None]


def read_softcap(softcap: Any) -> float:
    """0.0 for None, which the core takes for no soft-cap."""
    if softcap is None:
        return 0.0
    cap = number("softcap", softcap)
    if cap <= 0:
        raise ValueError(f"softcap must be greater than 0, or None for no soft-cap, got {softcap!r}")
    return cap


def read_num_threads(num_threads: Any) -> int:
    """0 for None, which the core takes for its default."""
    return 0 if num_threads is None else positive_int("num_threads", num_threads)
