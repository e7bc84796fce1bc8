# SPDX-License-Identifier: BSD-3-Clause
"""A plan beside a measurement: do they agree, was it refused, warned about, or silently wrong?"""

from __future__ import annotations

import re
import warnings
from dataclasses import replace
from typing import Any, NamedTuple

import attnscale as at
import numpy as np
import scan_measure
from audit_types import has_halves


class Verdict(NamedTuple):
    """What became of one change of one type."""

    word: str  # "agrees", "refused", "warned", "wrong", "not built"
    reason: str


def judge(config: dict[str, Any], heads: Any) -> Verdict:
    """The verdict on one config; ``heads`` is the measurement or why there is none."""
    if isinstance(heads, str):
        return Verdict("not built", heads)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", at.audit.AuditWarning)
        try:
            plan = at.audit.resolve(config)
            half = at.audit.resolve(config, part="encoder") if has_halves(config) else plan
        except at.audit.ConfigError as error:
            return Verdict("refused", str(error))
    wrong = _first_difference(plan, half, heads)
    if wrong is None:
        return Verdict("agrees", "")
    if wrong.startswith("refused: "):
        return Verdict("refused", wrong)
    found = (*plan.warnings, *half.warnings)
    return Verdict("warned", f"{found}; {wrong}") if found else Verdict("wrong", wrong)


def _first_difference(plan: Any, half: Any, heads: list[Any]) -> str | None:
    with_attention = [layer.index for layer in plan.layers if layer.refusal is None]
    for order, head in enumerate(heads):
        if re.search("cross|encoder_attn|encdec", head.place.lower()):  # no layer of the plan
            continue
        chosen = half if "encoder" in re.split(r"\d", head.place)[0] else plan
        if head.number is None and order >= len(with_attention):
            return _refusal(plan) or f"{len(heads)} layers have attention, in the plan {len(with_attention)}"
        number = with_attention[order] if head.number is None else head.number
        if number >= len(chosen.layers):
            return f"layer {number} is not in the plan"
        if (layer := chosen.layer(number)).refusal is not None:
            return f"refused: {layer.refusal}"
        wrong = _of_layer(chosen, layer, head)
        if wrong is not None:
            return f"layer {number} ({layer.kind}): {wrong}"
    return None


def _refusal(plan: Any) -> str | None:
    found = [layer.refusal for layer in plan.layers if layer.refusal and "no softmax" not in layer.refusal]
    return f"refused: {found[0]}" if found else None


def _of_layer(plan: Any, layer: Any, head: Any) -> str | None:
    if head.softcap != layer.softcap and head.sink is not None:
        return f"soft-cap {head.softcap}, in the plan {layer.softcap}"
    if head.sink is not None and head.sink != layer.sink:
        return f"sink {head.sink}, in the plan {layer.sink}"
    if head.values:
        return _by_values(plan, layer, head)
    if head.lengths["q"].shape[-1] != layer.head_dim:
        return f"head_dim {head.lengths['q'].shape[-1]}, in the plan {layer.head_dim}"
    planned_by = {
        channels: np.array(
            [
                plan.multiplier(layer=layer.index, position=i, channels=channels)
                for i in scan_measure.POSITIONS
            ]
        )
        for channels in layer.channel_kinds
    }
    alike = len({tuple(each) for each in planned_by.values()}) == 1  # then no channel is told from another
    rotated = layer.head_dim if alike else layer.rotated
    for channels, seen in scan_measure.multipliers(head, rotated).items():
        planned = next(iter(planned_by.values())) if alike else planned_by[channels]
        if not np.allclose(seen, planned, rtol=4e-6, atol=0):
            worst = int(np.argmax(abs(seen / planned - 1)))
            return (
                f"{channels} at position {scan_measure.POSITIONS[worst]}: {seen[worst]:.6g}, "
                f"in the plan {planned[worst]:.6g}"
            )
    return None


def _by_values(plan: Any, layer: Any, head: Any) -> str | None:
    ((position, values),) = head.values.items()
    if not head.place:  # the scale alone, which is before what rotary positions bring
        common = tuple(term for term in layer.terms if term.channels == "all")
        layer = replace(layer, terms=common)
        plan = plan.with_layers((*plan.layers[: layer.index], layer, *plan.layers[layer.index + 1 :]))
    planned: list[float] = []
    for channels in layer.channel_kinds:
        count = layer.rotated if channels == "rotated" else layer.head_dim - layer.rotated
        value = plan.multiplier(layer=layer.index, position=max(position, 5), channels=channels)
        planned += [value] * count
    seen = np.sort(values)[::-1]
    expected = np.sort(planned)[::-1]
    if len(seen) != len(expected):
        return f"head_dim {len(seen)}, in the plan {len(expected)}"
    if not np.allclose(seen, expected, rtol=1e-4):
        worst = int(np.argmax(abs(seen / expected - 1)))
        return f"{seen[worst]:.6g}, in the plan {expected[worst]:.6g}"
    return None
