# SPDX-License-Identifier: BSD-3-Clause
"""Expectations of a layer: what the audit says its config asks for, and what known slips would do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..audit import LayerPlan, Rotation, ScalePlan
from ..audit._slips import SCALINGS, angle_slips, score_slips, unscaled_rotation
from ._head import Pair
from ._questions import Prompt, Subject, cap_of


def turning_points(plan: LayerPlan, longest: int) -> tuple[int, ...]:
    """The first position at which a temperature changes, or a few of one that changes with every word."""
    if not plan.depends_on_n:
        return ()
    most = max(longest, 1 << 18)
    values = plan.multipliers(np.arange(most), plan.channel_kinds[0])
    turns = np.flatnonzero(np.diff(values)) + 1
    if turns.size > most // 8:  # changes with every word
        return tuple(place for place in (64, 512) if place < longest)
    near = turns[turns < longest]
    return tuple(int(each) for each in (near if near.size else turns)[:1])


def expected_of(
    config: Mapping[str, Any],
    plan: LayerPlan,
    whole: ScalePlan,
    subject: Subject,
    pairs: list[Pair],
    prompts: list[Prompt],
) -> dict[str, Any]:
    """All numbers that reading answers needs, in types of JSON."""
    unscaled = unscaled_rotation(plan, whole)
    asked = np.zeros(len(subject.unscaled))
    if plan.rotation is not None and (found := plan.rotation.frequencies(1)) is not None:
        asked = found
    numbers = [pair.number for pair in pairs]
    kinds = plan.channel_kinds
    return {
        "kind": plan.kind,
        "layer": plan.index,
        "scaling": "" if plan.rotation is None else SCALINGS.get(plan.rotation.kind, ""),
        "multiplier": {kind: _multiplier(plan, 0, kind) for kind in kinds},
        "score_slips": [slip._asdict() for slip in score_slips(config, plan, whole)],
        "pairs": [{**pair._asdict(), "asked": float(asked[pair.number])} for pair in pairs],
        "angle_slips": {
            name: [float(each[number]) for number in numbers]
            for name, each in angle_slips(config, plan, whole, unscaled).items()
        },
        "temperature": _temperatures(plan, prompts),
        "softcap": plan.softcap,
        "cap_gain": cap_of(subject).gain if plan.softcap else None,
        "window": plan.window,
        "sink": plan.sink,
        "skipped": subject.skipped,
    }


def _multiplier(plan: LayerPlan, position: int, channels: Any) -> float:
    return float(plan.multipliers(np.array([position]), channels)[0])


def _temperatures(plan: LayerPlan, prompts: list[Prompt]) -> list[dict[str, Any]]:
    """Temperatures, as quotients by the one at position 0, at the positions of prompts."""
    found = []
    channels = "unrotated" if "unrotated" in plan.channel_kinds else "rotated"
    first = _multiplier(plan, 0, channels)
    for prompt in prompts:
        if prompt.name.startswith("far "):
            place = int(prompt.name.split()[1])
            near = {shift: _multiplier(plan, place + shift, channels) / first for shift in (-1, 0, 1)}
            found.append({"position": place, "asked": near[0], "before": near[-1], "behind": near[1]})
    return found


def same_answer(whole: ScalePlan, small: ScalePlan, layer: int) -> bool:
    """Whether a layer of the small model multiplies scores as the same layer of the whole model."""
    here, there = whole.layer(layer), small.layer(layer)
    where = np.array([0, 1, 100, 5000, 70000])
    if (here.kind, here.rotated, here.head_dim, here.window, here.softcap, here.sink) != (
        there.kind,
        there.rotated,
        there.head_dim,
        there.window,
        there.softcap,
        there.sink,
    ):
        return False
    if any(
        not np.allclose(here.multipliers(where, kind), there.multipliers(where, kind), rtol=1e-12)
        for kind in here.channel_kinds
    ):
        return False
    return _same(_frequencies(here.rotation), _frequencies(there.rotation))


def _frequencies(rotation: Rotation | None) -> NDArray[np.float64] | None:
    return None if rotation is None else rotation.frequencies(1)


def _same(here: NDArray[np.float64] | None, there: NDArray[np.float64] | None) -> bool:
    if here is None or there is None:
        return here is there
    return bool(np.allclose(here, there, rtol=1e-12, atol=0))
