# SPDX-License-Identifier: BSD-3-Clause
"""The output of a command: files are checked before it runs, and saved after the table is printed."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from .._base.checks import Refusal, refusal
from .._base.text import to_csv, to_json
from .._files.heads import InputError

# The options that name what a command writes; every other path is one that it reads.
_WRITTEN = ("csv", "plot", "store", "keep", "register")


class OutputError(Exception):
    """Something could not be written, after all that could be was."""


class FoundError(Exception):
    """The end of a command that found what it was asked to look for, and has printed all of it."""

    def __init__(self, message: str, status: int = 3) -> None:
        super().__init__(message)
        self.status = status


class Interrupted(KeyboardInterrupt):
    """Ctrl-C ended a command, and `store` keeps what is finished; None: nothing keeps it."""

    def __init__(self, message: str, store: str | os.PathLike[str] | None) -> None:
        super().__init__(message)
        self.store = store


def check_outputs(options: argparse.Namespace) -> None:
    """Refuse files that cannot be written, before anything is computed. A file that exists is replaced."""
    csv, plot, store, keep, register = (getattr(options, name, None) for name in _WRITTEN)
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
    files |= {f: path for f, path in (("--keep", keep), ("--register", register)) if path is not None}
    for flag, path in files.items():
        _check_file(f"{flag} {path}", path)
        for source in _inputs(options):
            if path.exists() and source.exists() and path.samefile(source):
                raise InputError(f"{flag} {path}: the command reads this file, it would be lost")
    if len(files) != len({path.absolute() for path in files.values()}):
        raise InputError(f"{' and '.join(files)} must be two files, got {files['--csv']} for both")
    if store is not None:
        check_folder(f"--store {store}", store)


def left_out(options: argparse.Namespace, mode: str, names: Iterable[str]) -> None:
    """Refuse options of which the command makes nothing in a `mode`, as "--list", before it begins."""
    for name in names:
        if getattr(options, name, None) not in (None, False, []):
            raise InputError(f"--{name} must be left out with {mode}, which has no use for it")


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
    """Refuse a folder that cannot be made or written."""
    there = next(each for each in (path, *path.parents) if each.exists())
    if not there.is_dir():
        raise InputError(f"{what}: {there} is a file, not a folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise InputError(f"{what}: cannot be written here")


class Drawing(NamedTuple):
    """How a figure is drawn: on axes, on an array of axes for several `panels`, on the figure for None."""

    draw: Callable[[Any], Any]
    size: tuple[float, float] | None = None
    panels: tuple[int, int] | None = (1, 1)

    def save(self, path: Path) -> None:
        """Draw on the axes of a new figure and save it."""
        from matplotlib.figure import Figure

        from .. import plot

        # A Figure of its own, not pyplot: no window, no backend, nothing left open.
        with plot.style():
            figure = Figure(figsize=self.size)
            self.draw(figure if self.panels is None else figure.subplots(*self.panels))
            figure.savefig(path)


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
    """What a command answers, in all the forms that the options may ask for.

    Attributes
    ----------
    text : str
        The answer for people.
    rows : sequence of dict, optional
        The rows of CSV; None: nothing has rows here.
    about : dict, optional
        What JSON has before the rows; the rows alone without it.
    drawing : Drawing, optional
    figure : Path, optional
        Where the figure goes if ``--plot`` names no file.
    report : object
        The content of JSON, where that is something else.
    remarks : sequence of str
        Lines of standard error that follow the text.
    ends : Exception, optional
        The error that the command ends with, after all of the answer was written.
    interrupted : bool
        Whether Ctrl-C came, and the answer is what was finished.
    """

    text: str
    rows: Sequence[Mapping[str, Any]] | None = None
    about: Mapping[str, Any] | None = None
    drawing: Drawing | None = None
    figure: Path | None = None
    report: Any = None
    remarks: Sequence[str] = ()
    ends: BaseException | None = None
    interrupted: bool = False

    @property
    def content(self) -> Any:
        """The content of JSON; None: nothing of the answer has one."""
        if self.report is not None or self.about is None:
            return self.rows if self.report is None else self.report
        return {**self.about, "rows": self.rows}


def emit(options: argparse.Namespace, answer: Answer) -> None:
    """Print an answer as the options ask: for people, or as ``--json`` or ``--csv -``; then save the files.

    A file that cannot be written does not stop the others. What the answer does not have is refused.
    """
    rows, drawing = answer.rows or (), answer.drawing
    csv, plot, as_json = (getattr(options, name, None) for name in ("csv", "plot", "json"))
    there = {"csv": answer.rows, "plot": drawing, "json": answer.content}
    left_out(options, "this answer", [name for name, form in there.items() if form is None])
    plot = plot or answer.figure
    shown = to_csv(rows) if csv == "-" else f"{to_json(answer.content) if as_json else answer.text}\n"
    steps: list[tuple[str, Callable[[], object]]] = [("standard output", lambda: _print(shown))]
    if csv not in (None, "-"):
        steps.append((f"--csv {csv}", lambda: Path(csv).write_text(to_csv(rows), encoding="utf-8")))
    if plot is not None and drawing is not None:
        steps.append((f"--plot {plot}", lambda: drawing.save(plot)))
        if csv != "-" and not as_json:
            steps.append(("standard output", lambda: _print(f"Figure: {plot}\n")))
    _do_all(steps)
    for remark in answer.remarks:
        print(f"attnscale: {remark}", file=sys.stderr)
    if answer.ends is not None:
        raise answer.ends


def _do_all(steps: Sequence[tuple[str, Callable[[], object]]]) -> None:
    """Take all steps, then raise one error about those that failed."""
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


def _print(text: str) -> None:
    """Print to standard output at once; a closed one means that its reader went away."""
    if sys.stdout is None:
        raise BrokenPipeError
    sys.stdout.write(text)
    sys.stdout.flush()


@contextmanager
def bad_input(where: str = "", *also: type[Exception]) -> Iterator[None]:
    """Report what the library refuses in here as input that the caller can mend: one line and status 2.

    Only calls of the library go inside. A mistake of the command itself is reported as one.
    """
    refused: tuple[type[Exception], ...] = (ValueError, TypeError, *also)
    try:
        yield
    except InputError:
        raise
    except refused as error:
        raise as_input(error, where) from error


def as_input(error: Exception, where: str = "") -> InputError:
    """What the library refused as bad input; its arguments are still known, for the options' names."""
    before = where and f"{where}: "
    parts: Refusal | None = getattr(error, "refusal", None)
    if parts is None:
        return InputError(f"{before}{error}")
    return refusal(InputError, parts.arguments, parts.rule, before=f"{before}{parts.before}")
