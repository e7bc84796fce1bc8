# SPDX-License-Identifier: BSD-3-Clause
"""``attnscale report``: a page with every head of a model, or of a file of queries and keys."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from .._base.checks import shown
from .._files.arrays import ARCHIVES
from .._files.heads import InputError, open_heads
from .._grid.progress import progress_line
from .._report.make import report
from .._report.page import NO_CORE, OF_TWO, check_free, has_core
from .._report.result import Report, ReportPair, told
from .._sweep import SweepError, SweepInterrupted
from ..calibration.fit import default_lengths
from . import _folder
from ._laws import read_laws
from ._model import Reader, add_reading, check_lengths, check_measured, chosen_of, load, plan_of
from ._options import PART_HELP, Parser, add_option, add_outputs
from ._output import Answer, Interrupted, OutputError, bad_input
from ._stored import chosen_heads

if TYPE_CHECKING:
    from collections.abc import Callable


DESCRIPTION = """\
Measures every head at several lengths and writes one HTML file that opens in any browser, without a network:
a map of the heads, a scatter plot, each head against length, laws and random keys, a slider that multiplies
the scale, and the text, if a model or an array "tokens" of a .npz file gives it, with the strongest keys
of each row. INPUT is a file of queries and keys as for `attnscale entropy`, a folder with such a file for
each layer, or a directory with a model of transformers, which reads --text. Towers of a model, and self- and
cross-attention, are groups of the page. Two INPUTs are shown side by side, with their differences.
"""
_SUFFIXES = ARCHIVES
#: A placeholder to read laws before the lengths are known; the shortest is the training length.
_ANY_LENGTH = 512


def add_options(parser: Parser) -> None:
    """Add the options of ``attnscale report``."""
    parser.add_argument("inputs", metavar="INPUT", nargs="+", type=str)
    add_reading(parser, "text for a model, one file in UTF-8")
    add_option(parser, "--spans")
    add_option(parser, "--lengths", help="the first N tokens, for each N (default: all of them, and halves)")
    add_option(parser, "--rows")
    add_option(parser, "--laws", help="laws to compare with the heads; each multiplies the head's own scale")
    add_option(parser, "--causal", help="of a file or folder: query i sees the keys 0 ... i")
    add_option(parser, "--head")
    add_option(parser, "--layout", default="bhsd")
    add_option(parser, "--with-heads")
    add_option(parser, "--plan")
    # Without a folder the option is absent, so that Ctrl-C does not advise a store.
    kept = "of a folder: keep finished layers here, and resume from them"
    add_option(parser, "--store", default=argparse.SUPPRESS, help=kept)
    add_option(parser, "--part", metavar="K/N", help=PART_HELP)
    add_option(parser, "--n-jobs", help="processes that measure a folder (default: 1)")
    add_option(parser, "--output", default=Path("report.html"))
    add_outputs(parser, plot=False, json="print JSON: all numbers of the page")


def run(options: argparse.Namespace) -> Answer:
    """Measure the heads, write the page, and print the main findings."""
    if len(options.inputs) > 2:
        raise InputError(f"give one INPUT or two, got {len(options.inputs)}")
    target = _target(options)
    _check_use(options)
    if options.plan:
        return _folder.show_plan(options)
    options.with_heads = options.with_heads and _measures_again(options.inputs)
    reports, ends = _reports(options)
    found: Report | ReportPair = reports[0]
    if len(reports) == 2:
        with bad_input():
            found = reports[0].beside(reports[1], _names(options.inputs))
    said = found.differences if isinstance(found, ReportPair) else [*found.summary, *found.outliers]
    said = [*dict.fromkeys(each.about["note"] for each in reports if "note" in each.about), *said]
    said += dict.fromkeys(line for each in reports for line in told(each))
    page = _write(found, target, options, [each.about["heads"] for each in reports if "heads" in each.about])
    text = "\n".join([*(f"{line[:1].upper()}{line[1:]}" for line in said), "", page])
    pairs = zip(options.inputs, reports, strict=False)
    rows = [{"input": source, **row} for source, each in pairs for row in each.rows()]
    return Answer(text, rows, report=found.to_dict() if options.json else None, ends=ends)


def _reports(options: argparse.Namespace) -> tuple[list[Report], BaseException | None]:
    """The report of each input, or that of the finished layers of a folder, and what ended it."""
    reports: list[Report] = []
    with progress_line() as tell:
        try:
            reports += (_measure(each, options, tell) for each in options.inputs)
        except (SweepError, SweepInterrupted) as error:
            is_error = isinstance(error, SweepError)
            ends = error if is_error else Interrupted(str(error), options.store)
            if error.partial is None or len(options.inputs) > 1:
                raise ends from error
            return [error.partial], ends
    return reports, None


def _write(
    found: Report | ReportPair, target: Path, options: argparse.Namespace, unfinished: list[str]
) -> str:
    """Write the page, and say so; the page of heads that a store keeps is written when all are there."""
    if unfinished and getattr(options, "store", None) is not None:
        rest = f"the same command{' without --part' if options.part else ''} measures the rest"
        return f"No page yet: {' and '.join(unfinished)} heads are measured; {rest}"
    replaced = ", replacing the old one" if target.exists() else ""
    try:
        found.save(target, overwrite=True)
    except OSError as error:
        raise OutputError(f"--output {target}: {error.strerror or error}") from error
    return f"Page: {target} ({target.stat().st_size / 1000:.0f} kB){replaced}"


def _target(options: argparse.Namespace) -> Path:
    """The file to write or replace, checked in advance; it must not be an input."""
    try:
        target = check_free(options.output, overwrite=True)
    except (OSError, ValueError) as error:
        raise InputError(f"--output {error}") from None
    for source in (*map(Path, options.inputs), *(options.text or [])):
        if target.exists() and source.exists() and target.samefile(source):
            raise InputError(f"--output {target}: the command reads this file, and would overwrite it")
    return target


def _check_use(options: argparse.Namespace) -> None:
    """Refuse unknown laws, and options that none of the inputs would use."""
    for source in options.inputs:
        if options.text is None and not (Path(source).is_dir() or _is_file(source, options)):
            raise InputError(f"INPUT {source}: no such file or folder, and a model needs --text FILE")
    read_laws(options.laws or (), train_length=_ANY_LENGTH)
    _folder.check_use(options)
    files = [_is_file(each, options) for each in options.inputs]
    if options.text is not None and all(files):
        raise InputError(
            f"--text {options.text[0]}: only a model reads a text, got files of queries and keys"
        )
    if options.text is not None and len(options.text) > 1:
        raise InputError(f"--text must be one text, got {len(options.text)}: a page shows heads on one")
    for flag in ("device", "dtype", "modules", "images", "decoder_text"):
        if all(files) and (given := getattr(options, flag)) is not None:
            option = flag.replace("_", "-")
            raise InputError(f"--{option} {given}: only a model has one, got files of queries and keys")
    if options.head is not None and not any(files):
        raise InputError(
            "--head is for files of queries and keys; --modules and --kind choose a model's calls"
        )
    if options.causal and not any(files):
        raise InputError("--causal is for files of queries and keys; a model sets its own masks")


def _measures_again(inputs: list[str]) -> bool:
    """Whether the page can measure the heads of ``--with-heads``; otherwise print the reason."""
    if len(inputs) == 1 and has_core():
        return True
    why = NO_CORE if len(inputs) == 1 else OF_TWO
    print(f"attnscale: {why.replace('with_heads', '--with-heads')}", file=sys.stderr, flush=True)
    return False


def _is_file(source: str, options: argparse.Namespace) -> bool:
    """Whether an input is queries and keys, in a file or a folder, rather than a model."""
    path = Path(source)
    return path.suffix in _SUFFIXES or path.is_file() or _folder.is_folder(source, options)


def _measure(source: str, options: argparse.Namespace, tell: Callable[[str], object]) -> Report:
    if _folder.is_folder(source, options):
        return _folder.measure(source, options)
    if _is_file(source, options):
        return _of_file(Path(source), options, tell)
    return _of_model(source, options, tell)


def _of_file(path: Path, options: argparse.Namespace, tell: Callable[[str], object]) -> Report:
    stored = open_heads([path], layout=options.layout)
    (*_, n_queries, _), (*_, n_keys, _) = stored.query_shape, stored.key_shape
    if len(stored.query_shape) > 4:
        raise InputError(
            f"{path}: query must have the axes (layers, heads, n, head_dim), got shape {stored.query_shape}"
        )
    check_lengths(options.lengths, n_queries, f"the tokens in {path}", "--lengths")
    chosen = chosen_heads(options, [stored])
    longest = max(options.lengths) if options.lengths and n_queries == n_keys else None
    heads = stored.read(longest, chosen)
    query, key = (x.reshape(-1, *x.shape[-2:]) for x in (heads.query, heads.key))
    numbered = [re.fullmatch(r"L(\d+) H(\d+)", name) for name in heads.names]
    places = [(int(found[1]), int(found[2])) for found in numbered if found]
    if len(places) != len(query):
        own = chosen or range(len(heads.names))
        places = [(layer, head) for layer in range(len(query) // len(own)) for head in own]
    about = {"model": heads.about.get("model", path.name), "text": heads.about.get("text", "")}
    tell(f"report: {path}")
    with bad_input(str(path)):
        return report(
            query,
            key,
            lengths=options.lengths,
            laws=options.laws,
            rows=options.rows,
            is_causal=options.causal,
            enable_gqa=len(query) != len(key),
            labels=places,
            tokens=heads.tokens[: max(options.lengths or [query.shape[-2]])] or None,
            spans=_spans(options),
            with_heads=options.with_heads,
            about={name: text for name, text in about.items() if text},
        )


def _of_model(name: str, options: argparse.Namespace, tell: Callable[[str], object]) -> Report:
    tell(f"report: loading {name}")
    reader = load(name, options)
    if reader.pixels is not None and len(reader.pixels) > 1:
        reader.pixels = reader.pixels[:1]
        reader.notes.append("the page shows the first image only")
    if not reader.texts:
        if options.lengths is not None:
            raise InputError("--lengths must be left out: they count tokens, and there is no text")
        return _record(name, reader, [0], options, tell)
    most, what = reader.most(options.text)
    check_lengths(options.lengths, most, what, "--lengths")
    return _record(name, reader, options.lengths or default_lengths(most), options, tell)


def _record(
    name: str, reader: Reader, lengths: list[int], options: argparse.Namespace, tell: Callable[[str], object]
) -> Report:
    from ..torch import record

    kind = type(reader.model).__name__
    with bad_input(f"MODEL {name}", NotImplementedError):
        with record(reader.model, statistics="entropy", keep_heads=True) as whole:
            for n in sorted(set(lengths)):
                tell(f"report: {kind} reads {n} tokens" if n else f"report: {kind} looks at an image")
                reader.run(n)
        check_measured(whole, name)
        log = chosen_of(whole, options.kind, options.modules)
        if left_out := len(whole.modules) - len(log.modules):
            said = f"the page shows {len(log.modules)} of {len(whole.modules)} calls of attention"
            reader.notes.append(f"{said}; {left_out} are left out, which --kind and --modules choose")
        text = str(options.text[0]) if options.text else "an image"
        about = {"model": f"{Path(name).name} ({kind})", "from": name, "text": text}
        if reader.notes:
            about["note"] = "; ".join(reader.notes)
        tokens = reader.words(max(lengths))
        reads_it = tokens and any(each.shape[-1] == len(tokens) for each in log["entropy"].values())
        return log.report(
            laws=options.laws,
            rows=options.rows,
            about=about,
            plan=plan_of(reader.model).text,
            tokens=tokens if reads_it else None,
            spans=_spans(options),
            with_heads=options.with_heads,
            tell=lambda text: tell(f"report: {text}"),
        )


def _spans(options: argparse.Namespace) -> dict[str, tuple[int, int]] | None:
    """The parts of the text named by ``--spans``."""
    if options.spans is None:
        return None
    found = {}
    for text in options.spans:
        parts = re.fullmatch(r"(.+)=(\d+):(\d+)", text)
        if parts is None:
            raise InputError(f"--spans must be written NAME=START:STOP, got {shown(text)}")
        found[parts[1]] = (int(parts[2]), int(parts[3]))
    return found


def _names(inputs: list[str]) -> tuple[str, str]:
    """Short names of two inputs: their last parts, or all parts if these are equal."""
    short = [Path(each).name for each in inputs]
    first, second = short if short[0] != short[1] else inputs
    return (first, second) if first != second else (f"{first} (1)", f"{second} (2)")
