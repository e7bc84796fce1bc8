# SPDX-License-Identifier: BSD-3-Clause
"""attention, attention_statistics and attention_entropy."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import attnscale as at
import numpy as np
from attnscale._base.statistics import NAMES

from . import build, expect, oracle
from .arrays import RANDOM, multiplies_bfloat16
from .bounds import weigh
from .compare import Findings
from .draw import Case, Draw, generator

__all__ = ["check", "check_output", "check_statistic", "draw", "expected", "result_type", "steps_of"]

Array = np.ndarray[Any, Any]
_EXACT = ("n_visible", "argmax", "support")


def draw(d: Draw) -> Case:
    shape, arrays, axes = d.problem(0.25)
    options = d.masks(shape) | d.tables(shape) | {"scale": d.scale(shape), "normalizer": d.normalizer(shape)}
    if "adaptive_temperature" in options["scale"] and (
        "distance_scale" in options or "distance_bias" in options
    ):
        options["scale"] = ["none"]  # a documented refusal
    options |= axes
    if d.chance(0.12):
        options["softcap"] = d.pick((0.5, 2.0, 30.0, 50.0))
    if d.chance(0.1):
        options["qk_norm"] = d.pick(("l2", "rms"))
    function = d.pick(
        ("attention", "attention", "attention_statistics", "attention_statistics", "attention_entropy")
    )
    rule = build.normalizer(options["normalizer"])
    had = at.normalizers.get(rule).statistics
    if function == "attention_entropy" and "entropy" not in had:
        function = "attention"
    chosen = [name for name in NAMES if name in had and d.chance(0.5)] or ["n_visible"]
    return {
        "function": function,
        "shape": shape,
        "arrays": arrays,
        "options": options,
        "statistics": chosen,
        "value": function != "attention_statistics" or d.chance(0.6),
        "out": d.pick((None, None, None, "c", "step", "f")),
        "threads": d.pick((None, None, 1, 2, 3)),
        "again": d.chance(0.06),
        "poison": d.pick("qkv") if d.chance(0.12) else None,
        "share": d.pick((0.02, 0.1)),
    }  # fmt: skip


def steps_of(case: Case, dim: int) -> tuple[float, bool]:
    """Unit roundoffs of a product, and whether all data are random: 4 by the promise, else gamma_n."""
    random = all(each["profile"] in RANDOM for each in case["arrays"].values())
    return (4.0 if random and dim > 1 else max(4.0, dim + 3.0)), random


def weight_rounding(q: Array, k: Array, v: Array | None, rule: Any) -> float:
    """Relative rounding of a weight to bfloat16, at levels with products of bfloat16."""
    own = multiplies_bfloat16(*(x.dtype for x in (q, k, v) if x is not None))
    return 2.0**-8 if own and rule.name not in ("sparsemax", "entmax", "top_k") else 0.0


def result_type(*arrays: Array) -> np.dtype[Any]:
    """Common type in native byte order."""
    return np.result_type(*(x.dtype.newbyteorder("=") for x in arrays))


def row_type(form: SimpleNamespace) -> np.dtype[Any]:
    return np.dtype(np.float64 if form.double else np.float32)


def expected(
    arrays: dict[str, Array],
    value: Array | None,
    options: Case,
    names: Any,
    case: Case,
    *,
    form: Any = None,
    errors: Any = None,
) -> SimpleNamespace:
    """Rows, statistics and output of the oracle; `errors` are those of query and key themselves."""
    q, k = arrays["q"], arrays["k"]
    form = form or oracle.arithmetic(q, k, value)
    steps, random = steps_of(case, q.shape[-1])
    plain = {name: each for name, each in options.items() if name != "normalizer"}
    scores = oracle.scored(q, k, plain, form, steps, errors)
    rule = at.normalizers.get(options.get("normalizer", "softmax"))
    row = weigh(scores, rule, form)
    found = SimpleNamespace(form=form, scores=scores, row=row, rule=rule, random=random, output=None)
    found.numbers = expect.statistics(row, scores, form, names)
    if value is not None:
        layout = options.get("layout", "bhsd")
        v = oracle.rows_first(oracle.wide_of(value, form), layout)
        v = oracle.shared(v, oracle.rows_first(q, layout), options.get("enable_gqa", False))
        rounding = weight_rounding(q, k, value, rule)
        found.output = expect.output(row, scores.seen, v, scores.broken, form, random, rounding)
    return found


def check(case: Case, seed: int, index: int, findings: Findings) -> None:
    rng = generator(seed, index, 1)
    arrays = build.inputs(case, rng)
    options = build.options(case, rng)
    q, k = arrays["q"], arrays["k"]
    value = arrays["v"] if case["value"] and case["function"] != "attention_entropy" else None
    names = case["statistics"] if case["function"] == "attention_statistics" else ()
    names = ("entropy",) if case["function"] == "attention_entropy" else names
    with np.errstate(all="ignore"):
        truth = expected(arrays, value, options, names, case)
    used = [q, k, *(() if value is None else (value,))]
    before = [x.tobytes() for x in used]
    result, output = _call(case, used, options, names)
    if [x.tobytes() for x in used] != before:
        findings.fault("an input was written")
    with np.errstate(all="ignore"):
        if value is not None:
            check_output(truth, output, used, options, findings)
        for name in names:
            seen = result if case["function"] == "attention_entropy" else getattr(result, name)
            check_statistic(name, seen, truth, k, options, findings)
    if case["again"]:
        other, twice = _call(
            {**case, "threads": 3 - (case["threads"] or 2) % 3, "out": None}, used, options, names
        )
        for name in names:
            pair = (
                (result, other)
                if case["function"] == "attention_entropy"
                else [getattr(x, name) for x in (result, other)]
            )
            findings.same(f"{name} with other threads", *pair)
        if output is not None:
            findings.same("output with other threads", twice, output)


def _call(case: Case, used: list[Array], options: Case, names: Any) -> tuple[Any, Any]:
    threads = {} if case["threads"] is None else {"num_threads": case["threads"]}
    function = getattr(at, case["function"])
    if case["function"] == "attention_entropy":
        return function(*used, **options, **threads), None
    out = _out(case, used, options) if len(used) == 3 else None
    into = {} if out is None else {"out": out}
    if case["function"] == "attention":
        result = function(*used, **options, **threads, **into)
        output = result
    else:
        result = function(*used, statistics=names, **options, **threads, **into)
        output = result.output
    if out is not None and output is not out:
        raise AssertionError("the result is not out")
    return result, output


def _out(case: Case, used: list[Array], options: Case) -> Array | None:
    """An array of the shape and type of the output, of any strides, filled with NaN."""
    how = case["out"]
    if how is None:
        return None
    layout = options.get("layout", "bhsd")
    q, v = (oracle.rows_first(x, layout) for x in (used[0], used[2]))
    k = oracle.rows_first(used[1], layout)
    gqa = options.get("enable_gqa", False)
    lead = q.shape[:-2] if gqa else np.broadcast_shapes(*(x.shape[:-2] for x in (q, k, v)))
    shape = (*lead, q.shape[-2], v.shape[-1])
    if layout == "bshd" and len(shape) > 2:
        shape = (*shape[:-3], shape[-2], shape[-3], shape[-1])
    dtype = result_type(*used)
    order: Any = "F" if how == "f" else "C"
    if how == "step":
        return np.full((*shape[:-1], 2 * shape[-1]), np.nan, dtype)[..., ::2]
    return np.full(shape, np.nan, dtype, order=order)


def check_output(truth: Any, output: Any, used: list[Array], options: Case, findings: Findings) -> None:
    wanted, limit, bad, big = truth.output
    may, free = (truth.scores.may_break | truth.row.may_break)[..., None], truth.row.free[..., None]
    swap = options.get("layout") == "bshd" and used[0].ndim > 2
    parts = [np.broadcast_to(x, wanted.shape) for x in (limit, bad, free, may | big)]
    wanted, limit, bad, free, may = (x.swapaxes(-3, -2) if swap else x for x in (wanted, *parts))
    if findings.shaped("output", output, wanted.shape, result_type(*used)):
        findings.close("output", output, wanted, limit, broken=bad, free=free, may_break=may)


def check_statistic(name: str, seen: Any, truth: Any, key: Array, options: Case, findings: Findings) -> None:
    row, scores, form = truth.row, truth.scores, truth.form
    if seen is None:
        findings.fault(f"{name} is missing")
        return
    shape = scores.s.shape[:-1]
    if not findings.shaped(name, seen, shape, np.dtype(np.int64) if name in _EXACT else row_type(form)):
        return
    if name in _EXACT:
        _check_count(name, seen, truth, key, options, findings)
        return
    wanted, limit = truth.numbers[name]
    free = row.free
    if name == "sink_weight" and row.sink is None:
        free = scores.free
    big = np.abs(np.where(np.isfinite(wanted), wanted, 0)).astype(np.float64) + limit > form.largest / 16
    findings.close(
        name,
        seen,
        np.asarray(wanted),
        limit,
        broken=scores.broken,
        free=free,
        may_break=scores.may_break | row.may_break | big,
    )
    if name == "max_weight" and row.distribution:
        over = ((seen > 1 + 64 * form.eps) | (seen < 0)) & ~row.free
        if over.any():
            findings.fault(f"max_weight is {seen[over][0]}, outside 0 ... 1")


def _check_count(name: str, seen: Array, truth: Any, key: Array, options: Case, findings: Findings) -> None:
    row, scores = truth.row, truth.scores
    n = scores.seen.sum(-1)
    known = ~scores.broken & ~scores.may_break & ~row.may_break
    if name == "n_visible":
        wrong = seen != n
    elif name == "support":
        wrong = known & ~row.free & ((seen < row.least) | (seen > row.most))
    else:
        wrong = _wrong_argmax(seen, truth, key, options)
    if wrong.any():
        at_ = tuple(int(i) for i in np.argwhere(wrong)[0])
        findings.fault(
            f"{name}{list(at_)}: got {seen[at_]}, of {n[at_]} visible, want {_wanted(name, truth, at_)}"
        )


def _wanted(name: str, truth: Any, at_: tuple[int, ...]) -> str:
    if name == "support":
        return f"{truth.row.least[at_]} to {truth.row.most[at_]}"
    return str(
        truth.scores.s[at_].argmax()
        if name == "argmax" and truth.scores.s.shape[-1]
        else truth.scores.seen[at_].sum()
    )


def _wrong_argmax(seen: Array, truth: Any, key: Array, options: Case) -> Array:
    """Rows whose argmax is not the largest up to rounding, or not the first of equal keys."""
    scores = truth.scores
    empty = ~scores.seen.any(-1)
    wrong = empty & (seen != -1)
    if not scores.s.shape[-1]:
        return np.asarray(wrong)
    known = ~empty & ~scores.broken & ~scores.may_break & ~scores.free
    n = scores.s.shape[-1]
    inside = (seen >= 0) & (seen < n)
    at_ = np.clip(seen, 0, n - 1)[..., None]
    own, off = np.take_along_axis(scores.s, at_, -1), np.take_along_axis(scores.d, at_, -1)
    reach = np.where(scores.seen, scores.s - scores.d, -np.inf).max(-1)
    wrong = wrong | known & (~inside | ((own + off)[..., 0] < reach))
    if any(name in options for name in ("distance_scale", "distance_bias")) or _of_distance(options):
        return np.asarray(wrong)
    mask = options.get("attn_mask")
    if mask is not None and mask.dtype != bool:
        return np.asarray(wrong)
    rows = oracle.rows_first(key, options.get("layout", "bhsd"))
    rows = (
        oracle.shared(rows, np.empty((*scores.s.shape[:-1], 0)), options.get("enable_gqa", False))
        if options.get("enable_gqa")
        else rows
    )
    _, same = (
        np.unique(rows.reshape(-1, rows.shape[-1]).astype(np.float64), axis=0, return_inverse=True)
        if rows.size
        else (0, np.zeros(rows.shape[:-1], int))
    )
    ids = np.broadcast_to(same.reshape(rows.shape[:-1])[..., None, :], scores.s.shape)
    equal = (ids == np.take_along_axis(ids, at_, -1)) & scores.seen & (np.arange(n) < at_)
    return np.asarray(wrong | known & inside & equal.any(-1))


def _of_distance(options: Case) -> bool:
    scale = options.get("scale")
    return isinstance(scale, at.laws.Law) and scale.n_means == "query-key distance"
