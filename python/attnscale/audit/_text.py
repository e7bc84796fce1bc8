# SPDX-License-Identifier: BSD-3-Clause
"""Layers of a plan as text and as JSON, and the JSON Schema of reports."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from .._base.spelling import as_number
from .._base.text import grouped, to_text
from ._layer import LayerPlan, Term, spelling

#: The "schema" of every report; fields may be added under this name, but not changed or removed.
SCHEMA = "attnscale.audit/1"

_HEADER = ("layer", "base scale", "law", "on", "n means", "window", "cap", "sink")


def explain(head: str, layers: Sequence[LayerPlan], remarks: Sequence[str], warnings: Sequence[str]) -> str:
    """A table with a row for equal layers, then the keys, then notes and warnings."""
    sources = (
        f"\n  layer {named(numbers, len(layers))}: {line}"
        for numbers, layer in groups(layers)
        for line in _sources(layer)
    )
    told = [f"\nnote: {text}" for text in remarks] + [f"\nwarning: {text}" for text in warnings]
    return "".join((head, "\n\n", to_text(*layer_table(layers)), "\n\nfrom", *sources, *told))


def layer_table(layers: Sequence[LayerPlan]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    rows = [row for numbers, layer in groups(layers) for row in _rows(named(numbers, len(layers)), layer)]
    return _HEADER, rows


def layer_columns(layers: Sequence[LayerPlan]) -> dict[str, list[Any]]:
    """One entry per layer: its facts, its scale before other factors, and the spellings of the laws."""
    said = [layer.refusal is None for layer in layers]
    pairs = list(zip(layers, said, strict=True))
    scales = [np.ravel(each.base.law.scale(1, each.head_dim))[0] if ok else np.nan for each, ok in pairs]
    return {
        "kind": [each.kind for each in layers],
        "head_dim": [each.head_dim for each in layers],
        "rotated": [each.rotated for each in layers],
        "base_scale": scales,
        "base_law": [spelling(each.base) if ok else "" for each, ok in pairs],
        "laws": [" x ".join(spelling(term) for term in each.terms) for each in layers],
        "softcap": [np.nan if each.softcap is None else each.softcap for each in layers],
        "window": [np.nan if each.window is None else each.window for each in layers],
        "sink": [each.sink for each in layers],
        "refusal": [each.refusal or "" for each in layers],
    }


def groups(layers: Sequence[LayerPlan]) -> list[tuple[list[int], LayerPlan]]:
    """Numbers and layer of layers that differ only in number, name of kind and angles."""
    found = grouped(layers, lambda layer: replace(layer, index=0, kind="", rotation=None))
    return [([each.index for each in alike], layer) for layer, alike in found.items()]


def ranges(numbers: list[int]) -> str:
    """Short text for increasing numbers in CSV: "0-2,5", or with a step "0-44:2".

    Examples
    --------
    >>> ranges([0, 1, 2, 5]), ranges([0, 2, 4, 6]), ranges([3])
    ('0-2,5', '0-6:2', '3')
    """
    if step := _step(numbers):
        return f"{numbers[0]}-{numbers[-1]}:{step}"
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def _step(numbers: list[int]) -> int | None:
    """The distance of neighbours if it is the same for all and above 1."""
    steps = {b - a for a, b in pairwise(numbers)}
    return steps.pop() if len(steps) == 1 and len(numbers) > 2 and steps != {1} else None


def named(numbers: list[int], total: int | None = None) -> str:
    """Short text for increasing numbers in tables; `total` is the number of all layers.

    Examples
    --------
    >>> named([0, 1, 2, 5]), named([0, 2, 4, 6]), named([3, 7, 11]), named(list(range(3, 40, 4)))
    ('0-2,5', 'even 0-6', '3, 7, 11', '3, 7, 11, ..., 39')
    >>> sliding = [number for number in range(30) if number % 6 != 5]
    >>> named(sliding, 30), named(sliding)
    ('all but 5, 11, 17, ..., 29', '0-28 but 5, 11, 17, 23')
    """
    if _step(numbers) == 2:
        return f"{('even', 'odd')[numbers[0] % 2]} {numbers[0]}-{numbers[-1]}"
    if _step(numbers):
        return _spaced(numbers)
    parts = ranges(numbers).split(",")
    if len(parts) < 5:
        return ",".join(parts)
    if total is not None and _step(others := sorted({*range(total)} - {*numbers})):
        return f"all but {_spaced(others)}"
    others = sorted({*range(numbers[0], numbers[-1])} - {*numbers})
    if _step(others):
        return f"{numbers[0]}-{numbers[-1]} but {_spaced(others)}"
    return ",".join([*parts[:2], "...", parts[-1]])


def _spaced(numbers: list[int]) -> str:
    """Equidistant numbers: all of a few, else the first three and the last."""
    if len(numbers) < 5:
        return ", ".join(map(str, numbers))
    return ", ".join([*map(str, numbers[:3]), "...", str(numbers[-1])])


def _law(term: Term) -> str:
    """The spelling of a term's law with readable digits; JSON and CSV have all of them."""
    return re.sub(r"\d+\.\d{9,}(e-?\d+)?", lambda found: f"{float(found[0]):.9g}", spelling(term))


def _rows(name: str, layer: LayerPlan) -> list[tuple[str, ...]]:
    if layer.refusal is not None:
        return [(name, "?", layer.refusal, "", "", "", "", "")]
    cap = "-" if layer.softcap is None else as_number(layer.softcap)
    window = "-" if layer.window is None else str(layer.window)
    ends = window, cap, "yes" if layer.sink else "-"
    scale = np.ravel(layer.base.law.scale(1, layer.head_dim))[0]
    rows: list[tuple[str, ...]] = [
        (name, f"{scale:.7g}", _law(layer.base), _on(layer, layer.base), "-", *ends)
    ]
    for term in layer.terms:
        value = ""
        if not term.depends_on_n:
            value = f": {np.ravel(term.law.multiplier(1, layer.head_dim))[0]:.7f}"
        counted = term.n_means if term.depends_on_n else "-"
        rows.append(("", "x", _law(term) + value, _on(layer, term), counted, "", "", ""))
    return rows + _totals(layer)


def _totals(layer: LayerPlan) -> list[tuple[str, ...]]:
    """The product of the factors, at the first position if it depends on the position."""
    if not layer.terms:
        return []
    first, kinds = np.zeros(1, np.int64), layer.channel_kinds
    values = [(str(kind), float(layer.multipliers(first, kind)[0])) for kind in kinds]
    if len({value for _, value in values}) == 1:
        values = [("all channels", values[0][1])]
    where = "at position 0" if layer.depends_on_n else ""
    return [("", f"= {value:.7g}", where, kind, "", "", "", "") for kind, value in values]


def _on(layer: LayerPlan, term: Term) -> str:
    if term in layer.terms_behind_cap:
        return "the capped score"
    if term.channels == "all":
        return "all channels"
    count = layer.rotated if term.channels == "rotated" else layer.head_dim - layer.rotated
    return f"{term.channels} ({count} of {layer.head_dim})"


def _sources(layer: LayerPlan) -> list[str]:
    if layer.refusal is not None:
        return [layer.refusal]
    lines = [f"{_law(term)}: {term.key}" for term in (layer.base, *layer.terms)]
    lines += [_cap_source(layer)] if layer.softcap is not None else []
    lines += [f"window: {layer.window_key}"] if layer.window is not None else []
    if layer.qk_norm != "none":
        lines.append(f"q and k are normed {layer.qk_norm}; the scale is that of the normed ones")
    return [*lines, *layer.notes]


def _cap_source(layer: LayerPlan) -> str:
    """The source of the soft-cap, and the factors inside the cap if some are not constant."""
    line = f"soft-cap c: {layer.softcap_key}"
    behind = " and ".join(_law(term) for term in layer.terms_behind_cap)
    if behind:
        return f"{line}; the score is t c tanh(s / c), where {behind} is t and the other factors are in s"
    return f"{line}; the score is c tanh(s / c), with every factor in s" if layer.depends_on_n else line


def layer_dict(layer: LayerPlan) -> dict[str, Any]:
    head = {"layer": layer.index, "kind": layer.kind}
    if layer.refusal is not None:
        return {**head, "refusal": layer.refusal}
    return {
        **head,
        "head_dim": layer.head_dim,
        "rotated": layer.rotated,
        "base": _term_dict(layer.base),
        "terms": [_term_dict(term) for term in layer.terms],
        "softcap": layer.softcap,
        "window": layer.window,
        "sink": layer.sink,
        "qk_norm": layer.qk_norm,
        "notes": list(layer.notes),
    }


def _term_dict(term: Term) -> dict[str, Any]:
    return {
        "law": term.law.to_dict(),
        "channels": term.channels,
        "n_means": term.n_means,
        "behind_cap": term.behind_cap,
        "key": term.key,
        "rule": term.rule,
    }


def json_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of what ``attnscale audit --json`` prints.

    Returns
    -------
    dict
        Content of ``attnscale/audit/schema.json`` beside the package's code.

    Examples
    --------
    >>> import attnscale as at
    >>> at.audit.json_schema()["$defs"]["plan"]["properties"]["schema"]
    {'const': 'attnscale.audit/1'}
    """
    content: dict[str, Any] = json.loads(Path(__file__).with_name("schema.json").read_text(encoding="utf-8"))
    return content
