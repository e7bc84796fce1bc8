# SPDX-License-Identifier: BSD-3-Clause
"""The angles of rotary positions: how far each pair of channels turns, and how far two models differ.

The frequencies are those of transformers' modeling_rope_utils.py, in double precision.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

#: Relative differences of frequencies that count as none: files have single precision.
_TOLERANCE = 1e-6

#: An angle from which on two pairs are said to differ.
FAR = 0.1

#: Distances of two positions at which angles are compared where none are asked for.
DISTANCES = (1, 64, 4096)


@dataclass(frozen=True)
class Rotation:
    """How rotary positions turn the channels of a layer.

    Attributes
    ----------
    kind : str
        Type of scaling, as "default", "linear" or "yarn".
    base : float or None
        Theta; None if the config says something that is no base.
    rotated, head_dim : int
        Channels that turn, and all of them.
    parameters : tuple of pairs
        Names and values of the parameters that the type has a use for.
    unread : str
        Why the frequencies are not known, where they are not.
    keys : tuple of str
        The keys of the config that all this comes from, with their values.
    """

    kind: str
    base: float | None
    rotated: int
    head_dim: int
    parameters: tuple[tuple[str, Any], ...] = ()
    unread: str = ""
    keys: tuple[str, ...] = field(default=(), compare=False)

    def frequencies(self, length: int = 1) -> NDArray[np.float64] | None:
        """Radians by which each pair of channels turns from one position to the next.

        Parameters
        ----------
        length : int
            Tokens of the text; some types of scaling turn otherwise in long texts.

        Returns
        -------
        ndarray, shape (rotated / 2,), or None
            float64; None if the config does not say the frequencies.

        Examples
        --------
        >>> import attnscale as at
        >>> plan = at.audit.resolve({"model_type": "llama", "hidden_size": 64, "num_attention_heads": 8,
        ...                          "num_hidden_layers": 1, "rope_theta": 10000.0})
        >>> plan[0].rotation.frequencies().round(6).tolist()
        [1.0, 0.1, 0.01, 0.001]
        """
        if self.unread or self.base is None or self.kind not in _SCALED:
            return None
        try:
            with np.errstate(all="ignore"):
                found = _SCALED[self.kind](self, dict(self.parameters), length)
        except (KeyError, TypeError, ValueError, ArithmeticError):
            return None
        return found if np.isfinite(found).all() else None

    def _plain(self, base: float | None = None) -> NDArray[np.float64]:
        powers = np.arange(0, self.rotated, 2) / max(self.rotated, 1)
        return np.asarray(((self.base or 1.0) if base is None else base) ** -powers)


def _default(rotation: Rotation, given: Mapping[str, Any], length: int) -> NDArray[np.float64]:
    return rotation._plain()


def _linear(rotation: Rotation, given: Mapping[str, Any], length: int) -> NDArray[np.float64]:
    return np.asarray(rotation._plain() / given["factor"])


def _proportional(rotation: Rotation, given: Mapping[str, Any], length: int) -> NDArray[np.float64]:
    """Some of the pairs of a head, with the frequencies that they have where all turn."""
    pairs = int(given.get("share", 1.0) * rotation.head_dim // 2)
    powers = np.arange(0, 2 * pairs, 2) / rotation.head_dim
    return np.asarray((rotation.base or 1.0) ** -powers / given.get("factor", 1.0))


def _dynamic(rotation: Rotation, given: Mapping[str, Any], length: int) -> NDArray[np.float64]:
    """A base that grows with a text that is longer than the model's; of HunYuan by a constant."""
    size, base = rotation.rotated, rotation.base or 1.0
    if "alpha" in given:
        return rotation._plain(base * given["alpha"] ** (size / (size - 2)))
    factor, longest = given["factor"], given["longest"]
    growth = factor * max(length, longest) / longest - (factor - 1)
    return rotation._plain(base * growth ** (size / (size - 2)))


def _llama3(rotation: Rotation, given: Mapping[str, Any], length: int) -> NDArray[np.float64]:
    """Slow pairs divided by the factor, fast ones as they are, those between them mixed."""
    plain = rotation._plain()
    low, high = given["low_freq_factor"], given["high_freq_factor"]
    turns = given["original"] * plain / (2 * math.pi)
    mixed = np.clip((turns - low) / (high - low), 0, 1)
    return np.asarray((1 - mixed) * plain / given["factor"] + mixed * plain)


def _yarn(rotation: Rotation, given: Mapping[str, Any], length: int) -> NDArray[np.float64]:
    """Pairs mixed by their number between those with so many and with so few turns in the original length."""
    plain, size = rotation._plain(), rotation.rotated

    def pair(turns: float) -> float:
        base = math.log(rotation.base or 1.0)
        return size * math.log(given["original"] / (turns * 2 * math.pi)) / (2 * base)

    first, last = pair(given.get("beta_fast") or 32), pair(given.get("beta_slow") or 1)
    if given.get("truncate", True):
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, size - 1)
    slow = np.clip((np.arange(plain.size) - first) / ((last - first) or 0.001), 0, 1)
    return np.asarray(plain / given["factor"] * slow + plain * (1 - slow))


def _longrope(rotation: Rotation, given: Mapping[str, Any], length: int) -> NDArray[np.float64]:
    """Each pair divided by a number of a list, which is another one in long texts."""
    name = "long_factor" if length > given["original"] else "short_factor"
    return np.asarray(rotation._plain() / np.asarray(given[name], np.float64))


_SCALED = {
    "default": _default,
    "mrope": _default,
    "linear": _linear,
    "proportional": _proportional,
    "dynamic": _dynamic,
    "xdrope": _dynamic,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
}


class AngleGap(NamedTuple):
    """How far angles differ between two positions.

    Attributes
    ----------
    distance : int
        Of the two positions.
    pairs : int
        Pairs of channels whose angles differ by 0.1 rad or more.
    largest : float
        The largest difference of a pair, in rad from 0 to pi.
    cosine : float
        The mean over the pairs of the cosine of the difference: 1 for the same angles, 0 for unrelated ones.
    """

    distance: int
    pairs: int
    largest: float
    cosine: float


class AngleDifference(NamedTuple):
    """The difference between the angles of two layers.

    Attributes
    ----------
    differing, pairs : int
        Pairs of channels that turn otherwise, and all of them.
    pair : int
        The pair that differs most, from 0.
    here, there : float
        Radians by which it turns from a position to the next.
    beyond : int
        The length of a text above which they differ; 0 if they differ in every text.
    reach : int
        Keys that a query of the layer sees at most.
    frequencies : tuple of two arrays
    """

    differing: int
    pairs: int
    pair: int
    here: float
    there: float
    beyond: int
    reach: int
    frequencies: tuple[NDArray[np.float64], NDArray[np.float64]]

    def gaps(self, distances: tuple[int, ...] = ()) -> tuple[AngleGap, ...]:
        """How far the angles of two positions differ, by their distance; by default within reach."""
        here, there = self.frequencies
        found = []
        for distance in distances or [each for each in DISTANCES if each < self.reach]:
            turned = np.abs(np.remainder(distance * (here - there) + math.pi, 2 * math.pi) - math.pi)
            cosine = float(np.cos(turned).mean())
            found.append(AngleGap(distance, int((turned >= FAR).sum()), float(turned.max()), cosine))
        return tuple(found)

    def __str__(self) -> str:
        beyond = f" in texts of more than {self.beyond} tokens" if self.beyond else ""
        return (
            f"{self.differing} of {self.pairs} pairs of channels turn otherwise{beyond}, most of all pair "
            f"{self.pair}: {self.here:.4g} rad a position here, {self.there:.4g} there"
        )


def angle_difference(
    mine: Rotation, theirs: Rotation, limit: int, window: int | None = None
) -> AngleDifference | None:
    """The difference of the angles in short texts, else in texts up to `limit` tokens; None if there is none.

    Where one of two layers has more pairs, the others are compared.
    """
    reach = limit if window is None else min(limit, window)
    for beyond in sorted({0, *_switches(mine), *_switches(theirs)}):
        at = limit if beyond else 1
        here, there = mine.frequencies(at), theirs.frequencies(at)
        if here is None or there is None or beyond >= limit:
            continue
        count = min(here.size, there.size)
        here, there = here[:count], there[:count]
        differs = ~np.isclose(here, there, rtol=_TOLERANCE, atol=0)
        if differs.any():
            most = int(np.abs(here - there).argmax())
            numbers = float(here[most]), float(there[most])
            return AngleDifference(int(differs.sum()), count, most, *numbers, beyond, reach, (here, there))
    return None


def _switches(rotation: Rotation) -> list[int]:
    """Lengths of texts above which the frequencies may be others."""
    given = dict(rotation.parameters)
    found = [given[name] for name in ("original", "longest") if isinstance(given.get(name), (int, float))]
    return [int(each) for each in found if 0 < each < 2**63]
