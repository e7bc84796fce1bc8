# SPDX-License-Identifier: BSD-3-Clause
"""Queries, keys and values of the words in the one head that speaks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from . import _layout as lay

#: Amplitude of queries and keys that a norm brings to its own length, far above the epsilon of the norm.
_BEFORE_NORM = 64.0
#: Strongest query of a pair, where no norm sets its length.
_MOST = 128.0
#: Score of a key that a query of strength 1 sees beside fillers of score 0.
SCORE = 1.5


@dataclass(frozen=True)
class Head:
    """Channels of a head.

    Attributes
    ----------
    width, value_width : int
        Channels of q and k, and of v.
    rotated, first_rotated : int
        Rotated channels lie behind the channel first_rotated.
    adjacent : bool
        Whether a pair is two channels side by side, not half of the rotated ones apart.
    asked : int
        Channels whose rotation is asked: the rotated ones, or all of a head that is not to turn.
    """

    width: int
    value_width: int
    rotated: int
    first_rotated: int
    adjacent: bool
    asked: int

    @property
    def plain(self) -> int | None:
        """A channel that does not turn beside others that do, or None."""
        if self.rotated in (0, self.width):
            return None
        return self.width - 1 if self.first_rotated == 0 else 0

    def channels(self, pair: int) -> tuple[int, int]:
        """The two channels of a pair."""
        if self.adjacent:
            return self.first_rotated + 2 * pair, self.first_rotated + 2 * pair + 1
        return self.first_rotated + pair, self.first_rotated + pair + self.asked // 2


class Pair(NamedTuple):
    """A pair of channels that is asked."""

    number: int  # among all pairs of the head
    unscaled: float
    distance: int
    boost: float  # strength of the query of the sine

    @property
    def gain(self) -> float:
        """The value of the key: beside many words a weight is too small for 16 bits."""
        return float(2.0 ** round(math.log2(self.distance)))


class Strength(NamedTuple):
    """Products of queries and keys, in units of that of strength 1.

    Attributes
    ----------
    scale : float
        The multiplier that is expected; only to choose amplitudes.
    length : float or None
        Product of the lengths that norms give to q and k; None without norms.
    unit : float
        Product of a query of strength 1 without norms.
    most : float
        The strongest query.
    """

    scale: float
    length: float | None
    unit: float
    most: float

    def share(self, strength: float, trim: int = lay.FULL) -> tuple[float, float]:
        """Amplitude of a query along its key, a little less by `trim`, and on a channel that no key has."""
        along = trim / lay.FULL
        if self.length is None:
            return strength * along, 0.0
        return along, 0.0 if strength >= self.most else self.most / strength

    def product(self, strength: float, trim: int = lay.FULL) -> float:
        """The product of a query of this strength and its key."""
        along, aside = self.share(strength, trim)
        if self.length is None:
            return self.unit * along
        return self.length * along / math.hypot(along, aside)


def strength_of(scale: float, normed: float, length: float | None) -> Strength:
    """Amplitudes for a scale.

    Parameters
    ----------
    scale : float
        The expected multiplier.
    normed : float
        The coordinate of a word after the norm before attention.
    length : float or None
        Product of the lengths of q and k behind norms without weights, or None.
    """
    one = (lay.FULL / lay.UNIT * normed) ** 2
    if length is None:
        return Strength(scale, None, one * 2.0 ** round(math.log2(SCORE / (scale * one))), _MOST)
    most = 2.0 ** max(0, math.floor(math.log2(length * scale / SCORE)))
    return Strength(scale, length, one, most)


def norm_weights(scale: float, roots: float) -> tuple[float, float]:
    """Powers of two as weights of the norms of q and k, so that the strongest query has 16 times SCORE.

    Parameters
    ----------
    scale : float
        The expected multiplier.
    roots : float
        Product of the lengths of q and k with weights of 1.
    """
    exponent = round(math.log2(16 * SCORE / (scale * roots)))
    return 2.0 ** (exponent - exponent // 2), 2.0 ** (exponent // 2)


class Cap(NamedTuple):
    """The question of a soft-cap: strength of its query, and gain of the value of small scores."""

    strength: float
    gain: float


class Columns(NamedTuple):
    """Queries, keys and values of all words, one column a word, in units of the normed coordinate."""

    query: NDArray[np.float64]
    key: NDArray[np.float64]
    value: NDArray[np.float64]


def columns(
    head: Head,
    strength: Strength,
    pairs: list[Pair],
    cap: Cap,
    edge: float,
    prints: list[int],
    normed: float,
) -> Columns:
    """Fill the columns; `edge` is the strength of a query, `prints` are exponents of values."""
    q_size, k_size = _sizes(strength, normed)
    query, key = (np.zeros((head.width, lay.VOCABULARY)) for _ in range(2))
    taken = {channel for pair in pairs for channel in head.channels(pair.number)} | {head.plain}
    spare = [channel for channel in range(head.width) if channel not in taken]

    def ask(
        token: int, channel: int, amount: float, aside: int, sign: float = 1.0, trim: int = lay.FULL
    ) -> None:
        along, rest = strength.share(amount, trim)
        query[channel, token] = sign * q_size * along
        if rest:
            query[spare[aside], token] = q_size * rest

    for n, pair in enumerate(pairs):
        first, second = head.channels(pair.number)
        key[first, [lay.SELF + n, lay.KEY + n]] = k_size
        ask(lay.SELF + n, first, 1.0, n, trim=lay.TRIMS[n])
        ask(lay.SELF + lay.UNUSED + n, first, 1.0, n)  # gives the block of 8-bit numbers its scale
        ask(lay.COS + n, first, 1.0, n)
        ask(lay.SIN + n, second, pair.boost, n, sign=-1.0)
    still = head.plain if head.plain is not None else head.channels(pairs[-1].number)[0]
    for number, (token, amount) in enumerate(((lay.EDGE, edge), (lay.FAR, edge), (lay.CAP, cap.strength))):
        ask(token, still, amount, len(pairs) + number)
    key[still, [lay.EDGE_IN, lay.EDGE_OUT, lay.FAR, lay.CAP_HIGH]] = k_size
    key[still, lay.CAP_LOW] = k_size * lay.CAP_SIZE / lay.FULL
    if head.plain is not None:
        ask(lay.PLAIN, head.plain, 1.0, len(pairs) + 3)
        key[head.plain, lay.PLAIN] = k_size
    return Columns(query, key, _values(head, pairs, cap.gain, prints))


def _sizes(strength: Strength, normed: float) -> tuple[float, float]:
    """Amplitudes of q and k as a 16-bit number holds them."""
    exact = lay.FULL / lay.UNIT
    if strength.length is not None:
        return exact * _BEFORE_NORM, exact * _BEFORE_NORM
    exponent = round(math.log2(strength.unit / (exact * normed) ** 2))
    return exact * 2.0 ** (exponent - exponent // 2), exact * 2.0 ** (exponent // 2)


def _values(head: Head, pairs: list[Pair], cap_gain: float, prints: list[int]) -> NDArray[np.float64]:
    value = np.zeros((head.value_width, lay.VOCABULARY))
    for token in range(lay.VOCABULARY):
        mark = lay.class_of(token)
        size = lay.FILLERS.get(token, lay.FULL) / lay.UNIT
        value[head.value_width - 1 if mark is None else mark, token] = size
    value[lay.CLASS_CAP_LOW, lay.CAP_LOW] *= cap_gain
    for n, pair in enumerate(pairs):
        value[n, lay.KEY + n] *= pair.gain
    for token, exponent in zip(lay.PRINT, prints, strict=True):
        value[lay.class_of(token), token] *= 2.0**exponent
    return value
