"""Small configs of every family that can be written as GGUF, and an independent reader of such files."""

from __future__ import annotations

import copy
import math
import struct
from pathlib import Path
from typing import Any

import numpy as np
from attnscale.probe import _gguf as gguf  # noqa: F401 - tests take it from here
from numpy.typing import NDArray

_SIZES = {
    "vocab_size": 256,
    "hidden_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 256,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
    "rope_theta": 10000.0,
}
_KINDS = ["sliding_attention"] * 3 + ["full_attention"]
_WINDOWS = {"num_hidden_layers": 4, "sliding_window": 16, "layer_types": _KINDS}
_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
_TIED = {"tie_word_embeddings": True}
_GEMMA = {"head_dim": 64, "query_pre_attn_scalar": 64, "sliding_window": 16, **_TIED}
_GEMMA |= {"hidden_activation": "gelu_pytorch_tanh"}
_MINISTRAL = {
    "rope_type": "yarn",
    "factor": 16.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 256,
    "llama_4_scaling_beta": 0.1,
    "rope_theta": 1e6,
}
_LATENT = {
    "num_key_value_heads": 4,
    "q_lora_rank": 96,
    "kv_lora_rank": 64,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 32,
    "v_head_dim": 32,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "moe_intermediate_size": 128,
    "first_k_dense_replace": 1,
    "n_shared_experts": 1,
    "routed_scaling_factor": 2.5,
    "norm_topk_prob": True,
    "scoring_func": "sigmoid",
}


def _model(kind: str, name: str, **keys: Any) -> dict[str, Any]:
    return {**_SIZES, "model_type": kind, "architectures": [f"{name}ForCausalLM"], **keys}


_MODELS = (
    _model("llama", "Llama"),
    _model("mistral", "Mistral", head_dim=128, sliding_window=None),
    _model("ministral3", "Ministral3", head_dim=128, rope_parameters=_MINISTRAL),
    _model("mixtral", "Mixtral", head_dim=64, **_EXPERTS),
    _model("qwen2", "Qwen2"),
    _model("qwen3", "Qwen3", head_dim=128),
    _model(
        "qwen3_moe",
        "Qwen3Moe",
        head_dim=128,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=128,
        norm_topk_prob=True,
    ),
    _model("gemma2", "Gemma2", **_GEMMA, attn_logit_softcapping=50.0, final_logit_softcapping=30.0),
    _model(
        "gemma3_text",
        "Gemma3",
        **{**_GEMMA, "num_hidden_layers": 6, "rope_theta": 1e6},
        rope_local_base_freq=10000.0,
        layer_types=["sliding_attention"] * 5 + ["full_attention"],
    ),
    _model("phi3", "Phi3", original_max_position_embeddings=4096, sliding_window=None),
    _model(
        "gpt_oss",
        "GptOss",
        head_dim=64,
        sliding_window=16,
        layer_types=["sliding_attention", "full_attention"],
        rope_parameters={"rope_type": "default", "rope_theta": 150000.0},
        **_EXPERTS,
    ),
    _model("glm4", "Glm4", head_dim=64, partial_rotary_factor=0.5, attention_bias=True),
    _model("cohere2", "Cohere2", **_WINDOWS, **_TIED, logit_scale=0.25, rotary_pct=1.0, layer_norm_eps=1e-5),
    _model("olmo3", "Olmo3", **{**_WINDOWS, "rope_theta": 500000.0}),
    _model("smollm3", "SmolLM3", num_hidden_layers=4, no_rope_layers=[1, 1, 1, 0], **_TIED),
    _model(
        "llama4_text",
        "Llama4",
        num_hidden_layers=4,
        head_dim=64,
        intermediate_size_mlp=256,
        num_local_experts=4,
        num_experts_per_tok=1,
        interleave_moe_layer_step=1,
        attention_chunk_size=8192,
        use_qk_norm=True,
    ),
    _model(
        "granite",
        "Granite",
        attention_multiplier=0.1,
        embedding_multiplier=12.0,
        residual_multiplier=0.22,
        logits_scaling=8.0,
    ),
    _model("deepseek_v3", "DeepseekV3", **_LATENT),
    _model(
        "exaone4",
        "Exaone4",
        num_hidden_layers=4,
        sliding_window=None,
        sliding_window_pattern=None,
        layer_types=["full_attention"] * 4,
    ),
)

#: Configs by model type.
MODELS: dict[str, dict[str, Any]] = {each["model_type"]: each for each in _MODELS}

_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}
_LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}

#: Rotary parameters by name.
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "yarn": _YARN,
    "yarn, attention_factor": {**_YARN, "attention_factor": 1.0, "beta_fast": 16.0, "beta_slow": 2.0},
    "yarn, mscale pair": {**_YARN, "mscale": 1.0, "mscale_all_dim": 1.0},
    "yarn, truncate": {**_YARN, "truncate": False},
    "yarn without a length": {"rope_type": "yarn", "factor": 4.0},
    "llama3": {**_LLAMA3, "original_max_position_embeddings": 512},
    "dynamic": {"rope_type": "dynamic", "factor": 4.0},
    "longrope": {"rope_type": "longrope"},
}


def config_of(kind: str, variant: str = "plain") -> dict[str, Any]:
    """The config of a family with the rotary parameters of a variant."""
    config = copy.deepcopy(MODELS[kind])
    rope = dict(VARIANTS[variant])
    if not rope:
        return config
    if variant == "longrope":
        size = 32 if kind == "deepseek_v3" else config.get("head_dim", 64)
        pairs = int(size * config.get("partial_rotary_factor", 1)) // 2
        rope["short_factor"] = [1 + pair / 100 for pair in range(pairs)]
        rope["long_factor"] = [2 + pair / 50 for pair in range(pairs)]
        config["original_max_position_embeddings"] = 1024
    if kind == "ministral3":
        rope = {**_MINISTRAL, **rope}
    if "rope_parameters" in config:
        config["rope_parameters"] = {"rope_theta": config["rope_parameters"]["rope_theta"], **rope}
    else:
        config["rope_scaling"] = rope
    return config


# ---- reading ---------------------------------------------------------------------------------------

_CODES = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_TYPES = {0: ("f32", 1, 4), 1: ("f16", 1, 2), 8: ("q8_0", 32, 34), 30: ("bf16", 1, 2)}


def parsed(path: Path) -> tuple[dict[str, tuple[int, Any]], dict[str, tuple[str, NDArray[Any]]]]:
    """Metadata as (type, value), and tensors as (type, numbers), by name."""
    reader = _Reader(path.read_bytes())
    assert reader.take(4) == b"GGUF"
    assert reader.number("I") == 3
    tensors, keys = reader.number("Q"), reader.number("Q")
    metadata = {reader.text(): reader.value(reader.number("I")) for _ in range(keys)}
    places = {}
    for _ in range(tensors):
        name, axes = reader.text(), reader.number("I")
        shape = [reader.number("Q") for _ in range(axes)][::-1]
        places[name] = (shape, _TYPES[reader.number("I")], reader.number("Q"))
    start = -(-reader.place // 32) * 32
    found, end = {}, start
    for name, (shape, (kind, block, size), place) in places.items():
        assert place % 32 == 0
        assert start + place == -(-end // 32) * 32  # one behind the other
        end = start + place + math.prod(shape) // block * size
        found[name] = (kind, _decoded(kind, reader.content[start + place : end]).reshape(shape))
    assert -(-end // 32) * 32 == len(reader.content)
    return metadata, found


def _decoded(kind: str, raw: bytes) -> NDArray[Any]:
    if kind == "q8_0":
        blocks = np.frombuffer(raw, np.uint8).reshape(-1, 34)
        scale = blocks[:, :2].copy().view("<f2").astype(np.float32)
        return scale * blocks[:, 2:].copy().view(np.int8)
    if kind == "bf16":
        return (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32)
    return np.frombuffer(raw, {"f32": "<f4", "f16": "<f2"}[kind])


class _Reader:
    def __init__(self, content: bytes) -> None:
        self.content, self.place = content, 0

    def take(self, size: int) -> bytes:
        self.place += size
        return self.content[self.place - size : self.place]

    def number(self, code: str) -> Any:
        return struct.unpack(f"<{code}", self.take(struct.calcsize(code)))[0]

    def text(self) -> str:
        return self.take(self.number("Q")).decode()

    def value(self, kind: int) -> tuple[int, Any]:
        if kind == 8:
            return kind, self.text()
        if kind != 9:
            return kind, self.number(_CODES[kind])
        inner, count = self.number("I"), self.number("Q")
        return kind, (inner, [self.value(inner)[1] for _ in range(count)])
