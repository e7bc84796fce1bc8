# SPDX-License-Identifier: BSD-3-Clause
"""``attnscale laws`` and ``attnscale explain``."""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from .. import audit, datasets, laws
from .._base.checks import shown
from .._base.tabled import nats_per
from .._base.text import grouped, to_text
from .._files.heads import InputError
from ..exact.forward import attention_entropy
from ..laws._base import description
from ..laws._registry import class_of, with_length
from ._interrupt import finished
from ._options import LAW_HELP, add_option, add_outputs, read_law, read_laws
from ._output import Answer, Drawing, bad_input, left_out
from ._program import program

_REMARK = "Scale multiplies q . k. A parameter written '...' has no default. More: {} explain NAME"


def add(commands: Any) -> None:
    """Add the parsers of both commands."""
    listing = commands.add_parser("laws", help="the scale laws that have a name")
    add_option(listing, "--n", help="compare the laws at these numbers of keys")
    add_option(listing, "--from", dest="checkpoint")
    add_option(listing, "--laws", help=f"with --n: only these, as {LAW_HELP}")
    add_option(listing, "--head-dim", help="with --n: components of q and k (default: 64)")
    add_option(
        listing, "--train-length", help="with --n: training length of laws that leave it open (default: 512)"
    )
    add_option(listing, "--unit", help="with --n: of entropies in the table (default: nats)")
    add_outputs(listing)
    listing.set_defaults(run=run_laws)
    explain = commands.add_parser("explain", help="formula, meaning of n, source and users of a law")
    explain.add_argument("name", metavar="NAME", help="a law, as in 'log_n' or 'log_n(base=1024)'")
    add_outputs(explain, csv=False, plot=False)
    explain.set_defaults(run=run_explain)


def run_laws(options: argparse.Namespace) -> Answer:
    """Print a table of all laws, or compare them at some lengths."""
    if options.checkpoint is not None:
        left_out(options, "--from", ("laws", "plot", "head_dim", "train_length", "unit"))
        return _learned(options.checkpoint, options.n or ())
    if options.n is not None:
        return _compare(options)
    for option in ("laws", "plot", "head_dim", "train_length", "unit"):
        if getattr(options, option) is not None:
            flag = option.replace("_", "-")
            raise InputError(f"--{flag} compares laws at some numbers of keys and needs --n N ...")
    rows = [_describe(law) for law in _law_classes().values()]
    cells = [(_spelling(row), row["scale"].split(";")[0], row["n_means"]) for row in rows]
    table = to_text(("law", "scale", "n means"), cells, width=100)
    text = f"{table}\n\n{_REMARK.format(program())}\n{_lengths(rows)}"
    flat = [
        {name: value for name, value in row.items() if name not in ("parameters", "required")}
        | {"spelling": _spelling(row)}
        for row in rows
    ]
    return Answer(text, flat, report=rows)


def _learned(checkpoint: Path, lengths: Sequence[int]) -> Answer:
    """The law of each head of a checkpoint, and its multiple of 1/sqrt(d) at some lengths."""
    found = audit.learned_scales(checkpoint)
    rows: list[dict[str, Any]] = []
    for (layer, module, head), law in found.laws().items():
        known = law.name != "constant"
        multiples = [float(law.multiplier_at(n, 1)) if known else float("nan") for n in lengths]
        rows.append({"layer": layer, "module": module, "head": head, "law": law.spelling})
        rows[-1] |= {f"m({n})": float(m) for n, m in zip(lengths, multiples, strict=True)}
    for each in found.entries:
        if each.curve is None:
            continue
        by_n = [each.curve(n).reshape(len(each.values), -1).mean(1) for n in lengths]
        for head in range(len(each.values)):
            rows.append(
                {"layer": each.layer, "module": each.module, "head": head, "law": "base of a QASSMax"}
            )
            rows[-1] |= {f"m({n})": float(m[head]) for n, m in zip(lengths, by_n, strict=True)}
    if not rows:
        raise InputError(f"--from {checkpoint}: no weight in it is a law of a head; see attnscale audit")
    header = ("layer", "head", "law", *(f"m({n})" for n in lengths))
    cells = [[_cell(row[x], 4) if x.startswith("m(") else str(row[x]) for x in header] for row in rows]
    about = "m(n): multiple of 1/sqrt(d) for the last of n causal queries. A constant multiplies a cosine."
    return Answer(f"{to_text(header, cells)}\n\n{about}", rows)


def run_explain(options: argparse.Namespace) -> Answer:
    """Print the documentation of one law."""
    law = _law_classes().get(options.name)
    if law is None or not _describe(law)["required"]:
        chosen = read_law(options.name)
        return Answer(chosen.explain(), report={**_describe(type(chosen)), "definition": repr(chosen)})
    # A law with a required parameter has a formula before the parameter has a value.
    first = f"{_spelling(_describe(law))}: {(inspect.getdoc(law) or '').splitlines()[0]}"
    return Answer("\n".join([first, *description(law)]), report=_describe(law))


def _law_classes() -> dict[str, type[laws.Law]]:
    """Laws of the package by name, in the order of :func:`attnscale.laws.names`."""
    found = {name: class_of(name) for name in laws.names()}
    return {name: law for name, law in found.items() if law is not None}


def _describe(law: type[laws.Law]) -> dict[str, Any]:
    parameters = dataclasses.fields(cast(Any, law))
    required = [each.name for each in parameters if each.default is dataclasses.MISSING]
    return {
        "name": law.name,
        "parameters": {each.name: None if each.name in required else each.default for each in parameters},
        "required": required,
        "scale": law.formula,
        "n_means": law.n_means,
        "length_parameter": law.length_parameter,
        "channels": law.channels,
        "layers": law.layers,
        "config_keys": law.config_keys,
        "source": law.source,
        "used_by": law.used_by,
        "remark": law.remark,
    }


def _lengths(rows: list[dict[str, Any]]) -> str:
    """Each law's name for its training length, wrapped."""
    own: dict[str, list[str]] = {}
    for row in rows:
        if row["length_parameter"] is not None:
            own.setdefault(row["length_parameter"], []).append(row["name"])
    listed = "; ".join(f"{name} of {', '.join(found)}" for name, found in own.items())
    told = f"train_length=N works for every law that counts from a length: {listed}."
    return textwrap.fill(told, 98)


def _spelling(row: dict[str, Any]) -> str:
    """The law with its required parameters and its numeric defaults."""
    parameters = [
        f"{name}={'...' if name in row['required'] else format(value, 'g')}"
        for name, value in row["parameters"].items()
        if name in row["required"] or (isinstance(value, (int, float)) and not isinstance(value, bool))
    ]
    return f"{row['name']}({', '.join(parameters)})" if parameters else str(row["name"])


class _Setting(NamedTuple):
    """Setting of a comparison of laws."""

    lengths: Sequence[int]
    head_dim: int
    train_length: int
    unit: str


def _compare(options: argparse.Namespace) -> Answer:
    """Compare the laws at each length."""
    setting = _Setting(sorted(set(options.n)), *_numbers(options), options.unit or "nats")
    chosen = _laws(options.laws, setting)
    with bad_input():  # a law may give a scale that is not finite
        compared, interrupted = finished(list(chosen), lambda name: _rows(name, chosen[name], setting))
    rows = [row for each in compared.values() for row in each]
    text = _text(rows, {name: chosen[name] for name in compared}, setting, every=not options.laws)
    drawing = Drawing(lambda figure: _draw(setting, chosen, figure), panels=None)
    return Answer(text, rows, drawing=drawing, interrupted=interrupted)


def _numbers(options: argparse.Namespace) -> tuple[int, int]:
    """The components of q and k and the training length, by default 64 and 512, checked."""
    given = options.train_length
    found = {"head-dim": options.head_dim or 64, "train-length": given or 512}
    for name, number in found.items():
        if number < 2:
            raise InputError(f"--{name} must be at least 2, got {number}")
    if given and options.laws and all(read_law(x, given) == read_law(x, given + 1) for x in options.laws):
        raise InputError(f"--train-length {given}: each of --laws has its own length, or none")
    return found["head-dim"], found["train-length"]


def _laws(given: Sequence[str] | None, setting: _Setting) -> dict[str, laws.Law]:
    """The requested laws, or all that a training length and a factor of extension determine."""
    if given:
        return read_laws(given, setting.train_length)
    factor = max(1.0, setting.lengths[-1] / setting.train_length)
    found = {}
    for name in laws.names():
        # These two laws depend on the extension factor, not on n.
        spelling = f"{name}(factor={factor!r})" if name in ("yarn", "longrope") else name
        try:
            law = with_length(spelling, setting.train_length)
        except TypeError:  # a parameter is undetermined
            continue
        whole = law if law.channels == "all" else dataclasses.replace(cast(Any, law), channels="all")
        found[law.spelling] = whole
    return found


def _rows(name: str, law: laws.Law, setting: _Setting) -> list[dict[str, Any]]:
    """A row for each length; NaN where the law has no such number."""
    from .. import theory

    multiplier = _multipliers(law, setting.lengths, setting.head_dim)
    known = np.isfinite(multiplier) & (law.channels == "all")
    sphere = np.full(len(setting.lengths), np.nan)
    if known.any():
        lengths = np.array(setting.lengths)[known]
        sphere[known] = theory.expected_entropy(lengths, np.abs(multiplier[known]), head_dim=setting.head_dim)
    return [
        {
            "law": name,
            "definition": repr(law),
            "n_means": law.n_means,
            "n": n,
            "multiplier": float(multiplier[index]),
            "sphere_entropy": float(sphere[index]),
            "minilm_entropy": _heads_entropy(law, n),
        }
        for index, n in enumerate(setting.lengths)
    ]


def _multipliers(law: laws.Law, lengths: Sequence[int], head_dim: int) -> NDArray[np.float64]:
    """Multiplier of the last of n causal queries; NaN for a law of distances or of the row's scores."""
    if law.meaning.at_position is None:
        return np.full(len(lengths), np.nan)
    values = np.asarray(law.multiplier_at(lengths, head_dim))
    if values.ndim > 1:
        raise InputError(f"one value for all heads is compared, got {shown(law)}")
    return values


def _heads_entropy(law: laws.Law, n: int) -> float:
    """Mean over the shipped heads and n queries; NaN beyond 512, and for a law of some channels only.

    A counting law gives all queries the scale of the last one; a law of the row's scores or of distances goes
    to attention unchanged.
    """
    data = datasets.minilm_qk()
    if n > data.query.shape[-2] or law.channels != "all":
        return float("nan")
    head_dim = data.query.shape[-1]
    scale: Any = law
    if law.meaning.at_position is not None:
        scale = float(_multipliers(law, [n], head_dim)[0]) / np.sqrt(head_dim)
    entropy = attention_entropy(data.query[:, :n], data.key[:, :n], scale=scale)
    return float(np.nanmean(entropy.astype(np.float64)))


def _text(
    rows: Sequence[Mapping[str, Any]], chosen: Mapping[str, laws.Law], setting: _Setting, *, every: bool
) -> str:
    lengths, nats = setting.lengths, nats_per(setting.unit)
    short = [
        n for n, of in grouped(rows, "n").items() if np.isfinite([x["minilm_entropy"] for x in of]).any()
    ]
    header = ["law", "n means", *(f"m({n})" for n in lengths), *(f"H({n})" for n in lengths)]
    table = [
        [
            name,
            of[0]["n_means"],
            *(_cell(row["multiplier"], 4) for row in of),
            *(_cell(row["sphere_entropy"] / nats, 3) for row in of),
            *(_cell(row["minilm_entropy"] / nats, 3) for row in of if row["n"] in short),
        ]
        for name, of in grouped(rows, "law").items()
    ]
    lines = [
        f"m(n): multiple of 1/sqrt(d) for the last of n causal queries, d = {setting.head_dim}.",
        f"H(n): expected entropy ({setting.unit}) of n keys uniform on a sphere; "
        f"equal weights: {', '.join(f'{np.log(n) / nats:.3f}' for n in lengths)}.",
    ]
    if short:
        lines.append(
            "heads(n): mean entropy of 18 heads of all-MiniLM-L6-v2 (d = 32) over all queries, at m(n)."
        )
    if any(law.length_parameter is not None for law in chosen.values()):
        lines.append(f"Laws with a training length have {setting.train_length}, unless they say another.")
    if every:
        lines.append("Laws of rotated channels act on all; their factor is the longest n over that length.")
    return "\n".join([*lines, "", to_text([*header, *(f"heads({n})" for n in short)], table)])


def _cell(value: float, digits: int) -> str:
    return f"{value:.{digits}f}" if np.isfinite(value) else "-"


_MOST_LINES = 7  # laws of a panel


def _draw(setting: _Setting, chosen: Mapping[str, laws.Law], figure: Any) -> None:
    """Draw all laws, the largest first, in as many panels as keep the lines apart."""
    from .. import plot  # needs matplotlib

    low, high = setting.lengths[0], max(setting.lengths[-1], setting.lengths[0] + 1)
    n = np.unique(np.geomspace(low, high, 513).round().astype(np.int64))
    curves = {name: _multipliers(law, n.tolist(), setting.head_dim) for name, law in chosen.items()}
    known = {name: values for name, values in curves.items() if np.isfinite(values).any()}
    alike: dict[bytes, list[str]] = {}  # equal laws share a line
    for name in sorted(known, key=lambda name: -float(known[name][np.isfinite(known[name])][-1])):
        alike.setdefault(np.round(known[name], 9).tobytes(), []).append(name)
    lines = list(alike.values())
    parts = -(-len(lines) // _MOST_LINES)
    across = min(parts, 3)
    down = -(-parts // across)
    figure.set_size_inches((6.4, 4.4) if parts == 1 else (3.6 * across, 4.2 * down))
    grid = figure.subplots(down, across, squeeze=False)
    for axes, part in zip(grid.flat, np.array_split(np.arange(len(lines)), parts), strict=False):
        names = [name for line in part for name in lines[line]]
        plot.multiplier_vs_length({name: known[name] for name in names}, n, ax=axes)
    for axes in grid.flat[parts:]:
        axes.set_visible(False)
    grid[0, 0].set_title(f"Multiple of $1/\\sqrt{{d}}$, $d = {setting.head_dim}$")
