# SPDX-License-Identifier: BSD-3-Clause
"""Angles of rotary positions: rotation of each pair of channels, and differences between two models.

The frequencies are those of transformers' modeling_rope_utils.py, in double precision.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

#: Relative differences of frequencies below this are ignored: files have single precision.
_TOLERANCE = 1e-6

#: Parameters that put channels into pairs, or pairs to the axes of a picture.
PAIRING = ("mrope_section", "mrope_interleaved", "xdrope_section", "rope_interleave")

#: Smallest angle that counts as a difference of two pairs, in rad.
FAR = 0.1

#: Default distances of two positions at which angles are compared.
DISTANCES = (1, 64, 4096)


def least_turn(angle: float) -> float:
    """A turn as an angle between -pi and pi."""
    return float(np.remainder(angle + math.pi, 2 * math.pi) - math.pi)


@dataclass(frozen=True)
class Rotation:
    """Rotation of the channels of a layer by rotary positions.

    Attributes
    ----------
    kind : str
        Type of scaling, as "default", "linear" or "yarn".
    base : float or None
        Theta; None if the config has no valid base.
    rotated, head_dim : int
        Rotated channels, and all channels.
    parameters : tuple of pairs
        Names and values of the parameters that the type uses.
    unread : str
        Reason why the frequencies are unknown, or empty.
    keys : tuple of str
        The keys of the config for all this, with their values.
    """

    kind: str
    base: float | None
    rotated: int
    head_dim: int
    parameters: tuple[tuple[str, Any], ...] = ()
    unread: str = ""
    keys: tuple[str, ...] = field(default=(), compare=False)

    def frequencies(self, length: int = 1) -> NDArray[np.float64] | None:
        """Rotation of each pair of channels from one position to the next, in radians.

        Parameters
        ----------
        length : int
            Tokens of the text; some types of scaling depend on it.

        Returns
        -------
        ndarray, shape (rotated / 2,), or None
            float64; None if the config does not give the frequencies.

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
        size = dict(self.parameters).get("exponents", self.rotated)  # an odd number of channels, or all
        powers = np.arange(0, self.rotated, 2) / max(size, 1)
        return np.asarray(((self.base or 1.0) if base is None else base) ** -powers)


def _default(rotation: Rotation, given: Mapping[str, Any], length: int) -> NDArray[np.float64]:
    return rotation._plain()


def _linear(rotation: Rotation, given: Mapping[str, Any], length: int) -> NDArray[np.float64]:
    return np.asarray(rotation._plain() / given["factor"])


def _proportional(rotation: Rotation, given: Mapping[str, Any], length: int) -> NDArray[np.float64]:
    """Frequencies of some pairs of a head, as if all pairs rotated."""
    pairs = int(given.get("share", 1.0) * rotation.head_dim // 2)
    powers = np.arange(0, 2 * pairs, 2) / rotation.head_dim
    return np.asarray((rotation.base or 1.0) ** -powers / given.get("factor", 1.0))


def _dynamic(rotation: Rotation, given: Mapping[str, Any], length: int) -> NDArray[np.float64]:
    """A base that grows with a text longer than the model's; in HunYuan by a constant."""
    size, base = rotation.rotated, rotation.base or 1.0
    if "alpha" in given:
        return rotation._plain(base * given["alpha"] ** (size / (size - 2)))
    factor, longest = given["factor"], given["longest"]
    growth = factor * max(length, longest) / longest - (factor - 1)
    return rotation._plain(base * growth ** (size / (size - 2)))


def _ntk(rotation: Rotation, given: Mapping[str, Any], length: int) -> NDArray[np.float64]:
    """A larger base, and all pairs slower; with mixed_b slow pairs are slowed more than fast ones."""
    factor, size = given["factor"], rotation.rotated
    if "mixed_b" not in given:
        return np.asarray(rotation._plain((rotation.base or 1.0) * factor) / factor ** (2 / size))
    pairs, power = np.arange(1, size // 2 + 1), given["mixed_b"]
    slowed = np.exp(math.log(factor) * (2 * pairs / size) ** power)
    return np.asarray(rotation._plain() / slowed)


def _llama3(rotation: Rotation, given: Mapping[str, Any], length: int) -> NDArray[np.float64]:
    """Slow pairs divided by the factor, fast ones unchanged, a mix for those in between."""
    plain = rotation._plain()
    low, high = given["low_freq_factor"], given["high_freq_factor"]
    turns = given["original"] * plain / (2 * math.pi)
    mixed = np.clip((turns - low) / (high - low), 0, 1)
    return np.asarray((1 - mixed) * plain / given["factor"] + mixed * plain)


def _yarn(rotation: Rotation, given: Mapping[str, Any], length: int) -> NDArray[np.float64]:
    """YaRN: a blend of scaled and unscaled angles, by the turns of a pair in the original length."""
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
    """Each pair divided by its number in a list; long texts have another list."""
    name = "long_factor" if length > given["original"] else "short_factor"
    return np.asarray(rotation._plain() / np.asarray(given[name], np.float64))


_SCALED = {
    "default": _default,
    "mrope": _default,
    "linear": _linear,
    "proportional": _proportional,
    "dynamic": _dynamic,
    "xdrope": _dynamic,
    "ntk": _ntk,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
}


class AngleGap(NamedTuple):
    """Difference of angles between two positions.

    Attributes
    ----------
    distance : int
        Distance of the two positions.
    pairs : int
        Pairs of channels whose angles differ by 0.1 rad or more.
    largest : float
        The largest difference of a pair, in rad from 0 to pi.
    cosine : float
        Mean cosine of the difference over the pairs: 1 for equal angles, 0 for unrelated ones.
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
        Pairs of channels that rotate differently, and all pairs.
    pair : int
        The pair that differs most, from 0.
    here, there : float
        Its rotation from one position to the next, in radians.
    beyond : int
        Length of a text above which they differ; 0 if they differ in every text.
    reach : int
        Largest number of keys that a query of the layer sees.
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
        """Differences of angles at these distances of two positions; default: those within reach."""
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
    """Difference of the common pairs' angles in short texts, else up to `limit` tokens; None without one."""
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
    given = dict(rotation.parameters)
    found = [given[name] for name in ("original", "longest") if isinstance(given.get(name), (int, float))]
    return [int(each) for each in found if 0 < each < 2**63]
