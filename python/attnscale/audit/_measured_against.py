# SPDX-License-Identifier: BSD-3-Clause
"""Differences between what a loaded model multiplied and what its config says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .._base.text import grouped
from ..laws import LatentScale
from ._angles import Rotation, least_turn
from ._layer import Channels, LayerPlan
from ._measured_layer import MeasuredLayer, Turns
from ._rules.pairing import pairing_of
from ._scale_plan import ScalePlan
from ._slips import NO_FACTOR, NOT_TURNED, SCALINGS, UNSCALED, angle_slips, score_slips, unscaled_rotation
from ._text import named

#: Smallest relative difference of two multipliers, and of two angles in rad, that counts.
_LEAST, _LEAST_ANGLE = 2e-4, 1e-3
#: Function from the tokens of a text to the rotation of each pair from one position to the next, in rad.
Frequencies: TypeAlias = Callable[[int], NDArray[np.float64] | None]
#: Name of the slip of a multiplier that does not depend on the position.
NOT_TEMPERED = "temperature by position not applied"
#: Significant bits of types in which a model may keep its frequencies.
_TYPES = {"bfloat16": 8, "float16": 11}
#: Relative spacing of numbers of single precision, about.
_SINGLE = 1e-6
#: Error of an angle beyond which a pair tells nothing, in rad.
_VAGUE = 0.1


@dataclass(frozen=True)
class MeasuredDifference:
    """One thing that some layers of a loaded model do otherwise than its config says.

    Attributes
    ----------
    layers : tuple of int
    what : str
        "rotated", "unrotated" (the multiplier of those channels), "factor by channel", "factor by head",
        "growth of keys" (with their position), "angles" and "angles of keys" (of rotary positions, in rad
        from one position to the next, of the pair of channels that differs most), "pairs" (channels that
        turn together), "softcap", "window" (largest number of keys of a query), "sink", "causal" and "bias"
        (other than in most layers) or "channels".
    position : int or None
        First measured position with a difference; None where it does not depend on the position.
    measured, config : float, bool, str or None
    slip : str
        Name of a known slip that explains the difference, or empty.
    tower : str
        Part of the model that the layers belong to; empty in a model of one part.
    """

    layers: tuple[int, ...]
    what: str
    position: int | None
    measured: Any
    config: Any
    slip: str = ""
    tower: str = ""

    @property
    def ratio(self) -> float | None:
        """Measured over config, for a multiplier that is not 0 there."""
        if self.what not in ("rotated", "unrotated") or not self.config:
            return None
        return float(self.measured / self.config)

    def to_dict(self) -> dict[str, Any]:
        """The difference in types of JSON."""
        return {**vars(self), "layers": list(self.layers), "ratio": self.ratio}

    def __str__(self) -> str:
        layers = f"layer{'s' if len(self.layers) > 1 else ''} {named(list(self.layers))}"
        where = f"{self.tower}, {layers}" if self.tower else layers
        slip = f": {self.slip}" if self.slip else ""
        if self.ratio is not None:
            on = "" if self.what == "rotated" else " on channels without rotation"
            at = f" at position {self.position}" if self.position else ""
            return (
                f"{where}: the model multiplies q . k by {self.measured:.6g}{on}{at}, the config says "
                f"{self.config:.6g} ({self.ratio:.4f} times){slip}"
            )
        what = _NAMES.get(self.what, self.what)
        here, there = (said(each) for each in (self.measured, self.config))
        if here == there:
            here, there = (f"{each:.9g}" for each in (self.measured, self.config))
        return f"{where}: {what}: {here} in the model, {there} in the config{slip}"


_NAMES = {
    "angles": "rotation, rad a position",
    "angles of keys": "rotation of keys, rad a position",
    "pairs": "pairs of channels",
    "softcap": "soft-cap",
    "causal": "later keys are hidden",
    "bias": "numbers added to scores",
}


def said(value: Any) -> str:
    """A value of a difference in words."""
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    return f"{value:.6g}" if isinstance(value, float) else str(value)


class Comparison(NamedTuple):
    """Differences of one tower, the number of its layers that were compared, and what could not be."""

    differences: list[MeasuredDifference]
    compared: int
    remarks: list[str]


def differences_from(
    plan: ScalePlan, layers: Sequence[MeasuredLayer], config: Mapping[str, Any]
) -> Comparison:
    """Differences of the layers of one tower from a plan.

    Channels are paired as the family's checkpoints are, or as in most layers where that is not known.
    """
    found: list[MeasuredDifference] = []
    remarks: list[str] = []
    compared = 0
    usual = _usual(layers)
    beyond = [each.index for each in layers if each.index >= len(plan)]
    if beyond:
        remarks.append(f"layers {named(beyond)} were not compared: the config has {len(plan)} layers")
    for layer in layers:
        if layer.reason or layer.index >= len(plan):
            continue
        asked = plan.layers[layer.index]
        if asked.refusal is not None:
            remarks.append(f"the config does not say the scale of layers like {layer.index}: {asked.refusal}")
            continue
        known = pairing_of(plan.model_type, asked.rotation)
        alike = usual._replace(pairing=known) if known else usual
        tried = [_Against(plan, each, layer, config) for each in _without_latents(asked)]
        differences, against = min(
            ((each.differences(alike), each) for each in tried), key=lambda each: len(each[0])
        )
        found += differences
        remarks += against.remarks
        compared += 1
    return Comparison(_joined(found), compared, list(dict.fromkeys(remarks)))


def _without_latents(plan: LayerPlan) -> Iterator[LayerPlan]:
    """The plan, and the plan without factors that a model may apply before its last projection."""
    latent = [term for term in plan.terms if isinstance(term.law, LatentScale)]
    for count in range(len(latent) + 1):
        for left_out in combinations(latent, count):
            yield replace(plan, terms=tuple(term for term in plan.terms if term not in left_out))


class _Usual(NamedTuple):
    """Facts of more than half of the layers, where a config has no key for them."""

    pairing: str
    is_causal: bool | None
    bias: bool | None


def _usual(layers: Iterable[MeasuredLayer]) -> _Usual:
    """Facts of most layers; empty or None where there is no majority."""
    there = [each for each in layers if not each.reason]

    def most(values: list[Any], none: Any) -> Any:
        first = Counter(values).most_common(1)
        return first[0][0] if first and 2 * first[0][1] > len(values) else none

    return _Usual(
        most([each.pairing for each in there if each.pairing], ""),
        most([each.is_causal for each in there], None),
        most([each.bias for each in there], None),
    )


def _joined(found: list[MeasuredDifference]) -> list[MeasuredDifference]:
    """Layers that differ alike as one difference."""

    def key(each: MeasuredDifference) -> Any:
        values = [f"{x:.4g}" if isinstance(x, float) else x for x in (each.measured, each.config)]
        return each.what, each.position, *values, each.slip

    return [
        replace(alike[0], layers=tuple(number for each in alike for number in each.layers))
        for alike in grouped(found, key).values()
    ]


class _Against:
    """One layer against its plan."""

    def __init__(
        self, whole: ScalePlan, plan: LayerPlan, layer: MeasuredLayer, config: Mapping[str, Any]
    ) -> None:
        self._whole, self._plan, self._layer, self._config = whole, plan, layer, config
        self._near = max(_LEAST, layer.rounding)
        self.remarks: list[str] = []

    def differences(self, usual: _Usual) -> list[MeasuredDifference]:
        """All differences, with the slips that explain them."""
        if self._plan.head_dim != self._layer.head_dim:
            return [self._found("channels", None, self._layer.head_dim, self._plan.head_dim)]
        scores = list(self._scores())
        uneven = any(each.what == "factor by channel" for each in scores)
        angles = None if uneven else self._angles()
        if uneven:
            self.remarks.append("rotation was not compared in layers with a factor by channel")
        score_slip = self._score_slip() if any(each.position == 0 for each in scores) else ""
        name = self._name(score_slip, None if angles is None else angles.slip)
        found = [each if each.position else replace(each, slip=score_slip and name) for each in scores]
        found += [] if angles is None else [replace(angles, slip=angles.slip and name)]
        return [*found, *self._pairs(usual.pairing), *self._others(), *self._unlike(usual)]

    def _found(
        self, what: str, position: int | None, measured: Any, config: Any, slip: str = ""
    ) -> MeasuredDifference:
        return MeasuredDifference((self._layer.index,), what, position, measured, config, slip)

    def _name(self, score: str, angle: str | None) -> str:
        """One name for what happened to the multiplier and to the angles, which are None if as asked."""
        scaling = SCALINGS.get(self._plan.rotation.kind if self._plan.rotation else "", "scaling")
        if angle == UNSCALED and score in (NO_FACTOR, ""):
            return f"{scaling} not applied"
        if score == NO_FACTOR and angle is None:
            return f"{scaling} turns channels, and does not multiply the score"
        return ", ".join(dict.fromkeys(each for each in (score, angle) if each))

    # ---- the multiplier

    @cached_property
    def _chosen(self) -> dict[Channels, NDArray[np.bool_]]:
        """Channels by the kind that the plan gives them."""
        plan, seen = self._plan, self._layer.rotated
        first = np.arange(plan.head_dim) < plan.rotated
        if plan.rotated not in (0, plan.head_dim):
            if int(seen.sum()) == plan.rotated:
                first = seen
            elif seen.any() and seen[-1] and not seen[0]:
                first = first[::-1]
        return {"rotated": first, "unrotated": ~first}

    def _scores(self) -> Iterator[MeasuredDifference]:
        """The first difference of the multiplier of each kind of channels, or of the heads."""
        heads = self._layer.by_head
        if max(heads) - min(heads) > 4 * self._near * max(map(abs, heads)):
            ends = f"{heads[0]:.6g} in the first head, {heads[-1]:.6g} in the last"
            yield self._found("factor by head", None, ends, "one for all")
            return
        for channels in self._plan.channel_kinds:
            factors = self._layer.factors[self._chosen[channels]]
            middle = float(np.median(factors))
            if np.ptp(factors) > 4 * self._near * abs(middle):
                ends = f"{factors.min():.6g} to {factors.max():.6g}"
                yield self._found("factor by channel", None, ends, self._asked(0, channels))
                continue
            for position, value in self._by_position(channels, middle):
                asked = self._asked(position, channels)
                if abs(value - asked) > self._near * abs(asked):
                    slip = NOT_TEMPERED if position and self._is_constant(channels) else ""
                    yield self._found(channels, position, value, asked, slip)
                    break
        for position, turns in self._layer.key.items():
            growth = float(np.median(turns.growth))
            if abs(growth - 1) > self._near:
                yield self._found("growth of keys", position, growth, 1.0)
                break

    def _by_position(self, channels: Channels, middle: float) -> Iterator[tuple[int, float]]:
        """Measured multipliers by position, as far as the plan answers for one."""
        terms = (self._plan.base, *self._plan.terms)
        if any(term.depends_on_n and not term.law.meaning.is_position for term in terms):
            self.remarks.append(f"a law of the length was compared for {self._layer.tokens} tokens alone")
            yield self._layer.tokens - 1, middle
            return
        yield 0, middle
        for position, growth in self._growth(channels).items():
            yield position, middle * growth

    def _growth(self, channels: Channels) -> dict[int, float]:
        """Growth of queries by position."""
        chosen = self._chosen[channels]
        return {where: float(np.median(each.growth[chosen])) for where, each in self._layer.query.items()}

    def _is_constant(self, channels: Channels) -> bool:
        return all(abs(each - 1) < self._near for each in self._growth(channels).values())

    def _asked(self, position: int, channels: Channels) -> float:
        return float(self._plan.multipliers(np.array([position]), channels)[0])

    def _score_slip(self) -> str:
        """The known slip that gives the multipliers at position 0."""
        seen = {
            kind: float(np.median(self._layer.factors[self._chosen[kind]]))
            for kind in self._plan.channel_kinds
        }
        for slip in score_slips(self._config, self._plan, self._whole):
            if all(abs(value / getattr(slip, kind) - 1) < self._near for kind, value in seen.items()):
                return slip.name
        return ""

    # ---- the angles

    def _angles(self) -> MeasuredDifference | None:
        """The pair of channels whose angle differs most, with the slip that explains all pairs."""
        rotation, layer = self._plan.rotation, self._layer
        if not layer.query:
            if rotation is not None:
                self.remarks.append("rotation was not measured: the model takes no positions")
            return None
        if self._plan.qk_norm == "after rotation":
            self.remarks.append("rotation was not measured in layers that norm q and k behind it")
            return None
        if rotation is None:
            if not layer.turning.any():
                return None
            return self._found(
                "angles", None, self._first_angle(), 0.0, "rotated, where the config has no positions"
            )
        for what, side in (("angles", layer.query), ("angles of keys", layer.key)):
            if gaps := self._gaps(rotation.frequencies, side):
                return self._of_gaps(what, rotation, side, gaps)
        return None

    def _of_gaps(
        self, what: str, rotation: Rotation, side: Mapping[int, Turns], gaps: list[_Gap]
    ) -> MeasuredDifference:
        """The largest gap at the position nearest to 0, where an angle has no whole turns."""
        nearest = min(each.position for each in gaps)
        most = max((each for each in gaps if each.position == nearest), key=_Gap.size)
        frequencies = rotation.frequencies(most.position + 1)
        assert frequencies is not None
        asked = float(frequencies[most.pair])
        seen = asked + least_turn(most.seen - most.asked) / most.position
        seen = 0.0 if abs(seen) < 1e-12 else seen
        return self._found(what, None, seen, asked, self._angle_slip(rotation, side))

    def _first_angle(self) -> float:
        turns = next(iter(self._layer.query.values()))
        return float(np.nanmax(np.abs(turns.angles)))

    def _angle_slip(self, rotation: Rotation, side: Mapping[int, Turns]) -> str:
        """The name of a slip that explains all angles, or empty."""
        unscaled = unscaled_rotation(self._plan, self._whole)

        def explains(frequencies: Frequencies) -> bool:
            return self._gaps(frequencies, side) == []

        def always(angles: NDArray[np.float64]) -> Frequencies:
            return lambda length: angles

        def with_bits(bits: int) -> Frequencies:
            return lambda length: _rounded(rotation.frequencies(length), bits)

        slips = angle_slips(self._config, self._plan, self._whole, unscaled)
        found = next((name for name, angles in slips.items() if explains(always(angles))), "")
        if found or not self._layer.turning.any():
            return found or NOT_TURNED
        named = (name for name, bits in _TYPES.items() if explains(with_bits(bits)))
        return next((f"frequencies rounded to {name}" for name in named), "")

    def _gaps(self, frequencies: Frequencies, side: Mapping[int, Turns]) -> list[_Gap] | None:
        """Pairs of queries, or keys, with another angle; None where nothing can be told."""
        found, told = [], False
        for position, turns in side.items():
            asked = frequencies(position + 1)
            if asked is None:
                return None
            for pair, channel in self._places(len(asked)):
                want = float(asked[pair] * position)
                error = _LEAST_ANGLE + 2 * float(turns.blur[channel]) + abs(want) * 4e-7
                seen = float(turns.angles[channel])  # NaN if it turns with an unknown partner
                if error > _VAGUE or (np.isnan(seen) and self._layer.rounding > _SINGLE):
                    continue
                told = True
                if not abs(least_turn(seen - want)) <= error:
                    found.append(_Gap(pair, position, float(np.nan_to_num(seen)), want))
        return found if told else None

    def _places(self, pairs: int) -> Iterator[tuple[int, int]]:
        """Pairs by number, with the first channel of each."""
        block = np.flatnonzero(self._chosen["rotated"])
        start, adjacent = int(block[0]) if block.size else 0, self._layer.offset == 1
        for pair in range(min(pairs, self._plan.rotated // 2)):
            yield pair, start + (2 * pair if adjacent else pair)

    # ---- everything else

    def _pairs(self, pairing: str) -> Iterator[MeasuredDifference]:
        if pairing and self._layer.pairing and self._layer.pairing != pairing:
            yield self._found("pairs", None, self._layer.pairing, pairing, "channels paired otherwise")

    def _others(self) -> Iterator[MeasuredDifference]:
        plan, layer = self._plan, self._layer
        if not _alike(layer.softcap, plan.softcap, self._near):
            slip = "" if layer.softcap else "cap absent"
            yield self._found("softcap", None, layer.softcap, plan.softcap, slip)
        if plan.window is not None and plan.window >= layer.tokens and layer.window is None:
            text = f"the window of {plan.window} keys is longer than the {layer.tokens} tokens that ran"
            self.remarks.append(text)
        elif plan.window != layer.window:
            slip = _window_slip(layer.window, plan.window)
            yield self._found("window", None, layer.window, plan.window, slip)
        if layer.sink is not None and plan.sink != layer.sink:
            yield self._found("sink", None, layer.sink, plan.sink, "" if layer.sink else "sink absent")

    def _unlike(self, usual: _Usual) -> Iterator[MeasuredDifference]:
        """Facts without a key, other than in most layers."""
        layer = self._layer
        if usual.is_causal is not None and layer.is_causal != usual.is_causal:
            yield self._found("causal", None, layer.is_causal, usual.is_causal, "other than in most layers")
        if usual.bias is not None and layer.bias != usual.bias:
            yield self._found("bias", None, layer.bias, usual.bias, "other than in most layers")


class _Gap(NamedTuple):
    """A pair of channels at a position: the angle that was seen, and the one that was asked for."""

    pair: int
    position: int
    seen: float
    asked: float

    def size(self) -> float:
        return abs(least_turn(self.seen - self.asked))


def _alike(seen: float | None, asked: float | None, near: float) -> bool:
    """Whether two numbers that may be absent are equal up to a relative error."""
    if seen is None or asked is None:
        return seen is asked
    return abs(seen - asked) <= near * asked


def _window_slip(seen: int | None, asked: int | None) -> str:
    if seen is None:
        return "window absent or longer"
    return {1: "window one long", -1: "window one short"}.get(seen - (asked or 0), "") if asked else ""


def _rounded(numbers: NDArray[np.float64] | None, bits: int) -> NDArray[np.float64] | None:
    """Numbers with so many significant bits."""
    if numbers is None:
        return None
    fraction, exponent = np.frexp(numbers)
    return np.asarray(np.ldexp(np.round(fraction * 2.0**bits) / 2.0**bits, exponent))
