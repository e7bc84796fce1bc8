# SPDX-License-Identifier: BSD-3-Clause
"""``attnscale audit``: what multiplies the score in each layer of a model, from its config.json."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from .. import audit
from .._io import InputError
from .._spelling import as_number
from .._tables.text import counted, to_text
from ..audit._differences import both_sides
from ..audit._records import framework_named
from ..audit._text import groups, named, ranges
from ._audit_models import STATUSES, Model, is_one, look_at, report, resolve_quietly, show
from ._options import OPTIONS, add_option, add_outputs
from ._output import Answer, FoundError, as_input, bad_input

_DESCRIPTION = """\
What multiplies q . k in each layer of a model, before soft-cap, bias and mask: base scale, scale laws,
channels they act on, soft-cap, sinks, and the key of the config that each comes from.
CONFIG is a config.json or the directory that holds it. Of several, and of a directory with models below it,
it prints a table with one line a model; what cannot be read is a line of it too, and then exit status 2.
"""

#: An answer as text, as JSON, and as rows of CSV.
_Shown: TypeAlias = tuple[str, dict[str, Any], list[dict[str, Any]]]


def add(commands: Any) -> None:
    """Add the parser of ``attnscale audit``."""
    parser = commands.add_parser(
        "audit",
        help="the scale of attention in each layer, from a model's config.json",
        description=_DESCRIPTION,
    )
    parser.add_argument("config", type=Path, nargs="+", metavar="CONFIG")
    for flag in ("--part", "--layer", "--at"):
        add_option(parser, flag)
    other = parser.add_mutually_exclusive_group()
    add_option(other, "--against")
    about = f"{OPTIONS['--against-framework'].meaning}: {', '.join(audit.FRAMEWORKS)}"
    add_option(other, "--against-framework", help=about)
    add_option(parser, "--strict")
    add_outputs(parser, plot=False)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> Answer:
    """Resolve the configs and print; finding what --strict looks for is an error after that."""
    if is_one(options.config):
        return _one(options)
    return _several(options)


def _one(options: argparse.Namespace) -> Answer:
    """The plan of a model, its multipliers, or what differs from it."""
    plan = _resolve(options.config[0], options)
    found = counted(len(plan.warnings), "warning") if plan.warnings else ""
    with bad_input():  # the plan may not have the layer or position, or no answer for it
        if options.against is not None:
            other = _resolve(options.against, options)
            text, content, rows = _differences(options, plan, other, ())
        elif options.against_framework is not None:
            other, defects = audit.as_framework(plan, options.against_framework)
            text, content, rows = _differences(options, plan, other, defects)
        elif options.at is not None:
            text, content, rows = _positions(options, plan)
        else:
            plan = _chosen(options, plan)
            text, content, rows = plan.explain(), {"report": "plan", **plan.to_dict()}, _terms(plan)
    if content["report"] == "differences" and content["differences"]:
        found = counted(len(content["differences"]), "difference")
    ends = FoundError(f"{found} (--strict)") if options.strict and found else None
    return Answer(text, rows, report={"schema": audit.SCHEMA, **content}, ends=ends)


def _several(options: argparse.Namespace) -> Answer:
    """The table of several models."""
    for flag, value in (("--layer", options.layer), ("--at", options.at), ("--against", options.against)):
        if value is not None:
            raise InputError(
                f"{flag} is a question about one config: give one file, or one folder that holds it"
            )
    with bad_input():
        if options.against_framework is not None:
            framework_named(options.against_framework)
        models = look_at(options)
    reports = [report(model) for model in models]
    counts = {status: sum(model.status == status for model in models) for status in STATUSES}
    text = show(models, options.against_framework)
    content = {"schema": audit.SCHEMA, "report": "models", "models": reports, "counts": counts}
    ends: Exception | None = None
    if counts["refused"]:
        ends = InputError(f"{counts['refused']} of {counted(len(models), 'config')} cannot be audited")
    elif options.strict and (found := _found(models)):
        ends = FoundError(f"{found} of {counted(len(models), 'config')} with warnings or defects (--strict)")
    return Answer(text, _lines(reports), report=content, ends=ends)


def _found(models: Sequence[Model]) -> int:
    """How many models have something that --strict looks for."""
    return sum(bool(model.known) or model.status == "warned" for model in models)


def _lines(reports: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row of CSV for each model: lists are texts, and warnings are counted."""
    names = ("config", "status", "reason", "model_type", "layers", "without_answer", "sinks")
    lists = ("multipliers", "laws", "softcaps")
    return [
        {
            **{name: each.get(name) for name in names},
            **{name: "; ".join(map(str, each.get(name, ()))) for name in lists},
            "warnings": len(each.get("warnings", ())),
            "on_record": len(each.get("on_record", ())),
        }
        for each in reports
    ]


def _terms(plan: audit.ScalePlan) -> list[dict[str, Any]]:
    """One row for each factor of each layer, as CSV has them."""
    return [
        {
            "layer": layer.index,
            "kind": layer.kind,
            "factor": "" if term is None else repr(term.law),
            "channels": "" if term is None else term.channels,
            "n_means": "" if term is None else term.n_means,
            "key": "" if term is None else term.key,
            "softcap": layer.softcap,
            "window": layer.window,
            "sink": layer.sink,
            "refusal": layer.refusal,
        }
        for layer in plan.layers
        for term in ([None] if layer.refusal is not None else [layer.base, *layer.terms])
    ]


def _resolve(path: Path, options: argparse.Namespace) -> audit.ScalePlan:
    try:
        return resolve_quietly(path, options.part)
    except audit.ConfigError as error:
        raise as_input(error, "" if str(path) in str(error) else str(path)) from error


def _only(options: argparse.Namespace, plan: audit.ScalePlan) -> list[int]:
    if options.layer is None:
        return list(range(len(plan)))
    return [plan.layer(options.layer).index]


def _chosen(options: argparse.Namespace, plan: audit.ScalePlan) -> audit.ScalePlan:
    numbers = set(_only(options, plan))
    return plan.with_layers(tuple(layer for layer in plan.layers if layer.index in numbers))


def _positions(options: argparse.Namespace, plan: audit.ScalePlan) -> _Shown:
    """The multipliers at the positions asked for."""
    chosen = set(_only(options, plan))
    rows: list[dict[str, Any]] = []
    for numbers, layer in groups(plan.layers):
        layers = [number for number in numbers if number in chosen]
        if not layers:
            continue
        if layer.refusal is not None:
            if options.layer is not None:
                plan.softcap(options.layer)  # raises, with the reason
            rows += [{"layers": layers, "position": i, "refusal": layer.refusal} for i in options.at]
            continue
        for i in options.at:
            row: dict[str, Any] = {"layers": layers, "position": i}
            for kind in layer.channel_kinds:
                row[kind] = plan.multiplier(layer=layers[0], position=i, channels=kind)
            if layer.terms_behind_cap:
                row["capped"] = plan.capped_multiplier(layer=layers[0], position=i)
            rows.append({**row, "softcap": layer.softcap, "window": layer.window, "sink": layer.sink})
    header = ("layer", "i", "rotated", "unrotated", "window", "cap", "sink")
    lines = [to_text(header, [_cells(row) for row in rows]), *(f"warning: {text}" for text in plan.warnings)]
    columns = ("position", "rotated", "unrotated", "softcap", "capped", "window", "sink", "refusal")
    flat = [
        {"layer": layer, **{name: row.get(name) for name in columns}}
        for row in rows
        for layer in row["layers"]
    ]
    content = {"report": "positions", "rows": rows, "warnings": list(plan.warnings)}
    return "\n".join(lines), content, flat


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    start = (named(row["layers"]), str(row["position"]))
    if "refusal" in row:
        return (*start, "?", "?", "-", "-", row["refusal"])
    numbers = (f"{row[kind]:.9g}" if kind in row else "-" for kind in ("rotated", "unrotated"))
    cap = "-" if row["softcap"] is None else as_number(row["softcap"])
    if "capped" in row:
        cap += f", then x {row['capped']:.9g}"
    return (*start, *numbers, str(row["window"] or "-"), cap, "yes" if row["sink"] else "-")


def _differences(
    options: argparse.Namespace,
    plan: audit.ScalePlan,
    other: audit.ScalePlan,
    defects: tuple[audit.Defect, ...],
) -> _Shown:
    """What differs between two plans."""
    chosen = set(_only(options, plan))
    found = [each for each in audit.compare(plan, other) if not each.layers or chosen & set(each.layers)]
    rows = [{**vars(each), "at": _at(plan, other, each, options)} for each in found]
    lines: list[str] = []
    for each, row in zip(found, rows, strict=True):
        lines.append(str(each))
        lines += (
            [f"  {each.source}"] if each.source and not defects else []
        )  # a framework reads the same keys
        for i, (here, there) in row["at"].items():
            lines.append(f"  at i = {i}: {here:.7g} here, {there:.7g} there ({here / there:.4f} times)")
    lines += [f"known: {defect}" for defect in defects]
    if not found:
        name = options.against_framework
        nothing = (
            f"nothing on record: no report about {name} concerns this model, which is no proof of {name}"
        )
        lines.append(nothing if name else "no difference")
    lines += [f"warning: {text}" for text in plan.warnings]
    content = {
        "report": "differences",
        "differences": rows,
        "known": [defect.to_dict() for defect in defects],
        "warnings": list(plan.warnings),
    }
    return "\n".join(lines), content, [_flat(each) for each in found]


def _flat(each: audit.Difference) -> dict[str, Any]:
    """The difference as a row of CSV."""
    keys = {name: "; ".join(getattr(each, name)) for name in ("keys_here", "keys_there")}
    return {**vars(each), "layers": ranges(list(each.layers)), **keys}


def _at(
    plan: audit.ScalePlan, other: audit.ScalePlan, each: audit.Difference, options: argparse.Namespace
) -> dict[int, tuple[float, float]]:
    """The multipliers at the positions asked for, where a multiplier differs."""
    if each.first_position is None or options.at is None:
        return {}
    where = np.asarray(options.at)
    layer = each.layers[0]
    here, there = (side(where) for side in both_sides(each.what, plan.layer(layer), other.layer(layer)))
    return {int(i): (float(a), float(b)) for i, a, b in zip(where, here, there, strict=True)}
