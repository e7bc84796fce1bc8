# SPDX-License-Identifier: BSD-3-Clause
"""Identities of attention that hold for any input."""

from __future__ import annotations

from typing import Any

import attnscale as at
import numpy as np
from attnscale import reference
from cases import STATISTICS, check, same
from hypothesis import given
from hypothesis import strategies as st

sizes = st.sampled_from([1, 2, 3, 4, 5, 8, 15, 16, 17, 33, 63, 64, 65, 130])
dims = st.sampled_from([1, 2, 5, 8, 16, 17, 40])


@st.composite
def inputs(draw: Any, *, square: bool = False) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    n_queries = draw(sizes)
    n_keys = n_queries if square else draw(sizes)
    head_dim, value_dim, heads = draw(dims), draw(dims), draw(st.integers(1, 3))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    spread = draw(st.sampled_from([0.1, 1.0, 4.0]))
    q = rng.standard_normal((heads, n_queries, head_dim)) * spread
    k, v = rng.standard_normal((heads, n_keys, head_dim)), rng.standard_normal((heads, n_keys, value_dim))
    return q, k, v


@st.composite
def masks(draw: Any, n_queries: int, n_keys: int) -> dict[str, Any]:
    side = st.none() | st.integers(0, 140)
    options: dict[str, Any] = {}
    if draw(st.booleans()):
        options["causal"] = draw(st.sampled_from(["top_left", "bottom_right"]))
    if draw(st.booleans()):
        options["window"] = (draw(side), draw(side))
    if draw(st.booleans()):
        options["key_lengths"] = draw(st.integers(0, n_keys))
    if draw(st.booleans()):
        rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
        keep = rng.random((n_queries, n_keys)) < draw(st.sampled_from([0.05, 0.5, 0.95]))
        bias = np.where(keep, rng.standard_normal(keep.shape), -np.inf)
        options["attn_mask"] = keep if draw(st.booleans()) else bias
    if draw(st.booleans()):
        options["softcap"] = draw(st.sampled_from([0.5, 5.0, 50.0]))
    return options


@given(st.data())
def test_any_masks_together_agree_with_the_twin(data: Any) -> None:
    q, k, v = data.draw(inputs())
    options = data.draw(masks(q.shape[-2], k.shape[-2]))
    check(q, k, v, **options)
    check(*(x.astype(np.float32) for x in (q, k, v)), **options)


@given(inputs())
def test_weights_sum_to_one(arrays: Any) -> None:
    q, k, v = arrays
    np.testing.assert_allclose(at.attention(q, k, np.ones_like(v)), 1, rtol=1e-14)


@given(inputs(), st.floats(-50, 50).filter(lambda shift: shift != 1))  # a mask of 1 is worth a warning
def test_a_constant_bias_shifts_lse_and_nothing_else(arrays: Any, shift: float) -> None:
    q, k, v = arrays
    plain = at.attention_statistics(q, k, v, statistics=STATISTICS)
    moved = at.attention_statistics(q, k, v, statistics=STATISTICS, attn_mask=np.array(shift))
    near = {"rtol": 1e-11, "atol": 1e-11}
    same(moved, plain, ("output", "entropy", "score_variance", "concentration", "max_weight"), **near)
    for name in ("lse", "max_score", "mean_score"):
        np.testing.assert_allclose(getattr(moved, name), getattr(plain, name) + shift, **near, err_msg=name)


@given(inputs(), st.randoms(use_true_random=False))
def test_the_order_of_keys_does_not_matter(arrays: Any, random: Any) -> None:
    q, k, v = arrays
    order = list(range(k.shape[-2]))
    random.shuffle(order)
    plain = at.attention_statistics(q, k, v, statistics=STATISTICS)
    mixed = at.attention_statistics(q, k[:, order], v[:, order], statistics=STATISTICS)
    same(mixed, plain, {"output", *STATISTICS} - {"argmax"}, rtol=1e-11, atol=1e-11)
    np.testing.assert_array_equal(np.take(order, mixed.argmax), plain.argmax)


@given(inputs(square=True), st.integers(0, 1000))
def test_a_window_of_all_keys_to_the_left_is_causal(arrays: Any, more: int) -> None:
    q, k, v = arrays
    one = at.attention_statistics(q, k, v, window=(q.shape[-2] + more, 0), scale="log_n")
    two = at.attention_statistics(q, k, v, is_causal=True, scale="log_n")
    same(one, two, ("output", "entropy"))


@given(st.data())
def test_entropy_lies_between_0_and_ln_n(data: Any) -> None:
    q, k, _ = data.draw(inputs())
    options = data.draw(masks(q.shape[-2], k.shape[-2]))
    for dtype, slack in ((np.float64, 1e-12), (np.float32, 2e-6)):
        options["statistics"] = ("entropy", "n_visible", "concentration")
        rows = at.attention_statistics(q.astype(dtype), k.astype(dtype), **options)
        assert (rows.entropy >= 0).all()
        assert (rows.entropy <= np.log(np.maximum(rows.n_visible, 1)) + slack).all()
        some = rows.n_visible > 0
        assert (rows.concentration[some] <= 1 + slack).all()
        assert (rows.concentration[some] * rows.n_visible[some] >= 1 - 8 * slack).all()


@given(inputs(), st.floats(-2, 2, allow_subnormal=False))
def test_entropy_is_even_in_reversed_queries(arrays: Any, scale: float) -> None:
    q, k, _ = arrays
    reversed_ = at.attention_entropy(-q, k, scale=-scale)
    np.testing.assert_array_equal(at.attention_entropy(q, k, scale=scale), reversed_)


@given(inputs(), st.lists(st.floats(0, 3, allow_subnormal=False), min_size=2, max_size=6))
def test_entropy_falls_in_the_scale(arrays: Any, scales: list[float]) -> None:
    """T4: dH/da = -a Var_p(x) <= 0."""
    q, k, _ = arrays
    curve = at.entropy_curve(q, k, sorted(scales))
    assert (np.diff(curve.entropy, axis=-1) <= 1e-11).all()
    assert (np.diff(curve.mean, axis=-1) >= -1e-9).all()


@given(st.data())
def test_tile_classes_agree_with_the_definition(data: Any) -> None:
    """Each row counts the keys that it sees by definition, also where tiles are skipped or unmasked."""
    n_queries, n_keys = data.draw(sizes), data.draw(sizes)
    options = data.draw(masks(n_queries, n_keys))
    options.pop("softcap", None)
    q, k = np.zeros((n_queries, 1), np.float32), np.zeros((n_keys, 1), np.float32)
    rows = at.attention_statistics(q, k, statistics=("n_visible", "concentration"), **options)
    wanted = reference.visible((n_queries, n_keys), **options).sum(-1)
    np.testing.assert_array_equal(rows.n_visible, wanted)
    if options.get("attn_mask", np.array(True)).dtype == bool:
        some = wanted > 0
        np.testing.assert_allclose(rows.concentration[some], 1 / wanted[some], rtol=1e-5)
