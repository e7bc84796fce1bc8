# SPDX-License-Identifier: BSD-3-Clause
"""Time and memory of each call against the number of keys, and their slopes.

python benchmarks/growth.py docs/_measured           # measures; writes growth.json and growth.md
python benchmarks/growth.py docs/_measured --draw    # writes the table again, of stored numbers
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import attnscale as at
import attnscale_bench as bench
from attnscale._grid.progress import progress_line
from attnscale_bench._machine import cpu_model
from attnscale_bench._verbs import QUERIES

LENGTHS = (1024, 4096, 16384, 65536, 262144, 1048576)
Costs = dict[str, list[bench.CallCost]]
#: Seconds of the longest call.
LIMIT = 30.0
#: The first length of a slope; shorter calls measure what each call costs.
FIRST = 16384


def main() -> None:
    """Measure unless --draw is given, and write the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="where the files go")
    parser.add_argument("--draw", action="store_true", help="write the table of stored numbers")
    parser.add_argument("--only", nargs="+", metavar="CALL", default=list(bench.VERBS), help="calls")
    parser.add_argument("--n", nargs="+", type=int, metavar="N", default=list(LENGTHS), help="keys")
    options = parser.parse_args()
    stored = options.folder / "growth.json"
    if not options.draw:
        stored.write_text(json.dumps(measured(options.only, options.n), indent=1) + "\n", encoding="utf-8")
    found = json.loads(stored.read_text(encoding="utf-8"))
    (options.folder / "growth.md").write_text(table(found), encoding="utf-8")


def measured(names: list[str], lengths: list[int]) -> dict[str, Any]:
    """Costs of the calls, and the machine."""
    with progress_line() as progress:
        costs = bench.costs_of("attnscale_bench._verbs", names, lengths, limit=LIMIT, progress=progress)
    return {
        "cpu": cpu_model(),
        "level": at.show_config()["simd_level"],
        "threads": at.get_num_threads(),
        "date": datetime.date.today().isoformat(),
        "attnscale": at.__version__,
        "costs": [asdict(cost) for cost in costs],
    }


def table(found: dict[str, Any]) -> str:
    """A table in Markdown for each of the two numbers of queries."""
    costs: Costs = {}
    for each in found["costs"]:
        costs.setdefault(each["call"], []).append(bench.CallCost(**each))
    machine = f"{found['cpu']}, level {found['level']}, {found['threads']} threads, {found['date']}"
    parts = [
        f"{machine}. Milliseconds of one call, float32, one head of 64 channels; MiB beyond inputs, at the "
        f"most. The slope is that of ln(time) against ln(n) from {FIRST} keys on. A call of more than "
        f"{LIMIT:.0f} s is left out."
    ]
    for is_whole, title in ((False, f"{QUERIES} queries"), (True, "as many queries as keys")):
        chosen = {name: x for name, x in costs.items() if bench.VERBS[name].is_whole == is_whole}
        if chosen:
            parts.append(_lines(title, chosen, costs))
    return "\n\n".join(parts) + "\n"


def _lines(title: str, chosen: Costs, costs: Costs) -> str:
    lengths = [cost.n for cost in next(iter(chosen.values()))]
    head = [title, *(_keys(n) for n in lengths), "slope", "MiB", "over PyTorch"]
    rows = [head, ["---"] * len(head)]
    for name, each in chosen.items():
        slope = bench.slope([cost for cost in each if cost.n >= FIRST])
        most = max(cost.bytes for cost in each if cost.bytes is not None) / 2**20
        rows.append(
            [
                _shown(name),
                *(_milliseconds(cost.seconds) for cost in each),
                "-" if math.isnan(slope) else f"{slope:.2f}",
                f"{most:.0f}",
                _over(each, costs.get(bench.VERBS[name].beside, [])),
            ]
        )
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _shown(name: str) -> str:
    """The name, the function in code."""
    call, comma, rest = name.partition(",")
    return name if name.startswith("PyTorch") else f"`{call}`{comma}{rest}"


def _over(ours: list[bench.CallCost], theirs: list[bench.CallCost]) -> str:
    """Our time over theirs, at the longest length that both took."""
    both = [
        a.seconds / b.seconds
        for a, b in zip(ours, theirs, strict=False)
        if a.seconds is not None and b.seconds is not None
    ]
    return f"{both[-1]:.2f}" if both else ""


def _keys(n: int) -> str:
    return f"{n >> 20}M" if n >= 2**20 else f"{n >> 10}k"


def _milliseconds(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{1e3 * seconds:.2g}" if seconds < 0.0995 else f"{1e3 * seconds:,.0f}"


if __name__ == "__main__":
    main()
