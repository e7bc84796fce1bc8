# SPDX-License-Identifier: BSD-3-Clause
"""Where the layers of two plans differ, from which position on, and by how much."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ._difference import Difference, Differences
from ._layer import Channels, LayerPlan, Term

__all__ = ["compare_layers"]

_TOLERANCE = 1e-9  # relative; multipliers are float64
_CHUNK = 1 << 16


def compare_layers(here: Sequence[LayerPlan], there: Sequence[LayerPlan], limit: int) -> Differences:
    """What differs at positions below `limit`; layers that differ in the same way are one difference."""
    found: list[Difference] = []
    if len(here) != len(there):
        found.append(Difference((), "layers", None, len(here), len(there)))
    numbers: dict[tuple[LayerPlan, LayerPlan], list[int]] = {}
    for mine, theirs in zip(here, there, strict=False):
        pair = replace(mine, index=0), replace(theirs, index=0)
        if mine.kind == theirs.kind:  # layers that differ in nothing but the name of their kind are alike
            pair = replace(pair[0], kind=""), replace(pair[1], kind="")
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
        found.append(Difference(layers, "softcap", None, *caps, _cap_key(mine), _cap_key(theirs)))
    if mine.sink != theirs.sink:
        found.append(Difference(layers, "sink", None, mine.sink, theirs.sink))
    if mine.qk_norm != theirs.qk_norm:
        found.append(Difference(layers, "norm", None, mine.qk_norm, theirs.qk_norm))
    return found


def _cap_key(layer: LayerPlan) -> tuple[str, ...]:
    return (layer.softcap_key,) if layer.softcap_key else ()


def _channels(layer: LayerPlan) -> str:
    return f"{layer.rotated} of {layer.head_dim} rotated"


def _multipliers(
    layers: tuple[int, ...], mine: LayerPlan, theirs: LayerPlan, channels: Channels, limit: int
) -> list[Difference]:
    for start in range(0, limit, _CHUNK):
        positions = np.arange(start, min(start + _CHUNK, limit))
        here, there = (each.multipliers(positions, channels) for each in (mine, theirs))
        differs = np.flatnonzero(~np.isclose(here, there, rtol=_TOLERANCE, atol=0))
        if differs.size:
            first = int(differs[0])
            values = float(here[first]), float(there[first])
            keys = _keys(mine, theirs, channels), _keys(theirs, mine, channels)
            return [Difference(layers, channels, int(positions[first]), *values, *keys)]
    return []


def _keys(layer: LayerPlan, other: LayerPlan, channels: Channels) -> tuple[str, ...]:
    """Keys of the factors that the other layer does not have."""
    laws = [_law(term) for term in (other.base, *other.terms)]
    terms = [each for each in (layer.base, *layer.terms) if each.acts_on(channels)]
    return tuple(dict.fromkeys(each.key for each in terms if _law(each) not in laws))


def _law(term: Term) -> tuple[Any, str]:
    return term.law, term.channels
