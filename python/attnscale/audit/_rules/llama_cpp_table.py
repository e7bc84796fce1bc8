# SPDX-License-Identifier: BSD-3-Clause
"""The architectures of llama.cpp as a table of their differences from a plain one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, NamedTuple


class Sliding(NamedTuple):
    """The windows of an architecture."""

    period: int | None  # one layer in so many has no window; 0: all have one; None: the file lists them
    full_first: bool = False  # whether the layer without a window is first in a period, not last
    usual: int | None = None  # the window if the file has no key
    fixed: int | None = None  # the window whatever number the key has, which only switches it on
    shape: Literal["before", "both sides", "chunks", "compressed"] = "before"  # position of the keys
    only_with_layers: int | None = None  # the only number of layers with a window; None: any


@dataclass(frozen=True)
class Architecture:
    """An architecture of llama.cpp."""

    type: str = ""  # model type of transformers with the same norms, by which frameworks are on record
    base: str = "standard"  # the scale, a name in llama_cpp.py
    rotates: str | int = "all"  # layers with rotary positions; a number: the last in every so many has none
    sliding: Sliding | None = None
    softcap: float | None = None  # the soft-cap if the file has no key; None: the architecture has none
    sink: Literal["", "all", "sliding"] = ""  # layers with attention sinks
    latent: bool = False  # whether key_length_mla is the size of the heads
    scales_latent: bool = False  # whether YaRN's factor also acts on all channels of latent heads
    weighs: bool = False  # whether yarn_log_multiplier is read
    states_yarn: bool = False  # whether the other numbers of YaRN are read
    betas: float = 0.0  # beta fast of YaRN if the file has no key; 0: not read
    temperature: str = ""  # key of the length of a temperature by position, or empty
    recurrent: int | str = 0  # "all"; without a list: all but one in so many; 0: only those without heads
    causal: bool = True  # whether queries see only earlier keys if the file does not say
    alibi: Literal["", "by key", "8", "40 layers"] = ""  # bias by distance
    same_base: bool = False  # whether windows use freq_base without a freq_base_swa
    same_scaling: bool = True  # whether layers with a window have the scaled angles of the others
    plain_sliding: bool = False  # whether layers with a window have no factor of rotary positions
    notes: tuple[str, ...] = ()


#: Architectures with 1/sqrt(head_dim) and rotary positions in every layer, with a model type if there is one.
_PLAIN = """\
llama:llama llama-embed:llama deci falcon:falcon gptneox:gpt_neox stablelm:stablelm qwen:qwen qwen2:qwen2
qwen2moe:qwen2_moe qwen2vl:qwen2_vl_text qwen3:qwen3 qwen3moe:qwen3_moe qwen3vl:qwen3_vl_text
qwen3vlmoe:qwen3_vl_moe_text phi2:phi phi3:phi3 phimoe:phimoe plamo plamo2:plamo2 codeshell orion
internlm2:internlm2 minicpm:minicpm minicpm3:minicpm3 gemma:gemma starcoder2:starcoder2 falcon-h1:falcon_h1
xverse command-r:cohere dbrx:dbrx olmo:olmo olmoe:olmoe openelm arctic deepseek:deepseek chatglm:chatglm
glm4:glm4 glm4moe:glm4_moe bitnet:bitnet jais2:jais2 nemotron:nemotron exaone:exaone chameleon:chameleon plm
bailingmoe bailingmoe2 dots1:dots1 arcee:arcee ernie4_5:ernie4_5 ernie4_5-moe:ernie4_5_moe
hunyuan-moe:hunyuan_v1_moe hunyuan-dense:hunyuan_v1_dense hunyuan_vl:hunyuan_vl_text hy_v3:hy_v3
lfm2moe:lfm2_moe seed_oss:seed_oss grovemoe apertus:apertus hrm_text:hrm_text minimax-m2:minimax_m2
minimax-m3:minimax_m3_vl_text cogvlm pangu-embedded paddleocr:paddleocr_vl_text eagle3 maincoder talkie
nanbeige qwen3tts pockettts:pocket_tts deepseek2-ocr:deepseek_ocr2_text nomic-bert:nomic_bert
nomic-bert-moe:nomic_bert neo-bert jina-bert-v3:jina_embeddings_v3 eurobert:eurobert"""

_MLA = Architecture(latent=True, scales_latent=True)
_NOPE_LATENT = Architecture(latent=True, rotates="none")
_GRANITE = Architecture(base="stated", rotates="unless finetuned is false")
_BERT = Architecture("bert", rotates="none")
_BIAS = ("a relative position bias is added to the score",)
_HYBRID = Architecture(recurrent=4)
_LISTED = Sliding(None)

_OTHERS: dict[str, Architecture] = {
    # No rotary positions.
    "gpt2": Architecture("gpt2", rotates="none"),
    "starcoder": Architecture("gpt_bigcode", rotates="none"),
    "bert": _BERT,
    "jina-bert-v2": replace(_BERT, type="", alibi="8"),
    "mpt": Architecture("mpt", rotates="none", alibi="by key"),
    "bloom": Architecture("bloom", rotates="none", alibi="8"),
    "refact": Architecture(rotates="none", alibi="8"),
    "jais": Architecture("jais", base="over head_dim", rotates="none", alibi="by key"),
    "baichuan": Architecture("baichuan", rotates="unless 40 layers", alibi="40 layers"),
    "t5": Architecture("t5", base="unscaled", rotates="none", notes=_BIAS),
    "t5encoder": Architecture("t5", base="unscaled", rotates="none", notes=_BIAS),
    "jamba": Architecture("jamba", rotates="none"),
    "nemotron_h": Architecture("nemotron_h", rotates="none"),
    "nemotron_h_moe": Architecture("nemotron_h", rotates="none"),
    # No attention.
    **{
        name: Architecture(kind, rotates="none", recurrent="all")
        for name, kind in (
            ("mamba", "mamba"),
            ("mamba2", "mamba2"),
            ("rwkv6", "rwkv"),
            ("rwkv6qwen2", "rwkv"),
            ("rwkv7", "rwkv"),
            ("arwkv7", "rwkv"),
        )
    },
    # Every query sees all keys.
    **{name: Architecture(causal=False) for name in ("dream", "llada", "llada-moe", "rnd1")},
    # The scale is a number of the file, or of the code.
    "granite": replace(_GRANITE, type="granite"),
    "granitemoe": replace(_GRANITE, type="granitemoe"),
    "granitehybrid": replace(_GRANITE, type="granitemoehybrid"),
    "graniteswitch": replace(_GRANITE, type="granitemoe"),
    "granite_swa": replace(
        _GRANITE,
        type="granite_swa",
        rotates="by pattern",
        sliding=_LISTED,
        sink="all",
        same_base=True,
    ),
    "dflash": Architecture(base="stated", sliding=_LISTED, same_base=True),
    "grok": Architecture("grok", base="grok", softcap=30.0, states_yarn=True, betas=8.0),
    "gemma2": Architecture(
        "gemma2", base="gemma2", softcap=50.0, sliding=Sliding(2, usual=4096), same_base=True
    ),
    "gemma3": Architecture("gemma3_text", base="gemma3", sliding=Sliding(6), same_scaling=False),
    "gemma3n": Architecture("gemma3n_text", base="unscaled", sliding=Sliding(5), same_scaling=False),
    "gemma4": Architecture("gemma4_text", base="unscaled", sliding=_LISTED, same_scaling=False),
    "gemma4-assistant": Architecture("gemma4_text", base="unscaled", sliding=_LISTED, same_scaling=False),
    "gemma-embedding": Architecture(
        "gemma3_text", sliding=Sliding(6, shape="both sides"), causal=False, same_scaling=False
    ),
    # Windows, and rotary positions in some layers.
    "llama4": Architecture(
        "llama4_text",
        rotates=4,
        sliding=Sliding(4, usual=8192, fixed=8192, shape="chunks"),
        same_base=True,
    ),
    "smollm3": Architecture("smollm3", rotates=4),
    "afmoe": Architecture("afmoe", rotates=4, sliding=Sliding(4), same_base=True),
    "cohere2": Architecture("cohere2", rotates="sliding", sliding=Sliding(4), same_base=True),
    "cohere2moe": Architecture(
        "cohere2_moe", rotates="sliding or dense", sliding=Sliding(4, full_first=True), same_base=True
    ),
    "exaone4": Architecture(
        "exaone4",
        rotates="sliding or no window",
        sliding=Sliding(4, usual=4096, only_with_layers=64),
        same_base=True,
    ),
    "exaone-moe": Architecture(
        "exaone_moe", rotates="sliding", sliding=Sliding(4, usual=128), same_base=True
    ),
    "muse-glimmer": Architecture(
        "muse_glimmer_text", rotates="sliding", sliding=Sliding(4), same_base=True, same_scaling=False
    ),
    "maple": Architecture(rotates="sliding", sliding=_LISTED, same_base=True),
    "smallthinker": Architecture(
        rotates="but the first of four", sliding=Sliding(4, full_first=True, fixed=4096), same_base=True
    ),
    "olmo2": Architecture(
        "olmo2", sliding=Sliding(4), same_base=True, same_scaling=False, plain_sliding=True
    ),
    "mellum": Architecture(
        "mellum", sliding=Sliding(4), same_base=True, same_scaling=False, plain_sliding=True
    ),
    "laguna": Architecture(
        "laguna", sliding=Sliding(4, full_first=True), same_scaling=False, plain_sliding=True
    ),
    "gpt-oss": Architecture("gpt_oss", sliding=Sliding(2), sink="all", same_base=True),
    "mimo2": Architecture("mimo_v2_flash", sliding=_LISTED, sink="sliding", same_scaling=False),
    "spark2_5": Architecture(sliding=_LISTED, same_base=True),
    "step35": Architecture("step3p5", sliding=_LISTED, same_scaling=False),
    "plamo3": Architecture(sliding=Sliding(8), same_scaling=False),
    "modern-bert": Architecture(
        "modernbert", sliding=Sliding(3, full_first=True, shape="both sides"), same_scaling=False
    ),
    "lfm2": Architecture("lfm2", sliding=Sliding(0), same_base=True),
    # Multi-head latent attention.
    "deepseek2": replace(_MLA, type="deepseek_v3", weighs=True, temperature="attention.temperature_length"),
    "deepseek32": replace(_MLA, type="deepseek_v32", weighs=True),
    "glm-dsa": replace(_MLA, type="glm_moe_dsa"),
    "mistral4": replace(_MLA, type="mistral4", weighs=True, temperature="attention.temperature_length"),
    "dots3note": Architecture("dots3_note_text", latent=True, sliding=_LISTED),
    "hy_v4": Architecture("hy_v4", latent=True, sink="all"),
    "bailingmoe3": Architecture("bailing_hybrid", latent=True),
    "kimi-linear": replace(_NOPE_LATENT, type="kimi_linear"),
    "kimi-k3": _NOPE_LATENT,
    "glm5-next": replace(_NOPE_LATENT, type="glm5_next_text"),
    "deepseek4": Architecture(
        "deepseek_v4",
        sliding=Sliding(0, shape="compressed"),
        sink="all",
        same_base=True,
        same_scaling=False,
        plain_sliding=True,
    ),
    # A temperature by the position.
    "mistral3": Architecture(
        "ministral3", weighs=True, betas=32.0, temperature="rope.scaling.original_context_length"
    ),
    # Layers with linear attention.
    "qwen3next": replace(_HYBRID, type="qwen3_next"),
    "qwen35": replace(_HYBRID, type="qwen3_5_text"),
    "qwen35moe": replace(_HYBRID, type="qwen3_5_moe_text"),
    "qwen4exp": replace(_HYBRID, type="qwen4_exp_text"),
    "minimax-01": Architecture("minimax", recurrent=8),
}


def _plain() -> dict[str, Architecture]:
    pairs = (entry.partition(":") for entry in _PLAIN.split())
    return {name: Architecture(kind) for name, _, kind in pairs}


#: The rows by the names of llama.cpp.
ARCHITECTURES: dict[str, Architecture] = {**_plain(), **_OTHERS}

#: Keys that act on the score in some architecture, with a value that changes nothing, or None.
SCORE_KEYS: dict[str, float | str | None] = {
    "attention.scale": 0.0,
    "attention.output_scale": None,
    "attention.temperature_length": 0,
    "attention.temperature_scale": 0.0,
    "attention.max_alibi_bias": 0.0,
    "attention.sliding_window": 0,
    "attention.sliding_window_pattern": None,
    "attention.key_length_swa": None,
    "attention.key_length_mla": None,
    "attention.key_length_mla_swa": None,
    "attention.rope_pattern": None,
    "attn_logit_softcapping": 0.0,
    "rope.dimension_count_swa": None,
    "rope.scaling.type": "none",
    "rope.scaling.factor": 1.0,
    "rope.scaling.attn_factor": 1.0,
    "rope.scaling.yarn_log_multiplier": 0.0,
    "rope.scaling.yarn_ext_factor": -1.0,
    "rope.scaling.yarn_attn_factor": None,
    "rope.scale_linear": 1.0,
}

#: Reasons why a key has no effect, where llama.cpp reads it.
WITHOUT_EFFECT: dict[tuple[str, str], str] = {
    ("grok", "attention.temperature_length"): "llama.cpp reads it and does not apply it",
    ("phi3", "attention.sliding_window"): "llama.cpp has the windows of Phi switched off",
}

#: Further keys of llama.cpp with names like the score's that act on something else.
OTHER_KEYS = frozenset(
    {
        "logit_scale",
        "router_logit_softcapping",
        "final_logit_softcapping",
        "residual_scale",
        "embedding_scale",
        "expert_weights_scale",
        "expert_group_scale",
        "attention.value_scale",
        "attention.clamp_kqv",
        "attention.relative_buckets_count",
        "rope.scaling.alpha",
        "rope.scaling.finetuned",
        "rope.scaling.original_context_length",
        "rope.scaling.yarn_beta_fast",
        "rope.scaling.yarn_beta_slow",
        "hyper_connection.sinkhorn_iterations",
    }
)
