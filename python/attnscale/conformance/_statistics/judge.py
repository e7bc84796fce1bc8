# SPDX-License-Identifier: BSD-3-Clause
"""Judgement of what an engine returns beside its output: each statistic is right, or its slip has a name."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ...exact.entropy_identity import identify_entropy
from ...exact.entropy_quantities import other_calls
from ...exact.lse import identify_lse
from .call import Judged, Kind, StatisticOutcome, difference, judged_call, rows_of
from .gradients import judge_gradients, judge_lse_gradients
from .pairs import judge_scores, judge_weights

if TYPE_CHECKING:
    from .._call import Case


def judge_statistics(
    case: Case, arrays: list[Any], given: Mapping[str, Any], allowed: float
) -> dict[str, StatisticOutcome]:
    """Outcomes of what an engine returned for a case, by name.

    Parameters
    ----------
    case : Case
        The call.
    arrays : list of ndarray
        Its query, key and value in float64.
    given : mapping of str to array or function
        Any of "lse", "entropy", "max_score", "n_visible", "weights", "scores", "gradients" (a function of the
        output's gradient that returns those of query, key and value), "lse_gradients" (a function of the
        gradient of lse that returns those of query and key). Other names, and None, are ignored.
    allowed : float
        The largest error of a right output.

    Returns
    -------
    dict of str to StatisticOutcome
        Empty for a case with NaN or an infinity. lse and entropy are left out where no row sees a key.
    """
    if not all(np.isfinite(x).all() for x in arrays):
        return {}
    call = judged_call(case.options, arrays, allowed)
    found = {}
    for name, judge in _JUDGES.items():
        if given.get(name) is None:
            continue
        outcome = _tried(name, judge, call, given)
        if outcome is not None:
            found[name] = outcome
    return found


def _tried(
    name: str, judge: Callable[..., StatisticOutcome | None], call: Judged, given: Mapping[str, Any]
) -> StatisticOutcome | None:
    """The outcome of one statistic; an error of the engine is one, and what it does not have is none."""
    try:
        return judge(call, given)
    except NotImplementedError:
        return None
    except Exception as error:  # a result that cannot be read, or the engine's own error
        said = f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
        return StatisticOutcome(name, "wrong", math.nan, said)


def _judge_lse(call: Judged, given: Mapping[str, Any]) -> StatisticOutcome | None:
    if not call.rows.n_visible.any():
        return None
    found = identify_lse(
        call.query, call.key, given["lse"], tolerance=max(2e-3, call.allowed), **call.options
    )
    error = float(found.error.max())
    if found.convention is not None:
        parts = f", as {found.parts}" if found.parts else ""
        rounded = f", rounded to {found.rounded}" if found.rounded else ""
        return StatisticOutcome("lse", "right", error, f"{found.convention}{parts}{rounded}")
    if found.parts:
        return StatisticOutcome("lse", "wrong", error, found.parts)
    return StatisticOutcome("lse", "wrong", error, f"no known convention; nearest: {found.nearest}")


def _judge_entropy(call: Judged, given: Mapping[str, Any]) -> StatisticOutcome | None:
    if not call.rows.n_visible.any():
        return None
    own = given.get("weights")
    own = None if own is None or np.shape(own) != call.rows.p.shape else own
    found = identify_entropy(
        call.query,
        call.key,
        given["entropy"],
        weights=own,
        tolerance=max(2e-3, call.allowed),
        **call.options,
    )
    error = float(found.error.max())
    if found.quantity is None:
        return StatisticOutcome("entropy", "wrong", error, f"no known quantity; nearest: {found.nearest}")
    kind: Kind = "right" if found.quantity.is_entropy else "wrong"
    return StatisticOutcome("entropy", kind, error, str(found.quantity))


def _judge_max_score(call: Judged, given: Mapping[str, Any]) -> StatisticOutcome:
    found = rows_of("max_score", given["max_score"], call)
    seen = call.rows.n_visible > 0
    return _first_that_fits("max_score", found, seen, call, _maxima(call))


def _maxima(call: Judged) -> Iterator[tuple[str, Any]]:
    """Largest scores of each row, the right ones first, and those of typical slips."""
    top = call.rows.max_score
    yield "", top
    yield "in base 2", top / math.log(2)
    yield "negated", -top
    scores = call.stages
    hidden = call.seen.sum(-1) < call.seen.shape[-1]
    yield "hidden keys count", scores["soft-capped, bias added"].max(-1, initial=-math.inf)
    yield "hidden keys count with score 0", np.where(hidden, np.maximum(top, 0), top)
    yield "never below 0", np.maximum(top, 0)
    if call.has_sink:
        yield "the sink counts", np.maximum(top, call.rows.sink_score)
    yield from ((says, other.rows.max_score) for says, other in _others(call))
    yield from ((f"of scores that are {stage}", _top(each, call.seen)) for stage, each in scores.items())


def _top(scores: Any, seen: Any) -> Any:
    return np.where(seen, scores, -np.inf).max(-1, initial=-np.inf)


def _judge_n_visible(call: Judged, given: Mapping[str, Any]) -> StatisticOutcome:
    found = rows_of("n_visible", given["n_visible"], call)
    return _first_that_fits("n_visible", found, np.ones(found.shape, bool), call, _counts(call))


def _counts(call: Judged) -> Iterator[tuple[str, Any]]:
    """Numbers of visible keys of each row, the right ones first, and those of typical slips."""
    count = call.rows.n_visible
    yield "", count
    yield from ((says, other.rows.n_visible) for says, other in _others(call))
    yield "all keys are counted", np.full(count.shape, call.seen.shape[-1])
    yield "hidden keys are counted", call.seen.shape[-1] - count
    yield "one too many", count + 1
    yield "one too few", count - 1


def _others(call: Judged) -> Iterator[tuple[str, Judged]]:
    """Calls that the engine may have made in place of this one."""
    for says, options in other_calls(call.query.shape[-1], call.options):
        try:
            yield says, judged_call(options, call.arrays, call.allowed)
        except (TypeError, ValueError):
            continue


def _first_that_fits(
    name: str, found: Any, counts: Any, call: Judged, known: Iterator[tuple[str, Any]]
) -> StatisticOutcome:
    """The outcome by the first of the known rows that fits; the first of all is right."""
    error = math.nan
    for says, rows in known:
        off = difference(found[counts], np.broadcast_to(rows, found.shape)[counts])
        error = off if says == "" else error
        if off <= call.allowed:
            return StatisticOutcome(name, "wrong" if says else "right", error, says)
    return StatisticOutcome(name, "wrong", error, "not explained")


_JUDGES: dict[str, Callable[..., StatisticOutcome | None]] = {
    "lse": _judge_lse,
    "entropy": _judge_entropy,
    "max_score": _judge_max_score,
    "n_visible": _judge_n_visible,
    "weights": judge_weights,
    "scores": judge_scores,
    "gradients": judge_gradients,
    "lse_gradients": judge_lse_gradients,
}
