# SPDX-License-Identifier: BSD-3-Clause
"""Channels that rotary positions turn together, by model type, as measured in transformers 5.24.0."""

from __future__ import annotations

from typing import Literal

from .._angles import Rotation

#: Types whose checkpoints have the two channels of a pair side by side.
_ADJACENT = (
    "axk1 axk2 bailing_hybrid blt_patcher cohere cohere2 cohere2_moe deepseek_v2 deepseek_v3 "
    "deepseek_v32 deepseek_v4 dots3_note_text ernie4_5 ernie4_5_moe glm glm4 glm4_moe_lite glm_moe_dsa "
    "helium hy_v4_vl_text llama4_text longcat_flash mistral4 openai_privacy_filter sarvam_mla youtu"
)
#: Types whose checkpoints have them in the two halves of the rotated channels.
_HALVES = (
    "afmoe apertus apertus1p5_text arcee aria_text bamba beam bitnet cohere_compass_text cwm diffllama "
    "doge dory embedding_gemma2_text emu3_text_model esm eurobert evolla exaone exaone4 exaone_moe "
    "falcon falcon_h1 flex_olmo flint gemma gemma2 gemma3_text gemma3n_text gemma4_text "
    "gemma4_unified_text glm4_moe gpt_neox gpt_neox_japanese gpt_oss granite granite4_vision_text "
    "granite_docling_text granite_swa granitemoe granitemoe_swa granitemoehybrid granitemoeshared gte "
    "higgs_audio_v2 hrm_text hy_v3 hy_v4 hyperclovax internlm3 iquestcoder jais2 jina_embeddings_v3 "
    "kolibri1 laguna lara_mini lfm2 lfm3 llama mellum mimo_v2_flash minicpm3 minimax minimax_m2 "
    "minimax_m3_vl_text ministral ministral3 mistral mixtral mllama_text_model modernbert "
    "modernbert-decoder molmo2_text moshi muse_glimmer_text muse_spark_text nemotron neomme nomic_bert "
    "olmo olmo2 olmo3 olmo_hybrid olmoe persimmon phi phi3 phimoe qwen2 qwen2_moe qwen2_vl_text qwen3 "
    "qwen3_5_moe_text qwen3_5_text qwen3_moe qwen3_next qwen3_omni_moe_text qwen3_vl_moe_text "
    "qwen3_vl_text recurrent_gemma sarvam_moe seed_oss smollm3 solar_open stablelm starcoder2 step3p5 "
    "ultrabert vaultgemma zamba2"
)


def pairing_of(model_type: str, rotation: Rotation | None) -> Literal["adjacent", "halves", ""]:
    """How a model pairs the channels of its projections; empty where that is not known."""
    given = None if rotation is None else dict(rotation.parameters).get("rope_interleave")
    if isinstance(given, bool):
        return "adjacent" if given else "halves"
    if model_type in _ADJACENT.split():
        return "adjacent"
    return "halves" if model_type in _HALVES.split() else ""
