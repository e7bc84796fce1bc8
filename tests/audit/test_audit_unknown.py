# SPDX-License-Identifier: BSD-3-Clause
"""Model types and keys that the audit does not know, and configs that are wrong."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import attnscale as at
import pytest
from audit_configs import (
    GEMMA2,
    LLAMA,
    STANDARD,
    YARN,
    resolve,
    sizes,
    yarn,
)


def test_an_unknown_type_is_what_its_keys_say() -> None:
    config = {
        "model_type": "novel",
        **sizes(attention_multiplier=0.5, attn_logit_softcapping=20.0),
        "rope_theta": 1e4,
        "rope_scaling": YARN,
    }
    with pytest.warns(at.audit.AuditWarning, match="model_type 'novel' is not known"):
        plan = at.audit.resolve(config)
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
    with pytest.warns(at.audit.AuditWarning):
        plan = at.audit.resolve({"model_type": "novel", **sizes(), **keys})
    kind = plan.layers[0].channel_kinds[0]
    assert plan.multiplier(layer=0, position=2**20, channels=kind) == pytest.approx(expected, rel=1e-12)


def test_learned_scales_of_unknown_types_are_refused() -> None:
    with pytest.warns(at.audit.AuditWarning):
        plan = at.audit.resolve({"model_type": "novel", **sizes(), "use_ssmax": True})
    with pytest.raises(at.audit.PlanError, match="use_ssmax = True: the scale has weights"):
        plan.multiplier(layer=0, position=0)


@pytest.mark.parametrize("kind", ["llama", "novel"])
@pytest.mark.parametrize("key", ["attention_scaling_factor", "softmax_temperature", "qk_gain_scale"])
def test_a_key_that_is_not_understood_is_a_warning_that_names_it(kind: str, key: str) -> None:
    config = {**LLAMA, "model_type": kind, key: 0.5}
    (text,) = [text for text in _warned(config) if key in text]
    assert text.startswith(f"{key} = 0.5 is not understood: ")
    for harmless in (None, False, ""):
        assert key not in str(_warned({**config, key: harmless}))


def _warned(config: dict[str, Any]) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        at.audit.resolve(config)
    return [str(each.message) for each in caught]


def test_a_key_of_another_family_is_a_warning() -> None:
    """Llama's code does not read attention_multiplier: the plan is without it, and says so."""
    with pytest.warns(at.audit.AuditWarning, match="attention_multiplier = 0.5 is not understood"):
        plan = at.audit.resolve({**LLAMA, "attention_multiplier": 0.5})
    assert plan.multiplier(layer=0, position=0) == STANDARD


@pytest.mark.parametrize(
    ("text", "message"),
    [("{", "is not JSON"), ("[1]", "must hold one JSON object, got list"), ("\xff", "is not JSON")],
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


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"num_attention_heads": 0}, "num_attention_heads must be at least 1, got 0"),
        ({"num_attention_heads": "32"}, "num_attention_heads must be an integer, got '32'"),
        ({"num_hidden_layers": -1}, "num_hidden_layers must be at least 1, got -1"),
        ({"head_dim": 0}, "head_dim must be at least 1, got 0"),
        ({"rope_scaling": {**YARN, "factor": 0}}, r"rope_scaling.factor must be .* greater than 0, got 0"),
        (
            {"rope_scaling": {**YARN, "factor": -4.0}},
            r"rope_scaling.factor must be .* greater than 0, got -4.0",
        ),
        ({"rope_scaling": {**YARN, "factor": "4"}}, r"rope_scaling.factor must be a number, got '4'"),
        ({"rope_scaling": {**YARN, "factor": math.nan}}, r"rope_scaling.factor must be a finite number"),
        ({"rope_scaling": {"type": "yarn"}}, r"rope_scaling.factor is missing"),
        ({"rope_scaling": {"type": "linear", "factor": 0}}, r"rope_scaling.factor must be"),
        ({"rope_scaling": {**YARN, "type": "yam"}}, r"rope_scaling.rope_type must be one of .*, got 'yam'"),
        (
            {"rope_parameters": {**YARN, "rope_type": 3}},
            r"rope_parameters.rope_type must be one of .*, got 3",
        ),
        ({"rope_scaling": [4.0]}, r"rope_scaling must be a mapping, got \[4.0\]"),
        ({"rope_scaling": {**YARN, "attention_factor": -1.0}}, r"rope_scaling.attention_factor must be"),
        ({"rope_scaling": {**YARN, "mscale": -1.0}}, r"rope_scaling.mscale must be at least 0, got -1.0"),
        ({"model_type": 3}, "model_type must be a string, got 3"),
        ({**GEMMA2, "query_pre_attn_scalar": 0}, "query_pre_attn_scalar must be"),
        ({**GEMMA2, "attn_logit_softcapping": -1}, "attn_logit_softcapping must"),
        ({"model_type": "granite", "attention_multiplier": 0}, "attention_multiplier must be"),
        (
            {"model_type": "gpt2", "n_embd": 64, "n_head": 2, "scale_attn_weights": 1},
            "scale_attn_weights must be true",
        ),
        (
            {"model_type": "smollm3", "no_rope_layers": [1]},
            "no_rope_layers must have one entry for each of 4",
        ),
        (
            {"model_type": "qwen2", "layer_types": ["full_attention"]},
            "layer_types must have one entry for each of 4 layers, got 1",
        ),
        ({"model_type": "qwen2", "layer_types": 3}, "layer_types must be a list of names, got 3"),
        ({"model_type": "phimoe", "rope_scaling": {"type": "longrope"}}, "short_mscale is missing"),
    ],
    ids=lambda each: str(each)[:50],
)
def test_bad_values_are_one_clear_error(change: dict[str, Any], message: str) -> None:
    with pytest.raises(at.audit.ConfigError, match=message) as caught:
        at.audit.resolve({**LLAMA, **change})
    assert "\n" not in str(caught.value)


def test_a_config_without_a_head_size() -> None:
    for kind in ("llama", "novel", ""):
        with pytest.raises(at.audit.ConfigError, match="hidden_size is missing: the head size"):
            resolve({"model_type": kind, "num_hidden_layers": 2, "num_attention_heads": 8})
        with pytest.raises(at.audit.ConfigError, match="num_attention_heads is missing: the head size"):
            resolve({"model_type": kind, "num_hidden_layers": 2, "hidden_size": 64})
    with pytest.raises(at.audit.ConfigError, match="num_hidden_layers is missing"):
        resolve({"model_type": "novel", "hidden_size": 64, "num_attention_heads": 2})
