# SPDX-License-Identifier: BSD-3-Clause
"""Layers of a model and its parts: their number, kinds, heads and windows."""

from __future__ import annotations

import re
from typing import Any

import attnscale as at
import numpy as np
import pytest
from audit_configs import LLAMA, multipliers, resolve, said, sizes, typed

SMALL = sizes(64, 4, 4)
QWEN_WINDOW = {"sliding_window": 32, "max_window_layers": 4}


def plan_of(kind: str, **keys: Any) -> Any:
    return said(typed(kind, **{**SMALL, "head_dim": 16, **keys}))[0]


def windows(kind: str, **keys: Any) -> list[int | None]:
    plan = resolve(typed(kind, **sizes(64, 4, 6, **keys)))
    return [plan.window(layer.index) for layer in plan.layers]


# test_audit_oracle.py compares them with the masks of models.
@pytest.mark.parametrize(
    ("kind", "keys", "expected"),
    [
        ("llama", {}, [None] * 6),
        ("mistral", {"sliding_window": 4096}, [4096] * 6),
        ("mistral", {"sliding_window": None}, [None] * 6),
        ("gemma2", {}, [4096, None] * 3),
        ("gemma3_text", {"sliding_window": 512}, [512] * 5 + [None]),
        ("gemma3_text", {"sliding_window": 512, "use_bidirectional_attention": True}, [513] * 5 + [None]),
        ("qwen2", QWEN_WINDOW, [None] * 6),
        ("qwen2", {**QWEN_WINDOW, "use_sliding_window": True}, [None] * 4 + [32] * 2),
        ("qwen3_moe", {"sliding_window": 32}, [None] * 6),
        ("qwen3_moe", {"sliding_window": 32, "use_sliding_window": True}, [32] * 6),
        ("llama4_text", {}, [8192] * 3 + [None] + [8192] * 2),
        ("modernbert", {}, [None, 129, 129] * 2),
        ("modernbert-decoder", {}, [None, 64, 64] * 2),
        ("neomme", {}, [513, 2049, 513, 2049, 513, None]),
        ("neomme", {"per_layer_config": {"1": {"sliding_window": 9}}}, [513, 19, 513, 513, 513, None]),
        ("gpt_neo", {"attention_types": [[["global", "local"], 3]]}, [None, 256] * 3),
        ("longformer", {"attention_window": [2, 4, 6, 8, 10, 12]}, [3, 5, 7, 9, 11, 13]),
    ],
)
def test_window(kind: str, keys: dict[str, Any], expected: list[int | None]) -> None:
    assert windows(kind, **keys) == expected


def test_a_window_is_shown_and_compared() -> None:
    config = typed("gemma2", **sizes(64, 4, 6), sliding_window=512)
    plan = resolve(config)
    assert "window: sliding_window = 512" in plan.explain()
    assert "window of 512 keys" in repr(plan.layer(0))
    assert plan.to_dict()["layers"][0]["window"] == 512
    (differs,) = plan.differences(resolve({**config, "sliding_window": 256}))
    assert (differs.layers, differs.what, differs.here, differs.there) == ((0, 2, 4), "window", 512, 256)
    assert differs.keys_here == ("sliding_window = 512",)
    assert plan.to_pandas()["window"].tolist()[:1] == [512.0]
    # The decoder of a model sees keys before the query, its encoder on both sides.
    half = typed("t5_gemma_module", **SMALL, sliding_window=16, layer_types=["sliding_attention"] * 4)
    halves = typed("t5gemma", encoder=half, decoder=half)
    assert [resolve(halves, part=part).window(0) for part in ("decoder", "encoder")] == [16, 33]


LISTS = [("cvt", "depth"), ("swinv2", "depths"), ("recurrent_gemma", "block_types")]
LISTS += [("funnel", "block_sizes"), ("funnel", "block_repeats")]


@pytest.mark.parametrize(
    ("kind", "keys", "message"),
    [
        ("gpt_neo", {"attention_types": [[["global", "local"], 2]]}, "must describe 6 layers, got 4"),
        ("ultrabert", {"attention_windows": [0, 128]}, "must have one entry for each of 6 layers, got 2"),
        ("funnel", {"block_repeats": [2]}, "must have one entry for each of 3 block_sizes, got 1"),
        *((kind, {name: []}, r"must have at least one entry, got \[\]") for kind, name in LISTS),
    ],
)
def test_a_list_of_layers_that_does_not_fit_is_refused(kind: str, keys: dict[str, Any], message: str) -> None:
    (name,) = keys
    with pytest.raises(ValueError, match=f"{name} {message}"):
        windows(kind, **keys)


def test_convolutions_of_a_text_encoder_have_no_answer() -> None:
    plan = plan_of("sam3_lite_text_text_model")
    assert [layer.refusal is None for layer in plan.layers] == [False, True, True, False]
    with pytest.raises(ValueError, match=r"layer 0 \(conv\): this layer has no softmax over keys"):
        plan.multiplier(layer=0, position=0)
    plan = plan_of("sam3_lite_text_text_model", use_repmixer_blocks=False)
    assert all(layer.refusal is None for layer in plan.layers)


def test_layer_types_that_are_not_read_or_changed() -> None:
    plan = plan_of("llama", layer_types=["linear_attention"] * 3)
    assert [layer.kind for layer in plan.layers] == ["full_attention"] * 4
    plan = plan_of("gemma4_text", layer_types=["sliding_attention"] * 4)
    assert (plan.layers[3].kind, plan.layers[3].head_dim) == ("full_attention", 512)


def test_overrides_by_layer_whatever_their_spelling() -> None:
    for label in ("2", "02", 2):
        plan = plan_of("gemma4_text", per_layer_config={label: {"head_dim": 32}, "3": None})
        assert [layer.head_dim for layer in plan.layers] == [16, 16, 32, 16]
    latent = {"kv_lora_rank": 16, "q_lora_rank": 24, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8}
    plan = plan_of("dots3_note_text", **latent, per_layer_config={"2": {"qk_nope_head_dim": 40}})
    assert [layer.head_dim for layer in plan.layers] == [24, 24, 48, 24]


@pytest.mark.parametrize(
    "kind", ["internlm3", "cohere2", "recurrent_gemma", "cohere_compass_text", "nemotron"]
)
def test_head_dim_that_the_class_reads(kind: str) -> None:
    plan = plan_of(kind, head_dim=24)
    assert {layer.head_dim for layer in plan.layers if layer.refusal is None} == {24}


def test_a_key_under_two_names_is_the_common_one() -> None:
    gpt2 = said(typed("gpt2", n_embd=128, hidden_size=64, n_head=4, num_hidden_layers=4))[0]
    assert gpt2.layers[0].head_dim == 16
    plan = plan_of("glm4_moe_lite", qk_nope_head_dim=16, qk_rope_head_dim=24, head_dim=8)
    assert (plan.layers[0].head_dim, plan.layers[0].rotated) == (24, 8)


@pytest.mark.parametrize(
    ("config", "origin"),
    [
        (sizes(), "hidden_size / num_attention_heads = 4096 / 32"),
        (sizes(head_dim=64), "head_dim = 64"),
        (typed("gpt2", n_embd=768, n_head=12), "n_embd / n_head = 768 / 12"),
        (
            typed("deepseek_v3", qk_nope_head_dim=128, qk_rope_head_dim=64),
            "qk_nope_head_dim + qk_rope_head_dim = 128 + 64",
        ),
        (
            typed("convbert", hidden_size=768, num_attention_heads=12, head_ratio=2),
            "heads of 64 channels, by num_attention_heads = 12, head_ratio = 2, hidden_size = 768",
        ),
    ],
)
def test_the_head_size_comes_from_keys_of_this_config(config: dict[str, Any], origin: str) -> None:
    plan = resolve({"model_type": "llama", **config, "num_hidden_layers": 2})
    assert f"layer 0-1: standard: {origin}\n" in f"{plan.explain()}\n"


ODD = sizes(100, 7, 2)
ROUNDED = (
    "hidden_size = 100 is not a multiple of num_attention_heads = 7: the head size is rounded down to 14"
)


def test_a_width_that_the_heads_do_not_divide() -> None:
    message = "hidden_size must be a multiple of num_attention_heads in the code of llama, got 100 and 7"
    with pytest.raises(ValueError, match=message):
        said(typed("llama", **ODD))
    for kind in ("mistral", "novel"):
        plan, words = said(typed(kind, **ODD))
        assert plan.layer(0).head_dim == 14
        assert ROUNDED in words
    assert "multiple" not in said(typed("mistral", head_dim=14, **ODD))[1]


@pytest.mark.torch
@pytest.mark.parametrize(
    ("kind", "refused"), [("llama", True), ("bert", True), ("mistral", False), ("t5", None)]
)
def test_the_code_refuses_it_where_the_plan_does(kind: str, refused: bool | None) -> None:
    transformers = pytest.importorskip("transformers")
    # The head size of T5 is d_kv, whatever the width.
    keys = ODD if kind != "t5" else {**ODD, "d_kv": 14, "d_model": 100, "num_heads": 7}

    def build() -> Any:
        config = transformers.CONFIG_MAPPING[kind](**keys, vocab_size=8)
        return transformers.AutoModel.from_config(config)

    if refused:
        with pytest.raises(Exception, match="multiple of the number of attention heads"):
            build()
        with pytest.raises(ValueError, match="must be a multiple"):
            said(typed(kind, **keys))
    else:
        build()
        assert ("rounded down" in said(typed(kind, **keys))[1]) == (refused is False)


def test_parts_of_composite_configs() -> None:
    encoder, decoder = (typed("t5_gemma_module", **sizes(query_pre_attn_scalar=n)) for n in (64, 256))
    config = typed("t5gemma", encoder=encoder, decoder=decoder)
    assert resolve(config).multiplier(layer=0, position=0) == 1 / 16
    assert resolve(config, part="encoder").multiplier(layer=0, position=0) == 1 / 8
    with pytest.raises(at.audit.ConfigError, match=r"config \(encoder, decoder\), got 'vision'"):
        resolve(config, part="vision")


def halves(encoder: tuple[int, int], decoder: tuple[int, int], order: str = "{}_{}") -> dict[str, int]:
    """Keys with the numbers of heads and layers of both halves of a model."""
    both = {"encoder": encoder, "decoder": decoder}
    parts = ("attention_heads", "layers")
    return {order.format(h, p): n for h, pair in both.items() for p, n in zip(parts, pair, strict=True)}


BART = typed("bart", d_model=1024, **halves((16, 12), (64, 6)))
PROPHETNET = typed("prophetnet", hidden_size=64, **halves((4, 5), (16, 3), "num_{}_{}"))
# num_attention_heads belongs to the encoder; the decoder has BART's default, 16.
FEW = typed("bart", d_model=64, num_attention_heads=4)
T5 = typed("t5", d_model=512, num_heads=8, num_layers=6, num_decoder_layers=3, d_kv=64)
SWITCH = typed("switch_transformers", num_layers=24)  # whose class has 12 layers in the decoder


@pytest.mark.parametrize(
    ("config", "part", "layers", "scale"),
    [
        (BART, None, 6, 1 / 4),
        (BART, "decoder", 6, 1 / 4),
        (BART, "encoder", 12, 1 / 8),
        (PROPHETNET, "decoder", 3, 1 / 2),
        (PROPHETNET, "encoder", 5, 1 / 4),
        (FEW, None, 12, 1 / 2),
        (T5, None, 3, 1.0),
        ({**T5, "num_decoder_layers": None}, None, 6, 1.0),
        (T5, "encoder", 6, 1.0),
        ({"model_type": "t5", "num_layers": 24}, None, 24, 1.0),
        (SWITCH, None, 12, 1.0),
        (SWITCH, "encoder", 24, 1.0),
        ({**SWITCH, "num_decoder_layers": 5}, None, 5, 1.0),
        ({**SWITCH, "num_decoder_layers": None}, None, 24, 1.0),
    ],
    ids=lambda each: each["model_type"] if isinstance(each, dict) else "",
)
def test_encoder_and_decoder_beside_each_other(
    config: dict[str, Any], part: str | None, layers: int, scale: float
) -> None:
    plan = resolve(config, part=part)
    assert (len(plan), multipliers(plan)[0]) == (layers, scale)
    assert part != "decoder" or plan == resolve(config)


def test_the_vision_part_has_heads_and_layers_of_its_own() -> None:
    vision = {"depth": 32, "embed_dim": 1280, "num_heads": 16, "hidden_size": 3584, "mlp_ratio": 4}
    for named in ({}, {"model_type": "qwen2_vl"}, {"model_type": "qwen2_vl_vision"}):
        config = typed("qwen2_vl", **sizes(3584, 28, 28), vision_config={**vision, **named})
        plan = resolve(config, part="vision_config")
        assert (len(plan), plan.layers[0].head_dim, plan.model_type) == (32, 80, "qwen2_vl_vision")
    config = typed("qwen2_5_vl", vision_config={"depth": 2, "hidden_size": 1280, "num_heads": 16})
    with pytest.warns(at.audit.AuditWarning, match="'qwen2_5_vl_vision' is not known"):
        assert at.audit.resolve(config, part="vision_config").layers[0].head_dim == 80


_EXAONE = {
    **sizes(64, 4, 8, sliding_window=16, sliding_window_pattern="LLLG"),
    "layer_types": (["sliding_attention"] * 3 + ["full_attention"]) * 2,
}


def test_the_text_of_exaone_4_5_under_its_older_name() -> None:
    inner = {**_EXAONE, "model_type": "exaone4_5_text"}
    plan = resolve(typed("exaone4_5", text_config=inner))
    assert plan.layers == resolve(typed("exaone4_5", text_config=typed("exaone4", **_EXAONE))).layers
    assert (plan.model_type, plan.known) == ("exaone4", True)
    assert [layer.window for layer in plan] == [16, 16, 16, None] * 2
    assert multipliers(resolve(inner)) == multipliers(plan)


def test_a_list_with_layers_that_predict_further_tokens() -> None:
    """Files of EXAONE 4.5 list one more kind than layers; transformers does not take them."""
    listed = {"layer_types": [*_EXAONE["layer_types"], "full_attention"], "num_nextn_predict_layers": 1}
    plan, warned = said(typed("exaone4", **{**_EXAONE, **listed}))
    assert plan.layers == resolve(typed("exaone4", **_EXAONE)).layers
    assert (
        "layer_types has 9 entries for 8 layers: the last 1 are those of num_nextn_predict_layers" in warned
    )
    for number in (0, 2, None, "1"):
        with pytest.raises(at.audit.ConfigError, match="one entry for each of 8 layers, got 9"):
            at.audit.resolve(typed("exaone4", **{**_EXAONE, **listed, "num_nextn_predict_layers": number}))


@pytest.mark.torch
def test_the_pictures_of_exaone_4_5() -> None:
    pytest.importorskip("torch")
    modeling = pytest.importorskip("transformers.models.exaone4_5.modeling_exaone4_5")
    vision = {"depth": 3, "hidden_size": 64, "num_heads": 4}
    plan = resolve(typed("exaone4_5", text_config=_EXAONE, vision_config=vision), part="vision_config")
    assert (len(plan), plan.model_type) == (3, "exaone4_5_vision")
    own = modeling.Exaone4_5_VisionAttention(modeling.Exaone4_5_VisionConfig(**vision)).scaling
    assert multipliers(plan) == pytest.approx([own] * 3)
    usual = resolve(typed("exaone4_5_vision"))
    assert (len(usual), usual[0].head_dim) == (32, 3584 // 16)


def test_types_whose_parts_are_themselves_have_an_answer() -> None:
    vibevoice = ("vibevoice_acoustic_tokenizer", "vibevoice_acoustic_tokenizer_encoder")
    for kind in ("mimi", "pocket_tts_audio_tokenizer", *vibevoice):
        assert multipliers(plan_of(kind)) == [0.25] * 4, kind


def test_parts_that_hold_themselves_end() -> None:
    config: dict[str, Any] = {"model_type": "novel", "text_config": {}}
    config["text_config"]["text_config"] = config["text_config"]
    with pytest.raises(at.audit.ConfigError, match="must be nested at most 32 deep"):
        at.audit.resolve(config)


def test_layers_by_number() -> None:
    plan = resolve({**LLAMA, "num_hidden_layers": 61})
    assert plan[0] == plan.layer(0)
    assert plan[-1] == plan.layer(60)
    assert [layer.index for layer in plan] == list(range(61))
    assert plan[np.int64(2)].index == 2
    with pytest.raises(IndexError, match="layer must be between 0 and 60, got 61"):
        plan[61]


def test_layers_are_named_by_what_is_left_out_and_keys_by_the_file() -> None:
    """Every sixth layer of Gemma 3 is full; no kind of layer is named, as the file has no entries by kind."""
    rope = {"rope_type": "linear", "factor": 8.0}
    text = resolve(typed("gemma3_text", **sizes(2560, 8, 34), head_dim=256, rope_scaling=rope)).explain()
    assert re.search(r"^all but 5, 11, 17, \.\.\., 29 +0\.0625 ", text, re.M)
    assert re.search(r"^5, 11, 17, \.\.\., 29 +0\.0625 ", text, re.M)
    assert "note: rope_scaling: type linear, factor = 8.0: it changes angles" in text
    assert "full_attention" not in text
    usual = resolve(typed("gemma4_text", num_hidden_layers=12)).explain()
    assert "rope_parameters (default of gemma4_text): type proportional" in usual
