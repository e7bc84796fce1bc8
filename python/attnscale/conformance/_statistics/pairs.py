# SPDX-License-Identifier: BSD-3-Clause
"""Judgement of matrices that an engine returns: its weights, and its scores before the softmax."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ... import reference
from ...exact.entropy_quantities import other_calls
from ...exact.lse import read_numbers
from .call import Judged, StatisticOutcome, difference

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Pairs = NDArray[np.float64]


def judge_weights(call: Judged, given: Mapping[str, Any]) -> StatisticOutcome:
    """The outcome of weights, (..., heads, n_queries, n_keys)."""
    found, p = read_numbers("weights", given["weights"]).astype(np.float64), call.rows.p
    placed = _placed(found, p, call)
    if isinstance(placed, str):
        return StatisticOutcome("weights", "wrong", math.nan, placed)
    has_keys = call.rows.n_visible > 0
    error = difference(found[has_keys], p[has_keys])
    if error > call.allowed:
        says = next(_slips_of_weights(found, call, has_keys), "not explained")
        return StatisticOutcome("weights", "wrong", error, says)
    error = difference(found, p)
    if error > call.allowed:
        kept = found[~has_keys]
        held = "NaN" if np.isnan(kept).all() else f"weights that sum to {kept.sum(-1).max():.3g}"
        return StatisticOutcome("weights", "wrong", error, f"rows without keys hold {held}, not 0")
    return StatisticOutcome("weights", "right", error, "")


def _placed(found: Pairs, p: Pairs, call: Judged) -> Pairs | str:
    """The weights if their axes are those of the call, else what is wrong with them."""

    def fits(truth: Pairs) -> bool:
        return found.shape == truth.shape and difference(found, truth) <= call.allowed

    if fits(p):
        return found
    if fits(p.swapaxes(-1, -2)):
        return "queries and keys are exchanged"
    if p.ndim > 2 and fits(p.swapaxes(-2, -3)):
        return "heads and queries are exchanged"
    if p.ndim > 2 and fits(p.mean(-3)):
        return "averaged over heads"
    if found.shape == (*p.shape[:-1], p.shape[-1] + 1):
        for at, says in ((slice(0, -1), "last"), (slice(1, None), "first")):
            if difference(found[..., at], p) <= call.allowed:
                return f"another column, the {says}"
    return found if found.shape == p.shape else f"shape {found.shape} in place of {p.shape}"


def _slips_of_weights(found: Pairs, call: Judged, rows: NDArray[np.bool_]) -> Iterator[str]:
    """Name of the slip that explains the weights of the rows that have keys."""
    p, seen = call.rows.p, call.seen

    def fits(truth: Pairs) -> bool:
        return difference(found[rows], truth[rows]) <= call.allowed

    rate = _dropped(found[rows], p[rows], call.allowed)
    if rate:
        yield f"after dropout of {rate:.2g}"
    scores = np.where(seen, call.stages["soft-capped, bias added"], -np.inf)
    with np.errstate(all="ignore"):
        if fits(np.log(p)):
            yield "logarithms of the weights"
        for says, each in (
            ("exp(score - max)", scores - call.rows.max_score[..., None]),
            ("exp(score)", scores),
        ):
            if fits(np.exp(each)):
                yield f"{says}, not divided by the sum"
    for says, options in other_calls(call.query.shape[-1], call.options):
        try:
            other = reference.attention_statistics(call.query, call.key, **options).p
        except (TypeError, ValueError):
            continue
        if other.shape == p.shape and fits(other):
            yield says
    hidden = np.abs(np.where(seen, 0, found))[rows].max(initial=0)
    if hidden > call.allowed:
        yield f"hidden keys keep weight, up to {hidden:.2g}"
    elif np.isnan(found[rows]).any():
        yield "NaN"
    else:
        sums, own = found.sum(-1)[rows], p.sum(-1)[rows]
        if difference(sums, own) > call.allowed:
            wanted = "less the sink's weight" if call.has_sink else "1"
            yield f"rows sum to {sums.min():.3g} to {sums.max():.3g}, not {wanted}"


def _dropped(found: Pairs, p: Pairs, allowed: float) -> float:
    """The rate of dropout if each weight is 0 or one multiple of what it was, and some are 0; else 0."""
    counts = p > 4 * allowed
    ratios = found[counts] / p[counts]
    kept = ratios[ratios != 0]
    if kept.size in (0, ratios.size):
        return 0.0
    factor = float(np.median(kept))
    off = np.abs(found - np.where(found == 0, 0, factor * p)).max()
    return 1 - 1 / factor if factor > 1 and off <= 2 * factor * allowed else 0.0


#: Stages in the order of computation; the first that fits is named.
_STAGES = (
    *("query . key", "scaled", "soft-capped", "scaled, bias added"),
    *("bias added, soft-capped", "soft-capped, bias added"),
)


def judge_scores(call: Judged, given: Mapping[str, Any]) -> StatisticOutcome:
    """The outcome of scores, (..., heads, n_queries, n_keys): their stage, and what hidden keys hold."""
    found, p = read_numbers("scores", given["scores"]).astype(np.float64), call.rows.p
    if found.shape != p.shape:
        if found.shape == p.swapaxes(-1, -2).shape:
            found = found.swapaxes(-1, -2)
        else:
            said = f"shape {found.shape} in place of {p.shape}"
            return StatisticOutcome("scores", "wrong", math.nan, said)
    seen = call.seen
    error = math.inf
    for stage in _STAGES:
        scores = call.stages[stage]
        off = difference(found[seen], scores[seen])
        error = min(error, off)
        if off <= call.allowed:
            return StatisticOutcome("scores", "right", off, stage + _held_by_hidden(found, scores, seen))
    if difference(found, p) <= call.allowed:
        return StatisticOutcome("scores", "right", 0.0, "weights")
    for unit, factor in (("in base 2", 1 / math.log(2)), ("negated", -1.0)):
        for stage in _STAGES:
            if difference(found[seen], call.stages[stage][seen] * factor) <= call.allowed:
                return StatisticOutcome("scores", "wrong", error, f"{stage}, {unit}")
    return StatisticOutcome("scores", "wrong", error, "not explained")


def _held_by_hidden(found: Pairs, scores: Pairs, seen: NDArray[np.bool_]) -> str:
    """Words for the scores of hidden keys, which follow the stage."""
    held, own = found[~seen], scores[~seen]
    if not held.size:
        return ""
    close = np.abs(held - own) <= 1e-2 * (1 + np.abs(own))
    with np.errstate(invalid="ignore"):
        added = held - own
    if close.all():
        return "; hidden keys hold their own score"
    kinds = {
        "-inf": np.isneginf(held),
        "NaN": np.isnan(held),
        "0": held == 0,
        "the lowest number": held < -1e30,
        "-65504, the lowest of float16": np.isfinite(held) & (np.abs(held + 65504) < 64),
        "their score with a large negative number added": added < -1000,
        "their own score": close,
    }
    left, said = np.ones(held.shape, bool), []
    for kind, holds in kinds.items():
        if (left & holds).any():
            said.append(kind)
            left &= ~holds
    said += ["other numbers"] * bool(left.any())
    return f"; hidden keys hold {' or '.join(said)}"
