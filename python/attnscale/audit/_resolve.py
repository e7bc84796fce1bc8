# SPDX-License-Identifier: BSD-3-Clause
"""The function ``resolve``: from a config to a plan."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

from .._checks import shown
from .._options import hinted
from ._class import asked, reads_otherwise
from ._config.config import Keys, check_size, read_keys
from ._config.source import ConfigError, read_config
from ._config.unknown import not_understood
from ._plan.layer import LayerPlan, Term
from ._plan.plan import ScalePlan
from ._plan.possible import impossible
from ._rules.bases import unscaled
from ._rules.families import family_of, has_row
from ._rules.family import Family, Layer
from ._rules.kinds import NO_SOFTMAX, layer_kinds
from ._rules.rope import SCALED, rope_of, rope_terms, spelling_of


class AuditWarning(UserWarning):
    """Something in a config that could make the plan wrong."""


#: The most layers of a plan, by far more than any model has; each takes some 50 microseconds.
_MOST_LAYERS = 2000

#: Types whose positions are rows of a learned table: there is no position behind its end.
_LEARNED_POSITIONS = frozenset(
    (
        *("gpt2", "gpt-sw3", "gpt_bigcode", "gpt_neo", "openai-gpt", "decision_transformer", "imagegpt"),
        *("bert", "albert", "electra", "distilbert", "gptj", "codegen"),
    )
)


@hinted
def resolve(config: Any, *, part: str | None = None, ask_class: bool = False) -> ScalePlan:
    """What multiplies the score of a query and a key in each layer of a model.

    Parameters
    ----------
    config : mapping, str, path or transformers config
        A Hugging Face config as a dict, the path of a ``config.json`` or of its directory, or a
        config object. transformers itself is not needed. Old and new spellings are read
        (``rope_scaling``, ``rope_parameters``, also by kind of layer; ``type``, ``rope_type``).
    part : str, optional
        The part of a composite config to look at, as "encoder" or "vision_config"; by default its
        language model, or the decoder.
    ask_class : bool
        Let the config class of an installed transformers read the config first, and take its reading.
        If that differs from what the keys say, there is a warning.

    Returns
    -------
    ScalePlan

    Warns
    -----
    AuditWarning
        About a model type that is not known (the plan is then what its keys say), and about each key
        that could change the scale and that no rule reads. ``plan.warnings`` holds the same texts.

    Raises
    ------
    ValueError
        If the config is no JSON object, or a key is missing or out of range: the text names it. With
        ``ask_class`` also if there is no transformers, or its class refuses the config.
    TypeError
        If ``config`` is none of the kinds above.

    Notes
    -----
    The reference is the code of transformers (``attnscale.audit.TRANSFORMERS`` says which version),
    at inference. A key that is missing has the default of its model type.

    For any config, however broken, this holds: an answer or a ValueError comes within 0.2 seconds (2 with
    ``ask_class``), as a file of more than 16 MiB, 500 000 values, 32 tables inside each other or 2000
    layers is refused; the argument stays as it is; a multiplier that is not finite is refused and a negative
    one comes with a warning, either names its keys; and no code that a repository brings is imported.

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
    if ask_class:  # after the plan from the keys, so that no class is given what is beyond its limits
        own, plan = plan, _plan_of(asked(content), part)
        if (said := reads_otherwise(own, plan)) is not None:
            plan = replace(plan, warnings=(*plan.warnings, said))
    for text in plan.warnings:
        warnings.warn(text, AuditWarning, stacklevel=2)
    return plan


def _plan_of(content: dict[str, Any], part: str | None) -> ScalePlan:
    keys, remarks = read_keys(content, part)
    try:
        return _planned(keys, remarks)
    except (TypeError, LookupError, ArithmeticError, AttributeError) as error:
        # A rule met a value of the key that nobody thought of.
        seen = shown(keys.given.get(keys.last, keys.defaults.get(keys.last)))
        raise ConfigError(f"{keys.last} = {seen} cannot be read: {error}") from error


def _planned(keys: Keys, remarks: tuple[str, ...]) -> ScalePlan:
    family = family_of(keys)
    count = check_size("number of layers", family.count(keys), most=_MOST_LAYERS)
    kinds = layer_kinds(keys, count, family)
    places = [Layer(keys.of_layer(index), index, kind, kinds, family) for index, kind in enumerate(kinds)]
    layers = tuple(_layer(place, family) for place in places)
    angles = dict.fromkeys(text for place in places if (text := _angles_only(place)) is not None)
    known = keys.known or has_row(keys.kind)
    found = (*_warnings(keys, family, remarks, known=known), *impossible(layers))
    longest = keys.get("max_position_embeddings")
    return ScalePlan(
        model_type=keys.kind,
        known=known,
        layers=layers,
        warnings=found,
        remarks=(*remarks, *family.notes, *angles),
        max_positions=longest if isinstance(longest, int) else None,
        learned_positions=keys.kind in _LEARNED_POSITIONS,
    )


def _warnings(keys: Keys, family: Family, remarks: tuple[str, ...], *, known: bool) -> tuple[str, ...]:
    found = list(remarks)
    found += spelling_of(keys, family).unread
    found += keys.doubts
    cap = "attn_logit_softcapping"
    if keys.known and not family.softcap and keys.given.get(cap) and cap in keys.accepted:
        found.append(
            f"{cap} = {keys.given[cap]!r} has no effect for {keys.kind}: its code does not hand it on"
        )
    if not known:
        named = f"model_type {keys.kind!r}" if keys.kind else "a config without model_type"
        found.append(f"{named} is not known: the plan is what its keys say, read as in other models")
    reader = "transformers does not read it for this model type, and " if keys.known else ""
    found += [
        f"{name} = {shown(value)} is not understood: {reader}it could change the scale of attention"
        for name, value in not_understood(keys).items()
    ]
    return tuple(found)


def _layer(layer: Layer, family: Family) -> LayerPlan:
    if layer.kind in NO_SOFTMAX or layer.kind == "fourier":
        return _without_softmax(layer)
    layer.keys.sizes.clear()
    head_dim = family.head_dim(layer)
    layer.keys.note_head_size(head_dim)
    window = family.window(layer)
    plan = LayerPlan(
        index=layer.number,
        kind=layer.kind,
        head_dim=head_dim,
        rotated=0,
        base=family.base(layer, head_dim),
        softcap=(cap := _softcap(layer, family))[0],
        softcap_key=cap[1],
        window=window.keys,
        window_key=window.origin,
        sink=family.sink(layer),
        qk_norm=family.qk_norm(layer),
        refusal=family.refusal(layer),
    )
    terms = [term for rule in family.extra if (term := rule(layer, head_dim)) is not None]
    rope = rope_of(layer, family) if family.rotates(layer) else None
    if rope is None:
        terms += [term for rule in family.nope_extra if (term := rule(layer, head_dim)) is not None]
        return replace(plan, terms=tuple(terms))
    rotated = family.rotated(layer, head_dim)
    own = rope_terms(layer, rope) if family.own_rope is None else _some(family.own_rope(layer, rope))
    terms += [term for rule in family.rope_extra if (term := rule(layer, rope)) is not None]
    if plan.qk_norm == "after rotation" and own:
        note = f"{own[0].law!r} is undone by the norm of q and k behind the rotation"
        return replace(plan, rotated=rotated, terms=tuple(terms), notes=(note,))
    return replace(plan, rotated=rotated, terms=(*own, *terms))


def _angles_only(layer: Layer) -> str | None:
    """A note on scaled rotary positions that change angles only, and not the size of the score."""
    if layer.kind in NO_SOFTMAX or not layer.family.rotates(layer):
        return None
    rope = rope_of(layer, layer.family)
    if rope is None or rope.kind == "default" or rope.kind in SCALED:
        return None
    return f"{rope.origin('factor')}: it changes angles, and has no factor for the score"


def _some(term: Term | None) -> tuple[Term, ...]:
    return () if term is None else (term,)


def _softcap(layer: Layer, family: Family) -> tuple[float | None, str]:
    """The soft-cap and the key that it comes from."""
    for name in family.softcap:
        if layer.keys.get(name) is not None:
            return layer.keys.number(name, above=0), layer.keys.origin(name)
    return None, ""


def _without_softmax(layer: Layer) -> LayerPlan:
    return LayerPlan(
        index=layer.number,
        kind=layer.kind,
        head_dim=1,
        rotated=0,
        base=unscaled(layer, 1),
        refusal="this layer has no softmax over keys, so no score multiplier",
    )
