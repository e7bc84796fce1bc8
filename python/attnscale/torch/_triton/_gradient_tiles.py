# SPDX-License-Identifier: BSD-3-Clause
"""The gradient of the scores of one tile, which the kernels of the backward pass compute again.

With p the weights, x = ln p = score - lse, and g the gradient of each result, a score's gradient is

    ds = p (do . v + constant + slope x + curve x^2 + share p) + peak at the key of the largest score.

Every statistic adds to the numbers of its row alone, see `_row_terms.py`: entropy costs two numbers a row.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from ._tiles import LN2, LOG2E, added_by, cap, load_mask, load_vector, shows


class Terms(NamedTuple):
    """Numbers of rows of (batch, heads, n_queries); None for curve: no statistic needs the last four."""

    scale: Any
    lse: Any
    constant: Any
    slope: Any
    curve: Any = None
    share: Any = None
    peak: Any = None
    argmax: Any = None


class Sight(NamedTuple):
    """Which pairs of a tile are seen, and what a float mask adds to their scores; None: nothing."""

    seen: Any
    added: Any


@triton.jit
def terms_of(terms, batch, head, rows, n):
    """The numbers of a block of rows, for x in base 2."""
    scale = load_vector(terms.scale, batch, head, rows, n, 0.0).to(tl.float32)
    lse = load_vector(terms.lse, batch, head, rows, n, 0.0) * LOG2E
    constant = load_vector(terms.constant, batch, head, rows, n, 0.0)
    slope = load_vector(terms.slope, batch, head, rows, n, 0.0) * LN2
    curve, share, peak, argmax = None, None, None, None
    if terms.curve is not None:
        curve = load_vector(terms.curve, batch, head, rows, n, 0.0) * (LN2 * LN2)
        share = load_vector(terms.share, batch, head, rows, n, 0.0)
        peak = load_vector(terms.peak, batch, head, rows, n, 0.0)
        argmax = load_vector(terms.argmax, batch, head, rows, n, -1).to(tl.int32)
    return Terms(scale, lse, constant, slope, curve, share, peak, argmax)


@triton.jit
def terms_along(x):
    """The numbers as a column: rows of a tile are queries."""
    curve, share, peak, argmax = None, None, None, None
    if x.curve is not None:
        curve, share = x.curve[:, None], x.share[:, None]
        peak, argmax = x.peak[:, None], x.argmax[:, None]
    return Terms(
        x.scale[:, None], x.lse[:, None], x.constant[:, None], x.slope[:, None], curve, share, peak, argmax
    )


@triton.jit
def terms_across(x):
    """The numbers as a row: columns of a tile are queries."""
    curve, share, peak, argmax = None, None, None, None
    if x.curve is not None:
        curve, share = x.curve[None, :], x.share[None, :]
        peak, argmax = x.peak[None, :], x.argmax[None, :]
    return Terms(
        x.scale[None, :], x.lse[None, :], x.constant[None, :], x.slope[None, :], curve, share, peak, argmax
    )


@triton.jit
def seen_of(inside, mask, rows, keys):
    """Which pairs are seen, of those inside of the intervals, and what a float mask adds to their scores."""
    added = None
    if mask is not None:
        values = load_mask(mask, rows, keys, inside)
        inside = inside & shows(values)
        if values.dtype.is_floating():
            added = added_by(values)
    return Sight(inside, added)


@triton.jit
def gradient_of_scores(products, dp, terms, softcap, keys, sight, PARTIAL: tl.constexpr):
    """The weights, the gradients of the scores, and those of the scaled products."""
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
