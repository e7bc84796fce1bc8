# SPDX-License-Identifier: BSD-3-Clause
"""The function ``resolve``: from a config to a plan."""

from __future__ import annotations

import logging
import warnings
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np

from .._base.checks import shown
from .._base.hints import hinted
from ._keys import ConfigError, Keys, check_size, read_config, read_keys
from ._layer import LayerPlan, Term
from ._rules import llama_cpp
from ._rules.bases import unscaled
from ._rules.families import family_of, has_row
from ._rules.family import Family, Layer
from ._rules.kinds import NO_SOFTMAX, layer_kinds
from ._rules.rope import SCALED, rope_of, rope_terms, spelling_of
from ._rules.rotation import rotation_of
from ._scale_plan import ScalePlan
from ._unknown import not_understood


class AuditWarning(UserWarning):
    """Something in a config that could make the plan wrong."""


#: Largest number of layers of a plan, far more than any model has; each takes some 50 microseconds.
_MOST_LAYERS = 2000

#: Types whose positions are rows of a learned table, with no position beyond its end.
_LEARNED_POSITIONS = (
    "gpt2 gpt-sw3 gpt_bigcode gpt_neo openai-gpt decision_transformer imagegpt "
    "bert albert electra distilbert gptj codegen"
)


@hinted
def resolve(config: Any, *, part: str | None = None, ask_class: bool = False) -> ScalePlan:
    """Plan of the multipliers of the score of a query and a key in each layer of a model.

    Parameters
    ----------
    config : mapping, str, path or transformers config
        A Hugging Face config as a dict, the path of a ``config.json``, of its directory or of a
        ``.gguf`` file, or a config object. transformers itself is not needed. Old and new spellings are read
        (``rope_scaling``, ``rope_parameters``, also by kind of layer; ``type``, ``rope_type``).
    part : str, optional
        The part of a composite config to read, such as "encoder" or "vision_config"; default: its
        language model, or the decoder.
    ask_class : bool
        Let the config class of an installed transformers read the config first, and use its reading,
        with a warning if that differs from the keys.

    Returns
    -------
    ScalePlan

    Warns
    -----
    AuditWarning
        For an unknown model type (the plan then follows its keys), and for each key that could change the
        scale and that no rule reads. ``plan.warnings`` holds the same texts.

    Raises
    ------
    ValueError
        If the config is not a JSON object, or a key is missing or out of range: the message names it. With
        ``ask_class`` also if there is no transformers, or its class refuses the config.
    TypeError
        If ``config`` has another type.

    Notes
    -----
    The reference is the code of transformers (version ``attnscale.audit.TRANSFORMERS``) at inference. A
    missing key has the default of its model type.

    For any config, however broken, an answer or a ValueError comes within 0.2 seconds (2 with
    ``ask_class``): a file of more than 16 MiB, 500 000 values, 32 nested tables or 2000 layers is refused.
    The argument is not changed. A multiplier that is not finite is refused and a negative one comes with a
    warning, both with the names of its keys. Code from a repository is never imported.

    Examples
    --------
    >>> import attnscale as at
    >>> plan = at.audit.resolve({
    ...     "model_type": "qwen2", "hidden_size": 3584, "num_attention_heads": 28, "num_hidden_layers": 28,
    ...     "max_position_embeddings": 32768,
    ...     "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
    ... })
    >>> round(plan.multiplier(layer=3, position=0, channels="rotated") * 128**0.5, 6)  # (0.1 ln 4 + 1)^2
    1.296477
    """
    content = read_config(config)
    plan = _plan_of(content, part)
    if ask_class:  # after the plan from the keys, so that the class gets nothing beyond the limits
        own, plan = plan, _plan_of(_asked(content), part)
        if (said := _reads_otherwise(own, plan)) is not None:
            plan = replace(plan, warnings=(*plan.warnings, said))
    for text in plan.warnings:
        warnings.warn(text, AuditWarning, stacklevel=2)
    return plan


def _plan_of(content: dict[str, Any], part: str | None) -> ScalePlan:
    keys, remarks = read_keys(content, part)
    try:
        return _planned(keys, remarks)
    except (TypeError, LookupError, ArithmeticError, AttributeError) as error:
        # A rule met an unforeseen value of the key.
        last = keys.seen.last
        seen = shown(keys.given.get(last, keys.defaults.get(last)))
        raise ConfigError(f"{last} = {seen} cannot be read: {error}") from error


def _planned(keys: Keys, remarks: tuple[str, ...]) -> ScalePlan:
    family = llama_cpp.family_of(keys) if keys.architecture else family_of(keys)
    count = check_size("number of layers", family.count(keys), most=_MOST_LAYERS)
    kinds = layer_kinds(keys, count, family)
    places = [Layer(keys.of_layer(index), index, kind, kinds, family) for index, kind in enumerate(kinds)]
    layers = tuple(map(_layer, places))
    angles = dict.fromkeys(text for place in places if (text := _angles_only(place)) is not None)
    known = keys.known or has_row(keys.kind)
    found = (*_warnings(keys, family, remarks, known=known), *_impossible(layers))
    longest = keys.get("max_position_embeddings")
    return ScalePlan(
        model_type=keys.kind,
        known=known,
        layers=layers,
        warnings=found,
        remarks=(
            *remarks,
            *family.notes,
            *angles,
            *(llama_cpp.remarks_of(keys) if keys.architecture else ()),
        ),
        max_positions=longest if isinstance(longest, int) else None,
        learned_positions=keys.kind in _LEARNED_POSITIONS.split(),
        architecture=keys.architecture,
        unread=tuple((llama_cpp.unread_of if keys.architecture else not_understood)(keys).items()),
    )


def _warnings(keys: Keys, family: Family, remarks: tuple[str, ...], *, known: bool) -> tuple[str, ...]:
    found = list(remarks)
    found += spelling_of(keys, family).unread
    found += keys.seen.doubts
    cap = "attn_logit_softcapping"
    if keys.known and not family.softcap and keys.given.get(cap) and cap in keys.accepted:
        found.append(
            f"{cap} = {keys.given[cap]!r} has no effect for {keys.kind}: its code does not hand it on"
        )
    if not known:
        named = f"model_type {keys.kind!r}" if keys.kind else "a config without model_type"
        named = f"architecture {keys.architecture!r} of GGUF" if keys.architecture else named
        found.append(f"{named} is not known: the plan is what its keys say, read as in other models")
    if keys.architecture:
        return (*found, *llama_cpp.warnings_of(keys))
    reader = "transformers does not read it for this model type, and " if keys.known else ""
    found += [
        f"{name} = {shown(value)} is not understood: {reader}it could change the scale of attention"
        for name, value in not_understood(keys).items()
    ]
    return tuple(found)


def _layer(layer: Layer) -> LayerPlan:
    if layer.kind in NO_SOFTMAX or layer.kind == "fourier":
        why = "this layer has no softmax over keys, so no score multiplier"
        return LayerPlan(layer.number, layer.kind, 1, 0, unscaled(layer, 1), refusal=why)
    family = layer.family
    layer.keys.seen.sizes.clear()
    head_dim = family.head_dim(layer)
    layer = layer._replace(head_size=layer.keys.head_size_origin(head_dim))
    window, (softcap, softcap_key) = family.window(layer), _softcap(layer)
    plan = LayerPlan(
        index=layer.number,
        kind=layer.kind,
        head_dim=head_dim,
        rotated=0,
        base=family.base(layer, head_dim),
        softcap=softcap,
        softcap_key=softcap_key,
        window=window.keys,
        window_key=window.origin,
        sink=family.sink(layer),
        qk_norm=family.qk_norm(layer),
        refusal=family.refusal(layer),
    )
    terms = [term for rule in family.extra if (term := rule(layer, head_dim)) is not None]
    rope = rope_of(layer) if family.rotates(layer) else None
    if rope is None:
        terms += [term for rule in family.nope_extra if (term := rule(layer, head_dim)) is not None]
        return replace(plan, terms=tuple(terms))
    rotated = family.rotated(layer, head_dim)
    plan = replace(plan, rotated=rotated, rotation=rotation_of(layer, rope, rotated, head_dim))
    own: tuple[Term, ...]
    if family.own_rope is None:
        own = rope_terms(layer, rope)
    else:
        own = () if (term := family.own_rope(layer, rope)) is None else (term,)
    terms += [term for rule in family.rope_extra if (term := rule(layer, rope)) is not None]
    if plan.qk_norm == "after rotation" and own:
        note = f"{own[0].law!r} is undone by the norm of q and k behind the rotation"
        return replace(plan, terms=tuple(terms), notes=(note,))
    return replace(plan, terms=(*own, *terms))


def _angles_only(layer: Layer) -> str | None:
    """A note on scaled rotary positions that change only angles, not the size of the score."""
    if layer.kind in NO_SOFTMAX or not layer.family.rotates(layer):
        return None
    rope = rope_of(layer)
    if rope is None or rope.kind == "default" or rope.kind in SCALED:
        return None
    return f"{rope.origin('factor')}: it changes angles, and has no factor for the score"


def _softcap(layer: Layer) -> tuple[float | None, str]:
    if layer.keys.architecture:
        return llama_cpp.softcap_of(layer.keys)
    for name in layer.family.softcap:
        if layer.keys.get(name) is not None:
            return layer.keys.number(name, above=0), layer.keys.origin(name)
    return None, ""


#: Positions at which a multiplier is checked: the first ones, and far beyond any training length.
_FAR_POSITIONS = np.array([0, 1, 4096, 2**20, 2**31 - 1])


def _impossible(layers: tuple[LayerPlan, ...]) -> tuple[str, ...]:
    """Warnings for keys that give a negative multiplier; one that is not finite is refused."""
    found: dict[str, None] = {}
    seen = set()
    for layer in layers:
        alike = (layer.base, layer.terms, layer.head_dim, layer.rotated)
        if layer.refusal is None and alike not in seen:
            seen.add(alike)
            keys = "; ".join(term.key for term in (layer.base, *layer.terms))
            value = _worst(layer)
            if value is not None and not np.isfinite(value):
                raise ConfigError(f"{keys}: the multiplier is {value:g}, which cannot multiply a score")
            if value is not None:
                found[f"{keys}: the multiplier is {value:g}, which no score can be multiplied with"] = None
    return tuple(found)


def _worst(layer: LayerPlan) -> float | None:
    """A multiplier of the layer that is negative or not finite; None if there is none."""
    with np.errstate(all="ignore"):
        for channels in layer.channel_kinds:
            values = layer.multipliers(_FAR_POSITIONS, channels) * layer.capped_multipliers(_FAR_POSITIONS)
            for wrong in (~np.isfinite(values), values < 0):
                if wrong.any():
                    return float(values[wrong][0])
    return None


# ---- reading by the config class of transformers -------------------------------------------------


def _asked(config: dict[str, Any]) -> dict[str, Any]:
    """The keys as the class of the model type writes them; code from a repository is not imported."""
    kind = config.get("model_type")
    try:
        from transformers import CONFIG_MAPPING
    except ImportError:
        raise ConfigError("ask_class needs transformers: pip install transformers") from None
    if kind not in CONFIG_MAPPING:
        raise ConfigError(f"ask_class needs a model_type of transformers, got {shown(kind)}")
    keys = {name: value for name, value in config.items() if name not in ("model_type", "auto_map")}
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)  # classes log much about their own defaults
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found: dict[str, Any] = CONFIG_MAPPING[kind](**deepcopy(keys)).to_dict()
    except Exception as error:
        said = " ".join(str(error).split())[:200]
        raise ConfigError(f"the config class of {kind} refuses the config: {said}") from None
    finally:
        logging.disable(before)
    return read_config({**found, "model_type": kind})


def _reads_otherwise(own: ScalePlan, other: ScalePlan) -> str | None:
    """Difference between the config class's reading and the keys', in words; None if both agree."""
    if len(own) != len(other):
        return f"the config class has {len(other)} layers, and the keys say {len(own)}"
    for first, second in zip(own.layers, other.layers, strict=True):
        if not _alike(first, second):
            return f"layer {first.index}: the config class reads another scale than the keys, {_said(second)}"
    return None


#: The first positions, and those around and beyond usual training lengths.
_POSITIONS = np.array([0, 1, 4095, 4096, 8192, 32768, 2**20])


def _alike(first: LayerPlan, second: LayerPlan) -> bool:
    if first.refusal or second.refusal:
        return bool(first.refusal) == bool(second.refusal)
    by_layer: list[dict[str, Any]] = [
        {kind: each.multipliers(_POSITIONS, kind) for kind in each.channel_kinds} for each in (first, second)
    ]
    if all(len(np.unique([*found.values()])) == 1 for found in by_layer):
        by_layer = [{"all": next(iter(found.values()))} for found in by_layer]  # all channels are equal
    elif first.rotated != second.rotated:
        return False
    one, other = by_layer
    same = one.keys() == other.keys() and all(np.allclose(one[kind], other[kind], rtol=1e-9) for kind in one)
    sizes = [(each.head_dim, each.softcap, each.sink) for each in (first, second)]
    return same and sizes[0] == sizes[1]


def _said(layer: LayerPlan) -> str:
    laws = [layer.base.law, *(term.law for term in layer.terms)]
    return f"with head_dim {layer.head_dim}, rotated {layer.rotated}, {', '.join(map(repr, laws))}"
