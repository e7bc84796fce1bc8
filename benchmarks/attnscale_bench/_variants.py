# SPDX-License-Identifier: BSD-3-Clause
"""Time and memory of exact attention and its alternatives, against the number of keys."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from attnscale import attention
from attnscale import variants as av
from numpy.typing import NDArray

from ._costs import Call, CallCost, Prepare, costs_of
from ._peers import load_torch

__all__ = ["CALLS", "VARIANTS", "run_variants"]

Array = NDArray[Any]


def _ours(function: Callable[..., Any], **options: Any) -> Callable[[Array, Array, Array], Call]:
    return lambda q, k, v: lambda: function(q, k, v, **options)


def _linformer(q: Array, k: Array, v: Array) -> Call:
    n = k.shape[-2]
    projection = np.random.default_rng(1).standard_normal((256, n), np.float32) / np.float32(math.sqrt(n))
    return lambda: av.linformer_attention(q, k, v, projection)


def _article(efficient: bool) -> Callable[[Array, Array, Array], Call]:
    """The article's two functions, with every matrix in memory."""

    def prepare(q: Array, k: Array, v: Array) -> Call:
        torch = load_torch()
        if torch is None:
            raise RuntimeError("torch is not installed")
        return torch.article_attention(q, k, v, efficient=efficient)

    return prepare


#: Calls on float32 arrays (heads, n, head_dim). "torch" are the article's functions.
VARIANTS: dict[str, Callable[[Array, Array, Array], Call]] = {
    "exact": _ours(attention),
    "exact causal": _ours(attention, is_causal=True),
    "kattention": _ours(av.kattention_heads),
    "local + global": _ours(av.local_global_attention, radius=128, global_tokens=16),
    "efficient": _ours(av.efficient_attention),
    "efficient causal": _ours(av.efficient_attention, is_causal=True),
    "linear elu": _ours(av.linear_attention),
    "linear elu causal": _ours(av.linear_attention, is_causal=True),
    "performer 256": _ours(av.performer_attention, features=256, rng=0),
    "cosformer": lambda q, k, v: lambda: av.cosformer_attention(q, k, v, max_length=k.shape[-2]),
    "linformer 256": _linformer,
    "ssd": lambda q, k, v: lambda: av.ssd(q, k, v, -0.01),
    "torch dot product": _article(False),
    "torch efficient": _article(True),
}


def _of_random_arrays(variant: Callable[[Array, Array, Array], Call]) -> Prepare:
    def prepare(heads: int, n: int, head_dim: int) -> Call:
        rng = np.random.default_rng(0)
        return variant(*(rng.standard_normal((heads, n, head_dim), np.float32) for _ in range(3)))

    return prepare


#: The variants as calls that `print_cost` prepares.
CALLS: dict[str, Prepare] = {name: _of_random_arrays(variant) for name, variant in VARIANTS.items()}


def run_variants(
    lengths: Sequence[int], names: Sequence[str] | None = None, **options: Any
) -> list[CallCost]:
    """Cost of every variant at every length.

    Parameters
    ----------
    lengths : sequence of int
        Queries and keys, increasing.
    names : sequence of str, optional
        Keys of ``VARIANTS``; None for those that can run here.
    **options
        As for :func:`attnscale_bench.costs_of`: heads, head_dim, limit, max_bytes, progress.

    Raises
    ------
    ValueError
        A variant that does not exist; lengths that do not increase.

    Examples
    --------
    >>> import attnscale_bench as bench
    >>> costs = bench.run_variants([256], ["efficient"])
    >>> costs[0].call, costs[0].n, costs[0].seconds > 0
    ('efficient', 256, True)
    """
    return costs_of(__name__, _choose(names), lengths, **options)


def _choose(names: Sequence[str] | None) -> list[str]:
    if names is None:
        return [name for name in VARIANTS if load_torch() or not name.startswith("torch")]
    for name in names:
        if name not in VARIANTS:
            raise ValueError(f"there is no variant named {name!r}; the variants are {', '.join(VARIANTS)}")
    return list(names)
