# SPDX-License-Identifier: BSD-3-Clause
"""Calls that torch.compile takes whole, for any lengths and numbers: ``dynamic=True, fullgraph=True``."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import attnscale as at
import numpy as np
import pytest
from torch_modules import HEADS, LENGTH, WIDTH, N, close, future, padding
from versions import written_for

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.torch,
    pytest.mark.usefixtures("fixed_seed"),
    # The compiler makes one of each function of autograd that it meets.
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
]


@pytest.fixture(autouse=True)
def _nothing_compiled_before() -> Iterator[None]:
    """The compiler remembers which numbers changed between the calls of other tests."""
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def compiled(function: Any, graphs: list[Any], **options: Any) -> Any:
    def keep(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    return torch.compile(function, fullgraph=True, backend=keep, **{"dynamic": True, **options})


def same(function: Callable[..., Any], *calls: tuple[Any, ...], **options: Any) -> int:
    """Compiled once, the calls have the results of the function itself; returns how many graphs it took."""
    graphs: list[Any] = []
    run = compiled(function, graphs, **options)
    for inputs in calls:
        torch.manual_seed(1)
        want = function(*inputs)
        torch.manual_seed(1)
        close(run(*inputs), want)
    return len(graphs)


def rows(n: int = LENGTH) -> Any:
    """Query, key and value of HEADS heads."""
    return torch.randn(3, N, HEADS, n, 8)


#: Parameters that laws need, besides their defaults.
REQUIRED: dict[str, dict[str, Any]] = {
    "constant": {"value": 0.3},
    "per_head": {"values": 1.5},
    "layer_index": {"layer": 3},
    "disentangled_scale": {"terms": 2},
    "latent_scale": {"hidden": 48.0, "rank": 16.0, "channels": "all"},
    "kappa": {"kappa": 0.5},
    "asentmax": {"delta": 0.5, "beta": 0.1, "gamma": 1.5},
    "selective_temperature": {"strength": 0.5},
    "nope_temperature": {"slope": 0.1, "train_length": 4.0},
    "yarn": {"factor": 4.0, "channels": "all"},
    "mla_yarn": {"factor": 4.0, "mscale_all_dim": 1.5},
    "longrope": {"train_length": 4.0, "factor": 4.0, "channels": "all"},
    "retrieval": {"gap": 0.5},
    "grok_temperature": {"length": 3.0},
    **{name: {"train_length": 3.0} for name in ("log_n_from_training", "qwen_log_n", "info_scale")},
    "qk_norm_scale": {"train_length": 3.0},
}


def example(name: str) -> Any:
    """A law of each name, none of whose numbers is its default."""
    law: Any = at.laws.get(name, **REQUIRED.get(name, {}))
    given = {each.name: getattr(law, each.name) for each in dataclasses.fields(law)}
    return dataclasses.replace(law, **{key: 1.0625 * x for key, x in given.items() if type(x) is float})


# ---- laws and normalizers ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", at.laws.names())
def test_a_replaced_module_with_each_law(name: str) -> None:
    module = at.torch.replace_attention(
        torch.nn.MultiheadAttention(WIDTH, HEADS, batch_first=True), law=example(name), statistics="entropy"
    )

    def call(x: Any) -> Any:
        return module(x, x, x, need_weights=False, is_causal=True)[0], module.rows.entropy

    assert same(call, *((torch.randn(N, n, WIDTH),) for n in (LENGTH, 9))) == 1


def root_log(n: Any, head_dim: int, *, n0: float = 512.0) -> Any:
    """sqrt(1 + 2 ln(1 + n / n0)) / sqrt(head_dim)"""
    return (1 + 2 * np.log1p(n / n0)) ** 0.5 / head_dim**0.5


#: Three numbers of each kind; the compiler makes variables of them by the second.
KINDS: dict[str, Callable[[float], dict[str, Any]]] = {
    "law": lambda x: {"scale": at.laws.LogN(base=x)},
    "law with an integer": lambda x: {"scale": at.laws.LayerIndex(int(x))},
    "law of heads": lambda x: {"scale": at.laws.SSMax(s=[x, 0.5, 2.5, 1.25])},
    "multiple of a law": lambda x: {"scale": x * at.laws.LogN(base=x)},
    "multiple of a law by head": lambda x: {"scale": [x, 0.5, 2.5, 1.25] * at.laws.LogN(base=x)},
    "registered law": lambda x: {"scale": at.laws.get("root_log", n0=x)},
    "softmax_n": lambda x: {"normalizer": at.normalizers.SoftmaxN(x)},
    "sink": lambda x: {"normalizer": at.normalizers.Sink(x)},
    "sink of heads": lambda x: {"normalizer": at.normalizers.Sink([x, 0.5, 2.5, 1.25])},
    "sink of rows": lambda x: {"normalizer": at.normalizers.Sink(np.full((HEADS, LENGTH), x))},
    "sigmoid": lambda x: {"normalizer": at.normalizers.Sigmoid(-x)},
    "entmax": lambda x: {"normalizer": at.normalizers.Entmax(x)},
    "top_k": lambda x: {"normalizer": at.normalizers.TopK(int(x))},
    "number": lambda x: {"scale": x},
    "softcap": lambda x: {"softcap": x},
    "window": lambda x: {"window": (int(x), int(x))},
    "causal": lambda x: {"causal": int(x)},
    "key_lengths": lambda x: {"key_lengths": int(x)},
}


@pytest.mark.parametrize(
    "kind",
    [  # PyTorch 2.6 compiles this one once more
        pytest.param(kind, marks=written_for("torch>=2.13")) if kind == "sink of rows" else kind
        for kind in KINDS
    ],
)
def test_other_numbers_than_before(kind: str) -> None:
    """Other sizes than at compilation, also without ``dynamic=True``."""
    at.laws.register("root_log")(root_log)
    query, key, value = rows()
    options = [
        KINDS[kind](x) for x in (2.25, 3.5, 4.75, 2.25)
    ]  # the last is another object, equal to the first

    def call(options: dict[str, Any]) -> Any:
        return at.torch.attention(query, key, value, **options)

    assert same(call, *((each,) for each in options), dynamic=None) <= 3


def test_a_law_that_is_made_inside() -> None:
    assert same(lambda q, k, v: at.torch.attention(q, k, v, scale=at.laws.LogN(base=16.5)), rows()) == 1


# ---- options -----------------------------------------------------------------------------------------

FIXED = torch.Generator().manual_seed(0)
NUMBERS, OF_HEADS = torch.randn(LENGTH, LENGTH, generator=FIXED), torch.rand(HEADS, generator=FIXED)
OPTIONS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "bool mask": {"attn_mask": ~future()},
    "float mask": {"attn_mask": NUMBERS.masked_fill(future(), -torch.inf)},
    "soft-cap and window": {"softcap": 3.5, "window": (2, 0), "causal": "bottom_right"},
    "sink and soft-cap": {"normalizer": at.normalizers.Sink([0.5, 1.5, 0.25, 2.5]), "softcap": 3.5},
    "sink and mask": {"normalizer": at.torch.Sink(OF_HEADS), "attn_mask": ~future()},
    "learned law and documents": {
        "scale": at.torch.Learned(at.laws.SSMax(floor=2.5), s=OF_HEADS),
        "document_ids": torch.tensor([0, 0, 1, 1, 1]),
    },
    "law times a factor and lengths": {
        "scale": at.torch.Scaled(at.laws.LogN(base=16.5), OF_HEADS),
        "key_lengths": torch.tensor([4, 2]),
    },
    "entmax and a table": {
        "normalizer": at.normalizers.Entmax(1.25),
        "distance_bias": NUMBERS[:HEADS],
        "scale": at.laws.ScaleInvariant(7.5),
    },
}


@pytest.mark.parametrize(
    ("name", "backend"),
    [
        *((name, "core") for name in OPTIONS),
        ("sink and mask", "torch"),
        # The compiler of PyTorch 2.6 fails: 'OutputGraph' object has no attribute 'distributed_state'.
        pytest.param("entmax and a table", "torch", marks=written_for("torch>=2.13")),
    ],
)
def test_options(name: str, backend: str) -> None:
    options = {"scale": at.laws.LogN(base=16.5), **OPTIONS[name], "backend": backend}
    names = ("n_visible", "max_weight") if "entmax" in name else ("lse", "entropy", "argmax")

    def call(query: Any, key: Any, value: Any) -> Any:
        found = at.torch.attention_statistics(query, key, value, statistics=names, **options)
        return found.output, *(getattr(found, name) for name in names)

    assert same(call, rows()) == 1


# ---- modules -----------------------------------------------------------------------------------------

LAW = at.laws.LogN(base=16.5)
MODULES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "masks": ({}, {"attn_mask": future(), "key_padding_mask": padding()}),
    "numbers as a mask": ({}, {"attn_mask": NUMBERS, "need_weights": False}),
    "more keys": ({"add_bias_kv": True, "add_zero_attn": True}, {"is_causal": True}),
    "rotary positions": ({"rotary_base": 1234.5}, {}),
    "learned": ({"law": "ssmax(s=0.5, floor=2.5)", "learnable_law": "s", "learnable_scale": "head"}, {}),
    "a normalizer": ({"normalizer": at.normalizers.SoftmaxN(1.25)}, {}),
    "dropout": ({"dropout": 0.25}, {}),
    "dropout and a number": ({"dropout": 0.25, "law": 0.375}, {"key_padding_mask": padding()}),
    "dropout and a law of the distance": ({"dropout": 0.25, "law": at.laws.ScaleInvariant(7.5)}, {}),
    "dropout and entmax": ({"dropout": 0.25, "normalizer": "entmax(alpha=1.25)"}, {}),
}  # fmt: skip


@pytest.mark.parametrize(("options", "inputs"), MODULES.values(), ids=MODULES)
def test_modules(options: dict[str, Any], inputs: dict[str, Any]) -> None:
    module = at.torch.nn.MultiheadAttention(WIDTH, HEADS, batch_first=True, **{"law": LAW, **options})
    assert same(lambda x: module(x, x, x, **inputs), (torch.randn(N, LENGTH, WIDTH),)) == 1


def test_gradients_of_a_model() -> None:
    layer = torch.nn.TransformerEncoderLayer(WIDTH, HEADS, 24, dropout=0.0, batch_first=True)
    model = at.torch.replace_attention(layer, law="log_n(base=16)")
    run = compiled(model, [])
    weight, x = model.self_attn.in_proj_weight, torch.randn(N, LENGTH, WIDTH)
    found, want = (torch.autograd.grad(each(x).square().sum(), weight)[0] for each in (run, model))
    close(found, want, rtol=1e-4, atol=1e-5)
