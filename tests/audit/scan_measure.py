# SPDX-License-Identifier: BSD-3-Clause
"""What the code of transformers makes of one config: small, and independent of what the audit says.

A measurement holds for every softmax of one forward pass either the lengths of q and k before and behind the
code's own factors (types whose raw q and k are known parts: ``audit_oracle``) or the singular values of the
score's second derivative (all others: ``audit_derivative``). Which channels are rotated is not asked of the
audit: lengths are kept by channel.
"""

from __future__ import annotations

import copy
import inspect
import re
from typing import Any, NamedTuple

import audit_derivative as derivative
import audit_oracle as oracle
import numpy as np
import torch
from audit_models import CASES
from audit_types import BY_CALLS, BY_SCALE, INPUTS

#: Positions that are looked at: below, at and above the training length of 16 and blocks of 8.
POSITIONS = (0, 5, 7, 8, 9, 15, 16, 17, oracle.LENGTH - 1)
TRAINED = 16

_CASED = {kind for kind, _ in CASES}


class Head(NamedTuple):
    """One layer: what its first head did to q and k."""

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
    last = "kv_a_proj_with_mqa" in call["raw"] or "kv_norm" in call["raw"]
    where = list(POSITIONS)
    found = {
        name: x[0, where].double().numpy().astype(np.float32)
        for name, x in (("q", q), ("k", k), ("raw_q", raw_q), ("raw_k", raw_k))
    }
    lengths = {**found, "scale": float(call["scale"]), "last": last}
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
    """By kind of channels, at POSITIONS, for a head with this many rotated channels."""
    lengths, head_dim = head.lengths, head.lengths["q"].shape[-1]
    split = head_dim - rotated if lengths["last"] else rotated
    first, last = slice(0, split), slice(split, head_dim)
    parts = {"rotated": last if lengths["last"] else first, "unrotated": first if lengths["last"] else last}
    found = {}
    for name, part in parts.items():
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
