# SPDX-License-Identifier: BSD-3-Clause
r"""Time and memory of the variants against n: slopes, and lengths from which each is faster than attention.

python benchmarks/variant_costs.py --heads 2 --limit 25 --n 1024 4096 16384 65536 262144 --json > FILE
python benchmarks/variant_costs.py --from FILE --plot FIGURE
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import attnscale_bench as bench
from attnscale._base.text import to_text
from attnscale._grid.progress import progress_line
from attnscale.cli._output import Answer, Drawing, OutputError, check_outputs, emit
from attnscale_bench import CallCost

_LEGEND = """\
One call, float32, {heads} head(s) of {head_dim}, every case in a process of its own. Time: median of its
calls. MB: growth of that process's resident memory at its peak, with the result, over the inputs. Slopes:
least squares of ln(cost) against ln(n) over the lengths from {first} on; 2 is quadratic, 1 linear. faster
from: where the time falls below that of exact attention (causal against causal), between the lengths by
straight lines on the logarithmic scales. -: not run, because it would take too long or too much memory."""


def main(argv: Sequence[str] | None = None) -> int:
    """Measure the variants, draw the figures and print the tables."""
    options = _parser().parse_args(argv)
    try:
        check_outputs(options)
        heads, head_dim, costs = _read(options.stored) if options.stored else _measured(options)
        legend = _LEGEND.format(heads=heads, head_dim=head_dim, first=_first_of_slope(costs))
        report = {"heads": heads, "head_dim": head_dim, **_report(costs)}
        emit(options, Answer(f"{_table(costs)}\n\n{legend}", report=report, drawing=_drawing(costs)))
    except (OSError, ValueError, RuntimeError, OutputError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1 if isinstance(error, OutputError) else 2
    return 0


def _measured(options: argparse.Namespace) -> tuple[int, int, list[CallCost]]:
    with progress_line() as progress:
        costs = bench.run_variants(
            options.n,
            options.variants,
            heads=options.heads,
            head_dim=options.head_dim,
            limit=options.limit,
            progress=progress,
        )
    return options.heads, options.head_dim, costs


def _read(path: Path) -> tuple[int, int, list[CallCost]]:
    """Costs from the --json output of an earlier run."""
    stored = json.loads(path.read_text(encoding="utf-8"))
    return stored["heads"], stored["head_dim"], [CallCost(**each) for each in stored["costs"]]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--variants", nargs="+", metavar="NAME", help=f"of {', '.join(bench.VARIANTS)}")
    lengths = [1024, 4096, 16384, 65536, 262144]
    parser.add_argument("--n", nargs="+", type=int, metavar="N", default=lengths, help="lengths")
    parser.add_argument("--heads", type=int, metavar="H", default=1, help="heads")
    parser.add_argument("--head-dim", type=int, metavar="D", default=64, help="channels")
    parser.add_argument("--limit", type=float, metavar="S", default=20.0, help="longest call in seconds")
    parser.add_argument("--from", dest="stored", type=Path, metavar="FILE", help="what --json printed before")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="save a figure of time and memory")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _by_name(costs: list[CallCost]) -> dict[str, list[CallCost]]:
    found: dict[str, list[CallCost]] = {}
    for cost in costs:
        found.setdefault(cost.call, []).append(cost)
    return found


def _first_of_slope(costs: list[CallCost]) -> int:
    """First length for slopes: 4096 if there are two from there on, since short calls measure fixed costs."""
    lengths = sorted({cost.n for cost in costs})
    return next((n for n in lengths if n >= 4096), lengths[0]) if lengths[-1] > 4096 else lengths[0]


def _slope(costs: list[CallCost], what: str, first: int) -> float:
    return bench.slope([cost for cost in costs if cost.n >= first], what)


def _crossover(name: str, groups: dict[str, list[CallCost]]) -> float | None:
    """The n from which a variant is faster; None also for variants of the exact kernel (noise)."""
    if name in ("exact", "exact causal", "kattention"):
        return None
    return bench.crossover(_exact_of(name, groups), groups[name])


def _exact_of(name: str, groups: dict[str, list[CallCost]]) -> list[CallCost]:
    return groups.get("exact causal" if name.endswith("causal") or name == "ssd" else "exact", [])


def _report(costs: list[CallCost]) -> dict[str, object]:
    groups, first = _by_name(costs), _first_of_slope(costs)
    summary = {
        name: {
            "time_slope": _slope(rows, "seconds", first),
            "memory_slope": _slope(rows, "bytes", first),
            "faster_from": _crossover(name, groups),
        }
        for name, rows in groups.items()
    }
    return {"costs": [asdict(cost) for cost in costs], "summary": summary}


def _table(costs: list[CallCost]) -> str:
    groups, first = _by_name(costs), _first_of_slope(costs)
    lengths = sorted({cost.n for cost in costs})
    header = [
        "variant",
        *(f"{n} ms" for n in lengths),
        "slope",
        *(f"{n} MB" for n in lengths),
        "slope",
        "faster from",
    ]
    rows = []
    for name, found in groups.items():
        from_n = _crossover(name, groups)
        rows.append(
            [
                name,
                *(_number(cost.seconds, 1e3) for cost in found),
                _two_digits(_slope(found, "seconds", first)),
                *(_number(cost.bytes, 1e-6) for cost in found),
                _two_digits(_slope(found, "bytes", first)),
                "" if from_n is None else f"{from_n:.0f}",
            ]
        )
    return to_text(header, rows)


def _number(value: float | None, factor: float) -> str:
    if value is None:
        return "-"
    return f"{value * factor:.3g}" if value * factor < 1000 else f"{value * factor:.0f}"


def _two_digits(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.2f}"


#: The columns of the figure, so that no colour stands for two variants in one panel.
_COLUMNS = {
    "all pairs": ("exact", "exact causal", "kattention", "torch dot product"),
    "features and states": ("linear elu", "linear elu causal", "performer 256", "cosformer", "ssd"),
    "channels, and fewer keys": (
        *("efficient", "efficient causal", "torch efficient"),
        *("local + global", "linformer 256"),
    ),
}


def _drawing(costs: list[CallCost]) -> Drawing:
    groups = _by_name(costs)
    columns = {
        title: [cost for name in names for cost in groups.get(name, ())] for title, names in _COLUMNS.items()
    }
    columns = {title: found for title, found in columns.items() if found}

    def draw(panels: Any) -> None:
        for row, what in zip(panels, ("seconds", "bytes"), strict=True):
            for ax, (title, found) in zip(row, columns.items(), strict=True):
                beside = [] if "exact" in {cost.call for cost in found} else groups.get("exact", [])
                bench.draw_costs(found, ax, what=what, beside=beside, legend=what == "seconds")
                if what == "seconds":
                    ax.set(title=title, xlabel="")
                if ax is not row[0]:
                    ax.set_ylabel("")
            lowest, highest = zip(*(ax.get_ylim() for ax in row), strict=True)
            for ax in row:
                ax.set_ylim(min(lowest), max(highest))

    return Drawing(draw, (3.4 * len(columns) + 0.4, 5.8), (2, len(columns)))


if __name__ == "__main__":
    sys.exit(main())
