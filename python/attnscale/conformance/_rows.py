# SPDX-License-Identifier: BSD-3-Clause
"""Words for rows without keys, for numbers that are none, and for weights that do not sum to 1."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._draft import Draft, Predicted, computed, seen_of
from ._turn import Turn

Array = NDArray[Any]


def empty_rows(turn: Turn, draft: Draft, predicted: Predicted) -> str:
    """Content of the rows without keys; "" where they are 0, as they should be, or where there are none."""
    empty = np.broadcast_to(predicted.empty, turn.found.shape[:-1])
    rows = turn.found[empty]
    if not rows.size or (rows == 0).all():
        return ""
    is_number = np.isfinite(rows)
    if not is_number.any():
        return "NaN" if np.isnan(rows).any() else "infinities"
    if not is_number.all():
        rest = "0" if (rows[is_number] == 0).all() else "numbers"
        return f"{rest} and NaN, mixed"
    size = np.maximum(1, np.abs(rows))
    for says, loose, other in _contents(draft):
        wanted = computed(other).output[empty]
        if (np.abs(rows - wanted) <= max(20 * turn.allowed, loose) * size).all():
            return says
    return "0 and numbers, mixed" if (rows == 0).all(-1).any() else "numbers"


#: Numbers that are wrong in answers which hold a NaN or an infinity.
BESIDE = "numbers beside a NaN or an infinity are wrong"
#: Content of rows whose mask has the lowest number of another type.
CAST = "the softmax of scores less a number"


def _contents(draft: Draft) -> Iterator[tuple[str, float, Draft]]:
    """Contents that engines write into rows without keys: a name, a tolerance, and a draft for each."""
    flat, bare, near, cast = (draft.copy() for _ in range(4))
    for made in (flat, bare, near):
        made.lets = made.added = None
        made.options.pop("attn_mask", None)
    for made in (flat, bare):
        for name in ("is_causal", "causal", "window", "key_lengths", "document_ids", "distance_bias"):
            made.options.pop(name, None)
    for made in (flat, near):
        made.query, made.sink = np.zeros_like(draft.query), None
    yield "the mean of values", 1e-4, flat
    mask = np.asarray(draft.options.get("attn_mask", True))
    if mask.dtype.kind == "f" and not np.isneginf(mask).any():
        cast.lets, cast.added = None, mask.astype(np.float64)
        yield CAST, 0.02, cast
    yield "the softmax without a mask", 1e-4, bare
    yield "the mean of the keys that the mask alone hides", 1e-4, near


def emptied_by(turn: Turn) -> str:
    """The option that empties rows of the call, "options together" where none does alone."""
    draft = turn.draft
    if not draft.key.shape[-2]:
        return "no keys at all"
    shape = (*turn.truth.output.shape[:-2], draft.query.shape[-2], draft.key.shape[-2])
    if draft.query.ndim > 2:
        shape = (*shape[:-3], draft.query.shape[-3], *shape[-2:])
    names = ("attn_mask", "key_lengths", "document_ids", "window", "causal", "is_causal")
    given = [name for name in names if name in draft.options]
    for name in given:
        rest = tuple(x for x in given if x != name)
        if (~seen_of(draft, shape, without=rest).any(-1)).any():
            if name == "attn_mask":
                return _kind_of(draft)
            return "causality" if "causal" in name else name
    return "options together"


def _kind_of(draft: Draft) -> str:
    mask = np.asarray(draft.options["attn_mask"])
    if mask.dtype == np.bool_:
        return "a boolean mask"
    return "a mask of -inf" if np.isneginf(mask).any() else f"a mask of the lowest {mask.dtype}"


def not_numbers(turn: Turn, predicted: Predicted) -> str:
    """Whether a NaN or an infinity goes where it should not, or is lost; "" for neither."""
    shown = np.broadcast_to(~predicted.empty[..., None], turn.found.shape)
    wanted, found = predicted.output[shown], turn.found[shown]
    finite, is_number = np.isfinite(wanted), np.isfinite(found)
    # Rows that are partly right: their numbers must be right, or the engine has another slip.
    both = finite & is_number
    near = np.abs(np.where(both, found, 0) - np.where(both, wanted, 0))
    mass = np.broadcast_to(turn.mass, turn.found.shape)[shown]
    if (near > turn.allowed * mass).any():
        return BESIDE if not turn.is_finite else ""
    if (finite & ~is_number).any():
        if turn.is_finite:
            return _nan_at(turn)
        return f"{_source(turn)} reaches other numbers"
    if (~finite & is_number).any():
        return "a NaN or an infinity is swallowed"
    if (np.isinf(wanted) & (found != wanted)).any() or (np.isnan(wanted) & ~np.isnan(found)).any():
        return "an infinity of another sign, or in place of NaN"
    return ""


def _nan_at(turn: Turn) -> str:
    """NaN or infinities in answers that are numbers, and the scale where that may be why."""
    kind = "NaN" if np.isnan(turn.found).any() else "infinities"
    scale = turn.case.options.get("scale")
    if scale is None or not (np.asarray(scale) <= 0).any():
        return f"{kind} where numbers are meant"
    at = "scale 0" if (np.asarray(scale) == 0).all() else "a scale below 0"
    return f"{kind} at {at}{', causal' if turn.case.options.get('is_causal') else ''}"


def _source(turn: Turn) -> str:
    names = ("query", "key", "value")
    bad = {
        name: "a NaN" if np.isnan(x).any() else "an infinity"
        for name, x in zip(names, turn.arrays, strict=True)
        if not np.isfinite(x).all()
    }
    return " and ".join(f"{kind} in a {name}" for name, kind in bad.items())


def weights_sum(turn: Turn) -> float | None:
    """The sum of weights, where all values of a key's row are one number; None elsewhere."""
    value = turn.arrays[2]
    if (
        not value.size
        or value.flat[0] == 0
        or not (value == value.flat[0]).all()
        or not np.isfinite(turn.found).all()
    ):
        return None
    sums = turn.found[np.broadcast_to(~turn.truth.empty, turn.found.shape[:-1])] / value.flat[0]
    return float(sums.flat[0]) if sums.size and np.ptp(sums) < 0.01 * abs(sums.flat[0]) + 1e-9 else None
