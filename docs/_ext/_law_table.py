# SPDX-License-Identifier: BSD-3-Clause
"""The table of all laws, with a small curve each, generated from the laws."""

from __future__ import annotations

import numpy as np
from _law_formulas import typeset
from _law_pages import EXAMPLES, LENGTHS, cell, series
from attnscale import laws
from attnscale.laws._registry import class_of

POINTS = np.unique(np.geomspace(LENGTHS[0], LENGTHS[-1], 25).astype(int))
WIDTH, HEIGHT = 96, 36  # pixels of a curve's plot; the last value is printed beside it


def law_table():
    """One row per law: name with a link, formula, meaning of n, users, and a curve."""
    rows = [_row(class_of(name)) for name in laws.names() if class_of(name) is not None]
    header = "| law, multiple of $1/\\sqrt d$ | scale of $q \\cdot k$ | what $n$ counts | used by |"
    return "\n".join([header, "|---|---|---|---|", *rows])


def _row(law):
    page = f"../laws/{law.__module__.rpartition('._')[2]}.md#{law.__name__.lower()}"
    curve = _curve(laws.get(law.name, **EXAMPLES.get(law.name, {})))
    return f"| [`{law.name}`]({page}) {curve} | {typeset(law)} | {law.n_means} | {cell(law.used_by)} |"


def _curve(law):
    """An SVG with the multiple against n, from 0 up, with a dotted line at the standard scale."""
    counted, n, values = series(law, POINTS, np.linspace(1, 8, 49))
    n, values = np.asarray(n), np.broadcast_to(values, len(n))
    place = (
        np.log(n / n[0]) / np.log(n[-1] / n[0]) if counted.endswith(("query", "distance")) else (n - 1) / 7
    )
    top = max(1.15, 1.1 * values.max())
    points = " ".join(
        f"{1 + (WIDTH - 2) * x:.1f},{HEIGHT * (1 - y / top):.1f}" for x, y in zip(place, values, strict=True)
    )
    standard = f"{HEIGHT * (1 - 1 / top):.1f}"
    first, last = (f"{values[each]:.3g}" for each in (0, -1))
    words = f"{law.name}: {first} to {last} ({counted}: {n[0]:g} to {n[-1]:g})"
    return (
        f'<svg class="law-curve" role="img" aria-label="{words}" width="{WIDTH + 40}" height="{HEIGHT + 8}"'
        f' viewBox="0 -4 {WIDTH + 40} {HEIGHT + 8}"><title>{words}</title>'
        f'<path class="standard" d="M1 {standard}H{WIDTH}"/><path class="axis" d="M1 {HEIGHT}H{WIDTH}"/>'
        f'<polyline points="{points}"/>'
        f'<text x="{WIDTH + 4}" y="{HEIGHT * (1 - values[-1] / top) + 4:.1f}">{last}</text></svg>'
    )
