# SPDX-License-Identifier: BSD-3-Clause
"""The first layer of two runs that differs by more than rounding, and what is left."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ._causes import JUMP, Cause, Found, by_option, of_input, of_projection, of_values, structured
from ._pair import EPSILON, Pair

#: Largest relative difference of scores that rounding of weights to 4 bits makes in a layer.
_LARGEST = 0.25
#: Largest difference of an input of the first layer that may be rounding.
_OTHER_INPUT = 0.3
#: Relative differences of scores up to which each type is named.
_TYPES = ((1e-5, "float32"), (1.8e-3, "float16"), (6e-3, "bfloat16"))
#: Relative difference of scores by weights of 8 bits; each bit less doubles it.
_OF_8_BITS = 0.009
_FEWEST_BITS = 3


class Noise(NamedTuple):
    """Relative size of the differences that no cause explains, and the rounding that has such a size."""

    size: float
    said: str


def judge(pairs: Sequence[Pair]) -> tuple[Cause | None, Noise]:
    """The cause of the first difference that is no rounding, or None; and the noise."""
    level = max(max(pair.epsilon for pair in pairs), 3e-6)
    for index, pair in enumerate(pairs):
        known = pair.usual
        if known["input"] > (JUMP * level if index else max(JUMP * level, _OTHER_INPUT)):
            return of_input(pair).at(pair), _noise(pairs[:index])
        here = max(level, known["input"])
        if (found := _of_layer(pairs[index:], here)) is not None:
            left = _left(found, pair)
            return found.at(pair), _named(left, pair) if left else _noise(pairs[:index])
        level = max(here, *known.values())
    return None, _noise(pairs)


def _of_layer(pairs: Sequence[Pair], level: float) -> Found | None:
    """The cause in the first of these layers, before which differences reach `level`."""
    pair, known = pairs[0], pairs[0].usual
    if (found := structured(pair, level) or by_option(pair)) is not None:
        return found
    if known["scores"] > JUMP * level and not _is_rounding(pairs, "scores"):
        return of_projection(pair, level)
    if known["output"] > JUMP * max(level, known["scores"]) and not _is_rounding(pairs, "output"):
        return of_values(pair)
    return None


def _is_rounding(pairs: Sequence[Pair], what: str) -> bool:
    """Whether a difference is small, alike in all heads, and made again by the layers after it.

    A layer whose input differs more tells nothing; without another, queries and keys must differ alike.
    """
    known, by_head = pairs[0].usual, pairs[0].by_head
    size = known[what]
    if size > _LARGEST or (what == "scores" and by_head.max() > JUMP / 2 * np.median(by_head)):
        return False
    later = [_own(pair.usual, what) for pair in pairs[1:] if pair.usual["input"] <= size]
    if later:
        return max(later) > size / 4
    sides = known["query"], known["key"]
    return what == "scores" and min(sides) >= max(sides) / 3


def _own(known: dict[str, float], what: str) -> float:
    """The part of a difference that does not come with the input of the layer."""
    before = max(known["input"], known["scores"] if what == "output" else 0.0)
    return float(np.sqrt(max(known[what] ** 2 - 2 * before**2, 0.0)))


def _left(found: Found, pair: Pair) -> float:
    """Relative difference of the scores that the cause leaves; 0 if that cannot be told."""
    if found.kind == "projection":
        return 0.0
    if found.kind == "one head":
        return float(np.median(np.delete(pair.by_head, found.heads)))
    share = (found.fit or 0.0) if found.kind in ("scale", "temperature", "rotation", "head order") else 0.0
    return float(pair.size * np.sqrt(max(1 - share, 0.0)))


def _noise(pairs: Sequence[Pair]) -> Noise:
    """The noise of the first layer whose scores differ, if it is of a known type."""
    for pair in pairs:
        if pair.size:
            return _named(pair.size, pair)
    return Noise(0.0, "none")


def _named(size: float, pair: Pair) -> Noise:
    if not size:
        return Noise(0.0, "none")
    coarse = next((name for name in ("bfloat16", "float16") if name in (pair.a.dtype, pair.b.dtype)), None)
    if coarse is not None and size < 6 * EPSILON[coarse]:
        return Noise(size, f"rounding as of {coarse}")
    bits = min(8, round(8 - np.log2(size / _OF_8_BITS)))
    name = next((name for most, name in _TYPES if size < most), f"{bits} bits")
    return Noise(size, f"rounding as of {name}" if bits >= _FEWEST_BITS else "more than rounding")
