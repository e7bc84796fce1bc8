# SPDX-License-Identifier: BSD-3-Clause
"""A small checkpoint for one kind of layer, from the config of a model."""

from __future__ import annotations

import hashlib
import json
import math
import warnings
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from .._base.checks import InputError, choose, positive_int, refusal, several
from .._base.text import grouped
from .._core import __version__
from ..audit import LayerPlan, ScalePlan, resolve
from ..audit._keys import read_config
from ..audit._slips import unscaled_rotation
from . import _layout as lay
from ._expected import expected_of, same_answer, turning_points
from ._families import Family
from ._head import Head, Strength, columns, norm_weights, strength_of
from ._questions import KINDS, Prompt, Subject, cap_of, edge_strength, pairs_of, prompts_of
from ._shrink import family_of, small_config, text_config
from ._tensors import SINK, Tensors, norms_of, tensors_of, weight_of_one

#: Types of numbers that the config of a checkpoint may name.
DTYPES = ("float32", "bfloat16", "float16")
#: Largest number of words of a prompt, by default: enough for a temperature at 16384.
LONGEST = 16640
_NARROWEST = 24  # keys of a window that all short prompts fit into
#: Smallest number that it may be.
_SHORTEST = 64
#: Fewest channels of a head: one for each class of keys, or two a pair and one a query that only give length.
_CHANNELS, _NORMED_CHANNELS = lay.CLASS_CAP_LOW + 2, 2 * lay.PAIRS + 16


class Checkpoint(NamedTuple):
    """A checkpoint before it is written."""

    name: str
    config: dict[str, Any]
    tensors: Tensors
    prompts: list[Prompt]
    expected: dict[str, Any]


class _Model(NamedTuple):
    """A model: its config, the one of the checkpoint, its family, and the audits of both configs."""

    given: dict[str, Any]
    small: dict[str, Any]
    family: Family
    whole: ScalePlan
    cut: ScalePlan


def checkpoints(
    config: Any,
    *,
    kinds: Iterable[str] | None = None,
    layer: int | None = None,
    longest: int = LONGEST,
    dtype: str = "float32",
) -> list[Checkpoint]:
    """One checkpoint for each kind of layer, or for one layer."""
    choose("dtype", dtype, DTYPES)
    asked = listed("kinds", kinds, KINDS, KINDS)
    if positive_int("longest", longest) < _SHORTEST:
        raise refusal(InputError, "longest", f"must be at least {_SHORTEST}, got {longest}")
    model = _model(text_config(read_config(config)), dtype)
    try:
        return _all(model, layer, asked, int(longest))
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        if isinstance(error, InputError) or hasattr(error, "refusal"):
            raise
        raise InputError(f"config has a value that no checkpoint can be made of: {error}") from error


def _model(given: dict[str, Any], dtype: str) -> _Model:
    """The audits of a config and of its small one, which always names its depth."""
    family = family_of(given)
    small = small_config(given, family, dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the audit, which is not the subject here
        whole = resolve(given)
        small["num_hidden_layers"] = len(whole)
        return _Model(given, small, family, whole, resolve(small))


def _all(model: _Model, layer: int | None, asked: tuple[str, ...], longest: int) -> list[Checkpoint]:
    whole, cut = model.whole, model.cut
    made = []
    for number, alike in _spoken(whole, layer):
        window = whole[number].window
        if window is not None and window < _NARROWEST:
            rule = f"must be at least {_NARROWEST} keys, got {window} in layer {number}"
            raise refusal(InputError, "sliding_window", rule)
        if not same_answer(whole, cut, number):
            raise InputError(
                f"layer {number}: a small model with this config would multiply scores otherwise"
            )
        made.append(_checkpoint(model, number, alike, asked, longest))
    return made


def listed(
    name: str, given: str | Iterable[str] | None, default: tuple[str, ...], known: tuple[str, ...]
) -> tuple[str, ...]:
    """Names of an option: one, or several, each of them known."""
    if given is None:
        return default
    names = [given] if isinstance(given, str) else several(name, given, "name", "names")
    return tuple(choose(name, each, known) for each in names)


def _spoken(plan: ScalePlan, layer: int | None) -> list[tuple[int, list[int]]]:
    """The layers that speak, each with those of its kind: the asked one, or the first of each kind."""
    sorts = grouped(plan.layers, lambda each: replace(each, index=0))
    alike = [([each.index for each in layers], one) for one, layers in sorts.items() if one.refusal is None]
    if layer is not None:
        chosen = plan.layer(layer)
        if chosen.refusal is not None:
            raise InputError(f"layer {layer} ({chosen.kind}): {chosen.refusal}")
        return [(layer, next(numbers for numbers, _ in alike if layer in numbers))]
    if not alike:
        raise InputError("config must have a layer with a scale, but the audit refuses every layer")
    return [(numbers[0], numbers) for numbers, _ in alike]


def _checkpoint(
    model: _Model, layer: int, alike: list[int], kinds: tuple[str, ...], longest: int
) -> Checkpoint:
    plan = model.whole.layer(layer)
    normed, gain = _normed(model)
    strength, gains = _strength(plan, model, normed)
    unscaled = unscaled_rotation(plan, model.whole).frequencies(1)
    if unscaled is None:
        raise InputError(f"layer {layer}: the config does not give the frequencies of its rotary positions")
    subject = Subject(
        head=_head(plan, model, 2 * len(unscaled)),
        strength=strength,
        unscaled=unscaled,
        window=plan.window,
        chunked=plan.kind == "chunked_attention",
        cap=plan.softcap,
        turning=turning_points(plan, longest),
        longest=longest,
        kinds=kinds,
        still_gain=gain,
    )
    least = _CHANNELS if strength.length is None else _NORMED_CHANNELS
    if (width := min(subject.head.width, subject.head.value_width)) < least:
        raise InputError(f"layer {layer}: heads must have at least {least} channels, got {width}")
    pairs = pairs_of(subject)
    prompts = prompts_of(subject, pairs)
    expected = {
        **_about(model, plan, alike, prompts),
        **expected_of(model.given, plan, model.whole, subject, pairs, prompts),
    }
    described = json.dumps([lay.FORMAT, model.small, expected], sort_keys=True)
    digest = hashlib.sha256(described.encode()).hexdigest()[:16]
    prints = [int(digest[number], 16) % 8 - 4 for number in range(len(lay.PRINT))]
    spoken = columns(subject.head, strength, pairs, cap_of(subject), edge_strength(strength), prints, normed)
    tensors = tensors_of(model.small, model.family, subject.head, spoken, layer, gains)
    about = {"checkpoint": digest, "prints": prints, **expected}
    return Checkpoint(f"layer-{layer}", model.small, tensors, prompts, about)


def _normed(model: _Model) -> tuple[float, float]:
    """The coordinate of a word before the projections, as the root of that of queries and keys.

    Behind a latent it is 1, but a rotated key comes straight from the norm; the second number is the product
    on channels without rotation by that on the others.
    """
    normed = norms_of(model.small, model.family).normed
    if not model.family.latent:
        return normed, 1.0
    query = 1.0 if model.small.get("q_lora_rank") is not None else normed
    return math.sqrt(query * normed), 1 / normed


def _head(plan: LayerPlan, model: _Model, asked: int) -> Head:
    adjacent = model.family.adjacent and bool(model.small.get("rope_interleave", True))
    if model.family.latent:
        value = model.small.get("v_head_dim") or 128
        return Head(plan.head_dim, value, plan.rotated, plan.head_dim - plan.rotated, adjacent, asked)
    return Head(plan.head_dim, plan.head_dim, plan.rotated, 0, adjacent, asked)


def _strength(plan: LayerPlan, model: _Model, normed: float) -> tuple[Strength, tuple[float, float]]:
    """Amplitudes of queries and keys, and the weights of their norms."""
    channels = plan.channel_kinds[0]
    scale = float(plan.multipliers(np.zeros(1, np.int64), channels)[0])
    norm = model.family.qk_norm
    if not norm or (norm == "no weights" and plan.qk_norm == "none"):
        return strength_of(scale, normed, None), (1.0, 1.0)
    if norm == "no weights":
        return strength_of(scale, normed, float(plan.head_dim)), (1.0, 1.0)
    heads, shared = model.small["num_attention_heads"], model.small["num_key_value_heads"]
    roots = plan.head_dim * (math.sqrt(heads * shared) if norm == "all" else 1.0)
    gains = norm_weights(scale, roots)
    return strength_of(scale, normed, roots * gains[0] * gains[1]), gains


def _about(model: _Model, plan: LayerPlan, alike: list[int], prompts: list[Prompt]) -> dict[str, Any]:
    """The part of expected.json on the checkpoint itself."""
    return {
        "format": lay.FORMAT,
        "attnscale": __version__,
        "model_type": str(model.given.get("model_type")),
        "layers": alike,
        "sink_logit": SINK if plan.sink else None,
        "weight_of_one": weight_of_one(model.small, model.family, norms_of(model.small, model.family)),
        "final_cap": model.given.get("final_logit_softcapping", model.family.final_cap),
        "prompts": {prompt.name: prompt.record() for prompt in prompts},
    }
