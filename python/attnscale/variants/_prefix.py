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

from ._products import add, empty_sums, read, step

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Prefix", "Sums", "divide"]


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
        self.sums: tuple[NDArray[np.float64], NDArray[np.float64]] | None = None

    def add(self, key: NDArray[Any], value: NDArray[Any]) -> None:
        if self.sums is None:
            self.sums = empty_sums(key, value)
        add(key, value, self.sums)
        self.count += key.shape[-2]

    def read(self, query: NDArray[Any]) -> NDArray[Any]:
        assert self.sums is not None
        rows, weights = read(query, self.sums)
        if self.normalize == "count":
            return rows / max(self.count, 1)
        return divide(rows, weights)

    def step(self, query: NDArray[Any], key: NDArray[Any], value: NDArray[Any]) -> NDArray[Any]:
        if query.shape[-2] == 1:
            self.add(key, value)
            return self.read(query)
        rows, weights, after = step(query, key, value, self.sums or empty_sums(key, value))
        # 0 * NaN: a value that is not finite would reach the queries before it. Halves, down to one row.
        if not np.isfinite(rows.sum()):
            return self.halves(query, key, value)
        before, self.sums = self.count, after
        self.count += key.shape[-2]
        if self.normalize == "count":
            return rows / np.arange(before + 1, self.count + 1, dtype=rows.dtype)[:, None]
        return divide(rows, weights)

    def merge(self, other: Sums) -> Sums:
        merged = Sums(self.normalize)
        merged.count = self.count + other.count
        found = [part.sums for part in (self, other) if part.sums is not None]
        if found:
            merged.sums = np.sum([s for s, _ in found], axis=0), np.sum([z for _, z in found], axis=0)
        return merged
