# SPDX-License-Identifier: BSD-3-Clause
"""What frameworks do to the layers of a plan: factors left out, changed, or put in place of others."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ...laws import Constant, Law, MLAYaRN, Standard, YaRN
from .._plan.layer import LayerPlan, Term
from .._plan.plan import ScalePlan
from .defect import Change


def by_term(change: Callable[[LayerPlan, Term], Term | None]) -> Change:
    """A change of each factor on top of the base; a factor of which `change` makes None is left out."""

    def changed(plan: ScalePlan, layer: LayerPlan) -> LayerPlan:
        terms = (change(layer, term) for term in layer.terms)
        return replace(layer, terms=tuple(term for term in terms if term is not None))

    return changed


def of_types(change: Change, *types: str, layers: int | None = None) -> Change:
    """A change that concerns only models of these types, and with this many layers."""

    def changed(plan: ScalePlan, layer: LayerPlan) -> LayerPlan:
        concerned = plan.model_type in types and layers in (None, len(plan))
        return change(plan, layer) if concerned else layer

    return changed


def in_order(*changes: Change) -> Change:
    """Several changes, made one after the other."""

    def changed(plan: ScalePlan, layer: LayerPlan) -> LayerPlan:
        for change in changes:
            layer = change(plan, layer)
        return layer

    return changed


def without(law: type[Law], key: str = "") -> Change:
    """Leave out factors by this law; where a key is named, only those that come from the key."""

    def change(layer: LayerPlan, term: Term) -> Term | None:
        named = not key or key in re.split(r"[.: ]", term.key)
        return None if isinstance(term.law, law) and named else term

    return by_term(change)


def plain_yarn(*ignored: str) -> Change:
    """Leave out some keys of YaRN's rule, but for latent attention, which has a code path of its own."""

    def change(layer: LayerPlan, term: Term) -> Term | None:
        if not isinstance(term.law, YaRN) or _is_latent(layer):
            return term
        given: dict[str, Any] = dict.fromkeys(ignored)
        return replace(term, law=replace(term.law, **given))

    return by_term(change)


def _is_latent(layer: LayerPlan) -> bool:
    return any(isinstance(each.law, MLAYaRN) for each in layer.terms)


@by_term
def mla_yarn_by_mscale(layer: LayerPlan, term: Term) -> Term:
    """Weigh the factor of all channels as the positions' own factor is weighed, by mscale."""
    weights = [each.law.mscale for each in layer.terms if isinstance(each.law, YaRN)]
    if not isinstance(term.law, MLAYaRN) or not weights or not weights[0]:
        return term
    return replace(term, law=replace(term.law, mscale_all_dim=weights[0]))


def with_yarn_factor(changed: Callable[[float, float], float]) -> Change:
    """Put changed(attention_factor, factor) in the place of an attention_factor of YaRN that is given."""

    def change(layer: LayerPlan, term: Term) -> Term:
        law = term.law
        if not isinstance(law, YaRN) or law.attention_factor is None:
            return term
        return replace(term, law=replace(law, attention_factor=changed(law.attention_factor, law.factor)))

    return by_term(change)


def without_softcap(plan: ScalePlan, layer: LayerPlan) -> LayerPlan:
    """The layer without its soft-cap."""
    return replace(layer, softcap=None, softcap_key="")


def without_sink(plan: ScalePlan, layer: LayerPlan) -> LayerPlan:
    """The layer without the extra logit of its softmax."""
    return replace(layer, sink=False)


def with_base(value: Callable[[LayerPlan], float]) -> Change:
    """Put another number in the place of the base scale, which comes before the other factors."""

    def changed(plan: ScalePlan, layer: LayerPlan) -> LayerPlan:
        if layer.refusal is not None:
            return layer
        return replace(layer, base=replace(layer.base, law=Constant(value(layer))))

    return changed


def standard_base(plan: ScalePlan, layer: LayerPlan) -> LayerPlan:
    """The layer with the base scale 1 / sqrt(head_dim), whatever the config says."""
    return layer if layer.refusal is not None else replace(layer, base=replace(layer.base, law=Standard()))
