# SPDX-License-Identifier: BSD-3-Clause
"""Time and memory of exact attention and its alternatives, against the number of keys."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from attnscale import attention, get_num_threads
from attnscale import variants as av
from attnscale._base.checks import number, positive_int
from numpy.typing import NDArray

from ._peers import load_torch
from ._process_cases import resident, run_python

__all__ = ["VARIANTS", "VariantCost", "crossover", "print_cost", "run_variants", "slope"]

Array = NDArray[Any]
Call = Callable[[], object]


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


@dataclass(frozen=True)
class VariantCost:
    """Cost of one call of a variant in a separate process.

    If it was not run, `seconds` and `bytes` are None and `why` has the reason. Bytes are the growth of the
    resident memory at its peak, including the result.
    """

    variant: str
    n: int
    seconds: float | None
    bytes: int | None
    why: str = ""


def run_variants(
    lengths: Sequence[int],
    names: Sequence[str] | None = None,
    *,
    heads: int = 1,
    head_dim: int = 64,
    limit: float = 20.0,
    max_bytes: float = 4e9,
    progress: Callable[[str], None] = lambda name: None,
) -> list[VariantCost]:
    """Cost of every variant at every length.

    Parameters
    ----------
    lengths : sequence of int
        Queries and keys, increasing.
    names : sequence of str, optional
        Keys of ``VARIANTS``; None for those that can run here.
    heads, head_dim : int
    limit : float
        A call predicted to take more seconds, from its last length and slope 2 (or the observed slope), is
        left out.
    max_bytes : float
        The limit of memory, likewise.
    progress : callable
        Called with a description of the next call.

    Returns
    -------
    list of VariantCost

    Raises
    ------
    ValueError
        A variant that does not exist; lengths that do not increase.

    Examples
    --------
    >>> import attnscale_bench as bench
    >>> costs = bench.run_variants([256], ["efficient"])
    >>> costs[0].variant, costs[0].n, costs[0].seconds > 0
    ('efficient', 256, True)
    """
    ns = [positive_int("n", n) for n in lengths]
    if not ns or ns != sorted(set(ns)):
        raise ValueError(f"lengths must increase, got {list(lengths)}")
    heads, head_dim = positive_int("heads", heads), positive_int("head_dim", head_dim)
    bounds = number("limit", limit), number("max_bytes", max_bytes)
    return [
        cost for name in _choose(names) for cost in _lengths_of(name, ns, (heads, head_dim), bounds, progress)
    ]


def _choose(names: Sequence[str] | None) -> list[str]:
    if names is None:
        return [name for name in VARIANTS if load_torch() or not name.startswith("torch")]
    for name in names:
        if name not in VARIANTS:
            raise ValueError(f"there is no variant named {name!r}; the variants are {', '.join(VARIANTS)}")
    return list(names)


def _lengths_of(
    name: str, lengths: list[int], shape: tuple[int, int], bounds: tuple[float, float], progress: Any
) -> list[VariantCost]:
    costs: list[VariantCost] = []
    for n in lengths:
        why = _too_much(costs, n, bounds)
        if why:
            costs.append(VariantCost(name, n, None, None, why))
            continue
        progress(f"{name}, n = {n}")
        found = json.loads(_in_a_process(name, n, shape))
        costs.append(VariantCost(name, n, found[1], found[0]))
    return costs


def _too_much(costs: list[VariantCost], n: int, bounds: tuple[float, float]) -> str:
    """Reason to leave out the length n, or "". Growth is the last observed one, at most quadratic."""
    if not costs:
        return ""
    last = costs[-1]
    if last.seconds is None or last.bytes is None:
        return last.why
    power = 2.0 if len(costs) == 1 or last.n < 8192 else min(2.0, slope(costs[-2:]) + 0.2)
    factor = (n / last.n) ** power
    if last.seconds * factor > bounds[0] and last.seconds > 0.1:
        return f"it would take more than {bounds[0]:g} s"
    if last.bytes * factor > bounds[1] and last.bytes > bounds[1] / 64:
        return f"it would take more than {bounds[1] / 1e9:g} GB"
    return ""


def _in_a_process(name: str, n: int, shape: tuple[int, int]) -> str:
    arguments = f"{name!r}, {n}, {shape[0]}, {shape[1]}"
    script = f"from attnscale_bench._variants import print_cost; print_cost({arguments})"
    return run_python(get_num_threads(), "-c", script)


def print_cost(name: str, n: int, heads: int, head_dim: int) -> None:
    """Print [bytes, seconds] of a variant: growth of this process, and the median time of its calls."""
    rng = np.random.default_rng(0)
    arrays = [np.empty((heads, n, head_dim), np.float32) for _ in range(3)]
    small = [np.ones((heads, 64, head_dim), np.float32) for _ in range(3)]
    for array in arrays:
        rng.standard_normal(dtype=np.float32, out=array)
    VARIANTS[name](*small)()  # imports and threads do not count as memory of the variant
    call = VARIANTS[name](*arrays)
    before = resident("VmRSS")
    seconds = [_timed(call)]
    grown = resident("VmHWM") - before
    while len(seconds) < 5 and sum(seconds) < 1.0:
        seconds.append(_timed(call))
    print(json.dumps([max(grown, 0), float(np.median(seconds))]))


def _timed(call: Call) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def slope(costs: Sequence[VariantCost], what: str = "seconds") -> float:
    """Least-squares slope of ln(cost) against ln(n); NaN with fewer than two measured lengths."""
    points = [(math.log(c.n), math.log(getattr(c, what))) for c in costs if getattr(c, what)]
    if len(points) < 2:
        return math.nan
    x, y = np.transpose(points)
    return float(np.polyfit(x, y, 1)[0])


def crossover(exact: Sequence[VariantCost], other: Sequence[VariantCost]) -> float | None:
    """The n from which `other` is faster, interpolated on logarithmic scales; None if not seen."""
    theirs = {c.n: c.seconds for c in other if c.seconds}
    gaps = [(c.n, math.log(c.seconds / theirs[c.n])) for c in exact if c.seconds and c.n in theirs]
    if not gaps or gaps[-1][1] <= 0:
        return None
    below = [i for i, (_, gap) in enumerate(gaps) if gap <= 0]
    if not below:
        return float(gaps[0][0])
    (n, low), (m, high) = gaps[below[-1]], gaps[below[-1] + 1]
    return float(n * (m / n) ** (-low / (high - low)))
