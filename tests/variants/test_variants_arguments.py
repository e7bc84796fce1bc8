# SPDX-License-Identifier: BSD-3-Clause
"""Arguments of at.variants that cannot be meant: one error names the argument, the rule and what was seen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attnscale as at
import numpy as np
import pytest
from attnscale import variants as V

RNG = np.random.default_rng(50)
Q, K, VALUE = RNG.standard_normal((3, 2, 4, 10, 6))
X, W, CENTRES = RNG.standard_normal((10, 6)), RNG.standard_normal((5, 6)), RNG.standard_normal((3, 6))
PROJECTION = V.performer_projection(8, 6, rng=0)
RNG_RULE = "rng must be None, an integer of at least 0, a SeedSequence, BitGenerator or Generator, got "

REFUSALS: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (
        lambda: at.attention(Q, K, VALUE, enable_gqa="no"),
        TypeError,
        "enable_gqa must be True or False, got 'no'",
    ),  # type: ignore[arg-type]
    (
        lambda: V.linear_attention(Q, K, VALUE, enable_gqa=1),
        TypeError,
        "enable_gqa must be True or False, got 1",
    ),
    (lambda: V.LinearState(enable_gqa="no"), TypeError, "enable_gqa must be True or False, got 'no'"),
    (lambda: V.LinearState().update(K, None), TypeError, "value must be an array, got None"),
    (lambda: V.SsdState().update(K, None, -1.0), TypeError, "value must be an array, got None"),
    (lambda: V.apply_rotary(X, interleaved="no"), TypeError, "interleaved must be True or False, got 'no'"),
    (
        lambda: V.performer_projection(8, 6, orthogonal=0),
        TypeError,
        "orthogonal must be True or False, got 0",
    ),
    (
        lambda: V.attention_jacobian_norms(X, W, W, is_causal="no"),
        TypeError,
        "is_causal must be True or False",
    ),
    (lambda: V.performer_projection(8, 6, rng="seed"), TypeError, RNG_RULE + "'seed'"),
    (lambda: V.performer_projection(8, 6, rng=-1), ValueError, RNG_RULE + "-1"),
    (lambda: V.performer_attention(Q, K, VALUE, rng=2.5), TypeError, RNG_RULE + "2.5"),
    (
        lambda: V.global_maps(Q, K, None),
        TypeError,
        "value must be an array, got None; efficient_attention_weights",
    ),
    (
        lambda: V.kattention(X, W, W, bias=True),
        TypeError,
        "bias must be float64, float32, float16 or bfloat16",
    ),
    (lambda: V.RelayState("centres"), TypeError, "centres must be float64, float32, float16 or bfloat16"),
    (lambda: V.RelayState(1.0), ValueError, "centres must have at least 2 axes"),
    (lambda: V.RelayState(np.ones(3)), ValueError, "centres must have at least 2 axes"),
    (lambda: V.relay_message(X * 1j, CENTRES, CENTRES), TypeError, "x must be real numbers, got complex128"),
    (
        lambda: V.relay_energy(CENTRES, np.eye(3) * 1j),
        TypeError,
        "weight must be real numbers, got complex128",
    ),
    (lambda: V.relay_energy("nodes", np.eye(3)), TypeError, "nodes must be real numbers, got <U5"),
    (lambda: V.relay_energy(None, np.eye(3)), TypeError, "nodes must be real numbers, got object"),
    (lambda: V.positive_features(None, PROJECTION), TypeError, "x must be real numbers, got object"),
    (lambda: V.positive_features(1.0, PROJECTION), ValueError, "x must have at least 1 axis (..., head_dim)"),
    (
        lambda: V.score_functions.peak("f3", X, W, np.full_like(W, np.nan)),
        ValueError,
        "k_weight must be finite, got NaN or infinity",
    ),
]


@pytest.mark.parametrize(("call", "error", "message"), REFUSALS)
def test_refusals(call: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error) as caught:
        call()
    assert str(caught.value).startswith(message)


def test_a_number_is_the_same_bias_for_every_channel() -> None:
    bias = np.full(6, 0.3)
    found = V.kattention_heads(Q, K, VALUE, bias=0.3)
    np.testing.assert_array_equal(found, V.kattention_heads(Q, K, VALUE, bias=bias))


def test_weights_of_no_keys() -> None:
    assert V.efficient_attention_weights(Q, K[:, :, :0]).shape == (2, 4, 10, 0)
    assert not V.efficient_attention(Q, K[:, :, :0], VALUE[:, :, :0]).any()


def test_integers_are_numbers_for_the_energies() -> None:
    nodes = np.arange(6).reshape(3, 2)
    np.testing.assert_array_equal(
        V.relay_energy(nodes, np.eye(3, dtype=int)), V.relay_energy(nodes * 1.0, np.eye(3))
    )
