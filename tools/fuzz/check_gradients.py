# SPDX-License-Identifier: BSD-3-Clause
"""attention_gradients: every option, against gradients in extended precision."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import attnscale as at
import ml_dtypes
import numpy as np
from attnscale import laws, reference
from attnscale import normalizers as N
from attnscale._base.statistics import DIFFERENTIABLE

from . import build, check_attend, oracle
from .compare import Findings
from .draw import Case, Draw, generator
from .gradient_bounds import of_scores, of_weights

__all__ = ["check", "draw"]

Array = np.ndarray[Any, Any]
_EVERY = (
    *("query", "key", "value", "scale", "law", "sink", "bias", "alpha"),
    *("attn_mask", "distance_scale", "distance_bias"),
)  # fmt: skip
#: Products of numbers near the ends of the range leave it in sums that the gradient does not show.
_TOO_FAR = ("extreme", "denormal")


def draw(d: Draw) -> Case:
    shape, arrays, axes = d.problem(0.25)
    options = d.masks(shape) | d.tables(shape) | {"scale": d.scale(shape), "normalizer": d.normalizer(shape)}
    if "adaptive_temperature" in options["scale"] and {"distance_scale", "distance_bias"} & options.keys():
        options["scale"] = ["none"]  # a documented refusal
    options |= axes
    if d.chance(0.12):
        options["softcap"] = d.pick((0.5, 2.0, 30.0, 50.0))
    if d.chance(0.1):
        options["qk_norm"] = d.pick(("l2", "rms"))
    for spec in (*arrays.values(), options.get("attn_mask", {})):
        if spec.get("profile") in _TOO_FAR:
            spec["profile"] = "normal"
    lead, n = shape["lead"], shape["nq"]
    if options.get("layout") == "bshd":
        arrays["g"] = d.array([*lead[:-1], n, lead[-1], shape["dv"]], d.kind(), "normal")
    else:
        arrays["g"] = d.array([*lead, n, shape["dv"]], d.kind(), "normal")
    softmax = isinstance(
        at.normalizers.get(build.normalizer(options["normalizer"])), (N.Softmax, N.Sink, N.SoftmaxN)
    )
    rows = [name for name in DIFFERENTIABLE if softmax and d.chance(0.25)]
    return {
        "shape": shape,
        "arrays": arrays,
        "options": options,
        "output": not rows or d.chance(0.8),
        "rows": {name: [1 if d.chance(0.2) else m for m in (*lead, n)] for name in rows},
        "forward": d.pick((None, None, ("lse",), ("lse", "entropy"), DIFFERENTIABLE)) if softmax else None,
        "wanted": _EVERY if d.chance(0.7) else [name for name in _EVERY if d.chance(0.5)],
        "threads": d.pick((None, None, 1, 2, 3)),
        "again": d.chance(0.1),
        "poison": d.pick("qkvg") if d.chance(0.12) else None,
        "share": d.pick((0.02, 0.1)),
    }  # fmt: skip


def check(case: Case, seed: int, index: int, findings: Findings) -> None:
    rng = generator(seed, index, 1)
    arrays = build.inputs(case, rng, ("q", "k", "v", "g"))
    options = build.options(case, rng)
    given = {name: rng.standard_normal(axes) for name, axes in case["rows"].items()}
    used = [arrays[name] for name in ("qkvg" if case["output"] else "qkv")]
    before = [x.tobytes() for x in used]
    found = _call(case, used, options, given)
    if [x.tobytes() for x in used] != before:
        findings.fault("an input was written")
    with np.errstate(all="ignore"):
        truth = _truth(case, used, options, given)
        for name, (wanted, limit, free, dtype) in truth.found.items():
            _compare(name, getattr(found, name), wanted, limit, free, dtype, case, findings)
        _check_broken(found, truth, options, case, findings)
        _check_scale(found, truth, options, case, findings)
    for name in set(_EVERY) - set(case["wanted"]):
        if getattr(found, name) is not None:
            findings.fault(f"{name} was not wanted and is there")
    if case["again"]:
        other = _call({**case, "threads": 3 - (case["threads"] or 2) % 3}, used, options, given)
        for name in ("query", "key", "value", "attn_mask", "distance_bias"):
            findings.same(f"{name} with other threads", getattr(other, name), getattr(found, name))


def _call(case: Case, used: list[Array], options: Case, given: dict[str, Array]) -> Any:
    threads = {} if case["threads"] is None else {"num_threads": case["threads"]}
    forward = None
    if case["forward"] is not None:
        forward = at.attention_statistics(*used[:3], statistics=case["forward"], **options)
    cotangents = {f"grad_{name}": x for name, x in given.items()}
    return at.attention_gradients(
        *used, forward=forward, wanted=case["wanted"], **cotangents, **options, **threads
    )


def _compare(
    name: str, seen: Any, wanted: Array, limit: Array, free: Any, dtype: Any, case: Case, findings: Findings
) -> None:
    if name not in case["wanted"]:
        return
    if seen is None:
        findings.fault(f"{name} is missing")
    elif findings.shaped(name, seen, wanted.shape, dtype):
        findings.close(name, seen, wanted, limit, free=free)


def _check_broken(found: Any, truth: SimpleNamespace, options: Case, case: Case, findings: Findings) -> None:
    """A query of softmax that sees a NaN gets no number."""
    broken = truth.scores.broken
    if "query" not in case["wanted"] or not hasattr(truth.row, "lse") or found.query is None:
        return
    rows = oracle.rows_first(found.query, options.get("layout", "bhsd"))
    numbers = np.isfinite(rows.astype(np.float64)).any(-1) & (_folded(broken + 0.0, rows.shape[:-1]) > 0)
    if numbers.any():
        findings.fault(f"query{list(np.argwhere(numbers)[0])}: a number where a NaN was seen")


# ---- the oracle ---------------------------------------------------------------------------------


def _truth(case: Case, used: list[Array], options: Case, given: dict[str, Array]) -> SimpleNamespace:
    """Its `found`: name -> (gradient, limit, where there is no bound, type)."""
    layout, q, k, v = options.get("layout", "bhsd"), *used[:3]
    truth = check_attend.expected({"q": q, "k": k}, v, options, (), case, form=oracle.arithmetic(q, k, v))
    form = truth.form
    truth.c = (8 if truth.random else 64) * form.eps
    truth.rounding = check_attend.weight_rounding(q, k, v, truth.rule)
    wide = [oracle.rows_first(oracle.wide_of(x, form), layout) for x in used]
    whole = [oracle.shared(x, wide[0], options.get("enable_gqa", False)) for x in wide[:3]] + wide[3:]
    truth.wide, truth.whole = wide, whole
    truth.given = {name: x.astype(form.wide) for name, x in given.items()}
    seen, g = truth.scores.seen, _of_weights(truth, case, used)
    truth.error = of_weights(truth)
    ds = of_scores(truth, g, truth.given)
    row = truth.row
    lost = g.broken | truth.scores.broken | truth.scores.may_break | row.may_break | row.free
    truth.lost = lost | (False if ds.free is None else ds.free) | ~np.isfinite(ds.d).all(-1)
    keep = ~truth.lost[..., None]
    ds.x, ds.d = np.where(keep, ds.x, 0), np.where(keep, ds.d, 0)
    truth.ds = SimpleNamespace(
        x=np.where(seen, ds.x[..., : seen.shape[-1]], 0), d=np.where(seen, ds.d[..., : seen.shape[-1]], 0)
    )
    truth.alpha = ds.alpha
    plain = {name: x for name, x in options.items() if name != "normalizer"}
    truth.products = oracle.products(q, k, plain, form, check_attend.steps_of(case, q.shape[-1])[0])
    _chain(truth, options)
    truth.found = _of_arrays(truth, used, options) | _of_mask(truth, options) | _of_tables(truth, options)
    truth.found |= _of_rule(truth, ds)
    return truth


def _of_rule(truth: SimpleNamespace, ds: SimpleNamespace) -> dict[str, Any]:
    """Gradient of the normalizer's own number: a sink's logits, a bias, or alpha; sums over rows."""
    rule, row = truth.rule, truth.row
    limit = ds.d + truth.c * np.abs(ds.x)
    if row.sink is not None:
        name, parts = "sink", (ds.x[..., row.sink], limit[..., row.sink])
    elif isinstance(rule, N.Sigmoid) and rule.bias is not None:
        name, parts = "bias", (ds.x.sum(-1), limit.sum(-1))
    elif isinstance(rule, N.Entmax) and not isinstance(rule, N.Sparsemax):
        name, parts = "alpha", tuple(np.where(truth.lost, 0, each.sum(-1)) for each in truth.alpha)
    else:
        return {}
    shape = np.shape(getattr(rule, "logits", 0.0))
    # A row's sum is rounded to the type of the call, and rows are added in float64.
    x, limit, lost = (_folded(each.sum(-1), shape) for each in (*parts, truth.lost))
    return {name: (x, limit, lost > 0, np.dtype(np.float64))}


def _of_weights(truth: SimpleNamespace, case: Case, used: list[Array]) -> SimpleNamespace:
    """Gradient of each weight, g . v, with its error; rows that a NaN or an infinity reaches."""
    seen, zero = truth.scores.seen, np.zeros(truth.scores.seen.shape)
    if not case["output"]:
        return SimpleNamespace(
            x=zero, d=zero, size=zero, of_output=0.0, broken=np.zeros(seen.shape[:-1], bool)
        )
    v, g = truth.whole[2], truth.whole[3]
    bad = ~np.isfinite(v).all(-1)
    broken = ~np.isfinite(g).all(-1) | (seen & bad[..., None, :]).any(-1)
    v, g = np.where(np.isfinite(v), v, 0), np.where(np.isfinite(g), g, 0)
    truth.whole[2:] = v, g
    size = (np.abs(g) @ np.abs(v).swapaxes(-1, -2)).astype(np.float64)
    output, limit, _, _ = truth.output
    of_output = limit
    if case["forward"] is not None:  # it was rounded to its own type
        narrow = ml_dtypes.finfo(check_attend.result_type(*used[:3]))
        of_output = limit + float(narrow.eps) * np.abs(output) + float(narrow.smallest_subnormal)
    of_output = (np.abs(g) * of_output).sum(-1, keepdims=True).astype(np.float64)
    return SimpleNamespace(
        x=np.where(seen, g @ v.swapaxes(-1, -2), 0),
        d=truth.c * size,
        size=size,
        of_output=of_output,
        broken=broken,
    )


def _of_arrays(truth: SimpleNamespace, used: list[Array], options: Case) -> dict[str, Any]:
    """Gradients of query, key, value, scale and a float mask."""
    form, seen, layout = truth.form, truth.scores.seen, options.get("layout", "bhsd")
    q, k, _, *g = (np.where(np.isfinite(x), x, 0) for x in truth.whole)
    norm, steps = options.get("qk_norm"), truth.c + truth.rounding
    if norm is not None:
        q, k = (oracle.with_length(x, norm) for x in (q, k))
        steps = steps + (q.shape[-1] / 2 + 8) * form.eps
    t, scale = truth.t, truth.scale
    p = SimpleNamespace(x=t.x * scale.x, d=t.d * np.abs(scale.x) + (np.abs(t.x) + t.d) * scale.d)
    reached = (seen & truth.lost[..., None]).any(-2)  # keys that a row without a bound sees
    found = {
        "query": (*_times(p, k, steps, form), truth.lost),
        "key": (*_times(_turned(p), q, steps, form), reached),
    }
    if norm is not None:
        for name, x in (("query", q), ("key", k)):
            found[name] = _through_norm(found[name], truth.whole[("query", "key").index(name)], x, norm, form)
    if g:
        n, kept = seen.shape[-1], seen & ~truth.lost[..., None]
        w = SimpleNamespace(
            x=np.where(kept, truth.row.w[..., :n], 0), d=np.where(kept, truth.error[..., :n], 0)
        )
        found["value"] = (*_times(_turned(w), g[0], truth.c + truth.rounding, form), reached)
    folded = {}
    for name, array, whole in zip(("query", "key", "value"), used, truth.wide, strict=False):
        if name in found:
            x, limit, free = found[name]
            parts = (
                _folded(each, whole.shape)
                for each in (x, limit, np.broadcast_to(free[..., None] + 0.0, limit.shape))
            )
            x, limit, free = (oracle.rows_first(each, layout) for each in parts)
            folded[name] = x, limit, free > 0, array.dtype.newbyteorder("=")
    _of_scale(truth, steps)
    return folded


def _turned(p: SimpleNamespace) -> SimpleNamespace:
    return SimpleNamespace(x=p.x.swapaxes(-1, -2), d=p.d.swapaxes(-1, -2))


def _times(p: SimpleNamespace, x: Array, steps: float, form: SimpleNamespace) -> tuple[Array, Array]:
    """Pairs times rows, and the limit of the sum."""
    size = np.abs(x).astype(np.float64)
    floor = (p.x.shape[-1] + 4) * form.least * (1 + size.max(initial=0))
    return p.x @ x, (p.d + steps * np.abs(p.x)).astype(np.float64) @ size + floor


def _chain(truth: SimpleNamespace, options: Case) -> None:
    """t: ds times the slope of the soft-cap and the table's factor. The slope and the scale, with errors."""
    scores, form, ds = truth.scores, truth.form, truth.ds
    scale, dscale, _ = oracle.scale_of(truth.products, options, truth.products.masks, 0, form)
    x, dx = (np.where(np.isfinite(each), each, 0) for each in (scores.x, scores.dx))
    scale = SimpleNamespace(x=np.where(np.isfinite(scale), scale, 0), d=dscale + 2 * form.eps * np.abs(scale))
    slope, dslope = np.ones(1), np.zeros(1)
    cap = options.get("softcap")
    if cap is not None:
        z = x * scale.x / cap
        slope = np.where(np.isfinite(z), 1 / np.cosh(np.minimum(np.abs(z), 5000)) ** 2, 0)
        moved = dx * np.abs(scale.x) / cap + np.abs(x) * scale.d / cap
        dslope = np.minimum(2 * moved * (slope + 2 * moved), 1) + 16 * form.eps
    factor = truth.products.factor
    truth.slope, truth.dslope, truth.scale = slope, dslope, scale
    d = ds.d * np.abs(slope * factor) + (np.abs(ds.x) + ds.d) * np.abs(factor) * (
        dslope + 4 * form.eps * slope
    )
    truth.t = SimpleNamespace(x=ds.x * slope * factor, d=d)


def _through_norm(
    found: tuple[Any, ...], rows: Array, unit: Array, norm: str, form: SimpleNamespace
) -> tuple[Any, ...]:
    x, limit, free = found
    length = 1.0 if norm == "l2" else np.sqrt(rows.shape[-1])
    size = np.sqrt((np.where(np.isfinite(rows), rows, 0) ** 2).sum(-1, keepdims=True))
    factor = np.where(size == 0, 0, length / np.where(size == 0, 1, size))
    unit = unit / length
    along = (unit * x).sum(-1, keepdims=True)
    reach = (np.abs(unit) * (limit + 16 * form.eps * np.abs(x))).sum(-1, keepdims=True)
    limit = factor * (limit + np.abs(unit) * reach + 16 * form.eps * (np.abs(x) + np.abs(unit * along)))
    return (x - unit * along) * factor, limit.astype(np.float64), free


def _of_scale(truth: SimpleNamespace, steps: float) -> None:
    """Gradient of the scale of each row."""
    t, raw = truth.t, truth.products
    x, size = np.where(np.isfinite(raw.bare), raw.bare, 0), np.where(np.isfinite(raw.raw), raw.raw, 0)
    limit = t.d * np.abs(x) + (2 * steps * np.abs(t.x) + t.d * steps) * size
    truth.rows = (t.x * x).sum(-1), limit.sum(-1).astype(np.float64), truth.lost


def _check_scale(found: Any, truth: SimpleNamespace, options: Case, case: Case, findings: Findings) -> None:
    """Check the sums of a number or an array; for a law, its scale and its parameters."""
    scale = options.get("scale")
    law = laws.get(scale) if isinstance(scale, (str, laws.Law)) else None
    if scale is None or (law is not None and law.meaning.is_distance):
        if found.scale is not None:
            findings.fault("a scale that was not given has a gradient")
        return
    shape = np.shape(found.scale) if law is not None else np.shape(scale)
    x, limit, lost = (_folded(each, shape) for each in truth.rows)
    _compare("scale", found.scale, x, limit, lost > 0, np.dtype(np.float64), case, findings)
    if law is None or law.meaning.measures_the_row or "law" not in case["wanted"] or truth.lost.any():
        return
    masks = {name: options[name] for name in oracle.MASKS if name in options}
    n = reference.n_of_law(law, truth.scores.seen, **masks)
    rows, limit, _ = truth.rows
    for name, by in law.derivatives(n, max(case["shape"]["d"], 1)).items():
        bound = ((limit + 1e-12 * np.abs(rows)) * np.abs(by)).sum()
        if findings.shaped(f"law[{name}]", found.law[name], (), np.dtype(np.float64)):
            findings.close(f"law[{name}]", found.law[name], np.asarray((rows * by).sum()), bound)


def _of_mask(truth: SimpleNamespace, options: Case) -> dict[str, Any]:
    mask = options.get("attn_mask")
    if mask is None or mask.dtype == bool:
        return {}
    ds, lost = truth.ds, truth.scores.seen & truth.lost[..., None]
    limit = ds.d + truth.c * np.abs(ds.x)
    parts = [_folded(x, mask.shape) for x in (ds.x, limit, lost + 0.0)]
    return {"attn_mask": (parts[0], parts[1], parts[2] > 0, mask.dtype.newbyteorder("="))}


def _of_tables(truth: SimpleNamespace, options: Case) -> dict[str, Any]:
    """Sums over the pairs at each distance, of tables that are arrays."""
    raw, ds, scale = truth.products, truth.ds, truth.scale
    found = {}
    for name in ("distance_scale", "distance_bias"):
        table = options.get(name)
        if table is None or callable(table):
            continue
        x, d = ds.x, ds.d + truth.c * np.abs(ds.x)
        if name == "distance_scale":
            bare, size = (np.where(np.isfinite(each), each, 0) for each in (raw.bare, raw.raw))
            by = np.abs(scale.x) * truth.slope
            x = ds.x * truth.slope * scale.x * bare
            moved = by * truth.c * size + truth.dslope * np.abs(scale.x * bare) + 4 * truth.form.least
            d = d * by * np.abs(bare) + (np.abs(ds.x) + ds.d) * moved
        found[name] = _of_table(truth, np.asarray(table), options, x, d)
    return found


def _of_table(truth: SimpleNamespace, table: Array, options: Case, x: Array, d: Array) -> Any:
    masks = {name: options[name] for name in oracle.MASKS if name in options and name != "document_ids"}
    t = np.broadcast_to(np.abs(reference.distances(x.shape, **masks)), x.shape)
    lost = (truth.scores.seen & truth.lost[..., None]) + 0.0
    parts = []
    for each in (x, d, lost):
        sums = np.zeros((*x.shape[:-2], table.shape[-1]), each.dtype)
        for lead in np.ndindex(x.shape[:-2]):
            np.add.at(sums[lead], t[lead], each[lead])
        parts.append(_folded(sums, table.shape))
    return parts[0], parts[1], parts[2] > 0, np.dtype(np.float64)


def _folded(x: Array, shape: tuple[int, ...]) -> Array:
    """Summed over the axes along which an array of this shape was repeated, whole or in groups."""
    if len(shape) > x.ndim:
        x = x.reshape((1,) * (len(shape) - x.ndim) + x.shape)
    x = x.sum(tuple(range(x.ndim - len(shape))))
    for axis, n in enumerate(shape):
        m = x.shape[axis]
        if n != m and n:
            x = x.reshape(*x.shape[:axis], n, m // n, *x.shape[axis + 1 :]).sum(axis + 1)
    return x
