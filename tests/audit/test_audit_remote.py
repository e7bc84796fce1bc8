# SPDX-License-Identifier: BSD-3-Clause
"""Models whose code is on the Hub, and configs that their class reads."""

from __future__ import annotations

import math
import random
from typing import Any

import attnscale as at
import pytest
from audit_configs import (
    DIFFUSERS,
    KNOWN_TYPES,
    LLAMA,
    NOVEL,
    REMOTE,
    ROOT,
    multipliers,
    resolve,
    sizes,
    typed,
    yarn,
)
from pages import with_lists

from tools.audit import quietly

_LISTS = {"short_factor": [1.0] * 32, "long_factor": [2.0] * 32, "original_max_position_embeddings": 32768}
_MINICPM_LONG = {"rope_scaling": {"rope_type": "longrope", **_LISTS}, "max_position_embeddings": 65536}
_MUP = {"mup_use_scaling": True, "mup_attn_multiplier": 2.0, "mup_width_multiplier": 8.0}
_NTK = {"rope_scaling": {"type": "ntk", "factor": 8.0}, "max_position_embeddings": 8192}
_GTE = sizes(768, 12, 12, **_NTK, rope_theta=20000, logn_attention_scale=True)
_FLA = {"hidden_size": 2048, "num_heads": 32, "num_hidden_layers": 2}
_LINEAR = (
    "abc comba delta_net gated_deltanet gated_deltaproduct gla gsa hgrn hgrn2 kda linear_attn mesa_net "
    "retnet rwkv6 rwkv7"
)
_NORI = {"embed_dim": 192, "nhead": 3, "nlayers": 2, "layer_arch": "fmfmsm"}
_GPT2 = {"n_embd": 512, "n_head": 8, "n_layer": 2}
_DBRX = {"d_model": 6144, "n_heads": 48, "n_layers": 2}
_CHATGLM = {"num_layers": 28, "kv_channels": 64, "apply_query_key_layer_scaling": True}
_GROK = {"attn_output_multiplier": 0.125, "embedding_multiplier_scale": 78.4, "max_attn_value": 30.0}
_KIMI_YARN = {"type": "yarn", "factor": 32.0, "mscale": 1.0, "mscale_all_dim": 1.0}
_KIMI = {
    **sizes(7168, 64, 61, qk_nope_head_dim=128, qk_rope_head_dim=64),
    "rope_scaling": {**_KIMI_YARN, "original_max_position_embeddings": 4096},
}

#: (type, config, multiplier of the first layer at position 3, its soft-cap), for each row of the table
CONFIGS: list[tuple[str, dict[str, Any], float, float | None]] = [
    ("qwen", sizes(4096, 32, 32, kv_channels=64, seq_length=2048, use_logn_attn=True), 1 / 8, None),
    ("internlm", sizes(4096, 32, 32, rotary={"base": 10000, "type": "dynamic"}), 128**-0.5, None),
    ("internlm2", sizes(rope_scaling={"type": "dynamic", "factor": 2.0}), 128**-0.5, None),
    ("baichuan", sizes(5120, 40, 40, model_max_length=4096), 128**-0.5, None),
    ("deepseek", sizes(2048, 16, 28), 128**-0.5, None),
    ("minicpm", sizes(2304, 36, 40, scale_emb=12, scale_depth=1.4), 1 / 8, None),
    ("minicpm", sizes(2304, 36, 40, **_MINICPM_LONG), (1 + math.log(2) / math.log(32768)) / 8, None),
    ("chatglm", {"hidden_size": 4096, "num_attention_heads": 32, **_CHATGLM}, 1 / 8, None),
    ("phi3small", sizes(**_MUP), 1 / 64, None),
    ("phi3small", sizes(), 1 / 128, None),
    ("phi3small", sizes(mup_use_scaling=False), 128**-0.5, None),
    ("btlm", {**_GPT2, "mup_scale_qk_dot_by_d": True, "scale_attn_weights": True}, 1 / 64, None),
    ("btlm", _GPT2, 1 / 8, None),
    ("jais", {**_GPT2, "scale_qk_dot_by_d": True}, 1 / 64, None),
    ("jais", {**_GPT2, "mup_scale_qk_dot_by_d": True, "scale_attn_weights": False}, 1, None),
    ("grok-1", sizes(6144, 48, 64, output_multiplier_scale=0.577, **_GROK), 0.125, 30.0),
    ("grok", sizes(6144, 48, 64), 128**-0.5, None),
    ("grok-2", sizes(8192, 64, 64, attn_logit_softcapping=30.0), 128**-0.5, 30.0),
    ("kimi_k2", _KIMI, yarn(32) ** 2 / math.sqrt(192), None),
    ("new", sizes(1024, 16, 24, logn_attention_scale=False, logn_attention_clip1=True), 1 / 8, None),
    ("new", {**_GTE, "logn_attention_clip1": True}, 1 / 8, None),
    ("new", _GTE, math.log(4) / math.log(8192) / 8, None),
    ("new", sizes(768, 12, 12, logn_attention_scale=True), math.log(4) / math.log(2048) / 8, None),
    ("synthefy_nori", {**_NORI, "use_logn_attention": True}, math.log(4) / math.log(1024) / 8, None),
    ("synthefy_nori", {**_NORI, "use_logn_attention": False}, 1 / 8, None),
    ("forgetting_transformer", _FLA, 1 / 8, None),
    *((kind, {**_FLA, "attn": {"layers": [0], "num_heads": 8}}, 1 / 16, None) for kind in _LINEAR.split()),
    # Configs that transformers took over from code on the Hub.
    ("dbrx", {**_DBRX, "attn_config": {"clip_qkv": 8}}, 128**-0.5, None),
    ("mpt", {**_DBRX, "attn_config": {"softmax_scale": 0.5}}, 0.5, None),
]


_LUMINA = {"hidden_size": 2304, "num_layers": 2, "scaling_factor": 1.0}
_FLUX = {"num_layers": 1, "num_single_layers": 2, "attention_head_dim": 64}
_SU = {"type": "su", "short_factor": [1.0] * 48, "long_factor": [1.0] * 48}

_LUMINA_NEXT = {**_LUMINA, "num_attention_heads": 36, "sample_size": 64, "qk_norm": True}
_LUMINA_SCALE = math.sqrt(math.log(4096) / math.log(1024)) / 8
#: (class, keys, multiplier of the first layer at position 4095, number of layers, norm of q and k), seen in
#: runs of small models of each class.
DIFFUSED: list[tuple[str, dict[str, Any], float, int, str]] = [
    ("LuminaNextDiT2DModel", _LUMINA_NEXT, _LUMINA_SCALE, 2, "before rotation"),
    ("LuminaNextDiT2DModel", {"qk_norm": False}, 72**-0.5, 32, "none"),
    ("Lumina2Transformer2DModel", {**_LUMINA, "num_attention_heads": 36}, 1 / 8, 2, "before rotation"),
    ("OmniGenTransformer2DModel", {"rope_scaling": _SU}, (1 + 5 / 12) / math.sqrt(96), 32, "none"),
    ("OmniGenTransformer2DModel", {"max_position_embeddings": 4096}, 96**-0.5, 32, "none"),
    ("FluxTransformer2DModel", _FLUX, 1 / 8, 3, "before rotation"),
    ("Flux2Transformer2DModel", {}, 128**-0.5, 56, "before rotation"),
    ("SD3Transformer2DModel", {"qk_norm": None}, 1 / 8, 18, "none"),
    ("SD3Transformer2DModel", {"qk_norm": "rms_norm"}, 1 / 8, 18, "before rotation"),
    ("QwenImageTransformer2DModel", {}, 128**-0.5, 60, "before rotation"),
    ("WanTransformer3DModel", {"attention_head_dim": 64}, 1 / 8, 40, "before rotation"),
]


def test_every_row_of_the_tables_has_a_config() -> None:
    remote, diffusers = ({kind for row in rows for kind in row.family.types} for rows in (REMOTE, DIFFUSERS))
    assert {kind for kind, *_ in CONFIGS} - {"dbrx", "mpt"} | {"stickbreaking_attn"} == remote
    assert {kind for kind, *_ in DIFFUSED} == diffusers


@pytest.mark.parametrize(("name", "keys", "expected", "layers", "norm"), DIFFUSED)
def test_transformers_of_diffusers(
    name: str, keys: dict[str, Any], expected: float, layers: int, norm: str
) -> None:
    plan = resolve({"_class_name": name, "_diffusers_version": "0.42.1", **keys})
    assert multipliers(plan, 4095)[0] == pytest.approx(expected, rel=1e-12)
    assert (len(plan), plan[0].qk_norm) == (layers, norm)


@pytest.mark.parametrize(("kind", "config", "expected", "cap"), CONFIGS)
def test_remote_code_is_read_by_its_own_rule(
    kind: str, config: dict[str, Any], expected: float, cap: float | None
) -> None:
    plan = resolve(typed(kind, **config))
    assert multipliers(plan, 3)[0] == pytest.approx(expected, rel=1e-12)
    assert plan.softcap(0) == cap


@pytest.mark.parametrize("clips", [False, True])
@pytest.mark.parametrize("n", [2, 512, 8192, 32768])
def test_the_logarithm_of_the_tokens_of_a_text(n: int, clips: bool) -> None:
    """GTE, as its code has it: log of the tokens over log of max_position_embeddings, for all queries."""
    plan = resolve(typed("new", **_GTE, logn_attention_clip1=clips))
    factor = math.log(n) / math.log(8192)
    expected = (max(factor, 1.0) if clips else factor) / 8
    assert plan.multiplier(layer=0, position=n - 1, channels="rotated") == pytest.approx(expected, rel=1e-12)
    assert "the same for all its queries" in plan.explain()
    assert len(plan) == 12


@pytest.mark.parametrize("mixed", [None, 0.625])
def test_the_angles_of_gte(mixed: float | None) -> None:
    """Both kinds of "ntk", as NTKScalingRotaryEmbedding of the models' own code has them."""
    keys = {**_GTE, "rope_scaling": {"type": "ntk", "factor": 8.0, "mixed_b": mixed}}
    found = resolve(typed("new", **keys))[0].rotation.frequencies()
    half, factor, expected = 32, 8.0, []
    for pair in range(half):
        if mixed is None:
            expected.append((20000 * factor) ** (-pair / half) / factor ** (1 / half))
        else:
            slowed = math.exp(math.log(factor) / half**mixed * (pair + 1) ** mixed)
            expected.append(20000 ** (-pair / half) / slowed)
    assert found.tolist() == pytest.approx(expected, rel=1e-12)
    absolute = resolve(typed("new", **_GTE, position_embedding_type="absolute"))
    assert absolute[0].rotated == 0
    for other in (NOVEL, {**NOVEL, "model_type": "gte"}):  # transformers' own GTE cannot be built with it
        with pytest.raises(at.audit.ConfigError, match=r"rope_type must be one of .* got 'ntk'"):
            quietly({**other, "rope_scaling": keys["rope_scaling"]})


def test_what_is_no_softmax_is_named() -> None:
    plan = resolve(typed("stickbreaking_attn", **_FLA, qk_norm=True, attend_current=False))
    assert [layer.refusal for layer in plan] == [plan[0].refusal] * 2
    with pytest.raises(at.audit.PlanError, match="no softmax over keys: stick-breaking"):
        plan.multiplier(layer=0, position=3)
    assert "not understood" not in plan.explain()
    linear = resolve(typed("gla", **_FLA))
    assert {layer.refusal for layer in linear} == {
        "this layer has no softmax over keys, so no score multiplier"
    }
    keys = {**_FLA, "qk_norm": "l2", "qk_activation": "silu", "num_hidden_layers": 4}
    windowed = {"layers": [0], "num_heads": 16, "window_size": 64}
    hybrid = resolve(typed("delta_net", **keys, attn=[windowed, {"layers": [3], "num_heads": 8}]))
    assert [layer.refusal is None for layer in hybrid] == [True, False, False, True]
    assert [layer.window for layer in hybrid] == [64, None, None, None]
    assert multipliers(hybrid) == pytest.approx([128**-0.5, 256**-0.5])
    with pytest.raises(at.audit.ConfigError, match=r"attn\.num_heads is missing"):
        quietly(typed("gla", **_FLA, attn={"layers": [1]}))
    with pytest.raises(at.audit.ConfigError, match=r"hidden_size must be at least attn\.num_heads"):
        quietly(typed("gla", **_FLA, attn={"layers": [1], "num_heads": 4096}))


_NORI_BOTH = {"use_logn_attention": True, "use_qassmax": True, "qass_mode": "log_only"}


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"qass_mode": "log_only", "use_qassmax": True}, math.log(500) / 8),
        ({"qass_mode": "log_only", "use_qassmax": False}, 1 / 8),
        ({"use_logn_attention": True, "attn_n_ref": 4096}, math.log(500) / math.log(4096) / 8),
        (_NORI_BOTH, math.log(500) ** 2 / math.log(1024) / 8),
    ],
)
def test_nori_by_the_config_in_its_checkpoint(keys: dict[str, Any], expected: float) -> None:
    """q times ln n (QASSMax without networks) and times ln n / ln attn_n_ref, as its MultiheadAttention."""
    plan = resolve({**_NORI, **keys})  # which has no model_type
    assert (plan.model_type, len(plan)) == ("synthefy_nori", 2)
    assert plan.multiplier(layer=0, position=499) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"use_learnable_attn_temperature": True}, "abs(attn_temperature), a weight of each layer"),
        ({"use_qassmax": True, "qass_mode": "full"}, "and 1 + tanh(gate_mlp(q)), networks in the weights"),
        ({"use_qassmax": True, "use_logn_attention": False}, "and 1 + tanh(gate_mlp(q)), networks"),
        ({"use_qassmax": True, "qass_mode": "base_only"}, "by ln n (1 + tanh(base_mlp(ln n))), networks"),
        ({"use_qassmax": True}, "one release of the code reads it as full, a later one as log_only"),
    ],
)
def test_nori_whose_scale_is_in_the_weights(keys: dict[str, Any], expected: str) -> None:
    plan = resolve({**_NORI, **keys})
    assert all(expected in (layer.refusal or "") for layer in plan)
    with pytest.raises(at.audit.ConfigError, match="qass_mode must be full, base_only or log_only, got 'x'"):
        quietly({**_NORI, "use_qassmax": True, "qass_mode": "x"})


@pytest.mark.torch
def test_gte_of_transformers_does_not_read_its_logarithm() -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers.models.gte")
    from transformers import GteConfig, GteModel

    small = {
        "hidden_size": 16,
        "num_attention_heads": 2,
        "num_hidden_layers": 1,
        "intermediate_size": 8,
        "vocab_size": 9,
    }
    outputs = []
    for flag in (False, True):
        torch.manual_seed(0)
        model = GteModel(GteConfig(**small, logn_attention_scale=flag)).eval()
        with torch.no_grad():
            outputs.append(model(torch.arange(8)[None]).last_hidden_state)
    assert torch.equal(*outputs)
    config = typed("gte", **sizes(16, 2, 1), logn_attention_scale=True, logn_attention_clip1=True)
    plan = quietly(config)
    assert plan.multiplier(layer=0, position=7, channels="rotated") == pytest.approx(8**-0.5)
    (told,) = plan.warnings
    assert told.startswith("logn_attention_scale = True has no effect in transformers")
    assert "ln n / ln 8192" in told


@pytest.mark.torch
@pytest.mark.filterwarnings("default")
def test_the_class_and_the_keys_give_one_answer() -> None:
    """Configs with changed rotary positions and other keys, for a sample of types; no model is built."""
    pytest.importorskip("transformers")
    pytest.importorskip("torch")
    from transformers import CONFIG_MAPPING

    from tools.audit import changes, oracle

    rng, answers = random.Random(3), 0
    for kind in rng.sample(sorted(KNOWN_TYPES.intersection(CONFIG_MAPPING)), 40):
        for label, keys in rng.sample(list(changes.changes(kind)), 10):
            config = typed(kind, **{**oracle.small_keys(kind, keys), **keys})
            try:
                plan = quietly(config, ask_class=True)
            except at.audit.ConfigError:  # the class, or the audit, refuses it
                continue
            answers += 1
            assert "config class" not in str(plan.warnings), (kind, label)
    assert answers > 250


def test_a_config_that_its_class_refuses() -> None:
    pytest.importorskip("transformers")
    with pytest.raises(at.audit.ConfigError, match="the config class of llama refuses the config"):
        quietly({**LLAMA, "hidden_act": 3}, ask_class=True)
    with pytest.raises(at.audit.ConfigError, match="needs a model_type of transformers, got 'novel'"):
        quietly(NOVEL, ask_class=True)


def test_no_code_of_a_repository_is_imported(tmp_path: Any) -> None:
    pytest.importorskip("transformers")
    (tmp_path / "configuration_evil.py").write_text("raise SystemExit('imported')", encoding="utf-8")
    config = {**LLAMA, "auto_map": {"AutoConfig": "configuration_evil.Evil"}, "trust_remote_code": True}
    assert repr(quietly(config, ask_class=True).layers) == repr(at.audit.resolve(config).layers)


def test_the_page_on_coverage_has_every_row() -> None:
    text = with_lists(ROOT / "docs" / "reference" / "audit-coverage.md")
    for row in (*REMOTE, *DIFFUSERS):
        types = ", ".join(f"`{kind}`" for kind in row.family.types)
        assert f"| {row.models} | {types} | {row.rule} |" in text
