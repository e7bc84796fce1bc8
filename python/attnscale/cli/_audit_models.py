# SPDX-License-Identifier: BSD-3-Clause
"""``attnscale audit DIR``: one line a model."""

from __future__ import annotations

import argparse
import json
import os
import traceback
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .. import audit
from .._io import InputError
from .._spelling import as_number
from .._tables.text import counted, to_text
from ..audit._layer import spelling
from ._interrupt import watched

#: The words for what may become of a config.
STATUSES = ("ok", "warned", "refused", "skipped")


@dataclass(frozen=True)
class Model:
    """A config and what became of it.

    Attributes
    ----------
    config : str
        The file, from where the search began.
    plan : ScalePlan or None
    reason : str
        Why there is no plan.
    skipped : bool
        Whether the file is no model's config, as far as one can see.
    known : tuple of Defect
        What a framework is on record to do otherwise.
    """

    config: str
    plan: audit.ScalePlan | None = None
    reason: str = ""
    skipped: bool = False
    known: tuple[audit.Defect, ...] = ()

    @property
    def status(self) -> str:
        """The status of the config, one of STATUSES."""
        if self.plan is None:
            return "skipped" if self.skipped else "refused"
        return "warned" if self.plan.warnings else "ok"


def is_one(paths: Sequence[Path]) -> bool:
    """Whether the paths name one config, whose plan is printed; several are printed as a table."""
    return len(paths) == 1 and (not paths[0].is_dir() or (paths[0] / "config.json").is_file())


def find_configs(paths: Iterable[Path]) -> list[tuple[Path, str, bool]]:
    """(file, name in the table, whether it was found by the search) of each config, each once."""
    paths = list(paths)
    found: dict[Path, tuple[Path, str, bool]] = {}
    for path in paths:
        if not path.is_dir():
            found.setdefault(path, (path, str(path), False))
            continue
        files = sorted(_below(path))
        if not files:
            raise InputError(f"{path}: there is no config.json here or in a folder below")
        for file in files:
            name = file.relative_to(path) if len(paths) == 1 else file
            found.setdefault(file, (file, str(name), True))
    return list(found.values())


def _below(folder: Path) -> Iterable[Path]:
    """All config.json below a folder; folders whose name begins with a dot hold caches and histories."""
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        if "config.json" in files:
            yield Path(place, "config.json")


def resolve_quietly(path: Path, part: str | None) -> audit.ScalePlan:
    """The plan of a config without its warnings, which are printed with the plan."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", audit.AuditWarning)
        return audit.resolve(path, part=part)


def look_at(options: argparse.Namespace) -> list[Model]:
    """Every config that the command names, resolved; one that cannot be read does not stop the others."""
    models = []
    configs = find_configs(options.config)
    with watched() as watch:
        for done, (file, name, searched) in enumerate(configs):
            watch(done, len(configs), name)
            models.append(_look_at_one(options, file, name, searched=searched))
    return models


def _look_at_one(options: argparse.Namespace, file: Path, name: str, *, searched: bool) -> Model:
    try:
        plan = resolve_quietly(file, options.part)
    except Exception as error:  # any error at all is told in the config's line
        if getattr(options, "debug", False):
            traceback.print_exc()
        kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
        reason = " ".join(f"{kind}{error}".replace(f"{file}", "").split()).removeprefix(": ")
        skipped = searched and not _names_a_model(file)
        return Model(name, reason="not the config of a model" if skipped else reason, skipped=skipped)
    framework = options.against_framework
    known = audit.as_framework(plan, framework)[1] if framework is not None else ()
    return Model(name, plan, known=known)


def _names_a_model(file: Path) -> bool:
    """Whether a file says whose config it is: other programs and other parts of models have a config.json."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return True  # it cannot be told, so the file is refused
    return not isinstance(content, dict) or "model_type" in content or "architectures" in content


def report(model: Model) -> dict[str, Any]:
    """The model in types that JSON has."""
    head = {"config": model.config, "status": model.status}
    if model.plan is None:
        return {**head, "reason": model.reason}
    plan = model.plan
    answered = [layer for layer in plan.layers if layer.refusal is None]
    terms = [term for layer in answered for term in layer.terms]
    return {
        **head,
        "model_type": plan.model_type,
        "known": plan.known,
        "layers": len(plan),
        "without_answer": len(plan) - len(answered),
        "multipliers": _multipliers(answered),
        "laws": list(dict.fromkeys(spelling(term) for term in terms)),
        "softcaps": sorted({layer.softcap for layer in answered if layer.softcap is not None}),
        "sinks": any(layer.sink for layer in answered),
        "warnings": list(plan.warnings),
        "on_record": [each.to_dict() for each in model.known],
    }


def _multipliers(layers: Sequence[audit.LayerPlan]) -> list[float]:
    """The different multipliers of a query at position 0, the least first."""
    first = np.zeros(1, np.int64)
    return sorted(
        {float(layer.multipliers(first, kind)[0]) for layer in layers for kind in layer.channel_kinds}
    )


def show(models: Sequence[Model], framework: str | None) -> str:
    """The table, then every warning, then how many models have each status."""
    rows = [_row(model, framework is not None) for model in models]
    header = ("config", "model type", "layers", "multiplier at 0", "laws", "cap", "sinks", "warnings")
    lines = [to_text((*header, *(["on record"] if framework is not None else [])), rows)]
    for model in models:
        if model.plan is None:
            lines.append(f"{model.status}: {model.config}: {model.reason}")
            continue
        lines += [f"warning: {model.config}: {text}" for text in model.plan.warnings]
        lines += [f"known: {model.config}: {each}" for each in model.known]
    count = Counter(model.status for model in models)
    said = (
        (count["ok"], "without a warning"),
        (count["warned"], "with warnings"),
        (count["refused"], "refused"),
        (count["skipped"], "skipped"),
    )
    parts = [f"{number} {what}" for number, what in said if number]
    return "\n".join([*lines, f"{counted(len(models), 'config')}: {', '.join(parts)}"])


def _row(model: Model, framework: bool) -> tuple[str, ...]:
    found = report(model)
    more = ("-",) if framework else ()
    if model.plan is None:
        return (model.config, model.status, *("-",) * 6, *more)
    names = dict.fromkeys(term.law.name for layer in model.plan.layers for term in layer.terms)
    return (
        model.config,
        model.plan.model_type or "?",
        str(found["layers"]),
        _few(found["multipliers"]) or "?",
        ", ".join(names) or "-",
        ", ".join(map(as_number, found["softcaps"])) or "-",
        "yes" if found["sinks"] else "-",
        str(len(model.plan.warnings) or "-"),
        *((str(len(model.known) or "-"),) if framework else ()),
    )


def _few(values: Sequence[float]) -> str:
    """The numbers as text: all of a few, or the least and the largest."""
    shown = [f"{value:.7g}" for value in values]
    return ", ".join(shown) if len(shown) < 4 else f"{shown[0]} ... {shown[-1]}"
