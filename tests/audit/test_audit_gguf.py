# SPDX-License-Identifier: BSD-3-Clause
"""Plans from the metadata of GGUF files."""

from __future__ import annotations

import contextlib
import math
import re
import struct
from pathlib import Path
from typing import Any

import attnscale as at
import numpy as np
import pytest
from attnscale.audit._rules.llama_cpp_table import ARCHITECTURES, OTHER_KEYS, SCORE_KEYS
from attnscale.cli import main
from audit_configs import resolve, typed, yarn
from audit_configs import sizes as with_sizes

from tools.audit import quietly


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def value(of: Any) -> bytes:
    """The number of a value's type, and the value."""
    if isinstance(of, bool):
        return struct.pack("<I?", 7, of)
    if isinstance(of, int):
        return struct.pack("<II", 4, of)
    if isinstance(of, float):
        return struct.pack("<If", 6, of)
    if isinstance(of, str):
        return struct.pack("<I", 8) + text(of)
    first = of[0]
    items = b"".join(value(each)[4:] for each in of)
    return struct.pack("<I", 9) + value(first)[:4] + struct.pack("<Q", len(of)) + items


def header(kind: str, **keys: Any) -> bytes:
    """A file without tensors; __ in the name of a key stands for a dot."""
    named = {f"{kind}.{name.replace('__', '.')}": each for name, each in keys.items()}
    pairs = {"general.architecture": kind, **named, "tokenizer.ggml.tokens": ["<s>", "a", "bc"]}
    body = b"".join(text(name) + value(each) for name, each in pairs.items())
    return b"GGUF" + struct.pack("<IQQ", 3, 0, len(pairs)) + body


def sizes(**keys: Any) -> dict[str, Any]:
    return {"block_count": 4, "embedding_length": 4096, "attention__head_count": 32, **keys}


def scaling(**keys: Any) -> dict[str, Any]:
    return {f"rope__scaling__{name}": each for name, each in {"type": "yarn", **keys}.items()}


_YARN = scaling(factor=4.0, original_context_length=32768)
_MLA = {"attention__key_length": 576, "attention__key_length_mla": 192, "rope__dimension_count": 64}
_LATENT = sizes(**_MLA, **scaling(factor=40.0, original_context_length=4096, yarn_log_multiplier=0.1))
_MISTRAL = sizes(
    attention__key_length=128,
    attention__temperature_scale=0.125,
    **scaling(factor=16.0, original_context_length=16384, yarn_log_multiplier=1.0),
)
_LOG = "rope__scaling__yarn_log_multiplier"
_WINDOW = {"attention__sliding_window": 128}
_LISTED = {"attention__sliding_window_pattern": [True, False] * 4}
_LONG = scaling(type="longrope", original_context_length=4096, attn_factor=1.25)
_PHI = sizes(embedding_length=3072, **_LONG)
_BIG = {"block_count": 62, "embedding_length": 5376, "attention__key_length": 128}  # Gemma 3 27B
_GROK = sizes(attention__key_length=128, attention__output_scale=0.1, attention__temperature_length=1024)
_PLAIN_MLA = sizes(**_MLA)

#: (architecture, keys, model type, multiplier): from the source of llama.cpp, in plain formulas.
FILES: list[tuple[str, dict[str, Any], str, float]] = [
    ("llama", sizes(), "llama", 128**-0.5),
    ("qwen2", sizes(**_YARN), "qwen2", yarn(4) ** 2 / math.sqrt(128)),
    # llama.cpp reads this key for grok alone: its run gave 0.1145933, so 0 does not switch YaRN off.
    ("qwen2", sizes(**_YARN, rope__scaling__yarn_ext_factor=0.0), "qwen2", yarn(4) ** 2 / math.sqrt(128)),
    ("qwen3", sizes(attention__key_length=64), "qwen3", 1 / 8),
    ("granite", sizes(attention__scale=0.0078125), "granite", 0.0078125),
    ("granite", sizes(), "granite", 128**-0.5),
    ("gemma", sizes(), "gemma", 128**-0.5),
    ("gpt-oss", sizes(attention__key_length=64, **_WINDOW), "gpt_oss", 1 / 8),
    ("deepseek2", _LATENT, "deepseek_v3", yarn(40) ** 2 / math.sqrt(192)),
    ("mistral3", _MISTRAL, "ministral3", (1 + 0.125 * math.log(2)) / math.sqrt(128)),
    ("phi3", {**_PHI, "context_length": 131072}, "phi3", 1.25**2 / math.sqrt(96)),
    # A factor without a type of scaling is linear and has no factor of its own.
    ("phi3", sizes(embedding_length=3072, rope__scaling__attn_factor=1.190238), "phi3", 0.1445879),
    ("grok", _GROK, "grok", 0.1),
    ("grok", sizes(attention__key_length=64), "grok", 128**-0.5),  # a constant of the code
    ("mpt", sizes(attention__max_alibi_bias=8.0), "mpt", 128**-0.5),
    ("bert", sizes(attention__causal=False), "bert", 128**-0.5),
    ("jais", sizes(), "jais", 1 / 128),
    ("t5", sizes(attention__key_length=64), "t5", 1.0),
    ("mistral4", _PLAIN_MLA, "mistral4", 192**-0.5),
    ("mistral4", _LATENT, "mistral4", yarn(40) ** 2 / math.sqrt(192)),
    ("deepseek2", sizes(attention__key_length=192, rope__dimension_count=64), "deepseek_v3", 192**-0.5),
    ("kimi-linear", sizes(**_MLA, attention__head_count_kv=[0, 0, 0, 32]), "kimi_linear", 192**-0.5),
    ("gemma2", {**_BIG, "block_count": 46, "attention__head_count": 32}, "gemma2", (5376 // 32) ** -0.5),
    ("gemma2", sizes(attention__key_length=256), "gemma2", 1 / 16),
    ("gemma3", {**_BIG, "attention__head_count": 32}, "gemma3_text", 0.0771517),
    ("gemma3", {**_BIG, "block_count": 2, "attention__head_count": 32}, "gemma3_text", 0.0883883),
    ("gemma3n", sizes(attention__key_length=256, **_WINDOW), "gemma3n_text", 1.0),
    ("plamo2", sizes(attention__value_length=64), "plamo2", 1 / 8),
    ("lfm2", sizes(attention__head_count_kv=[0, 0, 0, 8]), "lfm2", 128**-0.5),
    ("olmo2", sizes(**_YARN), "olmo2", yarn(4) ** 2 / math.sqrt(128)),
    # The weight of a logarithm is read for few types; where it is not, YaRN of latent heads acts twice.
    ("glm-dsa", _LATENT, "glm_moe_dsa", yarn(40) ** 4 / math.sqrt(192)),
    # The weight 1/2 is divided by 1 in Mistral 4, by itself in DeepSeek 2.
    ("mistral4", {**_LATENT, _LOG: 0.05}, "mistral4", yarn(40) ** 4 / yarn(40, 0.5) ** 2 / math.sqrt(192)),
    ("deepseek2", {**_LATENT, _LOG: 0.05}, "deepseek_v3", yarn(40, 0.5) ** 2 / math.sqrt(192)),
]


def plan_of(tmp_path: Path, kind: str, **keys: Any) -> at.audit.ScalePlan:
    file = tmp_path / "model.gguf"
    file.write_bytes(header(kind, **keys))
    return quietly(file)


@pytest.mark.parametrize(("kind", "keys", "expected", "multiplier"), FILES)
def test_plans(tmp_path: Path, kind: str, keys: dict[str, Any], expected: str, multiplier: float) -> None:
    plan = plan_of(tmp_path, kind, **keys)
    assert (plan.model_type, plan.known, len(plan)) == (expected, True, keys["block_count"])
    last = plan[-1]
    found = plan.multiplier(layer=last.index, position=16384, channels=last.channel_kinds[0])
    assert found == pytest.approx(multiplier, rel=1e-6)


_LLAMA = {**with_sizes(4096, 32, 3), "rope_theta": 500000.0, "max_position_embeddings": 8192}
_ROPE = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8192}
_CAPPED = {"head_dim": 128, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
_GEMMA2_27B = {**with_sizes(4608, 32, 46), **_CAPPED, "query_pre_attn_scalar": 144}
_GEMMA3_27B = {**with_sizes(5376, 32, 62), "head_dim": 128, "query_pre_attn_scalar": 168}

#: (config, what xllamacpp 2026.10.11549 multiplied the score by, measured with these files by a probe).
MEASURED: list[tuple[dict[str, Any], float]] = [
    (typed("llama", **_LLAMA), 0.0883883),
    (typed("llama", **_LLAMA, rope_parameters=_ROPE), 0.1145935),
    (typed("llama", **_LLAMA, rope_parameters={**_ROPE, "attention_factor": 1.0}), 0.1145935),
    (typed("gemma2", **{**_GEMMA2_27B, "num_hidden_layers": 45}), 0.0883883),
    (typed("gemma2", **_GEMMA2_27B), 0.0833333),
    (typed("gemma3_text", **{**_GEMMA3_27B, "num_hidden_layers": 61}), 0.0883883),
    (typed("gemma3_text", **_GEMMA3_27B), 0.0771517),
]


@pytest.mark.parametrize(("config", "measured"), MEASURED)
def test_plans_of_files_agree_with_what_llama_cpp_was_measured_to_do(
    tmp_path: Path, config: dict[str, Any], measured: float
) -> None:
    at.probe.write(config, tmp_path / "probe", longest=600, kinds=["scale"], gguf="f32")
    files = sorted((tmp_path / "probe").rglob("*.gguf"))
    assert files
    for file in files:
        plan = quietly(file)
        layers = range(len(plan))
        assert [plan.multiplier(layer=i, position=0, channels="rotated") for i in layers] == pytest.approx(
            [measured] * len(plan), rel=2e-6
        )


def test_keys_of_a_config_that_a_file_cannot_hold(tmp_path: Path) -> None:
    for kind, keys, told in (
        ("llama", _YARN, "YaRN: attention_factor, mscale or mscale_all_dim of the config is not in the file"),
        ("mistral3", _YARN, "YaRN: attention_factor of the config is not in the file"),
        ("gemma2", {}, "query_pre_attn_scalar is not in the file: llama.cpp takes embedding_length / att"),
        ("gemma3", {}, "attention.head_count at 62 layers and attention.key_length at any other number"),
    ):
        assert any(told in text for text in plan_of(tmp_path, kind, **sizes(**keys)).remarks), kind
    for kind, keys in (("llama", {}), ("llama", scaling(type="linear", factor=2.0)), ("bert", _YARN)):
        assert "the config is not" not in str(plan_of(tmp_path, kind, **sizes(**keys)).remarks), kind


def test_windows_and_layers_without_attention(tmp_path: Path) -> None:
    """Windows by the patterns of llama.cpp's set_swa_pattern, or by a list of the file."""
    big = {**sizes(**_WINDOW), "block_count": 8}
    for kind, keys, windows in (
        ("gemma2", {}, [128, None] * 4),
        ("gemma2", {"attention__sliding_window": 4096}, [4096, None] * 4),
        ("gemma3", {}, [128] * 5 + [None] + [128] * 2),
        ("gemma3", {"attention__sliding_window_pattern": 4}, ([128] * 3 + [None]) * 2),
        ("gemma3", {"attention__sliding_window_pattern": [True, False] * 4}, [128, None] * 4),
        ("cohere2", {}, ([128] * 3 + [None]) * 2),
        ("modern-bert", {}, [None, 129, 129] * 2 + [None, 129]),  # 64 keys on each side
        ("llama4", {}, ([8192] * 3 + [None]) * 2),  # a constant of the code
        ("phi3", {}, [None] * 8),  # switched off in the code
        ("llama", {}, [None] * 8),
        ("lfm2", {"attention__head_count_kv": [0, 8] * 4}, [None, 128] * 4),
    ):
        plan = plan_of(tmp_path, kind, **{**big, **keys})
        assert [layer.window for layer in plan] == windows, kind
    missing = {name: each for name, each in big.items() if name != "attention__sliding_window"}
    assert plan_of(tmp_path, "gemma2", **missing).window(0) == 4096
    hybrid = plan_of(tmp_path, "lfm2", **{**missing, "attention__head_count_kv": [0, 8, 0, 8] * 2})
    assert [layer.refusal is None for layer in hybrid] == [False, True] * 4
    assert hybrid[0].kind == "conv"
    every_fourth = plan_of(tmp_path, "qwen3next", **missing)
    assert [layer.refusal is None for layer in every_fourth] == ([False] * 3 + [True]) * 2
    assert all(layer.refusal is not None for layer in plan_of(tmp_path, "mamba", **missing))
    with pytest.raises(at.audit.ConfigError, match="sliding_window_pattern is missing"):
        plan_of(tmp_path, "gemma4", **big)


def test_rotary_positions_by_layer(tmp_path: Path) -> None:
    eight = {**sizes(), "block_count": 8}
    for kind, keys, rotated in (
        ("llama", {}, [128] * 8),
        ("gpt2", {}, [0] * 8),
        ("gptneox", {"rope__dimension_count": 32}, [32] * 8),
        ("smollm3", {}, ([128] * 3 + [0]) * 2),
        ("cohere2", _WINDOW, ([128] * 3 + [0]) * 2),
        ("llama4", {"attention__sliding_window": 0}, [128] * 7 + [0]),
        ("granite", {"rope__scaling__finetuned": False}, [0] * 8),
        ("mistral4", _MLA, [64] * 8),
        ("step35", {**_LISTED, **_WINDOW, "rope__dimension_count": 128}, [128, 64] * 4),
        ("cohere2moe", {**_WINDOW, "leading_dense_block_count": 1}, [128] * 4 + [0] + [128] * 3),
    ):
        plan = plan_of(tmp_path, kind, **{**eight, **keys})
        assert [layer.rotated for layer in plan] == rotated, kind


def test_temperatures(tmp_path: Path) -> None:
    beta = {"attention__temperature_scale": 0.1}
    plan = plan_of(tmp_path, "mistral4", **_PLAIN_MLA, **beta, attention__temperature_length=8192)
    expected = (1 + 0.1 * math.log(1 + 20000 // 8192)) / math.sqrt(192)
    assert plan.multiplier(layer=0, position=20000) == pytest.approx(expected, rel=1e-6)
    plan = plan_of(tmp_path, "llama4", **sizes())
    expected = (1 + 0.1 * math.log(1 + 20001 // 8192)) / math.sqrt(128)
    assert plan.multiplier(layer=3, position=20000) == pytest.approx(expected, rel=1e-12)
    with pytest.raises(at.audit.ConfigError, match=r"attention\.temperature_length"):
        plan_of(tmp_path, "mistral4", **_PLAIN_MLA, **beta)


def test_soft_caps_and_sinks(tmp_path: Path) -> None:
    cap = {"attn_logit_softcapping": 20.0}
    assert plan_of(tmp_path, "gemma2", **sizes(**cap)).softcap(0) == 20
    assert plan_of(tmp_path, "gemma2", **sizes()).softcap(0) == 50  # constants of the code
    assert plan_of(tmp_path, "grok", **sizes()).softcap(0) == 30
    plan = plan_of(tmp_path, "gemma3", **sizes(**cap))
    assert plan.softcap(0) is None
    told = "attn_logit_softcapping = 20.0 has no effect on the plan: llama.cpp does not use it for gemma3"
    assert plan.warnings == (told,)
    assert plan_of(tmp_path, "gpt-oss", **sizes(**_WINDOW)).sink(1)


def test_warnings_of_keys_without_effect(tmp_path: Path) -> None:
    for kind, keys, said in (
        ("grok", {"attention__temperature_length": 1024}, "llama.cpp reads it and does not apply it"),
        ("phi3", {"attention__sliding_window": 2047}, "llama.cpp has the windows of Phi switched off"),
        ("qwen2", {"rope__scaling__yarn_attn_factor": 1.0}, "llama.cpp does not use it for qwen2"),
        ("llama", {"attention__scale": 0.5}, "llama.cpp does not use it for llama"),
        ("novel", {"attention__scale": 0.5}, "what architecture 'novel' makes of it is not on record"),
    ):
        ((name, value),) = keys.items()
        found = plan_of(tmp_path, kind, **sizes(**keys)).warnings[-1]
        assert found == f"{name.replace('__', '.')} = {value} has no effect on the plan: {said}"
    (told,) = plan_of(tmp_path, "llama", **sizes(attention__magic_temperature=2.0)).warnings
    assert told == (
        "attention.magic_temperature = 2.0 is not understood: it could change the scale of attention"
    )
    assert "architecture 'novel' of GGUF is not known" in plan_of(tmp_path, "novel", **sizes()).warnings[0]


def test_unread_keys_of_a_plan_are_those_of_its_warnings(tmp_path: Path) -> None:
    """Keys that act on the score of one architecture are named where another one has no use for them."""
    acting = {
        "attention__sliding_window": 4096,
        "attention__output_scale": 0.1,
        "attention__temperature_length": 1024,
        "attention__max_alibi_bias": 8.0,
    }
    for kind, read in (
        ("gemma2", {"attention__sliding_window"}),
        ("gemma3", {"attention__sliding_window"}),
        ("grok", {"attention__output_scale"}),
        ("mpt", {"attention__max_alibi_bias"}),
        ("bert", set()),
    ):
        plan = plan_of(tmp_path, kind, **sizes(**acting, attention__causal=False))
        unread = {name.replace("__", "."): each for name, each in acting.items() if name not in read}
        assert dict(plan.unread) == unread, kind
        assert [text.partition(" = ")[0] for text in plan.warnings] == list(unread), kind
        assert "attention.causal = False" in str(plan.remarks), kind


def test_remarks_on_what_is_added_and_on_the_mask(tmp_path: Path) -> None:
    for kind, keys, said in (
        ("mpt", {"attention__max_alibi_bias": 8.0}, "attention.max_alibi_bias = 8.0"),
        ("bloom", {}, "no key: 8 in the code"),
        ("bert", {"attention__causal": False}, "attention.causal = False: a query sees the keys behind it"),
        ("llada", {}, "llada is not causal"),
        ("t5encoder", {}, "a relative position bias"),
    ):
        assert any(said in text for text in plan_of(tmp_path, kind, **sizes(**keys)).remarks), kind
    for kind in ("mpt", "bert"):  # no bias, and causal, where the file does not say so
        (only,) = plan_of(tmp_path, kind, **sizes()).remarks
        assert only.startswith("keys not used")


#: Architectures of llama.cpp's llama-arch.cpp that have a file in src/models, except wavtokenizer-dec.
_NAMES = """\
llama llama4 deci falcon grok gpt2 gptneox mpt baichuan starcoder refact bert modern-bert nomic-bert
nomic-bert-moe neo-bert jina-bert-v2 jina-bert-v3 eurobert bloom stablelm qwen qwen2 qwen2moe qwen2vl qwen3
qwen3moe qwen3next qwen3vl qwen3vlmoe qwen35 qwen35moe qwen4exp phi2 phi3 phimoe plamo plamo2 plamo3
codeshell orion internlm2 minicpm minicpm3 gemma gemma2 gemma3 gemma3n gemma4 gemma4-assistant
gemma-embedding starcoder2 mamba mamba2 maple jamba falcon-h1 xverse command-r cohere2 cohere2moe dbrx olmo
olmo2 olmoe muse-glimmer openelm arctic deepseek deepseek2 deepseek2-ocr deepseek32 deepseek4 chatglm glm4
glm4moe glm-dsa bitnet t5 t5encoder jais jais2 nemotron nemotron_h nemotron_h_moe exaone exaone4 exaone-moe
rwkv6 rwkv6qwen2 rwkv7 arwkv7 granite granitemoe granitehybrid graniteswitch granite_swa chameleon plm
bailingmoe bailingmoe2 bailingmoe3 dots1 dots3note arcee afmoe laguna ernie4_5 ernie4_5-moe hunyuan-moe
hunyuan-dense hunyuan_vl hy_v3 hy_v4 smollm3 gpt-oss lfm2 lfm2moe dream smallthinker llada llada-moe
seed_oss grovemoe apertus minimax-01 hrm_text minimax-m2 minimax-m3 cogvlm rnd1 pangu-embedded mistral3
eagle3 dflash mistral4 paddleocr mimo2 step35 spark2_5 llama-embed maincoder kimi-linear kimi-k3 glm5-next
talkie mellum nanbeige qwen3tts pockettts"""

#: Keys of each kind: some that act on a score, others of llama.cpp, and an unknown one.
_EVERY: dict[str, Any] = {
    **{name.replace(".", "__"): 2.0 for name in (*SCORE_KEYS, *sorted(OTHER_KEYS))},
    "attention__temperature_length": 4096,
    "attention__sliding_window": 64,
    "attention__sliding_window_pattern": [True, True, False, True],
    "attention__rope_pattern": [1, 1, 0, 0],
    "attention__recurrent_layers": [False, False, False, True],
    "attention__key_length": 64,
    "attention__value_length": 48,
    "attention__causal": False,
    "attention__key_length_swa": 96,
    "attention__key_length_mla": 80,
    "attention__key_length_mla_swa": 88,
    "rope__scaling__type": "yarn",
    "rope__scaling__yarn_ext_factor": 0.0,
    "rope__scaling__original_context_length": 2048,
    "rope__scaling__finetuned": False,
    "rope__dimension_count": 32,
    "rope__dimension_count_swa": 16,
    "rope__freq_base": 20000.0,
    "rope__freq_base_swa": 30000.0,
    "feed_forward_length": 64,
    "nextn_predict_layers": 0,
    "something_new": 3,
}


#: Keys that the plan reads, whose values need not change this plan.
_READ = ("attention.head_count", "attention.head_count_kv", "nextn_predict_layers", "attention.causal")


def test_the_architectures_are_those_of_llama_cpp() -> None:
    assert sorted(ARCHITECTURES) == sorted(_NAMES.split())


@pytest.mark.parametrize("kind", [*_NAMES.split(), "novel"])
def test_every_key_is_used_or_named(tmp_path: Path, kind: str) -> None:
    """Each key is in a remark or a warning, explains a number of the plan, or is required."""
    keys = sizes(**_EVERY)
    plan = plan_of(tmp_path, kind, **keys)
    assert plan.known is (kind != "novel")
    angles = [key for layer in plan if layer.rotation is not None for key in layer.rotation.keys]
    said = " ".join((plan.explain(), *angles))
    for name in keys:
        spelled = name.replace("__", ".")
        if re.search(rf"(?<![\w.]){re.escape(spelled)}(?![\w.])", said) or spelled in _READ:
            continue
        others = {each: value for each, value in keys.items() if each != name}
        try:
            changed: Any = plan_of(tmp_path, kind, **others)
        except at.audit.ConfigError as error:
            changed = str(error)
            assert spelled in changed
        assert changed != plan, spelled


def with_tensors(content: bytes, *names: str) -> bytes:
    """The file with descriptions of tensors of one number each after its keys."""
    infos = b"".join(text(name) + struct.pack("<IQIQ", 1, 1, 0, 0) for name in names)
    return content[:8] + struct.pack("<Q", len(names)) + content[16:] + infos


def test_frequencies_in_tensors_are_not_taken_for_plain_ones(tmp_path: Path) -> None:
    """Frequencies as in Llama 3.1, whose scaling llama.cpp's converter writes into a tensor."""
    file = tmp_path / "model.gguf"
    keys = sizes(rope__freq_base=500000.0)
    file.write_bytes(with_tensors(header("llama", **keys), "token_embd.weight", "rope_freqs.weight"))
    (only,) = quietly(file).differences(plan_of(tmp_path, "llama", **keys))
    assert only.what == "angles"
    assert only.here == "they are in rope_freqs.weight, a tensor of the file"
    file.write_bytes(with_tensors(header("llama", **keys), "token_embd.weight"))
    assert quietly(file).differences(plan_of(tmp_path, "llama", **keys)) == ()
    file.write_bytes(with_tensors(header("llama", **keys), "rope_freqs.weight")[:-20])
    with pytest.raises(at.audit.ConfigError, match="the header is cut"):
        at.audit.resolve(file)


def test_a_file_and_the_config_that_it_was_made_from(tmp_path: Path) -> None:
    keys = sizes(**_YARN, rope__freq_base=1e6, context_length=131072)
    config = typed("qwen2", hidden_size=4096, num_attention_heads=32, num_hidden_layers=4, rope_theta=1e6)
    config |= {"max_position_embeddings": 131072, "use_sliding_window": False}
    scaling_ = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    plan = plan_of(tmp_path, "qwen2", **keys)
    assert plan.differences(resolve({**config, "rope_scaling": scaling_})) == ()
    found = plan.differences(resolve({**config, "rope_theta": 10000.0, "rope_scaling": scaling_}))
    assert [each.what for each in found] == ["angles"]
    assert found[0].keys_here[0] == "rope.freq_base = 1000000.0"


def test_any_value_of_any_key_ends_in_a_plan_or_a_value_error(tmp_path: Path) -> None:
    """A seeded sample of values of the wrong kind and size."""
    random = np.random.default_rng(5)
    strange = (0, 1, 2**31, 3.5, -1.0, 1e30, True, "yarn", "", [0, 0], [1.0], [True, False], 5, 64, 4096)
    names = ["block_count", "embedding_length", "attention__head_count", *_EVERY]
    plans = 0
    for _ in range(120):
        kind = str(random.choice(_NAMES.split()))
        keys = {**sizes(), **{name: _EVERY[name] for name in random.choice(list(_EVERY), 5)}}
        for name in random.choice(names, 3):
            keys[str(name)] = strange[random.integers(len(strange))]
        with contextlib.suppress(ValueError):
            plan = plan_of(tmp_path, kind, **keys)
            plan.differences(plan_of(tmp_path, "llama", **sizes()))
            plans += 1
    assert plans > 30


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(header("llama", **sizes()))
    assert main(["audit", str(file)]) == 0
    out = capsys.readouterr().out
    assert "llama, 4 layers" in out
    assert "ask your engine" not in out  # a probe is written from a config.json
    file.write_bytes(b"GGUF")
    assert main(["audit", str(file)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


WHOLE = header("llama", **sizes())
ONE_KEY = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("a")
WORDS = {"block_count": "many", "embedding_length": 8, "attention__head_count": 2}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "does not begin with GGUF"),
        (b"PK\x03\x04 an archive", "does not begin with GGUF"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 1), "must be 2 or 3, little endian, got 50331648"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 2**60), "at most 100000 keys"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**62), "the header is cut"),
        (ONE_KEY + struct.pack("<I", 99), "of type 99"),
        (ONE_KEY + struct.pack("<IIQ", 9, 8, 2**61), "is cut"),
        (ONE_KEY + struct.pack("<IIQ", 9, 4, 2**63), "is cut"),
        (ONE_KEY + b"\x09\0\0\0" + struct.pack("<IQ", 9, 1) * 8, "of type 9"),
        (ONE_KEY + value("b"), "general.architecture must be a name"),
        (header("llama", **WORDS), "must be an integer"),
    ],
)
def test_headers_that_lie_get_one_line(tmp_path: Path, content: bytes, said: str) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(content)
    with pytest.raises(at.audit.ConfigError, match=said) as caught:
        at.audit.resolve(file)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("length", range(4, len(WHOLE), 7))
def test_a_header_that_is_cut_anywhere(tmp_path: Path, length: int) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(WHOLE[:length])
    with pytest.raises(at.audit.ConfigError, match="the header is cut"):
        at.audit.resolve(file)
