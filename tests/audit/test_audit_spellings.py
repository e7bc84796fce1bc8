# SPDX-License-Identifier: BSD-3-Clause
"""Rotary positions: spellings, factors, share of the channels, and keys that are not read."""

from __future__ import annotations

import math
from typing import Any

import attnscale as at
import pytest
from audit_configs import LLAMA, YARN, multipliers, resolve, sizes, typed, yarn
from audit_configs import said as said_of
from versions import written_for

SHORT = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
DEFAULT = {"rope_type": "default"}
PLAIN = 0.25  # of heads with 16 channels
SCALED = PLAIN * yarn(4) ** 2


def plan_of(kind: str, **keys: Any) -> tuple[Any, str]:
    return said_of(typed(kind, **{**sizes(64, 4, 4), "head_dim": 16, **keys}))


def rotated(plan: Any) -> set[int]:
    return {layer.rotated for layer in plan.layers if layer.refusal is None}


@pytest.mark.parametrize(
    "spelling",
    [
        {"rope_scaling": YARN},
        {"rope_scaling": {**YARN, "rope_type": "yarn"}},
        {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}, "original_max_position_embeddings": 32768},
        {"rope_parameters": {**YARN, "rope_theta": 1e6}},
        {"rope_parameters": DEFAULT, "rope_scaling": YARN},
        {"rope_parameters": {**YARN, "factor": None}, "max_position_embeddings": 131072},
    ],
    ids=str,
)
def test_spellings_of_rotary_positions(spelling: dict[str, Any]) -> None:
    found = resolve({**LLAMA, **spelling}).multiplier(layer=0, position=0)
    assert found == pytest.approx(yarn(4) ** 2 / math.sqrt(128), rel=1e-12)


@pytest.mark.parametrize(
    ("keys", "m"),
    [
        ({"factor": 1.0}, 1.0),
        ({"factor": 0.5}, 1.0),
        ({"attention_factor": 1.25}, 1.25),
        ({"attention_factor": 1.25, "mscale": 2.0, "mscale_all_dim": 1.0}, 1.25),
        ({"mscale": 2.0, "mscale_all_dim": 1.0}, yarn(4, 2) / yarn(4)),
        ({"mscale": 2.0}, yarn(4)),
        ({"mscale_all_dim": 2.0}, yarn(4)),
        ({"mscale": 0.0, "mscale_all_dim": 2.0}, yarn(4)),
    ],
    ids=str,
)
def test_rules_of_yarn(keys: dict[str, Any], m: float) -> None:
    plan = resolve({**LLAMA, "rope_scaling": {**YARN, **keys}})
    assert plan.multiplier(layer=0, position=7) == pytest.approx(m**2 / math.sqrt(128), rel=1e-12)


#: DeepSeek V4 as its files on the Hub spell it: `type` means rope_type, and the last ratio is for the layer
#: that predicts a further token.
HUB_YARN = {"type": "yarn", "factor": 16, "original_max_position_embeddings": 65536}
HUB_V4 = {"head_dim": 512, "compress_ratios": [0, 4, 128, 4, 0], "rope_scaling": HUB_YARN}


@pytest.mark.parametrize("more", [{}, {"rope_type": "yarn"}])
def test_deepseek_v4_has_yarn_in_compressed_layers_and_no_factor(more: dict[str, Any]) -> None:
    scaling = {**HUB_YARN, **more}
    plan, said = plan_of("deepseek_v4", **{**HUB_V4, "rope_scaling": scaling}, qk_rope_head_dim=128)
    assert not said
    assert [layer.rotated for layer in plan.layers] == [128] * 4
    assert [layer.rotated for layer in plan_of("deepseek_v4", **HUB_V4)[0].layers] == [64] * 4
    assert multipliers(plan) == [1 / math.sqrt(512)] * 4
    kinds = [layer.kind.partition("_")[0] for layer in plan.layers]
    assert kinds == ["sliding", "compressed", "heavily", "compressed"]
    explicit = {**HUB_V4, "rope_scaling": {**scaling, "attention_factor": 1.5}}
    found = [each * math.sqrt(512) for each in multipliers(plan_of("deepseek_v4", **explicit)[0])]
    assert found == pytest.approx([1.0, 2.25, 2.25, 2.25])


@pytest.mark.torch
@written_for(f"transformers=={at.audit.TRANSFORMERS}")
@pytest.mark.parametrize(
    "keys",
    [
        {"qk_rope_head_dim": 32},
        {"partial_rotary_factor": 0.5, "qk_rope_head_dim": 32},
        {"rope_scaling": {**HUB_YARN, "attention_factor": 1.5}},
        {
            "rope_parameters": {
                "main": {"rope_type": "default", "rope_theta": 1e4},
                "compress": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0},
            }
        },
    ],
)
def test_deepseek_v4_against_its_class(keys: dict[str, Any]) -> None:
    transformers = pytest.importorskip("transformers")
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config = transformers.CONFIG_MAPPING["deepseek_v4"](num_hidden_layers=4, head_dim=128, **keys)
    plan, _ = plan_of("deepseek_v4", **{"head_dim": 128, **keys})
    entry = config.rope_parameters["compress"]
    factor = 1.0
    if entry["rope_type"] != "default":
        factor = ROPE_INIT_FUNCTIONS[entry["rope_type"]](config, "cpu", layer_type="compress")[1]
    assert plan.layer(1).rotated == 128 * entry.get("partial_rotary_factor", 1.0)
    assert multipliers(plan)[1] == pytest.approx(factor**2 / math.sqrt(128), rel=1e-9)


def test_yarn_in_some_layers_alone() -> None:
    plan, said = plan_of("molmo2_text", rope_scaling=SHORT, rope_scaling_layers=[1, 3])
    assert multipliers(plan) == pytest.approx([PLAIN, SCALED, PLAIN, SCALED])
    assert not said
    # Every third layer of UltraBERT is full; kinds follow from the layer's number, or from the windows.
    nested = {"full_attention": SHORT, "sliding_attention": DEFAULT}
    plan, said = plan_of("ultrabert", num_hidden_layers=6, rope_parameters=nested)
    assert multipliers(plan) == pytest.approx([PLAIN, PLAIN, SCALED] * 2)
    assert not said
    plan, _ = plan_of("ultrabert", attention_windows=[0, 128, 0, 128], rope_parameters=nested)
    assert multipliers(plan) == pytest.approx([SCALED, PLAIN] * 2)


@pytest.mark.parametrize("kind", ["gpt_oss", "ministral3", "openai_privacy_filter", "apertus"])
def test_null_is_missing(kind: str) -> None:
    keys = {"max_position_embeddings": 4096}
    without, given = plan_of(kind, **keys)[0], plan_of(kind, **keys, rope_parameters=None)[0]
    assert without.layers == given.layers
    assert plan_of(kind, **keys, rope_parameters={})[0].layers[0].terms == ()


def test_phi3_reads_yarn_as_longrope() -> None:
    lists = {"short_factor": [1.0] * 8, "long_factor": [1.0] * 8}
    plan, _ = plan_of("phi3", rope_scaling={**SHORT, **lists})
    assert multipliers(plan)[0] == pytest.approx(PLAIN * (1 + math.log(4) / math.log(4096)))


@pytest.mark.parametrize("kind", ["gptj", "codegen", "roformer", "esm", "recurrent_gemma"])
def test_code_without_types_of_rotary_positions_warns(kind: str) -> None:
    plan, said = plan_of(kind, position_embedding_type="rotary", rope_scaling=SHORT)
    kept = [layer.index for layer in plan.layers if layer.refusal is None]
    assert {plan.multiplier(layer=layer, position=5) for layer in kept} == {PLAIN}
    assert "rope_scaling = {'rope_type': 'yarn'" in said
    assert f"is not read for {kind}" in said


@pytest.mark.parametrize(
    "kind", ["gemma3_text", "olmo3", "t5gemma2_text", "gemma3n_text", "mellum", "laguna", "cohere2_moe"]
)
def test_spellings_that_the_class_drops_warn(kind: str) -> None:
    key = "rope_scaling" if kind == "cohere2_moe" else "rope_parameters"
    plan, said = plan_of(kind, query_pre_attn_scalar=16, sliding_window=4, **{key: SHORT})
    assert all(not layer.terms for layer in plan.layers)
    assert f"{key} = {{'rope_type': 'yarn'" in said


def test_keys_without_effect_warn() -> None:
    """Entries by kind of layer that are not read, positions of a type without any, factors without a type."""
    nested = {"full_attention": SHORT, "sliding_attention": SHORT}
    plan, said = plan_of("llama", rope_parameters=nested)
    assert multipliers(plan) == [PLAIN] * 4
    assert "rope_parameters.full_attention = {" in said
    assert "rope_parameters.sliding_attention = {" in said
    assert "rope_scaling = {'rope_type': 'yarn'" in plan_of("bert", rope_scaling=SHORT)[1]
    assert not plan_of("bert")[1]
    plan, said = plan_of("llama", rope_scaling={"factor": 4.0, "original_max_position_embeddings": 32})
    assert multipliers(plan) == [PLAIN] * 4
    no_type = "rope_scaling has no rope_type, which is read as default"
    assert said == f"rope_scaling.factor = 4.0 has no effect: {no_type}"
    _, said = plan_of("llama", rope_parameters={**DEFAULT, "attention_factor": 2.0})
    assert said == "rope_parameters.attention_factor = 2.0 has no effect: rope_parameters is of type default"
    assert not plan_of("llama", rope_parameters={"rope_theta": 1e6})[1]
    assert not plan_of("llama", rope_scaling=None)[1]


@pytest.mark.parametrize(
    ("kind", "key", "share"),
    [
        ("phi3", "partial_rotary_factor", 1.0),
        ("qwen3_next", "partial_rotary_factor", 0.25),
        ("stablelm", "partial_rotary_factor", 0.25),
        ("gpt_neox", "rotary_pct", 0.25),
        ("gpt_neox_japanese", "rotary_pct", 1.0),
    ],
)
def test_share_of_channels_beside_the_parameters(kind: str, key: str, share: float) -> None:
    for rope in ({}, {"rope_parameters": DEFAULT}, {"rope_scaling": {"type": "linear", "factor": 2.0}}):
        for keys, expected in (({}, share), ({key: 0.5}, 0.5), ({key: None}, share)):
            assert rotated(plan_of(kind, **rope, **keys)[0]) == {16 * expected}
    both = {"rope_parameters": {**DEFAULT, "partial_rotary_factor": 0.75}, key: 0.5}
    assert rotated(plan_of(kind, **both)[0]) == {12}


def test_rotary_dim_of_minimax_m2_is_a_share_of_the_head() -> None:
    assert rotated(plan_of("minimax_m2", rotary_dim=8, rope_scaling=SHORT)[0]) == {8}


def test_rotary_positions_that_scale_nothing_are_named() -> None:
    rope = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    plan = resolve({**LLAMA, "rope_scaling": rope})
    words = "rope_scaling: type llama3, factor = 8.0: it changes angles, and has no factor for the score"
    assert words in plan.explain()
    assert at.audit.as_framework(plan, "vllm") == (plan, ())


def test_an_original_length_beside_parameters_by_kind_is_not_read() -> None:
    """Beside common parameters it is read: LongRoPE has the factor 1 + ln(4096 / 16) / ln 16 = 3."""
    lists = {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
    keys = {"rope_scaling": {"type": "longrope", **lists}, "max_position_embeddings": 4096}
    beside = {**keys, "original_max_position_embeddings": 16}
    for kind, factor in (("llama", 3.0), ("dots3_note_text", 1.0)):
        with_key, without = (multipliers(resolve(typed(kind, **sizes(), **x))) for x in (beside, keys))
        assert with_key == pytest.approx([factor * each for each in without])
