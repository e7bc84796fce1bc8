# SPDX-License-Identifier: BSD-3-Clause
"""A call of attention in the form of the kernels: tensors with the axes batch, heads and rows."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ._tiles import Pairs, StridedRows


def rows(x: Tensor | None) -> StridedRows | None:
    """Rows of (batch, heads, n, dim), or numbers of (batch, heads, n), for a kernel."""
    return None if x is None else StridedRows(x, *x.stride()[:3])


def pairs(x: Tensor | None) -> Pairs | None:
    """Values of (batch, heads, n_queries, n_keys) for a kernel, which reads bool as bytes."""
    if x is None:
        return None
    return Pairs(x.view(torch.uint8) if x.dtype == torch.bool else x, *x.stride())


class Problem(NamedTuple):
    """Tensors of a call on one device, with all batch axes folded into one.

    Query i of a head sees the keys begin[i] ... end[i] - 1 that the mask does not hide. Neither end decreases
    from one query to the next. Row values broadcast to (batch, heads, n_queries).
    """

    query: Tensor  # (batch, heads, n_queries, head_dim)
    key: Tensor  # (batch, kv_heads, n_keys, head_dim)
    value: Tensor | None  # (batch, kv_heads, n_keys, value_dim)
    scale: Tensor
    begin: Tensor | None = None  # integers; None, together with `end`: every key
    end: Tensor | None = None
    mask: Tensor | None = None  # broadcastable to (batch, heads, n_queries, n_keys); bool, or float to add
    sink: Tensor | None = None  # the score of an outcome that is not a key
    softcap: float | None = None
    layout: str = "bhsd"  # memory order of the output

    @property
    def row_shape(self) -> tuple[int, int, int]:
        batch, heads, n_queries = self.query.shape[:3]
        return batch, heads, n_queries

    def arguments(self) -> tuple[Any, ...]:
        """Tensors of the call for the kernels, as addresses and strides."""
        shape = self.row_shape
        mask = None if self.mask is None else self.mask.expand(*shape, self.key.shape[-2])
        numbers = (None if x is None else x.expand(shape) for x in (self.scale, self.begin, self.end))
        sink = None if self.sink is None else self.sink.expand(shape)
        return (*(rows(x) for x in (*self[:3], *numbers)), pairs(mask), rows(sink))

    def new_output(self) -> Tensor | None:
        """Empty memory for the output, (batch, heads, n_queries, value_dim); None without a value."""
        if self.value is None:
            return None
        batch, heads, n_queries = self.row_shape
        if self.layout == "bshd":
            return self.query.new_empty(batch, n_queries, heads, self.value.shape[-1]).transpose(1, 2)
        return self.query.new_empty(*self.row_shape, self.value.shape[-1])

    def interval_lengths(self) -> Tensor:
        if self.begin is None or self.end is None:
            n_keys = torch.tensor(self.key.shape[-2], device=self.query.device)
            return n_keys.expand(self.row_shape).contiguous()
        return (self.end - self.begin).clamp(min=0).long().expand(self.row_shape).contiguous()

    def rows_of_keys(self) -> tuple[Tensor | None, Tensor | None]:
        """First and past-the-last query that sees each key, apart from the mask, (batch, heads, n_keys)."""
        if self.begin is None or self.end is None:
            return None, None
        n_queries, n_keys = self.query.shape[2], self.key.shape[2]
        keys = torch.arange(n_keys, device=self.query.device)
        found = []
        # Neither end decreases, so the queries with end > j start at one index; the same holds for begin > j.
        for ends in (self.end, self.begin):
            ends = ends.expand(*ends.shape[:-1], n_queries).contiguous()
            of_keys = keys.to(ends.dtype).expand(*ends.shape[:-1], n_keys).contiguous()
            rows_of = torch.searchsorted(ends, of_keys, right=True, out_int32=True)
            found.append(rows_of.expand(*self.row_shape[:2], n_keys))
        return found[0], found[1]
