# SPDX-License-Identifier: BSD-3-Clause
"""Compare the code of transformers for a config to a plan.

A measurement holds for every softmax of one forward pass either the lengths of q and k before and behind the
code's own factors (types whose raw q and k are known parts: :mod:`oracle`) or the singular values of the
score's second derivative (all others: :mod:`derivative`). Which channels are rotated is not asked of the
audit: lengths are kept by channel.
"""

from __future__ import annotations

import copy
import inspect
import re
from dataclasses import replace
from typing import Any, NamedTuple

import attnscale as at
import numpy as np
import torch

from . import derivative, oracle, quietly
from .cases import CASES
from .kinds import BY_CALLS, BY_SCALE, INPUTS, has_halves

#: Positions that are looked at: below, at and above the training length of 16 and blocks of 8.
POSITIONS = (0, 5, 7, 8, 9, 15, 16, 17, oracle.LENGTH - 1)
TRAINED = 16

_CASED = {kind for kind, _ in CASES}


class Head(NamedTuple):
    """A layer: the operations of its first head on q and k."""

    place: str  # name of the part, or the number of the layer
    number: int | None  # of the layer, from 0; None: in the order of the layers that have attention
    values: dict[int, list[float]]  # singular values by position, or empty
    lengths: dict[
        str, Any
    ]  # q, k, raw_q, raw_k at POSITIONS, scale, last (whether rotated channels come last)
    softcap: float | None = None
    sink: bool | None = None


def measure(kind: str, keys: dict[str, Any]) -> tuple[dict[str, Any], list[Head]]:
    """The config.json of a small model of this type, and what its heads do."""
    try:
        return _measure(kind, keys)
    except RuntimeError as error:  # the lists of LongRoPE have an entry for each pair of rotated channels
        pairs = re.search(r"tensor a \(\d+\) must match the size of tensor b \((\d+)\)", str(error))
        if pairs is None or "short_factor" not in str(keys):
            raise
        return _measure(kind, _shortened(keys, int(pairs.group(1))))


def _shortened(keys: Any, length: int) -> Any:
    if not isinstance(keys, dict):
        return keys
    return {
        name: value[:1] * length if name in ("short_factor", "long_factor") else _shortened(value, length)
        for name, value in keys.items()
    }


def _measure(kind: str, keys: dict[str, Any]) -> tuple[dict[str, Any], list[Head]]:
    model, config = oracle.build(kind, **copy.deepcopy(keys))
    if kind in BY_SCALE:
        return config, [_scale(call) for call in oracle.run(model).calls]
    if kind in _CASED or kind in BY_CALLS:
        return config, [_lengths(call) for call in oracle.run(model).calls]
    model.set_attn_implementation("eager")
    inputs = INPUTS[kind]() if kind in INPUTS else {}
    return config, _derivatives(derivative.run(model, **inputs))


def _number(call: dict[str, Any]) -> int | None:
    number = getattr(call["module"], "layer_idx", None)
    return None if number is None or number < 0 else number


def _scale(call: dict[str, Any]) -> Head:
    head_dim = call["query"].shape[-1]
    values = {5: [float(call["scale"])] * head_dim}
    return Head("", _number(call), values, {}, call["softcap"], call["sink"])


@torch.no_grad()
def _lengths(call: dict[str, Any]) -> Head:
    q, k = call["query"][0], call["key"][0, :, : oracle.LENGTH]
    raw_q, raw_k = oracle.raw_pair(call)
    where = list(POSITIONS)
    found = {
        name: x[0, where].double().numpy().astype(np.float32)
        for name, x in (("q", q), ("k", k), ("raw_q", raw_q), ("raw_k", raw_k))
    }
    lengths = {**found, "scale": float(call["scale"]), "last": oracle.rotated_last(call)}
    return Head("", _number(call), {}, lengths, call["softcap"], call["sink"])


def _derivatives(seen: list[tuple[str, Any, Any, Any]]) -> list[Head]:
    """The first and the last softmax, and the first of each half of the model."""
    halves = [place.partition(".")[0] for place, *_ in seen]
    chosen = sorted({0, len(seen) - 1, *(halves.index(half) for half in halves)})
    heads = []
    for place, *tensors in (seen[index] for index in chosen):
        values = {-1: [float(x) for x in derivative.singular_values(*tensors)]}
        number = re.match(r".*?(\d+)\.", place)
        heads.append(Head(place, int(number.group(1)) if number else None, values, {}))
    return heads


def multipliers(head: Head, rotated: int) -> dict[str, np.ndarray]:
    """Multipliers by kind of channels, at POSITIONS, for a head with this many rotated channels."""
    lengths, head_dim = head.lengths, head.lengths["q"].shape[-1]
    found = {}
    for name, part in oracle.channels(head_dim, rotated, lengths["last"]).items():
        if part.start < part.stop:
            q, k, raw_q, raw_k = (
                np.linalg.norm(lengths[x][:, part].astype(float), axis=-1)
                for x in ("q", "k", "raw_q", "raw_k")
            )
            found[name] = lengths["scale"] * q * k / (raw_q * raw_k)
    return found


def accepted(kind: str) -> dict[str, Any]:
    """The keys that the class of a model type has, by their stored names, with their defaults."""
    cls = oracle.config_class(kind)
    parameters = inspect.signature(cls.__init__).parameters
    try:
        defaults = cls().to_dict()
    except Exception:
        defaults = {}
    names = [name for name in parameters if name not in ("self", "kwargs", "args")]
    return {name: defaults.get(name, parameters[name].default) for name in names}


class Verdict(NamedTuple):
    """Result of one change of one type."""

    word: str  # "agrees", "refused", "warned", "wrong", "not built"
    reason: str


def judge(config: dict[str, Any], heads: Any) -> Verdict:
    """The verdict on one config; ``heads`` is the measurement or why there is none."""
    if isinstance(heads, str):
        return Verdict("not built", heads)
    try:
        plan = quietly(config)
        half = quietly(config, part="encoder") if has_halves(config) else plan
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
            [plan.multiplier(layer=layer.index, position=i, channels=channels) for i in POSITIONS]
        )
        for channels in layer.channel_kinds
    }
    alike = len({tuple(each) for each in planned_by.values()}) == 1  # then no channel is told from another
    rotated = layer.head_dim if alike else layer.rotated
    for channels, seen in multipliers(head, rotated).items():
        planned = next(iter(planned_by.values())) if alike else planned_by[channels]
        if not np.allclose(seen, planned, rtol=4e-6, atol=0):
            worst = int(np.argmax(abs(seen / planned - 1)))
            return (
                f"{channels} at position {POSITIONS[worst]}: {seen[worst]:.6g}, "
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
