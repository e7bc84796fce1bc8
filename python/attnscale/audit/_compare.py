# SPDX-License-Identifier: BSD-3-Clause
"""Where two plans differ, from which position on, and by how much."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ._layer import Channels, LayerPlan
from ._plan import ScalePlan
from ._text import ranges

__all__ = ["Difference", "compare"]

_TOLERANCE = 1e-9  # relative; multipliers are float64
_CHUNK = 1 << 16
_LONGEST = 1 << 24


@dataclass(frozen=True)
class Difference:
    """One thing that differs, in layers where it does in the same way.

    Attributes
    ----------
    layers : tuple of int
        The layers' numbers, from 0; empty if the plans have another number of layers.
    what : str
        "rotated", "unrotated" (the multiplier of those channels), "softcap", "sink", "refusal",
        "channels" or "layers".
    first_position : int or None
        The first position with another multiplier; None for what does not depend on the position.
    here, there : float, bool, str, int or None
        What the one plan says and what the other, at that position.
    """

    layers: tuple[int, ...]
    what: str
    first_position: int | None
    here: Any
    there: Any

    def __str__(self) -> str:
        where = f"layers {ranges(list(self.layers))}, " if self.layers else ""
        if self.first_position is None:
            return f"{where}{self.what}: {_said(self.here)} here, {_said(self.there)} there"
        ratio = "" if not self.there else f" ({self.here / self.there:.4f} times)"
        return (
            f"{where}{self.what} channels: differs from i = {self.first_position} on: "
            f"{self.here:.7g} here, {self.there:.7g} there{ratio}"
        )


def _said(value: Any) -> str:
    """What a plan has, in words."""
    words: dict[Any, str] = {None: "none", True: "yes", False: "no"}
    return words[value] if value is None or isinstance(value, bool) else str(value)


def compare(plan: ScalePlan, other: ScalePlan, *, up_to: int | None = None) -> tuple[Difference, ...]:
    """What differs between two plans.

    Parameters
    ----------
    plan, other : ScalePlan
    up_to : int, optional
        Positions below this one are compared; by default all up to the longer of the two models'
        ``max_position_embeddings``, at least 131072 and at most 2^24.

    Returns
    -------
    tuple of Difference
        Empty if the plans agree. Where one has more layers, that is the first difference, and those that
        both have are compared.

    Examples
    --------
    >>> import attnscale as at
    >>> config = {"model_type": "ministral3", "hidden_size": 4096, "num_attention_heads": 32, "head_dim": 128,
    ...           "num_hidden_layers": 34}
    >>> plan = at.audit.resolve(config)
    >>> for each in at.audit.compare(plan, at.audit.as_framework(plan, "vllm")[0]):
    ...     print(each)
    layers 0-33, rotated channels: differs from i = 0 on: 0.08838835 here, 0.1441959 there (0.6130 times)
    """
    found: list[Difference] = []
    if len(plan) != len(other):
        found.append(Difference((), "layers", None, len(plan), len(other)))
    limit = up_to or _limit(plan, other)
    numbers: dict[tuple[LayerPlan, LayerPlan], list[int]] = {}
    for mine, theirs in zip(plan.layers, other.layers, strict=False):
        pair = replace(mine, index=0, kind=""), replace(theirs, index=0, kind="")
        numbers.setdefault(pair, []).append(mine.index)
    for (mine, theirs), layers in numbers.items():
        found += _layer(tuple(layers), mine, theirs, limit)
    return tuple(found)


def _limit(plan: ScalePlan, other: ScalePlan) -> int:
    return min(_LONGEST, max(plan.max_positions or 0, other.max_positions or 0, 1 << 17))


def _layer(layers: tuple[int, ...], mine: LayerPlan, theirs: LayerPlan, limit: int) -> list[Difference]:
    if mine.refusal is not None or theirs.refusal is not None:
        if mine.refusal == theirs.refusal:
            return []
        words = [each.refusal or "has a multiplier" for each in (mine, theirs)]
        return [Difference(layers, "refusal", None, *words)]
    found: list[Difference] = []
    if mine.channel_kinds != theirs.channel_kinds:
        kinds = [" and ".join(each.channel_kinds) for each in (mine, theirs)]
        found.append(Difference(layers, "channels", None, *kinds))
    for channels in mine.channel_kinds:
        if channels in theirs.channel_kinds:
            found += _multipliers(layers, mine, theirs, channels, limit)
    if mine.softcap != theirs.softcap:
        found.append(Difference(layers, "softcap", None, mine.softcap, theirs.softcap))
    if mine.sink != theirs.sink:
        found.append(Difference(layers, "sink", None, mine.sink, theirs.sink))
    return found


def _multipliers(
    layers: tuple[int, ...], mine: LayerPlan, theirs: LayerPlan, channels: Channels, limit: int
) -> list[Difference]:
    for start in range(0, limit, _CHUNK):
        positions = np.arange(start, min(start + _CHUNK, limit))
        here, there = (each.multipliers(positions, channels) for each in (mine, theirs))
        differs = np.flatnonzero(~np.isclose(here, there, rtol=_TOLERANCE, atol=0))
        if differs.size:
            first = int(differs[0])
            return [
                Difference(layers, channels, int(positions[first]), float(here[first]), float(there[first]))
            ]
    return []
