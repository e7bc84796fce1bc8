# SPDX-License-Identifier: BSD-3-Clause
"""Tensors of a call with any axes in front as tensors of (batch, heads, ...), and gradients back."""

from __future__ import annotations

import math
from typing import NamedTuple

from torch import Tensor

from ..._call.arrays import shape_in
from .._arguments import Arguments


class Folding(NamedTuple):
    """The axes of the rows of a call, (..., heads, n_queries), and the layout of its arrays."""

    row_shape: tuple[int, ...]
    layout: str

    @staticmethod
    def of(call: Arguments) -> Folding:
        """The folding of a call."""
        return Folding(tuple(call.row_extents[0]), call.layout)

    @property
    def batch(self) -> tuple[int, ...]:
        """The axes in front of the heads."""
        return self.row_shape[:-2]

    @property
    def heads(self) -> int:
        """Heads of the query."""
        return self.row_shape[-2] if len(self.row_shape) > 1 else 1

    def heads_of(self, x: Tensor) -> int:
        """Heads of query, key or value."""
        return int(shape_in(self.layout, x.shape)[-3]) if x.ndim > 2 else 1

    def array(self, x: Tensor, heads: int) -> Tensor:
        """Query, key or value as (batch, heads, n, dim), whose last axis is without gaps.

        A view, unless the memory of the batch cannot be walked with one stride.
        """
        if self.layout == "bshd" and x.ndim > 2:
            x = x.transpose(-3, -2)
        x = self._with_axes(x, 3)
        x = x.expand(*self.batch, heads, *x.shape[-2:])
        x = x.reshape(math.prod(self.batch), *x.shape[-3:])
        return x if x.stride(-1) == 1 else x.contiguous()

    def rows(self, x: Tensor | None) -> Tensor | None:
        """Numbers that broadcast to rows, as they broadcast to (batch, heads, n_queries)."""
        return None if x is None else self._folded(x, 2)

    def pairs(self, x: Tensor | None) -> Tensor | None:
        """Numbers that broadcast to (..., heads, n_queries, n_keys), likewise."""
        return None if x is None else self._folded(x, 3)

    def _folded(self, x: Tensor, own: int) -> Tensor:
        x = self._with_axes(x, own)
        if all(extent == 1 for extent in x.shape[:-own]):
            return x.reshape(1, *x.shape[-own:])
        return x.expand(*self.batch, *x.shape[-own:]).reshape(math.prod(self.batch), *x.shape[-own:])

    def _with_axes(self, x: Tensor, own: int) -> Tensor:
        """The tensor with axes of length 1 in front, so that it has `own` axes behind those of the batch."""
        return x[(None,) * (len(self.batch) + own - x.ndim)]

    # ---- back -----------------------------------------------------------------------------------

    def result(self, x: Tensor) -> Tensor:
        """A statistic, (batch, heads, n_queries), or the output, (batch, heads, n_queries, dim)."""
        if x.ndim == 3:
            return x.reshape(self.row_shape)
        x = x.reshape(*self.row_shape, x.shape[-1])
        return x.transpose(-3, -2) if self.layout == "bshd" and x.ndim > 2 else x

    def gradient_of_array(self, gradient: Tensor, given: Tensor) -> Tensor:
        """The gradient of query, key or value, summed over the axes along which it was repeated."""
        shape = shape_in(self.layout, given.shape)
        found = _sum_to(gradient.reshape(*self.batch, *gradient.shape[1:]), shape).to(given.dtype)
        swapped = self.layout == "bshd" and given.ndim > 2
        return (found.transpose(-3, -2) if swapped else found).contiguous()

    def gradient_of_rows(self, gradient: Tensor, given: Tensor) -> Tensor:
        """The gradient of numbers that broadcast to rows, from one for each row."""
        return _sum_to(gradient.reshape(self.row_shape), tuple(given.shape)).to(given.dtype)

    def gradient_of_pairs(self, gradient: Tensor, given: Tensor) -> Tensor:
        """The gradient of numbers of pairs, from one that has axes of length 1 or whole ones."""
        batch = self.batch if gradient.shape[0] > 1 else (1,) * len(self.batch)
        return _sum_to(gradient.reshape(*batch, *gradient.shape[1:]), tuple(given.shape)).to(given.dtype)


def _sum_to(gradient: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The gradient of a tensor of this shape that was repeated; sums are in float32."""
    if gradient.numel() == math.prod(shape):
        return gradient.reshape(shape)
    padded = (1,) * (gradient.ndim - len(shape)) + tuple(shape)
    return gradient.float().sum_to_size(padded).reshape(shape)
