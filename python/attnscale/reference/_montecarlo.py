# SPDX-License-Identifier: BSD-3-Clause
"""Twins of the Monte Carlo experiments, with NumPy's generator, everything written out."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def random_scores(
    model: str, n: int, head_dim: int, count: int, rng: np.random.Generator, *, correlation: float = 0.0
) -> Array:
    """q . k / sqrt(head_dim) of one query and n keys per row, (count, n)."""
    if model == "gaussian":
        return rng.standard_normal((count, n))
    key = rng.standard_normal((count, n, head_dim))
    if model == "sphere":  # the query lies along the first axis, all norms are sqrt(head_dim)
        scores: Array = np.sqrt(head_dim) * key[..., 0] / np.linalg.norm(key, axis=-1)
        return scores
    shared, query = rng.standard_normal((2, count, 1, head_dim))
    key = np.sqrt(correlation) * shared + np.sqrt(1 - correlation) * key
    products: Array = (query * key).sum(-1) / np.sqrt(head_dim)
    return products


def row_measures(scores: Array) -> SimpleNamespace:
    """Measures of softmax rows, each of shape (count,), and the weights p, (count, n)."""
    e = np.exp(scores - scores.max(-1, keepdims=True))
    p = e / e.sum(-1, keepdims=True)
    jacobian = [np.diag(row) - np.outer(row, row) for row in p]
    return SimpleNamespace(
        p=p,
        entropy=-(p * np.log(np.where(p > 0, p, 1))).sum(-1),
        concentration=(p * p).sum(-1),
        max_weight=p.max(-1),
        jacobian_norm=np.array([np.linalg.norm(matrix) for matrix in jacobian]),
        jacobian_top=np.array([np.linalg.eigvalsh(matrix)[-1] for matrix in jacobian]),
    )


def random_rows(
    model: str, n: int, head_dim: int, beta: float, count: int, rng: np.random.Generator, **options: Any
) -> SimpleNamespace:
    """row_measures of rows under beta, with a needle as key 0 if its cosine is given."""
    cosine = options.pop("cosine", None)
    scores = random_scores(model, n, head_dim, count, rng, **options)
    if cosine is not None:
        scores[:, 0] = np.sqrt(head_dim) * cosine
    rows = row_measures(beta * scores)
    rows.needle_weight, rows.needle_is_top = rows.p[:, 0], scores.argmax(-1) == 0
    rows.average = (rows.p * rng.standard_normal((count, n))).sum(-1)
    return rows


def random_cosines(n: int, head_dim: int, count: int, rng: np.random.Generator) -> Array:
    """Largest cosine of a query with n keys, (count,)."""
    cosines: Array = random_scores("sphere", n, head_dim, count, rng).max(-1) / np.sqrt(head_dim)
    return cosines


def projection_ratios(points: Array, k: int, kind: str, rng: np.random.Generator) -> Array:
    """Ratios of squared distances after and before a random projection, one per pair of points."""
    shape, entries = (points.shape[1], k), {"sign": [1, -1], "sparse": [1, -1, 0, 0, 0, 0]}
    matrix = rng.standard_normal(shape) if kind == "gaussian" else rng.choice(entries[kind], shape)
    projected = points @ matrix * np.sqrt((3 if kind == "sparse" else 1) / k)
    i, j = np.triu_indices(len(points), 1)
    after, before = (((x[i] - x[j]) ** 2).sum(-1) for x in (projected, points))
    ratios: Array = after / before
    return ratios


def weight_ranks(query: Array, key: Array, scale: float) -> SimpleNamespace:
    """Effective rank, stable rank and mean effective keys of softmax(scale query key^T)."""
    rows = row_measures(scale * query @ key.T)
    singular = np.linalg.svd(rows.p, compute_uv=False)
    share = singular[singular > 0] / singular.sum()
    return SimpleNamespace(
        effective_rank=np.exp(-(share * np.log(share)).sum()),
        stable_rank=np.linalg.norm(rows.p) ** 2 / singular[0] ** 2,
        effective_keys=np.exp(rows.entropy).mean(),
        concentration=rows.concentration.mean(),
    )
