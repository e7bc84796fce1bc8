# SPDX-License-Identifier: BSD-3-Clause
"""Forward pass of a block of queries: all visible keys, tile by tile, and every statistic at once.

A score is `unit` times a raw number, per row: the product of query and key if only a scale makes the score,
and the score itself with a soft-cap or a bias. With t the largest raw number so far, d = raw - t and
w = exp(unit d), the sums over keys are

    total = sum w, first = sum w d, second = sum w d^2, squares = sum w^2, weighted = sum w v,

and lse = unit t + ln total, entropy = ln total - unit first / total. Subtracting before multiplying by the
unit makes the largest weight exactly 1 however large the scores are.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from ._tiles import (
    HIDDEN,
    LOG2E,
    add_product,
    added_by,
    cap,
    clean,
    count_partial,
    has_bias,
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
    two_sum,
)


class Found(NamedTuple):
    """Addresses of results, each of (batch, heads, n_queries); None: not requested."""

    output: Any = None  # StridedRows
    lse: Any = None
    entropy: Any = None
    max_score: Any = None
    mean_score: Any = None
    score_variance: Any = None
    concentration: Any = None
    argmax: Any = None
    n_visible: Any = None


class Block(NamedTuple):
    """Data that the tiles of a block of queries share."""

    query: Any
    rows: Any
    begin: Any
    end: Any
    factor: Any  # the scale of each row, if the raw numbers are scores
    unit: Any  # times log2(e)
    softcap: Any
    key: Any  # addresses of the head
    value: Any
    mask: Any


class Tile(NamedTuple):
    """Weights of a tile and their inputs, and the largest raw number so far with its key."""

    weight: Any
    difference: Any
    seen: Any
    top: Any
    at: Any


class Sums(NamedTuple):
    """Sums over the keys so far; those not requested stay 0."""

    top: Any
    at: Any
    total: Any
    total_low: Any  # rounding error of the sum of tiles
    first: Any
    first_low: Any
    second: Any
    squares: Any
    n_seen: Any
    weighted: Any  # values


@triton.jit
def _raw_numbers(
    block, n_keys, start, D: tl.constexpr, BLOCK_N: tl.constexpr, PARTIAL: tl.constexpr, WIDEN: tl.constexpr
):
    """Raw numbers of a tile, HIDDEN at invisible keys, and which pairs are visible."""
    key = load_rows(block.key, start, n_keys, D, block.query.shape[1], BLOCK_N, not PARTIAL)
    raw = product(block.query, tl.trans(key), WIDEN)
    if block.factor is not None:
        raw = raw * block.factor[:, None]
    if block.softcap is not None:
        raw = cap(raw, block.softcap).score
    seen = block.rows[:, None] >= 0
    if PARTIAL:
        keys = (start + tl.arange(0, BLOCK_N))[None, :]
        seen = (keys >= block.begin[:, None]) & (keys < block.end[:, None])
        if block.mask is not None:
            mask = load_mask(block.mask, block.rows[:, None], keys, seen)
            seen = seen & shows(mask)
            if mask.dtype.is_floating():
                raw = raw + added_by(mask)
        raw = tl.where(seen, raw, HIDDEN)
    return raw, seen


@triton.jit
def _add_tile(
    sums, block, found, n_keys, start, D: tl.constexpr, DV: tl.constexpr, BLOCK_N: tl.constexpr,
    PARTIAL: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """Add the keys of one more tile to the sums."""
    raw, seen = _raw_numbers(block, n_keys, start, D, BLOCK_N, PARTIAL, WIDEN)
    at, largest = sums.at, tl.max(raw, 1)
    if found.argmax is not None:
        index = start + tl.argmax(raw, 1, tie_break_left=True)
        at = tl.where((largest > sums.top) | ((largest == sums.top) & (index < at)), index, at)
    top = tl.maximum(sums.top, largest)
    base = tl.where(top <= HIDDEN, 0.0, top)  # 0 for a row that has seen no key yet
    d = raw - base[:, None]
    w = tl.exp2(d * block.unit[:, None])
    if found.entropy is None and found.mean_score is None and found.score_variance is None:
        w = w + 0.0 * d  # NaN where the score is -inf and the key is visible
    if PARTIAL:
        w = tl.where(seen, w, 0.0)
    fall = tl.where(sums.top <= HIDDEN, 0.0, sums.top - base)
    moved = _moved(sums, found, fall, tl.exp2(fall * block.unit))
    tile = Tile(w, d, seen, top, at)
    return _summed(moved, block, found, tile, n_keys, start, DV, BLOCK_N, PARTIAL, WIDEN)


@triton.jit
def _moved(sums, found, fall, a):
    """Sums relative to another reference: `fall` is the old one minus the new, and a its weight."""
    second, first, first_low, squares = sums.second, sums.first, sums.first_low, sums.squares
    if found.score_variance is not None:
        second = a * (second + fall * (2.0 * first + fall * sums.total))
    if found.entropy is not None or found.mean_score is not None or found.score_variance is not None:
        first, first_low = a * (first + fall * sums.total), a * (first_low + fall * sums.total_low)
    if found.concentration is not None:
        squares = a * a * squares
    weighted = sums.weighted
    if found.output is not None:
        weighted = weighted * a[:, None]
    total, total_low = a * sums.total, a * sums.total_low
    return Sums(sums.top, sums.at, total, total_low, first, first_low, second, squares, sums.n_seen, weighted)


@triton.jit
def _summed(
    sums, block, found, tile, n_keys, start, DV: tl.constexpr, BLOCK_N: tl.constexpr, PARTIAL: tl.constexpr,
    WIDEN: tl.constexpr,
):  # fmt: skip
    """Add those of a tile to the sums."""
    w, d = tile.weight, tile.difference
    total, total_low = two_sum(sums.total, sums.total_low, tl.sum(w, 1))
    first, first_low, second, squares = sums.first, sums.first_low, sums.second, sums.squares
    if found.entropy is not None or found.mean_score is not None or found.score_variance is not None:
        first, first_low = two_sum(first, first_low, tl.sum(w * d, 1))
    if found.score_variance is not None:
        second = second + tl.sum(w * d * d, 1)
    if found.concentration is not None:
        squares = squares + tl.sum(w * w, 1)
    n_seen, weighted = sums.n_seen, sums.weighted
    if found.n_visible is not None:
        n_seen = n_seen + tl.sum(tile.seen.to(tl.int32), 1)
    if found.output is not None:
        value = load_rows(block.value, start, n_keys, DV, weighted.shape[1], BLOCK_N, not PARTIAL)
        if PARTIAL:
            value, bad = clean(value)
            w = tl.where(tile.seen & bad[None, :], float("nan"), w)
        weighted = add_product(weighted, w.to(value.dtype), value, WIDEN)
    return Sums(tile.top, tile.at, total, total_low, first, first_low, second, squares, n_seen, weighted)


@triton.jit
def _finished(sums, unit, sink):
    """Sums relative to a score in natural units, total and first rounded once, with the sink included."""
    empty = sums.top <= HIDDEN
    top = tl.where(empty, float("-inf"), sums.top * unit)
    total, first = sums.total + sums.total_low, (sums.first + sums.first_low) * unit
    second, squares, weighted = sums.second * unit * unit, sums.squares, sums.weighted
    if sink is not None:
        base = tl.maximum(top, sink)
        fall, shift = tl.where(empty, 0.0, top - base), sink - base
        a, w = tl.exp(fall), tl.exp(shift)
        second = a * (second + fall * (2.0 * first + fall * total)) + w * shift * shift
        first = a * (first + fall * total) + w * shift
        total, squares = a * total + w, a * a * squares + w * w
        weighted = weighted * a[:, None]
        top = base
    return Sums(top, sums.at, total, 0.0, first, 0.0, second, squares, sums.n_seen, weighted)


@triton.jit
def _store(sums, found, largest, batch, head, heads, first, n, DV: tl.constexpr):
    """Store the requested results. A row that sees a score that is not finite is NaN."""
    BLOCK_M: tl.constexpr = largest.shape[0]
    index, rows = batch * heads + head, first + tl.arange(0, BLOCK_M)
    none = sums.total == 0.0
    total = tl.where(none, 1.0, sums.total)
    broken = 0.0 * (sums.total + sums.first)
    base = tl.where(none, 0.0, sums.top) + broken
    log, shift = tl.log(total), sums.first / total
    store_vector(found.lse, index, rows, n, tl.where(none, float("-inf"), base + log))
    store_vector(found.entropy, index, rows, n, log - shift + broken)
    store_vector(found.max_score, index, rows, n, largest + broken)
    store_vector(found.mean_score, index, rows, n, base + shift)
    variance = sums.second / total - shift * shift + broken
    store_vector(found.score_variance, index, rows, n, tl.where(variance < 0.0, 0.0, variance))
    store_vector(found.concentration, index, rows, n, sums.squares / (total * total) + broken)
    store_vector(found.argmax, index, rows, n, tl.where(largest == float("-inf"), -1, sums.at))
    store_vector(found.n_visible, index, rows, n, sums.n_seen)
    if found.output is not None:
        output = sums.weighted / total[:, None] + broken[:, None]
        store_rows(output, rows_of_head(found.output, batch, head), first, n, DV)


@triton.jit
def attend_rows(
    query, key, value, scale, begin, end, mask, sink, found, n_queries, n_keys, heads, groups, softcap,
    D: tl.constexpr, PAD_D: tl.constexpr, DV: tl.constexpr, PAD_DV: tl.constexpr, LENGTH: tl.constexpr,
    WIDEN: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Output and statistics of BLOCK_M queries of a head."""
    blocks = tl.cdiv(n_queries, BLOCK_M)
    index = tl.program_id(0) // blocks
    batch, head = index // heads, index % heads
    first = (blocks - 1 - tl.program_id(0) % blocks) * BLOCK_M  # causal: the longest rows first
    rows = first + tl.arange(0, BLOCK_M)
    low, high = interval_of(begin, end, batch, head, rows, n_queries, n_keys)
    q = load_rows(rows_of_head(query, batch, head), first, n_queries, D, PAD_D, BLOCK_M, False)
    factor = load_vector(scale, batch, head, rows, n_queries, 0.0).to(tl.float32)
    unit = tl.full([BLOCK_M], 1.0, tl.float32)
    if softcap is None and not has_bias(mask):
        turned = tl.where((factor < 0.0)[:, None], -q, q)
        q = tl.where((factor == 0.0)[:, None], q - q, turned)  # equal scores are equal numbers
        unit, factor = tl.abs(factor), None
    k, v = rows_of_head(key, batch, head // groups), rows_of_head(value, batch, head // groups)
    pairs = pairs_of_head(mask, batch, head)
    block = Block(q, rows, low, high, factor, unit * LOG2E, softcap, k, v, pairs)
    zero, none = tl.zeros([BLOCK_M], tl.float32), tl.zeros([BLOCK_M], tl.int32)
    weighted = tl.zeros([BLOCK_M, PAD_DV], tl.float32)
    sums = Sums(zero + HIDDEN, none + n_keys, zero, zero, zero, zero, zero, zero, none, weighted)
    span = tiles_of(low, high, rows < n_queries, n_keys, BLOCK_N, mask is not None)
    for start in range(span.full, span.last, BLOCK_N):
        sums = _add_tile(sums, block, found, n_keys, start, D, DV, BLOCK_N, False, WIDEN)
    for i in range(count_partial(span, BLOCK_N)):
        start = next_start(span, i, BLOCK_N)
        sums = _add_tile(sums, block, found, n_keys, start, D, DV, BLOCK_N, True, WIDEN)
    largest = tl.where(sums.top <= HIDDEN, float("-inf"), sums.top * unit)
    if sink is not None:
        sink = load_vector(sink, batch, head, rows, n_queries, 0.0).to(tl.float32)
    _store(_finished(sums, unit, sink), found, largest, batch, head, heads, first, n_queries, DV)
