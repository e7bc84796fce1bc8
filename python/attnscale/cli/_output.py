# SPDX-License-Identifier: BSD-3-Clause
"""Output of a command: files are checked before it runs, and saved after the table is printed."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from .._base.checks import InputError, Refusal, refusal
from .._base.tabled import Tabled, Unit, nats_per

# Options that name output; every other path is input.
_WRITTEN = ("csv", "plot", "store", "keep", "register", "html")


class OutputError(Exception):
    """Something could not be written; all else was."""


class FoundError(Exception):
    """The end of a command that found what it was told to look for, and has printed all of it."""

    def __init__(self, message: str, status: int = 3) -> None:
        super().__init__(message)
        self.status = status


class Interrupted(KeyboardInterrupt):
    """Ctrl-C ended a command; `store` keeps the finished part, if it is not None."""

    def __init__(self, message: str, store: str | os.PathLike[str] | None) -> None:
        super().__init__(message)
        self.store = store


def check_outputs(options: argparse.Namespace) -> None:
    """Refuse unwritable files before anything is computed; existing files are replaced."""
    csv, plot, store, keep, register, page = (getattr(options, name, None) for name in _WRITTEN)
    as_json = getattr(options, "json", False)
    if as_json and csv == "-":
        raise InputError("--json and --csv - both print to standard output: give one, or --csv a file")
    if getattr(options, "unit", None) == "bits" and (as_json or csv == "-") and plot is None:
        printed = "--json" if as_json else "--csv -"
        said = "is of the table and the figure"
        raise InputError(f"--unit bits {said}: {printed} is in nats; leave it out")
    files: dict[str, Path] = {} if csv in (None, "-") else {"--csv": Path(csv)}
    if plot is not None:
        _check_format(plot)
        files["--plot"] = plot
    others = {"--keep": keep, "--register": register, "--html": page}
    files |= {flag: path for flag, path in others.items() if path is not None}
    for flag, path in files.items():
        _check_file(f"{flag} {path}", path)
        for source in _inputs(options):
            if path.exists() and source.exists() and path.samefile(source):
                raise InputError(f"{flag} {path}: the command reads this file, and would overwrite it")
    if len(files) != len({path.absolute() for path in files.values()}):
        raise InputError(f"{' and '.join(files)} must be two files, got {files['--csv']} for both")
    if store is not None:
        check_store(f"--store {store}", store)


def left_out(options: argparse.Namespace, mode: str, names: Iterable[str]) -> None:
    """Refuse options without effect in a `mode`, such as "--list", before the command begins."""
    for name in names:
        if getattr(options, name, None) not in (None, False, []):
            raise InputError(f"--{name} must be left out with {mode}: it has no effect there")


def _inputs(options: argparse.Namespace) -> Iterator[Path]:
    """All files that the command reads."""
    for name, value in vars(options).items():
        if name not in _WRITTEN:
            values = value if isinstance(value, (list, tuple)) else (value,)
            yield from (each for each in values if isinstance(each, Path))


def _check_file(what: str, path: Path) -> None:
    if path.is_dir():
        raise InputError(f"{what}: is a folder, not a file")
    if not path.parent.is_dir():
        raise InputError(f"{what}: there is no folder {path.parent}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise InputError(f"{what}: cannot be written here")


def check_folder(what: str, path: Path) -> None:
    """Refuse a folder that cannot be created or written."""
    there = next(each for each in (path, *path.parents) if each.exists())
    if not there.is_dir():
        raise InputError(f"{what}: {there} is a file, not a folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise InputError(f"{what}: cannot be written here")


def check_store(what: str, path: Path) -> None:
    """Refuse a folder that can hold no store; a store is read even where it cannot be written."""
    if not any(path.glob("attnscale-*.json")):
        check_folder(what, path)


class Drawing(NamedTuple):
    """A drawing function: of axes, of an array of axes for several `panels`, or of the figure if None."""

    draw: Callable[[Any], Any]
    size: tuple[float, float] | None = None
    panels: tuple[int, int] | None = (1, 1)

    def save(self, path: Path) -> None:
        """Draw on the axes of a new figure and save it."""
        from matplotlib.figure import Figure

        from .. import plot

        # A Figure without pyplot: no window, no backend, no state left behind.
        with plot.style():
            figure = Figure(figsize=self.size)
            self.draw(figure if self.panels is None else figure.subplots(*self.panels))
            content = io.BytesIO()
            figure.savefig(content, format=path.suffix[1:].lower())
        save(path, content.getvalue())


def has_matplotlib() -> bool:
    """Whether figures can be drawn here."""
    try:
        from matplotlib.figure import Figure as Figure
    except ImportError:
        return False
    return True


def _check_format(path: Path) -> None:
    """Refuse a figure if matplotlib is missing or does not know its format."""
    if not has_matplotlib():
        raise InputError("--plot needs matplotlib: pip install matplotlib")
    from matplotlib.backend_bases import FigureCanvasBase

    if path.suffix[1:].lower() not in FigureCanvasBase.get_supported_filetypes():
        known = ".png, .pdf, .svg or another that matplotlib knows"
        raise InputError(f"--plot {path}: the suffix must be {known}, got {path.suffix}")


@dataclass(frozen=True)
class Answer:
    """Answer of a command, in all forms that the options may request."""

    text: str | Callable[[], str]  # the answer for people, or what lays it out
    rows: Sequence[Mapping[str, Any]] | None = None  # the rows of CSV; None if there are no rows
    about: Mapping[str, Any] | None = None  # content of JSON before the rows; None for the rows alone
    drawing: Drawing | None = None
    page: Callable[[], str] | None = None  # the HTML of ``--html``
    figure: Path | None = None  # file of the figure if ``--plot`` names none
    report: Any = None  # content of JSON in place of `about` and the rows
    remarks: Sequence[str] = ()  # lines of standard error that follow the text
    ends: BaseException | None = None  # the error to end the command with, after the answer was written
    interrupted: bool = False  # whether Ctrl-C came, so the answer is partial

    @property
    def content(self) -> Any:
        """The content of JSON; None if the answer has none."""
        if self.report is not None or self.about is None:
            return self.rows if self.report is None else self.report
        return {**self.about, "rows": self.rows}


def table_of(found: Tabled, unit: Unit = "nats") -> tuple[str, tuple[str, ...]]:
    """All rows of a result as text, and the sentences of its table."""
    from .._base.text import to_text

    sheet = found._sheet(nats_per(unit), unit)
    return to_text(sheet.header, list(sheet.rows)), sheet.notes


def emit(options: argparse.Namespace, answer: Answer) -> None:
    """Print an answer as text, or as ``--json`` or ``--csv -`` request; then save the files.

    A file that cannot be written does not stop the others. Forms that the answer lacks are refused.
    """
    from .._base.text import to_csv, to_json, visible

    rows, drawing = answer.rows or (), answer.drawing
    csv, plot, as_json, html = (getattr(options, name, None) for name in ("csv", "plot", "json", "html"))
    there = {"csv": answer.rows, "plot": drawing, "json": answer.content, "html": answer.page}
    left_out(options, "this answer", [name for name, form in there.items() if form is None])
    plot = plot or answer.figure
    if csv == "-":
        shown = to_csv(rows)
    elif as_json:
        shown = f"{to_json(answer.content)}\n"
    else:
        shown = f"{visible(answer.text if isinstance(answer.text, str) else answer.text())}\n"
    steps: list[tuple[str, Callable[[], object]]] = [("standard output", lambda: _print(shown))]
    if csv not in (None, "-"):
        steps.append((f"--csv {csv}", lambda: save(Path(csv), to_csv(rows).encode())))
    if html is not None and answer.page is not None:
        page = answer.page
        steps.append((f"--html {html}", lambda: save(html, page().encode())))
    if plot is not None and drawing is not None:
        steps.append((f"--plot {plot}", lambda: drawing.save(plot)))
        if csv != "-" and not as_json:
            steps.append(("standard output", lambda: _print(f"Figure: {plot}\n")))
    _do_all(steps)
    for remark in answer.remarks:
        print(f"attnscale: {visible(remark)}", file=sys.stderr)
    if answer.ends is not None:
        raise answer.ends


def _do_all(steps: Sequence[tuple[str, Callable[[], object]]]) -> None:
    """Take all steps, then raise one error for those that failed."""
    failed: dict[str, str] = {}
    gone = False
    for what, step in steps:
        try:
            if not (gone or failed) or what != "standard output":
                step()
        except BrokenPipeError:
            gone = True
        except (OSError, ValueError, ImportError, RuntimeError) as error:
            failed[what] = (isinstance(error, OSError) and error.strerror) or str(error)
    if failed:
        raise OutputError("; ".join(f"{what}: {why}" for what, why in failed.items()))
    if gone:
        raise BrokenPipeError


def save(path: Path, content: bytes) -> None:
    """Write a file as a whole: on a full disk, the file that was there remains.

    A link, a pipe or a device is written in place, and so is a file whose folder cannot be written.
    """
    from .._files.whole import write_whole

    there = path.exists()
    if path.is_symlink() or (there and not (path.is_file() and os.access(path.parent, os.W_OK))):
        path.write_bytes(content)
        return
    mode = path.stat().st_mode if there else None
    write_whole(path, content)
    if mode is not None:
        path.chmod(mode)


def _print(text: str) -> None:
    """Print to standard output at once; if it is closed, its reader is gone."""
    out = sys.stdout
    if out is None:
        raise BrokenPipeError
    raw = getattr(out, "buffer", None)
    try:
        if isinstance(raw, io.RawIOBase):  # of python -u, which would ignore that a full disk takes a part
            rest = text.encode(out.encoding, out.errors or "strict")
            while rest:
                rest = rest[raw.write(rest) or 0 :]
        else:
            out.write(text)
            out.flush()
    except OSError:
        drop_output()
        raise


def drop_output() -> None:
    """Discard the rest of the buffer, which the interpreter would fail to print at its end."""
    try:
        descriptor = sys.stdout.fileno()
    except (AttributeError, OSError):  # standard output was closed from the start, or is not a file
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)


@contextmanager
def bad_input(where: str = "", *also: type[Exception]) -> Iterator[None]:
    """Report errors of the library within as bad input: one line and status 2.

    Only calls of the library belong inside, so that a mistake of the command is reported as such.
    """
    refused: tuple[type[Exception], ...] = (ValueError, TypeError, *also)
    try:
        yield
    except InputError:
        raise
    except refused as error:
        raise as_input(error, where) from error


def as_input(error: Exception, where: str = "") -> InputError:
    """The library's error as bad input; it keeps the arguments, for the options' names."""
    before = where and f"{where}: "
    parts: Refusal | None = getattr(error, "refusal", None)
    if parts is None:
        return InputError(f"{before}{error}")
    return refusal(InputError, parts.arguments, parts.rule, before=f"{before}{parts.before}")
