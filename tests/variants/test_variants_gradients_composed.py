# SPDX-License-Identifier: BSD-3-Clause
"""Gradients of relay nodes and of differential attention: of the softmax attention that they are made of."""

from __future__ import annotations

import numpy as np
import pytest
from attnscale import variants as av
from cases import dtype_of, random_inputs
from test_variants_gradients import gradient_of, twin

pytestmark = pytest.mark.levels

RNG = np.random.default_rng(12)


def same(found, expected, relative=1e-12):
    for name, want in expected.items():
        got = getattr(found, name)
        if want is None:
            assert got is None
            continue
        for one, two in zip(*((x if isinstance(x, tuple) else (x,)) for x in (got, want)), strict=True):
            np.testing.assert_allclose(one, two, rtol=0, atol=relative * abs(two).max(), err_msg=name)


@pytest.mark.parametrize("with_value", [False, True])
def test_relay_nodes(with_value):
    x, centres = RNG.standard_normal((2, 90, 8)), RNG.standard_normal((2, 5, 8))
    value = RNG.standard_normal((2, 90, 6)) if with_value else None
    grad = gradient_of((2, 5, 6 if with_value else 8))
    found = av.gradients(av.relay_attention, x, centres, value, grad)
    same(found, twin("relay_attention", x, centres, value, grad))
    moved = x + 1e-6 * found.query
    change = [(grad * av.relay_attention(at, centres, value).output).sum() for at in (moved, x)]
    np.testing.assert_allclose((change[0] - change[1]) / 1e-6, np.square(found.query).sum(), rtol=1e-4)


def test_relay_nodes_that_batches_share():
    x, centres = RNG.standard_normal((3, 40, 8)).astype(np.float32), RNG.standard_normal((5, 8))
    found = av.gradients("relay_attention", x, centres.astype(np.float32), None, np.float32(1))
    assert (found.query.shape, found.key.shape, found.query.dtype) == ((3, 40, 8), (5, 8), np.float32)
    wide = np.broadcast_to(centres, (3, 5, 8))
    expected = twin("relay_attention", x.astype(np.float64), wide, None, np.ones((3, 5, 8)))
    np.testing.assert_allclose(found.key, expected["key"].sum(0), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"scale": 0.3, "window": (5, 5)}], ids=str)
def test_differential_attention(options):
    queries, keys = RNG.standard_normal((2, 2, 3, 50, 8))
    value, lam = RNG.standard_normal((3, 50, 6)), RNG.random((3, 1))
    grad = gradient_of((3, 50, 6))
    pairs = (queries[0], queries[1]), (keys[0], keys[1])
    found = av.gradients("differential_attention", *pairs, value, grad, lam=lam, **options)
    expected = twin(
        "differential_attention", *pairs, value, grad, lam=np.broadcast_to(lam, (3, 50)), **options
    )
    expected["lam"] = expected["lam"].sum(-1, keepdims=True)
    same(found, expected)

    def loss(share):
        made = av.differential_attention(
            pairs[0][0], pairs[1][0], pairs[0][1], pairs[1][1], value, lam=share, **options
        )
        return (grad * made).sum()

    slope = (loss(lam + 1e-6) - loss(lam - 1e-6)) / 2e-6
    np.testing.assert_allclose(found.lam.sum(), slope, rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_differential_attention_in_layouts_and_types(dtype):
    q, k, v = random_inputs(
        13, batch=(2,), heads=4, kv_heads=2, n_queries=20, n_keys=20, head_dim=8, dtype=dtype
    )
    g = gradient_of(q.shape, dtype)
    options = {"lam": 0.7, "enable_gqa": True, "is_causal": True}
    found = av.gradients("differential_attention", (q, q[..., ::-1]), (k, k), v, g, **options)
    assert found.value.dtype == found.query[1].dtype == dtype_of(dtype)
    assert found.key[0].shape == found.value.shape == v.shape
    assert found.lam.shape == ()
    swapped = [np.swapaxes(x, 1, 2) for x in (q, k, v, g)]
    other = av.gradients(
        "differential_attention",
        (swapped[0], swapped[0][..., ::-1]),
        (swapped[1],) * 2,
        *swapped[2:],
        layout="bshd",
        **options,
    )
    np.testing.assert_array_equal(np.swapaxes(other.value, 1, 2), found.value)
    np.testing.assert_allclose(other.lam, found.lam, rtol=1e-5)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda x: av.gradients("differential_attention", x, (x, x), x, x, lam=0.5),
            ValueError,
            "query must be a pair of arrays, of both maps",
        ),
        (
            lambda x: av.gradients("differential_attention", (x, x), (x, x), x, x),
            TypeError,
            "differential_attention needs the option 'lam'",
        ),
        (
            lambda x: av.gradients("relay_attention", x, x, None, x, scale=2.0),
            TypeError,
            "relay_attention has no option 'scale'",
        ),
        (
            lambda x: av.gradients("relay_attention", x, x[:2], None, x),
            ValueError,
            r"grad_output must broadcast to the nodes = \(2, 3\), got shape \(4, 3\)",
        ),
    ],
)
def test_refusals(call, error, message):
    with pytest.raises(error, match=message):
        call(np.ones((4, 3)))
