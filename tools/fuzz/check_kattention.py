# SPDX-License-Identifier: BSD-3-Clause
"""kattention_heads and kattention_statistics: attention of (q + b, 1) to (k, -|k|^2 / 2).

Rows of the arithmetic's type: q + b is rounded once, the sum |k|^2 / 2 in float64 and then once.
"""

from __future__ import annotations

from typing import Any

import attnscale as at
import numpy as np
from attnscale._base.statistics import NAMES

from . import build, check_attend, oracle
from .compare import Findings
from .draw import Case, Draw, generator

__all__ = ["check", "draw"]


def draw(d: Draw) -> Case:
    shape, arrays, axes = d.problem()
    options = d.masks(shape) | {"normalizer": d.normalizer(shape)}
    scale = d.scale(shape)
    options["scale"] = scale if scale[0] in ("number", "array", "none") else ["none"]
    options |= axes
    rule = at.normalizers.get(build.normalizer(options["normalizer"]))
    names = [name for name in NAMES if name in rule.statistics and d.chance(0.4)] or ["n_visible"]
    heads = shape["lead"][-1:] if d.chance(0.4) else []
    return {
        "function": d.pick(("kattention_heads", "kattention_statistics")),
        "shape": shape,
        "arrays": arrays,
        "options": options,
        "statistics": [name for name in names if name != "argmax"] or ["n_visible"],
        "bias": d.pick(
            (
                None,
                {
                    "axes": [*heads, shape["d"]],
                    "dtype": d.pick(("float64", "float32", "float16")),
                    "spread": d.pick((1.0, 0.3)),
                },
            )
        ),
        "threads": d.pick((None, 1, 2, 3)),
        "poison": d.pick("qkv") if d.chance(0.08) else None,
        "share": 0.05,
    }


def check(case: Case, seed: int, index: int, findings: Findings) -> None:
    rng = generator(seed, index, 1)
    arrays = build.inputs(case, rng)
    options = build.options(case, rng)
    q, k, v = (arrays[name] for name in "qkv")
    bias = None
    if case["bias"] is not None:
        bias = (rng.standard_normal(case["bias"]["axes"]) * case["bias"]["spread"]).astype(
            case["bias"]["dtype"]
        )
    more = {} if case["threads"] is None else {"num_threads": case["threads"]}
    if case["function"] == "kattention_heads":
        output, result, names = at.variants.kattention_heads(q, k, v, bias=bias, **options, **more), None, ()
    else:
        names = case["statistics"]
        result = at.variants.kattention_statistics(q, k, v, bias=bias, statistics=names, **options, **more)
        output = result.output
    with np.errstate(all="ignore"):
        truth, rows = _truth(case, q, k, v, bias, options, names)
        check_attend.check_output(truth, output, [q, k, v], options, findings)
        for name in names:
            check_attend.check_statistic(name, getattr(result, name), truth, rows[1], options, findings)


def _truth(case: Case, q: Any, k: Any, v: Any, bias: Any, options: Case, names: Any) -> Any:
    form = oracle.arithmetic(q, k, v)
    layout = options.get("layout", "bhsd")
    wq, wk = (oracle.rows_first(oracle.wide_of(x, form), layout) for x in (q, k))
    if bias is not None:
        wq = wq + bias.astype(form.wide)[..., None, :]
    dq = form.u * np.abs(wq).astype(np.float64)
    half = (wk * wk).sum(-1, keepdims=True) / 2
    key = np.concatenate([wk, -half], -1)
    query = np.concatenate([wq, np.ones((*wq.shape[:-1], 1), wq.dtype)], -1)
    gqa = options.get("enable_gqa", False)
    dk = np.concatenate(
        [
            np.zeros(wk.shape),
            2 * form.u * half.astype(np.float64) + 2.0**-52 * (wk.shape[-1] + 2) * half.astype(np.float64),
        ],
        -1,
    )
    errors = (np.concatenate([dq, np.zeros((*dq.shape[:-1], 1))], -1), oracle.shared(dk, query, gqa))
    if layout == "bshd" and q.ndim > 2:
        query, key = query.swapaxes(-3, -2), key.swapaxes(-3, -2)
    scale = options.get("scale")
    own = {
        **options,
        "scale": form.wide(1) / np.sqrt(form.wide(max(q.shape[-1], 1))) if scale is None else scale,
    }
    truth = check_attend.expected({"q": query, "k": key}, v, own, names, case, form=form, errors=errors)
    size = max(float(np.abs(x[np.isfinite(x)]).max(initial=0)) for x in (key, query))
    if size > form.largest / 64:
        truth.scores.may_break = truth.scores.may_break | True
    return truth, (query, key)
