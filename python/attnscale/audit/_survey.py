# SPDX-License-Identifier: BSD-3-Clause
"""The plans of many configs, in one table."""

from __future__ import annotations

import json
import os
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .._base.checks import refusal, several, shown
from .._base.spelling import as_number
from .._base.tabled import Labelled, Sheet, Tabled
from .._base.text import counted
from .._files.heads import InputError
from .._grid.finished import finished
from ._layer import LayerPlan, spelling
from ._records import Defect, as_framework, framework_named
from ._resolve import AuditWarning, resolve

if TYPE_CHECKING:
    from .._grid.progress import Progress
    from ._scale_plan import ScalePlan

#: Outcomes of a config, and the words for a number of them.
STATUSES = {"ok": "without a warning", "warned": "with warnings", "refused": "refused", "skipped": "skipped"}

_HEADER = ("config", "model type", "layers", "multiplier at 0", "laws", "cap", "sinks", "warnings")


@dataclass(frozen=True)
class Surveyed:
    """A config and its outcome.

    Attributes
    ----------
    config : str
        The file, relative to the folder that was searched if there was one only.
    plan : ScalePlan or None
        None if the config was refused or skipped.
    reason : str
        Why there is no plan.
    skipped : bool
        Whether a search found the file and it is not the config of a model.
    on_record : tuple of Defect
        Known differences of the framework.
    error : Exception or None
        What ended the reading of the config.
    """

    config: str
    plan: ScalePlan | None = None
    reason: str = ""
    skipped: bool = False
    on_record: tuple[Defect, ...] = ()
    error: Exception | None = field(default=None, repr=False, compare=False)

    @property
    def status(self) -> str:
        """The outcome: "ok", "warned", "refused" or "skipped"."""
        if self.plan is None:
            return "skipped" if self.skipped else "refused"
        return "warned" if self.plan.warnings else "ok"

    def to_dict(self) -> dict[str, Any]:
        """The outcome in types of JSON."""
        head = {"config": self.config, "status": self.status}
        if self.plan is None:
            return {**head, "reason": self.reason}
        answered = [layer for layer in self.plan.layers if layer.refusal is None]
        terms = [term for layer in answered for term in layer.terms]
        return {
            **head,
            "model_type": self.plan.model_type,
            "known": self.plan.known,
            "layers": len(self.plan),
            "without_answer": len(self.plan) - len(answered),
            "multipliers": _multipliers(answered),
            "laws": list(dict.fromkeys(spelling(term) for term in terms)),
            "softcaps": sorted({layer.softcap for layer in answered if layer.softcap is not None}),
            "sinks": any(layer.sink for layer in answered),
            "warnings": list(self.plan.warnings),
            "on_record": [each.to_dict() for each in self.on_record],
        }

    def _cells(self) -> tuple[str, ...]:
        if self.plan is None:
            return (self.config, self.status, *("-",) * 7)
        found = self.to_dict()
        names = dict.fromkeys(term.law.name for layer in self.plan.layers for term in layer.terms)
        return (
            self.config,
            self.plan.model_type or "?",
            str(found["layers"]),
            _few(found["multipliers"]) or "?",
            ", ".join(names) or "-",
            ", ".join(map(as_number, found["softcaps"])) or "-",
            "yes" if found["sinks"] else "-",
            str(len(self.plan.warnings) or "-"),
            str(len(self.on_record) or "-"),
        )

    def _notes(self) -> list[str]:
        if self.plan is None:
            return [f"{self.status}: {self.config}: {self.reason}"]
        warned = [f"warning: {self.config}: {text}" for text in self.plan.warnings]
        return warned + [f"known: {self.config}: {each}" for each in self.on_record]


@dataclass(frozen=True, repr=False)
class Survey(Tabled):
    """The outcomes of many configs; :func:`attnscale.audit.survey` makes it.

    Attributes
    ----------
    models : tuple of Surveyed
    framework : str or None
        The framework whose known differences were looked up.
    warnings : tuple of str
        A release of the framework that is newer than the record.
    interrupted : bool
        Whether Ctrl-C came before the last config.
    """

    models: tuple[Surveyed, ...]
    framework: str | None = None
    warnings: tuple[str, ...] = ()
    interrupted: bool = False

    @property
    def counts(self) -> dict[str, int]:
        """Number of configs with each outcome."""
        found = Counter(model.status for model in self.models)
        return {status: found[status] for status in STATUSES}

    def rows(self) -> list[dict[str, Any]]:
        """One row for each config: lists are texts, and warnings are counted."""
        names = ("config", "status", "reason", "model_type", "layers", "without_answer", "sinks")
        lists = ("multipliers", "laws", "softcaps")
        return [
            {
                **{name: each.get(name) for name in names},
                **{name: "; ".join(map(str, each.get(name, ()))) for name in lists},
                **{name: len(each.get(name, ())) for name in ("warnings", "on_record")},
            }
            for each in (model.to_dict() for model in self.models)
        ]

    def to_dict(self) -> dict[str, Any]:
        """The outcomes and their numbers in types of JSON."""
        models = [model.to_dict() for model in self.models]
        return {"models": models, "counts": self.counts, "warnings": list(self.warnings)}

    def _variables(self) -> dict[str, Labelled]:
        missing = {"reason": "", "model_type": "", "layers": 0, "without_answer": 0, "sinks": False}
        columns: dict[str, list[Any]] = {}
        for row in self.rows():
            for name, value in row.items():
                columns.setdefault(name, []).append(missing.get(name) if value is None else value)
        return {name: Labelled(("line",), np.array(values)) for name, values in columns.items()}

    def _sheet(self, nats: float, unit: str) -> Sheet:
        header = _HEADER if self.framework is None else (*_HEADER, "on record")
        notes = [note for model in self.models for note in model._notes()]
        parts = [f"{number} {STATUSES[status]}" for status, number in self.counts.items() if number]
        notes += [f"warning: {text}" for text in self.warnings]
        notes.append(f"{counted(len(self.models), 'config')}: {', '.join(parts)}")
        rows = [each._cells()[: len(header)] for each in self.models]
        return Sheet("Survey", header, rows, tuple(notes))


def survey(
    configs: str | Path | Iterable[str | Path],
    *,
    part: str | None = None,
    framework: str | None = None,
    progress: Progress = False,
) -> Survey:
    """Resolve many configs; those that cannot be read have a line too, and no warning is issued.

    Parameters
    ----------
    configs : str, path or iterable of them
        Files as for :func:`resolve`, or folders, in which every config.json is found, at any depth, except in
        folders whose names begin with a dot. There a file that is not the config of a model is skipped.
    part : str, optional
        As for :func:`resolve`.
    framework : str, optional
        One of ``FRAMEWORKS``, with or without a release, whose known differences are looked up for every
        model.
    progress : bool or callable, default False
        True shows a bar where standard error is a terminal. A function is called with (done, total).

    Returns
    -------
    Survey
        After Ctrl-C it has the configs that were read.

    Raises
    ------
    ValueError
        If the framework is not known, or a folder has no config.json.

    Examples
    --------
    >>> import json, pathlib, tempfile
    >>> import attnscale as at
    >>> config = {"model_type": "gemma2", "hidden_size": 2304, "num_hidden_layers": 26, "head_dim": 256,
    ...           "num_attention_heads": 8, "query_pre_attn_scalar": 256, "attn_logit_softcapping": 50.0}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for name, content in (("gemma", config), ("broken", {})):
    ...         pathlib.Path(folder, name).mkdir()
    ...         size = pathlib.Path(folder, name, "config.json").write_text(json.dumps(content))
    ...     found = at.audit.survey(folder)
    >>> [(model.config, model.status) for model in found.models]
    [('broken/config.json', 'skipped'), ('gemma/config.json', 'ok')]
    >>> found.models[1].to_dict()["multipliers"]
    [0.0625]
    """
    note = "" if framework is None else framework_named(framework).note
    paths = (
        [configs] if isinstance(configs, (str, os.PathLike)) else several("configs", configs, "path", "paths")
    )
    for path in paths:
        if not isinstance(path, (str, os.PathLike)):
            raise refusal(TypeError, "configs", f"must be paths, got {shown(path)}")
    places = _find([Path(path) for path in paths])
    found, interrupted = finished(
        list(places),
        lambda file: _look_at(file, *places[file], part, framework),
        progress,
        name=lambda file: places[file][0],
    )
    return Survey(tuple(found.values()), framework, tuple(filter(None, [note])), interrupted)


def resolve_quietly(config: Any, part: str | None) -> ScalePlan:
    """The plan of a config, without issuing its warnings, which it has."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AuditWarning)
        return resolve(config, part=part)


def _find(paths: Sequence[Path]) -> dict[Path, tuple[str, bool]]:
    """Name in the table, and whether the search found it, of each config, without repetition."""
    found: dict[Path, tuple[str, bool]] = {}
    for path in paths:
        if not path.is_dir():
            found.setdefault(path, (str(path), False))
            continue
        files = sorted(_below(path))
        if not files:
            raise InputError(f"{path}: there is no config.json here or in a folder below")
        for file in files:
            found.setdefault(file, (str(file.relative_to(path) if len(paths) == 1 else file), True))
    return found


def _below(folder: Path) -> Iterator[Path]:
    """All config.json below a folder, except in folders named with a leading dot (caches, histories)."""
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        if "config.json" in files:
            yield Path(place, "config.json")


def _look_at(file: Path, name: str, searched: bool, part: str | None, framework: str | None) -> Surveyed:
    try:
        plan = resolve_quietly(file, part)
    except Exception as error:  # the config's line shows any error
        kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
        reason = " ".join(f"{kind}{error}".replace(f"{file}", "").split()).removeprefix(": ")
        skipped = searched and not _names_a_model(file)
        reason = "not the config of a model" if skipped else reason
        return Surveyed(name, reason=reason, skipped=skipped, error=error)
    return Surveyed(name, plan, on_record=() if framework is None else as_framework(plan, framework)[1])


def _names_a_model(file: Path) -> bool:
    """Whether a file names its model: other programs and parts of models have a config.json too."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return True  # unreadable, so the file is refused
    if not isinstance(content, dict) or "model_type" in content or "architectures" in content:
        return True
    return "Transformer" in str(content.get("_class_name"))  # diffusers' other parts have no layers


def _multipliers(layers: Sequence[LayerPlan]) -> list[float]:
    """The distinct multipliers of a query at position 0, ascending."""
    first = np.zeros(1, np.int64)
    return sorted(
        {float(layer.multipliers(first, kind)[0]) for layer in layers for kind in layer.channel_kinds}
    )


def _few(values: Sequence[float]) -> str:
    """The numbers as text: all if there are few, else the least and the largest."""
    shown = [f"{value:.7g}" for value in values]
    return ", ".join(shown) if len(shown) < 4 else f"{shown[0]} ... {shown[-1]}"
