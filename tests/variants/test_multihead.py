# SPDX-License-Identifier: BSD-3-Clause
"""The layer against the article's steps."""

from __future__ import annotations

import attnscale as at
import numpy as np
import pytest
from attnscale import reference
from attnscale.variants import MultiHeadAttention

RNG = np.random.default_rng(40)
X, Y = RNG.standard_normal((2, 7, 12)), RNG.standard_normal((2, 9, 12))


def layer_of(**options):
    layer = MultiHeadAttention(12, 3, rng=1, **options)
    for name in ("query_bias", "key_bias", "value_bias", "output_bias"):
        if getattr(layer, name) is not None:
            getattr(layer, name)[:] = RNG.standard_normal(getattr(layer, name).shape)
    return layer


def test_the_articles_steps():
    layer = layer_of(scale=[0.2, 0.5, 1.5])
    np.testing.assert_allclose(layer(X, Y), reference.multi_head_attention(layer, X, Y, Y), atol=1e-12)
    value = RNG.standard_normal(Y.shape)
    np.testing.assert_allclose(
        layer(X, Y, value), reference.multi_head_attention(layer, X, Y, value), atol=1e-12
    )
    mask = RNG.random((2, 1, 7, 9)) < 0.6
    mask[..., 0] = True
    truth = reference.multi_head_attention(layer, X, Y, Y, mask=mask)
    np.testing.assert_allclose(layer(X, Y, attn_mask=mask), truth, atol=1e-12)
    causal = reference.multi_head_attention(layer, X, X, X, mask=np.tri(7, dtype=bool))
    np.testing.assert_allclose(layer(X, is_causal=True), causal, atol=1e-12)


def test_prior_multiplies_the_weights():
    layer = layer_of(scale=[0.2, 0.5, 1.5])
    prior = RNG.random((7, 9)) * (RNG.random((7, 9)) < 0.7)
    prior[:, 0] = 1
    truth = reference.multi_head_attention(layer, X, Y, Y, prior=prior)
    np.testing.assert_allclose(layer(X, Y, prior=prior), truth, atol=1e-12)
    mask = np.tri(7, 9, 2, dtype=bool)
    both = reference.multi_head_attention(layer, X, Y, Y, prior=prior, mask=mask)
    np.testing.assert_allclose(layer(X, Y, prior=prior, attn_mask=mask), both, atol=1e-12)
    for hiding in (-np.inf, np.float16(-65504), np.finfo(np.float32).min):
        logs = np.where(mask, type(hiding)(0.3), hiding)
        np.testing.assert_allclose(layer(X, Y, prior=prior, attn_mask=logs), both, atol=1e-12)
    with pytest.raises(TypeError, match="attn_mask must be bool or float, got int64"):
        layer(X, Y, prior=prior, attn_mask=mask.astype(np.int64))


def test_dropout():
    layer = layer_of(scale=[0.2, 0.5, 1.5], dropout=0.4)
    np.testing.assert_array_equal(layer(X, Y, rng=3), layer(X, Y, rng=3))
    keep = np.random.default_rng(3).random((2, 3, 7, 9), np.float32) >= 0.4
    truth = reference.multi_head_attention(layer, X, Y, Y, keep=keep)
    np.testing.assert_allclose(layer(X, Y, rng=3), truth, atol=1e-12)
    assert np.abs(layer(X, Y) - layer(X, Y, rng=3)).max() > 0.1
    # On average it changes nothing.
    many = np.broadcast_to(X[:1], (20000, 7, 12))[:, :2]
    draws = layer(many, np.broadcast_to(Y[:1], (20000, 9, 12)), rng=4)
    error = draws.std(0, ddof=1) / np.sqrt(len(draws))
    assert (np.abs(draws.mean(0) - layer(X[0, :2], Y[0])) < 5 * error).all()


def test_dropout_of_every_key():
    """A row that keeps no key is 0 before the last map."""
    layer = layer_of(dropout=0.99)
    out = layer(X[0], Y[0], rng=5)
    keep = np.random.default_rng(5).random((3, 7, 9), np.float32) >= 0.99
    alone = ~keep.any(-1).any(0)
    assert alone.any()
    np.testing.assert_allclose(out[alone], np.broadcast_to(layer.output_bias, out[alone].shape), atol=1e-15)


@pytest.mark.parametrize("scale", [None, 0.3, "log_n"])
def test_scales(scale):
    layer = layer_of(scale=scale)
    q, k, v = layer.project(X, Y)
    rows = at.attention(q, k, v, scale=scale).swapaxes(1, 2).reshape(2, 7, 12)
    np.testing.assert_allclose(layer(X, Y), rows @ layer.output_weight.T + layer.output_bias, atol=1e-13)
    assert "scale" not in layer.parameters()
    entropy = layer.statistics(X, Y, statistics=("entropy",)).entropy
    np.testing.assert_allclose(entropy, at.attention_entropy(q, k, scale=scale), atol=1e-13)


def test_a_scale_of_each_head_is_a_parameter():
    layer = layer_of(scale=np.ones(3))
    before = layer.statistics(X).entropy
    layer.parameters()["scale"][1] = 4.0
    after = layer.statistics(X).entropy
    np.testing.assert_array_equal(after[:, [0, 2]], before[:, [0, 2]])
    assert after[:, 1].mean() < before[:, 1].mean()


@pytest.mark.parametrize(
    "normalizer",
    [
        *("softmax_1", "sigmoid", "relu", "squared_relu", "softpick", "sparsemax", "entmax15"),
        at.normalizers.Sink([0.5, -1.0, 2.0]),
        at.normalizers.ReLU("sum"),
        at.normalizers.TopK(3),
    ],
    ids=repr,
)
def test_normalizers(normalizer):
    """Weights of every normalizer, with mask, prior and dropout, are those that are written out."""
    layer = layer_of(scale=[0.2, 0.5, 1.5], normalizer=normalizer, dropout=0.3)
    assert layer.normalizer == at.normalizers.get(normalizer)
    reference_of = reference.multi_head_attention
    np.testing.assert_allclose(layer(X, Y), reference_of(layer, X, Y, Y), atol=1e-12)
    mask, prior = RNG.random((7, 9)) < 0.7, RNG.random((7, 9)) * (RNG.random((7, 9)) < 0.8)
    both = reference_of(layer, X, Y, Y, mask=mask, prior=prior)
    np.testing.assert_allclose(layer(X, Y, attn_mask=mask, prior=prior), both, atol=1e-12)
    keep = np.random.default_rng(3).random((2, 3, 7, 9), np.float32) >= 0.3
    dropped = reference_of(layer, X, Y, Y, mask=mask, keep=keep)
    np.testing.assert_allclose(layer(X, Y, attn_mask=mask, rng=3), dropped, atol=1e-12)
    largest = layer.statistics(X, Y, statistics=("max_weight",)).max_weight
    q, k, _ = layer.project(X, Y)
    truth = at.reference.attention_statistics(q, k, scale=layer.scale[:, None], normalizer=normalizer)
    np.testing.assert_allclose(largest, truth.max_weight, atol=1e-12)


@pytest.mark.parametrize("qk_norm", ["l2", "rms"])
def test_normalised_queries_and_keys(qk_norm):
    layer = layer_of(scale=[0.2, 0.5, 1.5], qk_norm=qk_norm)
    truth = reference.multi_head_attention(layer, X, Y, Y)
    np.testing.assert_allclose(layer(X, Y), truth, atol=1e-12)
    bare = layer_of(scale=[0.2, 0.5, 1.5])
    longer = layer.statistics(2 * X, Y).entropy - bare.statistics(2 * X, Y).entropy
    assert np.abs(longer).max() > 0.1


def test_initial_weights():
    layer = MultiHeadAttention(256, 4, head_dim=8, bias=False, rng=2, dtype=np.float32)
    assert layer.query_weight.shape == (32, 256)
    assert layer.output_weight.shape == (256, 32)
    assert layer.query_bias is None
    assert sorted(layer.parameters()) == ["key_weight", "output_weight", "query_weight", "value_weight"]
    assert abs(layer.query_weight.var() * 256 - 1) < 5 * np.sqrt(2 / 8192)
    assert abs(layer.output_weight.var() * 32 - 1) < 5 * np.sqrt(2 / 8192)
    assert layer(X.astype(np.float32).repeat(22, -1)[..., :256]).dtype == np.float32


def test_empty_inputs():
    layer = layer_of(dropout=0.5)
    assert layer(X[:, :0]).shape == (2, 0, 12)
    assert layer(X[:0]).shape == (0, 7, 12)
    assert layer(X[:, :0], Y, rng=0).shape == (2, 0, 12)
    nothing = layer(X, Y[:, :0])  # no key: the last map of zeros
    np.testing.assert_array_equal(nothing, np.broadcast_to(layer.output_bias, X.shape))
    assert layer.statistics(X[:, :0]).entropy.shape == (2, 3, 0)


def test_mistakes_are_explained():
    with pytest.raises(ValueError, match="embed_dim must be a multiple of heads, got 12 and 5"):
        MultiHeadAttention(12, 5)
    with pytest.raises(ValueError, match="dropout must be at least 0 and less than 1"):
        MultiHeadAttention(12, 3, dropout=1.0)
    with pytest.raises(ValueError, match=r"scale must be a number, a law or \(3,\) numbers"):
        MultiHeadAttention(12, 3, scale=[1.0, 2.0])
    with pytest.raises(TypeError, match="dtype must be float32 or float64"):
        MultiHeadAttention(12, 3, dtype=np.float16)
    with pytest.raises(ValueError, match=r"normalizer must be one of 'softmax', .* got 'hardmax'"):
        MultiHeadAttention(12, 3, normalizer="hardmax")
    with pytest.raises(ValueError, match="qk_norm must be one of 'l2', 'rms', got 'l1'"):
        MultiHeadAttention(12, 3, qk_norm="l1")
    sinks = MultiHeadAttention(12, 3, normalizer=at.normalizers.Sink([0.0, 1.0]))
    with pytest.raises(ValueError, match="logits must be one number or one a head, 3, got 2"):
        sinks(X)
    layer = MultiHeadAttention(12, 3)
    with pytest.raises(ValueError, match="key must have embed_dim = 12 channels"):
        layer(X, X[..., :5])
    with pytest.raises(ValueError, match="prior must be at least 0"):
        layer(X, prior=-np.ones((7, 7)))
    with pytest.raises(TypeError, match="prior must be numbers"):
        layer(X, prior=np.array(["a"]))
