# SPDX-License-Identifier: BSD-3-Clause
"""Plans of model configs: worked cases, spellings, layers, what is refused."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import attnscale as at
import pytest
from attnscale.audit._keys import known_types
from attnscale.audit._rules.families import FAMILIES, REMOTE
from audit_configs import (
    DEEPSEEK,
    DEEPSEEK_SCALE,
    GEMMA2,
    GPT_OSS,
    LLAMA,
    LLAMA4,
    MINISTRAL,
    PHI4_MINI,
    QWEN,
    QWEN25,
    STANDARD,
    YARN,
    resolve,
    sizes,
    yarn,
)

#: config, layer, position, rotated, unrotated, soft-cap, sink
WORKED = {
    "qwen2.5 7b": (QWEN25, 3, 40000, yarn(4) ** 2 / math.sqrt(128), None, None, False),
    "phi-4 mini": (
        PHI4_MINI,
        31,
        131071,
        (1 + math.log(32) / math.log(4096)) / math.sqrt(128),
        128**-0.5,
        None,
        False,
    ),
    "gpt-oss 20b": (GPT_OSS, 1, 5000, yarn(32) ** 2 / 8, None, None, True),
    "deepseek v3": (DEEPSEEK, 30, 0, DEEPSEEK_SCALE, DEEPSEEK_SCALE, None, False),
    "llama 4 scout": (LLAMA4, 3, 32767, None, (1 + 0.1 * math.log(5)) / math.sqrt(128), None, False),
    "gemma 2 27b": (GEMMA2, 1, 9, 1 / 12, None, 50.0, False),
    "ministral 3": (MINISTRAL, 0, 32767, 1.0693147180559945 / math.sqrt(128), None, None, False),
    "qwen 7b": (
        {"model_type": "qwen", **sizes(), "use_logn_attn": True, "seq_length": 8192, "rotary_pct": 1.0},
        0,
        32767,
        15 / 13 / math.sqrt(128),
        None,
        None,
        False,
    ),
    "granite": (
        {"model_type": "granite", **sizes(attention_multiplier=1 / 128)},
        0,
        0,
        1 / 128,
        None,
        None,
        False,
    ),
    "gpt-2 of crfm": (
        {
            "model_type": "gpt2",
            "n_embd": 768,
            "n_head": 12,
            "n_layer": 12,
            "scale_attn_by_inverse_layer_idx": True,
        },
        4,
        0,
        None,
        1 / 8 / 5,
        None,
        False,
    ),
    "t5": (
        {"model_type": "t5", "d_model": 512, "num_heads": 8, "num_layers": 6, "d_kv": 64},
        0,
        0,
        None,
        1.0,
        None,
        False,
    ),
    "deberta": (
        {
            "model_type": "deberta-v2",
            **sizes(1536, 24, 24),
            "pos_att_type": ["p2c", "c2p"],
            "relative_attention": True,
        },
        0,
        0,
        None,
        1 / math.sqrt(3 * 64),
        None,
        False,
    ),
    "falcon h1": (
        {"model_type": "falcon_h1", **sizes(head_dim=128), "key_multiplier": 0.1},
        0,
        0,
        0.1 / math.sqrt(128),
        None,
        None,
        False,
    ),
}


@pytest.mark.parametrize("name", WORKED)
def test_worked_cases(name: str) -> None:
    config, layer, position, rotated, unrotated, softcap, sink = WORKED[name]
    plan = resolve(config)
    for channels, expected in (("rotated", rotated), ("unrotated", unrotated)):
        if expected is None:
            with pytest.raises(ValueError, match=f"channels='{channels}': rotary positions turn"):
                plan.multiplier(layer=layer, position=position, channels=channels)
        else:
            found = plan.multiplier(layer=layer, position=position, channels=channels)
            assert type(found) is float
            assert found == pytest.approx(expected, rel=1e-12)
    assert plan.softcap(layer) == softcap
    assert plan.sink(layer) is sink


def test_reading_does_not_depend_on_where_the_config_comes_from(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(QWEN25), encoding="utf-8")

    class Config:
        def to_dict(self) -> dict[str, Any]:
            return QWEN25

    plans = [resolve(each) for each in (QWEN25, file, str(file), tmp_path, Config())]
    assert all(plan == plans[0] for plan in plans)


@pytest.mark.parametrize(
    "spelling",
    [
        {"rope_scaling": YARN},
        {"rope_scaling": {**YARN, "rope_type": "yarn"}},
        {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}, "original_max_position_embeddings": 32768},
        {"rope_parameters": {**YARN, "rope_theta": 1e6}},
        {"rope_parameters": {"rope_type": "default"}, "rope_scaling": YARN},
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


@pytest.mark.parametrize(
    ("config", "layer", "edges"),
    [(MINISTRAL, 0, [16384, 32768]), (LLAMA4, 3, [8191, 16383]), (QWEN, 0, [8192])],
    ids=["ministral counts i", "llama 4 counts i + 1", "qwen begins behind L"],
)
def test_where_a_position_begins_to_count(config: dict[str, Any], layer: int, edges: list[int]) -> None:
    plan = resolve(config)
    for edge in edges:
        before, at_edge = (plan.multiplier(layer=layer, position=i) for i in (edge - 1, edge))
        assert at_edge > before
    first = plan.multiplier(layer=layer, position=0)
    assert plan.multiplier(layer=layer, position=edges[0] - 1) == first == STANDARD


def test_keys_that_are_missing_have_the_default_of_their_model_type() -> None:
    gemma = {key: GEMMA2[key] for key in ("model_type", "hidden_size", "num_attention_heads")}
    plan = resolve(gemma)
    assert len(plan) == 26
    assert plan.multiplier(layer=0, position=0) == 1 / 16  # head_dim 256, query_pre_attn_scalar 256
    assert plan.softcap(0) == 50.0
    assert resolve({**gemma, "attn_logit_softcapping": None}).softcap(0) is None
    assert resolve({"model_type": "granite", **sizes()}).multiplier(layer=0, position=0) == 1.0
    # gpt-oss is YaRN with factor 32 by default, Llama is not.
    assert resolve({"model_type": "gpt_oss", **sizes(2880, 64)}).multiplier(layer=0, position=0) > 0.2
    # The language model of LLaVA 1.5 leaves out that it is of Llama's default size.
    llava = {"model_type": "llava", "text_config": {"model_type": "llama", "vocab_size": 32064}}
    assert resolve(llava).multiplier(layer=0, position=0) == STANDARD


def test_names_that_look_like_a_scale_and_are_none() -> None:
    other = {
        "logits_scaling": 8.0,
        "embedding_multiplier": 12.0,
        "residual_multiplier": 0.22,
        "final_logit_softcapping": 30.0,
        "logit_scale": 0.0625,
        "scale_embedding": True,
    }
    assert resolve({**LLAMA, **other}).multiplier(layer=0, position=0) == STANDARD


def test_layers_differ() -> None:
    plan = resolve(LLAMA4)
    assert [layer.rotated for layer in plan.layers[:5]] == [128, 128, 128, 0, 128]
    assert plan.layers[0].qk_norm == "after rotation"
    hybrid = resolve({"model_type": "jamba", **sizes(layers=8, attn_layer_period=4, attn_layer_offset=2)})
    assert [layer.refusal is None for layer in hybrid.layers] == [False, False, True, False] * 2
    with pytest.raises(ValueError, match=r"layer 0 \(linear_attention\): this layer has no softmax"):
        hybrid.multiplier(layer=0, position=0)
    gemma3 = resolve(
        {
            "model_type": "gemma3_text",
            **sizes(2560, 8, 6),
            "query_pre_attn_scalar": 256,
            "rope_scaling": {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 32768},
        }
    )
    found = [gemma3.multiplier(layer=i, position=0) for i in range(6)]
    assert found[:5] == [1 / 16] * 5
    assert found[5] == pytest.approx(yarn(8) ** 2 / 16)


def test_latent_scales_act_on_their_own_channels() -> None:
    """LongCat Flash: the query's latent feeds all channels, the key's those without positions."""
    plan = resolve({"model_type": "longcat_flash", **sizes(6144, 64), "num_layers": 2})
    assert len(plan) == 4
    rotated, unrotated = (
        plan.multiplier(layer=0, position=0, channels=kind) for kind in ("rotated", "unrotated")
    )
    assert rotated == pytest.approx(2 / math.sqrt(192))
    assert unrotated == pytest.approx(2 * math.sqrt(12) / math.sqrt(192))
    with pytest.raises(ValueError, match=r"differ \(unrotated / rotated = 3.46"):
        plan.multiplier(layer=0, position=0)


@pytest.mark.parametrize("kind", sorted(known_types()))
def test_every_known_type_resolves(kind: str) -> None:
    """With its sizes alone, without a warning; each layer has an answer or a reason."""
    heads = dict.fromkeys(("n_head", "encoder_attention_heads", "decoder_attention_heads"), 4)
    config = {"model_type": kind, **sizes(256, 4, 6), "n_embd": 256, **heads}
    if kind in ("nemotron_h", "zamba2"):
        config["layers_block_type"] = ["mamba", "attention"] * 3
    plan = resolve(config)
    assert plan.known
    for layer in plan.layers:
        if layer.refusal is None:
            kinds = layer.channel_kinds
            assert all(plan.multiplier(layer=layer.index, position=0, channels=each) > 0 for each in kinds)
    assert plan.explain().startswith(kind)
    assert json.loads(json.dumps(plan.to_dict()))["model_type"] == kind


def test_every_type_has_one_row() -> None:
    rows = (*FAMILIES, *(each.family for each in REMOTE))
    types = [kind for row in rows for kind in row.types]
    assert len(types) == len(set(types))


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.types[0])
def test_every_row_of_the_table_answers(family: Any) -> None:
    for kind in family.types:
        keys = sizes(256, 4, 6, depths=[2, 4])
        if kind in ("nemotron_h", "zamba2"):
            keys["layers_block_type"] = ["attention"] * 6
        if kind == "longcat_flash":
            keys["num_layers"] = 3
        plan = resolve({"model_type": kind, **keys})
        assert plan.known
        assert len(plan) > 0


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("mistral_large4_text", "scale and bias are weights"),
        ("swinv2", "is a weight of the checkpoint"),
        ("timesfm", "each channel of the query has a scale of its own"),
        ("gemma4_audio", "each channel of the query has a scale of its own"),
        ("yoso", "chances that hashes of q and k collide"),
        ("autoformer", "softmax over lags of time"),
        ("mamba", "no softmax over keys"),
        ("fnet", "no softmax over keys"),
    ],
)
def test_what_a_config_cannot_say_is_refused_with_the_reason(kind: str, reason: str) -> None:
    plan = resolve({"model_type": kind, **sizes(256, 4, 6)})
    for ask in (
        lambda: plan.multiplier(layer=0, position=0),
        lambda: plan.softcap(0),
        lambda: plan.sink(0),
        lambda: plan.attention_options(0, [1, 2]),
    ):
        with pytest.raises(at.audit.PlanError, match=reason):
            ask()
    assert reason in plan.explain()


@pytest.mark.parametrize(
    ("config", "layers", "expected"),
    [
        ({"model_type": "jetmoe", "hidden_size": 2048, "kv_channels": 64}, 12, 1 / 8),
        ({"model_type": "cpmant", **sizes(), "dim_head": 64}, 4, 1 / 8),
        ({"model_type": "mobilebert", **sizes(512, 4, 24), "intra_bottleneck_size": 64}, 24, 1 / 4),
        ({"model_type": "mobilebert", **sizes(256, 4, 24), "use_bottleneck": False}, 24, 1 / 8),
        (
            {"model_type": "funnel", "d_model": 768, "n_head": 12, "block_sizes": [2, 3], "d_head": 16},
            7,
            1 / 4,
        ),
        ({"model_type": "lxmert", **sizes(1024, 4), "l_layers": 9, "x_layers": 5, "r_layers": 2}, 16, 1 / 16),
        ({"model_type": "cvt"}, 13, 1 / 8),
        ({"model_type": "convbert", **sizes(768, 12, 2), "head_ratio": 3}, 2, 1 / math.sqrt(96)),
        ({"model_type": "zamba", **sizes(64, 4, 4), "attention_head_dim": 8}, 4, 1 / 2),
        ({"model_type": "mt5", "d_model": 64, "num_heads": 4, "num_layers": 2, "d_kv": 8}, 2, 1.0),
    ],
    ids=lambda each: each["model_type"] if isinstance(each, dict) else "",
)
def test_heads_that_are_not_hidden_size_over_heads(
    config: dict[str, Any], layers: int, expected: float
) -> None:
    plan = resolve(config)
    assert len(plan) == layers
    first = next(layer.index for layer in plan.layers if layer.refusal is None)
    assert plan.multiplier(layer=first, position=0) == pytest.approx(expected, rel=1e-15)


def test_each_stage_of_cvt_is_scaled_by_its_whole_width() -> None:
    plan = resolve({"model_type": "cvt", "embed_dim": [16, 64], "num_heads": [1, 4], "depth": [1, 2]})
    assert [plan.multiplier(layer=i, position=0) for i in range(3)] == [1 / 4, 1 / 8, 1 / 8]
    assert [layer.head_dim for layer in plan.layers] == [16, 16, 16]


def test_a_soft_cap_that_the_code_does_not_hand_on() -> None:
    """Gemma 3 has the key, and its attention the option; nothing joins them."""
    config = {"model_type": "gemma3_text", **sizes(), "attn_logit_softcapping": 50.0}
    with pytest.warns(at.audit.AuditWarning, match=r"attn_logit_softcapping = 50.0 has no effect for gemma3"):
        plan = at.audit.resolve(config)
    assert plan.softcap(0) is None
    assert resolve({"model_type": "videoprism_text_model", **sizes()}).softcap(0) == 50.0


def test_out_of_range() -> None:
    plan = resolve(LLAMA)
    for layer in (-1, 4, 10**9):
        with pytest.raises(ValueError, match=f"layer must be between 0 and 3, got {layer}"):
            plan.multiplier(layer=layer, position=0)
    with pytest.raises(ValueError, match="position must be at least 0, got -1"):
        plan.multiplier(layer=0, position=-1)
    for bad in (1.5, "3", None):
        with pytest.raises(TypeError, match="position must be an integer"):
            plan.multiplier(layer=0, position=bad)
        with pytest.raises(TypeError, match="layer must be an integer"):
            plan.multiplier(layer=bad, position=0)
    with pytest.raises(ValueError, match="channels must be one of 'rotated', 'unrotated', got 'both'"):
        plan.multiplier(layer=0, position=0, channels="both")
    gpt2 = resolve({"model_type": "gpt2", "n_embd": 768, "n_head": 12, "n_layer": 2})
    assert gpt2.multiplier(layer=0, position=1023) == 1 / 8
    with pytest.raises(ValueError, match="position must be below 1024, the learned"):
        gpt2.multiplier(layer=0, position=1024)
