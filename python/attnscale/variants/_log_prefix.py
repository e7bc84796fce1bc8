# SPDX-License-Identifier: BSD-3-Clause
"""Running sums for features that are exponentials, given by their logarithms: no overflow at any size.

Each channel c has its own reference M_c, its running maximum up to a few nats. Kept are
Z_c = sum_j exp(k_jc - M_c) and S_c = sum_j exp(k_jc - M_c) v_j; what a query reads depends on sums of
exponentials of differences only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ._prefix import Prefix, divide
from ._products import add, empty_sums, read, step

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["LogSums", "softmax"]

# Within a block all exponentials refer to the maximum at its end. Where a channel's maximum rises by more
# than this (in nats), early queries would lose digits to it, and the block is halved.
_MOST_RISE = 8.0
# Between the largest and the smallest logarithm of a block whose rows share a reference.
_MOST_SPREAD = 30.0


def softmax(x: NDArray[Any], axis: int = -1) -> NDArray[Any]:
    """Along an axis; rows of -inf alone are NaN, as 0/0."""
    weights: NDArray[Any] = np.exp(x - x.max(axis, keepdims=True, initial=-np.inf))
    weights /= weights.sum(axis, keepdims=True)
    return weights


def _exponentials(x: NDArray[Any]) -> NDArray[Any]:
    """exp(x) up to a factor for each row, the largest about 1."""
    # One reference for all rows is enough while no row can vanish, and costs a third.
    top = x.max(initial=-np.inf)
    if not top - x.min(initial=np.inf) < _MOST_SPREAD:
        top = x.max(-1, keepdims=True)
    weights: NDArray[Any] = x - top
    np.exp(weights, out=weights)
    return weights


def _running_sums(weights: NDArray[Any]) -> NDArray[Any]:
    """cumsum along the keys, in groups of 16 rows: three times as fast, and its rounding is blocked."""
    *lead, rows, channels = weights.shape
    if rows % 16 or rows < 64:
        return np.cumsum(weights, -2)
    groups = weights.reshape(*lead, rows // 16, 16, channels).copy()
    for i in range(1, 16):
        groups[..., i, :] += groups[..., i - 1, :]
    groups[..., 1:, :, :] += np.cumsum(groups[..., :-1, -1, :], -2)[..., None, :]
    return groups.reshape(weights.shape)


class LogSums(Prefix):
    """M, Z and S of each channel.

    per_channel: every channel is a distribution over the keys, and a query mixes them by the softmax of
    its own logarithms (efficient attention). Otherwise a query's weights are normalised over all channels
    at once (positive random features).
    """

    def __init__(self, *, per_channel: bool) -> None:
        self.per_channel = per_channel
        self.top: NDArray[Any] | None = None
        self.sums: tuple[NDArray[np.float64], NDArray[np.float64]] | None = None

    def add(self, key: NDArray[Any], value: NDArray[Any]) -> None:
        if not key.shape[-2]:
            return
        # Exponentials may exceed 1 by a little: one comparison for the block spares its channels' maxima.
        if self.top is None or not key.max() <= self.top.min() + _MOST_RISE:
            top = key.max(-2)
            self._raise_to(top if self.top is None else np.maximum(self.top, top), key, value)
        assert self.sums is not None
        add(np.exp(key - self._reference()[..., None, :]), value, self.sums)

    def read(self, query: NDArray[Any]) -> NDArray[Any]:
        assert self.top is not None
        assert self.sums is not None
        if self.per_channel:
            products, total = self.sums
            return divide(*read(_exponentials(query), (products / total[..., None], np.ones_like(total))))
        return divide(*read(_exponentials(query + self.top[..., None, :]), self.sums))

    def step(self, query: NDArray[Any], key: NDArray[Any], value: NDArray[Any]) -> NDArray[Any]:
        if query.shape[-2] == 1:
            self.add(key, value)
            return self.read(query)
        first, last = key[..., 0, :], key.max(-2)
        if self.top is not None:
            first, last = np.maximum(first, self.top), np.maximum(last, self.top)
        rise = last - first
        if rise.size and rise.max() > _MOST_RISE:
            return self.halves(query, key, value)
        saved = self.top, self.sums
        self._raise_to(last, key, value)
        rows, weights, after = self._block(query, key, value)
        if not np.isfinite(rows.sum()):  # 0 * NaN would reach the queries before it
            self.top, self.sums = saved
            return self.halves(query, key, value)
        self.sums = after
        return divide(rows, weights)

    def _block(self, query: NDArray[Any], key: NDArray[Any], value: NDArray[Any]) -> Any:
        assert self.sums is not None
        reference = self._reference()[..., None, :]
        weights = np.exp(key - reference)
        if self.per_channel:
            # Divided by its channel's running sum, a query's weights add up to its exponentials.
            running = _running_sums(weights) + self.sums[1].astype(weights.dtype)[..., None, :]
            return step(_exponentials(query) / running, weights, value, self.sums)
        return step(_exponentials(query + reference), weights, value, self.sums)

    def merge(self, other: LogSums) -> LogSums:
        merged = LogSums(per_channel=self.per_channel)
        for part in (self, other):
            if part.top is None or part.sums is None:
                continue
            if merged.top is None or merged.sums is None:
                merged.top, merged.sums = part.top, part.sums
                continue
            top = np.maximum(merged.top, part.top)
            merged.sums = tuple(  # type: ignore[assignment]
                a + b for a, b in zip(_rescaled(merged, top), _rescaled(part, top), strict=True)
            )
            merged.top = top
        return merged

    def _reference(self) -> NDArray[Any]:
        """The maximum; 0 where there is none yet, so that exp(-inf - 0) is 0."""
        assert self.top is not None
        return np.where(np.isneginf(self.top), 0, self.top).astype(self.top.dtype, copy=False)

    def _raise_to(self, top: NDArray[Any], key: NDArray[Any], value: NDArray[Any]) -> None:
        self.sums = empty_sums(key, value) if self.sums is None else _rescaled(self, top)
        self.top = top


def _rescaled(part: LogSums, top: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The sums with another maximum, which is not below their own."""
    assert part.sums is not None
    assert part.top is not None
    products, total = part.sums
    factor = np.exp(part.top.astype(np.float64) - np.where(np.isneginf(top), 0, top))
    return products * factor[..., None], total * factor
