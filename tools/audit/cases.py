# SPDX-License-Identifier: BSD-3-Clause
"""Small models, by the keys of their configs, whose plans are compared with the code of transformers."""

from __future__ import annotations

from typing import Any

YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 32}
OLD_YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
DEEPSEEK_YARN = {**OLD_YARN, "type": "deepseek_yarn"}
PAIR = {**YARN, "mscale": 0.8, "mscale_all_dim": 0.5}
LONG = {"type": "longrope", "short_factor": [1.0] * 6, "long_factor": [2.0] * 6}
TEMPERED = {**YARN, "llama_4_scaling_beta": 0.2, "original_max_position_embeddings": 8}
LATENT = {"num_key_value_heads": 4}
LATENT_64 = {**LATENT, "head_dim": 8}  # some configurations keep the rotated channels there


MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_expand": 2, "mamba_n_groups": 1}
#: Three quarters of the channels are rotated, and a text longer than 64 has the factors of long texts.
PHI = {"partial_rotary_factor": 0.75, "original_max_position_embeddings": 64}
GRANITE_HYBRID = {
    **MAMBA,
    "layer_types": ["mamba", "attention"] * 2,
    "attention_multiplier": 0.5,
    "shared_intermediate_size": 32,
}
SLIDING_HEADS = {"swa_num_attention_heads": 4, "swa_num_key_value_heads": 2, "swa_head_dim": 8}
INKLING = {**SLIDING_HEADS, "d_rel": 8, "log_scaling_n_floor": 8, "num_hidden_layers": 6}
INKLING_LOOP = {
    "rel_extent": 16,
    "sliding_window_size": 8,
    "n_layers_per_attn_res_block": 2,
    "loop_layer_index_start": 2,
    "loop_layer_index_end": 4,
    "loop_num_passes": 2,
}
SLIDING_LATENT = {
    "swa_qk_nope_head_dim": 16,
    "swa_q_lora_rank": 16,
    "swa_kv_lora_rank": 8,
    "swa_v_head_dim": 16,
}
DOTS_HEADS = {"swa_num_attention_heads": 4, "swa_num_key_value_heads": 4, "swa_head_dim": 24, "head_dim": 24}
LISTS_OF_8 = {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
LONGCAT = {
    "num_layers": 2,
    "num_hidden_layers": 4,
    "ffn_hidden_size": 32,
    "expert_ffn_hidden_size": 16,
    "moe_topk": 2,
    "zero_expert_num": 1,
}
KIMI_LAYERS = {
    "full_attn_layers": [2, 4],
    "kda_layers": [1, 3],
    "head_dim": 16,
    "num_heads": 4,
    "short_conv_kernel_size": 4,
}
ZAMBA = {"layers_block_type": ["mamba", "hybrid"] * 2, "n_mamba_heads": 8, "mamba_d_state": 8}
NEMOTRON_MAMBA = {"mamba_num_heads": 8, "mamba_head_dim": 16, "ssm_state_size": 8, "n_groups": 1}
GEMMA_3N = {
    "num_kv_shared_layers": 0,
    "intermediate_size": [32] * 4,
    "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": 64,
    "activation_sparsity_pattern": [0.0] * 4,
}
ALTERNATING = {"layer_types": ["sliding_attention", "full_attention"] * 2}


def nested(**by_kind: Any) -> dict[str, Any]:
    plain = {"rope_type": "default", "rope_theta": 10000.0}
    return {"full_attention": by_kind.get("full", plain), "sliding_attention": by_kind.get("sliding", plain)}


#: (model type, keys on top of the sizes)
CASES: list[tuple[str, dict[str, Any]]] = [
    # Plain scale; YaRN in old and new spellings, and each of its rules.
    ("llama", {}),
    ("llama", {"rope_scaling": OLD_YARN}),
    ("llama", {"rope_parameters": YARN}),
    ("llama", {"rope_parameters": {**YARN, "factor": 1.0}}),
    ("llama", {"rope_parameters": {**YARN, "factor": None}}),
    ("llama", {"rope_parameters": {**YARN, "attention_factor": 1.5}}),
    ("llama", {"rope_parameters": PAIR}),
    ("llama", {"rope_parameters": {**YARN, "mscale_all_dim": 0.5}}),
    ("llama", {"rope_parameters": {**PAIR, "mscale": 0.0}}),
    ("llama", {"rope_scaling": {"type": "linear", "factor": 8.0}}),
    ("llama", {"rope_scaling": {"rope_type": "dynamic", "factor": 8.0}}),
    ("llama", {"head_dim": None, "rope_scaling": OLD_YARN}),
    (
        "llama",
        {"original_max_position_embeddings": 64, "rope_scaling": {**LONG, "factor": 4.0, **LISTS_OF_8}},
    ),
    ("qwen2", {"rope_scaling": OLD_YARN}),
    ("qwen3", {"rope_scaling": OLD_YARN}),
    ("qwen3_moe", {"rope_parameters": YARN}),
    ("mistral", {"rope_parameters": YARN, "sliding_window": None}),
    # A part of the channels.
    ("phi3", {**PHI, "rope_scaling": LONG}),
    ("phi3", {**PHI, "rope_scaling": {**LONG, "type": "su", "original_max_position_embeddings": 64}}),
    ("phi3", {**PHI, "original_max_position_embeddings": 4096, "rope_scaling": LONG}),
    ("phi3", {**PHI, "rope_scaling": {**LONG, "attention_factor": 1.25}}),
    ("gpt_neox", {"rotary_pct": 0.5, "rope_scaling": OLD_YARN}),
    ("gpt_neox", {}),
    ("glm4_moe", {"partial_rotary_factor": 0.5, "rope_parameters": YARN, "n_shared_experts": 1}),
    ("glm4_moe", {"partial_rotary_factor": 0.5, "use_qk_norm": True, "n_shared_experts": 1}),
    ("persimmon", {"rope_scaling": OLD_YARN}),
    ("stablelm", {"rope_scaling": OLD_YARN}),
    ("minimax_m2", {"rope_parameters": {**YARN, "partial_rotary_factor": 0.5}}),
    ("mimo_v2_flash", {}),
    (
        "laguna",
        {
            "num_attention_heads_per_layer": [4] * 4,
            "layer_types": ["full_attention"] * 4,
            "rope_parameters": {"full_attention": {**YARN, "partial_rotary_factor": 0.5}},
        },
    ),
    # Keys by kind of layer.
    ("gemma3_text", {"rope_parameters": nested(full=YARN)}),
    ("gemma3_text", {"rope_scaling": YARN, "sliding_window_pattern": 2}),
    ("olmo3", {"rope_scaling": YARN}),
    ("modernbert", {"rope_scaling": YARN}),
    ("olmo3", {"rope_parameters": nested(full=YARN)}),
    ("modernbert", {"rope_parameters": nested(sliding=YARN)}),
    # Layers without positions.
    ("afmoe", {"rope_parameters": YARN}),
    ("cohere2", {"rope_parameters": YARN}),
    ("cohere2_moe", {"rope_parameters": YARN}),
    ("exaone4", {"rope_parameters": YARN, "sliding_window": 16}),
    ("exaone4", {"rope_parameters": YARN, "sliding_window": None, "layer_types": ["full_attention"] * 4}),
    ("smollm3", {"rope_parameters": YARN, "no_rope_layer_interval": 2}),
    ("smollm3", {"rope_parameters": YARN, "no_rope_layers": [0, 1, 1, 0]}),
    ("flint", {"rope_parameters": YARN}),
    ("kolibri1", {"rope_parameters": YARN, "num_hidden_layers": 5}),
    # A norm behind the rotation undoes the factor.
    ("hunyuan_v1_dense", {"rope_parameters": YARN}),
    ("nanochat", {"rope_parameters": YARN}),
    ("llama4_text", {"rope_parameters": YARN, "use_qk_norm": True, "floor_scale": 8}),
    # Numbers of the config.
    ("gemma2", {"query_pre_attn_scalar": 144}),
    ("gemma2", {"attn_logit_softcapping": None}),
    ("gemma2", {"attn_logit_softcapping": 30.0, "rope_parameters": YARN}),
    ("vaultgemma", {"query_pre_attn_scalar": 100}),
    ("gemma3_text", {"query_pre_attn_scalar": 168}),
    ("gemma4_text", {"vocab_size_per_layer_input": 64}),
    ("granite", {"attention_multiplier": 0.0078125, "rope_scaling": OLD_YARN}),
    ("granite", {}),
    ("granitemoe", {"attention_multiplier": 0.5}),
    ("granitemoeshared", {"attention_multiplier": 0.5}),
    ("granite_swa", {"attention_multiplier": 0.5, "layer_rope_theta": [0, 1e4, 1e4, 0]}),
    ("hyperclovax", {"attention_multiplier": 0.5}),
    ("hyperclovax", {}),
    ("falcon_h1", {"key_multiplier": 0.25, "mamba_d_ssm": 64, "mamba_n_heads": 4, "mamba_d_head": 16}),
    ("muse_glimmer_text", {"qk_scale_factor": 3.0, "rope_parameters": YARN}),
    ("gpt2", {"scale_attn_by_inverse_layer_idx": True}),
    ("gpt2", {"scale_attn_weights": False}),
    ("gpt2", {}),
    ("gpt_bigcode", {"scale_attn_weights": False, "multi_query": True}),
    # Temperatures: blocks of 8 positions, 40 positions.
    ("llama4_text", {"floor_scale": 8, "attn_scale": 0.3}),
    ("llama4_text", {"floor_scale": 8, "attn_temperature_tuning": False}),
    (
        "llama4_text",
        {"floor_scale": 8, "no_rope_layers": [0, 1, 0, 1], "use_qk_norm": False, "rope_parameters": YARN},
    ),
    ("ministral3", {"rope_parameters": TEMPERED}),
    ("ministral3", {"rope_scaling": {**TEMPERED, "mscale": 1.0, "mscale_all_dim": 1.0}}),
    ("ministral3", {}),
    ("mistral4", {**LATENT, "rope_parameters": {**TEMPERED, "mscale": 1.0, "mscale_all_dim": 0.5}}),
    ("beam", {}),
    ("inkling_text", {**INKLING, "log_scaling_alpha": 0.3}),
    # Multi-head latent attention.
    *(
        (kind, {**LATENT, "rope_parameters": PAIR})
        for kind in ("deepseek_v2", "deepseek_v3", "deepseek_v32", "axk1", "hy_v4", "minicpm3", "youtu")
    ),
    ("hy_v4_vl_text", {**LATENT, "rope_parameters": {**PAIR, "mrope_section": [1, 1, 2]}}),
    ("sarvam_mla", {**LATENT, "q_lora_rank": None, "rope_parameters": PAIR}),
    ("sarvam_mla", {**LATENT, "q_lora_rank": None, "rope_scaling": {**DEEPSEEK_YARN, "mscale_all_dim": 0.5}}),
    ("sarvam_moe", {"n_shared_experts": 1, "rope_parameters": YARN}),
    ("deepseek_v3", {**LATENT, "rope_scaling": {**OLD_YARN, "mscale": 1.0, "mscale_all_dim": 1.0}}),
    ("deepseek_v3", {**LATENT, "rope_scaling": {**OLD_YARN, "mscale_all_dim": 0.707}}),
    ("deepseek_v3", {**LATENT, "rope_scaling": OLD_YARN}),
    ("deepseek_v3", {**LATENT, "q_lora_rank": None}),
    ("glm4_moe_lite", {**LATENT_64, "rope_parameters": PAIR}),
    ("longcat_flash", {**LATENT_64, **LONGCAT, "rope_parameters": PAIR}),
    # Sinks.
    ("gpt_oss", {"rope_scaling": OLD_YARN}),
    ("gpt_oss", {}),
    ("openai_privacy_filter", {}),
    # Layers without attention, and what the others do.
    ("bamba", {**MAMBA, "attn_layer_indices": [1, 3], "rope_parameters": YARN}),
    ("jamba", {"attn_layer_period": 2, "attn_layer_offset": 1, "mamba_d_state": 8, "num_experts": 2}),
    ("granitemoehybrid", {**GRANITE_HYBRID, "position_embedding_type": "rope", "rope_parameters": YARN}),
    ("granitemoehybrid", GRANITE_HYBRID),
    ("bailing_hybrid", {**LATENT, "layer_group_size": 2, "rope_parameters": PAIR}),
    ("kimi_linear", {**LATENT, "num_hidden_layers": 5}),
    ("kimi_linear", {**LATENT, "linear_attn_config": KIMI_LAYERS}),
    ("zamba2", {**ZAMBA, "num_key_value_heads": 4, "use_mem_rope": True, "rope_parameters": YARN}),
    ("minimax", {"rope_parameters": YARN}),
    ("qwen3_next", {"rope_parameters": {**YARN, "partial_rotary_factor": 0.5}, "full_attention_interval": 2}),
    ("qwen3_5_text", {"full_attention_interval": 2, "head_dim": 64}),
    ("lfm2", {"full_attn_idxs": [1, 3], "rope_parameters": YARN}),
    ("lfm3", {}),
    ("lara_mini", {"num_hidden_layers": 5, "rope_parameters": YARN}),
    ("nemotron_h", {"hybrid_override_pattern": "M*-*", **NEMOTRON_MAMBA}),
    ("olmo_hybrid", {"rope_parameters": None}),
    ("olmo_hybrid", {"rope_parameters": YARN}),
    # More rows of the table.
    ("dots3_note_text", {**LATENT, **SLIDING_LATENT, **DOTS_HEADS, "use_dsa": False, "n_shared_experts": 1}),
    ("deepseek_v4", {"num_key_value_heads": 1, "o_groups": 2, "o_lora_rank": 8}),
    ("inkling2_text", {**INKLING, "rel_extent": 16, "sliding_window_size": 8}),
    ("inkling2_loop_text", {**INKLING, **INKLING_LOOP}),
    ("inkling2_loop_text", {**INKLING, **INKLING_LOOP, "log_scaling_alpha": 0.3}),
    ("muse_spark_text", {"qk_scale_factor": 3.0}),
    ("cohere_compass_text", {"rope_parameters": nested(full=None, sliding=YARN), **ALTERNATING}),
    ("gemma3n_text", {**GEMMA_3N, **ALTERNATING}),
    ("gemma4_text", {"global_head_dim": 32, "vocab_size_per_layer_input": 64}),
    ("step3p5", {"query_pre_attn_scalar": 100, "sliding_window": 16}),
    (
        "step3p5",
        {
            "sliding_window": 16,
            "rope_scaling": YARN,
            "layer_types": ["full_attention", "sliding_attention"] * 2,
        },
    ),
    ("neomme", {"num_hidden_layers": 6, "rope_parameters": {"full_attention": YARN}}),
    ("minimax_m3_vl_text", {"rope_parameters": YARN}),
    ("mistral4", LATENT),
    ("phi", {"rope_parameters": YARN, "qk_layernorm": True}),
    ("glm", {"rope_parameters": YARN}),
    ("nemotron", {"rope_parameters": YARN}),
    ("mellum", {"rope_parameters": nested(full=YARN)}),
    ("esm", {"position_embedding_type": "rotary"}),
    ("qwen2_vl_text", {"rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]}}),
    ("qwen3_vl_text", {"rope_parameters": {**YARN, "mrope_section": [2, 3, 3]}}),
    *(
        (kind, {"rope_parameters": YARN})
        for kind in ("apertus", "bitnet", "doge", "ernie4_5_moe", "helium", "hy_v3", "ministral", "seed_oss")
    ),
]
