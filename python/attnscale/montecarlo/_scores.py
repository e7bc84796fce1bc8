# SPDX-License-Identifier: BSD-3-Clause
"""Experiments on rows of attention over random keys, in the core or from real heads."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._base.checks import as_array, choose, number, refusal, shown
from .._base.pieces import all_finite
from .._core import mc_experiment_rows, mc_fill
from ..exact.forward import attention_statistics
from ._experiment import Declaration, Draws, Prepared, RowSource
from ._parameters import STREAMED, Axis, beta_of, check_memory, describe_array, product


def score_experiment(
    declared: Declaration,
    *,
    lengths: Axis,
    dims: Axis,
    laws: Axis,
    threads: int,
    source: str | RealHeads = "sphere",
    correlation: float = 0.0,
    cosine: float = math.nan,
    about: dict[str, Any] | None = None,
    looks: int = 1,
) -> Prepared:
    """An experiment on rows of n keys: outer axes n and head_dim, inner axis the laws.

    The scores of a model are ``beta q.k / sqrt(head_dim)``; `about` are the parameters that are not axes, and
    `looks` the number of scales at which the core evaluates each row, for the cost.
    """
    cases, every_beta = [], []
    for n, dim in product(lengths, dims):
        check_memory("n", n, STREAMED * n)
        check_memory("head_dim", dim, 4.0 * dim)
        betas = np.array([beta_of(law, n, dim) for law in laws.values])
        every_beta.append(betas)
        if isinstance(source, RealHeads):
            rows, cost = source.rows(n, betas.tolist(), threads), 1e5 * len(betas)
        else:
            rows = partial(
                mc_experiment_rows,
                experiment=declared.name,
                model=source,
                n=n,
                head_dim=dim,
                correlation=correlation,
                cosine=cosine,
                betas=betas,
                num_threads=threads,
            )
            cost = n * (dim + 8.0 * looks * len(betas))
        cases.append(Draws((n, dim), rows, cost))
    return Prepared(
        declared, (lengths, dims), cases, inner=(laws,), about=about or {}, betas=np.stack(every_beta)
    )


#: Random numbers that are in memory at once.
_NUMBERS = 2**20
#: Quantities of a row of real heads.
_COLUMNS = ("entropy", "lse", "concentration", "max_weight", "mean_score", "score_variance")
MODELS = ("sphere", "gaussian", "correlated")


def least_head_dim(model: Any) -> int:
    """The least head_dim of a model: 2 for a sphere, because in one dimension it has only two points."""
    return 2 if model == "sphere" else 1


def read_correlation(model: str, correlation: Any) -> float:
    """The mean cosine of two keys of the correlated model; 0 for other models."""
    if model != "correlated":
        if correlation is not None:
            raise ValueError(f"correlation goes with model='correlated', got model={shown(model)}")
        return 0.0
    share = number("correlation", 0.5 if correlation is None else correlation)
    if not 0 <= share <= 1:
        raise refusal(ValueError, "correlation", f"must be between 0 and 1, got {share:g}")
    return share


class RealHeads:
    """Queries and keys of a model; a row is a random query against n random keys of its head.

    Arrays (heads, n_tokens, head_dim), with equal numbers of heads, or key heads shared by groups of query
    heads.
    """

    def __init__(self, query: NDArray[Any], key: NDArray[Any]) -> None:
        self.query, self.key = query, key
        self.head_dim = int(query.shape[-1])
        self.n_keys = int(key.shape[-2])

    def describe(self) -> list[str]:
        """Texts that identify these arrays."""
        return [describe_array(self.query), describe_array(self.key)]

    def rows(self, n: int, betas: list[float], num_threads: int) -> RowSource:
        """A source of rows of the columns _COLUMNS; each row draws n keys without replacement."""
        scales = np.array(betas) / math.sqrt(self.head_dim)
        threads = num_threads or None
        width = 2 + self.n_keys
        together = max(1, _NUMBERS // width)  # rows whose numbers are drawn at once

        def rows(*, key: int, first: int, count: int) -> NDArray[np.float64]:
            found = []
            for start in range(first, first + count, together):
                u = np.empty((min(together, first + count - start), width))
                mc_fill(u.reshape(-1), "uniform", (0.0, 1.0), key, 0, start * width, num_threads)
                found += [self._row(draw, n, scales, threads) for draw in u]
            return np.array(found, np.float64)

        return rows

    def _row(
        self, draw: NDArray[np.float64], n: int, scales: NDArray[np.float64], threads: int | None
    ) -> list[list[float]]:
        n_heads, n_queries, _ = self.query.shape
        # u < 1, but u * n may round up to n.
        head = min(int(draw[0] * n_heads), n_heads - 1)
        token = min(int(draw[1] * n_queries), n_queries - 1)
        chosen = np.sort(np.argpartition(draw[2:], n - 1)[:n])
        keys = self.key[head * len(self.key) // n_heads, chosen]
        # The query is repeated for each scale, as the heads of one call.
        query = np.broadcast_to(self.query[head, token], (len(scales), 1, self.head_dim))
        keys = np.broadcast_to(keys, (len(scales), *keys.shape))
        rows = attention_statistics(
            query, keys, scale=scales[:, None], statistics=_COLUMNS, num_threads=threads
        )
        return np.stack([getattr(rows, name)[:, 0] for name in _COLUMNS], axis=-1).tolist()  # type: ignore[no-any-return]


def read_heads(query: Any, key: Any) -> RealHeads:
    """Heads from arrays of shape (..., heads, n_tokens, head_dim), or (n_tokens, head_dim), checked."""
    arrays = {"query": as_array("query", query), "key": as_array("key", key)}
    for name, array in arrays.items():
        if array.dtype.kind != "f" and array.dtype.name != "bfloat16":
            raise TypeError(f"{name} must be floating point, got {array.dtype}")
        if array.ndim < 2 or 0 in array.shape:
            raise ValueError(f"{name} must be (..., heads, n, head_dim) and not empty, got {array.shape}")
        if not all_finite(array):
            raise ValueError(f"{name} must be finite, got an array with NaN or infinity")
    q, k = (array.reshape(-1, *array.shape[-2:]) for array in arrays.values())
    if q.shape[-1] != k.shape[-1]:
        raise ValueError(f"query and key must have the same head_dim, got {q.shape[-1]} and {k.shape[-1]}")
    if len(q) % len(k):
        raise ValueError(f"query heads must be a multiple of key heads, got {len(q)} and {len(k)}")
    return RealHeads(q, k)


def read_model(model: Any) -> str | RealHeads:
    """The model, checked: one of MODELS, or the heads of a pair (query, key)."""
    if isinstance(model, tuple) and len(model) == 2:
        return read_heads(*model)
    if not isinstance(model, str):
        listed = ", ".join(map(repr, MODELS))
        raise TypeError(f"model must be one of {listed} or a pair (query, key), got {type(model).__name__}")
    return choose("model", model, MODELS)
