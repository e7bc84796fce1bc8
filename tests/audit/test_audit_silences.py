# SPDX-License-Identifier: BSD-3-Clause
"""Configs that were read wrongly without a word; what is said of each now."""

from __future__ import annotations

import math
import sys
import warnings
from typing import Any

import attnscale as at
import numpy as np
import pytest

SIZES = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 4}


def plan_of(**config: Any) -> tuple[Any, str]:
    """The plan and what it warns of."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", at.audit.AuditWarning)
        plan = at.audit.resolve({**SIZES, **config})
    return plan, " | ".join(plan.warnings)


HUB_V4 = {
    "model_type": "deepseek_v4",
    "head_dim": 512,
    "compress_ratios": [0, 4, 128, 4, 0],  # one more for the layer that predicts a further token
    "rope_scaling": {"type": "yarn", "factor": 16, "original_max_position_embeddings": 65536},
}


def test_deepseek_v4_as_its_hub_files_spell_it() -> None:
    """qk_rope_head_dim is the width that is rotated, and `type` names the kind as rope_type does."""
    plan, said = plan_of(**HUB_V4, qk_rope_head_dim=128)
    assert not said
    assert [layer.rotated for layer in plan.layers] == [128] * 4
    assert [layer.rotated for layer in plan_of(**HUB_V4)[0].layers] == [64] * 4
    explicit = {**HUB_V4["rope_scaling"], "attention_factor": 1.5}
    plan, _ = plan_of(**{**HUB_V4, "rope_scaling": explicit})
    found = [plan.multiplier(layer=i, position=0, channels="rotated") * math.sqrt(512) for i in range(4)]
    assert found == pytest.approx([1.0, 2.25, 2.25, 2.25])


@pytest.mark.torch
@pytest.mark.parametrize(
    "keys",
    [
        {"qk_rope_head_dim": 32},
        {"partial_rotary_factor": 0.5, "qk_rope_head_dim": 32},
        {"rope_scaling": {**HUB_V4["rope_scaling"], "attention_factor": 1.5}},
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
    plan, _ = plan_of(model_type="deepseek_v4", head_dim=128, **keys)
    entry = config.rope_parameters["compress"]
    factor = 1.0
    if entry["rope_type"] != "default":
        factor = ROPE_INIT_FUNCTIONS[entry["rope_type"]](config, "cpu", layer_type="compress")[1]
    assert plan.layer(1).rotated == 128 * entry.get("partial_rotary_factor", 1.0)
    found = plan.multiplier(layer=1, position=0, channels="rotated")
    assert found == pytest.approx(factor**2 / math.sqrt(128), rel=1e-9)


def test_ultrabert_has_every_third_layer_full() -> None:
    """Its parameters of rotary positions are by kind of layer, and the kinds follow from the number."""
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}
    nested = {"full_attention": yarn, "sliding_attention": {"rope_type": "default"}}
    plan, said = plan_of(model_type="ultrabert", num_hidden_layers=6, rope_parameters=nested)
    assert not said
    scaled = (0.1 * math.log(4) + 1) ** 2
    found = [plan.multiplier(layer=i, position=0) * 4 for i in range(6)]
    assert found == pytest.approx([1, 1, scaled] * 2)
    plan, _ = plan_of(model_type="ultrabert", attention_windows=[0, 128, 0, 128], rope_parameters=nested)
    found = [plan.multiplier(layer=i, position=0) * 4 for i in range(4)]
    assert found == pytest.approx([scaled, 1] * 2)


def test_switch_transformers_have_as_many_decoder_layers_as_their_class_says() -> None:
    config = {"model_type": "switch_transformers", "num_layers": 24}
    assert len(at.audit.resolve(config)) == 12
    assert len(at.audit.resolve(config, part="encoder")) == 24
    assert len(at.audit.resolve({**config, "num_decoder_layers": 5})) == 5
    assert len(at.audit.resolve({**config, "num_decoder_layers": None})) == 24
    assert len(at.audit.resolve({"model_type": "t5", "num_layers": 24})) == 24


def test_convolutions_of_a_text_encoder_have_no_answer() -> None:
    plan, _ = plan_of(model_type="sam3_lite_text_text_model")
    assert [layer.refusal is None for layer in plan.layers] == [False, True, True, False]
    with pytest.raises(ValueError, match=r"layer 0 \(conv\): this layer has no softmax over keys"):
        plan.multiplier(layer=0, position=0)
    plan, _ = plan_of(model_type="sam3_lite_text_text_model", use_repmixer_blocks=False)
    assert all(layer.refusal is None for layer in plan.layers)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("cvt", "depth"),
        ("swinv2", "depths"),
        ("funnel", "block_sizes"),
        ("funnel", "block_repeats"),
        ("recurrent_gemma", "block_types"),
    ],
)
def test_an_empty_list_is_refused(kind: str, name: str) -> None:
    with pytest.raises(ValueError, match=rf"{name} must have at least one entry, got \[\]"):
        at.audit.resolve({**SIZES, "model_type": kind, name: []})


def test_repeats_of_other_blocks_are_refused() -> None:
    with pytest.raises(
        ValueError, match="block_repeats must have one entry for each of 3 block_sizes, got 1"
    ):
        at.audit.resolve({"model_type": "funnel", "block_repeats": [2]})


HUGE = sys.float_info.max


@pytest.mark.parametrize(
    "config",
    [
        {
            "model_type": "granite",
            "attention_multiplier": HUGE,
            "rope_scaling": {"type": "yarn", "factor": 4},
        },
        {"model_type": "llama", "rope_scaling": {"type": "yarn", "factor": 4, "attention_factor": 1e200}},
        {
            "model_type": "llama4_text",
            "attn_temperature_tuning": True,
            "attn_scale": HUGE,
            "floor_scale": 1,
            "hidden_size": 2,
            "head_dim": 1,
        },
        {
            "model_type": "novel",
            "mup_attn_multiplier": HUGE,
            "head_dim": 1,
            "use_logn_attn": True,
            "seq_length": 2,
        },
    ],
)
def test_a_multiplier_that_is_no_number_is_refused(config: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"the multiplier is (inf|nan|too large)"):
        plan_of(**config)


def test_the_largest_number_itself_has_an_answer() -> None:
    plan, _ = plan_of(model_type="granite", attention_multiplier=HUGE)
    assert plan.multiplier(layer=0, position=10**6) == HUGE


def test_a_width_that_the_heads_do_not_divide() -> None:
    odd = {"hidden_size": 100, "num_attention_heads": 7}
    message = "hidden_size must be a multiple of num_attention_heads in the code of llama, got 100 and 7"
    with pytest.raises(ValueError, match=message):
        plan_of(model_type="llama", **odd)
    for kind in ("mistral", "novel"):
        plan, said = plan_of(model_type=kind, **odd)
        assert plan.layer(0).head_dim == 14
        assert (
            "hidden_size = 100 is no multiple of num_attention_heads = 7: the head size is rounded down to 14"
        ) in said
    assert "multiple" not in plan_of(model_type="mistral", head_dim=14, **odd)[1]


@pytest.mark.torch
@pytest.mark.parametrize(
    ("kind", "refused"), [("llama", True), ("bert", True), ("mistral", False), ("t5", None)]
)
def test_the_code_refuses_it_where_the_plan_does(kind: str, refused: bool | None) -> None:
    transformers = pytest.importorskip("transformers")
    keys = {"hidden_size": 100, "num_attention_heads": 7, "num_hidden_layers": 2}
    if kind == "t5":  # d_kv says it, whatever the width
        keys |= {"d_kv": 14, "d_model": 100, "num_heads": 7}

    def build() -> Any:
        config = transformers.CONFIG_MAPPING[kind](**keys, vocab_size=8)
        return transformers.AutoModel.from_config(config)

    if refused:
        with pytest.raises(Exception, match="multiple of the number of attention heads"):
            build()
        with pytest.raises(ValueError, match="must be a multiple"):
            plan_of(model_type=kind, **keys)
    else:
        build()
        assert ("rounded down" in plan_of(model_type=kind, **keys)[1]) == (refused is False)


def test_factors_of_rotary_positions_without_a_type() -> None:
    scaling = {"factor": 4.0, "original_max_position_embeddings": 32}
    plan, said = plan_of(model_type="llama", rope_scaling=scaling)
    assert plan.multiplier(layer=0, position=0) == 0.25
    assert said == (
        "rope_scaling.factor = 4.0 has no effect: rope_scaling has no rope_type, which is read as default"
    )
    _, said = plan_of(model_type="llama", rope_parameters={"rope_type": "default", "attention_factor": 2.0})
    assert said == "rope_parameters.attention_factor = 2.0 has no effect: rope_parameters is of type default"
    assert not plan_of(model_type="llama", rope_parameters={"rope_theta": 1e6})[1]
    assert not plan_of(model_type="llama", rope_scaling=None)[1]


GROK = {
    "model_type": "grok-2",
    "hidden_size": 64,
    "num_attention_heads": 4,
    "attn_temperature_len": 4,
    "attn_logit_softcapping": 3.0,
}


def test_the_temperature_of_grok_is_behind_its_soft_cap() -> None:
    """t c tanh(s / c): SGLang caps the score first, and multiplies then."""
    plan, _ = plan_of(**GROK)
    assert plan.multiplier(layer=0, position=16, channels="rotated") == 0.25
    assert plan.capped_multiplier(layer=0, position=16) == 2.0
    assert "the capped score" in plan.explain()
    assert (
        "the score is t c tanh(s / c), where grok_temperature(length=4) is t and the other factors are in s"
    ) in plan.explain()

    rng = np.random.default_rng(0)
    q, k, v = rng.standard_normal((3, 17, 16)) * 4
    scores = 2.0 * 3.0 * np.tanh(q[16] @ k.T * 0.25 / 3.0)
    weights = np.exp(scores - scores.max())
    options = plan.attention_options(0, [16])
    found = at.attention(q[16:], k, v, **options)
    np.testing.assert_allclose(found[0], weights @ v / weights.sum(), rtol=1e-12)

    with pytest.raises(
        ValueError, match=r"one temperature behind the soft-cap of layer 0: it is 1 .* and 2 "
    ):
        plan.attention_options(0, [3, 16])


def test_a_temperature_within_the_soft_cap_is_said_too() -> None:
    temperature = {"beta": 0.1, "llama_4_scaling_beta": 0.1, "original_max_position_embeddings": 8}
    plan, _ = plan_of(model_type="novel", attn_logit_softcapping=5.0, rope_parameters=temperature)
    assert "the score is c tanh(s / c), with every factor in s" in plan.explain()
    assert plan.capped_multiplier(layer=0, position=100) == 1.0


def test_a_temperature_behind_the_soft_cap_is_compared() -> None:
    plan, _ = plan_of(**GROK)
    other, _ = plan_of(**{**GROK, "attn_temperature_len": 8})
    (differs,) = plan.differences(other)
    assert (differs.what, differs.first_position, differs.there) == ("capped score", 5, 1.0)
    assert str(differs).startswith("layers 0-3, capped score: differs from i = 5 on: 1.160964 here, 1 there")
    uncapped, _ = plan_of(**{**GROK, "attn_logit_softcapping": None})
    assert [each.what for each in plan.differences(uncapped)] == ["softcap"]
