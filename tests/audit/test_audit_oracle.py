# SPDX-License-Identifier: BSD-3-Clause
"""Plans against the code of transformers: small random models of every type that the audit knows.

Families with a rule of their own have cases, in which calls of attention are recorded, with positions,
soft-caps, sinks and windows. For all other types the multiplier is a derivative of the score.
"""

from __future__ import annotations

import math
import re
from typing import Any

import attnscale as at
import numpy as np
import pytest
from versions import written_for

pytest.importorskip("transformers")
torch = pytest.importorskip("torch")

from audit_configs import KNOWN_TYPES, resolve  # noqa: E402

from tools.audit import derivative, oracle  # noqa: E402
from tools.audit.cases import CASES, LATENT, LISTS_OF_8, LONG, OLD_YARN, PHI, TEMPERED, YARN  # noqa: E402
from tools.audit.kinds import BY_CALLS, BY_SCALE, INPUTS, KEYS, NOT_RUN, has_halves  # noqa: E402

# transformers and torch give warnings of their own.
pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("default"),
    written_for(f"transformers=={at.audit.TRANSFORMERS}"),  # of which the audit's tables are
]


def label(case: Any) -> str:
    return case if isinstance(case, str) else ",".join(f"{k}={v}" for k, v in case.items())[:60]


@pytest.mark.parametrize(("kind", "keys"), CASES, ids=label)
def test_multiplier_is_that_of_the_models_code(kind: str, keys: dict[str, Any]) -> None:
    model, config = oracle.build(kind, **keys)
    plan = resolve(config)
    calls = oracle.run(model).calls
    modules = {id(call["module"]) for call in calls}  # a layer may run several times
    assert len(modules) == sum(layer.refusal is None for layer in plan.layers)
    for index, call in enumerate(calls):
        compare(plan, call, index)


def compare(plan: Any, call: dict[str, Any], index: int, positions: Any = None) -> None:
    layer = getattr(call["module"], "layer_idx", None)
    if layer is None or layer < 0:  # then the calls are in the order of the layers that have attention
        layer = [each.index for each in plan.layers if each.refusal is None][index]
    seen = oracle.multipliers(call, plan.layer(layer).rotated)
    where = range(oracle.LENGTH) if positions is None else positions
    for channels in plan.layer(layer).channel_kinds:
        expected = [plan.multiplier(layer=layer, position=i, channels=channels) for i in where]
        np.testing.assert_allclose(
            getattr(seen, channels), expected, rtol=2e-6, err_msg=f"{layer} {channels}"
        )
    assert plan.softcap(layer) == seen.softcap
    assert plan.sink(layer) == seen.sink
    if positions is None:  # masks of other positions are those of a text with gaps
        assert min(plan.window(layer) or oracle.LENGTH, oracle.LENGTH) == seen.keys


@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        ("llama", {"rope_parameters": YARN}),
        ("gemma2", {"attn_logit_softcapping": 3.0, "query_pre_attn_scalar": 100, "rope_parameters": YARN}),
        ("gpt_oss", {"rope_scaling": OLD_YARN}),
        ("granite", {"attention_multiplier": 0.0078125}),
        ("granite_swa", {"attention_multiplier": 0.5}),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}),
        ("ministral3", {"rope_parameters": TEMPERED}),
        ("llama4_text", {"floor_scale": 8, "attn_scale": 0.3, "use_qk_norm": False}),
        ("phi3", {**PHI, "rope_scaling": LONG}),
    ],
    ids=label,
)
def test_attention_options_give_the_models_attention(kind: str, keys: dict[str, Any]) -> None:
    """at.attention on q and k that are only rotated, against the formula with the model's numbers."""
    model, config = oracle.build(kind, **keys)
    plan = resolve(config)
    positions = np.arange(oracle.LENGTH)
    for index, call in enumerate(oracle.run(model).calls):
        q, k = rotated_only(call, plan.layer(index).rotated)
        kinds = plan.layer(index).channel_kinds
        if kind == "phi3":
            q[..., plan.layer(index).rotated :] *= np.divide(
                *(plan.multiplier(layer=index, position=0, channels=each) for each in reversed(kinds))
            )
        sinks = {"sink_logits": call["module"].sinks.detach().numpy()} if plan.sink(index) else {}
        channels = kinds[0] if kind == "phi3" else None
        options = plan.attention_options(index, positions, channels=channels, **sinks)
        found = at.attention(q, k, call["value"][0].numpy(), is_causal=True, enable_gqa=True, **options)
        np.testing.assert_allclose(found, expected_output(call), rtol=2e-5, atol=2e-5)


def rotated_only(call: dict[str, Any], rotated: int) -> list[np.ndarray]:
    """q and k as they enter the softmax, with the lengths of raw q and k, so without fixed factors."""
    found = []
    for x, raw in zip((call["query"][0], call["key"][0]), oracle.raw_pair(call), strict=True):
        parts = [slice(0, rotated), slice(rotated, x.shape[-1])]
        lengths = [(raw[..., part].norm(dim=-1) / x[..., part].norm(dim=-1))[..., None] for part in parts]
        found.append(np.concatenate([x[..., p] * n for p, n in zip(parts, lengths, strict=True)], -1))
    return found


def expected_output(call: dict[str, Any]) -> Any:
    query, key, value = (call[name][0] for name in ("query", "key", "value"))
    key, value = (x.repeat_interleave(query.shape[0] // key.shape[0], 0) for x in (key, value))
    scores = query @ key.mT * call["scale"]
    if call["softcap"] is not None:
        scores = call["softcap"] * torch.tanh(scores / call["softcap"])
    hidden = torch.triu(torch.ones(scores.shape[-2:], dtype=torch.bool), 1)
    scores = scores.masked_fill(hidden, -math.inf)
    if call["sink"]:  # one more key, without a value
        logits = call["module"].sinks.detach()[:, None, None].expand(-1, scores.shape[1], 1)
        return torch.cat([scores, logits], -1).softmax(-1)[..., :-1] @ value
    return scores.softmax(-1) @ value


@pytest.mark.parametrize("kind", ["ministral3", "mistral4", "beam"])
def test_far_positions(kind: str) -> None:
    """The first position and positions around L and 2 L, in one call."""
    length = 16384
    tempered = {**TEMPERED, "original_max_position_embeddings": length}
    keys = {} if kind == "beam" else {"rope_parameters": tempered}
    model, config = oracle.build(kind, **keys, **(LATENT if kind == "mistral4" else {}))
    positions = [0, *range(length - 3, length + 3), *range(2 * length - 3, 2 * length + 30)]
    for index, call in enumerate(oracle.run(model, positions).calls):
        compare(resolve(config), call, index, positions)


@pytest.mark.parametrize("kind", ["gemma3_text", "olmo3", "modernbert"])
def test_the_old_spelling_of_the_type_is_lost_in_families_with_kinds_of_layers(kind: str) -> None:
    """A defect of transformers, which the plan follows with a warning."""
    model, config = oracle.build(kind, rope_scaling=OLD_YARN)
    with pytest.warns(at.audit.AuditWarning, match="only the spelling rope_type"):
        plan = at.audit.resolve(config)
    for index, call in enumerate(oracle.run(model).calls):
        compare(plan, call, index)


@pytest.mark.parametrize("length", [oracle.LENGTH, oracle.LENGTH - 1])
def test_phimoe_has_one_factor_for_the_whole_text(length: int) -> None:
    rope = {**LONG, **LISTS_OF_8, "short_mscale": 1.25, "long_mscale": 1.5}
    rope["original_max_position_embeddings"] = length
    model, config = oracle.build("phimoe", rope_scaling=rope)
    plan = resolve(config)
    seen = oracle.multipliers(oracle.run(model).calls[0], 16)
    expected = plan.multiplier(layer=0, position=oracle.LENGTH - 1, channels="rotated")
    np.testing.assert_allclose(seen.rotated, expected, rtol=2e-6)
    assert expected == pytest.approx((1.25 if length == oracle.LENGTH else 1.5) ** 2 / 4)


@pytest.mark.parametrize("kind", ["deberta", "deberta-v2"])
@pytest.mark.parametrize("terms", [[], ["c2p"], ["c2p", "p2c"]], ids=str)
def test_deberta_divides_by_its_terms(kind: str, terms: list[str]) -> None:
    """The scale counts the terms also where the score has no relative embeddings."""
    model, config = oracle.build(kind, pos_att_type=terms, relative_attention=False)
    weights, q, k = own_weights(model, "DisentangledSelfAttention", ("query_proj", "key_proj", "in_proj"))
    expected = resolve(config).multiplier(layer=0, position=5)
    assert implied_scale(weights, q, k) == pytest.approx(expected, rel=1e-5)


def test_mpt_takes_a_scale_from_its_attention_config() -> None:
    """With two scales and one linear bias, logits differ by the difference of the scales times q . k."""
    found = []
    for scale in (0.125, 0.25):
        model, config = oracle.build("mpt", attn_config={"softmax_scale": scale})
        assert resolve(config).multiplier(layer=0, position=5) == scale
        found.append(own_weights(model, "MptAttention", ("Wqkv",)))
    (first, q, k), (second, _, _) = found
    assert implied_scale(second / first, q, k, causal=True) == pytest.approx(0.125, rel=1e-4)


def own_weights(model: Any, name: str, parts: tuple[str, ...]) -> tuple[Any, Any, Any]:
    """Weights of a model's first layer, and raw q and k of its first head."""
    module = next(each for each in model.modules() if type(each).__name__ == name)
    caught: dict[str, Any] = {}
    for part in parts:
        if hasattr(module, part):
            child = getattr(module, part)
            child.register_forward_hook(lambda _, i, output, part=part: caught.update({part: output}))
    with torch.no_grad():
        out = model(input_ids=torch.arange(3, 35)[None], output_attentions=True)
    weights = out.attentions[0][0, 0]
    if "query_proj" in caught:
        return weights, caught["query_proj"][0][:, :16], caught["key_proj"][0][:, :16]
    fused = next(iter(caught.values()))[0]
    if "in_proj" in caught:
        fused = fused.view(32, 4, 3, 16).permute(0, 2, 1, 3).reshape(32, -1)
    return weights, fused[:, :16] + (module.q_bias[:16] if "in_proj" in caught else 0), fused[:, 64:80]


def implied_scale(weights: Any, q: Any, k: Any, causal: bool = False) -> float:
    """Slope of ln p_ij - ln p_i0 over q_i . (k_j - k_0), where both weights exceed rounding."""
    logs = weights.double().log()
    seen = torch.isfinite(logs)
    if causal:
        seen = seen.tril()
    top = torch.where(seen, logs, -math.inf).argmax(-1)
    rows = torch.arange(32)
    y = logs - logs[rows, top][:, None]
    x = (q[:, None] * (k[None] - k[top][:, None])).sum(-1).double()
    good = seen & (y > -20) & (y < 0)
    return float(((x[good] * y[good]).sum() / (x[good] ** 2).sum()).detach())


def test_the_defaults_are_those_of_this_transformers() -> None:
    """The table of defaults is that of the version of transformers that it names."""
    model, config = oracle.build("gemma2")
    stated = at.audit.resolve({**config, "query_pre_attn_scalar": model.config.query_pre_attn_scalar})
    assert stated.layers[0].base.law == at.audit.resolve(config).layers[0].base.law


CASED = {kind for kind, _ in CASES}
OTHERS = {*BY_CALLS, *BY_SCALE, *NOT_RUN}


@pytest.mark.parametrize("kind", sorted(KNOWN_TYPES - CASED - OTHERS))
def test_scale_is_that_of_the_models_code(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if kind == "sew-d":  # the derivatives of its softmax are not seen
        module = pytest.importorskip("transformers.models.sew_d.modeling_sew_d")
        monkeypatch.setattr(module.XSoftmax, "apply", lambda scores, mask, dim: scores.softmax(dim))
    model, config = oracle.build(kind, **KEYS.get(kind, {}))
    check_derivatives(model, config, **(INPUTS[kind]() if kind in INPUTS else {}))


def check_derivatives(model: Any, config: dict[str, Any], **inputs: Any) -> None:
    model.set_attn_implementation("eager")
    seen = derivative.run(model, **inputs)
    assert seen
    for place, *tensors in (seen[0], seen[-1]):
        expected = channel_multipliers(config, place)
        np.testing.assert_allclose(derivative.singular_values(*tensors), expected, rtol=1e-4, err_msg=place)


def test_cvt_is_scaled_by_the_width_of_each_stage() -> None:
    keys = {"embed_dim": [16, 64, 36], "num_heads": [1, 4, 2], "depth": [1, 2, 3]}
    model, config = oracle.build("cvt", **keys)
    seen = derivative.run(model, pixel_values=torch.randn(1, 3, 32, 32))
    for layer, (_, *tensors) in zip(resolve(config).layers, seen, strict=True):
        expected = np.full(layer.head_dim, layer.base.law.value)
        np.testing.assert_allclose(derivative.singular_values(*tensors), expected, rtol=1e-4)


HALF = (
    *("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size"),
    *("num_hidden_layers", "vocab_size"),
)


def test_encoder_and_decoder_with_scalars_of_their_own() -> None:
    half = {name: oracle.SIZES[name] for name in HALF}
    half.update(model_type="t5_gemma_module", attn_logit_softcapping=None)
    config = {
        "encoder": {**half, "query_pre_attn_scalar": 100},
        "decoder": {**half, "query_pre_attn_scalar": 144},
    }
    model, keys = oracle.build("t5gemma", **config)
    check_derivatives(model, {**keys, **config})
    assert resolve({"model_type": "t5gemma", **config}).multiplier(layer=0, position=0) == 1 / 12


@pytest.mark.parametrize("kind", BY_CALLS)
def test_calls_are_those_of_the_models_code(kind: str) -> None:
    model, config = oracle.build(kind, **KEYS.get(kind, {}))
    plan = resolve(config)
    for layer, call in zip(plan.layers, oracle.run(model).calls, strict=True):
        seen = oracle.multipliers(call, layer.rotated)
        for channels in layer.channel_kinds:
            expected = plan.multiplier(layer=layer.index, position=5, channels=channels)
            np.testing.assert_allclose(getattr(seen, channels), expected, rtol=2e-6)


@pytest.mark.parametrize("kind", BY_SCALE)
def test_scale_is_the_one_handed_on(kind: str) -> None:
    model, config = oracle.build(kind, **KEYS.get(kind, {}))
    plan = resolve(config)
    layers = [layer for layer in plan.layers if layer.refusal is None]
    calls = oracle.run(model).calls
    for layer, call in zip(layers, calls, strict=True):
        assert call["query"].shape[-1] == layer.head_dim
        assert call["scale"] == pytest.approx(plan.multiplier(layer=layer.index, position=5), rel=1e-7)


def channel_multipliers(config: dict[str, Any], place: str) -> np.ndarray:
    """Multipliers of the channels of the layer that a part of the model belongs to, the largest first."""
    before, number = re.match(r"(.*?)(\d+)\.", place).groups()
    half = {"part": "encoder"} if "encoder" in before and has_halves(config) else {}
    plan = resolve(config, **half)
    layer = plan.layer(int(number))
    found: list[float] = []
    for channels in layer.channel_kinds:
        count = layer.rotated if channels == "rotated" else layer.head_dim - layer.rotated
        found += [plan.multiplier(layer=layer.index, position=5, channels=channels)] * count
    return np.sort(found)[::-1]
