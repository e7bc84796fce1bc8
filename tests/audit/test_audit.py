# SPDX-License-Identifier: BSD-3-Clause
"""Plans of model configs: worked cases, every type and row of the table, layers, what is refused."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any, NamedTuple

import attnscale as at
import numpy as np
import pytest
from audit_configs import (
    DEEPSEEK,
    GEMMA2,
    GPT_OSS,
    IN_ROWS,
    KNOWN_TYPES,
    LLAMA,
    LLAMA4,
    MINISTRAL,
    PHI4_MINI,
    QWEN,
    QWEN25,
    REMOTE,
    STANDARD,
    multipliers,
    resolve,
    said,
    sizes,
    tempered,
    typed,
    yarn,
)


class Worked(NamedTuple):
    """A config, and the multipliers of a layer at a position; None: it has no such channels."""

    config: dict[str, Any]
    rotated: float | None
    unrotated: float | None = None
    layer: int = 0
    position: int = 0
    softcap: float | None = None
    sink: bool = False


_DEEPSEEK_SCALE = yarn(40) ** 2 / math.sqrt(192)
_LONGROPE = (1 + math.log(32) / math.log(4096)) / math.sqrt(128)
_BY_LAYER = {"n_embd": 768, "n_head": 12, "n_layer": 12, "scale_attn_by_inverse_layer_idx": True}
_DEBERTA = {"pos_att_type": ["p2c", "c2p"], "relative_attention": True}
WORKED = {
    "qwen2.5 7b": Worked(QWEN25, yarn(4) ** 2 / math.sqrt(128), layer=3, position=40000),
    "phi-4 mini": Worked(PHI4_MINI, _LONGROPE, STANDARD, layer=31, position=131071),
    "gpt-oss 20b": Worked(GPT_OSS, yarn(32) ** 2 / 8, layer=1, position=5000, sink=True),
    "deepseek v3": Worked(DEEPSEEK, _DEEPSEEK_SCALE, _DEEPSEEK_SCALE, layer=30),
    "llama 4 scout": Worked(LLAMA4, None, (1 + 0.1 * math.log(5)) * STANDARD, layer=3, position=32767),
    "gemma 2 27b": Worked(GEMMA2, 1 / 12, layer=1, position=9, softcap=50.0),
    "ministral 3": Worked(MINISTRAL, 1.0693147180559945 * STANDARD, position=32767),
    "qwen 7b": Worked(QWEN, 15 / 13 * STANDARD, position=32767),
    "granite": Worked(typed("granite", **sizes(attention_multiplier=1 / 128)), 1 / 128),
    "gpt-2 of crfm": Worked(typed("gpt2", **_BY_LAYER), None, 1 / 8 / 5, layer=4),
    "t5": Worked(typed("t5", d_model=512, num_heads=8, num_layers=6, d_kv=64), None, 1.0),
    "deberta": Worked(typed("deberta-v2", **sizes(1536, 24, 24), **_DEBERTA), None, 1 / math.sqrt(3 * 64)),
    "falcon h1": Worked(typed("falcon_h1", **sizes(head_dim=128), key_multiplier=0.1), 0.1 * STANDARD),
}


@pytest.mark.parametrize("name", WORKED)
def test_worked_cases(name: str) -> None:
    config, rotated, unrotated, layer, position, softcap, sink = WORKED[name]
    plan = resolve(config)
    for channels, expected in (("rotated", rotated), ("unrotated", unrotated)):
        if expected is None:
            with pytest.raises(ValueError, match=f"channels='{channels}': rotary positions turn"):
                plan.multiplier(layer=layer, position=position, channels=channels)
        else:
            found = plan.multiplier(layer=layer, position=position, channels=channels)
            assert type(found) is float
            assert found == pytest.approx(expected, rel=1e-12)
    assert plan.softcap(layer) == softcap
    assert plan.sink(layer) is sink


def test_reading_does_not_depend_on_where_the_config_comes_from(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(QWEN25), encoding="utf-8")

    class Config:
        def to_dict(self) -> dict[str, Any]:
            return QWEN25

    plans = [resolve(each) for each in (QWEN25, file, str(file), tmp_path, Config())]
    assert all(plan == plans[0] for plan in plans)
    assert str(at.audit(QWEN25)) == str(plans[0])  # type: ignore[operator]  # the module is called as resolve


@pytest.mark.parametrize(
    ("config", "layer", "edges"),
    [(MINISTRAL, 0, [16384, 32768]), (LLAMA4, 3, [8191, 16383]), (QWEN, 0, [8192])],
    ids=["ministral counts i", "llama 4 counts i + 1", "qwen begins behind L"],
)
def test_where_a_position_begins_to_count(config: dict[str, Any], layer: int, edges: list[int]) -> None:
    plan = resolve(config)
    for edge in edges:
        before, at_edge = (plan.multiplier(layer=layer, position=i) for i in (edge - 1, edge))
        assert at_edge > before
    first = plan.multiplier(layer=layer, position=0)
    assert plan.multiplier(layer=layer, position=edges[0] - 1) == first == STANDARD


def test_keys_that_are_missing_have_the_default_of_their_model_type() -> None:
    gemma = {key: GEMMA2[key] for key in ("model_type", "hidden_size", "num_attention_heads")}
    plan = resolve(gemma)
    assert len(plan) == 26
    assert plan.multiplier(layer=0, position=0) == 1 / 16  # head_dim 256, query_pre_attn_scalar 256
    assert plan.softcap(0) == 50.0
    assert "soft-cap c: attn_logit_softcapping = 50.0 (default of gemma2)" in plan.explain()
    assert resolve({**gemma, "attn_logit_softcapping": None}).softcap(0) is None
    assert resolve(typed("granite", **sizes())).multiplier(layer=0, position=0) == 1.0
    # gpt-oss is YaRN with factor 32 by default, Llama is not.
    assert resolve(typed("gpt_oss", **sizes(2880, 64))).multiplier(layer=0, position=0) > 0.2
    # The config of LLaVA 1.5 leaves out the sizes of its language model, which are Llama's defaults.
    llava = typed("llava", text_config=typed("llama", vocab_size=32064))
    assert resolve(llava).multiplier(layer=0, position=0) == STANDARD


def test_names_that_look_like_a_scale_of_attention_have_no_effect() -> None:
    multiplied = {"logits_scaling": 8.0, "embedding_multiplier": 12.0, "residual_multiplier": 0.22}
    scaled = {"final_logit_softcapping": 30.0, "logit_scale": 0.0625, "scale_embedding": True}
    assert resolve({**LLAMA, **multiplied, **scaled}).multiplier(layer=0, position=0) == STANDARD


def test_layers_differ() -> None:
    plan = resolve(LLAMA4)
    assert [layer.rotated for layer in plan.layers[:5]] == [128, 128, 128, 0, 128]
    assert plan.layers[0].qk_norm == "after rotation"
    hybrid = resolve(typed("jamba", **sizes(layers=8, attn_layer_period=4, attn_layer_offset=2)))
    assert [layer.refusal is None for layer in hybrid.layers] == [False, False, True, False] * 2
    with pytest.raises(ValueError, match=r"layer 0 \(linear_attention\): this layer has no softmax"):
        hybrid.multiplier(layer=0, position=0)
    rope = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 32768}
    gemma3 = resolve(typed("gemma3_text", **sizes(2560, 8, 6), query_pre_attn_scalar=256, rope_scaling=rope))
    found = multipliers(gemma3)
    assert found[:5] == [1 / 16] * 5
    assert found[5] == pytest.approx(yarn(8) ** 2 / 16)


def test_latent_scales_act_on_their_own_channels() -> None:
    """LongCat Flash: the query's latent feeds all channels, the key's those without positions."""
    plan = resolve(typed("longcat_flash", **sizes(6144, 64), num_layers=2))
    assert len(plan) == 4
    found = [plan.multiplier(layer=0, position=0, channels=kind) for kind in ("rotated", "unrotated")]
    assert found == pytest.approx([2 / math.sqrt(192), 2 * math.sqrt(12) / math.sqrt(192)])
    with pytest.raises(ValueError, match=r"differ \(unrotated / rotated = 3.46"):
        plan.multiplier(layer=0, position=0)


@pytest.mark.parametrize("kind", sorted({*KNOWN_TYPES, *IN_ROWS}))
def test_every_known_type_resolves(kind: str) -> None:
    """A config of sizes alone resolves without a warning; each layer has an answer or a reason."""
    heads = dict.fromkeys(("n_head", "encoder_attention_heads", "decoder_attention_heads"), 4)
    config = typed(kind, **sizes(256, 4, 6), n_embd=256, depths=[2, 4], **heads)
    if kind in ("nemotron_h", "zamba2"):
        config["layers_block_type"] = ["mamba", "attention"] * 3
    if kind == "longcat_flash":
        config["num_layers"] = 3
    plan = resolve(config)
    assert plan.known
    assert len(plan) > 0
    for layer in plan.layers:
        if layer.refusal is None:
            kinds = layer.channel_kinds
            assert all(plan.multiplier(layer=layer.index, position=0, channels=each) > 0 for each in kinds)
    assert plan.explain().startswith(kind)
    assert json.loads(json.dumps(plan.to_dict()))["model_type"] == kind


def test_every_type_has_one_row() -> None:
    types = [*IN_ROWS, *(kind for each in REMOTE for kind in each.family.types)]
    assert len(types) == len(set(types))


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("mistral_large4_text", "scale and bias are weights"),
        ("swinv2", "is a weight of the checkpoint"),
        ("timesfm", "each channel of the query has a scale of its own"),
        ("gemma4_audio", "each channel of the query has a scale of its own"),
        ("yoso", "chances that hashes of q and k collide"),
        ("autoformer", "softmax over lags of time"),
        ("mamba", "no softmax over keys"),
        ("fnet", "no softmax over keys"),
    ],
)
def test_what_a_config_cannot_say_is_refused_with_the_reason(kind: str, reason: str) -> None:
    plan = resolve(typed(kind, **sizes(256, 4, 6)))
    for ask in (
        lambda: plan.multiplier(layer=0, position=0),
        lambda: plan.softcap(0),
        lambda: plan.sink(0),
        lambda: plan.attention_options(0, [1, 2]),
    ):
        with pytest.raises(at.audit.PlanError, match=reason):
            ask()
    assert reason in plan.explain()


@pytest.mark.parametrize(
    ("config", "layers", "expected"),
    [
        (typed("jetmoe", hidden_size=2048, kv_channels=64), 12, 1 / 8),
        (typed("cpmant", **sizes(), dim_head=64), 4, 1 / 8),
        (typed("mobilebert", **sizes(512, 4, 24), intra_bottleneck_size=64), 24, 1 / 4),
        (typed("mobilebert", **sizes(256, 4, 24), use_bottleneck=False), 24, 1 / 8),
        (typed("funnel", d_model=768, n_head=12, block_sizes=[2, 3], d_head=16), 7, 1 / 4),
        (typed("lxmert", **sizes(1024, 4), l_layers=9, x_layers=5, r_layers=2), 16, 1 / 16),
        (typed("cvt"), 13, 1 / 8),
        (typed("convbert", **sizes(768, 12, 2), head_ratio=3), 2, 1 / math.sqrt(96)),
        (typed("zamba", **sizes(64, 4, 4), attention_head_dim=8), 4, 1 / 2),
        (typed("mt5", d_model=64, num_heads=4, num_layers=2, d_kv=8), 2, 1.0),
    ],
    ids=lambda each: each["model_type"] if isinstance(each, dict) else "",
)
def test_heads_that_are_not_hidden_size_over_heads(
    config: dict[str, Any], layers: int, expected: float
) -> None:
    plan = resolve(config)
    assert len(plan) == layers
    assert multipliers(plan)[0] == pytest.approx(expected, rel=1e-15)


def test_each_stage_of_cvt_is_scaled_by_its_whole_width() -> None:
    plan = resolve(typed("cvt", embed_dim=[16, 64], num_heads=[1, 4], depth=[1, 2]))
    assert multipliers(plan) == [1 / 4, 1 / 8, 1 / 8]
    assert [layer.head_dim for layer in plan.layers] == [16, 16, 16]


def test_a_soft_cap_that_the_code_does_not_hand_on() -> None:
    """Gemma 3 has the key and its attention the option, but the code does not connect them."""
    with pytest.warns(at.audit.AuditWarning, match=r"attn_logit_softcapping = 50.0 has no effect for gemma3"):
        plan = at.audit.resolve(typed("gemma3_text", **sizes(), attn_logit_softcapping=50.0))
    assert plan.softcap(0) is None
    assert resolve(typed("videoprism_text_model", **sizes())).softcap(0) == 50.0


GROK = typed("grok-2", **sizes(64, 4), attn_temperature_len=4, attn_logit_softcapping=3.0)


def test_the_temperature_of_grok_is_behind_its_soft_cap() -> None:
    """t c tanh(s / c): SGLang caps the score first, and multiplies then."""
    plan = resolve(GROK)
    assert plan.multiplier(layer=0, position=16, channels="rotated") == 0.25
    assert plan.capped_multiplier(layer=0, position=16) == 2.0
    assert "the capped score" in plan.explain()
    told = "t c tanh(s / c), where grok_temperature(length=4) is t and the other factors are in s"
    assert f"the score is {told}" in plan.explain()

    rng = np.random.default_rng(0)
    q, k, v = rng.standard_normal((3, 17, 16)) * 4
    scores = 2.0 * 3.0 * np.tanh(q[16] @ k.T * 0.25 / 3.0)
    weights = np.exp(scores - scores.max())
    found = at.attention(q[16:], k, v, **plan.attention_options(0, [16]))
    np.testing.assert_allclose(found[0], weights @ v / weights.sum(), rtol=1e-12)
    refused = r"one temperature behind the soft-cap of layer 0: it is 1 .* and 2 "
    with pytest.raises(ValueError, match=refused):
        plan.attention_options(0, [3, 16])

    other = resolve({**GROK, "attn_temperature_len": 8})
    (differs,) = plan.differences(other)
    assert (differs.what, differs.first_position, differs.there) == ("capped score", 5, 1.0)
    assert str(differs).startswith("layers 0-3, capped score: differs from i = 5 on: 1.160964 here, 1 there")
    uncapped = resolve({**GROK, "attn_logit_softcapping": None})
    assert [each.what for each in plan.differences(uncapped)] == ["softcap"]


def test_a_temperature_within_the_soft_cap_is_said_too() -> None:
    rope = {"beta": 0.1, "llama_4_scaling_beta": 0.1, "original_max_position_embeddings": 8}
    plan, _ = said(typed("novel", **sizes(64, 4), attn_logit_softcapping=5.0, rope_parameters=rope))
    assert "the score is c tanh(s / c), with every factor in s" in plan.explain()
    assert plan.capped_multiplier(layer=0, position=100) == 1.0


HUGE = sys.float_info.max
_YARN_4 = {"type": "yarn", "factor": 4}
_TUNED = {"attn_temperature_tuning": True, "attn_scale": HUGE, "floor_scale": 1, "head_dim": 1}
_LOGN = {"mup_attn_multiplier": HUGE, "head_dim": 1, "use_logn_attn": True, "seq_length": 2}


@pytest.mark.parametrize(
    "config",
    [
        typed("granite", attention_multiplier=HUGE, rope_scaling=_YARN_4),
        typed("llama", rope_scaling={**_YARN_4, "attention_factor": 1e200}),
        typed("llama4_text", **_TUNED, hidden_size=2),
        typed("novel", **_LOGN),
    ],
    ids=lambda each: each["model_type"],
)
def test_a_multiplier_that_is_no_number_is_refused(config: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"the multiplier is (inf|nan|too large)"):
        said({**sizes(64, 4), **config})


def test_the_largest_number_itself_and_a_negative_one_have_an_answer() -> None:
    plan = resolve(typed("granite", **sizes(64, 4), attention_multiplier=HUGE))
    assert plan.multiplier(layer=0, position=10**6) == HUGE
    plan, words = said(typed("falcon_h1", **sizes(64, 4), key_multiplier=-2.0, layer_types=None))
    assert plan.multiplier(layer=0, position=0) < 0
    assert "key_multiplier = -2.0: the multiplier is -0.5" in words


def test_attention_options_are_for_attention() -> None:
    rng = np.random.default_rng(0)
    q, k, v = rng.standard_normal((3, 2, 24, 128))
    plan = resolve(tempered(8, beta=0.5))
    options = plan.attention_options(0, np.arange(24))
    assert set(options) == {"scale"}
    by_hand = (1 + 0.5 * np.log1p(np.arange(24) // 8)) / math.sqrt(128)
    np.testing.assert_allclose(options["scale"], by_hand, rtol=1e-12)
    found = at.attention(q, k, v, is_causal=True, **options)
    wanted = at.attention(q * by_hand[:, None], k, v, is_causal=True, scale=1.0)
    np.testing.assert_allclose(found, wanted, rtol=1e-10, atol=1e-12)
    for positions in ([0, 5], 5):
        assert resolve(GEMMA2).attention_options(0, positions) == {"scale": 1 / 12, "softcap": 50.0}
    with pytest.raises(at.audit.PlanError, match=r"attention sinks, .* sink_logits must be given"):
        resolve(GPT_OSS).attention_options(0, [0])
    with pytest.raises(at.audit.PlanError, match=r"sink_logits must be left out: layer 0 \(full_attention\)"):
        resolve(LLAMA).attention_options(0, [0], sink_logits=0.0)
    normalizer = resolve(GPT_OSS).attention_options(0, [0], sink_logits=2.0)["normalizer"]
    assert normalizer == at.normalizers.Sink(2.0)
    with pytest.raises(at.audit.PlanError, match=r"unrotated / rotated = 0\.705882353"):
        resolve(PHI4_MINI).attention_options(0, [0])


def test_out_of_range() -> None:
    plan = resolve(LLAMA)
    for layer in (-1, 4, 10**9):
        with pytest.raises(ValueError, match=f"layer must be between 0 and 3, got {layer}"):
            plan.multiplier(layer=layer, position=0)
    with pytest.raises(ValueError, match="position must be at least 0, got -1"):
        plan.multiplier(layer=0, position=-1)
    for bad in (1.5, "3", None):
        with pytest.raises(TypeError, match="position must be an integer"):
            plan.multiplier(layer=0, position=bad)
        with pytest.raises(TypeError, match="layer must be an integer"):
            plan.multiplier(layer=bad, position=0)
    with pytest.raises(ValueError, match="channels must be one of 'rotated', 'unrotated', got 'both'"):
        plan.multiplier(layer=0, position=0, channels="both")
    gpt2 = resolve(typed("gpt2", n_embd=768, n_head=12, n_layer=2))
    assert gpt2.multiplier(layer=0, position=1023) == 1 / 8
    with pytest.raises(ValueError, match="position must be below 1024, the learned"):
        gpt2.multiplier(layer=0, position=1024)
