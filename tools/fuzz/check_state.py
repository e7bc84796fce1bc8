# SPDX-License-Identifier: BSD-3-Clause
"""attention_state over parts of the keys, merge_states of them, and RelayState."""

from __future__ import annotations

from typing import Any

import attnscale as at
import numpy as np

from . import build, expect, oracle
from .bounds import weigh
from .check_attend import result_type, row_type, steps_of
from .compare import Findings
from .draw import Case, Draw, generator

__all__ = ["check", "draw"]


def draw(d: Draw) -> Case:
    shape, arrays, axes = d.problem()
    parts = d.integer(1, 4)
    cuts = [0, *sorted(d.integer(0, shape["nk"]) for _ in range(parts - 1)), shape["nk"]]
    options: Case = {"scale": d.scale(shape)}
    if options["scale"][0] in ("name", "law"):
        options["scale"] = ["none"]
    if d.chance(0.3):
        options["attn_mask"] = d.mask(shape)
        options["attn_mask"]["axes"] = (
            [1] * (len(shape["lead"]) + 1) + [shape["nk"]]
            if d.chance(0.3)
            else [*shape["lead"], shape["nq"], shape["nk"]]
        )
        options["attn_mask"]["strides"] = "c"
    options |= axes
    if d.chance(0.15):
        options["softcap"] = d.pick((0.5, 2.0, 30.0))
    return {
        "function": "merge_states",
        "shape": shape,
        "arrays": arrays,
        "options": options,
        "cuts": cuts,
        "order": d.rng.permutation(parts).tolist(),
        "threads": d.pick((None, 1, 2, 3)),
        "poison": d.pick("qkv") if d.chance(0.1) else None,
        "share": 0.05,
    }


def check(case: Case, seed: int, index: int, findings: Findings) -> None:
    rng = generator(seed, index, 1)
    arrays = build.inputs(case, rng)
    options = build.options(case, rng)
    q, k, v = (arrays[name] for name in "qkv")
    layout = options.get("layout", "bhsd")
    axis = -3 if layout == "bshd" and k.ndim > 2 else -2
    threads = {} if case["threads"] is None else {"num_threads": case["threads"]}
    states = []
    for first, last in zip(case["cuts"], case["cuts"][1:], strict=False):
        cut = slice(first, last)
        part = [np.moveaxis(np.moveaxis(x, axis, 0)[cut], 0, axis) for x in (k, v)]
        own = dict(options)
        if "attn_mask" in options:
            own["attn_mask"] = options["attn_mask"][..., cut]
        states.append(at.attention_state(q, *part, **own, **threads))
    merged = at.merge_states([states[i] for i in case["order"]])
    with np.errstate(all="ignore"):
        _check(merged, len(states), q, k, v, options, case, findings)


def _check(
    merged: Any, parts: int, q: Any, k: Any, v: Any, options: Case, case: Case, findings: Findings
) -> None:
    form = oracle.arithmetic(q, k, v)
    steps, random = steps_of(case, q.shape[-1])
    scores = oracle.scored(q, k, options, form, steps)
    # The lse of a part is rounded to the type of the rows before it becomes the part's weight.
    top = (
        np.abs(np.where(np.isfinite(scores.s), scores.s, 0))
        .max(-1, initial=0, keepdims=True)
        .astype(np.float64)
    )
    n = max(2, k.shape[-2])
    scores.d = scores.d + np.where(scores.seen, form.eps * (top + np.log(n) + 4), 0)
    row = weigh(scores, at.normalizers.get("softmax"), form)
    _check_output(merged, parts, q, k, v, (scores, row, form), options, random, findings)
    _check_rows(merged, top[..., 0], n, (scores, row, form), findings)


def _check_output(
    merged: Any, parts: int, q: Any, k: Any, v: Any, truth: Any, options: Case, random: bool,
    findings: Findings,
) -> None:  # fmt: skip
    scores, row, form = truth
    layout = options.get("layout", "bhsd")
    value = oracle.shared(
        oracle.rows_first(oracle.wide_of(v, form), layout),
        oracle.rows_first(q, layout),
        options.get("enable_gqa", False),
    )
    wanted, limit, bad, big = expect.output(row, scores.seen, value, scores.broken, form, random)
    # Parts are rounded to the type of the output before they are merged.
    eps = float(np.finfo(np.float32).eps) if result_type(q, k, v).itemsize > 2 else 2.0**-7
    eps = form.eps if form.double else eps
    absolute = np.where(scores.seen, row.w, 0).astype(np.float64) @ np.abs(
        np.where(np.isfinite(value), value, 0)
    ).astype(np.float64)
    limit = (
        limit
        + 2 * eps * absolute
        + parts * float(np.finfo(np.float16).smallest_subnormal if eps > 1e-3 else form.least)
    )
    kind = result_type(q, k, v)
    if kind.itemsize == 2:
        big = big | True  # a part of 16 bits may overflow where the whole does not
    may = (scores.may_break | row.may_break)[..., None] | big
    swap = layout == "bshd" and q.ndim > 2
    each = [np.broadcast_to(x, wanted.shape) for x in (wanted, limit, bad, row.free[..., None], may)]
    wanted, limit, bad, free, may = (x.swapaxes(-3, -2) if swap else x for x in each)
    if findings.shaped("output", merged.output, wanted.shape, kind):
        findings.close("output", merged.output, wanted, limit, broken=bad, free=free, may_break=may)


def _check_rows(merged: Any, top: Any, n: int, truth: Any, findings: Findings) -> None:
    scores, row, form = truth
    numbers = expect.statistics(row, scores, form, ("lse", "mean_score", "entropy"))
    may, free = scores.may_break | row.may_break, row.free
    shape = scores.s.shape[:-1]
    for name in ("lse", "mean_score"):
        if findings.shaped(name, getattr(merged, name), shape, row_type(form)):
            size, bound = numbers[name]
            big_ = np.abs(np.where(np.isfinite(size), size, 0)).astype(np.float64) + bound > form.largest / 16
            findings.close(
                name, getattr(merged, name), np.asarray(size), bound + 4 * form.eps * top,
                broken=scores.broken, free=free, may_break=may | big_,
            )  # fmt: skip
    size, bound = numbers["entropy"]
    bound = bound + 4 * form.eps * (2 * top + np.log(n) + 4) + numbers["lse"][1] + numbers["mean_score"][1]
    findings.close(
        "entropy",
        merged.entropy,
        np.asarray(size),
        bound,
        broken=scores.broken,
        free=free,
        may_break=may | (top > form.largest / 64),
    )
