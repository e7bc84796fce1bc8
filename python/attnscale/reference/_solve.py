# SPDX-License-Identifier: BSD-3-Clause
"""Twins of solve_scale, solve_perplexity, calibrate and held_out_error."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._attention import attention_entropy, scores

Array = NDArray[Any]


def solve_scale(
    query: Array, key: Array, target_entropy: Any, *, per: str = "row", **options: Any
) -> SimpleNamespace:
    """Bisection for the scale at which the (mean) entropy is the target; its limits and feasibility."""
    x, seen = scores(query, key, scale=1.0, **options)
    axes: Any = {"row": (), "head": (-1,), "all": tuple(range(1 - x.ndim, 0))}[per]
    ties = (seen & (x == x.max(-1, keepdims=True, initial=-np.inf))).sum(-1)
    lowest, highest = (_mean_row(np.log(np.maximum(n, 1)), seen, axes) for n in (ties, seen.sum(-1)))
    low, high = np.full(lowest.shape, 1e-12), np.full(lowest.shape, 1e12)
    for _ in range(70):
        scale = np.sqrt(low * high)
        entropy = attention_entropy(query, key, scale=np.expand_dims(scale, axes), **options)
        flat = _mean_row(entropy, seen, axes) > target_entropy
        low, high = np.where(flat, scale, low), np.where(flat, high, scale)
    feasible = (lowest <= target_entropy) & (target_entropy <= highest)
    reached = np.where(target_entropy >= highest, 0, high)
    scale = np.where(feasible, reached, np.where(seen.any(-1).any(axes), np.nan, 0))
    return SimpleNamespace(scale=scale, lowest=lowest, highest=highest, feasible=feasible)


def solve_perplexity(points: Array, perplexity: Any = 30.0) -> SimpleNamespace:
    """Bisection for beta of ``exp(-beta |x - y|^2)`` over the other points; feasible perplexities only."""
    squared = ((points[:, None].astype(np.float64) - points) ** 2).sum(-1)
    np.fill_diagonal(squared, np.inf)
    near = squared.min(-1, keepdims=True)
    low, high = np.full(near.shape, 1e-12), np.full(near.shape, 1e12)
    for _ in range(70):
        beta = np.sqrt(low * high)
        weights = np.exp(-beta * (squared - near))
        weights /= weights.sum(-1, keepdims=True)
        entropy = -(weights * np.log(np.where(weights > 0, weights, 1))).sum(-1, keepdims=True)
        flat = entropy > np.log(np.reshape(perplexity, (-1, 1)))
        low, high = np.where(flat, beta, low), np.where(flat, high, beta)
    return SimpleNamespace(affinities=weights, beta=beta[:, 0])


def calibrate(query: Array, key: Array, n0: int, lengths: Sequence[int]) -> SimpleNamespace:
    """Entropy of n0 keys under 1/sqrt(d), per head, and the beta that keeps it at other lengths."""
    target = attention_entropy(query[..., :n0, :], key[..., :n0, :]).mean(-1)
    cuts = [(query[..., :n, :], key[..., :n, :]) for n in lengths]
    found = [solve_scale(q, k, target, per="head") for q, k in cuts]
    beta = np.stack([np.where(each.feasible, each.scale, np.nan) for each in found], axis=-1)
    return SimpleNamespace(target=target, beta=beta * np.sqrt(query.shape[-1]))


def held_out_error(
    misses: Array, *, less: Array | None = None, rng: np.random.Generator, draws: int = 2000
) -> SimpleNamespace:
    """Root mean square over texts and heads, or the difference of two; samples leave one of each out."""
    both = [misses] if less is None else [misses, less]
    texts, heads = misses.shape[:2]

    def root(rows: NDArray[Any], columns: NDArray[Any]) -> float:
        first, *other = (np.sqrt(np.mean(each[rows][:, columns] ** 2)) for each in both)
        return float(first - other[0] if other else first)

    samples = [
        root(rng.integers(texts, size=texts - 1), rng.integers(heads, size=heads - 1)) for _ in range(draws)
    ]
    low, high = np.quantile(samples, [0.025, 0.975])
    value = root(np.arange(texts), np.arange(heads))
    return SimpleNamespace(value=value, error=np.std(samples, ddof=1), low=low, high=high)


def _mean_row(rows: Array, seen: NDArray[np.bool_], axes: tuple[int, ...]) -> Array:
    """Mean over these axes, of the rows that see a key."""
    counted = seen.any(-1)
    return np.asarray(np.where(counted, rows, 0).sum(axes) / np.maximum(counted.sum(axes), 1))
