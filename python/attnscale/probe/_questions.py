# SPDX-License-Identifier: BSD-3-Clause
"""The questions to a layer: prompts, and for each the score that its weights give per unit of multiplier."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from . import _layout as lay
from ._head import Cap, Head, Pair, Strength

#: Kinds of questions, as ``kinds=`` takes them.
KINDS = ("scale", "angles", "cap", "window", "sink", "temperature")
#: Angle that a pair is to turn without scaling, and the longest distance for it.
TURN, FARTHEST = 2.2, 256
_MARGIN = 40  # keys of a window that distances leave free
_GAIN = 512.0  # of a value, the most that float16 bears behind the output projection
_BESIDE = 20  # words of a prompt beside those between a key and its query


class Prompt(NamedTuple):
    """A text, and the score of its marked key per unit of the multiplier."""

    name: str
    tokens: list[int]
    product: float = 0.0
    gain: float = 1.0  # of the value of the marked key

    def record(self) -> dict[str, Any]:
        """The numbers that reading an answer needs."""
        marks: dict[str, float] = {}
        for token in self.tokens:
            if (mark := lay.class_of(token)) is not None:
                marks[str(lay.READ + mark)] = marks.get(str(lay.READ + mark), 0) + self.gain
        return {
            "tokens": len(self.tokens),
            "query": self.tokens[-1],
            "marks": marks,
            "rest": lay.rest_of(self.tokens),
            "product": self.product,
        }


@dataclass(frozen=True)
class Subject:
    """A layer as the questions need it.

    Attributes
    ----------
    head : Head
    strength : Strength
        Products of queries and keys that its norms allow.
    unscaled : ndarray
        Angle of each pair of channels from one position to the next, without any scaling, in rad.
    window : int or None
        Largest number of keys that a query sees.
    chunked : bool
        Whether windows start at multiples of their length.
    cap : float or None
    turning : tuple of int
        Positions at which the temperature changes.
    longest : int
        Largest number of words of a prompt.
    kinds : tuple of str
        Kinds of questions.
    skipped : list of str
        Questions that cannot be asked, with the reason.
    still_gain : float
        Quotient of the products on a channel without rotation and on the others.
    """

    head: Head
    strength: Strength
    unscaled: NDArray[np.float64]
    window: int | None
    chunked: bool
    cap: float | None
    turning: tuple[int, ...]
    longest: int
    kinds: tuple[str, ...] = KINDS
    skipped: list[str] = field(default_factory=list)
    still_gain: float = 1.0

    def still(self, strength: float) -> float:
        """The product of a query on the channel that turns least."""
        return self.strength.product(strength) * (self.still_gain if self.head.plain is not None else 1.0)


def pairs_of(subject: Subject) -> list[Pair]:
    """Pairs spread over all frequencies, each with a distance at which it turns by less than pi."""
    half = len(subject.unscaled)
    reach = min(FARTHEST, subject.longest - _BESIDE)
    if subject.window:
        reach = min(reach, subject.window - _MARGIN)
    found, used = [], set()
    for number in sorted({round(f) for f in np.linspace(0, half - 1, min(lay.PAIRS, half))}):
        angle = float(subject.unscaled[number])
        distance = max(1, min(int(TURN / angle), max(reach, 2)))
        while distance in used:
            distance += 1
        used.add(distance)
        boost = 2.0 ** max(0, math.floor(-math.log2(min(distance * angle, 1.0))))
        found.append(Pair(number, angle, distance, min(boost, subject.strength.most)))
    return found


def prompts_of(subject: Subject, pairs: list[Pair]) -> list[Prompt]:
    """All prompts; the first one counts the words that the query sees."""
    out = [Prompt("count", [lay.BOS, *lay.fill(2), lay.SELF, *lay.fill(3), lay.ZERO])]
    out += [
        Prompt(f"print {number}", [lay.BOS, *lay.fill(5), token, lay.ZERO])
        for number, token in enumerate(lay.PRINT)
    ]
    if {"scale", "angles", "cap", "temperature"} & set(subject.kinds):  # others are read beside the scale
        out += _scales(subject, pairs)
    if "angles" in subject.kinds:
        out += _angles(subject, pairs)
    if "cap" in subject.kinds and subject.cap:
        out += _cap(subject)
    if "window" in subject.kinds and subject.window:
        out += _edges(subject)
    if "temperature" in subject.kinds:
        out += _temperatures(subject)
    return out


def _scales(subject: Subject, pairs: list[Pair]) -> list[Prompt]:
    product = subject.strength.product
    found = [
        Prompt(f"self {n}", [lay.BOS, *lay.fill(3 + n), lay.SELF + n], product(1.0, lay.TRIMS[n]))
        for n in range(len(pairs))
    ]
    if subject.head.plain is not None:
        found.append(Prompt("plain", [lay.BOS, *lay.fill(6), lay.PLAIN], subject.still(1.0)))
    return found


def _angles(subject: Subject, pairs: list[Pair]) -> list[Prompt]:
    found = []
    for n, pair in enumerate(pairs):
        text = [lay.BOS, *lay.fill(4), lay.KEY + n, *lay.fill(pair.distance - 1)]
        product = subject.strength.product
        found.append(Prompt(f"cos {n}", [*text, lay.COS + n], product(1.0), pair.gain))
        found.append(Prompt(f"sin {n}", [*text, lay.SIN + n], product(pair.boost), pair.gain))
    return found


def cap_of(subject: Subject) -> Cap:
    """The query whose larger score is about half of the cap; under it small scores weigh about as much."""
    if not subject.cap:
        return Cap(1.0, 1.0)
    cap, unit = subject.cap, subject.still(1.0) * subject.strength.scale
    strength = 2.0 ** max(0, round(math.log2(0.56 * cap / unit)))
    high = strength * unit / cap
    gap = cap * (math.tanh(high) - math.tanh(high * lay.CAP_SIZE / lay.FULL))
    return Cap(strength, min(_GAIN, 2.0 ** round(gap / math.log(2) - math.log2(lay.CAP_KEYS))))


def _cap(subject: Subject) -> list[Prompt]:
    strength = cap_of(subject).strength
    if subject.strength.most < strength:
        subject.skipped.append("soft-cap: q and k have fixed lengths, too short for it")
        return []
    tokens = [lay.BOS, *[lay.CAP_LOW] * lay.CAP_KEYS, lay.CAP_HIGH, lay.CAP]
    return [Prompt("cap", tokens, subject.still(strength))]


def _edges(subject: Subject) -> list[Prompt]:
    """Two pairs of keys around the edge of a window: each is seen or not."""
    window = subject.window or 0
    end = window + 4 if subject.chunked else window + 6
    if end > subject.longest:
        needs = f"it needs a text of {end} words (--longest)"
        subject.skipped.append(f"window of {window} keys: {needs}")
        return []
    product = subject.still(edge_strength(subject.strength))
    found = []
    for number, (seen, hidden) in enumerate(((0, 1), (1, 2))):
        inside, outside = _edge_distances(subject, seen, hidden)
        tokens = [lay.BOS, *lay.fill(end - 2), lay.EDGE]
        tokens[len(tokens) - 1 - inside] = lay.EDGE_IN
        tokens[len(tokens) - 1 - outside] = lay.EDGE_OUT
        found.append(Prompt(f"edge {number}", tokens, product))
    return found


def _edge_distances(subject: Subject, seen: int, hidden: int) -> tuple[int, int]:
    """Distances of a key inside and a key outside; of a chunk the query is the fourth word."""
    edge = 4 if subject.chunked else subject.window or 0
    return edge - 1 - seen, edge - 1 + hidden


def edge_strength(strength: Strength) -> float:
    """Strength of a query that must be seen among thousands of keys."""
    return min(4.0, strength.most)


def _temperatures(subject: Subject) -> list[Prompt]:
    found = []
    product = subject.still(edge_strength(subject.strength))
    for turn in subject.turning:
        if turn + 2 > subject.longest:
            subject.skipped.append(
                f"temperature at position {turn}: it needs a text of {turn + 2} words (--longest)"
            )
            continue
        found += [
            Prompt(f"far {place}", [lay.BOS, *lay.fill(place - 1), lay.FAR], product)
            for place in (turn - 1, turn, turn + 1)
        ]
    return found
