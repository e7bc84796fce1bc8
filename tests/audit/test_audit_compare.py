# SPDX-License-Identifier: BSD-3-Clause
"""Parts of composite configs, options for attention, differences between plans."""

from __future__ import annotations

import json
import math
from typing import Any

import attnscale as at
import numpy as np
import pytest
from audit_configs import (
    DEEPSEEK,
    GEMMA2,
    GPT_OSS,
    LLAMA,
    MINISTRAL,
    PHI4_MINI,
    QWEN,
    YARN,
    resolve,
    sizes,
    yarn,
)


def test_parts_of_composite_configs() -> None:
    config = {
        "model_type": "t5gemma",
        "encoder": {"model_type": "t5_gemma_module", **sizes(query_pre_attn_scalar=64)},
        "decoder": {"model_type": "t5_gemma_module", **sizes(query_pre_attn_scalar=256)},
    }
    assert resolve(config).multiplier(layer=0, position=0) == 1 / 16
    assert resolve(config, part="encoder").multiplier(layer=0, position=0) == 1 / 8
    with pytest.raises(at.audit.ConfigError, match=r"config \(encoder, decoder\), got 'vision'"):
        resolve(config, part="vision")


def test_encoder_and_decoder_beside_each_other() -> None:
    bart = {
        "model_type": "bart",
        "d_model": 1024,
        "encoder_attention_heads": 16,
        "encoder_layers": 12,
        "decoder_attention_heads": 64,
        "decoder_layers": 6,
    }
    plan = resolve(bart)
    assert (len(plan), plan.multiplier(layer=0, position=0)) == (6, 1 / 4)
    encoder = resolve(bart, part="encoder")
    assert (len(encoder), encoder.multiplier(layer=0, position=0)) == (12, 1 / 8)
    assert resolve(bart, part="decoder") == plan
    prophetnet = {
        "model_type": "prophetnet",
        "hidden_size": 64,
        "num_encoder_attention_heads": 4,
        "num_encoder_layers": 5,
        "num_decoder_attention_heads": 16,
        "num_decoder_layers": 3,
    }
    for part, layers, scale in (("decoder", 3, 1 / 2), ("encoder", 5, 1 / 4)):
        plan = resolve(prophetnet, part=part)
        assert (len(plan), plan.multiplier(layer=0, position=0)) == (layers, scale)
    # num_attention_heads is of the encoder: the decoder has the default of BART's, 16.
    few = {"model_type": "bart", "d_model": 64, "num_attention_heads": 4}
    assert resolve(few).multiplier(layer=0, position=0) == 1 / 2
    t5 = {
        "model_type": "t5",
        "d_model": 512,
        "num_heads": 8,
        "num_layers": 6,
        "num_decoder_layers": 3,
        "d_kv": 64,
    }
    assert len(resolve(t5)) == 3
    assert len(resolve({**t5, "num_decoder_layers": None})) == 6
    assert len(resolve(t5, part="encoder")) == 6


def test_attention_options_are_for_attention() -> None:
    rng = np.random.default_rng(0)
    q, k, v = rng.standard_normal((3, 2, 24, 128))
    config = json.loads(json.dumps(MINISTRAL))
    config["rope_parameters"] = {
        "rope_type": "default",
        "llama_4_scaling_beta": 0.5,
        "original_max_position_embeddings": 8,
    }
    plan = resolve(config)
    options = plan.attention_options(0, np.arange(24))
    assert set(options) == {"scale"}
    by_hand = (1 + 0.5 * np.log1p(np.arange(24) // 8)) / math.sqrt(128)
    np.testing.assert_allclose(options["scale"], by_hand, rtol=1e-12)
    np.testing.assert_allclose(
        at.attention(q, k, v, is_causal=True, **options),
        at.attention(q * by_hand[:, None], k, v, is_causal=True, scale=1.0),
        rtol=1e-10,
        atol=1e-12,
    )
    assert resolve(GEMMA2).attention_options(0, [0, 5]) == {"scale": 1 / 12, "softcap": 50.0}
    assert resolve(GEMMA2).attention_options(0, 5) == {"scale": 1 / 12, "softcap": 50.0}
    with pytest.raises(at.audit.PlanError, match=r"attention sinks, .* sink_logits must be given"):
        resolve(GPT_OSS).attention_options(0, [0])
    with pytest.raises(at.audit.PlanError, match=r"sink_logits must be left out: layer 0 \(full_attention\)"):
        resolve(LLAMA).attention_options(0, [0], sink_logits=0.0)
    assert resolve(GPT_OSS).attention_options(0, [0], sink_logits=2.0)["normalizer"] == at.normalizers.Sink(
        2.0
    )
    with pytest.raises(at.audit.PlanError, match=r"unrotated / rotated = 0\.705882353"):
        resolve(PHI4_MINI).attention_options(0, [0])


def test_compare_finds_the_first_position() -> None:
    plain = resolve({**MINISTRAL, "rope_parameters": {"rope_type": "default"}})
    tempered = {
        "rope_type": "default",
        "llama_4_scaling_beta": 0.1,
        "original_max_position_embeddings": 100_000,
    }
    other = resolve({**MINISTRAL, "rope_parameters": tempered})
    assert at.audit.compare(plain, plain) == ()
    (difference,) = at.audit.compare(other, plain)
    assert (difference.layers, difference.what) == (tuple(range(34)), "rotated")
    assert difference.first_position == 100_000
    assert difference.here / difference.there == pytest.approx(1.0693147180559945)
    assert at.audit.compare(other, plain, up_to=100_000) == ()
    assert "differs from i = 100000 on" in str(difference)
    (layers,) = at.audit.compare(plain, resolve(LLAMA))
    assert (layers.what, layers.here, layers.there) == ("layers", 34, 4)
    first, second = at.audit.compare(resolve({**LLAMA, "rope_scaling": YARN}), plain)
    assert (first.what, second.layers, second.what) == ("layers", (0, 1, 2, 3), "rotated")


def test_compare_sees_what_is_not_a_multiplier() -> None:
    capped, uncapped = resolve(GEMMA2), resolve({**GEMMA2, "attn_logit_softcapping": None})
    (difference,) = at.audit.compare(capped, uncapped)
    assert (difference.what, difference.here, difference.there) == ("softcap", 50.0, None)
    a, b = (resolve({"model_type": kind, **sizes(256, 4, 6)}) for kind in ("llama", "mistral_large4_text"))
    assert "refusal" in {each.what for each in at.audit.compare(a, b)}


@pytest.mark.parametrize(
    ("name", "config", "ratio", "first"),
    [
        ("vllm", MINISTRAL, 1 / yarn(16) ** 2, 0),
        (
            "vllm-0.9",
            {
                **MINISTRAL,
                "rope_parameters": {
                    "rope_type": "default",
                    "llama_4_scaling_beta": 0.1,
                    "original_max_position_embeddings": 16384,
                },
            },
            1.0693147180559945,
            16384,
        ),
        (
            "vllm-0.25",
            {**LLAMA, "rope_scaling": {**YARN, "factor": 64.0, "attention_factor": 1.0}},
            1 / 1.4158883083359672**2,
            0,
        ),
        ("vllm", QWEN, None, 8192),
        ("tensorrt-llm", QWEN, None, 8192),
        ("sglang", MINISTRAL, 1 / yarn(16) ** 2, 0),
        ("mlx-lm", {**LLAMA, "rope_scaling": {**YARN, "attention_factor": 1.0}}, 1 / yarn(4) ** 2, 0),
        ("prime-rl", {**LLAMA, "rope_scaling": {**YARN, "attention_factor": 1.0}}, 1 / yarn(4) ** 2, 0),
        (
            "megatron-lm",
            {**DEEPSEEK, "rope_scaling": {**DEEPSEEK["rope_scaling"], "mscale": 0.5}},
            (yarn(40) / yarn(40, 0.5)) ** 2,
            0,
        ),
        ("transformers-before-47435", {**DEEPSEEK, "model_type": "deepseek_v2"}, yarn(40) ** 2, 0),
    ],
)
def test_rules_on_record(name: str, config: dict[str, Any], ratio: float | None, first: int) -> None:
    plan = resolve(config)
    theirs, defects = at.audit.as_framework(plan, name)
    assert defects
    assert all(defect.reference.startswith("https://github.com/") for defect in defects)
    differences = at.audit.compare(plan, theirs)
    assert {each.first_position for each in differences} == {first}
    if ratio is not None:
        assert differences[0].here / differences[0].there == pytest.approx(ratio, rel=1e-12)


def test_frameworks_that_agree_or_are_not_on_record() -> None:
    plan = resolve(LLAMA)
    assert at.audit.as_framework(plan, "vllm") == (plan, ())
    # DeepSeek has a code path of its own in vLLM.
    assert at.audit.as_framework(resolve(DEEPSEEK), "vllm")[1] == ()
    assert at.audit.as_framework(resolve(DEEPSEEK), "megatron-lm")[1] == ()  # both weights are 1
    for name, message in (
        ("nobody", "framework must be one of 'vllm'"),
        ("vllm-0.26", "on record up to version 0.25"),
        ("sglang-0.5", "on record without a version"),
    ):
        with pytest.raises(ValueError, match=message):
            at.audit.as_framework(plan, name)
