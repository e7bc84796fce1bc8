# SPDX-License-Identifier: BSD-3-Clause
"""solve_scale: the entropy at the scale that was found, and which targets can be reached."""

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

Array = np.ndarray[Any, Any]


def draw(d: Draw) -> Case:
    shape, arrays, axes = d.problem()
    options = d.masks(shape)
    if "attn_mask" in options and options["attn_mask"]["dtype"] != "bool":
        options["attn_mask"]["profile"] = "zeros"
    options |= axes
    return {
        "function": "solve_scale",
        "shape": shape,
        "arrays": {name: arrays[name] for name in "qk"},
        "options": options,
        "per": d.pick(("row", "row", "row", "head", "all")),
        "share_of_highest": [
            d.pick((0.0, 1.0, 1.5, float(d.rng.random()), float(d.rng.random()))),
            d.chance(0.3),
        ],
        "tolerance": d.pick((None, None, None, 1e-3, 1e-5)),
        "threads": d.pick((None, None, 1, 2, 3)),
        "again": d.chance(0.06),
        "poison": d.pick("qk") if d.chance(0.08) else None,
        "share": 0.05,
    }


def check(case: Case, seed: int, index: int, findings: Findings) -> None:
    rng = generator(seed, index, 1)
    arrays = build.inputs(case, rng, "qk")
    options = build.options(case, rng)
    q, k = arrays["q"], arrays["k"]
    with np.errstate(all="ignore"):
        form = oracle.arithmetic(q, k)
        row = oracle.products(q, k, options, form, steps_of(case, q.shape[-1])[0])
        axes = {"row": (), "head": (-1,), "all": tuple(range(1 - row.x.ndim, 0))}[case["per"]]
        target = _target(row, axes, case, rng)
    more: Case = {"on_infeasible": "nan"}
    more |= {} if case["threads"] is None else {"num_threads": case["threads"]}
    more |= {} if case["tolerance"] is None else {"tolerance": case["tolerance"]}
    before = [q.tobytes(), k.tobytes()]
    solution = at.solve_scale(q, k, target, per=case["per"], **options, **more)
    if [q.tobytes(), k.tobytes()] != before:
        findings.fault("an input was written")
    with np.errstate(all="ignore"):
        _check(solution, row, axes, target, case, options, form, findings)
    if case["again"]:
        more["num_threads"] = 3 - (case["threads"] or 2) % 3
        other = at.solve_scale(q, k, target, per=case["per"], **options, **more)
        for name in ("scale", "entropy", "converged", "iterations"):
            findings.same(f"{name} with other threads", getattr(other, name), getattr(solution, name))


def _target(row: Any, axes: tuple[int, ...], case: Case, rng: np.random.Generator) -> Any:
    """A share of the largest entropy, for each result or for all."""
    share, each = case["share_of_highest"]
    highest = _mean(np.log(np.maximum(row.seen.sum(-1), 1)), row.seen, axes)
    if each:
        return np.asarray(highest * rng.random(highest.shape)) + 0.0
    return float(highest.max(initial=0) * share)


def _mean(rows: Array, seen: Array, axes: tuple[int, ...]) -> Array:
    """Over these axes, of the rows that see a key."""
    counted = seen.any(-1)
    return np.asarray(np.where(counted, rows, 0).sum(axes) / np.maximum(counted.sum(axes), 1))


def _check(
    solution: Any, row: Any, axes: tuple[int, ...], target: Any, case: Case, options: Case, form: Any,
    findings: Findings,
) -> None:  # fmt: skip
    wanted = _mean(np.log(np.maximum(row.seen.sum(-1), 1)).astype(np.float64), row.seen, axes)
    kind = row_type(form) if case["per"] == "row" else np.dtype(np.float64)
    if not findings.shaped("scale", solution.scale, wanted.shape, np.dtype(np.float64)):
        return
    if not findings.shaped("entropy", solution.entropy, wanted.shape, kind):
        return
    target = np.broadcast_to(target, wanted.shape)
    tolerance = case["tolerance"] or (1e-9 if form.double else 1e-6)
    scale = solution.scale
    broken = (row.seen & ~np.isfinite(row.x)).any(-1)
    broken = broken.any(axes) if axes else broken
    big = (row.seen & (row.size > form.largest / 64)).any(-1)
    may = (big.any(axes) if axes else big) | ~np.isfinite(wanted)
    used = np.where(np.isfinite(scale), scale, 0)
    scores = oracle.finish(
        row, np.expand_dims(used, axes)[..., None].astype(form.wide), 0.0, 0, options, form
    )
    rule = at.normalizers.get("softmax")
    weights = weigh(scores, rule, form)
    entropy, limit = expect.statistics(weights, scores, form, ("entropy",))["entropy"]
    entropy, limit = _mean(entropy, row.seen, axes), _mean(limit, row.seen, axes)
    free = weights.free | scores.free
    free = (free.any(axes) if axes else free) | ~np.isfinite(scale) | may
    # Underflow of float32 weights and a scale outside float32 are part of the answer, not of the rounding.
    findings.close(
        "entropy", solution.entropy, entropy, limit + 4 * form.eps, broken=broken, free=free, may_break=may
    )
    _check_flags(solution, wanted, entropy, limit, target, tolerance, broken | may, row, axes, findings)


def _entropy(scores: Array) -> Array:
    """Entropy of rows whose largest score is 0."""
    w = np.where(np.isfinite(scores), np.exp(scores), 0)
    total = np.maximum(w.sum(-1), 1)
    return np.asarray(np.log(total) - (w * np.where(w > 0, scores, 0)).sum(-1) / total)


def _check_flags(
    solution: Any, highest: Array, entropy: Array, limit: Array, target: Array, tolerance: float, skip: Array,
    row: Any, axes: tuple[int, ...], findings: Findings,
) -> None:  # fmt: skip
    x = np.where(row.seen & np.isfinite(row.x), row.x, -np.inf)
    dx = np.where(row.seen, row.dx, 0)
    top = x.max(-1, initial=-np.inf, keepdims=True)
    sure = (row.seen & (x == top)).sum(-1)
    reach = (x - dx).max(-1, initial=-np.inf, keepdims=True)
    perhaps = (row.seen & (x + dx >= reach)).sum(-1)
    lowest = [
        _mean(np.log(np.maximum(n, 1)).astype(np.float64), row.seen, axes)
        for n in (np.minimum(sure, 1), perhaps)
    ]
    known, slack = ~skip, tolerance + 1e-6
    # A search can only be as good as the entropies it sees, and a scale must be a number.
    least = np.where(row.seen, x, np.inf).min(-1, initial=np.inf)
    spread = np.where(row.seen.any(-1), top[..., 0] - least, 0)
    # Its square, the variance, must be one too: 1e-17 ... 1e17 in float32, 1e-140 ... 1e140 in float64.
    far, most = (1e140, 1e307) if x.dtype == np.longdouble else (1e17, 1e37)
    narrow = (spread > 0) & ((spread < 1 / far) | (spread > far))
    easy = ~(narrow.any(axes) if axes else narrow) & (limit < tolerance / 4)
    easy &= target >= _mean(_entropy((x - top) * most), row.seen, axes) + slack
    scale = solution.scale
    rules = {
        "feasible is False for a target that can be reached": known & ~solution.feasible
        & (target <= highest - slack) & (target >= lowest[1] + slack),
        "feasible is True for a target above ln n": known & solution.feasible & (target > highest + slack),
        "not converged for a target that can be reached": known & easy & ~solution.converged
        & (target <= highest - slack) & (target >= lowest[1] + slack),
        "converged away from the target": known & solution.converged & np.isfinite(scale)
        & (np.abs(entropy - target) > tolerance + limit + 1e-6),
        "scale is a number for a target above ln n": known & (target > highest + slack) & (highest > 0)
        & ~np.isnan(scale),
        "scale is negative": known & (scale < 0),
    }  # fmt: skip
    for text, wrong in rules.items():
        if np.any(wrong):
            at_ = tuple(int(i) for i in np.argwhere(wrong)[0])
            findings.fault(
                f"{text}{list(at_)}: target {target[at_]:.12g}, highest {highest[at_]:.12g}, lowest at most "
                f"{lowest[1][at_]:.6g}, scale {scale[at_]:.6g}, entropy {solution.entropy[at_]:.12g}, "
                f"iterations {solution.iterations[at_]}"
            )
