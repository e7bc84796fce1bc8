# SPDX-License-Identifier: BSD-3-Clause
"""Every model type that the audit knows, against the code of transformers: small random models."""

from __future__ import annotations

import re
import warnings
from typing import Any

import attnscale as at
import numpy as np
import pytest

pytest.importorskip("transformers")
torch = pytest.importorskip("torch")

import audit_derivative as derivative  # noqa: E402
import audit_oracle as oracle  # noqa: E402
from attnscale.audit._keys import known_types  # noqa: E402
from audit_models import CASES  # noqa: E402
from audit_types import BY_CALLS, BY_SCALE, INPUTS, KEYS, NOT_RUN, has_halves  # noqa: E402

# transformers and torch warn about their own affairs while they load and run.
pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("default")]

CASED = {kind for kind, _ in CASES}
OTHERS = {*BY_CALLS, *BY_SCALE, *NOT_RUN}


@pytest.mark.parametrize("kind", sorted(known_types() - CASED - OTHERS))
def test_scale_is_that_of_the_models_code(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if kind == "sew-d":  # a softmax behind a wall that derivatives do not show
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


def test_encoder_and_decoder_with_scalars_of_their_own() -> None:
    sizes = ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size")
    half = {name: oracle.SIZES[name] for name in (*sizes, "num_hidden_layers", "vocab_size")}
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
    """Those of the layer that a part of the model belongs to, the largest first."""
    before, number = re.match(r"(.*?)(\d+)\.", place).groups()
    half = {"part": "encoder"} if "encoder" in before and has_halves(config) else {}
    plan = resolve(config, **half)
    layer = plan.layer(int(number))
    found: list[float] = []
    for channels in layer.channel_kinds:
        count = layer.rotated if channels == "rotated" else layer.head_dim - layer.rotated
        found += [plan.multiplier(layer=layer.index, position=5, channels=channels)] * count
    return np.sort(found)[::-1]


def resolve(config: dict[str, Any], **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return at.audit.resolve(config, **options)
