# SPDX-License-Identifier: BSD-3-Clause
"""Keys with which model types without a case of their own are built small and run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attnscale as at
import torch

from . import quietly
from .oracle import LENGTH

_SECTIONS = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}}
_HALVES = {
    f"{half}_{name}": size
    for half, heads in (("encoder", 4), ("decoder", 2))
    for name, size in (("attention_heads", heads), ("layers", 2), ("ffn_dim", 32))
}
_CROSS_HEADS = ("cross_num_attention_heads", "cross_num_key_value_heads")
_D_KV = {"d_kv": 24, "num_layers": 2, "d_ff": 32}
_LIKE_BART = (
    *(
        "bart",
        "blenderbot",
        "blenderbot-small",
        "bigbird_pegasus",
        "fsmt",
        "m2m_100",
        "marian",
        "mbart",
        "mvp",
    ),
    *("nllb-moe", "pegasus", "pegasus_x", "plbart", "led", "pp_formulanet_text", "trocr"),
)
_LIKE_T5 = ("longt5", "mt5", "pop2piano", "switch_transformers", "t5", "umt5")
_FLOW = {"flow_head_config": {"condition_dim": 64}}

#: Keys on top of the sizes.
KEYS: dict[str, dict[str, Any]] = {
    **dict.fromkeys(_LIKE_BART, _HALVES),
    **dict.fromkeys(_LIKE_T5, _D_KV),
    "chameleon": {"vocabulary_map": {"a": 1}},
    "codegen": {"rotary_dim": 8},
    "cosmos3_edge_text": _SECTIONS,
    "cpmant": {"dim_head": 24},
    "decision_transformer": {"n_layer": 2, "scale_attn_by_inverse_layer_idx": True},
    "dia_decoder": {"cross_hidden_size": 64, "cross_head_dim": 16, **dict.fromkeys(_CROSS_HEADS, 4)},
    "diffusion_gemma_text": {"top_k_experts": 2},
    "dots1": {"n_shared_experts": 1},
    "esmc": {"num_key_value_heads": 4},
    "funnel": {"d_head": 24, "block_sizes": [2, 2]},
    "git": {"vision_config": {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}},
    "glm5_next_text": {"num_key_value_heads": 4, "qk_rope_head_dim": 0},
    "t5gemma2_decoder": {"dropout_rate": 0.0},
    "t5gemma2_text": {"dropout_rate": 0.0},
    "xmod": {"default_language": "en_XX"},
    "zaya": {"num_experts_per_tok": 1},
    "zamba": {"num_hidden_layers": 9},
    "glm4v_moe_text": {
        "rope_parameters": {**_SECTIONS["rope_parameters"], "mrope_section": [1, 1, 2]},
        "n_shared_experts": 1,
    },
    "glm4v_text": _SECTIONS,
    "glm_image_text": _SECTIONS,
    "glm_ocr_text": _SECTIONS,
    "gpt_neo": {"attention_types": [[["global", "local"], 2]]},
    "gptj": {"rotary_dim": 8},
    "gradium_phonon_tts": _FLOW,
    "hunyuan_vl_text": _SECTIONS,
    "jetmoe": {"kv_channels": 24},
    "layoutlmv3": {"coordinate_size": 8, "shape_size": 16, "visual_embed": False},
    "lfm2_moe": {"layer_types": ["full_attention"] * 4, "num_dense_layers": 1},
    "lxmert": {"l_layers": 2, "x_layers": 1, "r_layers": 1},
    "mobilebert": {"intra_bottleneck_size": 32},
    "paddleocr_vl_text": _SECTIONS,
    "pix2struct_text_model": {"initializer_range": 1.0, "d_kv": 16, "num_layers": 2},
    "pocket_tts": _FLOW,
    "prophetnet": {
        "max_position_embeddings": 64,  # it makes a square of them
        **{f"num_{half}_attention_heads": heads for half, heads in (("encoder", 4), ("decoder", 2))},
        **{f"num_{half}_layers": 2 for half in ("encoder", "decoder")},
    },
    "qwen2_5_omni_text": _SECTIONS,
    "qwen2_vl_text": _SECTIONS,
    "qwen2_5_vl_text": _SECTIONS,
    "sew-d": {"share_att_key": False},
    "speech_to_text": _HALVES,
    "squeezebert": {"embedding_size": 64},
    "switch_transformers": {**_D_KV, "num_decoder_layers": 2},
    "udop": {"d_kv": 24, "num_layers": 2},
    "videoprism_text_model": {"attn_logit_softcapping": 1e6},  # a soft-cap of 50 would bend the score
    "whisper": _HALVES,
}

_SOUND = (
    *("data2vec-audio", "hubert", "sew", "sew-d", "unispeech", "unispeech-sat"),
    *("wav2vec2", "wav2vec2-conformer"),
)

#: Inputs of a model that takes more than tokens.
INPUTS: dict[str, Callable[[], dict[str, Any]]] = {
    **dict.fromkeys(_SOUND, lambda: {"input_values": torch.randn(1, 16000)}),
    "bros": lambda: {"bbox": torch.rand(1, LENGTH, 4)},
    "decision_transformer": lambda: {
        "states": torch.randn(1, 5, 17),
        "actions": torch.randn(1, 5, 4),
        "returns_to_go": torch.randn(1, 5, 1),
        "timesteps": torch.arange(5)[None],
    },
    "dia_decoder": lambda: {
        "input_ids": torch.ones(1, LENGTH, 9, dtype=torch.long),
        "encoder_hidden_states": torch.randn(1, 7, 64),
    },
    "layoutlmv3": lambda: {"bbox": torch.randint(0, 900, (1, LENGTH, 4))},
    "lxmert": lambda: {"visual_feats": torch.randn(1, 5, 2048), "visual_pos": torch.rand(1, 5, 4)},
    "musicgen_decoder": lambda: {"input_ids": torch.ones(4, LENGTH, dtype=torch.long)},
    "musicgen_melody_decoder": lambda: {"input_ids": torch.ones(4, LENGTH, dtype=torch.long)},
    "speech_to_text": lambda: {"input_features": torch.randn(1, 4 * LENGTH, 80)},
    "t5gemma2_decoder": lambda: {"encoder_hidden_states": torch.randn(1, 7, 64)},
    "udop": lambda: {"bbox": torch.rand(1, LENGTH, 4)},
    "whisper": lambda: {"input_features": torch.randn(1, 80, 3000)},
    "wav2vec2-bert": lambda: {"input_features": torch.randn(1, LENGTH, 160)},
}

#: Types whose q and k are normed behind their rotation, or come out of latents: what enters the softmax.
BY_CALLS = ("glm_moe_dsa", "hunyuan_v1_moe", "hunyuan_vl_text", "unlimited_ocr_text")

#: Types whose q and k are not the output of one module each: compared are head size and the scale handed on.
BY_SCALE = ("axk2", "glm5_next_text", "jetmoe", "zaya")

_NEED_OTHER_INPUT = (
    *("beit", "blip_2_qformer", "blt_local_decoder", "blt_local_encoder", "csm_depth_decoder_model", "tvp"),
    *("deepseek_ocr2_encoder", "fine_acoustics", "idefics", "flava_image_model", "granite_speech5_encoder"),
    *("kyutai_speech_to_text", "layoutlmv2", "lilt", "layoutxlm", "moonshine", "moshi_depth", "ovis2_vision"),
    *("qwen2_5_omni_talker", "qwen3_omni_moe_talker_code_predictor", "speecht5", "vilt", "voxtral_encoder"),
    "voxtral_realtime_encoder",
)
_DO_NOT_BUILD_ALONE = (
    *("clvp_encoder", "dbrx", "deepseek_ocr2_text", "ernie4_5_vl_moe_text", "moonshine_streaming"),
    *("nemotron3_5_transcribe_word_timestamp", "qwen3_omni_moe_talker_text", "qwen4_exp_text"),
    "voxtral_realtime_text",
)
_ARE_LARGE = (
    *("EvollaModel", "evolla", "cohere_asr", "csm", "phi4_multimodal", "vits", "luke", "seamless_m4t"),
    *("seamless_m4t_v2", "fastspeech2_conformer"),
)

#: Types that no test runs: plain ones by the code of transformers, or refused.
NOT_RUN: dict[str, str] = {
    **dict.fromkeys(_NEED_OTHER_INPUT, "takes images, sound or what another model made of them"),
    **dict.fromkeys(_DO_NOT_BUILD_ALONE, "does not build small from its own configuration class"),
    **dict.fromkeys(_ARE_LARGE, "takes more than 5 seconds to build"),
    "convbert": "another softmax comes before that of the scores",
    "dory": "refused: the scale has weights",
    "ibert": "its softmax is one of integers",
    "mistral_large4_text": "refused: the scale has weights",
    "mra": "an approximation without a softmax of scores",
    "reformer": "an exponential in place of a softmax",
    "t5_gemma_module": "runs as a part of t5gemma, below",
    "wavlm": "one function of torch for projections and softmax",
    "xlnet": "q and k are made without a module",
    "yoso": "refused: not a softmax",
}


def has_halves(config: dict[str, Any]) -> bool:
    """Whether the config describes an encoder and a decoder."""
    try:
        return bool(quietly(config, part="encoder"))
    except at.audit.ConfigError:
        return False
