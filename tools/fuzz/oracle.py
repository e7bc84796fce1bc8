# SPDX-License-Identifier: BSD-3-Clause
"""Scores of a call in extended precision, and how far rounding may move each of them.

Visible keys, distances and the n of a law are those of ``attnscale.reference``, which are exact; products
are float64 for calls computed in float32 and longdouble for calls computed in float64.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
from attnscale import laws, normalizers, reference

from . import expect
from .arrays import multiplies_bfloat16
from .bounds import weigh

__all__ = [
    *("MASKS", "arithmetic", "finish", "products", "rows_first", "scale_of", "scored", "shared", "wide_of"),
    "with_length",
]

Array = np.ndarray[Any, Any]
MASKS = ("is_causal", "causal", "attn_mask", "window", "key_lengths", "document_ids")


def arithmetic(*arrays: Array | None) -> SimpleNamespace:
    """Arithmetic of a call of these inputs: unit roundoff, range, and the oracle's wider type.

    lost: weights of earlier keys that are 0 beside the row's largest. Their sums hold up to 2^8 times it, and
    a new reference makes them smaller by a factor that is 0 from 2^-126.5 (2^-1022.5) down.
    """
    double = any(x is not None and x.dtype.itemsize == 8 for x in arrays)
    info = np.finfo(np.float64 if double else np.float32)
    flushes = multiplies_bfloat16(*(x.dtype for x in arrays if x is not None))
    return SimpleNamespace(
        u=float(info.eps) / 2,
        eps=float(info.eps),
        largest=float(info.max),
        least=float(info.tiny if flushes else info.smallest_subnormal),
        tiny=float(info.tiny),
        lost=2.0 ** (-1014.5 if double else -118.5),
        wide=np.longdouble if double else np.float64,
        double=double,
    )


def wide_of(x: Array, form: SimpleNamespace) -> Array:
    """Arrays in native byte order and the oracle's type."""
    return np.asarray(x).astype(form.wide)


def rows_first(x: Array, layout: str) -> Array:
    """(..., heads, n, dim) of any layout."""
    return x.swapaxes(-3, -2) if layout == "bshd" and x.ndim > 2 else x


def shared(x: Array, query: Array, enable_gqa: bool) -> Array:
    """Key heads repeated for their query heads."""
    if not enable_gqa or x.ndim < 3 or query.shape[-3] == x.shape[-3]:
        return x
    return x.repeat(query.shape[-3] // max(x.shape[-3], 1), axis=-3)


def scored(
    query: Array,
    key: Array,
    options: dict[str, Any],
    form: SimpleNamespace,
    steps: float,
    errors: tuple[Array, Array] | None = None,
) -> Any:
    """Scores s, visible keys, their largest error d, raw products x and theirs, rows that may overflow."""
    row = products(query, key, options, form, steps, errors)
    scale, dscale, bias = scale_of(row, options, row.masks, row.bias, form)
    return finish(row, scale, dscale, bias, options, form)


def products(
    query: Array,
    key: Array,
    options: dict[str, Any],
    form: SimpleNamespace,
    steps: float,
    errors: tuple[Array, Array] | None = None,
) -> Any:
    """Raw products with the table of distances, their errors, visible keys and bias by distance.

    A sum of n products in any order with fused or separate roundings differs from the exact one by at most
    gamma_n sum |q||k| (Higham 2002, section 3.1); `steps` unit roundoffs are taken for it, the scale
    and log2(e). Each other operation adds a unit roundoff of its result.
    """
    layout, gqa = options.get("layout", "bhsd"), options.get("enable_gqa", False)
    q, k = (rows_first(wide_of(x, form), layout) for x in (query, key))
    k = shared(k, q, gqa)
    if options.get("qk_norm") is not None:
        q, k = (with_length(x, options["qk_norm"]) for x in (q, k))
        steps = steps + q.shape[-1] / 2 + 8
    kt = k.swapaxes(-1, -2)
    x = q @ kt
    q64, kt64 = np.abs(q).astype(np.float64), np.abs(kt).astype(np.float64)
    size = np.asarray(q64 @ kt64, form.wide)  # times a scale it may leave float64, where the score does not
    if form.double and not np.isfinite(size).all():  # as the sum of |q||k| may, where the product does not
        size = np.abs(q) @ np.abs(kt)
    raw, bare, factor = size, x, np.ones(1)
    masks = {name: options[name] for name in MASKS if name in options}
    seen = reference.visible(x.shape, **masks)
    inherited: Any = 0.0
    if errors is not None:  # of the rows themselves, (..., heads, n, head_dim)
        dq, dkt = errors[0], errors[1].swapaxes(-1, -2)
        inherited = dq @ kt64 + q64 @ dkt + dq @ dkt
    if options.get("distance_scale") is not None:
        factor = _of_distance(options["distance_scale"], x.shape, masks)
        x, size, inherited = x * factor, size * np.abs(factor), inherited * np.abs(factor)
        steps = steps + 1
    floor = 2 * form.least * (1 + q.shape[-1])  # products below the normal numbers
    dx = steps * form.u * size + floor + inherited
    bias: Any = 0
    if options.get("distance_bias") is not None:
        bias = _of_distance(options["distance_bias"], x.shape, masks)
    return SimpleNamespace(
        x=x,
        size=size,
        raw=raw,
        bare=bare,
        factor=factor,
        dx=dx,
        seen=seen,
        steps=steps,
        floor=floor,
        d=q.shape[-1],
        masks=masks,
        bias=bias,
    )


def finish(
    row: SimpleNamespace, scale: Any, dscale: Any, bias: Any, options: dict[str, Any], form: SimpleNamespace
) -> SimpleNamespace:
    """Scale, soft-cap, bias and mask, in this order, with the error of each."""
    absolute = np.abs(np.asarray(scale, form.wide))
    s = row.x * scale
    grown = row.size * absolute
    d = row.dx * absolute + np.abs(dscale) * row.size + row.floor + 3 * form.u * grown
    # A product may overflow before a table or a scale of 0 makes it small, or NaN.
    big = ~(np.maximum(np.maximum(row.raw, row.size), 2 * grown) <= form.largest / 16)
    cap = options.get("softcap")
    if cap is not None:
        s, d = _capped(s, d + row.floor * (1 + cap), cap, form)
    mask = options.get("attn_mask")
    free: Any = False
    for added in (bias, 0 if mask is None or mask.dtype == bool else wide_of(mask, form)):
        if np.isscalar(added):
            continue
        added = np.where(np.isneginf(added), 0, added)
        s = s + added
        d = d + 2 * form.u * (np.abs(added).astype(np.float64) + np.abs(s).astype(np.float64))
        free = free | (np.abs(added) > form.largest / 16) & np.isfinite(added)
    seen = row.seen
    broken = (seen & ~np.isfinite(s)).any(-1)
    may_break = (seen & big).any(-1)
    d = np.asarray(d, np.float64)
    # A bias or a bound that the arithmetic's type does not hold.
    free = (seen & (free | np.isfinite(s) & ~np.isfinite(d))).any(-1)
    s = np.where(seen & np.isfinite(s), s, -np.inf)
    d = np.where(seen & np.isfinite(d), d, 0.0)
    return SimpleNamespace(
        s=s, d=d, seen=seen, x=row.x, dx=row.dx, broken=broken, may_break=may_break, free=free, size=row.size
    )


def with_length(rows: Array, how: str) -> Array:
    """Rows of length 1 or sqrt(head_dim); rows of zeros stay."""
    largest = np.abs(rows).max(-1, keepdims=True, initial=0)
    scaled = rows / np.where(largest == 0, 1, largest)
    norm = np.sqrt((scaled * scaled).sum(-1, keepdims=True))
    length = rows.dtype.type(1) if how == "l2" else np.sqrt(rows.dtype.type(rows.shape[-1]))
    return scaled * (length / np.where(norm == 0, 1, norm))


def _capped(s: Array, d: Array, cap: float, form: SimpleNamespace) -> tuple[Array, Array]:
    """c tanh(s / c): its slope is at most 1 and falls with |s|."""
    nearest = np.maximum(np.abs(s).astype(np.float64) - d, 0) / cap
    slope = 1 / np.cosh(np.minimum(nearest, 300)) ** 2
    capped = cap * np.tanh(s / cap)
    moved = np.minimum(d * slope, 2 * cap) + 8 * form.u * np.minimum(cap, np.abs(s).astype(np.float64))
    return np.where(np.isfinite(s), capped, np.nan), moved + 2 * form.u * np.abs(capped).astype(np.float64)


def _of_distance(table: Any, shape: tuple[int, ...], masks: dict[str, Any]) -> Array:
    t = reference.distances(shape, **{n: v for n, v in masks.items() if n != "document_ids"})
    if callable(table):
        return np.asarray(table(t.ravel())).reshape(t.shape)
    table = np.asarray(table, np.float64)[..., None, :]
    lead = np.broadcast_shapes(table.shape[:-2], t.shape[:-2])
    rows = np.broadcast_to(table, (*lead, t.shape[-2], table.shape[-1]))
    return np.take_along_axis(rows, np.broadcast_to(np.abs(t), (*lead, *t.shape[-2:])), -1)


def scale_of(
    row: SimpleNamespace, options: dict[str, Any], masks: dict[str, Any], bias: Any, form: SimpleNamespace
) -> tuple[Any, Any, Any]:
    """The scale of each row or pair, its own error, and the bias with that of a law of distance."""
    scale, dim = options.get("scale"), max(row.d, 1)
    if scale is None:
        return 1 / np.sqrt(form.wide(dim)), 0.0, bias
    if not isinstance(scale, (str, laws.Law)):
        array = np.asarray(scale)
        return (array.astype(form.wide)[..., None] if array.ndim else form.wide(array)), 0.0, bias
    law = laws.get(scale)
    if law.n_means == "query-key distance":
        t = np.abs(
            reference.distances(row.x.shape, **{n: v for n, v in masks.items() if n != "document_ids"})
        )
        return law.scale(t, dim), 0.0, bias + getattr(law, "bias", np.zeros_like)(t)
    if law.n_means == "row entropy":
        return (*_measured(row, law, options, bias, form), bias)
    n = reference.n_of_law(law, row.seen, **masks)
    return np.asarray(law.scale(n, dim))[..., None], 0.0, bias


def _measured(
    row: SimpleNamespace, law: Any, options: dict[str, Any], bias: Any, form: SimpleNamespace
) -> tuple[Any, Any]:
    """The scale of a law of the row's entropy, and what an error of that entropy may move it by.

    The entropy's error is that of any softmax row: scores that rounding may take past each other may leave
    one key or tie, and the law need not be monotonic in between.
    """
    dim = max(row.d, 1)
    first = finish(row, 1 / np.sqrt(form.wide(dim)), 0.0, bias, options, form)
    entropy, moved = expect.entropy_of(weigh(first, normalizers.Softmax(), form), form)
    entropy, moved = np.asarray(entropy, np.float64)[..., None], np.asarray(moved, np.float64)[..., None]
    most = np.log(max(first.s.shape[-1], 1))
    near = np.clip(entropy + moved * np.linspace(-1, 1, 65), 0, most)
    scale, others = (np.asarray(law.scale(h, dim)) for h in (entropy, near))
    return scale, 1.1 * np.abs(others - scale).max(-1, keepdims=True)
