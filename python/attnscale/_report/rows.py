# SPDX-License-Identifier: BSD-3-Clause
"""Rows of one length of a report, measured at many scales in few passes over their scores.

Where a score is the scaled product, the core finds all scales of a ladder together. Under a soft-cap or a
bias, and for other normalizers than the softmax and a sink, each scale takes its own passes.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from .._call.call import Call
from .._call.rows import shows
from .._call.weights import normalizer_of
from .._core import CoreCall
from ..exact.backward import receive
from ..exact.curve import beside_sink
from ..exact.received import exchanged, queries_of_keys
from ..exact.results import AttentionStatistics
from ..normalizers import Sink

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..calibration.fit import Length
    from ..normalizers import Normalizer

    Array = NDArray[np.float64]
    Chosen = slice | NDArray[np.int64]

#: Numbers of rows and keys in memory at a time, for some heads after others.
_MOST_NUMBERS = 1 << 23


class Points(NamedTuple):
    """Numbers of rows at each scale, shape (heads, rows, scales)."""

    entropy: NDArray[Any]
    max_weight: NDArray[Any]
    first_key: NDArray[Any]  # weight of the first key


class Ladder(NamedTuple):
    """Scales by doubling: scale s is bases[s % len(bases)] times 2^(s // len(bases))."""

    bases: Array
    n_scales: int

    @property
    def scales(self) -> Array:
        """All of the scales."""
        steps = np.arange(self.n_scales)
        return np.asarray(np.ldexp(self.bases[steps % len(self.bases)], steps // len(self.bases)))


class Rows:
    """Some rows of a length, each with the keys that it sees among all rows."""

    def __init__(self, whole: Length, chosen: Chosen = slice(None)) -> None:
        call = Call(whole.query, whole.key, None, whole.options).read()
        #: Indices of the rows among all.
        self.at: NDArray[np.int64] = np.arange(call.row_shape[-1])[chosen]
        self.normalizer: Normalizer | None = normalizer_of(whole.options)
        self.n_visible: NDArray[np.int64] = np.broadcast_to(call.visible_keys(), call.row_shape)[:, chosen]
        ends = call.intervals.begin, call.intervals.end
        self.begin, self.end = (each if each is None else each[..., chosen] for each in ends)
        self.call = self._taken(call, chosen)
        mask = call.mask
        #: Whether a mask adds to the scores of visible keys.
        self.has_bias = mask is not None and mask.dtype != bool and bool((shows(mask) & (mask != 0)).any())

    def _taken(self, call: Call, chosen: Chosen, heads: NDArray[np.int64] | None = None) -> Call:
        """The call of some of its rows, whose ends are set, and of some heads."""
        own, (query, key, _, extents), mask = copy(call), call.inputs, call.mask
        if mask is not None and mask.shape[-2] > 1:
            mask = mask[..., chosen, :]
        query = query[:, chosen]
        if heads is not None:
            key = key[heads * len(key) // len(query)]
            query = query[heads]
            mask = mask[heads] if mask is not None and mask.ndim > 2 and len(mask) > 1 else mask
        extents = extents._replace(leading=query.shape[:1], n_queries=query.shape[1])
        own.mask, own.extents = mask, extents
        own.inputs = call.inputs._replace(query=query, key=key, extents=extents)
        own.core = own.core_of(self.begin, self.end)
        return own

    def of_heads(self, heads: NDArray[np.int64]) -> Self:
        """The rows of some heads."""
        own = copy(self)
        own.call = self._taken(self.call, slice(None), heads)
        own.n_visible = self.n_visible[heads]
        if isinstance(self.normalizer, Sink) and np.ndim(self.normalizer.logits):
            own.normalizer = Sink._of_one_call(logits=np.asarray(self.normalizer.logits)[heads])
        return own

    def parts(self, n_scales: int) -> Iterator[tuple[NDArray[np.int64], Self]]:
        """Groups of heads, few enough for numbers of rows and keys at so many scales, and their rows."""
        n_heads, numbers = len(self.n_visible), len(self.at) + self.call.extents.n_keys
        together = max(_MOST_NUMBERS // max(numbers * n_scales, 1), 1)
        every = np.arange(n_heads)
        for first in range(0, n_heads, together):
            heads = every[first : first + together]
            yield heads, self if len(heads) == n_heads else self.of_heads(heads)

    @property
    def outcomes(self) -> NDArray[np.int64]:
        """Number of keys that each row sees, at least 1, and its sink, shape (heads, rows)."""
        return np.maximum(self.n_visible, 1) + isinstance(self.normalizer, Sink)

    @property
    def is_plain(self) -> bool:
        """Whether the scores are scaled products, under the softmax with or without a sink."""
        softmax = self.normalizer is None or isinstance(self.normalizer, Sink)
        return softmax and self.call.form.softcap == 0 and not self.has_bias

    def at_scales(self, ladder: Ladder, *, received: bool = True) -> tuple[Points, Array | None]:
        """Numbers at each scale, and the share of the rows' weight on each key, (heads, keys, scales)."""
        if self.is_plain:
            points, share = self._on_ladder(ladder, received=received)
            if not np.isnan(points.entropy).any():
                return points, share
        found = [self._at(scale, received=received) for scale in ladder.scales.tolist()]
        points = Points(*(np.stack(part, axis=-1) for part in zip(*(one for one, _ in found), strict=True)))
        shares = [share for _, share in found if share is not None]
        return points, np.stack(shares, axis=-1) if shares else None

    def _on_ladder(self, ladder: Ladder, *, received: bool) -> tuple[Points, Array | None]:
        entropy, lse, most, first, top = self.call.core.ladder(*ladder)
        if isinstance(self.normalizer, Sink):
            sink = np.broadcast_to(self.normalizer._per_row(self.call.row_shape), self.call.row_shape)
            none = np.zeros_like(lse)
            entropy = beside_sink(sink, entropy, lse, none, none)[0]
            with np.errstate(over="ignore"):  # rows that see no key
                keys = (1 / (1 + np.exp(sink[..., None] - lse.astype(np.float64)))).astype(lse.dtype)
            most, first = most * keys, first * keys
        points = Points(entropy, most, first)
        if not received:
            return points, None
        share = self._exchanged().received_ladder(*ladder, np.ascontiguousarray(most), top)
        return points, share / max(len(self.at), 1)

    def _exchanged(self) -> CoreCall:
        """The core's call with queries and keys exchanged."""
        query, key, _, extents = self.call.inputs
        first, past = queries_of_keys(self.begin, self.end, extents.n_queries, extents.n_keys)
        mask = None if self.call.mask is None else exchanged(self.call.mask)
        return CoreCall(key, query, mask, first, past, None, extents.wide == np.float64, self.call.threads)

    def _at(self, scale: float, *, received: bool) -> tuple[Points, Array | None]:
        """Numbers at one scale, without its axis, in passes of their own."""
        call = copy(self.call)
        call.scale, key = scale, call.inputs.key
        value = np.zeros((*key.shape[:-1], 1), key.dtype)
        value[:, 0] = 1
        call.inputs = call.inputs._replace(value=value)
        output, rows = call.attend(self.normalizer, ("entropy", "max_weight", "lse"))
        assert output is not None
        points = Points(rows["entropy"], rows["max_weight"], output[..., 0])
        if not received:
            return points, None
        share = receive(call, self.normalizer, AttentionStatistics(lse=rows["lse"]), largest=False)
        return points, share / max(len(self.at), 1)

    def of_equal_weights(self) -> tuple[Array, Array]:
        """Weight of the first key in each row at scale 0, and the share of the weight on each key."""
        shape, n_keys = self.call.row_shape, self.call.extents.n_keys
        if self.call.mask is not None or not (self.normalizer is None or isinstance(self.normalizer, Sink)):
            points, share = self._at(0.0, received=True)
            assert share is not None
            return points.first_key.astype(np.float64), share
        weight = np.broadcast_to(1 / np.maximum(self.n_visible, 1), shape)
        if isinstance(self.normalizer, Sink):
            weight = 1 / (self.n_visible + np.exp(self.normalizer._per_row(shape)))
        begin = np.broadcast_to(0 if self.begin is None else self.begin, shape)
        end = np.maximum(np.broadcast_to(n_keys if self.end is None else self.end, shape), begin)
        steps = np.zeros((shape[0], n_keys + 1))
        for head, step in enumerate(steps):
            step += np.bincount(begin[head], weight[head], n_keys + 1)
            step -= np.bincount(end[head], weight[head], n_keys + 1)
        share = np.cumsum(steps, axis=1)[:, :-1] / max(shape[-1], 1)
        return np.where((begin == 0) & (end > 0), weight, 0.0), share

    def mean_entropies(self, scales: Array) -> Array:
        """Mean entropy of each head, (heads, scales), at scales of each row, (heads, rows, scales).

        NaN where a scale of a row is not finite.
        """
        known = np.asarray(np.isfinite(scales).all(1))
        chosen = np.where(known[:, None], scales, 0.0)
        n_scales = scales.shape[-1]
        if self.is_plain and n_scales:
            rows = self._on_ladder(Ladder(np.ascontiguousarray(chosen), n_scales), received=False)[0].entropy
        if not (self.is_plain and n_scales) or np.isnan(rows).any():
            rows = self._entropies_one_by_one(chosen)
        return np.where(known, rows.mean(1, dtype=np.float64), np.nan)

    def _entropies_one_by_one(self, scales: Array) -> NDArray[Any]:
        call = copy(self.call)
        found = []
        for s in range(scales.shape[-1]):
            call.scale = np.ascontiguousarray(scales[..., s])
            found.append(call.attend(self.normalizer, ("entropy",))[1]["entropy"])
        return np.stack(found, axis=-1) if found else np.empty(scales.shape)
