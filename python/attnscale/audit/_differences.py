# SPDX-License-Identifier: BSD-3-Clause
"""Differences between two plans: the layers, the first position, and the size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .._base.tabled import Labelled, Sheet, Tabled
from .._base.text import counted, grouped
from ._angles import PAIRING, AngleDifference, AngleGap, Rotation, angle_difference
from ._layer import Channels, LayerPlan
from ._text import named, ranges

_CHANNELS = ("rotated", "unrotated")
_TOLERANCE = 1e-9  # relative; multipliers are float64
_CHUNK = 1 << 16


@dataclass(frozen=True)
class Difference:
    """One thing that differs in the same way in some layers of two plans.

    Attributes
    ----------
    layers : tuple of int
        Numbers of the layers, from 0; empty if the plans differ in the number of layers.
    what : str
        "rotated", "unrotated" (the multiplier of those channels), "softcap", "capped score" (its multiplier),
        "window" (largest number of keys of a query), "sink", "refusal", "padding counts" (in positions),
        "channels" (number of all and of rotated ones), "norm" (of q and k), "kind" (of the layer, as
        "sliding_attention"), "layers" (their number), "angles" (of rotary positions, in rad from one position
        to the next, of the pair of channels that differs most) or "pairs" (channels that rotate together, and
        along which axis).
    first_position : int or None
        First position with another multiplier; None if it does not depend on the position.
    here, there : float, bool, str, int or None
        The values of the two plans at that position.
    keys_here, keys_there : tuple of str
        The keys of the configs that they come from, with their values.
    angles : AngleDifference or None
        The difference of the angles, if the frequencies are known.
    """

    layers: tuple[int, ...]
    what: str
    first_position: int | None
    here: Any
    there: Any
    keys_here: tuple[str, ...] = ()
    keys_there: tuple[str, ...] = ()
    angles: AngleDifference | None = field(default=None, repr=False, compare=False)

    def gaps(self, distances: Iterable[int] = ()) -> tuple[AngleGap, ...]:
        """Differences of the angles of two positions of a head, by the distance of the positions.

        Parameters
        ----------
        distances : iterable of int
            In tokens; default: 1, 64 and 4096, within the layer's reach.

        Returns
        -------
        tuple of AngleGap
            The distance, the number of pairs of channels that differ by 0.1 rad or more, the largest
            difference in rad, and the mean cosine of the differences; empty unless angles differ.

        Examples
        --------
        >>> import attnscale as at
        >>> config = {"model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32,
        ...           "num_hidden_layers": 32, "rope_theta": 500000.0}
        >>> plans = [at.audit.resolve({**config, "rope_theta": theta}) for theta in (500000.0, 10000.0)]
        >>> plans[0].differences(plans[1])[0].gaps([64])[0].pairs
        44
        """
        return () if self.angles is None else self.angles.gaps(tuple(distances))

    def to_dict(self, distances: Iterable[int] = ()) -> dict[str, Any]:
        """The difference in types of JSON, with the angles at some distances.

        Parameters
        ----------
        distances : iterable of int
            As for :meth:`gaps`.

        Examples
        --------
        >>> Difference((0,), "sink", None, True, False).to_dict()["there"]
        False
        """
        fields = {name: value for name, value in vars(self).items() if name != "angles"}
        lists = {name: list(fields[name]) for name in ("layers", "keys_here", "keys_there")}
        return {**fields, **lists, "angles": [gap._asdict() for gap in self.gaps(distances)]}

    @property
    def ratio(self) -> float | None:
        """Here over there, for a multiplier that is not 0 there."""
        if self.first_position is None or not self.there:
            return None
        return float(self.here / self.there)

    @property
    def source(self) -> str:
        """The keys that only one of the plans names, in words; empty if both name the same ones."""
        if set(self.keys_here) == set(self.keys_there):
            return ""
        here = [key for key in self.keys_here if key not in self.keys_there]
        there = [key for key in self.keys_there if key not in self.keys_here]
        return f"from {'; '.join(here) or 'no key'} here, {'; '.join(there) or 'no key'} there"

    def __str__(self) -> str:
        where = f"layers {named(list(self.layers))}, " if self.layers else ""
        if self.angles is not None:
            return f"{where}angles: {self.angles}"
        if self.first_position is None:
            return f"{where}{self.what}: {_said(self.here)} here, {_said(self.there)} there"
        ratio = "" if self.ratio is None else f" ({self.ratio:.4f} times)"
        what = f"{self.what} channels" if self.what in _CHANNELS else self.what
        return (
            f"{where}{what}: differs from i = {self.first_position} on: "
            f"{self.here:.7g} here, {self.there:.7g} there{ratio}"
        )


class Differences(Tabled, tuple[Difference, ...]):
    """All differences between two plans: a tuple of :class:`Difference` that prints as a table.

    It is empty, and so false, if the plans agree; ``to_pandas()`` has one line for each difference.

    Examples
    --------
    >>> import attnscale as at
    >>> old = {"model_type": "gemma2", "hidden_size": 4608, "num_attention_heads": 32, "head_dim": 128,
    ...        "num_hidden_layers": 46, "query_pre_attn_scalar": 224}
    >>> new = {**old, "query_pre_attn_scalar": 144}
    >>> at.audit.resolve(old).differences(at.audit.resolve(new))
    1 difference
      layers  what     from i        here       there   ratio
      0-45    rotated       0  0.06681531  0.08333333  0.8018
      layers 0-45: from query_pre_attn_scalar = 224 here, query_pre_attn_scalar = 144 there
    """

    __slots__ = ()

    def __new__(cls, found: Iterable[Difference] = ()) -> Differences:
        return super().__new__(cls, found)

    def rows(self) -> list[dict[str, Any]]:
        """One row for each difference: lists are texts."""
        return [
            {
                **each.to_dict(),
                "layers": ranges(list(each.layers)),
                **{name: "; ".join(getattr(each, name)) for name in ("keys_here", "keys_there")},
                "angles": "; ".join(gap_lines(each)),
            }
            for each in self
        ]

    def _variables(self) -> dict[str, Labelled]:
        columns: dict[str, list[Any]] = {"layers": [ranges(list(each.layers)) for each in self]}
        for name in ("what", "first_position", "here", "there"):
            columns[name] = [getattr(each, name) for each in self]
        for name in ("keys_here", "keys_there"):
            columns[name] = ["; ".join(getattr(each, name)) for each in self]
        return {name: Labelled(("difference",), _objects(values)) for name, values in columns.items()}

    def _sheet(self, nats: float, unit: str) -> Sheet:
        if not self:
            return Sheet("no difference")
        rows = [
            (
                named(list(each.layers)) or "all",
                each.what,
                "-" if each.first_position is None else str(each.first_position),
                _cell(each.here),
                _cell(each.there),
                "-" if each.ratio is None else f"{each.ratio:.4f}",
            )
            for each in self
        ]
        notes = tuple(
            f"  layers {named(list(each.layers))}: {line}"
            for each in self
            for line in (*filter(None, [str(each.angles or ""), each.source]), *gap_lines(each))
        )
        return Sheet(
            counted(len(self), "difference"),
            ("layers", "what", "from i", "here", "there", "ratio"),
            rows,
            notes,
        )


def gap_lines(each: Difference, distances: Iterable[int] = ()) -> list[str]:
    pairs = 0 if each.angles is None else each.angles.pairs
    return [
        f"two positions {gap.distance} apart: {gap.pairs} of {pairs} pairs differ by 0.1 rad or more, "
        f"one of them by {gap.largest:.3g} rad; mean cosine {gap.cosine:.3f}"
        if gap.pairs
        else f"two positions {gap.distance} apart: no pair differs by 0.1 rad; mean cosine {gap.cosine:.3f}"
        for gap in each.gaps(distances)
    ]


def in_angles_alone(found: Iterable[Difference]) -> bool:
    kinds = {each.what for each in found}
    return bool(kinds) and kinds <= {"angles", "pairs"}


def _objects(values: list[Any]) -> Any:
    """An array of objects, since NumPy would convert numbers, texts and None to one type."""
    column = np.empty(len(values), object)
    column[:] = values
    return column


def _cell(value: Any) -> str:
    return f"{value:.7g}" if isinstance(value, float) else _said(value)


def _said(value: Any) -> str:
    words: dict[Any, str] = {None: "none", True: "yes", False: "no"}
    return words[value] if value is None or isinstance(value, bool) else str(value)


def compare_layers(here: Sequence[LayerPlan], there: Sequence[LayerPlan], limit: int) -> Differences:
    """The differences at positions below `limit`; layers that differ in the same way are one difference."""
    found: list[Difference] = []
    if len(here) != len(there):
        found.append(Difference((), "layers", None, len(here), len(there)))
    pairs = grouped(zip(here, there, strict=False), _without_what_is_alike)
    for (mine, theirs), alike in pairs.items():
        found += _layer(tuple(each.index for each, _ in alike), mine, theirs, limit)
    return Differences(found)


def _without_what_is_alike(pair: tuple[LayerPlan, LayerPlan]) -> tuple[LayerPlan, LayerPlan]:
    """Two layers without their numbers, and without the kind and window if they have them in common."""
    mine, theirs = pair
    without: dict[str, Any] = {"index": 0}
    without |= {"kind": ""} if mine.kind == theirs.kind else {}
    turned_alike = mine.rotation == theirs.rotation  # otherwise the reach of a layer matters
    without |= {"rotation": None} if turned_alike else {}
    without |= {"window": None, "window_key": ""} if turned_alike and mine.window == theirs.window else {}
    return replace(mine, **without), replace(theirs, **without)


def _layer(layers: tuple[int, ...], mine: LayerPlan, theirs: LayerPlan, limit: int) -> list[Difference]:
    def differing(what: str, field: str, *key: str) -> list[Difference]:
        """The difference in a field, with the other fields `key` that name its keys."""
        here, there = (getattr(each, field) for each in (mine, theirs))
        keys = [tuple(getattr(each, name) for name in key if getattr(each, name)) for each in (mine, theirs)]
        return [] if here == there else [Difference(layers, what, None, here, there, keys[0], keys[1])]

    found = differing("kind", "kind")
    if mine.refusal is not None or theirs.refusal is not None:
        if mine.refusal == theirs.refusal:
            return found
        here, there = (each.refusal or "has a multiplier" for each in (mine, theirs))
        return [*found, Difference(layers, "refusal", None, here, there)]
    here, there = (f"{each.rotated} of {each.head_dim} rotated" for each in (mine, theirs))
    found += [] if here == there else [Difference(layers, "channels", None, here, there)]
    for channels in mine.channel_kinds:
        if channels in theirs.channel_kinds:
            found += _multipliers(layers, mine, theirs, channels, limit)
    if mine.rotation is not None and theirs.rotation is not None:
        windows = [each for each in (mine.window, theirs.window) if each is not None]
        found += _angles(layers, mine.rotation, theirs.rotation, limit, min(windows, default=None))
    found += differing("softcap", "softcap", "softcap_key")
    if mine.softcap is not None and theirs.softcap is not None:
        found += _behind_caps(layers, mine, theirs, limit)
    found += differing("window", "window", "window_key")
    others = (("sink", "sink"), ("norm", "qk_norm"), ("padding counts", "counts_padding"))
    return [*found, *(each for pair in others for each in differing(*pair))]


def _multipliers(
    layers: tuple[int, ...], mine: LayerPlan, theirs: LayerPlan, channels: Channels, limit: int
) -> list[Difference]:
    keys = _keys(mine, theirs, channels), _keys(theirs, mine, channels)
    found = _first(both_sides(channels, mine, theirs), limit)
    return [Difference(layers, channels, *each, *keys) for each in found]


def _angles(
    layers: tuple[int, ...], mine: Rotation, theirs: Rotation, limit: int, window: int | None
) -> list[Difference]:
    """Differences of the angles, and of the channels that rotate together."""
    from_keys = partial(Difference, layers, keys_here=mine.keys, keys_there=theirs.keys)
    found = []
    if mine != theirs and (mine.frequencies() is None or theirs.frequencies() is None):
        here, there = (each.unread or "as its keys say" for each in (mine, theirs))
        found.append(from_keys("angles", None, here, there))
    elif (angles := angle_difference(mine, theirs, limit, window)) is not None:
        found.append(from_keys("angles", None, angles.here, angles.there, angles=angles))
    here, there = (
        ", ".join(f"{name} = {value}" for name, value in each.parameters if name in PAIRING) or "as usual"
        for each in (mine, theirs)
    )
    return found if here == there else [*found, from_keys("pairs", None, here, there)]


def _behind_caps(layers: tuple[int, ...], mine: LayerPlan, theirs: LayerPlan, limit: int) -> list[Difference]:
    if not (mine.terms_behind_cap or theirs.terms_behind_cap):
        return []
    here, there = (tuple(term.key for term in each.terms_behind_cap) for each in (mine, theirs))
    found = _first(both_sides("capped score", mine, theirs), limit)
    return [Difference(layers, "capped score", *each, here, there) for each in found]


_Multipliers: TypeAlias = Callable[[NDArray[np.int64]], NDArray[np.float64]]


def both_sides(what: str, mine: LayerPlan, theirs: LayerPlan) -> tuple[_Multipliers, _Multipliers]:
    """Multipliers by position to compare; if only one layer has a soft-cap, with the factors after it."""
    if what == "capped score":
        return mine.capped_multipliers, theirs.capped_multipliers
    channels: Channels = "rotated" if what == "rotated" else "unrotated"
    whole = (mine.softcap is None) != (theirs.softcap is None)
    of_mine, of_theirs = (partial(_multiplier, layer, channels, whole=whole) for layer in (mine, theirs))
    return of_mine, of_theirs


def _multiplier(
    layer: LayerPlan, channels: Channels, positions: NDArray[np.int64], *, whole: bool
) -> NDArray[np.float64]:
    """The multiplier before the soft-cap, or with the factors after it too."""
    found = layer.multipliers(positions, channels)
    return found * layer.capped_multipliers(positions) if whole else found


def _first(both: tuple[_Multipliers, _Multipliers], limit: int) -> list[tuple[int, float, float]]:
    """(position, here, there) of the first position below `limit` at which two multipliers differ."""
    for start in range(0, limit, _CHUNK):
        positions = np.arange(start, min(start + _CHUNK, limit))
        here, there = (each(positions) for each in both)
        differs = np.flatnonzero(~np.isclose(here, there, rtol=_TOLERANCE, atol=0))
        if differs.size:
            first = int(differs[0])
            return [(int(positions[first]), float(here[first]), float(there[first]))]
    return []


def _keys(layer: LayerPlan, other: LayerPlan, channels: Channels) -> tuple[str, ...]:
    laws = [(term.law, term.channels) for term in (other.base, *other.terms)]
    terms = [each for each in (layer.base, *layer.terms) if each.acts_on(channels)]
    return tuple(dict.fromkeys(each.key for each in terms if (each.law, each.channels) not in laws))
