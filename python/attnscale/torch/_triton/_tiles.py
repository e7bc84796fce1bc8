# SPDX-License-Identifier: BSD-3-Clause
"""Operations on one tile: addresses, products, scores and visibility."""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

#: Stands for the score of a hidden key; finite, so that a weight of 0 times it is 0.
HIDDEN: tl.constexpr = tl.constexpr(-1e38)
LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)
LN2: tl.constexpr = tl.constexpr(0.6931471805599453)


class StridedRows(NamedTuple):
    """Rows of (batch, heads, n, dim) in memory, or numbers of (batch, heads, n): an address and strides."""

    at: Any
    batch: int
    head: int
    row: int


class Pairs(NamedTuple):
    """Numbers of (batch, heads, n_queries, n_keys) in memory: an address and strides."""

    at: Any
    batch: int
    head: int
    row: int
    key: int


class Span(NamedTuple):
    """Starts of tiles: [full, last) is fully visible, [first, full) and [last, past) partly."""

    first: Any
    full: Any
    last: Any
    past: Any


class Capped(NamedTuple):
    """Soft-capped scores and their derivatives."""

    score: Any
    slope: Any


@triton.jit
def head_of(x, batch, head):
    """The address of the first row of a head; the sum is in 64 bits."""
    return x.at + batch.to(tl.int64) * x.batch + head.to(tl.int64) * x.head


@triton.jit
def rows_of_head(x, batch, head):
    if x is None:
        return None
    else:  # noqa: RET505 - Triton compiles code after a return
        return StridedRows(head_of(x, batch, head), 0, 0, x.row)


@triton.jit
def pairs_of_head(x, batch, head):
    if x is None:
        return None
    else:  # noqa: RET505
        return Pairs(head_of(x, batch, head), 0, 0, x.row, x.key)


@triton.jit
def has_bias(mask):
    if mask is None:
        return tl.constexpr(False)
    else:  # noqa: RET505
        return tl.constexpr(mask.at.dtype.element_ty.is_floating())


@triton.jit
def interval_of(begin, end, batch, head, rows, n, n_others):
    """Visible interval of each row, [low, high), empty for rows beyond the last."""
    low, high = tl.zeros_like(rows), tl.where(rows < n, n_others, 0)
    if begin is not None:
        low = load_vector(begin, batch, head, rows, n, 0).to(tl.int32)
        high = load_vector(end, batch, head, rows, n, 0).to(tl.int32)
    return low, high


@triton.jit
def load_rows(
    x, first, n, DIM: tl.constexpr, PADDED: tl.constexpr, BLOCK: tl.constexpr, INSIDE: tl.constexpr
):
    """Rows first ... first + BLOCK - 1, (BLOCK, PADDED); 0 beyond the last. INSIDE: none is beyond."""
    rows, dims = tl.arange(0, BLOCK), tl.arange(0, PADDED)
    where = x.at + tl.cast(first, tl.int64) * x.row + (rows[:, None] * x.row + dims[None, :])
    if INSIDE and DIM == PADDED:
        return tl.load(where)
    there = (dims < DIM)[None, :]
    if not INSIDE:
        there = there & (first + rows < n)[:, None]
    return tl.load(where, mask=there, other=0.0)


@triton.jit
def store_rows(values, x, first, n, DIM: tl.constexpr):
    """Store rows first ... first + BLOCK - 1 up to the last, in the type of the memory."""
    rows, dims = tl.arange(0, values.shape[0]), tl.arange(0, values.shape[1])
    where = x.at + tl.cast(first, tl.int64) * x.row + (rows[:, None] * x.row + dims[None, :])
    there = (dims < DIM)[None, :] & (first + rows < n)[:, None]
    tl.store(where, values.to(x.at.dtype.element_ty), mask=there)


@triton.jit
def load_vector(x, batch, head, rows, n, other):
    """Values of rows of a head; `other` beyond the last row."""
    return tl.load(head_of(x, batch, head) + rows.to(tl.int64) * x.row, mask=rows < n, other=other)


@triton.jit
def load_mask(mask, rows, keys, there):
    """Values of pairs of a row and a key, 0 where the pair is not `there`."""
    return tl.load(mask.at + rows.to(tl.int64) * mask.row + keys.to(tl.int64) * mask.key, mask=there, other=0)


@triton.jit
def shows(values):
    """True where mask values show the key, by the rule of shows() of tensors; NaN does."""
    if values.dtype == tl.float16:
        shown = (values <= -32752.0) == 0
    elif values.dtype == tl.bfloat16:
        shown = (values.to(tl.float32) <= -1.6947656946257677e38) == 0
    elif values.dtype == tl.float32:
        shown = (values <= -1.7014117331926443e38) == 0
    elif values.dtype == tl.float64:
        shown = (values <= -8.988465674311579e307) == 0
    else:
        shown = values != 0
    return shown


@triton.jit
def added_by(values):
    """Values that a float mask adds to scores, bounded so that no score is taken for HIDDEN."""
    added = values.to(tl.float32)
    return tl.where(added < HIDDEN / 2, HIDDEN / 2, added)


@triton.jit
def store_vector(at, head, rows, n, values):
    """Store values of the rows of a head, counted over the whole batch, unless `at` is None."""
    if at is not None:
        tl.store(at + head.to(tl.int64) * n + rows, values.to(at.dtype.element_ty), mask=rows < n)


@triton.jit
def product(a, b, WIDEN: tl.constexpr):
    """Matrix product in float32. WIDEN: for Triton's interpreter, which does not multiply bfloat16."""
    if WIDEN:
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, input_precision="ieee")


@triton.jit
def add_product(sums, a, b, WIDEN: tl.constexpr):
    if WIDEN:
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, sums, input_precision="ieee")


@triton.jit
def two_sum(high, low, part):
    """high + low + part as a sum and its rounding error (Knuth's two-sum)."""
    total = high + part
    back = total - high
    return total, low + ((high - (total - back)) + (part - back))


@triton.jit
def clean(x):
    """StridedRows with 0 in place of entries that are not finite, and which rows had such an entry."""
    wide = x.to(tl.float32)
    bad = (wide - wide) != 0.0
    return tl.where(bad, 0.0, x), tl.max(bad.to(tl.int32), 1) > 0


@triton.jit
def cap(x, softcap):
    """softcap * tanh(x / softcap) and its derivative; NaN where x is infinite."""
    y = x / softcap
    z = y * y
    # Odd polynomial by least squares on |y| < 1/2, relative error 2e-8: the other form cancels there.
    near = y * (1.0 + z * (-0.33333141 + z * (0.13325822 + z * (-0.05304221 + z * 0.01723548))))
    t = tl.exp2(tl.abs(y) * (-2.0 * LOG2E))
    far = (1.0 - t) / (1.0 + t)
    tanh = tl.where(tl.abs(y) < 0.5, near, tl.where(y < 0.0, -far, far)) + 0.0 * y
    return Capped(softcap * tanh, 1.0 - tanh * tanh)


@triton.jit
def tiles_of(begin, end, there, n, BLOCK: tl.constexpr, PARTIAL: tl.constexpr):
    """Tiles of size BLOCK that rows with the intervals [begin, end) see. PARTIAL: none is full."""
    first = tl.min(tl.where(there, begin, n)) // BLOCK * BLOCK
    past = (tl.max(tl.where(there, end, 0)) + BLOCK - 1) // BLOCK * BLOCK
    past = tl.maximum(first, past)
    full, last = past, past
    if not PARTIAL:
        full = (tl.max(tl.where(there, begin, 0)) + BLOCK - 1) // BLOCK * BLOCK
        last = tl.min(tl.where(there, end, n)) // BLOCK * BLOCK
        none = full >= last
        full, last = tl.where(none, past, full), tl.where(none, past, last)
    return Span(first, full, last, past)


@triton.jit
def next_start(span, index, BLOCK: tl.constexpr):
    """Start of a partly visible tile: first those before the full tiles, then those after."""
    start = span.first + index * BLOCK
    return tl.where(start >= span.full, start + (span.last - span.full), start)


@triton.jit
def count_partial(span, BLOCK: tl.constexpr):
    return (span.full - span.first + span.past - span.last) // BLOCK
