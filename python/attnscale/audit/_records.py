# SPDX-License-Identifier: BSD-3-Clause
"""Frameworks that are known to compute something else than a model's config says, by release.

``frameworks.json`` holds each record, its rule and a config that shows it. ``changes`` there are names of
``CHANGES``, each with its arguments, applied in order.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

from .._base.checks import choose, shown
from ._changes import CHANGES, Change
from ._layer import LayerPlan
from ._releases import Release, Sighting, is_release, release_of
from ._scale_plan import ScalePlan

#: Function from plan and layer to the layer as the framework computes it; unchanged if not affected.
Changed: TypeAlias = Callable[[ScalePlan, LayerPlan], LayerPlan]


@dataclass(frozen=True)
class Defect:
    """A rule of a model that a framework does not follow.

    Attributes
    ----------
    what : str
        What the framework does instead.
    reference : str
        The public report, or the file of the package that was read, or the probe that was run.
    config : mapping
        A config that shows the defect.
    change : callable
        Function from plan and layer to the layer as the framework computes it.
    seen : tuple of Sighting
        Releases in which the defect was seen, and how.
    since : str
        The first release with the defect if it is known, or empty.
    before : str
        The first release that is known to be without the defect, or empty.
    mended : str
        The change that fixed the defect, or empty.
    gone : bool
        Whether the release ``before`` lacks the defect because it lacks the model.
    """

    what: str
    reference: str
    config: Mapping[str, Any] = field(repr=False, hash=False)
    change: Changed = field(repr=False)
    seen: tuple[Sighting, ...] = ()
    since: str = ""
    before: str = ""
    mended: str = ""
    gone: bool = False

    @property
    def versions(self) -> str:
        """The affected releases in words.

        Examples
        --------
        >>> import attnscale as at
        >>> at.audit.FRAMEWORKS["onnxruntime-genai"].defects[0].versions
        'before 0.5.0, read in 0.4.0'
        """
        parts = [f"from {self.since} on"] if self.since else []
        parts += (
            [f"before {self.before}{', which lacks the model' if self.gone else ''}"] if self.before else []
        )
        for how in dict.fromkeys(each.how for each in self.seen):
            parts.append(f"{how} in {' and '.join(each.release for each in self.seen if each.how == how)}")
        return ", ".join(parts) or "releases not known"

    def concerns(self, release: Release) -> bool:
        """Whether a release may have the defect; one without numbers stands for any."""
        since, before = release_of(self.since), release_of(self.before)
        early = release.is_before(since) and not release.may_be(since)
        mended = bool(before.numbers) and not release.is_before(before)
        return not release.numbers or not (early or mended)

    def to_dict(self) -> dict[str, Any]:
        """The record of the defect in types of JSON."""
        texts = {name: getattr(self, name) for name in ("what", "reference", "versions", "mended")}
        seen = [each._asdict() for each in self.seen]
        return {**texts, "seen": seen, "since": self.since, "before": self.before, "gone": self.gone}

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
    newest : str
        The last release that was looked at, or empty: a name without a release stands for it.
    also : tuple of str
        Other names.
    """

    defects: tuple[Defect, ...]
    newest: str = ""
    also: tuple[str, ...] = ()


# ---- the records ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Changes:
    """The changes of a record, and the models that they are for.

    Attributes
    ----------
    calls : tuple of (function, arguments)
    types : tuple of str
        Model types; empty: any.
    others : tuple of str
        Model types that are not concerned.
    layers, not_layers : int or None
        The number of layers, and the one that is not concerned.
    configs : bool
        Whether plans from GGUF files are not concerned.
    """

    calls: tuple[tuple[Change, tuple[Any, ...]], ...]
    types: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    layers: int | None = None
    not_layers: int | None = None
    configs: bool = False

    def __call__(self, plan: ScalePlan, layer: LayerPlan) -> LayerPlan:
        if self._concerns(plan):
            for function, arguments in self.calls:
                layer = function(plan, layer, *arguments)
        return layer

    def _concerns(self, plan: ScalePlan) -> bool:
        kind = plan.model_type
        count = self.layers in (None, len(plan)) and self.not_layers != len(plan)
        file = self.configs and plan.architecture
        return (not self.types or kind in self.types) and kind not in self.others and count and not file


def _read_frameworks() -> dict[str, Framework]:
    """The records of the file; ``thread`` and ``mended`` are places on GitHub, as "owner/name/pull/1"."""
    content = json.loads(Path(__file__).with_name("frameworks.json").read_text(encoding="utf-8"))

    def link(place: str) -> str:
        return f"https://github.com/{place}" if place else ""

    def defect(
        *,
        what: str,
        config: str,
        changes: list[list[Any]],
        thread: str = "",
        file: str = "",
        mended: str = "",
        seen: Mapping[str, list[str]] | None = None,
        since: str = "",
        before: str = "",
        gone: bool = False,
        **limits: Any,
    ) -> Defect:
        calls = tuple((CHANGES[name], tuple(arguments)) for name, *arguments in changes)
        change = _Changes(calls, **{name: _frozen(value) for name, value in limits.items()})
        sightings = tuple(
            Sighting(each, how) for how, all_of_it in (seen or {}).items() for each in all_of_it
        )
        example, mended = content["configs"][config], link(mended)
        return Defect(what, link(thread) or file, example, change, sightings, since, before, mended, gone)

    return {
        name: Framework(
            tuple(defect(**each) for each in found["records"]),
            found.get("newest", ""),
            tuple(found.get("also", ())),
        )
        for name, found in content["frameworks"].items()
    }


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


#: Frameworks with a rule on record that differs from the model's.
FRAMEWORKS: dict[str, Framework] = _read_frameworks()


def as_framework(plan: ScalePlan, name: str) -> tuple[ScalePlan, tuple[Defect, ...]]:
    """The plan as a framework is known to have computed it, and the defects that change it.

    Parameters
    ----------
    plan : ScalePlan
    name : str
        One of :data:`FRAMEWORKS`, with a release as in "vllm-0.25": without defects that came later or were
        mended before. Without a release it is the newest on record. A release after that is answered as the
        newest one, which a warning of the returned plan says.

    Returns
    -------
    plan : ScalePlan
    defects : tuple of Defect
        Empty if no defect affects this model.

    Raises
    ------
    ValueError
        If there is no record of the framework, or a release is given and the record has none.

    Notes
    -----
    This is a list of what was reported, read or run, not a test of your framework: there may be other
    defects.

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
    found = framework_named(name)
    defects = []
    for defect in found.framework.defects:
        layers = tuple(defect.change(plan, layer) for layer in plan.layers)
        if defect.concerns(found.release) and layers != plan.layers:
            changed = plan.with_layers(layers)
            if plan.differences(changed):  # keys that give the same number do not differ
                plan = changed
                defects.append(defect)
    if found.note:
        plan = replace(plan, warnings=(*plan.warnings, found.note))
    return plan, tuple(defects)


@dataclass(frozen=True)
class Named:
    """A framework by its name, with the release that is asked about.

    Attributes
    ----------
    framework : Framework
    said : str
        Its name and the release, as "vllm 0.25".
    release : Release
        The newest one on record if the name has none.
    note : str
        What is said of a release after the newest one, or empty.
    """

    framework: Framework
    said: str
    release: Release
    note: str = ""


def framework_named(name: str) -> Named:
    """The framework and the release in a name, as "vllm-0.25"."""
    known = {other: stem for stem, each in FRAMEWORKS.items() for other in (stem, *each.also)}
    stem, _, text = str(name).rpartition("-")
    if stem.lower() in known and str(name).lower() not in known:
        stem = stem.lower()
        if not is_release(text):
            rule = "must be numbers, as in vllm-0.29.0"
            raise ValueError(f"release of framework {stem!r} {rule}, got {shown(text)}")
    else:
        stem, text = str(name).lower() if str(name).lower() in known else name, ""
    stem = known[choose("framework", stem, list(FRAMEWORKS), also=known)]
    framework = FRAMEWORKS[stem]
    if text and not framework.newest:
        raise ValueError(f"framework {stem!r} is on record without a release, got {shown(name)}")
    release, newest = release_of(text or framework.newest), release_of(framework.newest)
    said = " ".join(filter(None, (stem, text or framework.newest)))
    note = f"{said} is newer than any release on record: last seen in {framework.newest}"
    return Named(framework, said, release, note if newest.is_before(release) else "")
