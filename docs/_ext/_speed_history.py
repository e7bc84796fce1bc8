# SPDX-License-Identifier: BSD-3-Clause
"""The table of the history of speed, generated when the site is built."""

from __future__ import annotations

import json
from pathlib import Path

HISTORY = Path(__file__).parents[2] / "benchmarks" / "history.jsonl"
#: Rows of the benchmark by column heading.
COLUMNS = {
    "forward, of the peak": "forward_64",
    "backward, of the peak": "backward_64",
    "causal faster than full": "causal_4096",
    "decode, of the read bandwidth": "decode",
    "lse and entropy on top": "on_top_lse_entropy",
    "forward faster than PyTorch": "forward_64_torch",
    "output and entropy faster than by hand in NumPy": "by_hand_numpy",
}
#: Most runs in the table, the newest.
MOST = 30
_FORMS = {"ratio": "{:.2f}x", "share": "{:.1%}", "extra": "{:+.1%}"}


def speed_history(path=HISTORY):
    """A row for each run, the newest first."""
    runs = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    lines = [
        "| " + " | ".join(("run", "machine", *COLUMNS)) + " |",
        "|---" * (2 + len(COLUMNS)) + "|",
    ]
    for run in reversed(runs[-MOST:]):
        about = f"{run['date'][:10]}, {run['commit'] or 'no commit'}"
        machine = f"{run['cpu']}, {run['simd_level']}, {run['num_threads']} threads"
        machine += "" if run["load_before"] is None else f"; load before {run['load_before']:.1f}"
        lines.append(f"| {about} | {machine} | {' | '.join(_cell(run, name) for name in COLUMNS.values())} |")
    return "\n".join(lines)


def _cell(run, name):
    """Value and scatter of a row, with a star if other processes took part of the cores."""
    if name not in run["rows"]:
        return "-"
    unit, value, spread = run["rows"][name]
    shown = [_FORMS[unit].format(each).replace("%", " %") for each in (value, spread)]
    return f"{shown[0]} +- {shown[1].lstrip('+')}{'*' if name in run['disturbed'] else ''}"
