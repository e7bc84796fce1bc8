# SPDX-License-Identifier: BSD-3-Clause
"""Outcomes of an engine's answers: right, wrong, and by which slips."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ._ask import Asked
from ._draft import Predicted
from ._explain import drafted, explain, prediction
from ._report import Kind, Outcome
from ._rows import BESIDE, CAST, emptied_by, empty_rows, not_numbers, weights_sum
from ._slips import Slip
from ._turn import Turn, difference

#: Largest errors of an engine that computes in a narrower type.
_NARROWER = {"bfloat16": 3e-2, "float16": 2e-3, "float32": 5e-5}
#: Name of an answer to another call, or to an earlier one.
REPEATED = "an earlier answer is repeated"
#: Share of the answers that are off by a rounding, if all numbers are rounded.
_MOST = 0.5


def outcomes(asked: Sequence[Asked]) -> dict[str, Outcome]:
    """The outcome of each case."""
    judged = {each.name: _judged(each) for each in asked if each.turns}
    together, slips = explain(list(judged.values()))
    predicted = {name: _predicted(turn, slips.get(name, together)) for name, turn in judged.items()}
    names = {name: _shown(turn, predicted[name], slips.get(name, together)) for name, turn in judged.items()}
    if any(turn.is_finite and not turn.is_right and not names[name] for name, turn in judged.items()):
        names = {name: [x for x in of if x != BESIDE] for name, of in names.items()}
    _name_rows(judged, predicted, names)
    _name_repeats(judged, names)
    _name_the_rest(judged, names)
    return {each.name: _outcome(each, judged.get(each.name), names.get(each.name, [])) for each in asked}


def _judged(asked: Asked) -> Turn:
    """The turn that is judged: the first, or the second where only that is wrong and is no repetition."""
    first, *rest = asked.turns
    if first.is_right and rest and not rest[0].is_right:
        if rest[0].fits(first.truth):
            asked.faults.append(REPEATED)
            return first
        return rest[0]
    return first


def _predicted(turn: Turn, slips: tuple[Slip, ...]) -> Predicted:
    return (prediction(drafted(slips, turn)) or turn.truth) if slips else turn.truth


def _shown(turn: Turn, predicted: Predicted, slips: tuple[Slip, ...]) -> list[str]:
    """Names of the slips that show in a wrong answer, and how NaN and infinities go beside them."""
    if turn.is_right:
        return []
    beside = "" if turn.is_finite or turn.fits(predicted) else not_numbers(turn, predicted)
    if not slips:
        return [beside] if beside else []
    alone = {slip.says: _predicted(turn, tuple(x for x in slips if x is not slip)) for slip in slips}
    shown = [name for name, rest in alone.items() if not _is_alike(turn, predicted, rest)]
    return [*shown, beside] if beside else shown


def _is_alike(turn: Turn, one: Predicted, other: Predicted) -> bool:
    """Whether two predictions agree, and have the same rows without keys."""
    return np.array_equal(one.empty, other.empty) and difference(one.output, other, turn.mass) <= turn.allowed


def _name_rows(judged: dict[str, Turn], predicted: dict[str, Predicted], names: dict[str, list[str]]) -> None:
    """Name what rows without keys hold, and by which option they are empty where it makes a difference."""
    held = {
        name: empty_rows(turn, drafted((), turn), predicted[name])
        for name, turn in judged.items()
        if turn.truth.empty.any() and turn.is_finite
    }
    # Numbers tell nothing where the rows with keys are not explained either.
    told = ("numbers", "0 and numbers, mixed")
    held = {name: x for name, x in held.items() if judged[name].is_right or names[name] or x not in told}
    contents = {content for name, content in held.items() if judged[name].case.key[-2] and content != CAST}
    for name, content in held.items():
        if content == CAST:
            lowest = np.asarray(judged[name].case.options["attn_mask"]).dtype
            names[name].append(f"the lowest {lowest} of a mask is a number after the cast")
        elif content:
            by = "" if len(contents) == 1 else f" by {emptied_by(judged[name])}"
            names[name].append(f"rows without keys{by} hold {content}, not 0")


def _name_repeats(judged: dict[str, Turn], names: dict[str, list[str]]) -> None:
    """Name answers that are those to another call of the same shape."""
    others = list(judged.values())
    for name, turn in judged.items():
        if turn.is_right or names[name]:
            continue
        same = (x for x in others if x is not turn and x.found.shape == turn.found.shape and x.is_finite)
        # One number throughout, such as 0 or 1, is no repetition.
        same = (x for x in same if np.ptp(x.truth.output) > x.allowed)
        if any(turn.fits(x.truth) for x in same):
            names[name].append(REPEATED)


def _name_the_rest(judged: dict[str, Turn], names: dict[str, list[str]]) -> None:
    """Name NaN, sums of weights, roundings and neighbours of empty rows, where no slip explains an answer."""
    left = {name: turn for name, turn in judged.items() if not turn.is_right and not names[name]}
    unexplained = any(turn.is_finite for turn in left.values())
    for name, turn in left.items():
        total = weights_sum(turn)
        why = not_numbers(turn, turn.truth)
        why = "" if why == BESIDE and unexplained else why
        if not why and total is not None and abs(total - 1) > turn.allowed:
            why = f"the weights of a row sum to {total:.6g}, not 1"
        names[name] += [why] if why else []
    left = {name: turn for name, turn in left.items() if not names[name]}
    for name, turn in left.items():
        names[name] += _rounding(turn, judged) or _beside_empty(turn, judged, left)


def _rounding(turn: Turn, judged: dict[str, Turn]) -> list[str]:
    """The narrower type whose roundings nearly all answers have."""
    inside = [each for each in judged.values() if each.is_finite and not each.is_right]
    for narrower, allowed in _NARROWER.items():
        if narrower == turn.dtype or allowed <= turn.allowed:
            continue
        near = [each for each in inside if each.difference <= allowed]
        if len(near) >= _MOST * len(judged) and turn.difference <= allowed:
            smaller = [x for x in _NARROWER.values() if turn.allowed < x < allowed]
            if not smaller or max(each.difference for each in near) > max(smaller):
                return [f"errors as of {narrower}"]
    return []


def _beside_empty(turn: Turn, judged: dict[str, Turn], left: dict[str, Turn]) -> list[str]:
    """A name if what is left has rows without keys, as has little of what is right."""
    has = [name for name, each in judged.items() if each.is_finite and each.truth.empty.any()]
    has = [name for name in has if not judged[name].truth.empty.all()]
    wrong = [name for name in has if not judged[name].is_right]
    if all(each.truth.empty.any() for each in left.values()) and len(wrong) >= _MOST * len(has):
        return ["rows beside a row without keys are wrong"]
    return []


def _outcome(asked: Asked, turn: Turn | None, names: list[str]) -> Outcome:
    if asked.not_served is not None and not asked.turns:
        return Outcome("not served", why=asked.not_served)
    if asked.error:
        return Outcome("error", why=asked.error)
    faults = list(dict.fromkeys(asked.faults))
    if asked.shape:
        return Outcome("wrong", math.nan, tuple(faults), " and ".join([asked.shape, *faults]))
    assert turn is not None
    every = [*names, *faults]
    is_wrong = bool(every) or not turn.is_right
    kind: Kind = "wrong" if is_wrong else "right"
    worst = max(each.difference for each in asked.turns)
    if any(name.startswith(("rows without keys", "the lowest")) for name in names):
        worst = max(worst, _row_error(turn))
    lse = (asked.lse or (), asked.lse == ())
    return Outcome(kind, worst, tuple(every), " and ".join(every), *lse, asked.statistics)


def _row_error(turn: Turn) -> float:
    """The largest number in a row without keys."""
    rows = turn.found[turn.truth.empty]
    return math.inf if not np.isfinite(rows).all() else float(np.abs(rows).max(initial=0))
