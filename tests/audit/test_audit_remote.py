# SPDX-License-Identifier: BSD-3-Clause
"""Models whose code is on the Hub, keys inside tables, and the config class's own reading."""

from __future__ import annotations

import math
import random
import warnings
from pathlib import Path
from typing import Any

import attnscale as at
import pytest
from attnscale.audit._keys import known_types
from attnscale.audit._rules.families import REMOTE
from audit_configs import LLAMA, resolve, sizes, yarn

#: For each row of the table: configs, and the multiplier and soft-cap of their first layer at position 3.
CONFIGS: dict[str, list[tuple[dict[str, Any], float, float | None]]] = {
    "qwen": [
        ({**sizes(4096, 32, 32), "kv_channels": 64, "seq_length": 2048, "use_logn_attn": True}, 1 / 8, None)
    ],
    "internlm": [({**sizes(4096, 32, 32), "rotary": {"base": 10000, "type": "dynamic"}}, 128**-0.5, None)],
    "internlm2": [({**sizes(), "rope_scaling": {"type": "dynamic", "factor": 2.0}}, 128**-0.5, None)],
    "baichuan": [({**sizes(5120, 40, 40), "model_max_length": 4096}, 128**-0.5, None)],
    "exaone": [
        ({"hidden_size": 4096, "num_attention_heads": 32, "num_layers": 32, "head_dim": 64}, 1 / 8, None)
    ],
    "deepseek": [(sizes(2048, 16, 28), 128**-0.5, None)],
    "minicpm": [
        ({**sizes(2304, 36, 40), "scale_emb": 12, "scale_depth": 1.4}, 1 / 8, None),
        (
            {
                **sizes(2304, 36, 40, max_position_embeddings=65536),
                "rope_scaling": {
                    "rope_type": "longrope",
                    "short_factor": [1.0] * 32,
                    "long_factor": [2.0] * 32,
                    "original_max_position_embeddings": 32768,
                },
            },
            (1 + math.log(2) / math.log(32768)) / 8,
            None,
        ),
    ],
    "chatglm": [
        (
            {
                "hidden_size": 4096,
                "num_attention_heads": 32,
                "num_layers": 28,
                "kv_channels": 64,
                "apply_query_key_layer_scaling": True,
            },
            1 / 8,
            None,
        )
    ],
    "phi3small": [
        (
            {**sizes(), "mup_use_scaling": True, "mup_attn_multiplier": 2.0, "mup_width_multiplier": 8.0},
            1 / 64,
            None,
        ),
        (sizes(), 1 / 128, None),
        ({**sizes(), "mup_use_scaling": False}, 128**-0.5, None),
    ],
    "btlm": [
        (
            {
                "n_embd": 2560,
                "n_head": 32,
                "n_layer": 32,
                "mup_scale_qk_dot_by_d": True,
                "scale_attn_weights": True,
            },
            1 / 80,
            None,
        ),
        ({"n_embd": 2560, "n_head": 32, "n_layer": 32}, 80**-0.5, None),
    ],
    "jais": [
        ({"n_embd": 512, "n_head": 8, "n_layer": 2, "scale_qk_dot_by_d": True}, 1 / 64, None),
        (
            {
                "n_embd": 512,
                "n_head": 8,
                "n_layer": 2,
                "mup_scale_qk_dot_by_d": True,
                "scale_attn_weights": False,
            },
            1,
            None,
        ),
    ],
    "grok-1": [
        (
            {
                **sizes(6144, 48, 64, attn_output_multiplier=0.125, max_attn_value=30.0),
                "embedding_multiplier_scale": 78.4,
                "output_multiplier_scale": 0.577,
            },
            0.125,
            30.0,
        )
    ],
    "grok": [(sizes(6144, 48, 64), 128**-0.5, None)],
    "grok-2": [(sizes(8192, 64, 64, attn_logit_softcapping=30.0), 128**-0.5, 30.0)],
    "kimi_k2": [
        (
            {
                **sizes(7168, 64, 61, qk_nope_head_dim=128, qk_rope_head_dim=64),
                "rope_scaling": {
                    "type": "yarn",
                    "factor": 32.0,
                    "mscale": 1.0,
                    "mscale_all_dim": 1.0,
                    "original_max_position_embeddings": 4096,
                },
            },
            yarn(32) ** 2 / math.sqrt(192),
            None,
        )
    ],
}


def test_every_row_of_the_table_has_a_config() -> None:
    assert sorted(CONFIGS) == sorted(kind for row in REMOTE for kind in row.family.types)


@pytest.mark.parametrize("kind", CONFIGS)
def test_remote_code_is_read_by_its_own_rule(kind: str) -> None:
    for config, expected, cap in CONFIGS[kind]:
        plan = resolve({"model_type": kind, **config})
        channels = plan.layers[0].channel_kinds[0]
        assert plan.multiplier(layer=0, position=3, channels=channels) == pytest.approx(expected, rel=1e-12)
        assert plan.softcap(0) == cap


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (
            {
                "model_type": "dbrx",
                "d_model": 6144,
                "n_heads": 48,
                "n_layers": 40,
                "attn_config": {"clip_qkv": 8},
            },
            128**-0.5,
        ),
        (
            {
                "model_type": "mpt",
                "d_model": 4096,
                "n_heads": 32,
                "n_layers": 32,
                "attn_config": {"softmax_scale": 0.5},
            },
            0.5,
        ),
    ],
    ids=lambda each: str(each)[:30],
)
def test_configs_that_transformers_took_over_from_remote_code(
    config: dict[str, Any], expected: float
) -> None:
    assert resolve(config).multiplier(layer=0, position=3) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("config", "key"),
    [
        (
            {**LLAMA, "rope_scaling": {"type": "yarn", "factor": 4.0, "attn_factor": 1.3}},
            "rope_scaling.attn_factor = 1.3",
        ),
        ({**LLAMA, "attn_config": {"attention_scale": 0.5}}, "attn_config.attention_scale = 0.5"),
        ({**LLAMA, "attention": {"logit": {"soft_cap": 30.0}}}, "attention.logit.soft_cap = 30.0"),
        (
            {"model_type": "mpt", "d_model": 64, "n_heads": 4, "n_layers": 2, "attn_config": {"qk_ln": True}},
            "attn_config.qk_ln = True",
        ),
    ],
    ids=lambda each: str(each)[:40],
)
def test_keys_inside_tables_are_told(config: dict[str, Any], key: str) -> None:
    with pytest.warns(at.audit.AuditWarning) as caught:
        at.audit.resolve(config)
    assert any(str(each.message).startswith(f"{key} is not understood") for each in caught)


def test_unknown_types_that_divide_by_the_head_size() -> None:
    keys = {"model_type": "novel", **sizes(), "scale_attn_weights": True, "mup_scale_qk_dot_by_d": True}
    with pytest.warns(at.audit.AuditWarning, match="'novel' is not known"):
        assert at.audit.resolve(keys).multiplier(layer=0, position=0) == 1 / 128


def _ask(config: dict[str, Any]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", at.audit.AuditWarning)
        return at.audit.resolve(config, ask_class=True)


@pytest.mark.torch
@pytest.mark.filterwarnings("default")
def test_the_class_and_the_keys_give_one_answer() -> None:
    """Spellings of every rotary type and other changes, of a sample of types: no model is built."""
    pytest.importorskip("transformers")
    pytest.importorskip("torch")
    import audit_oracle as oracle
    import scan_changes
    from transformers import CONFIG_MAPPING

    rng, answers = random.Random(3), 0
    for kind in rng.sample(sorted(known_types().intersection(CONFIG_MAPPING)), 40):
        for label, keys in rng.sample(list(scan_changes.changes(kind)), 10):
            config = {"model_type": kind, **oracle.small_keys(kind, keys), **keys}
            try:
                plan = _ask(config)
            except at.audit.ConfigError:  # the class, or the audit, refuses it
                continue
            answers += 1
            assert "config class" not in str(plan.warnings), (kind, label)
    assert answers > 250


def test_what_the_class_refuses_is_told() -> None:
    pytest.importorskip("transformers")
    with pytest.raises(at.audit.ConfigError, match="the config class of llama refuses the config"):
        _ask({**LLAMA, "hidden_act": 3})
    with pytest.raises(
        at.audit.ConfigError, match="ask_class needs a model_type of transformers, got 'novel'"
    ):
        _ask({**LLAMA, "model_type": "novel"})


def test_no_code_of_a_repository_is_imported(tmp_path: Any) -> None:
    pytest.importorskip("transformers")
    (tmp_path / "configuration_evil.py").write_text("raise SystemExit('imported')", encoding="utf-8")
    config = {**LLAMA, "auto_map": {"AutoConfig": "configuration_evil.Evil"}, "trust_remote_code": True}
    assert repr(_ask(config).layers) == repr(at.audit.resolve(config).layers)


def test_the_page_on_coverage_has_every_row() -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "reference" / "audit-coverage.md"
    text = page.read_text(encoding="utf-8")
    for row in REMOTE:
        types = ", ".join(f"`{kind}`" for kind in row.family.types)
        assert f"| {row.models} | {types} | {row.rule} |" in text
