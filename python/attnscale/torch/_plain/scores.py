# SPDX-License-Identifier: BSD-3-Clause
"""Scores of a block of queries and its visible keys, in plain operations of PyTorch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..._base.checks import fit_to
from ..._call.arrays import shape_in
from .._base.arguments import Arguments
from .._base.autograd import compute_again, zeroed
from .._base.tensors import repeat_heads, shows, swap_heads, wide_type

#: Largest number of scores of a block, over all heads: 128 MiB of float32.
_PAIRS = 2**25


def rows_of(x: Tensor, start: int, stop: int) -> Tensor:
    """Rows start ... stop - 1 of a tensor broadcastable to (..., n_queries, n_keys); one row serves all."""
    return x if x.shape[-2] == 1 else x[..., start:stop, :]


def blocks_of_rows(row_shape: tuple[int, ...], n_keys: int) -> list[tuple[int, int]]:
    """First and past-the-last query of each block: at least one block, small enough to hold."""
    n_queries, pairs = row_shape[-1], math.prod(row_shape[:-1]) * n_keys
    step = max(1, _PAIRS // max(1, pairs))
    return [(i, min(i + step, n_queries)) for i in range(0, max(n_queries, 1), step)]


class Visible(NamedTuple):
    """The keys that each query may see: an interval, less those that the mask hides."""

    begin: Tensor | None  # the first key, broadcastable to (..., heads, n_queries); None: every key
    end: Tensor | None  # the key past the last
    mask: Tensor | None  # broadcastable to (..., heads, n_queries, n_keys); a float one is read by shows()
    n_keys: int

    def of_rows(self, start: int, stop: int) -> Tensor | None:
        """True where a query of the block may see a key; None: everywhere."""
        seen = None
        if self.begin is not None and self.end is not None:
            at = torch.arange(self.n_keys, device=self.begin.device)
            begin, end = (rows_of(x[..., None], start, stop) for x in (self.begin, self.end))
            seen = (at >= begin) & (at < end)
        if self.mask is None:
            return seen
        shown = shows(rows_of(self.mask, start, stop))
        shown = shown.expand(*shown.shape[:-1], self.n_keys)
        return shown if seen is None else seen & shown


def at_distances(table: Tensor, distances: Tensor) -> Tensor:
    """Entry |t| of the table's last axis at each distance t; the last entry for larger distances."""
    steps = distances.abs().clamp(max=table.shape[-1] - 1)
    lead = torch.broadcast_shapes(table.shape[:-1], steps.shape[:-1])
    return table.expand(*lead, table.shape[-1]).gather(-1, steps.expand(*lead, steps.shape[-1]))


def wide_rows(call: Arguments) -> tuple[Tensor, Tensor, Tensor | None]:
    """Query, key and value in the type of the arithmetic, with as many heads as the query."""
    given = [x for x in call.tensors()[:3] if x is not None]
    wide = wide_type([x.dtype for x in given])
    rows = [swap_heads(x, call.layout).to(wide) for x in given]
    if call.qk_norm:
        length = 1.0 if call.qk_norm == "l2" else math.sqrt(rows[0].shape[-1])
        rows[:2] = (_with_length(x, length) for x in rows[:2])
    query, key, *value = repeat_heads(rows, enabled=call.enable_gqa)
    return query, key, value[0] if value else None


def _with_length(rows: Tensor, length: float) -> Tensor:
    """The rows scaled to a length; rows of zeros stay zero."""
    # Dividing by the largest entry first keeps squares from overflowing or vanishing.
    largest = rows.detach().abs().amax(-1, keepdim=True) if rows.shape[-1] else rows.new_zeros(())
    rows = rows / torch.where(largest == 0, 1, largest)
    norm = torch.linalg.vector_norm(rows, dim=-1, keepdim=True)
    factor = length / torch.where(norm == 0, 1, norm)
    return rows * torch.where(norm == 0, 0, factor)  # a row of zeros has no gradient


def key_count(call: Arguments) -> Any:
    return shape_in(call.layout, call.key.shape)[-2]


def visible_of(
    call: Arguments, row_shape: tuple[int, ...], begin: Tensor | None, end: Tensor | None
) -> Visible:
    n_keys = key_count(call)
    mask: Any = call.attn_mask
    if mask is not None:
        mask = fit_to("attn_mask", mask, (*row_shape, n_keys), "(..., heads, n_queries, n_keys)")
        mask = mask[(None,) * (2 - mask.ndim)]
    return Visible(begin, end, mask, n_keys)


class Scores(NamedTuple):
    """The scores of a call; tensors have the type of the arithmetic, with heads before the rows."""

    query: Tensor  # times the scale
    key: Tensor
    visible: Visible
    row_shape: tuple[int, ...]  # (..., heads, n_queries)
    #: Factor of the product, by distance: that of query i and key j at n_queries - 1 - i + j.
    factor: Tensor | None = None
    offset: Tensor | None = None  # offset of the score, by distance
    softcap: float | None = None
    finite: bool = False  # whether all inputs and scores are known to be finite

    def blocks(self) -> list[tuple[int, int]]:
        """First and past-the-last query of each block."""
        return blocks_of_rows(self.row_shape, self.key.shape[-2])

    def in_blocks(self, function: Callable[[int, int], tuple[Tensor, ...]]) -> list[list[Tensor]]:
        """Call a function with start and stop of each block; returns a list of blocks for each result."""
        blocks = self.blocks()
        found = [compute_again(function, *each, enabled=len(blocks) > 1) for each in blocks]
        return [list(each) for each in zip(*found, strict=True)]

    def of_rows(self, start: int, stop: int) -> tuple[Tensor, Tensor | None]:
        """Scores (..., rows, n_keys), -inf if hidden, NaN if visible and not finite; and visible keys."""
        mask, seen = self.visible.mask, self.visible.of_rows(start, stop)
        scores = self._products(start, stop, seen)
        if self.factor is not None:
            scores = scores * self._table(self.factor, start, stop)
        if self.softcap is not None:
            scores = self.softcap * torch.tanh(self._checked(scores) / self.softcap)
        if self.offset is not None:
            scores = scores + self._table(self.offset, start, stop)
        if mask is not None and mask.dtype != torch.bool:
            added, lowest = rows_of(mask, start, stop), torch.finfo(scores.dtype).min
            if torch.finfo(mask.dtype).min < lowest:  # a large number of a wider type is not infinite
                added = added.clamp(min=lowest)
            scores = scores + added.to(scores.dtype)
        scores = self._checked(scores)
        return scores if seen is None else scores.masked_fill(~seen, -math.inf), seen

    def _products(self, start: int, stop: int, seen: Tensor | None) -> Tensor:
        query = self.query[..., start:stop, :]
        if self.finite or seen is None:
            return query @ self.key.transpose(-1, -2)
        # A hidden NaN would reach the gradient of other entries as 0 * NaN.
        of_query, of_key = (~torch.isfinite(x).all(-1) for x in (query, self.key))
        clean = [zeroed(x, bad[..., None]) for x, bad in ((query, of_query), (self.key, of_key))]
        products = clean[0] @ clean[1].transpose(-1, -2)
        # A factor, so that the gradient is NaN where the product is.
        bad = (of_query[..., None] | of_key[..., None, :]) & seen
        return products * torch.where(bad, math.nan, 1.0).to(products.dtype)

    def _checked(self, scores: Tensor) -> Tensor:
        return scores if self.finite else scores.masked_fill(~torch.isfinite(scores), math.nan)

    def _table(self, values: Tensor, start: int, stop: int) -> Tensor:
        """The values at the distances of the block, (..., rows, n_keys)."""
        n_queries = self.query.shape[-2]
        windows = values.unfold(-1, self.key.shape[-2], 1)[..., n_queries - stop : n_queries - start, :]
        return windows.flip(-2)
