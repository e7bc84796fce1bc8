# SPDX-License-Identifier: BSD-3-Clause
"""Unknown model types and keys, and wrong configs."""

from __future__ import annotations

import copy
import json
import math
import random
from pathlib import Path
from typing import Any

import attnscale as at
import pytest
from audit_configs import GEMMA2, LLAMA, NOVEL, STANDARD, YARN, resolve, said, sizes, typed, yarn

from tools.audit.fuzz import all_names, bases, broken_promise, mutated


def test_an_unknown_type_is_read_by_its_keys() -> None:
    keys = sizes(attention_multiplier=0.5, attn_logit_softcapping=20.0)
    with pytest.warns(at.audit.AuditWarning, match="model_type 'novel' is not known"):
        plan = at.audit.resolve(typed("novel", **keys, rope_theta=1e4, rope_scaling=YARN))
    assert not plan.known
    assert plan.multiplier(layer=0, position=0) == pytest.approx(0.5 * yarn(4) ** 2)
    assert plan.softcap(0) == 20.0
    assert "novel" in plan.explain()
    assert plan.warnings


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"query_pre_attn_scalar": 144}, 1 / 12),
        ({"scale_attn_weights": False}, 1.0),
        ({"mup_scale_qk_dot_by_d": True}, 1 / 128),
        ({"mup_scale_qk_dot_by_d": True, "scale_attn_weights": True}, 1 / 128),
        ({"softmax_scale": 0.25}, 0.25),
        ({"head_dim": 64}, 1 / 8),
        ({"qk_nope_head_dim": 192, "qk_rope_head_dim": 64}, 1 / 16),
        ({"xai_temperature_len": 1024}, 20 / 10 / math.sqrt(128)),
        ({"attn_temperature_len": 1024}, 20 / 10 / math.sqrt(128)),
        ({"use_logn_attn": True, "seq_length": 1024}, math.log2(2**20 + 1) / 10 / math.sqrt(128)),
    ],
    ids=str,
)
def test_keys_of_unknown_types(keys: dict[str, Any], expected: float) -> None:
    plan, words = said({**NOVEL, **keys})
    assert "'novel' is not known" in words
    kind = plan.layers[0].channel_kinds[0]
    assert plan.multiplier(layer=0, position=2**20, channels=kind) == pytest.approx(expected, rel=1e-12)


def test_learned_scales_of_unknown_types_are_refused() -> None:
    with pytest.raises(at.audit.PlanError, match="use_ssmax = True: the scale has weights"):
        said({**NOVEL, "use_ssmax": True})[0].multiplier(layer=0, position=0)


@pytest.mark.parametrize("kind", ["llama", "novel"])
@pytest.mark.parametrize("key", ["attention_scaling_factor", "softmax_temperature", "qk_gain_scale"])
def test_a_key_that_is_not_understood_is_a_warning_that_names_it(kind: str, key: str) -> None:
    config = {**LLAMA, "model_type": kind}
    (text,) = [text for text in said({**config, key: 0.5})[0].warnings if key in text]
    assert text.startswith(f"{key} = 0.5 is not understood: ")
    for harmless in (None, False, ""):
        assert key not in said({**config, key: harmless})[1]


_MPT = typed("mpt", d_model=64, n_heads=4, n_layers=2)


@pytest.mark.parametrize(
    ("config", "key"),
    [
        ({**LLAMA, "rope_scaling": {**YARN, "attn_factor": 1.3}}, "rope_scaling.attn_factor = 1.3"),
        ({**LLAMA, "attn_config": {"attention_scale": 0.5}}, "attn_config.attention_scale = 0.5"),
        ({**LLAMA, "attention": {"logit": {"soft_cap": 30.0}}}, "attention.logit.soft_cap = 30.0"),
        ({**_MPT, "attn_config": {"qk_ln": True}}, "attn_config.qk_ln = True"),
    ],
    ids=lambda each: str(each)[:40],
)
def test_keys_inside_tables_warn(config: dict[str, Any], key: str) -> None:
    with pytest.warns(at.audit.AuditWarning) as caught:
        at.audit.resolve(config)
    assert any(str(each.message).startswith(f"{key} is not understood") for each in caught)


def test_a_key_of_another_family_is_a_warning() -> None:
    """Llama's code does not read attention_multiplier: the plan leaves it out, with a warning."""
    plan, words = said({**LLAMA, "attention_multiplier": 0.5})
    assert "attention_multiplier = 0.5 is not understood" in words
    assert plan.multiplier(layer=0, position=0) == STANDARD


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ('{"a": 1, "a": 2}', "has the key 'a' twice: programs differ in the value"),
        ("\xff", "is not JSON, and not text: a config.json, its folder"),
        pytest.param("[" * 100_000, "is not JSON", id="deep"),
        pytest.param('{"a": ' + "9" * 5000 + "}", "is not JSON", id="long"),
        ("[1]", "must hold one JSON object, got list"),
    ],
)
def test_files_that_are_no_config(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(text.encode("latin1"))
    with pytest.raises(at.audit.ConfigError, match=message):
        at.audit.resolve(file)
    with pytest.raises(at.audit.ConfigError, match="there is no such file"):
        at.audit.resolve(tmp_path / "absent.json")


@pytest.mark.parametrize("config", [[1], 3, None])
def test_things_that_are_no_config(config: Any) -> None:
    with pytest.raises(TypeError, match="config must be a mapping, a path or a transformers config, got"):
        at.audit.resolve(config)


def scaled(**keys: Any) -> dict[str, Any]:
    return {"rope_scaling": {**YARN, **keys}}


_POSITIVE = "rope_scaling.factor must be a finite number greater than 0, got"
_GPT2 = typed("gpt2", n_embd=64, n_head=2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"num_attention_heads": 0}, "num_attention_heads must be at least 1, got 0"),
        ({"num_attention_heads": "32"}, "num_attention_heads must be an integer, got '32'"),
        ({"num_hidden_layers": -1}, "num_hidden_layers must be at least 1, got -1"),
        ({"num_hidden_layers": 10**9}, "number of layers must be at most 2000, got 1000000000"),
        ({"head_dim": 0}, "head_dim must be at least 1, got 0"),
        ({"head_dim": 10**400}, "head_dim must be at most 2147483647, got 1000"),
        (scaled(factor=0), f"{_POSITIVE} 0"),
        (scaled(factor=-4.0), f"{_POSITIVE} -4.0"),
        (scaled(factor=10**400), "rope_scaling.factor must be a finite number"),
        (scaled(factor=math.nan), "rope_scaling.factor must be a finite number"),
        (scaled(factor="4"), "rope_scaling.factor must be a number, got '4'"),
        ({"rope_scaling": {"type": "yarn"}}, "rope_scaling.factor is missing"),
        ({"rope_scaling": {"type": "linear", "factor": 0}}, "rope_scaling.factor must be"),
        (scaled(type="yam"), "rope_scaling.rope_type must be one of .*, got 'yam'"),
        (scaled(rope_type=["yarn"]), "rope_scaling.rope_type must be one of"),
        ({"rope_parameters": {**YARN, "rope_type": 3}}, "rope_parameters.rope_type must be one of .*, got 3"),
        ({"rope_scaling": [4.0]}, r"rope_scaling must be a mapping, got \[4.0\]"),
        (scaled(attention_factor=-1.0), "rope_scaling.attention_factor must be"),
        (
            scaled(attention_factor=1e300),
            "attention_factor = 1e[+]300: the multiplier is inf, which cannot multiply a score",
        ),
        (scaled(mscale=-1.0), "rope_scaling.mscale must be at least 0, got -1.0"),
        ({"model_type": 3}, "model_type must be a string, got 3"),
        ({**GEMMA2, "query_pre_attn_scalar": 0}, "query_pre_attn_scalar must be"),
        ({**GEMMA2, "attn_logit_softcapping": -1}, "attn_logit_softcapping must"),
        (typed("granite", attention_multiplier=0), "attention_multiplier must be"),
        ({**_GPT2, "scale_attn_weights": 1}, "scale_attn_weights must be true"),
        (typed("smollm3", no_rope_layers=[1]), "no_rope_layers must have one entry for each of 4"),
        (typed("qwen2", layer_types=["full_attention"]), "must have one entry for each of 4 layers, got 1"),
        (typed("qwen2", layer_types=3), "layer_types must be a list of names, got 3"),
        (typed("phimoe", rope_scaling={"type": "longrope"}), "short_mscale is missing"),
        (typed("jamba", attn_layer_offset="4"), "attn_layer_offset must be an integer, got '4'"),
        (typed("lfm2", full_attn_idxs=3), "full_attn_idxs must be a list of numbers or names, got 3"),
        (
            typed("gpt_oss", per_layer_config={"x": {}}),
            "must have numbers of layers for keys, got 'x'",
        ),
        (typed("deepseek_v4", compress_ratios=[8] * 4), "compress_ratios must consist of 0, 4, 128, got 8"),
    ],
    ids=lambda each: str(each)[:50],
)
def test_bad_values_are_one_clear_error(change: dict[str, Any], message: str) -> None:
    with pytest.raises(at.audit.ConfigError, match=message) as caught:
        resolve({**LLAMA, **change})
    assert "\n" not in str(caught.value)


def test_a_config_without_a_head_size() -> None:
    for kind in ("llama", "novel", ""):
        with pytest.raises(at.audit.ConfigError, match="hidden_size is missing: the head size"):
            resolve(typed(kind, num_hidden_layers=2, num_attention_heads=8))
        with pytest.raises(at.audit.ConfigError, match="num_attention_heads is missing: the head size"):
            resolve(typed(kind, num_hidden_layers=2, hidden_size=64))
    with pytest.raises(at.audit.ConfigError, match="num_hidden_layers is missing"):
        resolve(typed("novel", hidden_size=64, num_attention_heads=2))


def test_a_config_is_never_changed_and_a_share_above_one_is_read() -> None:
    config = {**LLAMA, **scaled(partial_rotary_factor=2), "per_layer_config": {0: {"head_dim": 64}}}
    before = copy.deepcopy(config)
    assert at.audit.resolve(config)
    assert config == before


def test_promises_hold_for_configs_that_are_broken_at_random() -> None:
    rng, configs, names = random.Random(20), bases(), all_names()
    for _ in range(3000):
        config = mutated(rng, configs, names)
        wrong = broken_promise(config)
        assert wrong is None, f"{wrong}: {json.dumps(config, default=str)[:2000]}"
