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
QKV, FOUR, ONE = RNG.standard_normal((3, 2, 40, 8)), np.ones((4, 4, 3)), np.eye(40)
ROWS = FOUR[0]
PROJECTION = V.performer_projection(8, 6, rng=0)
RNG_RULE = "rng must be None, an integer of at least 0, a SeedSequence, BitGenerator or Generator, got "

slopes, linear, performer = V.gradients, V.linear_attention, V.performer_attention
efficient, cosformer, linformer = V.efficient_attention, V.cosformer_attention, V.linformer_attention

TYPE_ERRORS: dict[str, Callable[[], Any]] = {
    "enable_gqa must be True or False, got 'no'": lambda: at.attention(Q, K, VALUE, enable_gqa="no"),
    "enable_gqa must be True or False, got 1": lambda: linear(Q, K, VALUE, enable_gqa=1),
    "enable_gqa must be True or False, got 'n": lambda: V.LinearState(enable_gqa="no"),
    "value must be an array, got None": lambda: V.LinearState().update(K, None),
    "value must be an array, got N": lambda: V.SsdState().update(K, None, -1.0),
    "value must be an array, got None$": lambda: efficient(*QKV[:2], None),
    "interleaved must be True or False, got 'no'": lambda: V.apply_rotary(X, interleaved="no"),
    "orthogonal must be True or False, got 0": lambda: V.performer_projection(8, 6, orthogonal=0),
    "is_causal must be True or False": lambda: V.attention_jacobian_norms(X, W, W, is_causal="no"),
    RNG_RULE + "'seed'": lambda: V.performer_projection(8, 6, rng="seed"),
    RNG_RULE + "2.5": lambda: performer(Q, K, VALUE, rng=2.5),
    "value must be an array, got None; efficient_attention_weights": lambda: V.global_maps(Q, K, None),
    "bias must be float64, float32, float16 or bfloat16": lambda: V.kattention(X, W, W, bias=True),
    "centres must be float64, float32, float16 or bfloat16": lambda: V.RelayState("centres"),
    "x must be real numbers, got complex128": lambda: V.relay_message(X * 1j, CENTRES, CENTRES),
    "weight must be real numbers, got complex128": lambda: V.relay_energy(CENTRES, np.eye(3) * 1j),
    "nodes must be real numbers, got <U5": lambda: V.relay_energy("nodes", np.eye(3)),
    "nodes must be real numbers, got object": lambda: V.relay_energy(None, np.eye(3)),
    "x must be real numbers, got object": lambda: V.positive_features(None, PROJECTION),
    "ssd needs the option 'log_decay'": lambda: slopes("ssd", *FOUR),
    "linear_attention has no option 'scale'": lambda: slopes("linear_attention", *FOUR, scale=2.0),
    r"did you mean 'feature_map'\? linear_attention has no option 'feature'": lambda: slopes(
        "linear_attention", *FOUR, feature="elu"
    ),
    r".*argument 'feature'; did you mean 'feature_map'\?": lambda: linear(*FOUR[:3], feature="elu"),
    "value must be an array": lambda: slopes("ssd", ROWS, ROWS, None, ROWS, log_decay=0.0),
    "grad_output must be float64": lambda: slopes("linear_attention", *FOUR[:3], np.ones(3, int)),
    "differential_attention needs the option 'lam'": lambda: slopes(
        "differential_attention", (ROWS, ROWS), (ROWS, ROWS), ROWS, ROWS
    ),
    "relay_attention has no option 'scale'": lambda: slopes(
        "relay_attention", ROWS, ROWS, None, ROWS, scale=2.0
    ),
    r"feature_map\(x\) must be floating point, got int64": lambda: linear(
        *QKV, feature_map=lambda x: np.ones(x.shape, int)
    ),
    "feature_map must be a name, a callable or a pair of arrays, got int": lambda: linear(
        *QKV, feature_map=3
    ),
    "scale must be a number": lambda: efficient(*QKV, scale="log_n"),
    "kinds must be a sequence": lambda: V.hybrid(*QKV, "exact"),
    "other must be a LinearState": lambda: V.LinearState().merge(V.EfficientState()),
    "scale must be a number here": lambda: V.local_global_attention(*QKV, radius=1, scale="log_n"),
}
VALUE_ERRORS: dict[str, Callable[[], Any]] = {
    RNG_RULE + "-1": lambda: V.performer_projection(8, 6, rng=-1),
    "centres must have at least 2 axes": lambda: V.RelayState(1.0),
    r"centres must have at least 2 axes \(\.\.\., n, embed_dim\), got shape \(3,\)": lambda: V.RelayState(
        np.ones(3)
    ),
    r"x must have at least 1 axis \(\.\.\., head_dim\)": lambda: V.positive_features(1.0, PROJECTION),
    "k_weight must be finite, got NaN or infinity": lambda: V.score_functions.peak(
        "f3", X, W, np.full_like(W, np.nan)
    ),
    ".*one that has a gradient here": lambda: slopes("linformer_attention", *FOUR),
    ".*got <function linformer": lambda: slopes(V.linformer_attention, *FOUR),
    "variant must be one": lambda: slopes(np.exp, *FOUR),
    "a callable feature_map has no gradient: give the features": lambda: slopes(
        "linear_attention", *FOUR, feature_map=np.square
    ),
    ".*not given as projection have no gradient": lambda: slopes("performer_attention", *FOUR, rng=0),
    r"grad_output must broadcast to the output = \(4, 3\), got shape \(2, 3\)": lambda: slopes(
        "linear_attention", *FOUR[:3], ROWS[:2]
    ),
    "query must be a pair of arrays, of both maps": lambda: slopes(
        "differential_attention", ROWS, (ROWS, ROWS), ROWS, ROWS, lam=0.5
    ),
    r"grad_output must broadcast to the nodes = \(2, 3\), got shape \(4, 3\)": lambda: slopes(
        "relay_attention", ROWS, ROWS[:2], None, ROWS
    ),
    r"feature_map\(x\) must not be negative: weights would be; got -": lambda: linear(
        *QKV, feature_map=lambda x: x
    ),
    r"feature_map\(x\) must have the shape \(\*\(\d, 40\), features\) of its rows, got \(\d, 40\)": lambda: (
        linear(*QKV, feature_map=lambda x: x.sum(-1))
    ),
    r"feature_map\[1\] must have the shape": lambda: linear(
        *QKV, feature_map=(abs(QKV[0]), abs(QKV[1][:, :3]))
    ),
    r"feature_map\[1\] must not be negative": lambda: linear(*QKV, feature_map=(abs(QKV[0]), QKV[1])),
    r"did you mean 'elu'\? feature_map must be one of 'elu', 'relu', got 'gelu'": lambda: linear(
        *QKV, feature_map="gelu"
    ),
    "key_projection must have the shape .* n_keys = 40: it was made for one length; got .*39": lambda: (
        linformer(*QKV, np.ones((4, 39)))
    ),
    ".*the same number of rows, got 4 and 5": lambda: linformer(*QKV, ONE[:4], ONE[:5]),
    "linformer_attention has no causal form: .*; got is_causal=True": lambda: linformer(
        *QKV, ONE, is_causal=True
    ),
    "efficient_attention_weights has no causal form: .*; got causal='bottom_right'": lambda: (
        V.efficient_attention_weights(*QKV[:2], causal="bottom_right")
    ),
    "global_maps has no causal form": lambda: V.global_maps(*QKV, is_causal=True),
    "normalization must be one of 'softmax', 'scaling', got 'l1'": lambda: efficient(
        *QKV, normalization="l1"
    ),
    r"projection must have the shape \(features, head_dim\) with head_dim = 8, got \(4, 9\)": lambda: (
        performer(*QKV, projection=np.ones((4, 9)))
    ),
    "projection must be finite, got NaN or infinity": lambda: performer(
        *QKV, projection=np.full((4, 8), np.nan)
    ),
    "rng must be left out with a projection, got both": lambda: performer(
        *QKV, projection=np.ones((4, 8)), rng=0
    ),
    "features must be the rows of the projection, 4, got 3": lambda: performer(
        *QKV, projection=np.ones((4, 8)), features=3
    ),
    "scale must be positive, got -1": lambda: performer(*QKV, scale=-1),
    "features must be at least 1": lambda: performer(*QKV, features=0),
    "max_length must be at least the number of positions, 40, got 39": lambda: cosformer(*QKV, max_length=39),
    "max_length must be at least the number of positions, 43, got 40": lambda: cosformer(
        *QKV, max_length=40, causal=3
    ),
    "max_length must be at least the number of positions, 43, got 42": lambda: slopes(
        "cosformer_attention", *QKV, QKV[2], max_length=42, causal=3
    ),
    "the states must have the same normalization, got different ones": lambda: V.EfficientState().merge(
        V.EfficientState(normalization="scaling")
    ),
    "the states must have the same scale, got 0.5 and 1.0": lambda: V.EfficientState(scale=0.5).merge(
        V.EfficientState()
    ),
    "the states must have the same feature_map, got different ones": lambda: V.LinearState().merge(
        V.LinearState(feature_map="relu")
    ),
    "the states must have the same feature_map": lambda: V.LinearState(feature_map=np.abs).merge(
        V.LinearState(feature_map=np.exp)
    ),
    "the states must have the same projection, got different ones": lambda: V.PerformerState(
        np.ones((4, 8))
    ).merge(V.PerformerState(np.ones((3, 8)))),
    "the states must have the same scale, got different ones": lambda: V.PerformerState(
        np.ones((4, 8)), scale=1.0
    ).merge(V.PerformerState(np.ones((4, 8)))),
    "log_decay must be finite and at most 0, got 0.1": lambda: V.ssd(*QKV, 0.1),
    ".*the same number of rows, got 3 and 40": lambda: V.ssd(QKV[0][:, :3], *QKV[1:], 0.0),
    "kinds must hold one kind for each of the 2 heads, got 1": lambda: V.hybrid(*QKV, ["exact"]),
    r"kinds\[1\] must be one of 'exact', .* got 'mamba'": lambda: V.hybrid(*QKV, ["exact", "mamba"]),
    "the state holds no keys yet": lambda: V.LinearState().read(QKV[0]),
    r".*must have the heads and dimensions of the first update, key \(.*, n, 8\) and value": lambda: (
        V.LinearState().update(QKV[1], QKV[2]).update(QKV[1][:1], QKV[2][:1])
    ),
    "radius must be at least 0": lambda: V.local_global_attention(*QKV, radius=-1),
    "global_tokens must be at most the 40 positions, got 41": lambda: V.local_global_attention(
        *QKV, radius=1, global_tokens=41
    ),
    "weight must have one column for each of the 3 nodes": lambda: V.relay_energy(np.ones((3, 2)), np.eye(4)),
    ".*same last dimension .head_dim., got 8 and 3": lambda: efficient(QKV[0], QKV[1][:, :, :3], QKV[2]),
}


@pytest.mark.parametrize("message", TYPE_ERRORS)
def test_a_wrong_kind_of_thing_is_one_clear_error(message: str) -> None:
    with pytest.raises(TypeError, match=f"^(?:{message})"):
        TYPE_ERRORS[message]()


@pytest.mark.parametrize("message", VALUE_ERRORS)
def test_a_wrong_value_is_one_clear_error(message: str) -> None:
    with pytest.raises(ValueError, match=f"^(?:{message})"):
        VALUE_ERRORS[message]()


def test_a_number_is_the_same_bias_for_every_channel() -> None:
    bias = np.full(6, 0.3)
    found = V.kattention_heads(Q, K, VALUE, bias=0.3)
    np.testing.assert_array_equal(found, V.kattention_heads(Q, K, VALUE, bias=bias))


def test_weights_of_no_keys() -> None:
    assert V.efficient_attention_weights(Q, K[:, :, :0]).shape == (2, 4, 10, 0)
    assert not efficient(Q, K[:, :, :0], VALUE[:, :, :0]).any()


def test_integers_are_numbers_for_the_energies() -> None:
    nodes = np.arange(6).reshape(3, 2)
    np.testing.assert_array_equal(
        V.relay_energy(nodes, np.eye(3, dtype=int)), V.relay_energy(nodes * 1.0, np.eye(3))
    )
