# SPDX-License-Identifier: BSD-3-Clause
"""The gradient of a float mask: that of the scores, summed over what shares an entry: batch, heads, rows."""

from __future__ import annotations

import triton
import triton.language as tl

from ._gradient_tiles import gradient_of_scores, seen_of, terms_along, terms_of
from ._tiles import interval_of, load_rows, pairs_of_head, product, rows_of_head


@triton.jit
def _of_tile(
    query, key, value, begin, end, mask, terms, gradient, batch, head, kv_head, first, start, n_queries,
    n_keys, softcap, D: tl.constexpr, PAD_D: tl.constexpr, DV: tl.constexpr, PAD_DV: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """The gradients of the scores of a tile of one head."""
    rows, keys = first + tl.arange(0, BLOCK_M), (start + tl.arange(0, BLOCK_N))[None, :]
    q = load_rows(rows_of_head(query, batch, head), first, n_queries, D, PAD_D, BLOCK_M, False)
    k = load_rows(rows_of_head(key, batch, kv_head), start, n_keys, D, PAD_D, BLOCK_N, False)
    products, dp = product(q, tl.trans(k), WIDEN), 0.0
    if gradient is not None:
        v = load_rows(rows_of_head(value, batch, kv_head), start, n_keys, DV, PAD_DV, BLOCK_N, False)
        g = load_rows(rows_of_head(gradient, batch, head), first, n_queries, DV, PAD_DV, BLOCK_M, False)
        dp = product(g, tl.trans(v), WIDEN)
    low, high = interval_of(begin, end, batch, head, rows, n_queries, n_keys)
    inside = (keys >= low[:, None]) & (keys < high[:, None])
    sight = seen_of(inside, pairs_of_head(mask, batch, head), rows[:, None], keys)
    numbers = terms_along(terms_of(terms, batch, head, rows, n_queries))
    _, ds, _ = gradient_of_scores(products, dp, numbers, softcap, keys, sight, True)
    return ds


@triton.jit
def gradients_of_mask(
    query, key, value, begin, end, mask, terms, gradient, found, n_queries, n_keys, heads, groups, softcap,
    n_batch, n_heads, n_rows, batches, D: tl.constexpr, PAD_D: tl.constexpr, DV: tl.constexpr,
    PAD_DV: tl.constexpr, LENGTH: tl.constexpr, WIDEN: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Gradients of a tile of the mask; n_batch, n_heads and n_rows are extents of it, each 1 or whole."""
    blocks, key_blocks = tl.cdiv(n_rows, BLOCK_M), tl.cdiv(n_keys, BLOCK_N)
    index = tl.program_id(0) // key_blocks
    start = tl.program_id(0) % key_blocks * BLOCK_N
    first, owner = index % blocks * BLOCK_M, index // blocks
    batch, head = owner // n_heads, owner % n_heads
    steps = tl.where(n_rows == n_queries, 1, tl.cdiv(n_queries, BLOCK_M))
    shared = heads // n_heads
    sums = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for i in range(batches // n_batch * shared * steps):
        at, b, h = first + i % steps * BLOCK_M, batch + i // steps // shared, head + i // steps % shared
        sums += _of_tile(
            query, key, value, begin, end, mask, terms, gradient, b, h, h // groups, at, start, n_queries,
            n_keys, softcap, D, PAD_D, DV, PAD_DV, BLOCK_M, BLOCK_N, WIDEN,
        )  # fmt: skip
    keys, found = start + tl.arange(0, BLOCK_N), rows_of_head(found, batch, head)
    if n_rows == n_queries:
        rows = (first + tl.arange(0, BLOCK_M))[:, None]
        where = found.at + rows.to(tl.int64) * found.row + keys[None, :]
        tl.store(where, sums, mask=(rows < n_queries) & (keys[None, :] < n_keys))
    else:
        tl.store(found.at + keys, tl.sum(sums, 0), mask=keys < n_keys)
