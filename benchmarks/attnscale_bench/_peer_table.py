# SPDX-License-Identifier: BSD-3-Clause
"""Tables and figure of the speed of this package beside others, for the documentation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from attnscale.plot._style import COLOURS, style

from ._engines import ENGINES, Engine, with_version
from ._report import Report
from ._session import OURS
from ._timing import Estimate, Samples

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["ATTENTION_CASES", "PEER_CASES", "Beside", "draw_peers", "found_beside", "write_peers"]


class AttentionCase(NamedTuple):
    """A case of every engine: the computation, the arrays, and the table with the result."""

    table: str
    work: str
    n: int
    head_dim: int
    dtype: str


_LENGTHS = (16, 64, 256, 1024, 4096)
_DASHES = ("-", "--", ":", "-.", (0, (1, 3)))

#: Titles of the tables, with the computation and the type.
TABLES = {
    "float32": ("attention, float32", "forward", "float32"),
    "bfloat16": ("attention, bfloat16", "forward", "bfloat16"),
    "gradients": ("attention and gradients, float32", "step", "float32"),
    "gradients_bfloat16": ("attention and gradients, bfloat16", "step", "bfloat16"),
    "entropy": ("output and entropy, float32", "entropy", "float32"),
}

#: The cases of the tables by their names.
ATTENTION_CASES: Mapping[str, AttentionCase] = {
    f"peers_{table}_{n}": AttentionCase(table, work, n, 64, dtype)
    for table, (_, work, dtype) in TABLES.items()
    for n in _LENGTHS
} | {"peers_float32_1024_128": AttentionCase("float32", "forward", 1024, 128, "float32")}

#: Other rows in which both candidates do the same work: the work, and the other package.
_OTHER_WORK = {
    "sparse_torch_sparsemax": ("sparsemax, 8 x 3072 x 64", "entmax"),
    "sparse_torch_entmax15": ("entmax-1.5, 8 x 3072 x 64", "entmax"),
    "normals_numpy": ("float32 normal numbers, one thread", "numpy"),
    "solve": ("a scale for each of 5000 rows, 5000 x 64", "scikit-learn"),
}

#: The cases with these rows.
PEER_CASES = (*ATTENTION_CASES, "sparse_torch", "normals", "solve")


class Beside(NamedTuple):
    """An engine in a case: its share of the peak and its time over ours, or the reason why not."""

    case: AttentionCase
    engine: str
    share: Estimate | None
    times: Estimate | None
    why: str = ""

    @property
    def of(self) -> Engine:
        """The function and its package."""
        return ENGINES[self.case.work].engines[self.engine]


def found_beside(report: Report) -> list[Beside]:
    """Results of the engines in the report, in the order of the tables."""
    rows = {row.name: row for row in report.rows}
    found = []
    for name, case in ATTENTION_CASES.items():
        for engine in ENGINES[case.work].engines:
            row = rows.get(name if engine == OURS else f"{name}_{engine}")
            if row is None:
                continue
            times = Samples(row.samples, {}).ratio(engine, OURS) if row.samples else None
            found.append(Beside(case, engine, row.estimate, times, row.note))
    return found


def write_peers(report: Report, folder: Path) -> list[Path]:
    """Write ``peers.md`` and ``peers.svg`` into a folder, created if missing."""
    found = found_beside(report)
    if not any(each.share and each.of.package != "attnscale" for each in found):
        raise ValueError("no row was measured against another package: is PyTorch installed?")
    folder.mkdir(parents=True, exist_ok=True)
    table, figure = folder / "peers.md", folder / "peers.svg"
    table.write_text("\n".join(_markdown(found, report)) + "\n", encoding="utf-8")
    from matplotlib.figure import Figure

    with style():
        drawing = Figure(figsize=(7, 7.5))
        *axes, last = drawing.subplots(3, 2).ravel()
        draw_peers(found, axes)
        lines = {line.get_label(): line for ax in axes for line in ax.get_lines()}
        last.axis("off")
        last.legend(lines.values(), lines.keys(), loc="center left", handlelength=3)
        drawing.savefig(figure, metadata={"Date": None})
    return [table, figure]


def draw_peers(found: Sequence[Beside], axes: Sequence[Axes]) -> None:
    """Draw shares of the peak at head_dim 64 against n: axes for each table, a colour per package."""
    packages = list(dict.fromkeys(each.of.package for each in found))
    functions: dict[str, list[str]] = {}
    for each in found:
        if each.of.title not in functions.setdefault(each.of.package, []):
            functions[each.of.package].append(each.of.title)
    for ax, (table, (title, _, _)) in zip(axes, TABLES.items(), strict=True):
        lines: dict[Engine, list[tuple[int, float]]] = {}
        for each in found:
            if each.case.table == table and each.case.head_dim == 64 and each.share:
                lines.setdefault(each.of, []).append((each.case.n, 100 * each.share.value))
        for engine, points in lines.items():
            ours = engine.package == "attnscale"
            ax.plot(
                *zip(*points, strict=True),
                color="black" if ours else COLOURS[packages.index(engine.package) - 1],
                linestyle="-" if ours else _DASHES[functions[engine.package].index(engine.title)],
                linewidth=2.2 if ours else 1.3,
                marker="o",
                markersize=3,
                label="attnscale" if ours else engine.title,
            )
        ax.set(title=title, xlabel="n", ylabel="share of the peak, %", ylim=(0, None))
        ax.set_xscale("log", base=2)
        ax.set_xticks(_LENGTHS, map(str, _LENGTHS))


def _markdown(found: Sequence[Beside], report: Report) -> Iterator[str]:
    machine = report.machine
    spreads = [each.times.spread / each.times.value for each in found if each.times and each.engine != OURS]
    yield (
        f"Measured on {machine['date'][:10]}: {machine['cpu']}, level {machine['simd_level']}, "
        f"{machine['num_threads']} threads; medians of {report.settings['rounds']} rounds. Half the "
        f"distance between the quartiles of a ratio is {100 * median(spreads):.0f} % of it in the median, "
        f"{100 * max(spreads):.0f} % at most."
    )
    if any(row.disturbed for row in report.rows):
        yield ""
        yield (
            "Other processes took part of the cores, which makes ratios uncertain: who divides work into few "
            "equal parts loses most."
        )
    for table, (title, _, _) in TABLES.items():
        here = [each for each in found if each.case.table == table]
        columns = list(dict.fromkeys(each.case for each in here))
        if not columns:
            continue
        heads = (
            f"n = {case.n}" + (f", d = {case.head_dim}" if case.head_dim != 64 else "") for case in columns
        )
        yield from ("", f"| {title} | {' | '.join(heads)} |", "|---" * (1 + len(columns)) + "|")
        for engine in dict.fromkeys(each.of for each in here):
            cells = {each.case: _cell(each) for each in here if each.of == engine}
            if any(cells.values()):
                yield f"| {engine.title} | {' | '.join(cells.get(case, '') for case in columns)} |"
    missing = dict.fromkeys((each.of.title, each.case.dtype, each.why) for each in found if not each.share)
    if missing:
        yield from ("", "Not timed:", "", *(f"- {title}, {dtype}: `{why}`" for title, dtype, why in missing))
    measured = {row.name: row.samples for row in report.rows if row.samples}
    other = [(*_OTHER_WORK[name], measured[name]) for name in _OTHER_WORK if name in measured]
    if other:
        yield from ("", "| other work | beside | time over ours | +- |", "|---|---|---|---|")
    for work, package, samples in other:
        times = Samples(samples, {}).ratio(package, OURS)
        yield f"| {work} | {with_version(package)} | {times.value:.3g} | {times.spread:.2g} |"


def _cell(found: Beside) -> str:
    """The share of the peak, and the time over ours with two digits."""
    if found.share is None or found.times is None:
        return ""
    times = "" if found.engine == OURS else f", {float(f'{found.times.value:.2g}'):g}x"
    return f"{100 * found.share.value:.0f} %{times}"
