# SPDX-License-Identifier: BSD-3-Clause
"""Changes that frameworks make to a layer: factors, angles and windows left out, changed or replaced.

Each is a function of plan and layer, and of the arguments that ``frameworks.json`` gives.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

from ..laws import Constant, Law, LongRoPE, MinistralTemperature, MLAYaRN, Standard, YaRN
from ._angles import PAIRING
from ._layer import LayerPlan, Term
from ._scale_plan import ScalePlan

#: Function from plan, layer and arguments to the layer as the framework computes it.
Change: TypeAlias = Callable[..., LayerPlan]

# ---- factors ---------------------------------------------------------------------------------------


def _without(plan: ScalePlan, layer: LayerPlan, law: str, key: str = "") -> LayerPlan:
    """Leave out factors by this law; with a key, only those that come from it."""

    def goes(term: Term) -> bool:
        return term.law.name == law and (not key or key in re.split(r"[.: ]", term.key))

    return replace(layer, terms=tuple(term for term in layer.terms if not goes(term)))


def _without_keys_of_yarn(plan: ScalePlan, layer: LayerPlan, *ignored: str) -> LayerPlan:
    """Leave out some keys of YaRN's rule, except in latent attention, which has its own code path."""
    if _has(layer, MLAYaRN):
        return layer
    return _with_laws(layer, YaRN, lambda law: replace(law, **dict.fromkeys(ignored)))


def _yarn_with_either_mscale(plan: ScalePlan, layer: LayerPlan) -> LayerPlan:
    """Read mscale or mscale_all_dim without the other, which is then 1 or 0."""

    def change(law: YaRN) -> YaRN:
        if law.attention_factor is not None or (law.mscale is None) == (law.mscale_all_dim is None):
            return law
        first = 1.0 if law.mscale is None else law.mscale
        return replace(law, attention_factor=_growth(law, first) / _growth(law, law.mscale_all_dim or 0.0))

    return _with_laws(layer, YaRN, change)


def _weigh_factor_of_yarn(plan: ScalePlan, layer: LayerPlan, how: str) -> LayerPlan:
    """Change a given attention_factor of YaRN: times YaRN's own, or used as the weight mscale."""

    def change(law: YaRN) -> YaRN:
        given = law.attention_factor
        if given is None:
            return law
        own = given * _growth(law, 1.0) if how == "times its own" else _growth(law, given)
        return replace(law, attention_factor=own)

    return _with_laws(layer, YaRN, change)


def _times_attn_factor(plan: ScalePlan, layer: LayerPlan) -> LayerPlan:
    """Multiply YaRN's factor by attn_factor, which transformers does not read."""
    given = next((value for name, value in plan.unread if name.endswith(".attn_factor")), None)
    if not isinstance(given, (int, float)) or given < 0:
        return layer
    return _with_laws(layer, YaRN, lambda law: replace(law, attention_factor=law.attention_scaling * given))


def _growth(law: YaRN, weight: float) -> float:
    """YaRN's factor with a weight of the logarithm."""
    return law.slope * weight * math.log(max(law.factor, 1.0)) + 1


def _mla_yarn_by_mscale(plan: ScalePlan, layer: LayerPlan) -> LayerPlan:
    """Weigh the factor of all channels by mscale, like that of the positions."""
    weight = next((term.law.mscale for term in layer.terms if isinstance(term.law, YaRN)), None)
    return _with_laws(layer, MLAYaRN, lambda law: replace(law, mscale_all_dim=weight)) if weight else layer


def _latent_by_factor(plan: ScalePlan, layer: LayerPlan) -> LayerPlan:
    """Latent attention in llama.cpp: one weight for both factors, 1 if no mscale_all_dim is given."""
    if _has(layer, MLAYaRN):
        return _without(plan, layer, "yarn")
    if layer.rotation is None or layer.rotation.kind not in ("yarn", "linear"):
        return layer
    factor = dict(layer.rotation.parameters).get("factor")
    if not isinstance(factor, (int, float)):
        return layer
    key = next(iter(layer.rotation.keys[1:]), "factor")
    added = Term(MLAYaRN(float(factor), 1.0), "all", key, "llama.cpp models/deepseek2.cpp")
    layer = _without_keys_of_yarn(plan, layer, "attention_factor")
    return replace(layer, terms=(*layer.terms, added))


def _longrope_by_length(plan: ScalePlan, layer: LayerPlan) -> LayerPlan:
    """LongRoPE's factor by max_position_embeddings over the original length, whatever is given."""
    longest = plan.max_positions
    if not longest:
        return layer
    return _with_laws(
        layer, LongRoPE, lambda law: replace(law, factor=longest / law.train_length, attention_factor=None)
    )


def _with_block(plan: ScalePlan, layer: LayerPlan, length: float) -> LayerPlan:
    """Ministral's temperature with blocks of this length."""
    return _with_laws(layer, MinistralTemperature, lambda law: replace(law, length=length))


def _with_base(plan: ScalePlan, layer: LayerPlan, number: float | str, power: float) -> LayerPlan:
    return _based(layer, Constant((layer.head_dim if number == "head_dim" else float(number)) ** power))


def _standard_base(plan: ScalePlan, layer: LayerPlan) -> LayerPlan:
    return _based(layer, Standard())


def _based(layer: LayerPlan, law: Law) -> LayerPlan:
    """The layer with another base, if that is another number."""
    numbers = [float(each.scale(1.0, layer.head_dim)) for each in (layer.base.law, law)]
    if layer.refusal is not None or math.isclose(*numbers, rel_tol=1e-9):
        return layer
    return replace(layer, base=replace(layer.base, law=law))


def _with_laws(layer: LayerPlan, kind: type[Any], change: Callable[[Any], Any]) -> LayerPlan:
    """The layer with a change of each factor by this kind of law."""

    def changed(term: Term) -> Term:
        return replace(term, law=change(term.law)) if isinstance(term.law, kind) else term

    return replace(layer, terms=tuple(map(changed, layer.terms)))


def _has(layer: LayerPlan, kind: type[Any]) -> bool:
    return any(isinstance(term.law, kind) for term in layer.terms)


# ---- angles, and the keys that a query sees ----------------------------------------------------------


def _without_scaling(plan: ScalePlan, layer: LayerPlan, *kinds: str) -> LayerPlan:
    """Plain rotary positions in place of these types, without their factor of the score."""
    if layer.rotation is None or layer.rotation.kind not in kinds:
        return layer
    pairing = tuple(each for each in layer.rotation.parameters if each[0] in PAIRING)
    layer = replace(layer, rotation=replace(layer.rotation, kind="default", parameters=pairing))
    return replace(layer, terms=tuple(x for x in layer.terms if not isinstance(x.law, (YaRN, LongRoPE))))


def _without_truncate(plan: ScalePlan, layer: LayerPlan) -> LayerPlan:
    """YaRN's bounds rounded to whole pairs."""
    return _turned(layer, "yarn", lambda given: {**given, "truncate": True} if "truncate" in given else given)


def _long_factors_alone(plan: ScalePlan, layer: LayerPlan) -> LayerPlan:
    """LongRoPE's list for long texts in short ones, too."""
    return _turned(layer, "longrope", lambda given: {**given, "short_factor": given.get("long_factor")})


def _longrope_in_halves(plan: ScalePlan, layer: LayerPlan) -> LayerPlan:
    """LongRoPE in pairs of a channel and one half a head away, where the model pairs neighbours."""
    return _turned(
        layer,
        "longrope",
        lambda given: {name: each for name, each in given.items() if name != "rope_interleave"},
    )


def _turned(layer: LayerPlan, kind: str, change: Callable[[dict[str, Any]], dict[str, Any]]) -> LayerPlan:
    """The layer with a change of the parameters of a type of rotary positions."""
    rotation = layer.rotation
    if rotation is None or rotation.kind != kind:
        return layer
    parameters = tuple(sorted(change(dict(rotation.parameters)).items()))
    return replace(layer, rotation=replace(rotation, parameters=parameters))


def _without_window(plan: ScalePlan, layer: LayerPlan) -> LayerPlan:
    return replace(layer, window=None, window_key="")


def _rotated_everywhere(plan: ScalePlan, layer: LayerPlan) -> LayerPlan:
    """Rotary positions in layers without them, as in the others."""
    like = next((each for each in plan.layers if each.rotation is not None), None)
    if layer.rotation is not None or like is None or layer.refusal is not None:
        return layer
    return replace(layer, rotated=like.rotated, rotation=like.rotation, terms=like.terms)


def _counting_padding(plan: ScalePlan, layer: LayerPlan, law: str) -> LayerPlan:
    """Count padding and packed texts in the positions of a law, if the layer has it."""
    return replace(layer, counts_padding=any(term.law.name == law for term in layer.terms))


def _without_softcap(plan: ScalePlan, layer: LayerPlan) -> LayerPlan:
    return replace(layer, softcap=None, softcap_key="")


def _without_sink(plan: ScalePlan, layer: LayerPlan) -> LayerPlan:
    return replace(layer, sink=False)


#: Changes by their names in frameworks.json, which are those of the functions.
CHANGES: dict[str, Change] = {
    function.__name__.removeprefix("_"): function
    for function in (
        _without,
        _without_keys_of_yarn,
        _yarn_with_either_mscale,
        _weigh_factor_of_yarn,
        _times_attn_factor,
        _mla_yarn_by_mscale,
        _latent_by_factor,
        _longrope_by_length,
        _with_block,
        _with_base,
        _standard_base,
        _without_scaling,
        _without_truncate,
        _long_factors_alone,
        _longrope_in_halves,
        _without_window,
        _rotated_everywhere,
        _counting_padding,
        _without_softcap,
        _without_sink,
    )
}
