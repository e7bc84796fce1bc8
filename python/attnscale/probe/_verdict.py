# SPDX-License-Identifier: BSD-3-Clause
"""Verdicts on the numbers of a checkpoint, and the names of slips that explain them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from ..audit._angles import least_turn
from ..audit._slips import NO_FACTOR, UNSCALED, WHOLE_HEAD
from ._measure import Angle, Measured, kind_of_self

AS_ASKED, WRONG, UNRESOLVED = "as asked", "wrong", "not resolved"
#: Standard errors beyond which a number is wrong, and smallest relative error that counts.
_FAR, _LEAST = 6.0, 2e-4
#: Relative error of a multiplier that tells no slip from another.
_VAGUE = 0.03
_LEAST_ANGLE = 1e-6  # rad


class Row(NamedTuple):
    """One line of a reading.

    Attributes
    ----------
    what : str
    asked, answered : float or None
        None for a number that there is not, or that is not resolved.
    error : float or None
        The standard error of the answered number.
    verdict : {"as asked", "wrong", "not resolved"}
    slip : str
        The name of the slip that explains a wrong number, if one does.
    """

    what: str
    asked: float | None
    answered: float | None
    error: float | None
    verdict: str
    slip: str = ""


def judge(expected: Mapping[str, Any], seen: Measured) -> tuple[list[Row], list[str]]:
    """The lines of a checkpoint, and the slips of its engine."""
    scores, score_slip = _scores(expected, seen)
    angles, angle_slip = _angles(expected, seen)
    rows = [*scores, *angles, *_temperatures(expected, seen), *_others(expected, seen)]
    joined = _joined(expected, score_slip, angle_slip)
    rows = [
        row._replace(slip=joined) if row.slip in (score_slip, angle_slip) and row.slip else row
        for row in rows
    ]
    slips = list(dict.fromkeys(row.slip for row in rows if row.verdict == WRONG and row.slip))
    return rows, slips


def _joined(expected: Mapping[str, Any], score: str, angle: str) -> str:
    """One name for what happened to the multiplier and to the angles."""
    scaling = expected["scaling"] or "scaling"
    has_factor = any(slip["name"] == NO_FACTOR for slip in expected["score_slips"])
    if angle == UNSCALED and (score == NO_FACTOR or (not score and not has_factor)):
        return f"{scaling} dropped"
    if angle == UNSCALED and not score:
        return "score multiplied, frequencies not scaled"
    if score == NO_FACTOR and not angle and expected["angle_slips"].get(UNSCALED):
        return "frequencies scaled, score not multiplied"
    return ", ".join(dict.fromkeys(each for each in (score, angle) if each))


# ---------------------------------------------------------------- the multiplier


def _scores(expected: Mapping[str, Any], seen: Measured) -> tuple[list[Row], str]:
    """The multipliers; a slip must explain those of all channels."""
    rows = []
    for kind, asked in expected["multiplier"].items():
        name = f"scale, {kind} channels"
        if kind not in seen.multipliers:
            if _was_asked(expected, "self 0" if kind == kind_of_self(expected) else "plain"):
                rows.append(Row(name, asked, None, None, UNRESOLVED))
            continue
        answered, error = seen.multipliers[kind], seen.spread[kind]
        if error > _VAGUE:
            rows.append(Row(name, asked, None, error * abs(answered), UNRESOLVED))
            continue
        right = _near(answered, asked, error)
        rows.append(Row(name, asked, answered, error * abs(answered), AS_ASKED if right else WRONG))
    if all(row.verdict != WRONG for row in rows):
        return rows, ""
    slip = _nearest(expected, seen)
    return [row._replace(slip=slip) if row.verdict == WRONG else row for row in rows], slip


def _nearest(expected: Mapping[str, Any], seen: Measured) -> str:
    best = (math.inf, "a multiplier that no known slip gives")
    for slip in expected["score_slips"]:
        gaps = [
            _gap(seen.multipliers[kind], slip[kind], seen.spread[kind])
            for kind in expected["multiplier"]
            if kind in seen.multipliers
        ]
        if max(gaps) <= _FAR:
            best = min(best, (round(max(gaps)), slip["name"]), key=lambda each: each[0])
    return best[1]


def _gap(answered: float, asked: float, error: float) -> float:
    """Difference of two positive numbers in standard errors."""
    if answered <= 0 or asked <= 0:
        return math.inf
    return abs(math.log(answered / asked)) / max(error, _LEAST / _FAR)


def _near(answered: float, asked: float, error: float) -> bool:
    return _gap(answered, asked, error) <= _FAR


def _was_asked(expected: Mapping[str, Any], prompt: str) -> bool:
    return prompt in expected["prompts"]


# ---------------------------------------------------------------- the angles


def _angles(expected: Mapping[str, Any], seen: Measured) -> tuple[list[Row], str]:
    """The angles of all pairs; a slip must explain all that are resolved."""
    pairs = expected["pairs"]
    asked = [pair["asked"] for pair in pairs]
    rows = (
        [_angle_row(pair, seen.angles.get(number)) for number, pair in enumerate(pairs)]
        if _was_asked(expected, "cos 0")
        else []
    )
    if all(row.verdict != WRONG for row in rows):
        return rows, ""
    fits = []
    for name, angles in expected["angle_slips"].items():
        worst = _misfit(pairs, angles, seen)
        if worst <= _FAR:
            fits.append((worst, name))
    slip = min(fits)[1] if fits else _pairing(expected, asked, seen)
    return [row._replace(slip=slip) if row.verdict == WRONG else row for row in rows], slip


def _angle_row(pair: Mapping[str, Any], angle: Angle | None) -> Row:
    what = f"pair {pair['number']}, rad a word"
    if angle is None:
        return Row(what, pair["asked"], None, None, UNRESOLVED)
    error = max(angle.error, _LEAST_ANGLE)
    gap = least_turn(angle.value - pair["asked"] * pair["distance"])
    told = error * _FAR < max(pair["unscaled"] * pair["distance"], abs(gap))
    if not told:
        return Row(what, pair["asked"], None, error / pair["distance"], UNRESOLVED)
    answered = pair["asked"] + gap / pair["distance"]
    right = abs(gap) <= _FAR * error
    return Row(what, pair["asked"], answered, error / pair["distance"], AS_ASKED if right else WRONG)


def _misfit(pairs: list[Mapping[str, Any]], angles: list[float], seen: Measured) -> float:
    """The largest difference from these angles, in standard errors."""
    gaps = [
        abs(least_turn(angle.value - angles[number] * pairs[number]["distance"]))
        / max(angle.error, _LEAST_ANGLE)
        for number, angle in seen.angles.items()
    ]
    return max(gaps, default=math.inf)


def _pairing(expected: Mapping[str, Any], asked: list[float], seen: Measured) -> str:
    """The slip of channels that are paired otherwise: queries of the sine meet no key."""
    distances = [pair["distance"] for pair in expected["pairs"]]
    lost = [
        abs(angle.sine) < 0.1
        for number, angle in seen.angles.items()
        if abs(math.sin(asked[number] * distances[number])) > 0.3
    ]
    if 3 * sum(lost) < 2 * len(lost) or not lost:  # a few meet channels that only give a length
        return "angles that no known slip gives"
    if whole := expected["angle_slips"].get(WHOLE_HEAD):
        gaps = [abs(angle.cosine - math.cos(whole[n] * distances[n])) for n, angle in seen.angles.items()]
        if np.median(gaps) < 0.05:
            return WHOLE_HEAD
    return "channels paired otherwise"


# ---------------------------------------------------------------- everything else


def _temperatures(expected: Mapping[str, Any], seen: Measured) -> list[Row]:
    rows = []
    channels = "unrotated" if "unrotated" in seen.multipliers else "rotated"
    base, error = seen.multipliers.get(channels), max(seen.noise / 1.5, 1e-4)
    for each in expected["temperature"]:
        what = f"temperature at position {each['position']}"
        far = seen.temperatures.get(each["position"])
        if base is None or far is None:
            rows.append(Row(what, each["asked"], None, None, UNRESOLVED))
            continue
        answered = far / base
        right = _near(answered, each["asked"], error)
        rows.append(Row(what, each["asked"], answered, error, AS_ASKED if right else WRONG))
    if all(row.verdict != WRONG for row in rows):
        return rows
    named = _temperature_slip(expected, rows, error)
    return [row._replace(slip=named) if row.verdict == WRONG else row for row in rows]


def _temperature_slip(expected: Mapping[str, Any], rows: list[Row], error: float) -> str:
    known = {
        "temperature absent": [1.0 for _ in rows],
        "temperature of the number of words, not of the position": [
            each["behind"] for each in expected["temperature"]
        ],
        "temperature of the position, not of the number of words": [
            each["before"] for each in expected["temperature"]
        ],
        "temperature twice": [each["asked"] ** 2 for each in expected["temperature"]],
    }
    for name, wanted in known.items():
        if all(
            row.answered is None or _near(row.answered, each, error)
            for row, each in zip(rows, wanted, strict=True)
        ):
            return name
    return "a temperature that no known slip gives"


def _others(expected: Mapping[str, Any], seen: Measured) -> list[Row]:
    rows = []
    if _was_asked(expected, "cap"):
        rows.append(_cap(expected["softcap"], seen))
    if _was_asked(expected, "edge 0"):
        rows.append(_window(expected["window"], seen))
    if expected["sink"] and expected["weight_of_one"] is not None:
        rows.append(_sink(expected, seen))
    return rows


def _cap(asked: float, seen: Measured) -> Row:
    if seen.softcap is None:
        return Row("soft-cap", asked, None, None, UNRESOLVED)
    if math.isinf(seen.softcap):
        return Row("soft-cap", asked, math.inf, 0.0, WRONG, "cap absent")
    right = abs(seen.softcap - asked) <= _FAR * seen.softcap_error + 1e-3 * asked
    slip = "" if right else "another cap"
    return Row("soft-cap", asked, seen.softcap, seen.softcap_error, AS_ASKED if right else WRONG, slip)


def _window(asked: int, seen: Measured) -> Row:
    """The length of the window, from which of four keys around its edge are seen."""
    if len(seen.edges) < 2:
        return Row("window", asked, None, None, UNRESOLVED)
    (inside, outside), (second, beyond) = seen.edges[0], seen.edges[1]
    found: float | None
    if outside:
        found, slip = (None, "window absent or longer") if beyond else (asked + 1, "window one long")
    elif not inside:
        found, slip = (asked - 1, "window one short") if second else (None, "window shorter by two or more")
    else:
        found, slip = asked, ""
    return Row("window", asked, found, 0.0, WRONG if slip else AS_ASKED, slip)


def _sink(expected: Mapping[str, Any], seen: Measured) -> Row:
    asked = expected["sink_logit"]
    if seen.sink is None:
        return Row("sink", asked, None, None, UNRESOLVED)
    if math.isinf(seen.sink):
        return Row("sink", asked, seen.sink, 0.0, WRONG, "sink ignored")
    error = max(seen.sink_error, 1e-3)
    right = abs(seen.sink - asked) <= _FAR * error
    scales = [next(iter(expected["multiplier"].values()))]
    scales += [slip["rotated"] for slip in expected["score_slips"] if slip["name"] == NO_FACTOR]
    scaled = any(abs(seen.sink - scale * asked) <= _FAR * error for scale in scales)
    slip = "" if right else "sink scaled" if scaled else "another sink"
    return Row("sink", asked, seen.sink, error, AS_ASKED if right else WRONG, slip)
