# SPDX-License-Identifier: BSD-3-Clause
"""Running sums for features that are exponentials, given by their logarithms: no overflow at any size.

Each channel c has its own running maximum M_c. Kept are Z_c = sum_j exp(k_jc - M_c) and
S_c = sum_j exp(k_jc - M_c) v_j; what a query reads depends on sums of exponentials of differences only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ._prefix import Prefix, divide, lower

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["LogSums", "softmax"]

# Within a block all exponentials refer to the maximum at its end. Where a channel's maximum rises by more
# than this (in nats), early queries would lose digits to it, and the block is halved.
_MOST_RISE = 8.0


def softmax(x: NDArray[Any], axis: int = -1) -> NDArray[Any]:
    """Along an axis; rows of -inf alone are NaN, as 0/0."""
    weights: NDArray[Any] = np.exp(x - x.max(axis, keepdims=True))
    weights /= weights.sum(axis, keepdims=True)
    return weights


class LogSums(Prefix):
    """M, Z and S of each channel.

    per_channel: every channel is a distribution over the keys, and a query mixes them by the softmax of
    its own logarithms (efficient attention). Otherwise a query's weights are normalised over all channels
    at once (positive random features).
    """

    def __init__(self, *, per_channel: bool) -> None:
        self.per_channel = per_channel
        self.top: NDArray[Any] | None = None
        self.total: NDArray[np.float64] | None = None
        self.products: NDArray[np.float64] | None = None

    def add(self, key: NDArray[Any], value: NDArray[Any]) -> None:
        if not key.shape[-2]:
            return
        self._raise_to(self._top_with(key.max(-2)))
        weights = np.exp(key - self._reference()[..., None, :])
        self._add(weights, value)

    def read(self, query: NDArray[Any]) -> NDArray[Any]:
        assert self.top is not None
        assert self.total is not None
        assert self.products is not None
        if self.per_channel:
            factors = softmax(query) / self.total.astype(query.dtype)[..., None, :]
            mixed: NDArray[Any] = factors @ self.products.astype(query.dtype)
            return mixed
        logs = query + self.top[..., None, :]
        factors = np.exp(logs - logs.max(-1, keepdims=True))
        rows = factors @ self.products.astype(query.dtype)
        return divide(rows, (factors @ self.total.astype(query.dtype)[..., None])[..., 0])

    def step(self, query: NDArray[Any], key: NDArray[Any], value: NDArray[Any]) -> NDArray[Any]:
        if query.shape[-2] == 1:
            self.add(key, value)
            return self.read(query)
        tops = np.maximum.accumulate(key, axis=-2)
        if self.top is not None:
            tops = np.maximum(tops, self.top[..., None, :])
        rise = tops[..., -1:, :] - tops[..., :1, :]
        if rise.size and rise.max() > _MOST_RISE:
            return self.halves(query, key, value)
        return self._block(query, key, value, tops)

    def _block(
        self, query: NDArray[Any], key: NDArray[Any], value: NDArray[Any], tops: NDArray[Any]
    ) -> NDArray[Any]:
        saved = self.top, self.total, self.products
        self._raise_to(tops[..., -1, :])
        reference = self._reference()[..., None, :]
        weights = np.exp(key - reference)
        if self.per_channel:
            running = np.cumsum(weights, -2) + self._before(self.total, weights.dtype)
            factors = softmax(query) / running
        else:
            logs = query + tops
            factors = np.exp(query + reference - logs.max(-1, keepdims=True))
        mixed = lower(factors @ weights.swapaxes(-1, -2))
        rows: NDArray[Any] = mixed @ value
        if not np.isfinite(rows).all():  # 0 * NaN would reach the queries before it
            self.top, self.total, self.products = saved
            return self.halves(query, key, value)
        if self.products is not None:
            rows += factors @ self.products.astype(factors.dtype)
        if not self.per_channel:
            sums = mixed.sum(-1)
            if self.total is not None:
                sums = sums + (factors @ self.total.astype(factors.dtype)[..., None])[..., 0]
            rows = divide(rows, sums)
        self._add(weights, value)
        return rows

    def merge(self, other: LogSums) -> LogSums:
        merged = LogSums(per_channel=self.per_channel)
        for part in (self, other):
            if part.top is None or part.total is None or part.products is None:
                continue
            merged._raise_to(merged._top_with(part.top))
            factor = np.exp(part.top - merged._reference())
            total, products = part.total * factor, part.products * factor[..., None]
            merged.total = total if merged.total is None else merged.total + total
            merged.products = products if merged.products is None else merged.products + products
        return merged

    @staticmethod
    def _before(total: NDArray[np.float64] | None, dtype: Any) -> Any:
        return 0 if total is None else total.astype(dtype)[..., None, :]

    def _reference(self) -> NDArray[Any]:
        """The maximum; 0 where there is none yet, so that exp(-inf - 0) is 0."""
        assert self.top is not None
        return np.where(np.isneginf(self.top), 0, self.top).astype(self.top.dtype, copy=False)

    def _top_with(self, top: NDArray[Any]) -> NDArray[Any]:
        return top if self.top is None else np.maximum(self.top, top)

    def _raise_to(self, top: NDArray[Any]) -> None:
        old, self.top = self.top, top
        if old is not None and self.total is not None and self.products is not None:
            factor = np.exp(old.astype(np.float64) - self._reference())
            self.total = self.total * factor
            self.products = self.products * factor[..., None]

    def _add(self, weights: NDArray[Any], value: NDArray[Any]) -> None:
        total = weights.sum(-2, dtype=np.float64)
        products = (weights.swapaxes(-1, -2) @ value).astype(np.float64)
        self.total = total if self.total is None else self.total + total
        self.products = products if self.products is None else self.products + products
