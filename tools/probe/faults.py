# SPDX-License-Identifier: BSD-3-Clause
"""Faults of engines, planted into transformers: configs read otherwise, code that computes otherwise."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from .asked import Engine

Misread = Callable[[Any], None]
Wired = Callable[[Engine], None]


@dataclass(frozen=True)
class Fault:
    """One mistake: how the config is read, or what is done to the model built from it."""

    misread: Misread | None = None
    wired: Wired | None = None

    def engine(self, folder: Any, dtype: str) -> Engine:
        """Transformers with this mistake."""
        engine = Engine(folder, dtype, self.misread)
        if self.wired is not None:
            self.wired(engine)
        return engine


# ---------------------------------------------------------------- configs read otherwise


def reads(**values: Any) -> Fault:
    """Keys of the config with other values."""

    def misread(config: Any) -> None:
        for name, value in values.items():
            setattr(config, name, value)

    return Fault(misread)


def moved(name: str, by: int) -> Fault:
    """A length of the config that is off by some words."""

    def misread(config: Any) -> None:
        setattr(config, name, getattr(config, name) + by)

    return Fault(misread)


def rope_without(*names: str) -> Fault:
    """Keys of the scaling that are not read."""

    def misread(config: Any) -> None:
        for rope in _ropes(config):
            for name in names:
                rope.pop(name, None)

    return Fault(misread)


def rope_with(**values: Any) -> Fault:
    """Keys of the scaling with other values; a text names another key of the scaling or of the config."""

    def misread(config: Any) -> None:
        for rope in _ropes(config):
            for name, value in values.items():
                rope[name] = (
                    rope.get(value, getattr(config, value, value)) if isinstance(value, str) else value
                )

    return Fault(misread)


def dropped() -> Fault:
    """A scaling that is not read at all."""
    return Fault(_drop)


def _drop(config: Any) -> None:
    for rope in _ropes(config):
        rope["rope_type"] = rope["type"] = "default"


def exchanged() -> Fault:
    """Bases of two kinds of layers, exchanged."""

    def misread(config: Any) -> None:
        first, second = (config.rope_parameters[kind] for kind in ("full_attention", "sliding_attention"))
        first["rope_theta"], second["rope_theta"] = second["rope_theta"], first["rope_theta"]

    return Fault(misread)


def for_all_layers() -> Fault:
    """The scaling of full layers in all layers, each with its own base."""

    def misread(config: Any) -> None:
        local = config.rope_parameters["sliding_attention"]
        local.update({**config.rope_parameters["full_attention"], "rope_theta": local["rope_theta"]})

    return Fault(misread)


def _ropes(config: Any) -> list[dict[str, Any]]:
    """The groups of keys of rotary positions that have a scaling, or all if none has."""
    ropes = config.rope_parameters
    groups = [ropes[kind] for kind in ("full_attention", "sliding_attention") if kind in ropes] or [ropes]
    return [each for each in groups if each["rope_type"] != "default"] or groups


# ---------------------------------------------------------------- rotary positions computed otherwise


def factor(power: float) -> Fault:
    """The factor of rotary positions to a power: 0 for an engine without it, 2 for one that has it twice."""

    def wired(engine: Engine) -> None:
        for name, value in list(vars(engine.rotary).items()):
            if name.endswith("attention_scaling"):
                setattr(engine.rotary, name, value**power)

    return Fault(wired=wired)


def frequencies(divided: float = 1.0) -> Fault:
    """Frequencies without scaling, or all divided by one number, beside the right factor."""

    def wired(engine: Engine) -> None:
        config = copy.deepcopy(engine.model.config)
        _drop(config)
        plain = type(engine.rotary)(config=config)
        for name, value in plain.named_buffers():
            if name.endswith("inv_freq"):
                getattr(engine.rotary, name).copy_(value / divided)

    return Fault(wired=wired)


def no_rotation(layer: int) -> Fault:
    """A layer that does not turn queries and keys."""

    def wired(engine: Engine) -> None:
        engine.attentions[layer].use_rope = False

    return Fault(wired=wired)


def rotation_everywhere(name: str, value: Any) -> Fault:
    """Layers without positions that turn queries and keys; an attribute of the attention decides."""

    def wired(engine: Engine) -> None:
        for attention in engine.attentions:
            setattr(attention, name, value)

    return Fault(wired=wired)


def rotated_by(wrapped: Callable[[Engine], Callable[[Any], Any]]) -> Fault:
    """Another function that turns queries and keys."""

    def wired(engine: Engine) -> None:
        names = ("apply_rotary_pos_emb", "apply_rotary_emb")
        engine.replace(next(each for each in names if hasattr(engine.code, each)), wrapped(engine))

    return Fault(wired=wired)


def query_alone() -> Fault:
    """The factor of rotary positions on queries, not on keys."""

    def wrapped(engine: Engine) -> Callable[[Any], Any]:
        def replaced(right: Any) -> Any:
            def turn(q: Any, k: Any, *angles: Any, **options: Any) -> Any:
                plain = [each / engine.rotary.attention_scaling for each in angles]
                return right(q, k, *angles, **options)[0], right(q, k, *plain, **options)[1]

            return turn

        return replaced

    return rotated_by(wrapped)


def adjacent() -> Fault:
    """Channels side by side as pairs, where the model has halves."""
    return _paired(lambda part: part[..., : part.shape[-1] // 2], _side_by_side)


def halves(doubled: bool) -> Fault:
    """Halves as pairs, where the model has channels side by side, as its angles if they are `doubled`."""
    if doubled:
        return _paired(lambda part: part[..., ::2], _in_halves)
    return _paired(lambda part: part[..., : part.shape[-1] // 2], _in_halves)


def _paired(angle: Callable[[Any], Any], turned: Callable[[Any, Any, Any], Any]) -> Fault:
    def wrapped(engine: Engine) -> Callable[[Any], Any]:
        def turn(q: Any, k: Any, cos: Any, sin: Any, **options: Any) -> Any:
            cosine, sine = (angle(each).unsqueeze(1) for each in (cos, sin))
            return tuple(turned(each, cosine, sine).to(each.dtype) for each in (q, k))

        return lambda right: turn

    return rotated_by(wrapped)


def _side_by_side(x: Any, cosine: Any, sine: Any) -> Any:
    count = 2 * cosine.shape[-1]
    first, second = x[..., :count:2], x[..., 1:count:2]
    both = torch.stack((first * cosine - second * sine, second * cosine + first * sine), -1)
    return torch.cat((both.flatten(-2), x[..., count:]), -1)


def _in_halves(x: Any, cosine: Any, sine: Any) -> Any:
    count = cosine.shape[-1]
    first, second = x[..., :count], x[..., count : 2 * count]
    return torch.cat(
        (first * cosine - second * sine, second * cosine + first * sine, x[..., 2 * count :]), -1
    )


# ---------------------------------------------------------------- scores computed otherwise


def scale(change: Callable[[Any], float]) -> Fault:
    """Another scale of scores, from the attention of a layer."""

    def wired(engine: Engine) -> None:
        for attention in engine.attentions:
            attention.scaling = change(attention)

    return Fault(wired=wired)


def sinks(change: Callable[[Any], Any]) -> Fault:
    """Other sinks, from the attention of a layer."""

    def wired(engine: Engine) -> None:
        with torch.no_grad():
            for attention in engine.attentions:
                attention.sinks.copy_(change(attention))

    return Fault(wired=wired)


def temperature(change: Callable[[Any, Any], Any]) -> Fault:
    """Another temperature; `change` gets the right function of positions, and the positions."""

    def wired(engine: Engine) -> None:
        def replaced(right: Any) -> Any:
            return lambda positions, *law: change(lambda where: right(where, *law), positions)

        engine.replace("get_llama_4_attn_scale", replaced)

    return Fault(wired=wired)


def later_temperature() -> Fault:
    """The temperature of llama4 one position late: of the position, not of the number of words."""

    def wired(engine: Engine) -> None:
        def replaced(right: Any) -> Any:
            def attend(module: Any, query: Any, *rest: Any, **options: Any) -> Any:
                if not module.use_rope:
                    words = torch.arange(query.shape[2] + 1)
                    law = 1 + module.attn_scale * torch.log1p(torch.floor(words / module.floor_scale))
                    query = (query * (law[:-1] / law[1:])[:, None]).to(query.dtype)
                return right(module, query, *rest, **options)

            return attend

        engine.replace("eager_attention_forward", replaced)

    return Fault(wired=wired)
