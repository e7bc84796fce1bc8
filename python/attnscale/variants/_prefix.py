# SPDX-License-Identifier: BSD-3-Clause
"""Running sums over keys, from which any later query reads its output.

A kernel phi(q) . phi(k) needs of the keys only S = sum_j phi(k_j) v_j^T and z = sum_j phi(k_j)
(Katharopoulos et al. 2020, arXiv 2006.16236). Both are kept in float64; the products of a block are of
the input's type, so that a long sum is blocked.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from ._products import Rows, add, empty_sums, read, step

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Apart", "Prefix", "Sums"]


class Apart(Exception):
    """Heads of a block must be taken one by one: what one of them holds must not reach the others."""


class Prefix(ABC):
    """What a family remembers of the keys. Features come as (..., n, features).

    Sums over blocks merge in the order of the keys. A block's own sums are the same bits whether they are
    taken alone (`block`) or while queries read (`step`), so that results do not depend on who computed them.
    """

    #: Running maxima that the sums over a later block refer to; None: there are none.
    top: NDArray[Any] | None = None
    #: Whether there ever are.
    has_top = False

    @abstractmethod
    def empty(self) -> Self:
        """The same before any key."""

    @abstractmethod
    def add(self, key: NDArray[Any], value: NDArray[Any]) -> None:
        """Take keys in."""

    @abstractmethod
    def read(self, query: NDArray[Any], out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Outputs of queries that see all keys so far, written to `out` where it is given."""

    @abstractmethod
    def step(self, query: NDArray[Any], key: NDArray[Any], value: NDArray[Any], out: NDArray[Any]) -> Self:
        """Outputs of queries that see the keys so far and 0 ... i of a block; returns the block's sums."""

    @abstractmethod
    def merge(self, other: Any) -> Any:
        """The sums over the keys of both."""

    def block(self, key: NDArray[Any], value: NDArray[Any], top: NDArray[Any] | None) -> Self:
        """The sums over a block alone, which refer to `top`."""
        own = self.empty()
        own.add(key, value)
        return own

    def top_with(self, key: NDArray[Any]) -> NDArray[Any] | None:
        """`top` after those keys."""
        return None

    def halves(self, query: NDArray[Any], key: NDArray[Any], value: NDArray[Any], out: NDArray[Any]) -> Self:
        """A step as two of half the size, down to single rows."""
        if max(out.shape[:-2], default=1) > 1:
            raise Apart
        sums, middle = self, query.shape[-2] // 2
        for cut in (np.s_[..., :middle, :], np.s_[..., middle:, :]):
            sums = sums.merge(sums.step(query[cut], key[cut], value[cut], out[cut]))
        return self.block(key, value, self.top_with(key))


class Sums(Prefix):
    """S and z; `normalize`: by phi(q) . z, by the number of keys, or not; `rows`: the core's map."""

    def __init__(self, normalize: str = "weights", rows: str = "given") -> None:
        self.normalize = normalize
        self.rows = Rows(rows, divide=normalize == "weights")
        self.count = 0
        self.sums: tuple[NDArray[np.float64], NDArray[np.float64]] | None = None

    def empty(self) -> Self:
        return type(self)(self.normalize, self.rows.map)

    def add(self, key: NDArray[Any], value: NDArray[Any]) -> None:
        if self.sums is None:
            self.sums = empty_sums(key, value)
        add(key, value, self.sums, self.rows)
        self.count += key.shape[-2]

    def read(self, query: NDArray[Any], out: NDArray[Any] | None = None) -> NDArray[Any]:
        assert self.sums is not None
        rows, _ = read(query, self.sums, self.rows, out)
        if self.normalize == "count":
            rows /= max(self.count, 1)
        return rows

    def step(self, query: NDArray[Any], key: NDArray[Any], value: NDArray[Any], out: NDArray[Any]) -> Self:
        n = query.shape[-2]
        if n == 1:
            own = self.block(key, value, None)
            self.merge(own).read(query, out)
            return own
        _, _, sums = step(query, key, value, self.sums, self.rows, out)
        # 0 * NaN: a value that is not finite would reach the queries before it. Halves, down to one row.
        if not np.isfinite(out.sum()):
            return self.halves(query, key, value, out)
        if self.normalize == "count":
            out /= np.arange(self.count + 1, self.count + n + 1, dtype=out.dtype)[:, None]
        own = self.empty()
        own.sums, own.count = sums, n
        return own

    def merge(self, other: Self) -> Self:
        merged = self.empty()
        merged.count = self.count + other.count
        found = [part.sums for part in (self, other) if part.sums is not None]
        if len(found) == 2:
            merged.sums = found[0][0] + found[1][0], found[0][1] + found[1][1]
        elif found:
            merged.sums = found[0][0].copy(), found[0][1].copy()
        return merged
