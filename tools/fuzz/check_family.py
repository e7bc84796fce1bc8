# SPDX-License-Identifier: BSD-3-Clause
"""Families that are attention of something else: by the oracle of attention, or a twin in longdouble."""

from __future__ import annotations

from typing import Any

import attnscale as at
import numpy as np
from attnscale import reference

from . import build, check_attend, check_linear, oracle
from .compare import Findings
from .draw import Case, Draw, generator

__all__ = ["check", "draw"]

Array = np.ndarray[Any, Any]
KINDS = (
    "linformer",
    "local_global",
    "relay",
    "differential",
    "hybrid",
    "rotary",
    "scores",
    "jacobian",
)


def draw(d: Draw) -> Case:
    kind = d.pick(KINDS)
    shape = d.shapes(square=kind in ("local_global", "hybrid", "jacobian"), batch=1)
    if kind == "hybrid" and not shape["lead"]:
        shape["lead"] = [2]
    layouts = shape["lead"] and d.chance(0.2) and kind in ("linformer", "local_global", "hybrid")
    layout = "bshd" if layouts else "bhsd"
    arrays, gqa = d.qkv(shape, layout)
    if kind == "hybrid":
        for name in "qk":
            arrays[name]["profile"] = d.pick(("normal", "tiny", "repeats", "whole"))
    if gqa and kind == "relay":  # its rows have no groups
        for name in "kv":
            arrays[name]["shape"][: len(shape["lead"])] = shape["lead"]
    options = _draw_options(d, kind, shape, layout, gqa)
    return {
        "function": kind,
        "shape": shape,
        "arrays": arrays,
        "options": options,
        "rows": d.integer(1, 9),
        "radius": d.pick((0, 1, 3, 16, 100)),
        "global": d.integer(0, min(4, shape["nk"])),
        "kinds": [
            d.pick(("exact", "efficient", "linear")) for _ in range(shape["lead"][-1] if shape["lead"] else 0)
        ],
        "interleaved": d.chance(0.5),
        "lam": d.number(),
        "poison": None,
        "share": 0.05,
    }


def _draw_options(d: Draw, kind: str, shape: Case, layout: str, gqa: bool) -> Case:
    grouped = gqa and kind in ("linformer", "local_global", "hybrid", "differential")
    options: Case = {"enable_gqa": True} if grouped else {}
    options |= {"layout": layout} if layout == "bshd" else {}
    if kind in ("local_global", "hybrid"):
        options |= d.pick(({}, {"is_causal": True}))
    if kind in ("linformer", "local_global", "differential"):
        options["scale"] = d.pick((["none"], ["number", 0.5], ["number", -0.3]))
    if kind == "differential":
        options |= d.masks(shape, documents=False)
    return options


def check(case: Case, seed: int, index: int, findings: Findings) -> None:
    rng = generator(seed, index, 1)
    arrays = build.inputs(case, rng)
    options = build.options(case, rng)
    _CHECKS[case["function"]](case, arrays, options, rng, findings)


def _attended(
    case: Case, arrays: Any, options: Case, found: Array, findings: Findings, more: float = 0.0
) -> None:
    """The output of attention with these options; `more` is what the way there adds to each score's error."""
    used = [arrays[name] for name in "qkv"]
    truth = check_attend.expected(arrays, arrays["v"], options, (), case)
    if more:
        truth = _looser(truth, arrays, options, more)
    check_attend.check_output(truth, found, used, options, findings)


def _looser(truth: Any, arrays: Any, options: Case, more: float) -> Any:
    wanted, limit, bad, big = truth.output
    layout = options.get("layout", "bhsd")
    v = oracle.rows_first(oracle.wide_of(arrays["v"], truth.form), layout)
    v = oracle.shared(v, oracle.rows_first(arrays["q"], layout), options.get("enable_gqa", False))
    s = truth.scores.s
    top = np.abs(np.where(np.isfinite(s), s, 0)).max(-1, initial=0)[..., None].astype(np.float64)
    absolute = np.abs(truth.row.w).astype(np.float64) @ np.abs(v).astype(np.float64)
    kind = check_attend.result_type(*(arrays[name] for name in "qkv"))
    eps = max(truth.form.eps, {2: 2.0**-7}.get(kind.itemsize, 0.0))
    truth.output = (
        wanted,
        limit
        + (more * truth.form.eps * (2 + top) + 2 * eps) * absolute
        + 4 * float(np.finfo(np.float16).smallest_subnormal if kind.itemsize == 2 else truth.form.least),
        bad,
        big | (kind.itemsize == 2),
    )
    return truth


def _local_global(case: Case, arrays: Any, options: Case, rng: Any, findings: Findings) -> None:
    first = min(case["global"], case["shape"]["nk"])
    own = {"radius": case["radius"], "global_tokens": first}
    found = at.variants.local_global_attention(*(arrays[n] for n in "qkv"), **own, **options)
    n = case["shape"]["nk"]
    i = np.arange(n)
    seen = (abs(i[:, None] - i) <= case["radius"]) | (i < first) | (i[:, None] < first)
    with np.errstate(all="ignore"):
        _attended(case, arrays, {**options, "attn_mask": seen}, found, findings, more=8.0)


def _linformer(case: Case, arrays: Any, options: Case, rng: Any, findings: Findings) -> None:
    """Keys and values are projected first: their errors are gamma_n |E||k| of the arithmetic's type."""
    q, k, v = (arrays[n] for n in "qkv")
    n = case["shape"]["nk"]
    e, f = rng.standard_normal((2, case["rows"], n)) / np.sqrt(max(n, 1))
    found = at.variants.linformer_attention(q, k, v, e, f, **options)
    with np.errstate(all="ignore"):
        form = oracle.arithmetic(q, k, v)
        layout, gqa = options.get("layout", "bhsd"), options.get("enable_gqa", False)
        wq, wk, wv = (oracle.rows_first(oracle.wide_of(x, form), layout) for x in (q, k, v))
        key, value = e @ wk, f @ wv
        dkey, dvalue = (
            (n + 4) * form.u * (np.abs(p) @ np.abs(x).astype(np.float64)) for p, x in ((e, wk), (f, wv))
        )
        errors = (np.zeros(wq.shape), oracle.shared(dkey, wq, gqa))
        own = {name: x for name, x in options.items() if name != "layout"}
        truth = check_attend.expected({"q": wq, "k": key}, None, own, (), case, form=form, errors=errors)
        value, dvalue = oracle.shared(value, wq, gqa), oracle.shared(dvalue, wq, gqa)
        wanted, limit, bad, big = check_attend.expect.output(
            truth.row, truth.scores.seen, value, truth.scores.broken, form, False
        )
        limit = limit + truth.row.w.astype(np.float64) @ dvalue * 1.1 + form.least * n
        limit = np.where(np.isfinite(limit), limit, np.inf)
        huge = (
            (np.abs(value).max(initial=0) * n > form.largest / 64)
            | (np.abs(wk).max(initial=0) * n > form.largest / 64)
            | (np.abs(wv).max(initial=0) * n > form.largest / 64)
        )
        truth.output = wanted, limit, bad, big | bool(huge)
        check_attend.check_output(truth, found, [q, k, v], options, findings)


def _relay(case: Case, arrays: Any, options: Case, rng: Any, findings: Findings) -> None:
    q, k, v = (arrays[n] for n in "qkv")
    state = at.variants.relay_attention(k, q, v)
    with np.errstate(all="ignore"):
        truth = check_attend.expected(arrays, v, {"scale": 1.0}, ("lse", "mean_score"), case)
        check_attend.check_output(truth, state.output, [q, k, v], {}, findings)
        for name in ("lse", "mean_score"):
            check_attend.check_statistic(name, getattr(state, name), truth, k, {}, findings)


def _differential(case: Case, arrays: Any, options: Case, rng: Any, findings: Findings) -> None:
    q, k, v = (arrays[n] for n in "qkv")
    other = [check_attend.build.make(case["arrays"][n], rng) for n in "qk"]
    lam = case["lam"]
    found = at.variants.differential_attention(q, k, *other, v, lam=lam, **options)
    with np.errstate(all="ignore"):
        first, second = (
            check_attend.expected({"q": a, "k": b}, v, options, (), case) for a, b in ((q, k), other)
        )
        form = first.form
        parts = zip(first.output, second.output, strict=True)
        (a, b), (da, db), (bad_a, bad_b), (big_a, big_b) = parts
        size = np.abs(a).astype(np.float64) + abs(lam) * np.abs(b).astype(np.float64)
        first.output = a - lam * b, da + abs(lam) * db + 4 * form.eps * size, bad_a | bad_b, big_a | big_b
        first.row.free = first.row.free | second.row.free
        first.scores.may_break = first.scores.may_break | second.scores.may_break
        check_attend.check_output(first, found, [q, k, v], options, findings)


def _hybrid(case: Case, arrays: Any, options: Case, rng: Any, findings: Findings) -> None:
    """Check each head by the oracle of its kind."""
    q, k, v = (arrays[n] for n in "qkv")
    if not case["kinds"]:
        return
    found = at.variants.hybrid(q, k, v, case["kinds"], **options)
    with np.errstate(all="ignore"):
        layout, gqa = options.get("layout", "bhsd"), options.get("enable_gqa", False)
        wq, wk, wv = (oracle.rows_first(x, layout) for x in (q, k, v))
        wk, wv = (oracle.shared(x, wq, gqa) for x in (wk, wv))
        rows = oracle.rows_first(found, layout)
        lead = np.broadcast_shapes(*(x.shape[:-2] for x in (wq, wk, wv)))
        wq, wk, wv = (np.broadcast_to(x, (*lead, *x.shape[-2:])) for x in (wq, wk, wv))
        if not findings.shaped(
            "output", rows, (*lead, wq.shape[-2], wv.shape[-1]), check_attend.result_type(q, k, v)
        ):
            return
        for head, kind in enumerate(case["kinds"]):
            own = {name: x[..., head, :, :] for name, x in (("q", wq), ("k", wk), ("v", wv))}
            causal = {"is_causal": True} if options.get("is_causal") else {}
            if kind == "exact":
                _attended(case, own, causal, rows[..., head, :, :], findings)
            else:
                sub = {
                    **case,
                    "family": {"linear": "elu"}.get(kind, kind),
                    "state": False,
                    "options": causal,
                    "scale": 1.0,
                }
                check_linear.compare(
                    rows[..., head, :, :], sub, *(own[n] for n in "qkv"), np.zeros((1, 1)), findings
                )


def _rotary(case: Case, arrays: Any, options: Case, rng: Any, findings: Findings) -> None:
    """Angles are float64: position * frequency is within 2 unit roundoffs of itself."""
    x = arrays["q"]
    dim = x.shape[-1] - x.shape[-1] % 2
    if not dim or x.ndim != 2:
        return
    positions = rng.integers(0, 5000, x.shape[-2])
    found = at.variants.apply_rotary(x, positions, rotary_dim=dim, interleaved=case["interleaved"])
    with np.errstate(all="ignore"):
        form = oracle.arithmetic(x)
        wide = x.astype(np.longdouble)
        theta = np.longdouble(10000.0) ** (-np.arange(0, dim, 2).astype(np.longdouble) / dim)
        angle = positions[:, None].astype(np.longdouble) * theta
        first, second = (
            (slice(0, dim, 2), slice(1, dim, 2))
            if case["interleaved"]
            else (slice(0, dim // 2), slice(dim // 2, dim))
        )
        a, b = wide[:, first], wide[:, second]
        wanted, limit = wide.copy(), np.zeros(wide.shape)
        wanted[:, first], wanted[:, second] = (
            a * np.cos(angle) - b * np.sin(angle),
            a * np.sin(angle) + b * np.cos(angle),
        )
        size = (np.abs(a) + np.abs(b)).astype(np.float64)
        bound = size * (4 * form.u + 2.0**-52 * (2 + 3 * angle.astype(np.float64))) + 2 * form.least
        limit[:, first] = limit[:, second] = bound
        if findings.shaped("rotary", found, x.shape, check_attend.result_type(x)):
            findings.close("rotary", found, wanted, limit, may_break=np.abs(wanted) > form.largest / 4)


def _scores(case: Case, arrays: Any, options: Case, rng: Any, findings: Findings) -> None:
    """f1 ... f6: three sums of at most E or D products, one after the other."""
    d, e = max(1, case["shape"]["d"] % 9), max(1, case["shape"]["d"])
    name = case["rows"] % 6
    x, y = (rng.standard_normal((n, e)) for n in (case["shape"]["nq"], case["shape"]["nk"]))
    qw, kw = rng.standard_normal((2, d, e))
    b, c = rng.standard_normal((2, d))
    functions = at.variants.score_functions
    call = [
        lambda: functions.f1(x, y, qw, kw),
        lambda: functions.f2(x, y, qw, kw),
        lambda: functions.f3(x, y, qw, kw),
        lambda: functions.f4(x, y, qw, kw, b),
        lambda: functions.f5(x, y, kw, b),
        lambda: functions.f6(x, y, qw, kw, b, c),
    ][name]  # fmt: skip
    found = call()
    own = kw if name == 4 else qw
    wx, wy, wq, wk = (z.astype(np.longdouble) for z in (x, y, own, kw))
    qx, ky = wx @ wq.T, wy @ wk.T
    cross, of_key = qx @ ky.T, (wy * wy).sum(-1) / 2 if name == 1 else (ky * ky).sum(-1) / 2
    wanted = cross - (of_key if name else 0) + ((ky @ b) if name >= 3 else 0)
    if name == 5:
        wanted = wanted + (qx @ c - (qx * qx).sum(-1) / 2)[:, None]
    ax, ay = np.abs(x) @ np.abs(own).T, np.abs(y) @ np.abs(kw).T
    size = (
        ax @ ay.T
        + (ay * ay).sum(-1)
        + (y * y).sum(-1)
        + (ay @ np.abs(b))
        + ((ax * ax).sum(-1) + ax @ np.abs(c))[:, None]
    )
    if findings.shaped(f"f{name + 1}", found, wanted.shape, np.dtype(np.float64)):
        findings.close(f"f{name + 1}", found, wanted, (2 * e + 2 * d + 8) * 2.0**-53 * size)


def _jacobian(case: Case, arrays: Any, options: Case, rng: Any, findings: Findings) -> None:
    """Against the twin in longdouble.

    A norm x is the root of a sum of squares of about B^2, B the largest norm, in which c B^2 is lost: that is
    c B^2 / x of the norm, at most sqrt(c) B. c is measured, not derived: 6000 calls showed 5e-14 at most.
    """
    n, e = min(case["shape"]["nq"], 12), max(1, min(case["shape"]["d"], 6))
    d = case["rows"]
    x = rng.standard_normal((n, e))
    qw, kw, vw = (rng.standard_normal((m, e)) / np.sqrt(e) for m in (d, d, 3))
    seen = np.tril(np.ones((n, n), bool)) if case["interleaved"] else np.ones((n, n), bool)
    found = at.variants.attention_jacobian_norms(x, qw, kw, vw, scale=0.5, is_causal=case["interleaved"])
    if not n:
        return
    wanted = reference.attention_jacobian_norms(
        *(z.astype(np.longdouble) for z in (x, qw, kw, vw)), 0.5, seen
    )
    if findings.shaped("jacobian", found, (n, n), np.dtype(np.float64)):
        big = float(np.abs(wanted).max())
        size = np.abs(wanted).astype(np.float64)
        limit = 1e-12 * big * big / np.maximum(size, 1e-6 * max(big, 1e-300))
        findings.close("jacobian", found, wanted, limit)


_CHECKS = {
    "linformer": _linformer,
    "local_global": _local_global,
    "relay": _relay,
    "differential": _differential,
    "hybrid": _hybrid,
    "rotary": _rotary,
    "scores": _scores,
    "jacobian": _jacobian,
}
