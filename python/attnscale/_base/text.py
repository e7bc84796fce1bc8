# SPDX-License-Identifier: BSD-3-Clause
"""Tables: aligned text and HTML for people, CSV and JSON for programs."""

from __future__ import annotations

import csv
import html
import io
import json
import math
import textwrap
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, TypeVar

Row = TypeVar("Row")


class Text(str):
    """Text that displays without quotes, line by line, at a prompt.

    Examples
    --------
    >>> Text("one\\ntwo")
    one
    two
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def visible(text: str) -> str:
    """Text whose control characters are written out, so that a terminal does not obey a file that it shows.

    Ends of lines and tabs stay.

    Examples
    --------
    >>> print(visible("gpt\\x1b[2J"))
    gpt\\x1b[2J
    """
    controls = (c for c in set(text) if unicodedata.category(c) == "Cc" and c not in "\n\t")
    return text.translate({ord(c): f"\\x{ord(c):02x}" for c in controls})


def counted(number: int | str, noun: str, several: str = "") -> str:
    """A number, or a list, and its noun.

    Examples
    --------
    >>> counted(1, "head"), counted("64, 512", "token"), counted(2, "query", "queries")
    ('1 head', '64, 512 tokens', '2 queries')
    """
    return f"{number} {noun if str(number) == '1' else several or noun + 's'}"


def some_of(names: Sequence[str], few: int = 4) -> str:
    """The first few names, and the number of others."""
    shown = ", ".join(name or "the model" for name in names[:few])
    return f"{shown} and {len(names) - few} more" if names[few:] else shown


def grouped(rows: Iterable[Row], *by: str | Callable[[Row], Any]) -> dict[Any, list[Row]]:
    """Rows grouped by the values of columns, or of functions of a row, in order of first appearance.

    Examples
    --------
    >>> grouped([{"n": 8, "law": "a"}, {"n": 9, "law": "a"}, {"n": 8, "law": "b"}], "n")
    {8: [{'n': 8, 'law': 'a'}, {'n': 8, 'law': 'b'}], 9: [{'n': 9, 'law': 'a'}]}
    >>> grouped([3, 4, 5], lambda number: number % 2)
    {1: [3, 5], 0: [4]}
    """
    found: dict[Any, list[Row]] = {}
    group: Any = by[0] if callable(by[0]) else itemgetter(*by)
    for row in rows:
        found.setdefault(group(row), []).append(row)
    return found


def by_reason(reasons: Mapping[str, str]) -> list[str]:
    """Names with the same reason in one text, "a, b: reason"."""
    found = grouped(reasons.items(), lambda each: each[1])
    return [f"{some_of([name for name, _ in each])}: {why}" for why, each in found.items()]


def number_cell(value: float, form: str = ".6g") -> str:
    """A number for display, '-' for NaN.

    Examples
    --------
    >>> number_cell(4.25), number_cell(math.nan)
    ('4.25', '-')
    """
    return "-" if math.isnan(value) else f"{value:{form}}"


def error_cell(error: float, form: str = ".2g") -> str:
    """A standard error for display; '-' for a single value and for values that all agree.

    Values without spread do not show that the error is 0, so 0 would claim too much.

    Examples
    --------
    >>> error_cell(0.031), error_cell(0.0), error_cell(math.nan)
    ('0.031', '-', '-')
    """
    return f"{error:{form}}" if error > 0 else "-"


def to_text(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, indent: str = "", width: int | None = None
) -> str:
    """Columns two spaces apart; a column of numbers is flush right.

    If lines exceed `width`, the widest column is broken between words.

    Examples
    --------
    >>> print(to_text(["head", "entropy"], [["L0 H3", "0.20"], ["mean", "4.30"]]))
    head   entropy
    L0 H3     0.20
    mean      4.30
    """
    columns = list(zip(header, *rows, strict=True))
    if width is not None:
        columns = _broken(columns, width - len(indent))
    padded = [_pad(column) for column in columns]
    return "\n".join((indent + "  ".join(cells)).rstrip() for cells in zip(*padded, strict=True))


def _broken(columns: Sequence[Sequence[str]], width: int) -> list[tuple[str, ...]]:
    """The widest column in as many lines as it needs, with empty cells beside them."""
    widths = [max(map(len, column)) for column in columns]
    widest = widths.index(max(widths))
    room = width - sum(widths) + widths[widest] - 2 * (len(columns) - 1)
    if room >= widths[widest] or room < 1:
        return [tuple(column) for column in columns]
    lines = []
    for row in zip(*columns, strict=True):
        parts = textwrap.wrap(row[widest], room, break_long_words=False, break_on_hyphens=False) or [""]
        lines += [
            tuple(part if i == widest else (cell if k == 0 else "") for i, cell in enumerate(row))
            for k, part in enumerate(parts)
        ]
    return list(zip(*lines, strict=True))


def to_html(
    title: str, header: Sequence[str], rows: Sequence[Sequence[str]], notes: Sequence[str] = ()
) -> str:
    """A table for a notebook; cells are escaped, never markup.

    Examples
    --------
    >>> print(to_html("heads", ["head", "entropy"], [["L0 H3", "0.20"]]))
    <p>heads</p>
    <table>
    <thead><tr><th>head</th><th>entropy</th></tr></thead>
    <tbody>
    <tr><td>L0 H3</td><td>0.20</td></tr>
    </tbody>
    </table>
    """
    lines = [f"<p>{html.escape(title)}</p>"]
    if rows:
        lines += ["<table>", f"<thead>{_html_row(header, 'th')}</thead>", "<tbody>"]
        lines += [_html_row(row, "td") for row in rows]
        lines += ["</tbody>", "</table>"]
    return "\n".join([*lines, *(f"<p>{html.escape(note)}</p>" for note in notes)])


def to_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """CSV with a line for each row; the keys of the first row are the header."""
    buffer = io.StringIO(newline="")
    writer = csv.DictWriter(buffer, fieldnames=list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return buffer.getvalue()


def to_json(value: Any) -> str:
    """Indented JSON, standard-conforming: NaN and infinity become null."""
    try:
        return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError):  # another mapping than dict, or a number that is not finite
        return json.dumps(_finite(value), indent=2, ensure_ascii=False, allow_nan=False)


def _html_row(cells: Sequence[str], tag: str) -> str:
    return f"<tr>{''.join(f'<{tag}>{html.escape(cell)}</{tag}>' for cell in cells)}</tr>"


def _pad(column: Sequence[str]) -> list[str]:
    width = max(map(len, column))
    right = all(map(_is_number, column[1:]))
    return [cell.rjust(width) if right else cell.ljust(width) for cell in column]


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return cell == "-"
    return True


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _finite(entry) for name, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def duration(seconds: float) -> str:
    """A time as text, in the largest unit that fits at least twice.

    Examples
    --------
    >>> duration(90), duration(9000), duration(3e12)
    ('90 seconds', '2.5 hours', '95000 years')
    """
    units = (("years", 31557600), ("days", 86400), ("hours", 3600), ("minutes", 60), ("seconds", 1))
    name, size = next((unit for unit in units if seconds >= 2 * unit[1]), units[-1])
    return f"{float(f'{seconds / size:.2g}'):g} {name}"
