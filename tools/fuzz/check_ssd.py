# SPDX-License-Identifier: BSD-3-Clause
"""ssd and SsdState: by the matrix of decays.

Each term exp(a_(j+1) + ... + a_i) (q_i . k_j) v_j carries the rounding of its product, gamma of the sums of
log-decays (n unit roundoffs of float64, or of float32 where they are kept in it) and that of one exponential.
"""

from __future__ import annotations

from typing import Any

import attnscale as at
import numpy as np

from . import build, oracle
from .check_attend import result_type
from .compare import Findings
from .draw import Case, Draw, generator

__all__ = ["check", "draw"]

Array = np.ndarray[Any, Any]


def draw(d: Draw) -> Case:
    shape = d.shapes(square=True, batch=1)
    layout = "bshd" if shape["lead"] and d.chance(0.2) else "bhsd"
    arrays, gqa = d.qkv(shape, layout)
    options: Case = {"enable_gqa": True} if gqa else {}
    options |= {"layout": layout} if layout == "bshd" else {}
    full = [*shape["lead"], shape["nq"]]
    axes = [1 if d.chance(0.2) else n for n in full][d.integer(0, len(full) - 1) if d.chance(0.3) else 0 :]
    parts = d.integer(1, 3)
    return {
        "function": "ssd",
        "state": d.chance(0.3),
        "shape": shape,
        "arrays": arrays,
        "options": options,
        "decay": {
            "axes": axes,
            "size": d.pick((0.0, 0.3, 3.0, 100.0, 1e4)),
            "dtype": d.pick(("float64", "float64", "float32")),
        },
        "cuts": [0, *sorted(d.integer(0, shape["nk"]) for _ in range(parts - 1)), shape["nk"]],
        "poison": d.pick("qkv") if d.chance(0.15) else None,
        "share": 0.05,
    }


def check(case: Case, seed: int, index: int, findings: Findings) -> None:
    rng = generator(seed, index, 1)
    arrays = build.inputs(case, rng)
    q, k, v = (arrays[name] for name in "qkv")
    spec = case["decay"]
    decay = (-rng.exponential(1.0, spec["axes"]) * spec["size"]).astype(spec["dtype"])
    before = [x.tobytes() for x in (q, k, v, decay)]
    if case["state"]:
        _check_state(case, q, k, v, decay, findings)
        return
    found = at.variants.ssd(q, k, v, decay, **case["options"])
    if [x.tobytes() for x in (q, k, v, decay)] != before:
        findings.fault("an input was written")
    with np.errstate(all="ignore"):
        form = oracle.arithmetic(q, k, v)
        truth = _truth(case, q, k, v, decay, form)
        _compare("ssd", found, truth, result_type(q, k, v), case, form, findings)


def _truth(case: Case, q: Array, k: Array, v: Array, decay: Array, form: Any) -> Any:
    layout, gqa = case["options"].get("layout", "bhsd"), case["options"].get("enable_gqa", False)
    wq, wk, wv = (oracle.rows_first(oracle.wide_of(x, form), layout) for x in (q, k, v))
    wk, wv = (oracle.shared(x, wq, gqa) for x in (wk, wv))
    lead = np.broadcast_shapes(*(x.shape[:-2] for x in (wq, wk, wv)))
    n = wq.shape[-2]
    past = np.cumsum(np.broadcast_to(decay, (*lead, n)).astype(form.wide), axis=-1)
    between = np.exp(np.minimum(past[..., :, None] - past[..., None, :], 0))
    seen = np.tril(np.ones((n, n), bool))
    finite = [np.where(np.isfinite(x), x, 0) for x in (wq, wk, wv)]
    w = np.where(seen, between * (finite[0] @ finite[1].swapaxes(-1, -2)), 0)
    size = [np.abs(x).astype(np.float64) for x in finite]
    absolute = np.where(seen, between.astype(np.float64) * (size[0] @ size[1].swapaxes(-1, -2)), 0)
    drift = (
        form.u * 4
        + 2.0**-53 * (n + 2) * np.abs(past).max(-1, initial=0)[..., None, None].astype(np.float64) * 2
    )
    relative = (q.shape[-1] + 16) * form.u + 64 * form.eps + np.minimum(drift * 4, 1e300)
    limit = (relative * absolute) @ size[2]
    largest = [x.max((-2, -1), keepdims=True, initial=0) for x in size]
    # exp of a sum that leaves the type is 0; products below the normal numbers lose `least` each.
    small = (
        (n + 4)
        * (1 + q.shape[-1])
        * (
            form.least * (1 + largest[0]) * (1 + largest[2]) * (1 + largest[1])
            + form.tiny * 4 * largest[0] * largest[1] * largest[2]
        )
    )
    broken = ((~np.isfinite(wq)).any(-1)[..., :, None] | (~np.isfinite(wk)).any(-1)[..., None, :]) & seen
    bad = broken.any(-1)[..., None] | ((seen.astype(np.float64) @ (~np.isfinite(wv)).astype(np.float64)) > 0)
    bad &= q.shape[-1] > 0  # without features no value counts, as in the other families
    grown = largest[0] * largest[1] * largest[2] * n * max(1, q.shape[-1])
    may = (
        (grown > form.largest / 64)
        | (largest[1] * largest[2] * n > form.largest / 64)
        | (largest[0] * largest[1] * max(1, q.shape[-1]) > form.largest / 64)
    )
    wanted = w @ finite[2]
    limit = np.nan_to_num(limit + small, nan=np.inf)  # 0 times a bound that leaves float64
    return wanted, limit, np.broadcast_to(bad, wanted.shape), np.broadcast_to(may, wanted.shape)


def _compare(
    name: str, found: Array, truth: Any, kind: Any, case: Case, form: Any, findings: Findings
) -> None:
    wanted, limit, bad, may = truth
    parts = [wanted, np.broadcast_to(limit, wanted.shape), bad, may]
    if case["options"].get("layout") == "bshd" and wanted.ndim > 2:
        parts = [x.swapaxes(-3, -2) for x in parts]
    wanted, limit, bad, may = parts
    if findings.shaped(name, found, wanted.shape, kind):
        findings.close(name, found, wanted, limit, broken=bad, may_break=may)


def _check_state(case: Case, q: Array, k: Array, v: Array, decay: Array, findings: Findings) -> None:
    """Keys taken in by parts; the last row of the query reads them all."""
    options = {n: x for n, x in case["options"].items() if n == "layout"}
    layout = options.get("layout", "bhsd")
    n = case["shape"]["nk"]
    gqa = case["options"].get("enable_gqa", False)
    if (
        gqa
        or not n
        or len({x.shape[:-2] if layout == "bhsd" else x.shape for x in (q, k, v)}) > 1
        or decay.shape[-1] != n
    ):
        return
    if layout == "bshd" or (
        any(x.dtype.itemsize == 8 for x in (q, k, v)) and not all(x.dtype.itemsize == 8 for x in (q, k, v))
    ):
        return
    state = at.variants.SsdState(**options)
    full = np.broadcast_to(decay, (*q.shape[:-2], n))
    for first, last in zip(case["cuts"], case["cuts"][1:], strict=False):
        state.update(k[..., first:last, :], v[..., first:last, :], full[..., first:last])
    found = state.read(q[..., -1:, :])
    with np.errstate(all="ignore"):
        form = oracle.arithmetic(q, k, v)
        truth = [x[..., -1:, :] for x in _truth(case, q, k, v, decay, form)]
        _compare("state", found, truth, result_type(q), case, form, findings)
