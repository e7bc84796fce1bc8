# SPDX-License-Identifier: BSD-3-Clause
"""kattention on the exact kernel against its definition pair by pair, and its constants (T29, T30)."""

from __future__ import annotations

import tracemalloc

import attnscale as at
import numpy as np
import pytest
from attnscale import reference, theory
from attnscale.variants import kattention, kattention_heads, kattention_statistics
from cases import EDGES, check_statistics, dtype_of, mask_cases, random_inputs

pytestmark = pytest.mark.levels


def biases(heads: int, head_dim: int) -> np.ndarray:
    return np.random.default_rng(5).standard_normal((heads, head_dim))


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("with_bias", [False, True])
def test_is_a_gaussian_kernel(dtype, with_bias):
    """T29: the same weights as -scale |q + b - k|^2 / 2."""
    q, k, v = random_inputs(1, batch=(2,), heads=3, dtype=dtype)
    b = biases(3, 16).astype(q.dtype) if with_bias else None
    seen = kattention_heads(q, k, v, bias=b, scale=0.3)
    wide = [x.astype(np.float64) for x in (q, k, v)]
    truth = reference.kattention_heads(*wide, bias=0.0 if b is None else b.astype(np.float64), scale=0.3)
    assert seen.dtype == dtype_of(dtype)
    limit = {"float64": 1e-13, "float32": 3e-5, "float16": 4e-3, "bfloat16": 3e-2}[dtype]
    np.testing.assert_allclose(seen.astype(np.float64), truth, atol=limit)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_16_bit_bias_is_added_in_32_bits(dtype):
    """The sum is not rounded to the type that both are stored in."""
    q, k, v = random_inputs(17, heads=1, n_queries=60, n_keys=23, head_dim=31, dtype=dtype)
    b = (3 * np.random.default_rng(3).standard_normal(31)).astype(q.dtype)
    wide = [x.astype(np.float32) for x in (q, k, v, b)]
    truth = kattention_heads(*wide[:3], bias=wide[3], scale=1.0)
    seen = kattention_heads(q, k, v, bias=b, scale=1.0)
    np.testing.assert_array_equal(seen, truth.astype(q.dtype))


@pytest.mark.parametrize("n", EDGES)
def test_sizes(n):
    q, k, v = random_inputs(2, n_queries=5, n_keys=n, dtype="float64")
    truth = reference.kattention_heads(q, k, v, scale=1.0) if n else np.zeros((2, 5, 16))
    np.testing.assert_allclose(kattention_heads(q, k, v, scale=1.0), truth, atol=1e-12)


@pytest.mark.parametrize("name", mask_cases(2, 2, 17, 33))
def test_masks_and_laws(name):
    """Every option of the kernel, against the whole score written out as a mask on zero queries."""
    options = mask_cases(2, 2, 17, 33)[name]
    q, k, v = random_inputs(3, batch=(2,), dtype="float64")
    scale = 0.5
    options.pop("scale", None)
    scores = np.einsum("...id,...jd->...ij", q, k) - 0.5 * (k * k).sum(-1)[..., None, :]
    bias = options.get("attn_mask")
    cap = options.get("softcap")
    masked = scale * scores if cap is None else cap * np.tanh(scale * scores / cap)
    if bias is not None:
        masked = np.where(bias, masked, -np.inf) if bias.dtype == bool else masked + bias
    rest = {**options, "attn_mask": masked, "softcap": None}
    names = ("lse", "entropy", "max_score", "mean_score", "score_variance", "concentration", "n_visible")
    names += ("argmax", "max_weight")
    truth = reference.attention_statistics(0 * q, 0 * k, v, **rest)
    rows = kattention_statistics(q, k, v, scale=scale, statistics=names, **options)
    limits = dict.fromkeys(names, 1e-10)
    check_statistics(rows, truth, type("Limits", (), limits))
    np.testing.assert_array_equal(rows.argmax, truth.argmax)
    np.testing.assert_allclose(rows.output, truth.output, atol=1e-12)


def test_groups_of_heads_and_the_other_layout():
    q, k, v = random_inputs(6, batch=(2,), heads=4, kv_heads=2, dtype="float64")
    b = biases(4, 16)
    seen = kattention_heads(q, k, v, bias=b, enable_gqa=True, is_causal=True)
    repeated = kattention_heads(q, k.repeat(2, 1), v.repeat(2, 1), bias=b, is_causal=True)
    np.testing.assert_allclose(seen, repeated, atol=1e-13)
    swapped = (x.swapaxes(1, 2) for x in (q, k, v))
    other = kattention_heads(*swapped, bias=b, enable_gqa=True, is_causal=True, layout="bshd")
    np.testing.assert_array_equal(other.swapaxes(1, 2), seen)


def test_laws_see_the_callers_head_dim():
    """The channel that carries |k|^2 is not one of the head's."""
    q, k, v = random_inputs(7, dtype="float64")
    for law in ("log_n", "mup", "scale_invariant"):
        scale = at.laws.get(law)
        if law == "scale_invariant":
            t = np.abs(np.arange(17)[:, None] - np.arange(33))
            b = -0.5 * (k * k).sum(-1)[..., None, :] + np.einsum("...id,...jd->...ij", q, k)
            truth = reference.attention(0 * q, 0 * k, v, attn_mask=scale.scale(t, 16) * b + scale.bias(t))
        else:
            truth = kattention_heads(q, k, v, scale=float(scale.scale(33, 16)))
        np.testing.assert_allclose(kattention_heads(q, k, v, scale=law), truth, atol=1e-13)
    for law in ("adaptive_temperature", "critical_scale"):
        with pytest.raises(ValueError, match="measures rows of dot products"):
            kattention_heads(q, k, v, scale=law)


def test_laws_of_heads_without_channels_and_of_documents(monkeypatch):
    monkeypatch.setattr(at.laws._registry, "_functions", {})
    at.laws.register("of_distance", n_means="query-key distance")(lambda n, d: (1 + n) / d)
    q, k, v = random_inputs(20, n_keys=20, n_queries=20, dtype="float64")
    for law in ("mup", at.laws.MuP()):
        np.testing.assert_allclose(kattention_heads(q[..., :0], k[..., :0], v, scale=law)[0, 0], v[0].mean(0))
    t = np.abs(np.arange(20)[:, None] - np.arange(20))
    b = np.einsum("...id,...jd->...ij", q, k) - 0.5 * (k * k).sum(-1)[..., None, :]
    truth = reference.attention(0 * q, 0 * k, v, attn_mask=(1 + t) / 16 * b)
    np.testing.assert_allclose(kattention_heads(q, k, v, scale="of_distance"), truth, atol=1e-12)
    packed = kattention_heads(q, k, v, scale="log_n", document_ids=np.arange(20) // 12)
    first, second = (
        kattention_heads(*(x[..., part, :] for x in (q, k, v)), scale="log_n")
        for part in (slice(0, 12), slice(12, 20))
    )
    np.testing.assert_allclose(packed, np.concatenate([first, second], axis=-2), atol=1e-13)
    with pytest.raises(ValueError, match="law 'yarn' acts on the rotated channels only"):
        kattention_heads(q, k, v, scale=at.laws.YaRN(16))
    with pytest.raises(ValueError, match=r"the scale of PerHead\(values=\(1.0, 2.0, 3.0\)\) must broadcast"):
        kattention_heads(q, k, v, scale=at.laws.PerHead([1, 2, 3]))


@pytest.mark.parametrize("normalizer", ["sparsemax", "entmax15", "softmax_1"])
def test_normalizers_and_lengths(normalizer):
    q, k, v = random_inputs(17, dtype="float64")
    b = biases(2, 16)
    unit = [x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (q, k)]
    score = np.einsum("...id,...jd->...ij", unit[0] + b[:, None], unit[1]) - 0.5
    truth = reference.attention(0 * q, 0 * k, v, attn_mask=4 * score, normalizer=normalizer)
    seen = kattention_heads(q, k, v, bias=b, scale=4.0, normalizer=normalizer, qk_norm="l2")
    np.testing.assert_allclose(seen, truth, atol=1e-12)


def test_the_default_scale_comes_from_the_head():
    q, k, v = random_inputs(8, dtype="float64")
    np.testing.assert_array_equal(kattention_heads(q, k, v), kattention_heads(q, k, v, scale=0.25))


def test_lse_is_less_by_a_term_of_the_row():
    q, k, _ = random_inputs(9, dtype="float64")
    b = biases(2, 16)
    rows = kattention_statistics(q, k, bias=b, scale=0.7)
    p = q + b[:, None]
    distance = ((p[:, :, None] - k[:, None]) ** 2).sum(-1)
    lse = np.log(np.exp(-0.35 * distance).sum(-1))
    np.testing.assert_allclose(rows.lse - 0.35 * (p * p).sum(-1), lse, atol=1e-12)


def test_memory_does_not_grow_with_the_matrix():
    q, k, v = random_inputs(10, heads=1, n_queries=8192, n_keys=8192, head_dim=8)
    tracemalloc.start()
    kattention_heads(q, k, v, scale=1.0, num_threads=1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * q.nbytes  # 9 channels of queries and keys, the output; the matrix is 256 MiB


@pytest.mark.parametrize("beta", [0.2, 3.0])
def test_the_articles_form(beta):
    rng = np.random.default_rng(11)
    x, q, k = rng.standard_normal((20, 6)), *rng.standard_normal((2, 4, 6))
    b = rng.standard_normal(4)
    truth = reference.kattention(x, q, k, b, beta)
    np.testing.assert_allclose(kattention(x, q, k, b, beta), truth, atol=1e-13)
    batched = kattention(np.stack([x, 2 * x]), q, k, b, beta)
    np.testing.assert_allclose(batched[0], truth, atol=1e-13)
    heads = kattention(x, np.stack([q, k]), np.stack([k, q]), np.stack([b, 0 * b]), beta)
    assert heads.shape == (2, 20, 6)
    np.testing.assert_allclose(heads[0], truth, atol=1e-13)
    np.testing.assert_allclose(heads[1], reference.kattention(x, k, q, 0.0, beta), atol=1e-13)
    short = kattention(np.stack([x, 2 * x]), q, k, b, beta, key_lengths=np.array([7, 20]))
    np.testing.assert_allclose(short[0, :7], reference.kattention(x[:7], q, k, b, beta), atol=1e-13)


def test_half_precision_keeps_its_type():
    x = np.random.default_rng(12).standard_normal((30, 6)).astype(np.float16)
    seen = kattention(x, np.eye(6, dtype=np.float32), np.eye(6, dtype=np.float32))
    assert seen.dtype == np.float16
    truth = reference.kattention(x.astype(np.float64), np.eye(6), np.eye(6), 0.0, 1.0)
    np.testing.assert_allclose(seen.astype(np.float64), truth, atol=2e-3)


def test_a_broken_hidden_key_reaches_no_row():
    q, k, v = random_inputs(13, dtype="float64")
    k[:, 20:] = np.nan
    v[:, 20:] = np.nan
    seen = kattention_heads(q, k, v, scale=1.0, key_lengths=20)
    np.testing.assert_allclose(seen, kattention_heads(q, k[:, :20], v[:, :20], scale=1.0), atol=1e-14)
    assert np.isnan(kattention_heads(q, k, v, scale=1.0)).all()


def test_long_keys_do_not_take_the_row():
    """The dot product gives the longest key everything; f4 gives it nothing."""
    q, k, _ = random_inputs(14, heads=1, dtype="float64")
    k[0, 3] = 1000 * q[0].mean(0)
    assert (at.attention_statistics(q[:, :1], k, scale=1.0, statistics=("argmax",)).argmax == 3).all()
    away = kattention_statistics(q, k, scale=1.0, statistics=("argmax",)).argmax
    assert not (away == 3).any()


# ---- T30: normalising constants --------------------------------------------------------------------


def integral(function, dimension: int, reach: float = 12.0, points: int = 241) -> float:
    """Integral by the rectangle rule, exact to rounding for a Gaussian that has died away."""
    axis = np.linspace(-reach, reach, points)
    grid = np.stack(np.meshgrid(*[axis] * dimension, indexing="ij"), -1).reshape(-1, dimension)
    return float(np.exp(function(grid)).sum() * (axis[1] - axis[0]) ** dimension)


@pytest.mark.parametrize("scale", [1.0, 0.4])
def test_log_normalizer_against_quadrature(scale):
    rng = np.random.default_rng(15)
    p, k = rng.standard_normal(2), rng.standard_normal((2, 2)) + 2 * np.eye(2)
    tall = np.array([[1.0], [0.5]])  # one channel into two: P is a real projection

    def score(u):
        return scale * (u @ p - 0.5 * (u * u).sum(-1))

    log = theory.kattention_log_normalizer
    assert np.log(integral(score, 2)) == pytest.approx(log(p, scale=scale), abs=1e-9)
    assert np.log(integral(lambda y: score(y @ k.T), 2)) == pytest.approx(log(p, k, scale=scale), abs=1e-9)
    assert np.log(integral(lambda y: score(y @ tall.T), 1)) == pytest.approx(log(p, tall, scale=scale))


def test_finite_and_free_along_the_kernel_exclude_each_other():
    """The integral grows with the box without bound if there is a kernel; that of f1 much faster."""
    k, p = np.array([[1.0, 0.0]]), np.array([0.5])
    assert theory.kattention_log_normalizer(p, k) == np.inf

    def score(y):
        u = y @ k.T
        return u @ p - 0.5 * (u * u).sum(-1)

    sizes = [integral(score, 2, reach, 401) for reach in (10.0, 20.0)]
    assert sizes[1] / sizes[0] == pytest.approx(401 / 400 * 2, rel=2e-2)
    many = theory.kattention_log_normalizer(np.zeros((4, 3, 2)), np.eye(2))
    np.testing.assert_allclose(many, np.full((4, 3), np.log(2 * np.pi)))


def test_mistakes_are_explained():
    q, k, v = random_inputs(16)
    with pytest.raises(ValueError, match=r"bias must broadcast to \(\.\.\., heads, head_dim\) = \(2, 16\)"):
        kattention_heads(q, k, v, bias=np.zeros(15, np.float32))
    with pytest.raises(TypeError, match="bias must be float64"):
        kattention_heads(q, k, v, bias=np.zeros(16, int))
    with pytest.raises(TypeError, match="value must be an array, got None"):
        kattention_heads(q, k, None)
    with pytest.raises(ValueError, match="k_weight must have embed_dim = 6 columns"):
        kattention(np.zeros((5, 6)), np.zeros((4, 6)), np.zeros((4, 5)))
    with pytest.raises(ValueError, match="must have the same shape"):
        kattention(np.zeros((5, 6)), np.zeros((4, 6)), np.zeros((3, 6)))
    with pytest.raises(ValueError, match="x must have at least 2 axes"):
        kattention(np.zeros(6), np.zeros((4, 6)), np.zeros((4, 6)))
    with pytest.raises(TypeError, match="unexpected keyword argument"):
        kattention_heads(q, k, v, causl="top_left")
    with pytest.raises(ValueError, match="scale must be greater than 0"):
        theory.kattention_log_normalizer([1.0], scale=0)
    with pytest.raises(ValueError, match="k_weight must be"):
        theory.kattention_log_normalizer([1.0], np.eye(2))
    with pytest.raises(ValueError, match="point must have shape"):
        theory.kattention_log_normalizer(1.0)
