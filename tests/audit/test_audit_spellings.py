# SPDX-License-Identifier: BSD-3-Clause
"""Spellings that config classes read each in their own way, and what resolve promises of any config."""

from __future__ import annotations

import copy
import json
import math
import random
import warnings
from pathlib import Path
from typing import Any

import attnscale as at
import pytest
from audit_configs import LLAMA, resolve, sizes, yarn
from audit_fuzz import all_names, bases, broken_promise, mutated

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
SMALL = {**sizes(64, 4, 4), "head_dim": 16}
PLAIN = 0.25
SCALED = PLAIN * yarn(4) ** 2


def plan_of(**keys: Any) -> tuple[Any, str]:
    """The plan, and its warnings in one string."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", at.audit.AuditWarning)
        plan = at.audit.resolve({**SMALL, **keys})
    return plan, " | ".join(plan.warnings)


def rotated(plan: Any) -> list[float]:
    """The multiplier of the rotated channels in each layer."""
    return [
        plan.multiplier(layer=layer.index, position=5, channels=layer.channel_kinds[0])
        for layer in plan.layers
    ]


def test_deepseek_v4_has_yarn_in_compressed_layers_and_no_factor() -> None:
    scaling = {"type": "yarn", "rope_type": "yarn", "factor": 16, "original_max_position_embeddings": 65536}
    plan, _ = plan_of(model_type="deepseek_v4", rope_scaling=scaling, compress_ratios=[0, 4, 128, 0])
    assert rotated(plan) == [PLAIN] * 4
    assert [layer.kind.partition("_")[0] for layer in plan.layers] == [
        "sliding",
        "compressed",
        "heavily",
        "sliding",
    ]
    plan, _ = plan_of(
        model_type="deepseek_v4",
        rope_scaling={**scaling, "attention_factor": 1.5},
        compress_ratios=[0, 4, 128, 0],
    )
    assert rotated(plan) == pytest.approx([PLAIN, 2.25 * PLAIN, 2.25 * PLAIN, PLAIN])


def test_yarn_in_listed_layers_alone() -> None:
    plan, said = plan_of(model_type="molmo2_text", rope_scaling=YARN, rope_scaling_layers=[1, 3])
    assert rotated(plan) == pytest.approx([PLAIN, SCALED, PLAIN, SCALED])
    assert not said


@pytest.mark.parametrize(
    "kind",
    [
        "mimi",
        "pocket_tts_audio_tokenizer",
        "vibevoice_acoustic_tokenizer",
        "vibevoice_acoustic_tokenizer_encoder",
    ],
)
def test_types_whose_parts_are_themselves_have_an_answer(kind: str) -> None:
    plan, _ = plan_of(model_type=kind)
    assert rotated(plan) == [PLAIN] * 4


def test_parts_that_hold_themselves_end() -> None:
    config: dict[str, Any] = {"model_type": "novel", "text_config": {}}
    config["text_config"]["text_config"] = config["text_config"]
    with pytest.raises(at.audit.ConfigError, match="must be nested at most 32 deep"):
        at.audit.resolve(config)


@pytest.mark.parametrize("kind", ["gpt_oss", "ministral3", "openai_privacy_filter", "apertus"])
def test_null_is_missing(kind: str) -> None:
    keys = {"model_type": kind, "max_position_embeddings": 4096}
    without, given = plan_of(**keys)[0], plan_of(**keys, rope_parameters=None)[0]
    assert without.layers == given.layers
    assert plan_of(**keys, rope_parameters={})[0].layers[0].terms == ()


def test_rotary_dim_of_minimax_m2_is_a_share_of_the_head() -> None:
    plan, _ = plan_of(model_type="minimax_m2", rotary_dim=8, rope_scaling=YARN)
    assert plan.layers[0].rotated == 8


def test_phi3_reads_yarn_as_longrope() -> None:
    plan, _ = plan_of(
        model_type="phi3", rope_scaling={**YARN, "short_factor": [1.0] * 8, "long_factor": [1.0] * 8}
    )
    assert rotated(plan)[0] == pytest.approx(PLAIN * (1 + math.log(4) / math.log(4096)))


@pytest.mark.parametrize("kind", ["gptj", "codegen", "roformer", "esm", "recurrent_gemma"])
def test_code_that_reads_no_type_of_rotary_positions_is_told(kind: str) -> None:
    plan, said = plan_of(model_type=kind, position_embedding_type="rotary", rope_scaling=YARN)
    kept = [layer for layer in plan.layers if layer.refusal is None]
    assert {plan.multiplier(layer=layer.index, position=5) for layer in kept} == {PLAIN}
    assert "rope_scaling = {'rope_type': 'yarn'" in said
    assert f"is not read for {kind}" in said


@pytest.mark.parametrize(
    "kind", ["gemma3_text", "olmo3", "t5gemma2_text", "gemma3n_text", "mellum", "laguna", "cohere2_moe"]
)
def test_spellings_that_the_class_drops_are_told(kind: str) -> None:
    key = "rope_scaling" if kind == "cohere2_moe" else "rope_parameters"
    plan, said = plan_of(model_type=kind, query_pre_attn_scalar=16, sliding_window=4, **{key: YARN})
    assert all(not layer.terms for layer in plan.layers)
    assert f"{key} = {{'rope_type': 'yarn'" in said


def test_entries_by_kind_are_told_where_the_code_has_one_for_all() -> None:
    plan, said = plan_of(
        model_type="llama", rope_parameters={"full_attention": YARN, "sliding_attention": YARN}
    )
    assert rotated(plan) == [PLAIN] * 4
    assert "rope_parameters.full_attention = {" in said
    assert "rope_parameters.sliding_attention = {" in said


def test_rotary_positions_of_a_type_without_any_are_told() -> None:
    assert "rope_scaling = {'rope_type': 'yarn'" in plan_of(model_type="bert", rope_scaling=YARN)[1]
    assert not plan_of(model_type="bert")[1]


def test_overrides_by_layer_whatever_their_spelling() -> None:
    for label in ("2", "02", 2):
        plan, _ = plan_of(model_type="gemma4_text", per_layer_config={label: {"head_dim": 32}, "3": None})
        assert [layer.head_dim for layer in plan.layers] == [16, 16, 32, 16]
    plan, _ = plan_of(
        model_type="dots3_note_text",
        kv_lora_rank=16,
        q_lora_rank=24,
        qk_nope_head_dim=16,
        qk_rope_head_dim=8,
        per_layer_config={"2": {"qk_nope_head_dim": 40}},
    )
    assert [layer.head_dim for layer in plan.layers] == [24, 24, 48, 24]


@pytest.mark.parametrize(
    "kind", ["internlm3", "cohere2", "recurrent_gemma", "cohere_compass_text", "nemotron"]
)
def test_head_dim_that_the_class_takes(kind: str) -> None:
    plan, _ = plan_of(model_type=kind, head_dim=24)
    assert {layer.head_dim for layer in plan.layers if layer.refusal is None} == {24}


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
    for rope in (
        {},
        {"rope_parameters": {"rope_type": "default"}},
        {"rope_scaling": {"type": "linear", "factor": 2.0}},
    ):
        for keys, expected in (({}, share), ({key: 0.5}, 0.5), ({key: None}, share)):
            plan, _ = plan_of(model_type=kind, **rope, **keys)
            assert {layer.rotated for layer in plan.layers if layer.refusal is None} == {16 * expected}
        both = {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.75}, key: 0.5}
        plan, _ = plan_of(model_type=kind, **both)
        assert {layer.rotated for layer in plan.layers if layer.refusal is None} == {12}


def test_the_vision_part_has_heads_and_layers_of_its_own() -> None:
    vision = {"depth": 32, "embed_dim": 1280, "num_heads": 16, "hidden_size": 3584, "mlp_ratio": 4}
    for named in ({}, {"model_type": "qwen2_vl"}, {"model_type": "qwen2_vl_vision"}):
        config = {"model_type": "qwen2_vl", **sizes(3584, 28, 28), "vision_config": {**vision, **named}}
        plan = resolve(config, part="vision_config")
        assert (len(plan), plan.layers[0].head_dim, plan.model_type) == (32, 80, "qwen2_vl_vision")
    config = {"model_type": "qwen2_5_vl", "vision_config": {"depth": 2, "hidden_size": 1280, "num_heads": 16}}
    with pytest.warns(at.audit.AuditWarning, match="'qwen2_5_vl_vision' is not known"):
        assert at.audit.resolve(config, part="vision_config").layers[0].head_dim == 80


def test_a_key_under_two_names_is_the_common_one() -> None:
    plan, _ = plan_of(model_type="gpt2", n_embd=128, hidden_size=64, n_head=4)
    assert plan.layers[0].head_dim == 16
    latent = {"qk_nope_head_dim": 16, "qk_rope_head_dim": 24, "head_dim": 8}
    plan, _ = plan_of(model_type="glm4_moe_lite", **latent)
    assert (plan.layers[0].head_dim, plan.layers[0].rotated) == (24, 8)


def test_layer_types_of_a_class_without_them_are_not_read() -> None:
    plan, _ = plan_of(model_type="llama", layer_types=["linear_attention"] * 3)
    assert [layer.kind for layer in plan.layers] == ["full_attention"] * 4


def test_gemma4_ends_with_full_attention() -> None:
    plan, _ = plan_of(model_type="gemma4_text", layer_types=["sliding_attention"] * 4)
    assert plan.layers[3].kind == "full_attention"
    assert plan.layers[3].head_dim == 512


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_hidden_layers": 10**9}, "number of layers must be at most 2000, got 1000000000"),
        ({"head_dim": 10**400}, "head_dim must be at most 2147483647, got 1000"),
        ({"rope_scaling": {**YARN, "factor": 10**400}}, "rope_scaling.factor must be a finite number"),
        (
            {"rope_scaling": {**YARN, "attention_factor": 1e300}},
            "attention_factor = 1e[+]300: the multiplier is inf, which is no number for a score",
        ),
        ({"rope_scaling": {**YARN, "rope_type": ["yarn"]}}, "rope_scaling.rope_type must be one of"),
        ({"rope_scaling": {**YARN, "partial_rotary_factor": 2}}, None),
        ({"model_type": "jamba", "attn_layer_offset": "4"}, "attn_layer_offset must be an integer, got '4'"),
        (
            {"model_type": "lfm2", "full_attn_idxs": 3},
            "full_attn_idxs must be a list of numbers or names, got 3",
        ),
        (
            {"model_type": "gpt_oss", "per_layer_config": {"x": {}}},
            "per_layer_config must have numbers of layers for keys, got 'x'",
        ),
        (
            {"model_type": "deepseek_v4", "compress_ratios": [8] * 4},
            "compress_ratios must consist of 0, 4, 128, got 8",
        ),
    ],
    ids=str,
)
def test_values_that_no_rule_expects(change: dict[str, Any], message: str | None) -> None:
    if message is None:
        assert at.audit.resolve({**LLAMA, **change})
        return
    with pytest.raises(at.audit.ConfigError, match=message):
        resolve({**LLAMA, **change})


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a": ' + "9" * 5000 + "}"])
def test_files_that_no_parser_reads(tmp_path: Path, text: str) -> None:
    file = tmp_path / "config.json"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(at.audit.ConfigError, match="is not JSON"):
        at.audit.resolve(file)


def test_a_multiplier_that_is_negative_is_told() -> None:
    plan, said = plan_of(model_type="falcon_h1", key_multiplier=-2.0, layer_types=None)
    assert plan.multiplier(layer=0, position=0) < 0
    assert "key_multiplier = -2.0: the multiplier is -0.5" in said


def test_a_config_is_never_changed() -> None:
    config = {**LLAMA, "rope_scaling": dict(YARN), "per_layer_config": {0: {"head_dim": 64}}}
    before = copy.deepcopy(config)
    at.audit.resolve(config)
    assert config == before


def test_promises_hold_for_configs_that_are_broken_at_random() -> None:
    rng, configs, names = random.Random(20), bases(), all_names()
    for _ in range(3000):
        config = mutated(rng, configs, names)
        wrong = broken_promise(config)
        assert wrong is None, f"{wrong}: {json.dumps(config, default=str)[:2000]}"
