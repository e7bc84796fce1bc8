# SPDX-License-Identifier: BSD-3-Clause
"""The backward pass against its twin: every option, every statistic, every type."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import attnscale as at
import numpy as np
import pytest
from attnscale import reference
from cases import (
    EDGES,
    FLOAT_TYPES,
    SMOOTH,
    case,
    entered,
    machine_epsilon,
    mask_cases,
    random_inputs,
    remembering,
    same,
    weight_rounding,
)

pytestmark = pytest.mark.levels

ARRAYS = ("query", "key", "value")


def cotangents(q: Any, k: Any, v: Any, statistics: tuple[str, ...], **options: Any) -> dict[str, Any]:
    """Random grad_output, of the inputs' type, and gradients of these statistics."""
    rng = np.random.default_rng(99)
    rows = at.attention_statistics(q, k, v, statistics="n_visible", **options)
    assert rows.output is not None
    given = {f"grad_{name}": rng.standard_normal(rows.n_visible.shape) for name in statistics}
    return {"grad_output": rng.standard_normal(rows.output.shape).astype(rows.output.dtype), **given}


def terms(q: Any, k: Any, v: Any, given: dict[str, Any], **options: Any) -> SimpleNamespace:
    """Sums of the absolute terms of each gradient, by the twin."""
    options = {name: x for name, x in options.items() if name != "normalizer"}
    layout = options.get("layout", "bhsd")
    twin = reference._gradients
    wide_q, wide_k, wide_v, grad = (
        reference._attention._heads_first(x, layout) for x in (q, k, v, np.abs(given["grad_output"]))
    )
    rows = reference.attention_statistics(q, k, **options)
    parts = reference.score_parts(q, k, **options)
    shared = {"enable_gqa": options.get("enable_gqa", False)}
    q_size = np.abs(wide_q)
    k_size, size = (np.abs(twin._shared(x, wide_q, shared)) for x in (wide_k, wide_v))
    dp = grad @ size.swapaxes(-1, -2)
    each = rows.p * (dp + (rows.p * dp).sum(-1, keepdims=True))
    for name in SMOOTH:
        if f"grad_{name}" in given:
            each = each + np.abs(_statistic_terms(name, rows) * given[f"grad_{name}"][..., None])
    each = np.where(parts.seen, each, 0)
    scaled = each * np.abs(parts.factor * parts.scale) * twin._slope(parts, options.get("softcap"))
    return SimpleNamespace(
        query=twin._fold(scaled @ k_size, wide_q, layout),
        key=twin._fold(scaled.swapaxes(-1, -2) @ q_size, wide_k, layout),
        value=twin._fold(rows.p.swapaxes(-1, -2) @ grad, wide_v, layout),
        # Rounding a score by eps * size changes each weight, and the gradient, by that much.
        size=np.abs(parts.scale * parts.factor) * (q_size @ k_size.swapaxes(-1, -2)),
    )


def _statistic_terms(name: str, rows: Any) -> Any:
    """|d statistic / d score|, with the parts of the derivative taken absolute."""
    p, h = rows.p, rows.entropy[..., None]
    log_p = np.abs(np.where(p > 0, np.log(np.where(p > 0, p, 1)), 0))
    centred = log_p + h
    return {
        "lse": p,
        "entropy": p * centred,
        "max_score": np.ones_like(p),
        "mean_score": p * (1 + centred),
        "score_variance": p * (centred**2 + rows.score_variance[..., None] + 2 * centred),
        "concentration": 2 * p * (p + rows.concentration[..., None]),
        "renyi2": 2 * p * (p / np.maximum(rows.concentration, 1e-300)[..., None] + 1),
        "max_weight": p + rows.max_weight[..., None] * (p == rows.max_weight[..., None]),
    }[name]


def check(q: Any, k: Any, v: Any, statistics: tuple[str, ...] = (), **options: Any) -> at.AttentionGradients:
    """Compare with the twin, within the promise of docs/explanation/numerics.md."""
    given = cotangents(q, k, v, statistics, **options)
    found = at.attention_gradients(q, k, v, **given, **options)
    with remembering():
        truth = reference.attention_gradients(q, k, v, **given, **options)
        size = terms(q, k, v, given, **options)
    eps = machine_epsilon(q, k, v)
    of_scores = 4 * eps * float(np.max(size.size, initial=0)) + weight_rounding(q, k, v)
    for name in ARRAYS:
        mine, wanted = getattr(found, name), getattr(truth, name)
        if mine is None:
            continue
        own = {"query": q, "key": k, "value": v}[name]
        assert (mine.shape, mine.dtype) == (own.shape, own.dtype)
        limit = (8 * eps + of_scores) * getattr(size, name)
        excess = np.abs(mine.astype(np.float64) - wanted) - limit
        storage = _storage_eps(mine.dtype) * np.abs(wanted)
        assert (excess <= storage + 1e-300).all(), (name, float(np.max(excess, initial=0)))
    return found


def _storage_eps(dtype: Any) -> float:
    return {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23}.get(np.dtype(dtype).name, 0.0)


@pytest.mark.parametrize("size", [(1, 1), (1, 40), (17, 33), (65, 130), (200, 129)])
def test_masks(size: tuple[int, int]) -> None:
    n_queries, n_keys = size
    q, k, v = random_inputs(1, batch=(2,), heads=2, n_queries=n_queries, n_keys=n_keys, value_dim=9)
    with remembering():
        for name, options in mask_cases(2, 2, n_queries, n_keys).items():
            with case(name):
                check(q, k, v, ("lse", "entropy"), **options)


@pytest.mark.parametrize("statistic", SMOOTH)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_statistics_alone(statistic: str, dtype: str) -> None:
    q, k, v = random_inputs(3, n_queries=40, n_keys=70, dtype=dtype, spread=2)
    check(q, k, v, (statistic,), is_causal=True)
    without = at.attention_gradients(q, k, None, **{f"grad_{statistic}": 1.0}, softcap=2.0)
    twin = reference.attention_gradients(q, k, None, **{f"grad_{statistic}": np.ones((2, 40))}, softcap=2.0)
    assert without.value is None
    for name in ("query", "key"):
        wanted = getattr(twin, name)
        atol = (1e-12 if dtype == "float64" else 2e-5) * np.abs(wanted).max()
        np.testing.assert_allclose(getattr(without, name), wanted, rtol=0, atol=atol)


@pytest.mark.parametrize("n", EDGES)
def test_edges(n: int) -> None:
    for shape in ({"n_queries": n}, {"n_keys": n}, {"head_dim": n}, {"value_dim": n}):
        inputs = random_inputs(4, heads=1, **{"n_queries": 20, "n_keys": 37, "head_dim": 8, **shape})
        check(*inputs, ("entropy",))
        check(*inputs, is_causal=True)


@pytest.mark.parametrize("name", FLOAT_TYPES)
def test_types(name: str) -> None:
    q, k, v = random_inputs(5, n_queries=70, n_keys=100, dtype=name)
    check(q, k, v, ("lse",), is_causal=True)


def test_mixed_types() -> None:
    q, k, v = random_inputs(6)
    found = check(q, k.astype(np.float64), v.astype(np.float16))
    assert (found.query.dtype, found.key.dtype) == (np.float32, np.float64)


def test_strides() -> None:
    q, k, v = random_inputs(9, n_queries=70, n_keys=90)
    check(q[:, ::-1], k[..., ::-1], np.asfortranarray(v), is_causal=True)
    check(q[:, ::2, ::2], k[:, ::-3, ::2], v[:, ::-3])
    check(q, np.broadcast_to(k[:, :1], k.shape), np.broadcast_to(v[..., :1], v.shape))


def test_what_the_forward_pass_has_is_used() -> None:
    q, k, v = random_inputs(16, n_queries=70, n_keys=90)
    given = cotangents(q, k, v, SMOOTH, is_causal=True)
    rows = at.attention_statistics(q, k, v, statistics=(*SMOOTH, "argmax"), is_causal=True)
    plain = at.attention_gradients(q, k, v, **given, is_causal=True)
    saved = at.attention_gradients(q, k, v, **given, forward=rows, is_causal=True)
    same(plain, saved, ARRAYS)
    # A wrong output shows in the gradients: it is not computed again.
    assert rows.output is not None
    wrong = at.AttentionStatistics(rows.output + 1, lse=rows.lse)
    other = at.attention_gradients(q, k, v, **given, forward=wrong, is_causal=True)
    assert not np.array_equal(other.query, plain.query)


def test_bad_arguments() -> None:
    q, k, v = random_inputs(17)
    rows = at.attention_statistics(q, k, v)
    g = rows.output
    mistakes: tuple[tuple[tuple[Any, ...], dict[str, Any], type[Exception], str], ...] = (
        ((q, k, v), {}, ValueError, "grad_output or the gradient of a statistic must be given"),
        ((q, k, None, g), {}, ValueError, "grad_output needs a value"),
        ((q, k, v, g[:1]), {}, ValueError, r"grad_output must have the shape of the output, \(2, 17, 16\)"),
        ((q, k, v, np.ones(g.shape, int)), {}, TypeError, "grad_output must be float64"),
        ((q, k, v), {"grad_lse": np.ones(3)}, ValueError, r"grad_lse must broadcast to \(..., heads, n_quer"),
        ((q[:, :3], k, v, g[:, :3]), {"forward": rows}, ValueError, "forward must be of the same call"),
        ((q, k, v, g), {"forward": 3}, TypeError, "forward must be an AttentionStatistics, got 3"),
    )
    for given, options, error, message in mistakes:
        with pytest.raises(error, match=message):
            at.attention_gradients(*given, **options)


def test_one_number_for_all_heads_in_a_sequence() -> None:
    """Its gradient is summed over the heads that share it and keeps the shape of the parameter."""
    rng = np.random.default_rng(0)
    q, k, v, g = (rng.standard_normal((2, 4, 20, 8)) for _ in range(4))
    shared, one = (
        at.attention_gradients(q, k, v, g, scale=at.laws.PerHead(values)).law for values in ([1.2], 1.2)
    )
    assert shared is not None
    assert one is not None
    assert shared["values"].shape == (1,)
    assert shared["values"][0] == one["values"]


def test_a_law_that_measures_rows_does_so_once_a_call() -> None:
    q, k, v = np.random.default_rng(0).standard_normal((3, 2, 20, 8))
    law = 2.0 * at.laws.AdaptiveTemperature()
    passes = entered(lambda: at.attention_gradients(q, k, v, grad_output=v, scale=law))
    assert (passes.count("attend"), passes.count("gradients")) == (1, 1)
