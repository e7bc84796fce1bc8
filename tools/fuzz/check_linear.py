# SPDX-License-Identifier: BSD-3-Clause
"""Families with features, and their states: by their matrices of weights.

Weights are products of features that are not negative, so that errors are relative: a feature of x is within
(8 + 3 |ln feature|) unit roundoffs of its own (exponentials take a rounded argument), a product of r features
within r + 2, and a sum over keys within the promise of 64 eps. Only cosFormer subtracts: cos a cos b +
sin a sin b, whose error is that of the product without the cosine. Features that are exponentials make rows
of a softmax: logarithms of weights relative to the row's largest, and shares of it where they are far off.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import attnscale as at
import numpy as np
from attnscale import reference

from . import build, oracle
from .bounds import SMALL, share
from .check_attend import result_type
from .compare import Findings
from .draw import Case, Draw, generator

__all__ = ["check", "compare", "draw", "oracle_of"]

Array = np.ndarray[Any, Any]
FAMILIES = ("elu", "relu", "squares", "pair", "efficient", "scaling", "performer", "cosformer")
# Exponentials of numbers near the end of the range have no logarithm that helps.
_PROFILES = (
    "normal",
    "normal",
    "tiny",
    "wide",
    "equal",
    "repeats",
    "peaked",
    "onehot",
    "zeros",
    "offset",
    "whole",
)


def draw(d: Draw) -> Case:
    shape = d.shapes(batch=1)
    layout = "bshd" if shape["lead"] and d.chance(0.2) else "bhsd"
    arrays, gqa = d.qkv(shape, layout)
    family = d.pick(FAMILIES)
    state = d.chance(0.3) and family != "pair"
    for name in "qk":
        arrays[name]["profile"] = d.pick(_PROFILES)
    if family == "pair":  # the features' and value's type is the result's
        arrays["q"]["dtype"] = arrays["k"]["dtype"] = arrays["v"]["dtype"] = d.pick(("float32", "float64"))
    options: Case = {"enable_gqa": True} if gqa else {}
    options |= {"layout": layout} if layout == "bshd" else {}
    if not state:
        options |= d.pick(({}, {"is_causal": True}, {"causal": "top_left"}, {"causal": "bottom_right"}))
    parts = d.integer(1, 3)
    cuts = [0, *sorted(d.integer(0, shape["nk"]) for _ in range(parts - 1)), shape["nk"]]
    return {
        "function": family + "_state" if state else family,
        "family": family,
        "state": state,
        "merge": d.chance(0.4) and family != "cosformer",
        "cuts": cuts,
        "shape": shape,
        "arrays": arrays,
        "options": options,
        "scale": d.pick((1.0, 0.5, 0.125)),
        "features": d.pick((1, 3, 8, 17)),
        "max_length": max(shape["nq"], shape["nk"], 1) + d.pick((0, 0, 1, 100)),
        "threads": d.pick((None, 1, 2, 3)),
        "again": d.chance(0.05),
        "poison": d.pick("qkv") if d.chance(0.12) else None,
        "share": 0.05,
    }


def check(case: Case, seed: int, index: int, findings: Findings) -> None:
    rng = generator(seed, index, 1)
    arrays = build.inputs(case, rng)
    for name in "qk":  # what infinity is as a feature is not what this is about
        if case["poison"] == name:
            arrays[name] = np.where(np.isfinite(arrays[name]), arrays[name], arrays[name].dtype.type(np.nan))
    projection = rng.standard_normal((case["features"], case["shape"]["d"]))
    if case["family"] == "pair":
        for name in "qk":
            arrays[name] = np.abs(arrays[name])
    if case["family"] == "performer" and not case["shape"]["d"]:
        return
    q, k, v = (arrays[name] for name in "qkv")
    before = [x.tobytes() for x in (q, k, v)]
    found = (_state if case["state"] else _call)(case, q, k, v, projection, case["threads"])
    if [x.tobytes() for x in (q, k, v)] != before:
        findings.fault("an input was written")
    if found is not None:
        with np.errstate(all="ignore"):
            compare(found, case, q, k, v, projection, findings)
    if case["again"] and not case["state"]:
        other = _call(case, q, k, v, projection, 3 - (case["threads"] or 2) % 3)
        findings.same("output with other threads", other, found)


def _call(case: Case, q: Array, k: Array, v: Array, projection: Array, threads: Any) -> Array:
    options = {**case["options"], **({} if threads is None else {"num_threads": threads})}
    family, variants = case["family"], at.variants
    if family in ("efficient", "scaling"):
        kind = "softmax" if family == "efficient" else "scaling"
        return variants.efficient_attention(q, k, v, normalization=kind, scale=case["scale"], **options)
    if family == "performer":
        return variants.performer_attention(q, k, v, projection=projection, scale=case["scale"], **options)
    if family == "cosformer":
        return variants.cosformer_attention(q, k, v, max_length=case["max_length"], **options)
    maps = {"squares": np.square, "pair": (q, k)}
    return variants.linear_attention(q, k, v, feature_map=maps.get(family, family), **options)


def _state(case: Case, q: Array, k: Array, v: Array, projection: Array, threads: Any) -> Array | None:
    """Keys taken in by parts, into one state or into several that merge."""
    options, family, variants = case["options"], case["family"], at.variants

    def empty() -> Any:
        if family in ("efficient", "scaling"):
            kind = "softmax" if family == "efficient" else "scaling"
            return variants.EfficientState(normalization=kind, scale=case["scale"], **options)
        if family == "performer":
            return variants.PerformerState(projection, scale=case["scale"], **options)
        if family == "cosformer":
            return variants.CosformerState(max_length=case["max_length"], **options)
        return variants.LinearState(feature_map=np.square if family == "squares" else family, **options)

    axis = -3 if options.get("layout") == "bshd" and k.ndim > 2 else -2
    state, states = empty(), []
    for first, last in zip(case["cuts"], case["cuts"][1:], strict=False):
        cut = slice(first, last)
        part = [np.moveaxis(np.moveaxis(x, axis, 0)[cut], 0, axis) for x in (k, v)]
        state.update(*part)
        if case["merge"]:
            states.append(state)
            state = empty()
    if case["merge"]:
        for other in states:
            state = state.merge(other)
    if family == "cosformer" and case["shape"]["nq"] > case["shape"]["nk"]:
        return None  # positions before the first key
    lead = np.broadcast_shapes(
        *(oracle.rows_first(x, options.get("layout", "bhsd")).shape[:-2] for x in (k, v))
    )
    if len(lead) > len(case["shape"]["lead"]):
        return None
    return state.read(q)


def _features(case: Case, x: Array, projection: Array, form: SimpleNamespace) -> tuple[Array, Array, Array]:
    """Logarithms of the features or the features, in longdouble, and the relative error of each row."""
    family, u = case["family"], form.u
    size = np.abs(x).astype(np.float64)
    if family == "elu":
        logs = np.where(x > 0, np.log1p(np.maximum(x, 0)), x)
        return logs, np.True_, u * (8 + 3 * size.max(-1, initial=0))
    if family == "performer":
        root = np.sqrt(np.longdouble(case["scale"]))
        y = x * root
        half = np.square(y).sum(-1, keepdims=True) / 2
        logs = y @ projection.T.astype(np.longdouble) - half
        d = x.shape[-1]
        absolute = (np.abs(y) @ np.abs(projection.T)).astype(np.float64).max(-1, initial=0)
        return logs, np.True_, u * (8 + (d + 6) * (absolute + 2 * half[..., 0].astype(np.float64)))
    positive = np.square(x) if family == "squares" else x if family == "pair" else np.maximum(x, 0)
    return positive, np.False_, u * 4 + np.zeros(x.shape[:-1])


def log_products(a: Array, b: Array, seen: Array) -> Array:
    """ln sum_r exp(a_r + b_r) of all pairs, less the row's largest one that is seen; -inf where hidden.

    Keys may be thousands of nats apart, which no factor that all share brings into a type.
    """
    bt = b.swapaxes(-1, -2)
    if not a.shape[-1] or not b.size or not a.size:
        return np.full((*np.broadcast_shapes(a.shape[:-2], bt.shape[:-2]), *seen.shape[-2:]), -np.inf)
    top_a, top_b = a.max(-1, keepdims=True), bt.max(-2, keepdims=True)
    log = np.log(np.exp(a - top_a) @ np.exp(bt - top_b)) + top_b
    log = np.where(seen, log, -np.inf)
    most = log.max(-1, keepdims=True)
    return np.asarray(log - np.where(np.isneginf(most), 0, most))


def oracle_of(
    case: Case,
    q: Array,
    k: Array,
    v: Array,
    projection: Array,
    seen: Array,
    form: SimpleNamespace,
    shift: int,
) -> Any:
    """Output, its bound, rows that may be anything; arrays (..., n, dim) of longdouble."""
    family = case["family"]
    size = np.abs(np.where(np.isfinite(v), v, 0))
    finite = np.where(np.isfinite(v), v, 0)
    if family in ("efficient", "scaling"):
        return _efficient(case, q, k, finite, size, seen, form)
    fq, logs, rq = _features(case, q, projection, form)
    fk, _, rk = _features(case, k, projection, form)
    log = log_products(fq, fk, seen) if logs else None
    w = fq @ fk.swapaxes(-1, -2) if log is None else np.exp(log)
    u, r = form.u, fq.shape[-1]
    relative = rq[..., :, None] + rk[..., None, :] + (r + 6) * u
    error = np.where(seen, relative * np.abs(w).astype(np.float64), 0)
    if not logs:
        error = error + np.where(
            seen, 8 * form.least * (1 + r) * (1 + fk.max(-1, initial=0)[..., None, :]), 0
        ).astype(np.float64)
    if family == "cosformer":
        distance = np.arange(q.shape[-2])[:, None] + shift - np.arange(k.shape[-2])
        angle = np.pi * distance.astype(np.longdouble) / (2 * case["max_length"])
        error = error + 6 * u * np.where(seen, w, 0).astype(np.float64)
        w = w * np.cos(angle)
    w = np.where(seen, w, 0)
    total = w.sum(-1, keepdims=True)
    p = w / np.where(total == 0, 1, total)
    off = error.sum(-1, keepdims=True) + 64 * form.eps * np.abs(w).sum(-1, keepdims=True).astype(np.float64)
    rest = np.asarray(total - off, np.float64)
    relative_error = (error + np.abs(p).astype(np.float64) * off) / np.where(rest > 0, rest, 1)
    free = ((2 * off > total) & (off > 0))[..., 0]
    relative_error, free = np.nan_to_num(relative_error, nan=1.0), free | ~np.isfinite(p).all(-1)
    p = np.where(np.isfinite(p), p, 0)
    if log is not None:
        _share_far(relative_error, free, p, log, relative, form)
    limit = relative_error @ size.astype(np.float64) + 64 * form.eps * (np.abs(p) @ size).astype(np.float64)
    # Products below the normal numbers lose least each: weights with values, and sums of keys' features with
    # values, which the features of the query multiply.
    grown = np.ones(1) if logs else 1 + np.abs(fq).sum(-1, keepdims=True).astype(np.float64)
    floor = (
        (k.shape[-2] + 4)
        * form.least
        * np.maximum(1, grown / np.maximum(total.astype(np.float64), form.least))
    )
    return p @ finite, limit + (floor if not logs else 4 * form.tiny), free


def _share_far(error: Array, free: Array, p: Array, log: Array, d: Array, form: SimpleNamespace) -> None:
    """Rows of exponentials: shares of keys whose logarithms are far off, and what vanishes.

    A key's exponentials are at most e^8 of the reference of their feature, and 0 from 2^-126.5 (float64:
    2^-1022.5) down, as are those of a query beside its largest one.
    """
    eps, lost = form.eps, 2.0 ** (-1000 if form.double else -104)  # with up to 2^11 features
    d = np.broadcast_to(d, p.shape)
    wild = (np.where(np.isneginf(log), 0, d) > SMALL).any(-1)
    if wild.any():
        low, high = log[wild] - d[wild], log[wild] + d[wild]
        most, least = share(high, low), share(low, high)
        error[wild] = np.maximum(most - p[wild], p[wild] - least) + 64 * eps * p[wild]
        free[wild] = False
    error += np.minimum(lost, np.exp(np.minimum(log + d, 0)))


def _efficient(
    case: Case, q: Array, k: Array, v: Array, size: Array, seen: Array, form: SimpleNamespace
) -> Any:
    scale, u = np.longdouble(case["scale"]), form.u
    n = np.maximum(seen.sum(-1, keepdims=True), 1)
    none = np.zeros(seen.shape[:-1], bool)
    if case["family"] == "scaling":
        x = scale * scale * q @ k.swapaxes(-1, -2)
        absolute = (scale * scale * np.abs(q) @ np.abs(k).swapaxes(-1, -2)).astype(np.float64)
        w, e = np.where(seen, x, 0) / n, np.where(seen, absolute, 0) / n
        limit = (q.shape[-1] + 10) * u * (e @ size.astype(np.float64)) + 64 * form.eps * (
            e @ size.astype(np.float64)
        )
        floor = (
            form.least
            * (4 + k.shape[-2])
            * (1 + q.shape[-1])
            * (1 + size.max(-2, initial=0)[..., None, :] + np.abs(q).max(-1, initial=0)[..., None])
        )
        return w @ v, limit + floor.astype(np.float64), none
    sq = scale * q
    sq = np.exp(sq - sq.max(-1, keepdims=True, initial=-np.inf)) if q.shape[-1] else sq
    sq = sq / np.where(sq.sum(-1, keepdims=True) == 0, 1, sq.sum(-1, keepdims=True))
    sk = scale * k
    middle = (
        (sk.max(-2, keepdims=True, initial=-1e4) + sk.min(-2, keepdims=True, initial=1e4)) / 2
        if k.size
        else 0
    )
    ek = np.exp(sk - np.where(np.isfinite(middle), middle, 0))
    inside = seen.astype(np.longdouble)
    den = inside @ np.where(np.isfinite(ek), ek, 0)
    coefficient = sq / np.where(den == 0, 1, den)
    w = np.where(seen, coefficient @ ek.swapaxes(-1, -2), 0)
    big = scale * max(np.abs(np.nan_to_num(q)).max(initial=0), np.abs(np.nan_to_num(k)).max(initial=0))
    relative = (32 + q.shape[-1] + 12 * float(big)) * u + 64 * form.eps
    limit = 2 * relative * (np.abs(w) @ size).astype(np.float64) + 8 * form.tiny * (
        1 + size.sum(-2, keepdims=True)
    ).astype(np.float64)
    return w @ v, limit + (k.shape[-2] + 4) * form.least, none


def compare(
    found: Array, case: Case, q: Array, k: Array, v: Array, projection: Array, findings: Findings
) -> None:
    form = oracle.arithmetic(q, k, v)
    kind = result_type(q, k, v)
    if case["state"]:  # each array is taken in by itself
        form = (
            oracle.arithmetic(*(x for x in (q, k, v) if x.dtype.itemsize < 8))
            if not all(x.dtype.itemsize == 8 for x in (q, k, v))
            else form
        )
        kind = result_type(q)
    options = case["options"]
    layout, gqa = options.get("layout", "bhsd"), options.get("enable_gqa", False)
    rows = [oracle.rows_first(x.astype(np.longdouble), layout) for x in (q, k, v)]
    wq, wk, wv = rows[0], *(oracle.shared(x, rows[0], gqa) for x in rows[1:])
    lead = np.broadcast_shapes(*(x.shape[:-2] for x in (wq, wk, wv)))
    shape = (*lead, wq.shape[-2], wk.shape[-2])
    masks = {name: options[name] for name in ("is_causal", "causal") if name in options}
    seen = reference.visible(shape, **masks)
    last = options.get("causal") == "bottom_right" or case["state"]
    shift = wk.shape[-2] - wq.shape[-2] if last else 0
    broken = np.isnan(wq).any(-1)[..., None] & np.ones(seen.shape[-1:], bool)
    hidden = [np.where(np.isnan(x), 0, x) for x in (wq, wk)]
    bad = (seen & (broken | np.isnan(wk).any(-1)[..., None, :])).any(-1)[..., None]
    if q.shape[-1] or case["family"] == "performer":  # without features there is nothing to multiply a value
        bad = bad | ((seen.astype(np.float64) @ (~np.isfinite(wv)).astype(np.float64)) > 0)
    wanted, limit, free = oracle_of(case, *hidden, wv, projection, seen, form, shift)
    absolute = np.abs(np.where(np.isfinite(wv), wv, 0)).sum(-2, keepdims=True).astype(np.float64)
    products = (
        np.abs(hidden[0]).max(initial=0) * np.abs(hidden[1]).max(initial=0) * max(1, case["shape"]["d"])
    )
    may = (absolute * max(1.0, float(products)) > form.largest / 2**14) | np.zeros(wanted.shape, bool)
    bad = np.broadcast_to(bad, wanted.shape)
    free = np.broadcast_to(free[..., None], wanted.shape)
    parts = [np.asarray(wanted, np.longdouble), np.broadcast_to(limit, wanted.shape), bad, free, may]
    if layout == "bshd" and q.ndim > 2:
        parts = [x.swapaxes(-3, -2) for x in parts]
    wanted, limit, bad, free, may = parts
    if findings.shaped("output", found, wanted.shape, kind):
        findings.close("output", found, wanted, limit, broken=bad, free=free, may_break=may)
