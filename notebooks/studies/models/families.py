# SPDX-License-Identifier: BSD-3-Clause
"""Heads of several kinds side by side: dot-product, sparse, efficient and linear attention."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import torch
from attnscale import torch as ours
from attnscale._base.checks import choose, shown
from torch import Tensor
from torch.nn import functional

from .attention import BACKENDS

FAMILIES = ("dot", "sparse", "efficient", "linear")
#: The normalizers of two families; entmax with alpha = 1.5 is sparse.
_NORMALIZERS = {"dot": "softmax", "sparse": "entmax(alpha=1.5)"}
_TINY = 1e-150  # least sum of exponentials, in float64: early ones may all be far below a later one


def check_variant(name: str, variant: str) -> tuple[str, ...]:
    """The family of each head of a variant: "dot + 3 efficient" has four heads."""
    heads: list[str] = []
    for part in variant.split(" + "):
        number, _, family = part.rpartition(" ")
        choose(name, family, FAMILIES)
        if number and not number.isdigit():
            raise ValueError(f"{name} must be written as in 'dot + 3 efficient', got {shown(variant)}")
        heads += [family] * int(number or 1)
    return tuple(heads)


def mix_heads(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    families: tuple[str, ...],
    *,
    causal: bool = False,
    implementation: str = "attnscale",
) -> Tensor:
    """Output of heads of several families; all shapes are (batch, heads, n, dim).

    Examples
    --------
    >>> q, k, v = torch.randn(3, 1, 2, 10, 8, generator=torch.Generator().manual_seed(0))
    >>> of_both = mix_heads(q, k, v, ("dot", "efficient"), causal=True)
    >>> of_one = mix_heads(q[:, :1], k[:, :1], v[:, :1], ("dot",), causal=True)
    >>> bool(torch.allclose(of_both[:, :1], of_one))
    True
    """
    outputs, first = [], 0
    for family, same in groupby(families):
        heads = slice(first, first := first + len(list(same)))
        parts = (query[:, heads], key[:, heads], value[:, heads])
        outputs.append(_one_family(*parts, family, implementation, causal=causal))
    return torch.cat(outputs, 1) if len(outputs) > 1 else outputs[0]


def _one_family(
    query: Tensor, key: Tensor, value: Tensor, family: str, implementation: str, *, causal: bool
) -> Tensor:
    if family in _NORMALIZERS:
        normalizer = _NORMALIZERS[family]
        backend = BACKENDS[implementation]
        return ours.attention(query, key, value, normalizer=normalizer, is_causal=causal, backend=backend)
    if implementation == "torch":
        return _weights(query, key, family, causal=causal) @ value
    attention = ours.efficient_attention if family == "efficient" else ours.linear_attention
    return attention(query, key, value, is_causal=causal)


def _weights(query: Tensor, key: Tensor, family: str, *, causal: bool) -> Tensor:
    """The implied weights of efficient and linear attention, as a matrix."""
    if family == "efficient":
        # All rows of a channel share one maximum. In float32 the early sums of a causal call would underflow
        # in training, and the gradient of the quotient would be NaN. (The kernels of this package keep a
        # maximum for each row.)
        exponential = (key - key.amax(-2, keepdim=True)).double().exp()
        total = exponential.cumsum(-2) if causal else exponential.sum(-2, keepdim=True)
        weights = (query.softmax(-1) / total.clamp_min(_TINY)) @ exponential.transpose(-1, -2)
        return (weights.tril() if causal else weights).to(query.dtype)
    weights = (functional.elu(query) + 1) @ (functional.elu(key) + 1).transpose(-1, -2)
    weights = weights.tril() if causal else weights
    return weights / weights.sum(-1, keepdim=True)


@torch.no_grad()
def effective_keys(query: Tensor, key: Tensor, families: tuple[str, ...], *, causal: bool) -> Tensor:
    """Effective keys, exp(entropy), of each row, (batch, heads, n)."""
    found = []
    for head, family in enumerate(families):
        q, k = query[:, head : head + 1], key[:, head : head + 1]
        if family in _NORMALIZERS:
            options: Any = {"normalizer": _NORMALIZERS[family], "is_causal": causal, "backend": "torch"}
            entropy = ours.attention_statistics(q, k, statistics=("entropy",), **options).entropy
            assert entropy is not None
        else:
            entropy = torch.special.entr(_weights(q, k, family, causal=causal)).sum(-1)
        found.append(entropy.exp())
    return torch.cat(found, 1)
