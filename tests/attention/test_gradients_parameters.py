# SPDX-License-Identifier: BSD-3-Clause
"""Gradients of masks and tables of the distance, and of rows of other normalizers."""

from __future__ import annotations

from typing import Any

import attnscale as at
import numpy as np
import pytest
from attnscale import normalizers as N
from attnscale import reference
from cases import case, random_inputs, remembering, same_bits

pytestmark = pytest.mark.levels

ARRAYS = ("query", "key", "value")
ROWS = [N.Sigmoid(), N.Sigmoid(0.3), N.ReLU(), N.ReLU("sum"), N.SquaredReLU(), N.SquaredReLU("sum")]
ROWS += [N.Softpick(), N.Softpick(0.5), N.Sparsemax(), N.Entmax(1.5), N.Entmax(1.3)]
ROWS += [N.TopK(k) for k in (1, 7, 150)]
SPARSE = [N.Sparsemax(), N.Entmax(1.5), N.Entmax(2.5), N.TopK(4), N.TopK(90)]


def near(mine: Any, wanted: Any, dtype: str, size: float = 1e-300) -> None:
    """Compare to within rounding of the largest entry, or of `size` where entries are sums that cancel."""
    assert mine is not None
    assert mine.shape == np.shape(wanted)
    atol = (1e-12 if dtype == "float64" else 5e-6) * np.abs(wanted).max(initial=size)
    np.testing.assert_allclose(mine, wanted, rtol=0, atol=atol)


def of_the_twin_and_of_threads(arrays: tuple[Any, ...], dtype: str, options: dict[str, Any]) -> None:
    """Gradients are those of the twin, with the same bits for one thread and three."""
    one, three = (at.attention_gradients(*arrays, num_threads=n, **options) for n in (1, 3))
    truth = reference.attention_gradients(*(x.astype(np.float64) for x in arrays), **options)
    for name in ARRAYS:
        near(getattr(one, name), getattr(truth, name), dtype)
    same_bits(one, three)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "shape",
    [
        (2, 3, 70, 200),
        (3, 70, 200),
        (1, 1, 70, 200),
        (70, 200),
        (200,),
        (2, 1, 1, 200),
        (70, 1),
        (3, 1, 1),
        (),
    ],
)
def test_float_masks(shape: tuple[int, ...], dtype: str) -> None:
    """Gradients are summed over the axes that the mask broadcasts along, and 0 where it hides the key."""
    q, k, v = random_inputs(1, batch=(2,), heads=3, n_queries=70, n_keys=200, head_dim=8, dtype=dtype)
    rng = np.random.default_rng(2)
    mask = rng.standard_normal(shape)
    if mask.ndim:
        mask[rng.random(shape) < 0.2] = -np.inf
    g, g_h = rng.standard_normal(q.shape).astype(dtype), rng.standard_normal((2, 3, 70))
    options = {"attn_mask": mask, "is_causal": True, "softcap": 2.0}
    with remembering():
        truth = reference.attention_gradients(q, k, v, g, grad_lse=g_h, **options)
    repeated = tuple(i for i, n in enumerate((1,) * (4 - mask.ndim) + shape) if n == 1)
    options |= {"grad_lse": g_h, "wanted": ("attn_mask", "query")}
    runs = [at.attention_gradients(q, k, v, g, num_threads=threads, **options) for threads in (1, 2, 5)]
    near(runs[0].attn_mask, truth.attn_mask.sum(repeated).reshape(shape), dtype)
    near(runs[0].query, truth.query, dtype)
    assert runs[0].key is None
    for run in runs[1:]:
        assert run.attn_mask.tobytes() == runs[0].attn_mask.tobytes()
    if mask.ndim:
        np.testing.assert_array_equal(runs[0].attn_mask[np.isneginf(mask)], 0)


def test_masks_of_other_types_keep_them() -> None:
    q, k, v = random_inputs(3)
    for dtype in (np.float16, np.float64):
        mask = np.random.default_rng(0).standard_normal((17, 33)).astype(dtype)
        found = at.attention_gradients(q, k, v, np.ones_like(q), wanted="attn_mask", attn_mask=mask)
        assert found.attn_mask is not None
        assert found.attn_mask.dtype == dtype
    boolean = at.attention_gradients(q, k, v, np.ones_like(q), wanted="attn_mask", attn_mask=mask > 0)
    assert boolean.attn_mask is None


def test_functions_and_laws_of_the_distance() -> None:
    """The gradient is that of the numbers that the function returned, the law's among them."""
    inputs = random_inputs(6, heads=2, n_queries=9, n_keys=12, head_dim=5, dtype="float64")
    g = np.random.default_rng(0).standard_normal(inputs[0].shape)
    numbers = np.random.default_rng(1).uniform(0.5, 1.5, 20)
    options: dict[str, Any] = {"distance_scale": lambda t: numbers[: len(t)], "scale": "scale_invariant"}
    found = at.attention_gradients(*inputs, g, wanted="distance_scale", **options)
    assert found.distance_scale is not None
    assert found.scale is None
    for i in (0, 7, 19):
        moved = []
        for sign in (1, -1):
            numbers[i] += sign * 1e-5
            moved.append((g * at.attention(*inputs, **options)).sum())
            numbers[i] -= sign * 1e-5
        slope = (moved[0] - moved[1]) / 2e-5
        np.testing.assert_allclose(found.distance_scale[i], slope, rtol=1e-6, atol=1e-8)


def test_tables_have_the_same_bits_for_any_number_of_threads() -> None:
    q, k, v = random_inputs(7, heads=3, n_queries=300, n_keys=400, head_dim=8)
    options: dict[str, Any] = {"wanted": ("distance_bias", "key"), "distance_bias": np.linspace(0, 1, 400)}
    g = np.ones_like(q)
    one, *others = (at.attention_gradients(q, k, v, g, num_threads=n, **options) for n in (1, 2, 7))
    for other in others:
        same_bits(one, other, options["wanted"])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("rule", ROWS, ids=repr)
def test_other_normalizers(rule: N.Normalizer, dtype: str) -> None:
    q, k, v = random_inputs(8, n_queries=150, n_keys=260, head_dim=8, value_dim=6, dtype=dtype)
    g = np.random.default_rng(1).standard_normal((2, 150, 6)).astype(dtype)
    for more in ({}, {"causal": "bottom_right", "softcap": 2.0}, {"window": (30, 3), "scale": -0.4}):
        options: dict[str, Any] = {"normalizer": rule, "scale": np.float64(0.5), **more}
        with case(more):
            found = at.attention_gradients(q, k, v, g, **options)
            with remembering():
                truth = reference.attention_gradients(q, k, v, g, **options)
            for name in ARRAYS:
                near(getattr(found, name), getattr(truth, name), dtype)
            near(found.scale, truth.scale.sum(), dtype, np.abs(truth.query * q).sum())
            rows = at.attention_statistics(q, k, v, statistics=(), **options)
            saved = at.attention_gradients(q, k, v, g, forward=rows, num_threads=3, **options)
            np.testing.assert_array_equal(saved.key, found.key)


@pytest.mark.parametrize("rule", SPARSE, ids=repr)
@pytest.mark.parametrize("spread", [0.01, 1.0, 30.0])
def test_thresholds(rule: N.Normalizer, spread: float) -> None:
    """Dense and sparse rows, tiles without a weight, a row without keys, equal scores."""
    q, k, v = random_inputs(11, n_queries=75, n_keys=500, head_dim=8, dtype="float64", spread=spread)
    k[:, 450:470] = k[:, :1]
    q[0, 7] = 0
    seen = np.ones((75, 500), bool)
    seen[3], seen[:, 44] = False, False
    g = np.random.default_rng(1).standard_normal(q.shape)
    for options in ({}, {"attn_mask": seen}, {"is_causal": True}):
        found = at.attention_gradients(q, k, v, g, normalizer=rule, **options)
        with remembering():
            truth = reference.attention_gradients(q, k, v, g, normalizer=rule, **options)
        for name in ARRAYS:
            wanted = getattr(truth, name)
            np.testing.assert_allclose(getattr(found, name), wanted, rtol=0, atol=1e-9 * np.abs(wanted).max())


@pytest.mark.parametrize("dtype", ["float32", "float64"])
# Beyond alpha = 2 a weight is a root of the distance to the threshold: float32 keeps half of its digits.
@pytest.mark.parametrize("rule", [N.Sparsemax(), N.Entmax(1.5), N.TopK(4), N.TopK(90)], ids=repr)
def test_masks_and_tables_of_sparse_rows(rule: N.Normalizer, dtype: str) -> None:
    q, k, v = random_inputs(
        12, heads=2, n_queries=70, n_keys=210, head_dim=8, value_dim=19, dtype=dtype, spread=2.0
    )
    rng = np.random.default_rng(3)
    g, mask = rng.standard_normal((2, 70, 19)).astype(dtype), rng.standard_normal((70, 210))
    mask[rng.random(mask.shape) < 0.2] = -np.inf
    options = {"attn_mask": mask, "normalizer": rule, "distance_bias": np.linspace(0, -1, 250)}
    found = at.attention_gradients(q, k, v, g, wanted=("attn_mask", "distance_bias"), **options)
    truth = reference.attention_gradients(q, k, v, g, **options)
    near(found.attn_mask, truth.attn_mask.sum(0), dtype)
    distance = np.abs(np.arange(70)[:, None] - np.arange(210))
    by_distance = [truth.attn_mask[:, distance == i].sum() for i in range(250)]
    near(found.distance_bias, np.array(by_distance), dtype, np.abs(truth.attn_mask).sum())


def test_few_equal_keys_of_top_k() -> None:
    """Among equal scores, the first keys get the gradient, as they get the weight."""
    q, k, v = random_inputs(13, n_queries=90, n_keys=400, head_dim=16)
    k[:] = k[:, :1]
    found = at.attention_gradients(q, k, v, np.ones_like(q), normalizer=N.TopK(5))
    assert found.value is not None
    np.testing.assert_array_equal(found.value[:, 5:], 0)
    np.testing.assert_allclose(found.value[:, :5], 90 / 5, rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_supports_without_room_come_in_parts(dtype: str) -> None:
    """With equal scores every row keeps every key, more than a block of rows has room for."""
    q, k, v = random_inputs(14, n_queries=130, n_keys=5000, head_dim=4, dtype=dtype, spread=0.01)
    q[0, 3] = 90.0  # and one row that keeps few
    g = np.random.default_rng(1).standard_normal(q.shape).astype(dtype)
    of_the_twin_and_of_threads((q, k, v, g), dtype, {"normalizer": "entmax15"})


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "rule", [N.Sparsemax(), N.Entmax(1.5), N.Entmax(1.3), N.TopK(90), N.TopK(400)], ids=repr
)
@pytest.mark.parametrize("options", [{}, {"causal": "bottom_right"}, {"softcap": 3.0}], ids=repr)
def test_rows_of_many_keys_beside_rows_of_few(
    rule: N.Normalizer, options: dict[str, Any], dtype: str
) -> None:
    """Scales from flat to sharp: dense and sparse rows in one vector, and apart."""
    q, k, v = random_inputs(16, n_queries=150, n_keys=420, head_dim=9, dtype=dtype)
    rng = np.random.default_rng(2)
    scale = np.exp(rng.uniform(-8, 1, q.shape[:-1]))
    scale[:, :48] = 1e-3
    scale[:, 100:] = 2.0
    g = rng.standard_normal(q.shape).astype(dtype)
    of_the_twin_and_of_threads((q, k, v, g), dtype, {"normalizer": rule, "scale": scale, **options})


@pytest.mark.parametrize("rule", SPARSE, ids=repr)
@pytest.mark.parametrize(
    "shape",
    [
        {"heads": 1, "n_queries": 700, "n_keys": 900},
        {"heads": 6, "kv_heads": 2, "n_queries": 300, "n_keys": 500},
    ],
    ids=["one head", "groups"],
)
def test_sparse_rows_have_the_same_bits_for_any_number_of_threads(
    rule: N.Normalizer, shape: dict[str, int]
) -> None:
    q, k, v = random_inputs(15, head_dim=24, **shape)
    options = {"normalizer": rule, "enable_gqa": "kv_heads" in shape, "causal": 3}
    g = np.random.default_rng(1).standard_normal(q.shape).astype(np.float32)
    one = at.attention_gradients(q, k, v, g, num_threads=1, **options)
    for threads in (2, 5):
        same_bits(one, at.attention_gradients(q, k, v, g, num_threads=threads, **options))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("alpha", [1.02, 1.2, 1.5, 2.0, 2.4])
@pytest.mark.parametrize("spread", [0.02, 1.0])
def test_alpha_of_entmax(alpha: float, spread: float, dtype: str) -> None:
    q, k, v = random_inputs(17, heads=2, n_queries=40, n_keys=210, head_dim=8, dtype=dtype, spread=spread)
    g = np.random.default_rng(1).standard_normal(q.shape).astype(dtype)
    options = {"normalizer": N.Entmax(alpha), "causal": 60}
    found = at.attention_gradients(q, k, v, g, **options)
    truth = reference.attention_gradients(q, k, v, g, **options)
    size = np.abs(truth.alpha).sum()
    assert found.alpha is not None
    atol = size * (1e-9 if dtype == "float64" else 1e-4)
    np.testing.assert_allclose(found.alpha, truth.alpha.sum(), rtol=0, atol=atol)

    def loss(at_alpha: float) -> float:
        rows = reference.attention(q, k, v, **{**options, "normalizer": N.Entmax(at_alpha)})
        return float((g * rows).sum())

    if dtype == "float64":  # the twin computes in float64 for every type
        step = 1e-6
        measured = (loss(alpha + step) - loss(alpha - step)) / (2 * step)
        np.testing.assert_allclose(truth.alpha.sum(), measured, rtol=0, atol=1e-4 * size)
    assert at.attention_gradients(q, k, v, g, wanted="key", **options).alpha is None


@pytest.mark.parametrize(
    ("array", "rules"), [("query", ROWS), ("key", ROWS), ("value", SPARSE), ("grad_output", SPARSE)]
)
@pytest.mark.parametrize(
    ("n_keys", "options"),
    [(100, {"is_causal": True}), (260, {"causal": "bottom_right", "scale": 1e-3})],
    ids=["few keys", "many keys"],
)
def test_nan_in_rows_of_other_normalizers(
    array: str, rules: list[N.Normalizer], n_keys: int, options: dict[str, Any]
) -> None:
    q, k, v = random_inputs(9, heads=2, n_queries=80, n_keys=n_keys, head_dim=9, value_dim=5)
    arrays = {"query": q, "key": k, "value": v, "grad_output": np.ones((2, 80, 5), np.float32)}
    arrays[array][1, 33, 2] = np.nan
    for rule in rules:
        found = at.attention_gradients(**arrays, normalizer=rule, **options)
        with remembering():
            truth = reference.attention_gradients(**arrays, normalizer=rule, **options)
        for each in ARRAYS:
            with case(rule, each):
                np.testing.assert_array_equal(np.isnan(getattr(found, each)), np.isnan(getattr(truth, each)))


def test_what_has_no_gradient_says_so() -> None:
    q, k, v = random_inputs(10)
    g = np.ones_like(q)
    with pytest.raises(ValueError, match=r"rows of TopK\(k=2\) have the gradient of the output alone"):
        at.attention_gradients(q, k, v, g, normalizer="top_k(k=2)", grad_lse=1.0)
    with pytest.raises(ValueError, match=r"rows of ReLU\(.*\) have the gradient of the output alone"):
        at.attention_gradients(q, k, v, g, normalizer="relu", grad_max_score=1.0)
    with pytest.raises(ValueError, match=r"wanted must be among query, key, value, .* got 'mask'"):
        at.attention_gradients(q, k, v, g, wanted=("mask",))


def test_a_table_without_pairs_has_a_gradient_of_zeros() -> None:
    q, k, v = np.ones((2, 0, 8)), np.ones((2, 9, 8)), np.ones((2, 9, 8))
    options = {"distance_scale": np.ones((2, 30)), "distance_bias": lambda t: 0.1 * t}
    wanted = tuple(options)
    found = at.attention_gradients(q, k, v, q, wanted=wanted, **options)
    np.testing.assert_array_equal(found.distance_scale, np.zeros((2, 30)))
    assert found.distance_bias is not None
    assert not found.distance_bias.any()


@pytest.mark.parametrize("logits", [0.5, [0.5]])
def test_a_sink_of_a_query_without_heads(logits: Any) -> None:
    q, k, v = np.random.default_rng(0).standard_normal((3, 9, 8))
    found = at.attention_gradients(q, k, v, v, normalizer=N.Sink(logits)).sink
    wanted = at.attention_gradients(q[None], k[None], v[None], v[None], normalizer=N.Sink(0.5)).sink
    assert found is not None
    assert found.shape == np.shape(logits)
    assert found.ravel() == wanted


def test_a_sink_without_rows_has_a_gradient_of_zeros() -> None:
    q = np.ones((0, 2, 9, 8))
    found = at.attention_gradients(q, q, q, q, normalizer=N.Sink([0.5, 0.3])).sink
    np.testing.assert_array_equal(found, [0, 0])


@pytest.mark.parametrize("dtype", [">f8", ">f4", ">f2"])
def test_a_gradient_of_the_output_in_a_foreign_byte_order(dtype: str) -> None:
    q, k, v = np.random.default_rng(0).standard_normal((3, 2, 9, 8))
    g = v.astype(dtype)
    found, wanted = (at.attention_gradients(q, k, v, x) for x in (g, g.astype(g.dtype.newbyteorder("="))))
    assert found.query.tobytes() == wanted.query.tobytes()
    with pytest.raises(TypeError, match=r"grad_output must be float64.* got int64; use grad_output.astype"):
        at.attention_gradients(q, k, v, np.ones(v.shape, np.int64))
