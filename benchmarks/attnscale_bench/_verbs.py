# SPDX-License-Identifier: BSD-3-Clause
"""Calls of the package, and of PyTorch, whose cost is measured against the number of keys."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import attnscale as at
import numpy as np
from attnscale import variants as av
from numpy.typing import NDArray

from ._costs import Call, Prepare

__all__ = ["CALLS", "VERBS", "Verb"]

Array = NDArray[Any]

#: Queries of a call, but for those of whole texts.
QUERIES = 256
#: Multiples of a scale for a curve.
_CURVE = 2.0 ** np.linspace(-2, 2, 17) / 8


class Verb(NamedTuple):
    """A call from query, key and value; `beside` is the name of another that does as much."""

    make: Callable[[Array, Array, Array], Call]
    is_whole: bool = False  # as many queries as keys
    beside: str = ""


def _torch(make: Callable[[Any, Any, Any, Any], Call]) -> Callable[[Array, Array, Array], Call]:
    """A call on tensors, without gradients."""

    def prepare(q: Array, k: Array, v: Array) -> Call:
        import torch

        torch.set_num_threads(at.get_num_threads())
        tensors = (torch.from_numpy(x)[None] for x in (q, k, v))
        call = make(torch, *tensors)

        def run() -> object:
            with torch.inference_mode():
                return call()

        return run

    return prepare


def _of_torch(torch: Any, *arrays: Any, is_causal: bool = False) -> Call:
    return lambda: torch.nn.functional.scaled_dot_product_attention(*arrays, is_causal=is_causal)


def _entropy_by_hand(torch: Any, q: Any, k: Any, v: Any) -> Call:
    def run() -> object:
        weights = torch.softmax(q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5, -1)
        return -torch.special.xlogy(weights, weights).sum(-1)

    return run


def _largest_by_hand(torch: Any, q: Any, k: Any, v: Any) -> Call:
    return lambda: torch.topk(torch.softmax(q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5, -1), 8)


def _with_gradients(q: Array, k: Array, v: Array) -> Call:
    grad = np.ones_like(q)
    return lambda: at.attention_gradients(q, k, v, grad)


def _halves(q: Array, k: Array, v: Array) -> Call:
    n = k.shape[-2]
    return lambda: at.attention_spans(q, k, [n // 2, n - n // 2])


#: Every verb by the name that the table shows.
VERBS: dict[str, Verb] = {
    "attention": Verb(lambda q, k, v: lambda: at.attention(q, k, v), beside="PyTorch's attention"),
    "attention_entropy": Verb(
        lambda q, k, v: lambda: at.attention_entropy(q, k), beside="PyTorch, the entropy by hand"
    ),
    "attention_statistics": Verb(lambda q, k, v: lambda: at.attention_statistics(q, k, v)),
    "attention_gradients": Verb(_with_gradients),
    "attention_state": Verb(lambda q, k, v: lambda: at.attention_state(q, k, v)),
    "attention_received": Verb(lambda q, k, v: lambda: at.attention_received(q, k)),
    "attention_mass": Verb(lambda q, k, v: lambda: at.attention_mass(q, k, np.arange(64))),
    "attention_spans": Verb(_halves),
    "entropy_curve, 17 scales": Verb(lambda q, k, v: lambda: at.entropy_curve(q, k, _CURVE)),
    "solve_scale": Verb(lambda q, k, v: lambda: at.solve_scale(q, k, np.log(k.shape[-2]) / 2)),
    "top_keys, 8": Verb(lambda q, k, v: lambda: at.top_keys(q, k, 8), beside="PyTorch, topk by hand"),
    "PyTorch's attention": Verb(_torch(_of_torch)),
    "PyTorch, the entropy by hand": Verb(_torch(_entropy_by_hand)),
    "PyTorch, topk by hand": Verb(_torch(_largest_by_hand)),
    "attention, causal": Verb(
        lambda q, k, v: lambda: at.attention(q, k, v, is_causal=True),
        is_whole=True,
        beside="PyTorch's attention, causal",
    ),
    "attention_entropy, causal": Verb(
        lambda q, k, v: lambda: at.attention_entropy(q, k, is_causal=True), is_whole=True
    ),
    "report, causal": Verb(lambda q, k, v: lambda: at.report(q, k, is_causal=True), is_whole=True),
    "calibrate, causal": Verb(lambda q, k, v: lambda: at.calibrate(q, k, is_causal=True), is_whole=True),
    "kattention_heads": Verb(lambda q, k, v: lambda: av.kattention_heads(q, k, v), is_whole=True),
    "linear_attention, causal": Verb(
        lambda q, k, v: lambda: av.linear_attention(q, k, v, is_causal=True), is_whole=True
    ),
    "PyTorch's attention, causal": Verb(_torch(partial(_of_torch, is_causal=True)), is_whole=True),
}


def _prepare(verb: Verb) -> Prepare:
    def prepare(heads: int, n: int, head_dim: int) -> Call:
        rng = np.random.default_rng(0)
        counts = (n if verb.is_whole else QUERIES, n, n)
        arrays = [rng.standard_normal((heads, count, head_dim), np.float32) for count in counts]
        call = verb.make(*arrays)

        def run() -> object:
            assert arrays  # kept, also those that the call has no use for: memory is counted over them
            return call()

        return run

    return prepare


CALLS: dict[str, Prepare] = {name: _prepare(verb) for name, verb in VERBS.items()}
