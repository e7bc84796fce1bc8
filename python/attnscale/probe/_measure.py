# SPDX-License-Identifier: BSD-3-Clause
"""Numbers in the answers to a probe: multipliers, angles, temperatures, soft-cap, window and sink.

A key of class c adds its weight to the logit of one word, all other keys add theirs to that of another. The
quotient of the two logits is that of the weights, whatever follows the attention, and its logarithm is the
score. The spread over pairs of channels that must agree tells how exact the engine is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .._base.checks import InputError
from .._base.text import counted
from . import _layout as lay

Answers = Mapping[str, Mapping[int, float]]

#: Smallest error of a score: that of log-probabilities in single precision.
_LEAST = 4e-6
#: Error of a log-probability in single precision.
_ROUNDED = 1e-6
#: Relative spread beyond which numbers are of 16 or 8 bits, and the error that all scores then share.
_SINGLE, _SHARED = 8e-6, 5e-4
#: Error of the quotient of two equal weights in a block of 8-bit numbers.
_EIGHT_BITS = 3e-3
#: Standard deviation of normal errors by their median absolute deviation.
_MAD = 1.4826


@dataclass(frozen=True)
class Angle:
    """Rotation of a pair of channels over the distance at which it was asked, in rad, and its error."""

    value: float
    error: float
    cosine: float
    sine: float


@dataclass
class Measured:
    """Numbers of one checkpoint; None or missing where a prompt was not asked or told nothing."""

    front: int = 0  # words that the engine puts before a prompt
    noise: float = _LEAST  # standard deviation of a score
    multipliers: dict[str, float] = field(default_factory=dict)  # by kind of channels
    spread: dict[str, float] = field(default_factory=dict)  # their relative errors
    angles: dict[int, Angle] = field(default_factory=dict)  # by place in the list of pairs
    temperatures: dict[int, float] = field(default_factory=dict)  # multipliers by position
    softcap: float | None = None  # infinity without one
    softcap_error: float = 0.0
    edges: dict[int, tuple[bool, bool]] = field(default_factory=dict)  # keys seen on both sides of an edge
    sink: float | None = None  # -infinity without one
    sink_error: float = 0.0
    repeats: float = 0.0  # largest difference of a log-probability between two equal prompts


def measure(expected: Mapping[str, Any], answers: Answers) -> Measured:
    """Read the answers to one checkpoint.

    Raises
    ------
    InputError
        If another model answered, or log-probabilities are too few.
    """
    out = Measured()
    _check_model(expected, answers, out)
    out.repeats = _repeats(answers)
    first = kind_of_self(expected)
    scores = _numbered("self", expected, answers, out.front)
    units = np.array([expected["prompts"][f"self {number}"]["product"] for number in scores])
    if expected["softcap"] and "cap" in answers and scores:
        _softcap(expected, answers, out, scores, units)
    uncapped = _uncapped(expected["softcap"] if out.softcap is None else out.softcap)
    if scores:
        values = _values(scores, uncapped)
        _multiplier(out, first, values / units)
        out.noise = max(_LEAST, _MAD * float(np.median(np.abs(values - out.multipliers[first] * units))))
    if "plain" in answers and (found := _score(expected, answers, "plain", out.front)) is not None:
        product = expected["prompts"]["plain"]["product"]
        error = out.noise / abs(found.value)
        _multiplier(out, "unrotated", np.array([uncapped(found.value) / product]), error)
    _angles(expected, answers, out, uncapped, first)
    if not out.front:  # with words in front no query is where the prompt has it
        _far(expected, answers, out, uncapped)
    if not out.front or expected["kind"] != "chunked_attention":
        _edges(expected, answers, out)
    if expected["sink"]:
        _sink(expected, answers, out)
    return out


def kind_of_self(expected: Mapping[str, Any]) -> str:
    """The kind of channels on which words are their own keys."""
    return "rotated" if "rotated" in expected["multiplier"] else "unrotated"


def _multiplier(out: Measured, kind: str, values: Any, error: float | None = None) -> None:
    middle = float(np.median(values))
    out.multipliers[kind] = middle
    many = _MAD * float(np.median(np.abs(values - middle))) / max(abs(middle), 1e-300)
    out.spread[kind] = _with_shared(
        max(many / math.sqrt(max(values.size / 2, 1)), 2e-6) if error is None else error
    )


def _with_shared(error: float) -> float:
    """A relative error with that of roundings which all scores share."""
    return math.hypot(error, _SHARED) if error > _SINGLE else error


# ---------------------------------------------------------------- logits and scores


def logits_of(expected: Mapping[str, Any], name: str, row: Mapping[int, float]) -> dict[int, float]:
    """Logits by token: log-probabilities less that of a word that nothing speaks to."""
    about = expected["prompts"][name]
    heard = {about["query"], lay.REST, *map(int, about["marks"])}
    silent = [each for token, each in row.items() if token not in heard]
    if not silent:
        raise InputError(
            f"answer to {name!r} must have the log-probability of a word that nothing speaks to, got "
            f"{counted(len(row), 'other')}: ask for 5 or more"
        )
    base, uncapped = float(np.median(silent)), _uncapped(expected["final_cap"])
    return {token: uncapped(each - base) for token, each in row.items()}


def _shares(
    expected: Mapping[str, Any], answers: Answers, name: str, mark: int, front: int
) -> tuple[float, float, float] | None:
    """Logits of a class and of the rest, and their quotient for equal scores; None if one is missing."""
    logits, about = logits_of(expected, name, answers[name]), expected["prompts"][name]
    mine, rest = logits.get(mark, 0.0), logits.get(lay.REST, 0.0)
    if mine <= 0 or rest <= 0:
        return None
    return mine, rest, about["marks"].get(str(mark), 1) / (about["rest"] + front)


class _Score(NamedTuple):
    """A score, and its error by the roundings of log-probabilities, large where a logit is small."""

    value: float
    error: float


def _score(expected: Mapping[str, Any], answers: Answers, name: str, front: int) -> _Score | None:
    """The score of the marked key of a prompt, beside words of score 0."""
    mark = int(next(iter(expected["prompts"][name]["marks"])))
    found = _shares(expected, answers, name, mark, front)
    if found is None:
        return None
    mine, rest, equal = found
    return _Score(math.log(mine / rest / equal), _ROUNDED * (1 / mine + 1 / rest))


def _numbered(start: str, expected: Mapping[str, Any], answers: Answers, front: int) -> dict[int, _Score]:
    """Scores of numbered prompts."""
    found = {}
    for number in range(len(expected["pairs"])):
        name = f"{start} {number}"
        if name in answers and (score := _score(expected, answers, name, front)) is not None:
            found[number] = score
    return found


def _check_model(expected: Mapping[str, Any], answers: Answers, out: Measured) -> None:
    """Count the words in front of a prompt, and compare the digest in the weights."""
    about = expected["prompts"]["count"]
    found = _shares(expected, answers, "count", lay.READ, 0) if "count" in answers else None
    if "count" not in answers:
        raise InputError("answers must have one to 'count', the first prompt: ask again")
    front = math.nan if found is None else found[1] / found[0] - about["rest"]
    if not -1.2 < front < 8 or abs(front - round(front)) > 0.2:
        raise InputError(
            "the model that answered did not load this checkpoint: its log-probabilities follow other weights"
        )
    out.front = round(front)
    for number, exponent in enumerate(expected["prints"]):
        name = f"print {number}"
        if name not in answers:
            continue
        shares = _shares(expected, answers, name, lay.READ + lay.CLASS_PRINT + number, out.front)
        seen = math.nan if shares is None else math.log2(shares[0] / shares[1] / shares[2])
        if not abs(seen - exponent) < 0.3:
            raise InputError(
                "the model that answered loaded another probe or another layer's checkpoint, or its "
                "log-probabilities are rounded to 8 bits"
            )


def _repeats(answers: Answers) -> float:
    first, again = answers.get("count", {}), answers.get("count again", {})
    return max((abs(first[token] - again[token]) for token in first.keys() & again.keys()), default=0.0)


# ---------------------------------------------------------------- the soft-cap


def _uncapped(cap: float | None) -> Callable[[float], float]:
    """The number before a soft-cap, by the number behind it; without a cap the number itself."""
    if not cap or not math.isfinite(cap):
        return lambda score: score
    return lambda score: cap * math.atanh(min(max(score / cap, -0.999999), 0.999999))


def _values(scores: Mapping[int, _Score], uncapped: Callable[[float], float]) -> NDArray[np.float64]:
    return np.array([uncapped(score.value) for score in scores.values()])


def _softcap(
    expected: Mapping[str, Any],
    answers: Answers,
    out: Measured,
    scores: dict[int, _Score],
    units: NDArray[np.float64],
) -> None:
    """The cap that makes of two large scores the difference that was seen."""
    logits = logits_of(expected, "cap", answers["cap"])
    large, small = (logits.get(lay.READ + mark, 0.0) for mark in (lay.CLASS_CAP, lay.CLASS_CAP_LOW))
    if large <= 0 or small <= 0:
        return
    seen = math.log(large / small * lay.CAP_KEYS * expected["cap_gain"])
    blur = _EIGHT_BITS * max(large / small, small / large)
    for _ in range(3):  # the small scores are capped a little, too
        values = _values(scores, _uncapped(out.softcap)) / units
        high = float(np.median(values)) * expected["prompts"]["cap"]["product"]
        relative = _with_shared(_MAD * float(np.median(np.abs(values / np.median(values) - 1))))
        if not _solve_cap(out, seen, high, max(out.noise, blur, relative * high), expected["softcap"]):
            return


def _solve_cap(out: Measured, seen: float, high: float, noise: float, asked: float) -> bool:
    """Set the cap by which the scores `high` and 80/127 of it differ as seen; False without one.

    There is none if the asked one is excluded; otherwise it stays open.
    """
    low = high * lay.CAP_SIZE / lay.FULL

    def difference(cap: float) -> float:
        return cap * (math.tanh(high / cap) - math.tanh(low / cap))

    if seen > high - low - 4 * noise:
        out.softcap = math.inf if seen > difference(asked) + 4 * noise else None
        return False
    least, most = 1.0, 1e6
    for _ in range(100):
        middle = math.sqrt(least * most)
        least, most = (middle, most) if difference(middle) < seen else (least, middle)
    out.softcap = middle
    step = middle * 1e-3
    out.softcap_error = noise / max(abs(difference(middle + step) - difference(middle)) / step, 1e-12)
    return True


# ---------------------------------------------------------------- angles, temperatures, windows, sinks


def _angles(
    expected: Mapping[str, Any],
    answers: Answers,
    out: Measured,
    uncapped: Callable[[float], float],
    first: str,
) -> None:
    cosines, sines = (_numbered(name, expected, answers, out.front) for name in ("cos", "sin"))
    scale = out.multipliers.get(first)
    if scale is None or not scale > 0:
        return
    found: dict[int, tuple[float, float, float, float]] = {}
    for number in cosines.keys() & sines.keys():
        sizes = [expected["prompts"][f"{name} {number}"]["product"] * scale for name in ("cos", "sin")]
        cosine, sine = uncapped(cosines[number].value) / sizes[0], uncapped(sines[number].value) / sizes[1]
        found[number] = (cosine, sine, *sizes)
    if not found:
        return
    lengths = [abs(math.hypot(cosine, sine) - 1) * size for cosine, sine, size, _ in found.values()]
    noise = max(out.noise, _MAD * float(np.median(lengths)))
    for number, (cosine, sine, along, across) in sorted(found.items()):
        errors = [math.hypot(noise, scores[number].error) for scores in (cosines, sines)]
        angle = math.atan2(sine, cosine)
        error = math.hypot(errors[1] * math.cos(angle) / across, errors[0] * math.sin(angle) / along)
        out.angles[number] = Angle(angle, error, cosine, sine)


def _far(
    expected: Mapping[str, Any], answers: Answers, out: Measured, uncapped: Callable[[float], float]
) -> None:
    for each in expected["temperature"]:
        name = f"far {each['position']}"
        if name in answers and (score := _score(expected, answers, name, out.front)) is not None:
            out.temperatures[each["position"]] = uncapped(score.value) / expected["prompts"][name]["product"]


def _edges(expected: Mapping[str, Any], answers: Answers, out: Measured) -> None:
    for number in range(2):
        name = f"edge {number}"
        if name in answers:
            logits = logits_of(expected, name, answers[name])
            rest = max(logits.get(lay.REST, 0.0), 1e-9)
            few = 0.02 * rest / max(expected["prompts"][name]["rest"], 1.0)
            marks = (lay.READ + lay.CLASS_EDGE_IN, lay.READ + lay.CLASS_EDGE_OUT)
            out.edges[number] = (logits.get(marks[0], 0.0) > few, logits.get(marks[1], 0.0) > few)


def _sink(expected: Mapping[str, Any], answers: Answers, out: Measured) -> None:
    """The logit of a sink, from the weight that is missing among equal keys."""
    unit, about = expected["weight_of_one"], expected["prompts"]["count"]
    logits = logits_of(expected, "count", answers["count"])
    own = logits.get(about["query"], 0.0)
    if unit is None or own <= 0:
        return
    words = about["tokens"] + out.front
    mass = logits[lay.READ] / (own * unit) * words
    error = max(out.noise / 1.5, 2e-6) * 2
    if mass > 1 - 3 * error:
        out.sink, out.sink_error = -math.inf, 0.0
        return
    out.sink = math.log(words * (1 / mass - 1))
    out.sink_error = error / (1 - mass)
