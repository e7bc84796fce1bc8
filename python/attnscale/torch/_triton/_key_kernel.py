# SPDX-License-Identifier: BSD-3-Clause
"""The gradients of key and value, for a block of keys, from the queries that see them.

Tiles are transposed: their rows are keys. A key is seen by an interval of queries, as a query sees an
interval of keys. The heads that share a key are summed one after the other, so that results are the same in
every run.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from ._gradient_tiles import Sight, gradient_of_scores, seen_of, terms_across, terms_of
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
    tiles_of,
)


class Block(NamedTuple):
    """What the tiles of a block of keys and one head have in common."""

    key: Any
    value: Any
    query: Any  # addresses of the head
    gradient: Any  # of the output
    mask: Any
    terms: Any  # addresses of all heads
    softcap: Any
    batch: Any
    head: Any
    keys: Any
    begin: Any  # the queries that see each key
    end: Any


class Sums(NamedTuple):
    """Gradients of the keys and values of a block so far."""

    key: Any
    value: Any


@triton.jit
def _add_tile(
    sums, block, n_queries, start, D: tl.constexpr, DV: tl.constexpr, BLOCK_M: tl.constexpr,
    PARTIAL: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """The sums of ds q and p do with the queries of one more tile."""
    rows = start + tl.arange(0, BLOCK_M)
    q = load_rows(block.query, start, n_queries, D, sums.key.shape[1], BLOCK_M, not PARTIAL)
    products, dp = product(block.key, tl.trans(q), WIDEN), 0.0
    if block.gradient is not None:
        g = load_rows(block.gradient, start, n_queries, DV, sums.value.shape[1], BLOCK_M, not PARTIAL)
        dp = product(block.value, tl.trans(g), WIDEN)
    sight = Sight(None, None)
    if PARTIAL:
        inside = (rows[None, :] >= block.begin[:, None]) & (rows[None, :] < block.end[:, None])
        sight = seen_of(inside, block.mask, rows[None, :], block.keys[:, None])
        q, _ = clean(q)
    terms = terms_across(terms_of(block.terms, block.batch, block.head, rows, n_queries))
    keys = block.keys[:, None]
    p, _, du = gradient_of_scores(products, dp, terms, block.softcap, keys, sight, PARTIAL)
    of_key, of_value = add_product(sums.key, (du * terms.scale).to(q.dtype), q, WIDEN), sums.value
    if block.gradient is not None:
        if PARTIAL:
            g, bad = clean(g)
            p = tl.where(sight.seen & bad[None, :], float("nan"), p)
        of_value = add_product(of_value, p.to(g.dtype), g, WIDEN)
    return Sums(of_key, of_value)


@triton.jit
def gradients_of_keys(
    query, key, value, first_row, past_row, mask, terms, gradient, found_key, found_value, n_queries, n_keys,
    heads, groups, softcap, D: tl.constexpr, PAD_D: tl.constexpr, DV: tl.constexpr, PAD_DV: tl.constexpr,
    LENGTH: tl.constexpr, WIDEN: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Gradients of BLOCK_N keys of a head, and of their values."""
    blocks, kv_heads = tl.cdiv(n_keys, BLOCK_N), heads // groups
    index = tl.program_id(0) // blocks
    batch, kv_head = index // kv_heads, index % kv_heads
    first = (tl.program_id(0) % blocks) * BLOCK_N
    keys = first + tl.arange(0, BLOCK_N)
    k, v = load_rows(rows_of_head(key, batch, kv_head), first, n_keys, D, PAD_D, BLOCK_N, False), None
    if gradient is not None:
        v = load_rows(rows_of_head(value, batch, kv_head), first, n_keys, DV, PAD_DV, BLOCK_N, False)
    sums = Sums(tl.zeros([BLOCK_N, PAD_D], tl.float32), tl.zeros([BLOCK_N, PAD_DV], tl.float32))
    for group in range(groups):
        head = kv_head * groups + group
        low, high = interval_of(first_row, past_row, batch, head, keys, n_keys, n_queries)
        q, g = rows_of_head(query, batch, head), rows_of_head(gradient, batch, head)
        pairs = pairs_of_head(mask, batch, head)
        block = Block(k, v, q, g, pairs, terms, softcap, batch, head, keys, low, high)
        span = tiles_of(low, high, keys < n_keys, n_queries, BLOCK_M, mask is not None)
        for start in range(span.full, span.last, BLOCK_M):
            sums = _add_tile(sums, block, n_queries, start, D, DV, BLOCK_M, False, WIDEN)
        for i in range(count_partial(span, BLOCK_M)):
            start = next_start(span, i, BLOCK_M)
            sums = _add_tile(sums, block, n_queries, start, D, DV, BLOCK_M, True, WIDEN)
    store_rows(sums.key, rows_of_head(found_key, batch, kv_head), first, n_keys, D)
    if gradient is not None:
        store_rows(sums.value, rows_of_head(found_value, batch, kv_head), first, n_keys, DV)
