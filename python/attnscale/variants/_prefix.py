# SPDX-License-Identifier: BSD-3-Clause
"""Running sums over keys, from which any later query reads its output.

A kernel phi(q) . phi(k) needs of the keys only S = sum_j phi(k_j) v_j^T and z = sum_j phi(k_j)
(Katharopoulos et al. 2020, arXiv 2006.16236). Both are kept in float64; the products of a block are of
the input's type, so that a long sum is blocked.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Prefix", "Sums", "divide", "lower"]


class Prefix(ABC):
    """What a family remembers of the keys. Features come as (..., n, features)."""

    @abstractmethod
    def add(self, key: NDArray[Any], value: NDArray[Any]) -> None:
        """Take keys in."""

    @abstractmethod
    def read(self, query: NDArray[Any]) -> NDArray[Any]:
        """Outputs of queries that see all keys so far."""

    @abstractmethod
    def step(self, query: NDArray[Any], key: NDArray[Any], value: NDArray[Any]) -> NDArray[Any]:
        """Take a block in; query i sees what was there and the keys 0 ... i of the block."""

    @abstractmethod
    def merge(self, other: Any) -> Any:
        """The sums over the keys of both."""

    def halves(self, query: NDArray[Any], key: NDArray[Any], value: NDArray[Any]) -> NDArray[Any]:
        """A step as two of half the size, down to single rows."""
        middle = query.shape[-2] // 2
        cuts = (np.s_[..., :middle, :], np.s_[..., middle:, :])
        return np.concatenate([self.step(query[c], key[c], value[c]) for c in cuts], axis=-2)


def lower(weights: NDArray[Any]) -> NDArray[Any]:
    """`weights` with exact zeros above the diagonal, in place of whatever was there."""
    return np.tril(weights)


def divide(numerator: NDArray[Any], denominator: NDArray[Any]) -> NDArray[Any]:
    """Row by row; 0 where nothing has weight, as for a row of exact attention that sees no key."""
    safe = np.where(denominator == 0, 1, denominator)
    quotient: NDArray[Any] = numerator / safe[..., None]
    return quotient


class Sums(Prefix):
    """S and z for features given as they are; `normalize`: by phi(q) . z, by the number of keys, or not."""

    def __init__(self, normalize: str = "weights") -> None:
        self.normalize = normalize
        self.count = 0
        self.products: NDArray[np.float64] | None = None
        self.total: NDArray[np.float64] | None = None

    def add(self, key: NDArray[Any], value: NDArray[Any]) -> None:
        products = (key.swapaxes(-1, -2) @ value).astype(np.float64)
        total = key.sum(-2, dtype=np.float64)
        self.products = products if self.products is None else self.products + products
        self.total = total if self.total is None else self.total + total
        self.count += key.shape[-2]

    def read(self, query: NDArray[Any]) -> NDArray[Any]:
        assert self.products is not None
        assert self.total is not None
        rows: NDArray[Any] = query @ self.products.astype(query.dtype)
        if self.normalize == "count":
            return rows / max(self.count, 1)
        if self.normalize == "none":
            return rows
        return divide(rows, (query @ self.total.astype(query.dtype)[..., None])[..., 0])

    def step(self, query: NDArray[Any], key: NDArray[Any], value: NDArray[Any]) -> NDArray[Any]:
        if query.shape[-2] == 1:
            self.add(key, value)
            return self.read(query)
        weights = lower(query @ key.swapaxes(-1, -2))
        rows: NDArray[Any] = weights @ value
        total = weights.sum(-1)
        # 0 * NaN: a value that is not finite would reach the queries before it. Halves, down to one row.
        if not np.isfinite(rows).all():
            return self.halves(query, key, value)
        if self.products is not None and self.total is not None:
            rows += query @ self.products.astype(query.dtype)
            total = total + (query @ self.total.astype(query.dtype)[..., None])[..., 0]
        before = self.count
        self.add(key, value)
        if self.normalize == "count":
            return rows / np.arange(before + 1, self.count + 1, dtype=rows.dtype)[:, None]
        return rows if self.normalize == "none" else divide(rows, total)

    def merge(self, other: Sums) -> Sums:
        merged = Sums(self.normalize)
        merged.count = self.count + other.count
        if self.products is None or other.products is None:
            one = other if self.products is None else self
            merged.products, merged.total = one.products, one.total
        else:
            assert self.total is not None
            assert other.total is not None
            merged.products, merged.total = self.products + other.products, self.total + other.total
        return merged
