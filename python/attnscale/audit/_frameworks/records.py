# SPDX-License-Identifier: BSD-3-Clause
"""What is on record about frameworks: each report, the rule that it is about, a config that shows it."""

from __future__ import annotations

import math

from ...laws import GrokTemperature, LayerIndex, LongRoPE, MinistralTemperature, MLAYaRN, QwenLogN, YaRN
from .changes import (
    in_order,
    mla_yarn_by_mscale,
    of_types,
    plain_yarn,
    standard_base,
    with_base,
    with_yarn_factor,
    without,
    without_sink,
    without_softcap,
)
from .defect import Change, Defect, Framework
from .record_configs import CONFIGS


def _defect(what: str, thread: str, shown_by: str, change: Change, **versions: str) -> Defect:
    """A defect on record; `thread` and `mended` are places on GitHub, such as "owner/name/pull/1"."""
    links = {name: text if name != "mended" else f"{_GITHUB}{text}" for name, text in versions.items()}
    return Defect(what, f"{_GITHUB}{thread}", CONFIGS[shown_by], change, **links)


_GITHUB = "https://github.com/"
_FACTOR = "attention_factor of YaRN is ignored"
_MSCALE = "mscale and mscale_all_dim of YaRN are ignored"
_LOGN = "use_logn_attn is ignored"
_SOFTCAP = "the soft-cap of attention is left out"
_LAYER = "scale_attn_by_inverse_layer_idx is ignored"
_MLA = "mscale_all_dim does not reach the scale of latent attention"
_LATENT = ("deepseek_v2", "deepseek_v3")
_LAGUNA = "attention_factor of YaRN, of Laguna, is"
_GEMMA2_9B_LAYERS = 42
_GLM = 512 + 64  # channels of a key where latent attention works on the compressed ones

_VLLM = (
    _defect(_FACTOR, "vllm-project/vllm/pull/48351", "attention_factor", plain_yarn("attention_factor")),
    _defect(
        *(_MSCALE, "vllm-project/vllm/issues/48621", "mscale", plain_yarn("mscale", "mscale_all_dim")),
        seen="0.25.0",
        mended="vllm-project/vllm/pull/56446",
    ),
    _defect(
        "llama_4_scaling_beta among the rope parameters is ignored",
        *("vllm-project/vllm/issues/48621", "ministral temperature", without(MinistralTemperature)),
        seen="0.25.0",
    ),
    _defect(_LOGN, "vllm-project/vllm/issues/36880", "logn", without(QwenLogN)),
    _defect(
        "scale_attn_weights = false is ignored: the scale is 1/sqrt(head_dim)",
        *("vllm-project/vllm/pull/36637", "unscaled weights", of_types(standard_base, "gpt_bigcode")),
    ),
)

_SGLANG = (
    _defect(_MSCALE, "sgl-project/sglang/pull/22711", "mscale", plain_yarn("mscale", "mscale_all_dim")),
    _defect(
        f"{_LAGUNA} multiplied by YaRN's own",
        *("sgl-project/sglang/pull/33558", "laguna"),
        of_types(with_yarn_factor(lambda given, factor: given * (0.1 * math.log(factor) + 1)), "laguna"),
        mended="sgl-project/sglang/pull/33558",
    ),
    _defect(
        f"{_SOFTCAP} by the FlashInfer backend",
        *("sgl-project/sglang/issues/33915", "gemma2 2b"),
        of_types(without_softcap, "gemma2", "grok-1", "grok", "grok-2"),
    ),
)

_TENSORRT_LLM = (
    _defect(_LOGN, "NVIDIA/TensorRT-LLM/issues/836", "logn", without(QwenLogN)),
    _defect(
        f"{_LAGUNA} taken for the weight of YaRN's logarithm",
        *("NVIDIA/TensorRT-LLM/pull/16379", "laguna"),
        of_types(with_yarn_factor(lambda given, factor: 0.1 * given * math.log(factor) + 1), "laguna"),
        mended="NVIDIA/TensorRT-LLM/pull/16379",
    ),
)

_LLAMA_CPP = (
    _defect(
        "the scale of Gemma 2 9B is 1/sqrt(224)",
        *("ggml-org/llama.cpp/pull/8444", "gemma2 9b"),
        of_types(with_base(lambda layer: 224**-0.5), "gemma2", layers=_GEMMA2_9B_LAYERS),
        mended="ggml-org/llama.cpp/pull/8473",
    ),
    _defect(
        "the scale of PLaMo 2 is 1",
        *("ggml-org/llama.cpp/pull/14892", "plamo2"),
        of_types(with_base(lambda layer: 1.0), "plamo2"),
        mended="ggml-org/llama.cpp/pull/14892",
    ),
    _defect(
        "the factor of LongRoPE, of Phi-3 and 4, is lost where it stands in rope_parameters",
        *("ggml-org/llama.cpp/issues/24820", "longrope, new spelling"),
        of_types(without(LongRoPE, key="rope_parameters"), "phi3"),
        seen="9728",
    ),
    _defect(
        "the temperature of Grok 2 is read and not applied",
        *("ggml-org/llama.cpp/pull/17239", "grok", without(GrokTemperature)),
    ),
)

_MLC = (
    _defect(
        "the scale of BERT is 1 on the fallback path of attention (Metal, CPU, not fp16)",
        *("mlc-ai/mlc-llm/pull/3426", "bert", of_types(with_base(lambda layer: 1.0), "bert")),
        mended="mlc-ai/mlc-llm/pull/3426",
    ),
    _defect(_LAYER, "mlc-ai/mlc-llm/pull/1389", "inverse layer", without(LayerIndex)),
)

#: Frameworks with a rule on record that is not the model's.
FRAMEWORKS: dict[str, Framework] = {
    "vllm": Framework(_VLLM),
    "vllm-transformers": Framework(
        (
            _defect(
                "sinks are left out by vLLM's Transformers backend",
                *("vllm-project/vllm/pull/52156", "sinks", without_sink),
                mended="vllm-project/vllm/pull/52156",
            ),
        )
    ),
    "vllm-metal": Framework(
        (
            _defect(
                *(_SOFTCAP, "vllm-project/vllm-metal/issues/665", "gemma2 2b", without_softcap),
                mended="vllm-project/vllm-metal/pull/666",
            ),
        )
    ),
    "vllm-tpu": Framework(
        (
            _defect(
                *(_MLA, "vllm-project/tpu-inference/pull/521", "deepseek_v3"),
                of_types(without(MLAYaRN), "deepseek_v3"),
                mended="vllm-project/tpu-inference/pull/521",
            ),
        )
    ),
    "sglang": Framework(_SGLANG),
    "flashinfer": Framework(
        (
            _defect(
                "the soft-cap that is given to forward() is ignored",
                *("flashinfer-ai/flashinfer/issues/1193", "gemma2 2b", without_softcap),
                since="0.2.0",
            ),
        )
    ),
    "mlx-lm": Framework(
        (
            _defect(
                *(_FACTOR, "ml-explore/mlx-lm/pull/1507", "attention_factor"),
                plain_yarn("attention_factor"),
            ),
        )
    ),
    "mlx-swift": Framework(
        (
            _defect(
                "Gemma 2 has no soft-cap and the scale 1/sqrt(head_dim)",
                *("ml-explore/mlx-swift-examples/pull/99", "gemma2 27b"),
                of_types(in_order(without_softcap, standard_base), "gemma2"),
                mended="ml-explore/mlx-swift-examples/pull/99",
            ),
        )
    ),
    "prime-rl": Framework(
        (
            _defect(
                *(_FACTOR, "PrimeIntellect-ai/prime-rl/pull/2802", "attention_factor"),
                plain_yarn("attention_factor"),
            ),
        )
    ),
    "tensorrt-llm": Framework(_TENSORRT_LLM),
    "tensorrt-model-connect": Framework(
        (
            _defect(
                "YaRN of GPT-OSS is left out where it stands in rope_scaling",
                *("NVIDIA/TensorRT-Model-Connect/pull/400", "gpt-oss"),
                of_types(without(YaRN, key="rope_scaling"), "gpt_oss"),
                mended="NVIDIA/TensorRT-Model-Connect/pull/400",
            ),
        )
    ),
    "megatron-lm": Framework(
        (
            _defect(
                "the scale of latent attention has mscale in place of mscale_all_dim",
                *("NVIDIA/Megatron-LM/issues/1429", "two mscales", mla_yarn_by_mscale),
            ),
        )
    ),
    "llama.cpp": Framework(_LLAMA_CPP),
    "ollama": Framework(
        (
            _defect(
                "the scale of GLM-4 MoE lite is that of the compressed keys, 1/sqrt(576)",
                *("ollama/ollama/pull/13893", "glm"),
                of_types(with_base(lambda layer: _GLM**-0.5), "glm4_moe_lite"),
                mended="ollama/ollama/pull/13893",
            ),
        )
    ),
    "mlc-llm": Framework(_MLC),
    "deepspeed-inference": Framework(
        (_defect(_LAYER, "deepspeedai/DeepSpeed/issues/2487", "inverse layer", without(LayerIndex)),)
    ),
    "transformer-lens": Framework(
        (
            _defect(
                *(_LAYER, "TransformerLensOrg/TransformerLens/pull/27", "inverse layer"),
                without(LayerIndex),
                mended="TransformerLensOrg/TransformerLens/pull/27",
            ),
        )
    ),
    "onnxruntime-genai": Framework(
        (
            _defect(
                *(_SOFTCAP, "microsoft/onnxruntime-genai/pull/876", "gemma2 2b"),
                of_types(without_softcap, "gemma2"),
                mended="microsoft/onnxruntime-genai/pull/876",
                before="0.5.0",
            ),
        )
    ),
    "mobius": Framework(
        (
            _defect(
                *(_MLA, "onnxruntime/mobius/pull/548", "deepseek_v2"),
                of_types(without(MLAYaRN), *_LATENT),
                mended="onnxruntime/mobius/pull/548",
            ),
        )
    ),
    "executorch": Framework(
        (
            _defect(
                "the factor of LongRoPE is left out",
                *("pytorch/executorch/pull/19235", "longrope", without(LongRoPE)),
                mended="pytorch/executorch/pull/19235",
            ),
        )
    ),
    "tt-metal": Framework(
        (
            _defect(
                "query_pre_attn_scalar of Gemma 3 is ignored",
                *("tenstorrent/tt-metal/issues/22810", "gemma3 27b"),
                of_types(standard_base, "gemma3_text"),
                mended="tenstorrent/tt-metal/pull/25170",
            ),
        )
    ),
    "ferrox": Framework(
        (
            _defect(
                "query_pre_attn_scalar of Gemma 2 and 3 is ignored",
                *("antonellof/ferrox/issues/40", "gemma3 27b"),
                of_types(standard_base, "gemma2", "gemma3_text"),
                mended="antonellof/ferrox/pull/65",
            ),
        )
    ),
    "maxtext": Framework(
        (
            _defect(
                "q of latent attention is divided by 1/sqrt(head_dim)",
                *("AI-Hypercomputer/maxtext/issues/1370", "deepseek_v3"),
                of_types(with_base(lambda layer: layer.head_dim**0.5), *_LATENT),
                mended="AI-Hypercomputer/maxtext/commit/f1498e18618b01e4914433817095e3ad3b3b0c31",
            ),
        )
    ),
    "transformers-before-47435": Framework(
        (
            _defect(
                "mscale_all_dim does not reach the scale of DeepSeek V2 and Mistral 4",
                *("huggingface/transformers/pull/47435", "deepseek_v2"),
                of_types(without(MLAYaRN), "deepseek_v2", "mistral4"),
                mended="huggingface/transformers/pull/47435",
            ),
        )
    ),
    "transformers-before-44397": Framework(
        (
            _defect(
                "scale_attn_weights and scale_attn_by_inverse_layer_idx of GPT-2 are ignored unless "
                "attention is eager",
                *("huggingface/transformers/issues/44380", "inverse layer"),
                of_types(in_order(without(LayerIndex), standard_base), "gpt2"),
                mended="huggingface/transformers/pull/44397",
            ),
        )
    ),
    "transformers-before-38290": Framework(
        (
            _defect(
                "the scale of OPT is applied twice unless attention is eager",
                *("huggingface/transformers/issues/38277", "opt"),
                of_types(with_base(lambda layer: 1 / layer.head_dim), "opt"),
                seen="4.52.2",
                mended="huggingface/transformers/pull/38290",
            ),
        )
    ),
}
