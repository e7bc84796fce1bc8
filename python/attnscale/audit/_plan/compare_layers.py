# SPDX-License-Identifier: BSD-3-Clause
"""The layers in which two plans differ, from which position on, and by how much."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .difference import Difference, Differences
from .layer import Channels, LayerPlan, Term

_TOLERANCE = 1e-9  # relative; multipliers are float64
_CHUNK = 1 << 16


def compare_layers(here: Sequence[LayerPlan], there: Sequence[LayerPlan], limit: int) -> Differences:
    """The differences at positions below `limit`; layers that differ in the same way are one difference."""
    found: list[Difference] = []
    if len(here) != len(there):
        found.append(Difference((), "layers", None, len(here), len(there)))
    numbers: dict[tuple[LayerPlan, LayerPlan], list[int]] = {}
    for mine, theirs in zip(here, there, strict=False):
        pair = replace(mine, index=0), replace(theirs, index=0)
        if mine.kind == theirs.kind:  # layers that differ in nothing but the name of their kind are alike
            pair = replace(pair[0], kind=""), replace(pair[1], kind="")
        if mine.window == theirs.window:  # so are layers with other windows, if both plans have them
            pair = _without_window(pair[0]), _without_window(pair[1])
        numbers.setdefault(pair, []).append(mine.index)
    for (mine, theirs), layers in numbers.items():
        found += _layer(tuple(layers), mine, theirs, limit)
    return Differences(found)


def _layer(layers: tuple[int, ...], mine: LayerPlan, theirs: LayerPlan, limit: int) -> list[Difference]:
    found = [] if mine.kind == theirs.kind else [Difference(layers, "kind", None, mine.kind, theirs.kind)]
    if mine.refusal is not None or theirs.refusal is not None:
        if mine.refusal == theirs.refusal:
            return found
        here, there = (each.refusal or "has a multiplier" for each in (mine, theirs))
        return [*found, Difference(layers, "refusal", None, here, there)]
    if _channels(mine) != _channels(theirs):
        found.append(Difference(layers, "channels", None, _channels(mine), _channels(theirs)))
    for channels in mine.channel_kinds:
        if channels in theirs.channel_kinds:
            found += _multipliers(layers, mine, theirs, channels, limit)
    if mine.softcap != theirs.softcap:
        caps = mine.softcap, theirs.softcap
        keys = _some(mine.softcap_key), _some(theirs.softcap_key)
        found.append(Difference(layers, "softcap", None, *caps, *keys))
    if mine.softcap is not None and theirs.softcap is not None:
        found += _behind_caps(layers, mine, theirs, limit)
    if mine.window != theirs.window:
        windows = mine.window, theirs.window
        keys = _some(mine.window_key), _some(theirs.window_key)
        found.append(Difference(layers, "window", None, *windows, *keys))
    if mine.sink != theirs.sink:
        found.append(Difference(layers, "sink", None, mine.sink, theirs.sink))
    if mine.qk_norm != theirs.qk_norm:
        found.append(Difference(layers, "norm", None, mine.qk_norm, theirs.qk_norm))
    return found


def _without_window(layer: LayerPlan) -> LayerPlan:
    return replace(layer, window=None, window_key="")


def _some(key: str) -> tuple[str, ...]:
    return (key,) if key else ()


def _channels(layer: LayerPlan) -> str:
    return f"{layer.rotated} of {layer.head_dim} rotated"


def _multipliers(
    layers: tuple[int, ...], mine: LayerPlan, theirs: LayerPlan, channels: Channels, limit: int
) -> list[Difference]:
    keys = _keys(mine, theirs, channels), _keys(theirs, mine, channels)
    found = _first(both_sides(channels, mine, theirs), limit)
    return [Difference(layers, channels, *each, *keys) for each in found]


def _behind_caps(layers: tuple[int, ...], mine: LayerPlan, theirs: LayerPlan, limit: int) -> list[Difference]:
    """The difference of the temperatures behind the soft-cap, if there is one."""
    if not (mine.terms_behind_cap or theirs.terms_behind_cap):
        return []
    keys = (tuple(term.key for term in each.terms_behind_cap) for each in (mine, theirs))
    found = _first(both_sides("capped score", mine, theirs), limit)
    return [Difference(layers, "capped score", *each, *keys) for each in found]


_Multipliers: TypeAlias = Callable[[NDArray[np.int64]], NDArray[np.float64]]


def both_sides(what: str, mine: LayerPlan, theirs: LayerPlan) -> tuple[_Multipliers, _Multipliers]:
    """The two functions of position that are compared: multipliers of some channels, or of the capped score.

    Where only one of the layers has a soft-cap, the other has no place behind it: all factors are compared.
    """
    if what == "capped score":
        return mine.capped_multipliers, theirs.capped_multipliers
    channels: Channels = "rotated" if what == "rotated" else "unrotated"
    whole = (mine.softcap is None) != (theirs.softcap is None)
    of_mine, of_theirs = (partial(_multiplier, layer, channels, whole=whole) for layer in (mine, theirs))
    return of_mine, of_theirs


def _multiplier(
    layer: LayerPlan, channels: Channels, positions: NDArray[np.int64], *, whole: bool
) -> NDArray[np.float64]:
    """The multiplier before the soft-cap, or with the factors behind it too."""
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
    """Keys of the factors that the other layer does not have."""
    laws = [_law(term) for term in (other.base, *other.terms)]
    terms = [each for each in (layer.base, *layer.terms) if each.acts_on(channels)]
    return tuple(dict.fromkeys(each.key for each in terms if _law(each) not in laws))


def _law(term: Term) -> tuple[Any, str]:
    return term.law, term.channels
