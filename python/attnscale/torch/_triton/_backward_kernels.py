# SPDX-License-Identifier: BSD-3-Clause
"""Kernels of the backward pass: they compute the scores of each tile again, and their gradients.

With p the weights, x = ln p = score - lse, and g the gradient of each result, a score's gradient is

    ds = p (do . v + constant + slope x + curve x^2 + share p) + peak at the key of the largest score.

Every statistic adds only to the terms of its row, see `_backward.row_terms`: entropy costs two numbers a row.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from ._tiles import (
    LN2,
    LOG2E,
    add_product,
    added_by,
    cap,
    clean,
    count_partial,
    interval_of,
    load_mask,
    load_rows,
    load_vector,
    next_start,
    pairs_of_head,
    product,
    rows_of_head,
    shows,
    store_rows,
    store_vector,
    tiles_of,
)


class Terms(NamedTuple):
    """Terms of rows, (batch, heads, n_queries); curve is None if no statistic needs the last four."""

    scale: Any
    lse: Any
    constant: Any
    slope: Any
    curve: Any = None
    share: Any = None
    peak: Any = None
    argmax: Any = None


class Sight(NamedTuple):
    """Visible pairs of a tile, and what a float mask adds to their scores (None: nothing)."""

    seen: Any
    added: Any


@triton.jit
def terms_of(terms, batch, head, rows, n, AXIS: tl.constexpr):
    """Terms of a block of rows, for x in base 2, as a column (AXIS 1) or as a row (0) of a tile."""
    scale = _numbers(terms.scale, batch, head, rows, n, 0.0, AXIS).to(tl.float32)
    lse = _numbers(terms.lse, batch, head, rows, n, 0.0, AXIS) * LOG2E
    constant = _numbers(terms.constant, batch, head, rows, n, 0.0, AXIS)
    slope = _numbers(terms.slope, batch, head, rows, n, 0.0, AXIS) * LN2
    curve, share, peak, argmax = None, None, None, None
    if terms.curve is not None:
        curve = _numbers(terms.curve, batch, head, rows, n, 0.0, AXIS) * (LN2 * LN2)
        share = _numbers(terms.share, batch, head, rows, n, 0.0, AXIS)
        peak = _numbers(terms.peak, batch, head, rows, n, 0.0, AXIS)
        argmax = _numbers(terms.argmax, batch, head, rows, n, -1, AXIS).to(tl.int32)
    return Terms(scale, lse, constant, slope, curve, share, peak, argmax)


@triton.jit
def _numbers(x, batch, head, rows, n, other, AXIS: tl.constexpr):
    return tl.expand_dims(load_vector(x, batch, head, rows, n, other), AXIS)


@triton.jit
def seen_of(inside, mask, rows, keys):
    """Visible pairs among those inside of the intervals, and what a float mask adds to their scores."""
    added = None
    if mask is not None:
        values = load_mask(mask, rows, keys, inside)
        inside = inside & shows(values)
        if values.dtype.is_floating():
            added = added_by(values)
    return Sight(inside, added)


@triton.jit
def gradient_of_scores(products, dp, terms, softcap, keys, sight, PARTIAL: tl.constexpr):
    """Return the weights, the gradients of the scores, and those of the scaled products."""
    if softcap is None and sight.added is None:
        x = products * (terms.scale * LOG2E) - terms.lse
    else:
        score = products * terms.scale
        if softcap is not None:
            capped = cap(score, softcap)
            score = capped.score
        if sight.added is not None:
            score = score + sight.added
        x = score * LOG2E - terms.lse
    p = tl.exp2(x)
    if PARTIAL:
        p = tl.where(sight.seen, p, 0.0)
    of_row = terms.constant + terms.slope * x
    if terms.curve is not None:
        of_row = of_row + terms.curve * x * x + terms.share * p
    ds = p * (dp + of_row)
    if terms.curve is not None:
        ds = ds + tl.where(keys == terms.argmax, terms.peak, 0.0)
    if PARTIAL:
        ds = tl.where(sight.seen, ds, 0.0)
    of_product = ds
    if softcap is not None:
        of_product = ds * capped.slope
    return p, ds, of_product


# ---- query and scale, for a block of queries, from their visible keys ------------------------------


class _QueryBlock(NamedTuple):
    """Data that the tiles of a block of queries share."""

    query: Any
    gradient: Any  # gradient of the output
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
    """Product of each row of the output with its gradient."""
    blocks = tl.cdiv(n_queries, BLOCK_M)
    index = tl.program_id(0) // blocks
    batch, head = index // heads, index % heads
    first = (tl.program_id(0) % blocks) * BLOCK_M
    o = load_rows(rows_of_head(output, batch, head), first, n_queries, DV, PAD_DV, BLOCK_M, False)
    g = load_rows(rows_of_head(gradient, batch, head), first, n_queries, DV, PAD_DV, BLOCK_M, False)
    both = tl.sum(o.to(tl.float32) * g.to(tl.float32), 1)
    store_vector(found, index, first + tl.arange(0, BLOCK_M), n_queries, both)


@triton.jit
def _add_keys(
    sums, block, n_keys, start, D: tl.constexpr, DV: tl.constexpr, PAD_DV: tl.constexpr,
    BLOCK_N: tl.constexpr, PARTIAL: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """Add one more tile to the sums of ds k."""
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
    pairs, numbers = pairs_of_head(mask, batch, head), terms_of(terms, batch, head, rows, n_queries, 1)
    block = _QueryBlock(q, g, k, v, pairs, numbers, softcap, rows, low, high)
    sums = tl.zeros([BLOCK_M, PAD_D], tl.float32)
    span = tiles_of(low, high, rows < n_queries, n_keys, BLOCK_N, mask is not None)
    for start in range(span.full, span.last, BLOCK_N):
        sums = _add_keys(sums, block, n_keys, start, D, DV, PAD_DV, BLOCK_N, False, WIDEN)
    for i in range(count_partial(span, BLOCK_N)):
        start = next_start(span, i, BLOCK_N)
        sums = _add_keys(sums, block, n_keys, start, D, DV, PAD_DV, BLOCK_N, True, WIDEN)
    q, _ = clean(q)  # a row without visible keys has the gradient 0, whatever its entries
    store_vector(found_scale, index, rows, n_queries, tl.sum(sums * q.to(tl.float32), 1))
    store_rows(sums * numbers.scale, rows_of_head(found, batch, head), first, n_queries, D)


# ---- key and value, for a block of keys, from the queries that see them ----------------------------

# Tiles are transposed: their rows are keys. The queries that see a key form an interval, like the keys of a
# query. Heads that share a key are summed in order, so that results are the same in every run.


class _KeyBlock(NamedTuple):
    """Data that the tiles of a block of keys and one head share."""

    key: Any
    value: Any
    query: Any  # addresses of the head
    gradient: Any  # gradient of the output
    mask: Any
    terms: Any  # addresses of all heads
    softcap: Any
    batch: Any
    head: Any
    keys: Any
    begin: Any  # the queries that see each key
    end: Any


class _KeySums(NamedTuple):
    """Gradients of the keys and values of a block so far."""

    key: Any
    value: Any


@triton.jit
def _add_queries(
    sums, block, n_queries, start, D: tl.constexpr, DV: tl.constexpr, BLOCK_M: tl.constexpr,
    PARTIAL: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """Add the queries of one more tile to the sums of ds q and p do."""
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
    terms = terms_of(block.terms, block.batch, block.head, rows, n_queries, 0)
    keys = block.keys[:, None]
    p, _, du = gradient_of_scores(products, dp, terms, block.softcap, keys, sight, PARTIAL)
    of_key, of_value = add_product(sums.key, (du * terms.scale).to(q.dtype), q, WIDEN), sums.value
    if block.gradient is not None:
        if PARTIAL:
            g, bad = clean(g)
            p = tl.where(sight.seen & bad[None, :], float("nan"), p)
        of_value = add_product(of_value, p.to(g.dtype), g, WIDEN)
    return _KeySums(of_key, of_value)


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
    sums = _KeySums(tl.zeros([BLOCK_N, PAD_D], tl.float32), tl.zeros([BLOCK_N, PAD_DV], tl.float32))
    for group in range(groups):
        head = kv_head * groups + group
        low, high = interval_of(first_row, past_row, batch, head, keys, n_keys, n_queries)
        q, g = rows_of_head(query, batch, head), rows_of_head(gradient, batch, head)
        pairs = pairs_of_head(mask, batch, head)
        block = _KeyBlock(k, v, q, g, pairs, terms, softcap, batch, head, keys, low, high)
        span = tiles_of(low, high, keys < n_keys, n_queries, BLOCK_M, mask is not None)
        for start in range(span.full, span.last, BLOCK_M):
            sums = _add_queries(sums, block, n_queries, start, D, DV, BLOCK_M, False, WIDEN)
        for i in range(count_partial(span, BLOCK_M)):
            start = next_start(span, i, BLOCK_M)
            sums = _add_queries(sums, block, n_queries, start, D, DV, BLOCK_M, True, WIDEN)
    store_rows(sums.key, rows_of_head(found_key, batch, kv_head), first, n_keys, D)
    if gradient is not None:
        store_rows(sums.value, rows_of_head(found_value, batch, kv_head), first, n_keys, DV)


# ---- a float mask: gradients of scores, summed over batch, heads and rows that share an entry --------


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
    numbers = terms_of(terms, batch, head, rows, n_queries, 1)
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
