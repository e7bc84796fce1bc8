# SPDX-License-Identifier: BSD-3-Clause
"""Frameworks that are known to compute something else than a model's config says.

``frameworks.json`` holds each report, its rule and a config that shows it. ``changes`` there are names of
``_CHANGES`` in this file, each with its arguments, applied in order.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

from .._base.checks import choose, shown
from ..laws import Constant, Law, MLAYaRN, Standard, YaRN
from ._layer import LayerPlan, Term
from ._scale_plan import ScalePlan

#: Function from plan and layer to the layer as the framework computes it; unchanged if not affected.
Change: TypeAlias = Callable[[ScalePlan, LayerPlan], LayerPlan]


@dataclass(frozen=True)
class Defect:
    """A rule of a model that a framework does not follow.

    Attributes
    ----------
    what : str
        What the framework does instead.
    reference : str
        The public report.
    config : mapping
        A config that shows the defect.
    change : callable
        Function from plan and layer to the layer as the framework computes it.
    seen : str
        A version in which the report saw the defect, or empty.
    since : str
        The first version with the defect if the report names it, or empty.
    before : str
        The first version without the defect if the report names it, or empty.
    mended : str
        The change that fixed the defect, or empty.
    """

    what: str
    reference: str
    config: Mapping[str, Any] = field(repr=False, hash=False)
    change: Change = field(repr=False)
    seen: str = ""
    since: str = ""
    before: str = ""
    mended: str = ""

    @property
    def versions(self) -> str:
        """The affected versions according to the report, in words.

        Examples
        --------
        >>> import attnscale as at
        >>> at.audit.FRAMEWORKS["onnxruntime-genai"].defects[0].versions
        'before version 0.5.0'
        """
        if self.before:
            return f"before version {self.before}"
        if self.since:
            return f"from version {self.since} on"
        return f"seen in version {self.seen}" if self.seen else "versions not known"

    def concerns(self, version: tuple[int, ...]) -> bool:
        """Whether a version may have the defect according to the report; an empty one stands for any."""
        since, before = _version_of(self.since), _version_of(self.before)
        early = version[: len(since)] < since[: len(version)]
        return not version or not (early or (before and version >= before))

    def to_dict(self) -> dict[str, str]:
        """The report of the defect in types of JSON."""
        return {name: getattr(self, name) for name in ("what", "reference", "versions", "mended")}

    def __str__(self) -> str:
        where = "there" if self.mended == self.reference else f"by {self.mended}"
        mended = f"; mended {where}" if self.mended else ""
        return f"{self.what} ({self.reference}; {self.versions}{mended})"


@dataclass(frozen=True)
class Framework:
    """The known defects of a framework.

    Attributes
    ----------
    defects : tuple of Defect
    """

    defects: tuple[Defect, ...]

    @property
    def seen(self) -> tuple[int, ...]:
        """The last version in which a report saw a defect; empty if none says so."""
        return max((_version_of(each.seen) for each in self.defects), default=())

    @property
    def has_versions(self) -> bool:
        return any(each.seen or each.since or each.before for each in self.defects)


def _version_of(text: str) -> tuple[int, ...]:
    """The numbers of a version, without trailing zeros; empty for an empty text.

    Examples
    --------
    >>> _version_of("0.25.1"), _version_of("0.25.0"), _version_of("")
    ((0, 25, 1), (0, 25), ())
    """
    numbers = [int(part) for part in text.split(".")] if text else []
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)


# ---- changes that frameworks make to a layer: factors left out, changed or replaced ----------------


def _without(layer: LayerPlan, law: str, key: str = "") -> LayerPlan:
    """Leave out factors by this law; with a key, only those that come from it."""

    def goes(term: Term) -> bool:
        return term.law.name == law and (not key or key in re.split(r"[.: ]", term.key))

    return replace(layer, terms=tuple(term for term in layer.terms if not goes(term)))


def _without_keys_of_yarn(layer: LayerPlan, *ignored: str) -> LayerPlan:
    """Leave out some keys of YaRN's rule, except in latent attention, which has its own code path."""
    if any(isinstance(term.law, MLAYaRN) for term in layer.terms):
        return layer
    return _with_laws(layer, YaRN, lambda law: replace(law, **dict.fromkeys(ignored)))


def _weigh_factor_of_yarn(layer: LayerPlan, how: str) -> LayerPlan:
    """Change a given attention_factor of YaRN: times YaRN's own, or used as the weight mscale."""

    def change(law: YaRN) -> YaRN:
        given, growth = law.attention_factor, math.log(law.factor)
        if given is None:
            return law
        own = how == "times its own"
        return replace(law, attention_factor=given * (0.1 * growth + 1) if own else 0.1 * given * growth + 1)

    return _with_laws(layer, YaRN, change)


def _mla_yarn_by_mscale(layer: LayerPlan) -> LayerPlan:
    """Weigh the factor of all channels by mscale, like that of the positions."""
    weight = next((term.law.mscale for term in layer.terms if isinstance(term.law, YaRN)), None)
    return _with_laws(layer, MLAYaRN, lambda law: replace(law, mscale_all_dim=weight)) if weight else layer


def _with_laws(layer: LayerPlan, kind: type[Any], change: Callable[[Any], Any]) -> LayerPlan:
    """The layer with a change of each factor by this kind of law."""

    def changed(term: Term) -> Term:
        return replace(term, law=change(term.law)) if isinstance(term.law, kind) else term

    return replace(layer, terms=tuple(map(changed, layer.terms)))


def _with_base(layer: LayerPlan, law: Law) -> LayerPlan:
    return layer if layer.refusal is not None else replace(layer, base=replace(layer.base, law=law))


def _power_of(layer: LayerPlan, number: float | str, power: float) -> Law:
    return Constant((layer.head_dim if number == "head_dim" else float(number)) ** power)


def _counting_padding(layer: LayerPlan, law: str) -> LayerPlan:
    """Count padding and packed texts in the positions of a law, if the layer has it."""
    return replace(layer, counts_padding=any(term.law.name == law for term in layer.terms))


_CHANGES: dict[str, Callable[..., LayerPlan]] = {
    "without": _without,
    "without_keys_of_yarn": _without_keys_of_yarn,
    "weigh_factor_of_yarn": _weigh_factor_of_yarn,
    "mla_yarn_by_mscale": _mla_yarn_by_mscale,
    "with_base": lambda layer, *power: _with_base(layer, _power_of(layer, *power)),
    "standard_base": lambda layer: _with_base(layer, Standard()),
    "counting_padding": _counting_padding,
    "without_softcap": lambda layer: replace(layer, softcap=None, softcap_key=""),
    "without_sink": lambda layer: replace(layer, sink=False),
}

# ---- the records ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Changes:
    """The changes of a record, for models of its types (empty: any) and number of layers (None: any)."""

    calls: tuple[tuple[Callable[..., LayerPlan], tuple[Any, ...]], ...]
    types: tuple[str, ...]
    layers: int | None

    def __call__(self, plan: ScalePlan, layer: LayerPlan) -> LayerPlan:
        if (self.types and plan.model_type not in self.types) or self.layers not in (None, len(plan)):
            return layer
        for function, arguments in self.calls:
            layer = function(layer, *arguments)
        return layer


def _read_frameworks() -> dict[str, Framework]:
    """The records of the file; ``thread`` and ``mended`` are places on GitHub, as "owner/name/pull/1"."""
    content = json.loads(Path(__file__).with_name("frameworks.json").read_text(encoding="utf-8"))

    def link(place: str) -> str:
        return f"https://github.com/{place}" if place else ""

    def defect(
        *,
        what: str,
        thread: str,
        config: str,
        changes: list[list[Any]],
        types: list[str] | None = None,
        layers: int | None = None,
        mended: str = "",
        **versions: str,
    ) -> Defect:
        calls = tuple((_CHANGES[name], tuple(arguments)) for name, *arguments in changes)
        change = _Changes(calls, tuple(types or ()), layers)
        example = content["configs"][config]
        return Defect(what, link(thread), example, change, mended=link(mended), **versions)

    return {
        name: Framework(tuple(defect(**each) for each in records))
        for name, records in content["frameworks"].items()
    }


#: Frameworks with a rule on record that differs from the model's.
FRAMEWORKS: dict[str, Framework] = _read_frameworks()


def as_framework(plan: ScalePlan, name: str) -> tuple[ScalePlan, tuple[Defect, ...]]:
    """The plan as a framework is known to have computed it, and the defects that change it.

    Parameters
    ----------
    plan : ScalePlan
    name : str
        One of :data:`FRAMEWORKS`, optionally with a version, as "vllm-0.9": without defects that came later
        or were fixed before, according to the reports.

    Returns
    -------
    plan : ScalePlan
    defects : tuple of Defect
        Empty if no defect affects this model.

    Raises
    ------
    ValueError
        If there is no record of the framework, or only of earlier versions.

    Notes
    -----
    This is a list of public reports, not a test of the frameworks: a defect may be fixed in your
    version, and there may be others.

    Examples
    --------
    >>> import attnscale as at
    >>> plan = at.audit.resolve({"model_type": "gemma2", "hidden_size": 2304, "num_attention_heads": 8,
    ...                          "num_hidden_layers": 26, "head_dim": 256})
    >>> theirs, defects = at.audit.as_framework(plan, "vllm-metal")
    >>> print(defects[0].what)
    the soft-cap of attention is left out
    >>> plan.differences(theirs)
    1 difference
      layers  what     from i  here  there  ratio
      0-25    softcap       -    50  none       -
      layers 0-25: from attn_logit_softcapping = 50.0 (default of gemma2) here, no key there
    """
    framework, version = framework_named(name)
    defects = []
    for defect in framework.defects:
        layers = tuple(defect.change(plan, layer) for layer in plan.layers)
        if defect.concerns(version) and layers != plan.layers:
            plan = plan.with_layers(layers)
            defects.append(defect)
    return plan, tuple(defects)


def framework_named(name: str) -> tuple[Framework, tuple[int, ...]]:
    """The framework and the version in a name; the version is empty if any will do."""
    stem, version = name, _version_of("")
    match = re.fullmatch(r"(.+?)-[vb]?(\d+(?:\.\d+)*)", name) if name not in FRAMEWORKS else None
    if match and match[1] in FRAMEWORKS:
        stem, version = match[1], _version_of(match[2])
    framework = FRAMEWORKS[choose("framework", stem, list(FRAMEWORKS))]
    if version and not framework.has_versions:
        raise ValueError(f"framework {stem!r} is on record without a version, got {shown(name)}")
    if framework.seen and version[: len(framework.seen)] > framework.seen:
        last = ".".join(map(str, framework.seen))
        raise ValueError(f"framework {stem!r} is on record up to version {last}, got {shown(name)}")
    return framework, version
