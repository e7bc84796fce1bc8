# SPDX-License-Identifier: BSD-3-Clause
"""Arguments that are not tensors raise a TypeError with the argument, the rule and the type seen."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any

import attnscale as at
import numpy as np
import pytest

torch = pytest.importorskip("torch")

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("default"), pytest.mark.usefixtures("either_way")]

ROWS = torch.ones(2, 4, 8)
QKV = {"query": ROWS, "key": ROWS, "value": ROWS}

#: A right call of every public function of tensors.
CALLS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "attention": (at.torch.attention, QKV),
    "attention_statistics": (at.torch.attention_statistics, QKV),
    "efficient_attention": (at.torch.efficient_attention, QKV),
    "linear_attention": (at.torch.linear_attention, QKV),
    "cosformer_attention": (at.torch.cosformer_attention, {**QKV, "max_length": 16}),
    "performer_attention": (at.torch.performer_attention, {**QKV, "projection": torch.ones(16, 8)}),
    "ssd": (at.torch.ssd, {**QKV, "log_decay": torch.zeros(2, 4)}),
    "relay_attention": (at.torch.relay_attention, {"x": ROWS, "centres": ROWS, "value": ROWS}),
    "differential_attention": (
        at.torch.differential_attention,
        {"query1": ROWS, "key1": ROWS, "query2": ROWS, "key2": ROWS, "value": ROWS, "lam": 0.5},
    ),
    "MultiheadAttention": (at.torch.nn.MultiheadAttention(8, 2), QKV),
}
OPTIONAL = {("attention_statistics", "value"), ("relay_attention", "value")}
NOT_TENSORS = {
    "None": None,
    "array": np.ones((2, 4, 8), np.float32),
    "list": [[1.0]],
    "number": 2.0,
    "name": "q",
}
PLACES = [
    (name, place)
    for name, (_, given) in CALLS.items()
    for place in given
    if place not in ("lam", "max_length")
]


def test_every_public_function_is_here() -> None:
    functions = {name for name in at.torch.__all__ if name.endswith("attention") or name == "ssd"}
    assert functions - {"replace_attention"} == set(CALLS) - {"attention_statistics", "MultiheadAttention"}


@pytest.mark.parametrize("kind", NOT_TENSORS)
@pytest.mark.parametrize(("name", "place"), PLACES)
def test_an_argument_that_is_not_a_tensor_is_named(name: str, place: str, kind: str) -> None:
    function, given = CALLS[name]
    wrong = {**given, place: NOT_TENSORS[kind]}
    if wrong[place] is None and (name, place) in OPTIONAL:
        function(**wrong)
        return
    seen = {"None": "None", "array": "an array of shape", "list": "[[1.0]]", "number": "2.0", "name": "'q'"}
    with pytest.raises(TypeError, match=rf"^{place} must be a tensor, got {re.escape(seen[kind])}"):
        function(**wrong)


@pytest.mark.parametrize("place", ["query", "key", "value"])
@pytest.mark.parametrize("name", ["attention", "attention_statistics", "efficient_attention"])
def test_integers_get_the_conversion_of_a_tensor(name: str, place: str) -> None:
    function, given = CALLS[name]
    with pytest.raises(TypeError, match=rf"^{place} must be float64.* got int64; use {place}.float\(\)$"):
        function(**{**given, place: ROWS.long()})


@pytest.mark.parametrize("place", ["query", "key", "value", "attn_mask", "scale"])
def test_bfloat16_without_ml_dtypes_names_the_argument(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    narrow = torch.ones(4, 4) if place == "attn_mask" else torch.ones(2, 1) if place == "scale" else ROWS
    with pytest.raises(TypeError, match=rf"^{place} is a tensor of bfloat16.*ml_dtypes.*{place}.float\(\)$"):
        at.torch.attention(**{**QKV, place: narrow.bfloat16()}, num_threads=1)


@pytest.mark.parametrize("place", ["attn_mask", "distance_scale", "distance_bias"])
def test_tables_that_are_not_tensors(place: str) -> None:
    with pytest.raises(TypeError, match=f"^{place} must be a tensor, got an array of shape"):
        at.torch.attention(**QKV, **{place: np.ones((4, 4), np.float32)})


@pytest.mark.parametrize(
    "scale", [[1.0, 2.0], np.ones(2), True, object()], ids=["list", "array", "bool", "any"]
)
def test_a_scale_of_an_unknown_kind_is_an_error(scale: Any) -> None:
    with pytest.raises(TypeError, match=r"^scale must be a number, a tensor, a law or the name of one, got "):
        at.torch.attention(**QKV, scale=scale)


def test_a_scale_of_numpy_is_a_number() -> None:
    q = torch.randn(2, 4, 8, generator=torch.Generator().manual_seed(0))
    want = at.torch.attention(q, q, q, scale=0.25)
    for number in (np.float32(0.25), np.float64(0.25)):
        assert torch.equal(at.torch.attention(q, q, q, scale=number), want)
    assert torch.equal(at.torch.attention(q, q, q, scale=np.int64(1)), at.torch.attention(q, q, q, scale=1))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (None, "feature_map must be a name or a pair of tensors, got None"),
        ((ROWS,), r"feature_map must be a name or a pair of tensors, got \("),
        ((ROWS, None), r"feature_map\[1\] must be a tensor, got None"),
    ],
    ids=["none", "one", "second"],
)
def test_feature_maps_of_another_kind(given: Any, message: str) -> None:
    with pytest.raises(TypeError, match=f"^{message}"):
        at.torch.linear_attention(**QKV, feature_map=given)


def test_a_scale_of_a_family_that_is_not_a_number() -> None:
    with pytest.raises(TypeError, match=r"^scale must be a number, got None"):
        at.torch.efficient_attention(**QKV, scale=None)  # type: ignore[arg-type]
