# SPDX-License-Identifier: BSD-3-Clause
"""The gradients of query and scale, for a block of queries, from the keys that they see."""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from ._gradient_tiles import Sight, gradient_of_scores, seen_of, terms_along, terms_of
from ._tiles import (
    add_product,
    clean,
    count_partial,
    interval_of,
    load_rows,
    next_start,
    pairs_of_head,
    product,
    rows_of_head,
    store_rows,
    store_vector,
    tiles_of,
)


class Block(NamedTuple):
    """What the tiles of a block of queries have in common."""

    query: Any
    gradient: Any  # of the output
    key: Any  # addresses of the head
    value: Any
    mask: Any
    terms: Any
    softcap: Any
    rows: Any
    begin: Any
    end: Any


@triton.jit
def products_with_output(
    output, gradient, found, n_queries, heads, DV: tl.constexpr, PAD_DV: tl.constexpr, BLOCK_M: tl.constexpr
):
    """The product of each row of the output with its gradient."""
    blocks = tl.cdiv(n_queries, BLOCK_M)
    index = tl.program_id(0) // blocks
    batch, head = index // heads, index % heads
    first = (tl.program_id(0) % blocks) * BLOCK_M
    o = load_rows(rows_of_head(output, batch, head), first, n_queries, DV, PAD_DV, BLOCK_M, False)
    g = load_rows(rows_of_head(gradient, batch, head), first, n_queries, DV, PAD_DV, BLOCK_M, False)
    both = tl.sum(o.to(tl.float32) * g.to(tl.float32), 1)
    store_vector(found, index, first + tl.arange(0, BLOCK_M), n_queries, both)


@triton.jit
def _add_tile(
    sums, block, n_keys, start, D: tl.constexpr, DV: tl.constexpr, PAD_DV: tl.constexpr,
    BLOCK_N: tl.constexpr, PARTIAL: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """The sums of ds k with one more tile."""
    k = load_rows(block.key, start, n_keys, D, sums.shape[1], BLOCK_N, not PARTIAL)
    products, dp = product(block.query, tl.trans(k), WIDEN), 0.0
    if block.gradient is not None:
        v = load_rows(block.value, start, n_keys, DV, PAD_DV, BLOCK_N, not PARTIAL)
        dp = product(block.gradient, tl.trans(v), WIDEN)
    keys = (start + tl.arange(0, BLOCK_N))[None, :]
    sight = Sight(None, None)
    if PARTIAL:
        inside = (keys >= block.begin[:, None]) & (keys < block.end[:, None])
        sight = seen_of(inside, block.mask, block.rows[:, None], keys)
        k, _ = clean(k)  # a row that sees a NaN has gradients that are NaN
    _, _, du = gradient_of_scores(products, dp, block.terms, block.softcap, keys, sight, PARTIAL)
    return add_product(sums, du.to(k.dtype), k, WIDEN)


@triton.jit
def gradients_of_queries(
    query, key, value, scale, begin, end, mask, terms, gradient, found, found_scale, n_queries, n_keys, heads,
    groups, softcap, D: tl.constexpr, PAD_D: tl.constexpr, DV: tl.constexpr, PAD_DV: tl.constexpr,
    LENGTH: tl.constexpr, WIDEN: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Gradients of BLOCK_M queries of a head and of their scales."""
    blocks = tl.cdiv(n_queries, BLOCK_M)
    index = tl.program_id(0) // blocks
    batch, head = index // heads, index % heads
    first = (blocks - 1 - tl.program_id(0) % blocks) * BLOCK_M
    rows = first + tl.arange(0, BLOCK_M)
    low, high = interval_of(begin, end, batch, head, rows, n_queries, n_keys)
    q = load_rows(rows_of_head(query, batch, head), first, n_queries, D, PAD_D, BLOCK_M, False)
    g = None
    if gradient is not None:
        g = load_rows(rows_of_head(gradient, batch, head), first, n_queries, DV, PAD_DV, BLOCK_M, False)
    k, v = rows_of_head(key, batch, head // groups), rows_of_head(value, batch, head // groups)
    pairs, numbers = pairs_of_head(mask, batch, head), terms_of(terms, batch, head, rows, n_queries)
    block = Block(q, g, k, v, pairs, terms_along(numbers), softcap, rows, low, high)
    sums = tl.zeros([BLOCK_M, PAD_D], tl.float32)
    span = tiles_of(low, high, rows < n_queries, n_keys, BLOCK_N, mask is not None)
    for start in range(span.full, span.last, BLOCK_N):
        sums = _add_tile(sums, block, n_keys, start, D, DV, PAD_DV, BLOCK_N, False, WIDEN)
    for i in range(count_partial(span, BLOCK_N)):
        start = next_start(span, i, BLOCK_N)
        sums = _add_tile(sums, block, n_keys, start, D, DV, PAD_DV, BLOCK_N, True, WIDEN)
    q, _ = clean(q)  # a row that sees no key has the gradient 0, whatever it holds
    store_vector(found_scale, index, rows, n_queries, tl.sum(sums * q.to(tl.float32), 1))
    store_rows(sums * numbers.scale[:, None], rows_of_head(found, batch, head), first, n_queries, D)
