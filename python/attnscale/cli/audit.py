# SPDX-License-Identifier: BSD-3-Clause
"""``attnscale audit``: multipliers of the score in each layer of a model, from its config.json."""

from __future__ import annotations

import argparse
import traceback
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from .. import audit
from .._base.checks import InputError
from .._base.spelling import as_number
from .._base.text import counted, to_text
from .._grid.progress import watched
from ..audit._differences import both_sides, gap_lines, in_angles_alone
from ..audit._survey import resolve_quietly
from ..audit._text import groups, named, ranges
from ._options import OPTIONS, Parser, add_option, add_outputs
from ._output import Answer, FoundError, as_input, bad_input

DESCRIPTION = """\
Multipliers of q . k in each layer of a model, before soft-cap, bias and mask: base scale, scale laws,
channels they act on, soft-cap, sinks, and the key of the config that each comes from.
CONFIG is a config.json, a model.gguf, or the directory that holds a config.json. If safetensors lie in
that directory, or CONFIG is one of them, scales, sinks and temperatures stored as weights are read too.
For several configs, or a directory with models below it, it prints a table with one line a model; an
unreadable config has a line too, and the exit status is 2.
"""

#: An answer as text, JSON, and rows of CSV.
_Shown: TypeAlias = tuple[str, dict[str, Any], list[dict[str, Any]]]


def add_options(parser: Parser) -> None:
    """Add the options of ``attnscale audit``."""
    parser.add_argument("config", type=Path, nargs="+", metavar="CONFIG")
    add_option(parser, "--part", metavar="KEY", help="part of a composite config, as encoder or text_config")
    for flag in ("--layer", "--at"):
        add_option(parser, flag)
    other = parser.add_mutually_exclusive_group()
    add_option(other, "--against")
    about = f"{OPTIONS['--against-framework'].meaning}: {', '.join(audit.FRAMEWORKS)}"
    add_option(other, "--against-framework", help=about)
    add_option(parser, "--strict")
    add_outputs(parser, plot=False)


def run(options: argparse.Namespace) -> Answer:
    """Resolve the configs and print; --strict then raises an error about its findings."""
    first, *others = options.config
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
            text, content, rows = _positions(options, plan)
        else:
            plan = _chosen(options, plan)
            text, content, rows = plan.explain(), {"report": "plan", **plan.to_dict()}, _terms(plan)
            if weights is not None and (learned := audit.learned_scales(weights, config=path)).entries:
                text += f"\n\n{_learned(learned, options.layer)}"
                content["learned"] = [
                    each.to_dict() for each in learned.entries if options.layer in (None, each.layer)
                ]
    if content["report"] == "differences" and content["differences"]:
        found = counted(len(content["differences"]), "difference")
    ends = FoundError(f"{found} (--strict)") if options.strict and found else None
    return Answer(text, rows, report={"schema": audit.SCHEMA, **content}, ends=ends)


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
    sheet = found._sheet(1.0, "nats")
    if layer is None:
        return "\n".join([f"{sheet.title}\n", to_text(sheet.header, list(sheet.rows)), *sheet.notes])
    rows = [each for each in found.rows() if each["layer"] == layer]
    names = ("head", "quantity", "value", "least", "largest")
    lines = [
        [f"{row[name]:.6g}" if isinstance(row[name], float) else str(row[name]) for name in names]
        for row in rows
    ]
    return "\n".join([f"{sheet.title}, layer {layer}\n", to_text(names, lines), *sheet.notes])


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
    sheet = found._sheet(1.0, "nats")
    return Answer(
        "\n".join([to_text(sheet.header, list(sheet.rows)), *sheet.notes]),
        found.rows(),
        report={"schema": audit.SCHEMA, "report": "models", **found.to_dict()},
        ends=None if found.interrupted else ends,
        interrupted=found.interrupted,
    )


def _terms(plan: audit.ScalePlan) -> list[dict[str, Any]]:
    """A CSV row for each factor of each layer."""
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
    """The multipliers at the requested positions."""
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
    """The differences between two plans."""
    chosen = set(_only(options, plan))
    found = [each for each in audit.compare(plan, other) if not each.layers or chosen & set(each.layers)]
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
    if not found:
        name = options.against_framework
        nothing = f"nothing on record: no report about {name} concerns this model; {name} may still differ"
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
    """The difference as a CSV row."""
    keys = {name: "; ".join(getattr(each, name)) for name in ("keys_here", "keys_there")}
    return {
        **each.to_dict(),
        "layers": ranges(list(each.layers)),
        **keys,
        "angles": "; ".join(gap_lines(each)),
    }


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
