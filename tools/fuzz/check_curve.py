# SPDX-License-Identifier: BSD-3-Clause
"""entropy_curve: every scale of one call against the oracle at that scale."""

from __future__ import annotations

from typing import Any

import attnscale as at
import numpy as np

from . import build, expect, oracle
from .bounds import weigh
from .check_attend import row_type, steps_of
from .compare import Findings
from .draw import Case, Draw, generator

__all__ = ["check", "draw"]

FIELDS = ("entropy", "lse", "mean", "variance")


def draw(d: Draw) -> Case:
    shape, arrays, axes = d.problem()
    options = d.masks(shape) | d.tables(shape) | {"normalizer": d.normalizer(shape, softmax=True)}
    options |= axes
    if d.chance(0.1):
        options["softcap"] = d.pick((0.5, 2.0, 30.0))
    if d.chance(0.1):
        options["qk_norm"] = d.pick(("l2", "rms"))
    many = d.pick((0, 1, 1, 2, 3, 3, 4, 5, 17))
    scales = [d.pick((0.0, 1.0, d.number(), d.number(0.2), d.number(0.2), d.number(30))) for _ in range(many)]
    return {
        "function": "entropy_curve",
        "shape": shape,
        "arrays": {name: arrays[name] for name in "qk"},
        "options": options,
        "scales": scales,
        "threads": d.pick((None, None, 1, 2, 3)),
        "again": d.chance(0.06),
        "poison": d.pick("qk") if d.chance(0.1) else None,
        "share": 0.05,
    }


def check(case: Case, seed: int, index: int, findings: Findings) -> None:
    rng = generator(seed, index, 1)
    arrays = build.inputs(case, rng, "qk")
    options = build.options(case, rng)
    q, k = arrays["q"], arrays["k"]
    threads = {} if case["threads"] is None else {"num_threads": case["threads"]}
    before = [q.tobytes(), k.tobytes()]
    curve = at.entropy_curve(q, k, case["scales"], **options, **threads)
    if [q.tobytes(), k.tobytes()] != before:
        findings.fault("an input was written")
    with np.errstate(all="ignore"):
        form = oracle.arithmetic(q, k)
        row = oracle.products(q, k, options, form, steps_of(case, q.shape[-1])[0])
        shape = (*row.x.shape[:-1], len(case["scales"]))
        good = [findings.shaped(name, getattr(curve, name), shape, row_type(form)) for name in FIELDS]
        if all(good):
            for at_, scale in enumerate(case["scales"]):
                _check_scale(row, scale, at_, curve, options, form, findings)
    if case["again"]:
        other = at.entropy_curve(q, k, case["scales"], **options, num_threads=3 - (case["threads"] or 2) % 3)
        for name in FIELDS:
            findings.same(f"{name} with other threads", getattr(other, name), getattr(curve, name))


def _check_scale(
    row: Any, scale: float, at_: int, curve: Any, options: Case, form: Any, findings: Findings
) -> None:
    scores = oracle.finish(row, form.wide(scale), 0.0, row.bias, options, form)
    rule = at.normalizers.get(options["normalizer"])
    weights = weigh(scores, rule, form)
    found = expect.statistics(weights, scores, form, ("lse", "entropy"))
    x = np.where(row.seen & np.isfinite(row.x), row.x, 0)
    dx = np.where(row.seen & np.isfinite(row.dx), row.dx, 0)
    if weights.sink is not None:
        zero = np.zeros((*x.shape[:-1], 1), x.dtype)
        x, dx = np.concatenate([x, zero], -1), np.concatenate([dx, zero.astype(np.float64)], -1)
    mean, variance, dmean, dvariance = expect.moments(weights.w, weights.error, x, dx, weights.seen, form)
    found["mean"], found["variance"] = (mean, dmean), (variance, dvariance)
    beyond = _beyond_promise(x, row.seen, weights.sink is not None, form)
    for name in FIELDS:
        wanted, limit = found[name]
        big = np.abs(np.where(np.isfinite(wanted), wanted, 0)) + limit > form.largest / 16
        may = scores.may_break | weights.may_break | big | beyond.get(name, False)
        findings.close(
            f"{name}", getattr(curve, name)[..., at_], np.asarray(wanted), limit,
            broken=scores.broken, free=weights.free, may_break=may,
        )  # fmt: skip


def _beyond_promise(x: Any, seen: Any, sink: bool, form: Any) -> dict[str, Any]:
    """Rows whose mean or variance of the products may be no number (docs/explanation/numerics.md).

    Sums are double, of n weights up to 2^8 by distances up to the spread, whose squares move with a center.
    """
    n = seen.shape[-1]
    low = np.where(seen, x[..., :n], np.inf).min(-1, initial=0 if sink else np.inf)
    high = np.where(seen, x[..., :n], -np.inf).max(-1, initial=0 if sink else -np.inf)
    spread = np.where(seen.any(-1), high - low, 0).astype(np.longdouble)
    double = float(np.finfo(np.float64).max)
    square = spread * spread
    lost = 2.0**10 * n * square > double
    if sink:  # it joins the mean and the variance of the keys as the type holds them
        lost = lost | (square > form.largest)
    return {"mean": 2.0**10 * n * spread > double, "variance": lost}
