# SPDX-License-Identifier: BSD-3-Clause
"""The backward pass against the oracle of the fuzzer: every option, every statistic, every type."""

from __future__ import annotations

from typing import Any

import attnscale as at
import numpy as np
import pytest
from attnscale import reference
from cases import EDGES, FLOAT_TYPES, SMOOTH, case, entered, mask_cases, random_inputs

from tools.fuzz.check_gradients import expected
from tools.fuzz.compare import Findings

pytestmark = pytest.mark.levels

ARRAYS = ("query", "key", "value")


def cotangents(q: Any, k: Any, v: Any, statistics: tuple[str, ...], **options: Any) -> dict[str, Any]:
    """grad_output of the inputs' type, and the gradients of some statistics."""
    rng = np.random.default_rng(99)
    rows = at.attention_statistics(q, k, v, statistics="n_visible", **options)
    assert rows.output is not None
    given = {f"grad_{name}": rng.standard_normal(rows.n_visible.shape) for name in statistics}
    return {"grad_output": rng.standard_normal(rows.output.shape).astype(rows.output.dtype), **given}


def check(q: Any, k: Any, v: Any, statistics: tuple[str, ...] = (), **options: Any) -> at.AttentionGradients:
    """Within what the oracle of the fuzzer allows."""
    given = cotangents(q, k, v, statistics, **options)
    found = at.attention_gradients(q, k, v, **given, **options)
    of_rows = {name: given[f"grad_{name}"] for name in statistics}
    drawn = {"arrays": {"query": {"profile": "normal"}}, "output": True, "forward": None}
    findings = Findings()
    with np.errstate(all="ignore"):
        truth = expected(drawn, [q, k, v, given["grad_output"]], options, of_rows).found
        for name in ARRAYS:
            seen, (wanted, limit, free, dtype) = getattr(found, name), truth[name]
            if findings.shaped(name, seen, wanted.shape, dtype):
                findings.close(name, seen, wanted, limit, free=free)
    assert findings.faults == []
    return found


@pytest.mark.parametrize("size", [(1, 1), (1, 40), (17, 33), (65, 130), (200, 129)])
def test_masks(size: tuple[int, int]) -> None:
    n_queries, n_keys = size
    q, k, v = random_inputs(1, batch=(2,), heads=2, n_queries=n_queries, n_keys=n_keys, value_dim=9)
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
    for name in ("query", "key", "value"):
        np.testing.assert_array_equal(getattr(plain, name), getattr(saved, name))
    # And not computed again: a wrong output shows.
    assert rows.output is not None
    wrong = at.AttentionStatistics(rows.output + 1, lse=rows.lse)
    other = at.attention_gradients(q, k, v, **given, forward=wrong, is_causal=True)
    assert not np.array_equal(other.query, plain.query)


def test_bad_arguments() -> None:
    q, k, v = random_inputs(17)
    rows = at.attention_statistics(q, k, v)
    with pytest.raises(ValueError, match="grad_output or the gradient of a statistic must be given"):
        at.attention_gradients(q, k, v)
    with pytest.raises(ValueError, match="grad_output needs a value"):
        at.attention_gradients(q, k, None, rows.output)
    with pytest.raises(ValueError, match=r"grad_output must have the shape of the output, \(2, 17, 16\)"):
        at.attention_gradients(q, k, v, rows.output[:1])
    with pytest.raises(TypeError, match="grad_output must be float64"):
        at.attention_gradients(q, k, v, np.ones(rows.output.shape, int))
    with pytest.raises(ValueError, match=r"grad_lse must broadcast to \(..., heads, n_queries\)"):
        at.attention_gradients(q, k, v, grad_lse=np.ones(3))
    with pytest.raises(ValueError, match="forward must be of the same call"):
        at.attention_gradients(q[:, :3], k, v, rows.output[:, :3], forward=rows)
    with pytest.raises(TypeError, match="forward must be an AttentionStatistics, got 3"):
        at.attention_gradients(q, k, v, rows.output, forward=3)


def test_one_number_for_all_heads_in_a_sequence() -> None:
    """It is summed over the heads that share it, and keeps the shape of the parameter."""
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
