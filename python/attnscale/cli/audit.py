# SPDX-License-Identifier: BSD-3-Clause
"""``attnscale audit``: what multiplies the score in each layer of a model, from its config.json."""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from .. import audit
from .._io import InputError
from .._table import to_text
from ..audit._text import groups, ranges
from ._output import bad_input, emit

_DESCRIPTION = """\
What multiplies q . k in each layer of a model, before soft-cap, bias and mask: base scale, scale laws,
channels they act on, soft-cap, sinks, and the key of the config that each comes from.
CONFIG is a config.json or the directory that holds it.
"""


def add(commands: Any) -> None:
    """Add the command's parser."""
    parser = commands.add_parser(
        "audit",
        help="the scale of attention in each layer, from a model's config.json",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("config", type=Path, metavar="CONFIG")
    parser.add_argument("--part", metavar="KEY", help="part of a composite config, as encoder or text_config")
    parser.add_argument("--layer", type=int, metavar="N", help="only this layer, counted from 0")
    parser.add_argument(
        "--at", nargs="+", type=int, metavar="I", help="the multiplier of queries at these positions, from 0"
    )
    other = parser.add_mutually_exclusive_group()
    other.add_argument("--against", type=Path, metavar="CONFIG", help="what differs in another config")
    other.add_argument(
        "--against-framework",
        metavar="NAME",
        help=f"what a framework is on record to compute instead: {', '.join(audit.FRAMEWORKS)}",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Resolve and print."""
    plan = _resolve(options.config, options)
    with bad_input():  # a layer or position that the plan does not have, or has no answer for
        if options.against is not None:
            text, report = _differences(options, plan, _resolve(options.against, options), ())
        elif options.against_framework is not None:
            text, report = _differences(options, plan, *audit.as_framework(plan, options.against_framework))
        elif options.at is not None:
            text, report = _positions(options, plan)
        else:
            plan = _chosen(options, plan)
            text, report = plan.explain(), plan.to_dict()
    emit(options, text, report=report)


def _resolve(path: Path, options: argparse.Namespace) -> audit.ScalePlan:
    """The plan, whose warnings are printed with it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", audit.AuditWarning)
        return audit.resolve(path, part=options.part)


def _only(options: argparse.Namespace, plan: audit.ScalePlan) -> list[int]:
    if options.layer is None:
        return list(range(len(plan)))
    return [plan.layer(options.layer).index]


def _chosen(options: argparse.Namespace, plan: audit.ScalePlan) -> audit.ScalePlan:
    numbers = set(_only(options, plan))
    return plan.with_layers(tuple(layer for layer in plan.layers if layer.index in numbers))


def _positions(options: argparse.Namespace, plan: audit.ScalePlan) -> tuple[str, dict[str, Any]]:
    """The multipliers at the positions asked for, as text and as JSON."""
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
            rows.append({**row, "softcap": layer.softcap, "sink": layer.sink})
    header = ("layer", "i", "rotated", "unrotated", "cap", "sink")
    lines = [to_text(header, [_cells(row) for row in rows]), *(f"warning: {text}" for text in plan.warnings)]
    return "\n".join(lines), {"rows": rows, "warnings": list(plan.warnings)}


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    start = (ranges(row["layers"]), str(row["position"]))
    if "refusal" in row:
        return (*start, "?", "?", "-", row["refusal"])
    numbers = (f"{row[kind]:.9g}" if kind in row else "-" for kind in ("rotated", "unrotated"))
    cap = "-" if row["softcap"] is None else f"{row['softcap']:g}"
    return (*start, *numbers, cap, "yes" if row["sink"] else "-")


def _differences(
    options: argparse.Namespace,
    plan: audit.ScalePlan,
    other: audit.ScalePlan,
    defects: tuple[audit.Defect, ...],
) -> tuple[str, dict[str, Any]]:
    """What differs between two plans, as text and as JSON."""
    chosen = set(_only(options, plan))
    found = [each for each in audit.compare(plan, other) if not each.layers or chosen & set(each.layers)]
    rows = [{**vars(each), "at": _at(plan, other, each, options)} for each in found]
    known = [{"what": each.what, "reference": each.reference} for each in defects]
    lines: list[str] = []
    for each, row in zip(found, rows, strict=True):
        lines.append(str(each))
        for i, (here, there) in row["at"].items():
            lines.append(f"  at i = {i}: {here:.7g} here, {there:.7g} there ({here / there:.4f} times)")
    lines += [f"known: {defect.what} ({defect.reference})" for defect in defects]
    if not found:
        name = options.against_framework
        lines.append("no difference" + (f": no report about {name} concerns this model" if name else ""))
    return "\n".join(lines), {"differences": rows, "known": known}


def _at(
    plan: audit.ScalePlan, other: audit.ScalePlan, each: audit.Difference, options: argparse.Namespace
) -> dict[int, tuple[float, float]]:
    """The multipliers at the positions asked for, where a multiplier differs."""
    if each.first_position is None or options.at is None:
        return {}
    where = np.asarray(options.at)
    if where.min() < 0:
        raise InputError(f"--at must be at least 0, got {where.min()}")
    layer = each.layers[0]
    pairs = zip(
        plan.layer(layer).multipliers(where, each.what),  # type: ignore[arg-type]
        other.layer(layer).multipliers(where, each.what),  # type: ignore[arg-type]
        strict=True,
    )
    return {int(i): (float(a), float(b)) for i, (a, b) in zip(where, pairs, strict=True)}
