# SPDX-License-Identifier: BSD-3-Clause
"""``attnscale audit``: multipliers of the score in each layer of a model, from its config.json."""

from __future__ import annotations

import argparse
import shlex
import traceback
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from .. import audit
from .._base.checks import InputError
from .._base.text import counted, to_text
from .._grid.progress import watched
from ..audit._differences import both_sides, gap_lines, in_angles_alone
from ..audit._records import framework_named
from ..audit._survey import resolve_quietly
from ._options import OPTIONS, Parser, add_option, add_outputs
from ._output import Answer, FoundError, as_input, bad_input, table_of
from ._program import program

DESCRIPTION = """\
Multipliers of q . k in each layer of a model, before soft-cap, bias and mask: base scale, scale laws,
channels they act on, soft-cap, sinks, and the key of the config that each comes from.
CONFIG is a config.json, a model.gguf, or the directory that holds a config.json. If safetensors lie in
that directory, or CONFIG is one of them, scales, sinks and temperatures stored as weights are read too.
For several configs, or a directory with models below it, it prints a table with one line a model; an
unreadable config has a line too, and the exit status is 2.
With --measure, CONFIG is a folder with a model of transformers, which is loaded and run.
"""

#: An answer as text, JSON, and rows of CSV.
_Shown: TypeAlias = tuple[str, dict[str, Any], list[dict[str, Any]]]


def add_options(parser: Parser) -> None:
    """Add the options of ``attnscale audit``."""
    parser.add_argument("config", type=Path, nargs="+", metavar="CONFIG")
    add_option(parser, "--part", metavar="KEY", help="part of a composite config, as encoder or text_config")
    add_option(parser, "--layer", "--at")
    other = parser.add_mutually_exclusive_group()
    add_option(other, "--against")
    about = f"{OPTIONS['--against-framework'].meaning}, as vllm or vllm-0.25: {', '.join(audit.FRAMEWORKS)}"
    add_option(other, "--against-framework", help=about)
    add_option(other, "--measure")
    add_option(parser, "--strict")
    add_outputs(parser, plot=False)


def run(options: argparse.Namespace) -> Answer:
    """Resolve the configs and print; --strict then raises an error about its findings."""
    first, *others = options.config
    if options.measure:
        return _measured(options)
    if others or (first.is_dir() and not (first / "config.json").is_file()):
        return _several(options)
    return _one(options)


def _one(options: argparse.Namespace) -> Answer:
    """The plan of a model, its multipliers, or its differences from another."""
    path, weights = _places(options.config[0])
    plan = _resolve(path, options)
    found = counted(len(plan.warnings), "warning") if plan.warnings else ""
    with bad_input():  # the plan may lack the layer, the position or an answer
        if options.against is not None:
            other = _resolve(options.against, options)
            text, content, rows = _differences(options, plan, other, ())
        elif options.against_framework is not None:
            other, defects = audit.as_framework(plan, options.against_framework)
            text, content, rows = _differences(options, plan, other, defects)
        elif options.at is not None:
            positions = plan.at(options.at, layer=options.layer)
            text, rows = _lines(positions), positions.rows()
            content = {"report": "positions", **positions.to_dict()}
        else:
            if options.layer is not None:
                plan = plan.with_layers((plan.layer(options.layer),))
            text, content, rows = plan.explain(), {"report": "plan", **plan.to_dict()}, plan.rows()
            if weights is not None and (learned := audit.learned_scales(weights, config=path)).entries:
                text += f"\n\n{_learned(learned, options.layer)}"
                content["learned"] = [
                    each.to_dict() for each in learned.entries if options.layer in (None, each.layer)
                ]
            text += _next(plan, path, options)
    if content["report"] == "differences" and content["differences"]:
        found = counted(len(content["differences"]), "difference")
    ends = FoundError(f"{found} (--strict)") if options.strict and found else None
    return Answer(text, rows, report={"schema": audit.SCHEMA, **content}, ends=ends)


def _measured(options: argparse.Namespace) -> Answer:
    """The multipliers of the model in a folder, beside those of its config.json."""
    folder = options.config[0]
    if len(options.config) > 1 or not folder.is_dir():
        raise InputError(
            f"--measure needs one folder with a model, got {shlex.join(map(str, options.config))}"
        )
    for flag, value in (("--layer", options.layer), ("--at", options.at), ("--part", options.part)):
        if value is not None:
            raise InputError(f"{flag} must be left out with --measure, which measures all layers")
    from ._model import model_of  # brings torch

    model = model_of(folder)
    with bad_input():
        found = audit.measure(model, config=folder)
    said = counted(len(found.differences), "difference") if found.compared else "no layer was compared"
    ends = options.strict and (found.differences or not found.compared)
    return Answer(
        str(found),
        found.rows(),
        report={"schema": audit.SCHEMA, "report": "measured", **found.to_dict()},
        ends=FoundError(f"{said} (--strict)") if ends else None,
    )


def _next(plan: audit.ScalePlan, path: Path, options: argparse.Namespace) -> str:
    """The command that asks an engine about this config, on a line of its own, if a probe can be written."""
    from ..probe._families import FAMILY  # here alone: other reports need no probe

    if (
        plan.model_type not in FAMILY
        or options.part is not None
        or not (path.is_dir() or path.suffix == ".json")
    ):
        return ""
    return f"\n\nask your engine: {program()} probe write {shlex.quote(str(path))} -o probe/"


def _places(path: Path) -> tuple[Path, Path | None]:
    """The config and the weights at a path, or None without weights."""
    if path.name.endswith((".safetensors", ".safetensors.index.json")):
        if not (path.parent / "config.json").is_file():
            said = f"attnscale laws --from {path} reads the weights alone"
            raise InputError(f"{path}: there is no config.json beside it; {said}")
        return path.parent, path
    has_weights = path.is_dir() and any(path.glob("*.safetensors"))
    return path, path if has_weights else None


def _learned(found: audit.LearnedScales, layer: int | None) -> str:
    """Learned scales: a line for each quantity of a layer, or for each head of a chosen layer."""
    title, (table, notes) = "in the weights", table_of(found)
    if layer is None:
        return "\n".join([f"{title}\n", table, *notes])
    rows = [each for each in found.rows() if each["layer"] == layer]
    names = ("head", "quantity", "value", "least", "largest")
    lines = [
        [f"{row[name]:.6g}" if isinstance(row[name], float) else str(row[name]) for name in names]
        for row in rows
    ]
    return "\n".join([f"{title}, layer {layer}\n", to_text(names, lines), *notes])


def _several(options: argparse.Namespace) -> Answer:
    """The table of several models."""
    for flag, value in (("--layer", options.layer), ("--at", options.at), ("--against", options.against)):
        if value is not None:
            raise InputError(f"{flag} needs a single config: give one file, or one folder that holds it")
    with bad_input(), watched() as watch:
        found = audit.survey(
            options.config, part=options.part, framework=options.against_framework, progress=watch
        )
    if getattr(options, "debug", False):
        for error in (model.error for model in found.models if model.error is not None):
            traceback.print_exception(error)
    all_of_them = counted(len(found.models), "config")
    flagged = sum(bool(model.on_record) or model.status == "warned" for model in found.models)
    ends: Exception | None = None
    if refused := found.counts["refused"]:
        ends = InputError(f"{refused} of {all_of_them} cannot be audited")
    elif options.strict and flagged:
        ends = FoundError(f"{flagged} of {all_of_them} with warnings or defects (--strict)")
    return Answer(
        _lines(found),
        found.rows(),
        report={"schema": audit.SCHEMA, "report": "models", **found.to_dict()},
        ends=None if found.interrupted else ends,
        interrupted=found.interrupted,
    )


def _lines(found: audit.Survey | audit.Positions) -> str:
    table, notes = table_of(found)
    return "\n".join([table, *notes])


def _resolve(path: Path, options: argparse.Namespace) -> audit.ScalePlan:
    try:
        return resolve_quietly(path, options.part)
    except audit.ConfigError as error:
        raise as_input(error, "" if str(path) in str(error) else str(path)) from error


def _differences(
    options: argparse.Namespace,
    plan: audit.ScalePlan,
    other: audit.ScalePlan,
    defects: tuple[audit.Defect, ...],
) -> _Shown:
    """The differences between two plans."""
    layer = None if options.layer is None else plan.layer(options.layer).index
    every = audit.compare(plan, other)
    found = audit.Differences(each for each in every if layer is None or layer in (each.layers or [layer]))
    rows = [{**each.to_dict(options.at or ()), "at": _at(plan, other, each, options)} for each in found]
    lines = ["no difference in what multiplies the score; of the angles:"] if in_angles_alone(found) else []
    for each, row in zip(found, rows, strict=True):
        lines.append(str(each))
        # A framework reads the same keys, so they are shown only for two configs.
        lines += [f"  {each.source}"] if each.source and not defects else []
        lines += [f"  {line}" for line in gap_lines(each, options.at or ())]
        for i, (here, there) in row["at"].items():
            lines.append(f"  at i = {i}: {here:.7g} here, {there:.7g} there ({here / there:.4f} times)")
    lines += [f"known: {defect}" for defect in defects]
    name = options.against_framework
    if not found and name is not None:
        said = framework_named(name).said
        lines.append(
            f"nothing on record: no report about {said} concerns this model; {said} may still differ"
        )
    elif not found:
        lines.append("no difference")
    texts = plan.warnings if name is None else other.warnings  # of a framework: and on its release
    lines += [f"warning: {text}" for text in texts]
    content = {
        "report": "differences",
        "differences": rows,
        "known": [defect.to_dict() for defect in defects],
        "warnings": list(texts),
    }
    return "\n".join(lines), content, found.rows()


def _at(
    plan: audit.ScalePlan, other: audit.ScalePlan, each: audit.Difference, options: argparse.Namespace
) -> dict[int, tuple[float, float]]:
    """The multipliers at the requested positions, for a difference in a multiplier."""
    if each.first_position is None or options.at is None:
        return {}
    where = np.asarray(options.at)
    layer = each.layers[0]
    here, there = (side(where) for side in both_sides(each.what, plan.layer(layer), other.layer(layer)))
    return {int(i): (float(a), float(b)) for i, a, b in zip(where, here, there, strict=True)}
