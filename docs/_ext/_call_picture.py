# SPDX-License-Identifier: BSD-3-Clause
"""The picture of a call's path through the source tree: ``python docs/_ext/_call_picture.py`` writes it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

ROOT = Path(__file__).resolve().parents[2]
PICTURE = ROOT / "docs" / "contributing" / "call.svg"

#: Columns of the grid, their width and gap, and height and gap of rows, in pixels.
COLUMNS, WIDTH, GAP = 4, 205, 15
HEIGHT, DROP = 62, 26


class Box(NamedTuple):
    """A step of a call: its place in the grid, its name, and its files."""

    row: int
    column: int
    span: int
    title: str
    files: tuple[str, ...]


_PYTHON, _CORE = "python/attnscale", "cpp/src"
_PASS = (f"{_CORE}/kernels/softmax/attend-inl.hpp", f"{_CORE}/kernels/tile/mask-inl.hpp")
BOXES = (
    Box(0, 0, 1, "NumPy arrays", (f"{_PYTHON}/exact/forward.py",)),
    Box(0, 1, 1, "PyTorch tensors", (f"{_PYTHON}/torch/_functional.py",)),
    Box(0, 2, 1, "JAX arrays", (f"{_PYTHON}/jax/_functional.py",)),
    Box(0, 3, 1, "C++ containers", ("cpp/include/attnscale/attention.hpp",)),
    Box(1, 0, 2, "a plain call is read in C++", ("cpp/bindings/plain_call.hpp",)),
    Box(2, 0, 2, "else it is read in Python", (f"{_PYTHON}/_call/call.py", "cpp/bindings/call.hpp")),
    Box(1, 2, 1, "a call of XLA", ("cpp/bindings/xla_call.cpp",)),
    Box(1, 3, 1, "checks and messages", (f"{_CORE}/call/call_description.cpp",)),
    Box(3, 0, 4, "keys that a row may see; n of a law", (f"{_CORE}/call/intervals.cpp", f"{_CORE}/scale")),
    Box(4, 0, 4, "tasks: a head, a block of queries, a range of keys", (f"{_CORE}/exact/attention.cpp",)),
    Box(5, 0, 2, "threads", (f"{_CORE}/machine/thread_pool.cpp",)),
    Box(5, 2, 2, "kernels of the machine's SIMD level", (f"{_CORE}/machine/levels.cpp", f"{_CORE}/units")),
    Box(6, 0, 4, "one pass over tiles of keys; array masks", _PASS),
    Box(7, 0, 4, "sums become statistics", (f"{_CORE}/exact/statistics.cpp",)),
)
#: Arrows by the numbers of two boxes.
ARROWS = (
    *((0, 4), (1, 4), (2, 6), (3, 7), (4, 5), (5, 8), (6, 8), (7, 8)),
    *((8, 9), (9, 10), (9, 11), (10, 12), (11, 12), (12, 13)),
)


def picture() -> str:
    """The picture as SVG.

    Raises
    ------
    FileNotFoundError
        If a file named in a box does not exist.
    """
    for name in (name for box in BOXES for name in box.files):
        if not (ROOT / name).exists():
            raise FileNotFoundError(f"docs/_ext/_call_picture.py names {name}, which does not exist")
    width = COLUMNS * (WIDTH + GAP) + GAP
    height = max(_top(box) for box in BOXES) + HEIGHT + GAP
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" role="img" font-family="sans-serif">',
        "<title>The way of a call, from the caller's arrays to the statistics of rows</title>",
        '<defs><marker id="head" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" '
        'orient="auto"><path d="M0 0L8 4L0 8z" fill="#555"/></marker></defs>',
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
        *(_arrow(BOXES[start], BOXES[stop]) for start, stop in ARROWS),
        *(line for box in BOXES for line in _drawn(box)),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _left(box: Box) -> int:
    return GAP + box.column * (WIDTH + GAP)


def _top(box: Box) -> int:
    return GAP + box.row * (HEIGHT + DROP)


def _size(box: Box) -> int:
    return box.span * (WIDTH + GAP) - GAP


def _arrow(start: Box, stop: Box) -> str:
    """Arrow from the bottom of one box to the top of another, at the middle of the narrower one."""
    narrow = min(start, stop, key=_size)
    x = _left(narrow) + _size(narrow) // 2
    return (
        f'<path d="M{x} {_top(start) + HEIGHT}V{_top(stop)}" stroke="#555" stroke-width="1.5" '
        'marker-end="url(#head)"/>'
    )


def _drawn(box: Box) -> list[str]:
    left, top, size = _left(box), _top(box), _size(box)
    fill = "#e8f0fa" if any(name.startswith("python") for name in box.files) else "#eef5e6"
    files = [re.sub("^(python/attnscale|cpp/include|cpp/src)/", "", name) for name in box.files]
    middle = left + size // 2
    return [
        f'<rect x="{left}" y="{top}" width="{size}" height="{HEIGHT}" rx="6" fill="{fill}" stroke="#999"/>',
        f'<text x="{middle}" y="{top + 26}" text-anchor="middle" font-size="15">{escape(box.title)}</text>',
        f'<text x="{middle}" y="{top + 47}" text-anchor="middle" font-size="13" fill="#444" '
        f'font-family="monospace">{escape(", ".join(files))}</text>',
    ]


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
