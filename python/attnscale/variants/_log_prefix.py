# SPDX-License-Identifier: BSD-3-Clause
"""Running sums for features that are exponentials, given by their logarithms: no overflow at any size.

Each channel c has its own reference M_c, its running maximum up to a few nats. Kept are
Z_c = sum_j exp(k_jc - M_c) and S_c = sum_j exp(k_jc - M_c) v_j; what a query reads depends on sums of
exponentials of differences only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import numpy as np

from ._prefix import Prefix
from ._products import Rows, add, empty_sums, read, step

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["LogSums", "softmax"]

# Within a block all exponentials refer to the maximum at its end. Where a channel's maximum rises by more
# than this (in nats), early queries would lose digits to it, and the block is halved.
_MOST_RISE = 8.0
# Rows of which the maxima are taken at once.
_SIDE_BY_SIDE = 32


def softmax(x: NDArray[Any], axis: int = -1) -> NDArray[Any]:
    """Along an axis; rows of -inf alone are NaN, as 0/0."""
    weights: NDArray[Any] = np.exp(x - x.max(axis, keepdims=True, initial=-np.inf))
    weights /= weights.sum(axis, keepdims=True)
    return weights


class LogSums(Prefix):
    """M, Z and S of each channel.

    per_channel: every channel is a distribution over the keys, and a query mixes them by the softmax of
    its own logarithms (efficient attention). Otherwise a query's weights are normalised over all channels
    at once (positive random features).
    """

    has_top = True

    def __init__(self, *, per_channel: bool) -> None:
        self.per_channel = per_channel
        self.sums: tuple[NDArray[np.float64], NDArray[np.float64]] | None = None

    def empty(self) -> Self:
        return type(self)(per_channel=self.per_channel)

    def add(self, key: NDArray[Any], value: NDArray[Any]) -> None:
        if not key.shape[-2]:
            return
        # Exponentials may exceed 1 by a little: one comparison for the block spares its channels' maxima.
        if self.top is None or not key.max() <= self.top.min() + _MOST_RISE:
            top = self.top_with(key)
            self.sums = empty_sums(key, value) if self.sums is None else _rescaled(self, top)
            self.top = top
        assert self.sums is not None
        add(key, value, self.sums, Rows("exponential", key_reference=_reference(self.top)))

    def block(self, key: NDArray[Any], value: NDArray[Any], top: NDArray[Any] | None) -> Self:
        own = self.empty()
        own.top, own.sums = top, empty_sums(key, value)
        add(key, value, own.sums, Rows("exponential", key_reference=_reference(top)))
        return own

    def top_with(self, key: NDArray[Any]) -> NDArray[Any]:
        top = _channel_maxima(key)
        return top if self.top is None else np.maximum(top, self.top)

    def read(self, query: NDArray[Any], out: NDArray[Any] | None = None) -> NDArray[Any]:
        assert self.sums is not None
        if self.per_channel:
            products, total = self.sums
            sums = products / total[..., None], np.ones_like(total)
            return read(query, sums, Rows("exponential", divide=True), out)[0]
        how = Rows("exponential", query_shift=_shift(self.top), divide=True)
        return read(query, self.sums, how, out)[0]

    def step(self, query: NDArray[Any], key: NDArray[Any], value: NDArray[Any], out: NDArray[Any]) -> Self:
        top = self.top_with(key)
        if query.shape[-2] == 1:
            own = self.block(key, value, top)
            self.merge(own).read(query, out)
            return own
        first = key[..., 0, :] if self.top is None else np.maximum(key[..., 0, :], self.top)
        rise = top - first
        if rise.size and rise.max() > _MOST_RISE:
            return self.halves(query, key, value, out)
        base = None if self.sums is None else _rescaled(self, top)
        shift = None if self.per_channel else _shift(top)
        how = Rows("exponential", shift, _reference(top), self.per_channel, divide=True)
        _, _, sums = step(query, key, value, base, how, out)
        if not np.isfinite(out.sum()):  # 0 * NaN would reach the queries before it
            return self.halves(query, key, value, out)
        own = self.empty()
        own.top, own.sums = top, sums
        return own

    def merge(self, other: Self) -> Self:
        merged = self.empty()
        for part in (self, other):
            if part.top is None or part.sums is None:
                continue
            if merged.top is None or merged.sums is None:
                merged.top, merged.sums = part.top, (part.sums[0].copy(), part.sums[1].copy())
                continue
            top = np.maximum(merged.top, part.top)
            one, two = _rescaled(merged, top), _rescaled(part, top)
            merged.top, merged.sums = top, (one[0] + two[0], one[1] + two[1])
        return merged


def _channel_maxima(key: NDArray[Any]) -> NDArray[Any]:
    """key.max(-2). NumPy is several times as fast with many rows side by side as with single ones."""
    *lead, rows, channels = key.shape
    even = rows - rows % _SIDE_BY_SIDE
    if not even:
        return np.asarray(key.max(-2))
    groups = key[..., :even, :].reshape(*lead, -1, _SIDE_BY_SIDE * channels).max(-2)
    top: NDArray[Any] = groups.reshape(*lead, _SIDE_BY_SIDE, channels).max(-2)
    return top if even == rows else np.maximum(top, key[..., even:, :].max(-2))


def _reference(top: NDArray[Any] | None) -> NDArray[Any]:
    """The maximum; 0 where there is none yet, so that exp(-inf - 0) is 0."""
    assert top is not None
    return np.where(np.isneginf(top), 0, top).astype(top.dtype, copy=False)


def _shift(top: NDArray[Any] | None) -> NDArray[Any]:
    """What a query adds: a channel without weight takes no part, unless no channel has any."""
    assert top is not None
    none = np.isneginf(top.max(-1, keepdims=True, initial=-np.inf))
    return np.where(none, 0, top).astype(top.dtype, copy=False)


def _rescaled(part: LogSums, top: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The sums with another maximum, which is not below their own."""
    assert part.sums is not None
    assert part.top is not None
    products, total = part.sums
    if np.array_equal(part.top, top):
        return part.sums
    factor = np.exp(part.top.astype(np.float64) - np.where(np.isneginf(top), 0, top))
    return products * factor[..., None], total * factor
