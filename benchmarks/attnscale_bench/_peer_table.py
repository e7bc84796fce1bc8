# SPDX-License-Identifier: BSD-3-Clause
"""The table and the figure of how fast this package is beside others, for the documentation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from attnscale.plot._style import COLOURS, style

from ._report import Report
from ._session import OURS
from ._timing import Estimate, Samples

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["PEER_CASES", "PeerRow", "draw_peers", "peer_rows", "write_peers"]

#: Names of the candidates that are other packages.
_PEERS: Mapping[str, str] = {
    "torch": "PyTorch",
    "jax": "JAX",
    "numpy": "NumPy",
    "entmax": "entmax",
    "scikit-learn": "scikit-learn",
}

#: Rows of which all candidates do the same work, and what that is.
_WORK: Mapping[str, str] = {
    "forward_512_64": "attention, 8 x 512 x 64",
    "forward_64": "attention, 8 x 3072 x 64",
    "jax_512": "attention, 8 x 512 x 64",
    "jax_3072": "attention, 8 x 3072 x 64",
    "step_512": "attention and its gradients, 8 x 512 x 64",
    "by_hand_numpy": "output and entropy, 8 x 3072 x 64",
    "sparse_torch_sparsemax": "sparsemax, 8 x 3072 x 64",
    "sparse_torch_entmax15": "entmax-1.5, 8 x 3072 x 64",
    "normals_numpy": "float32 normal numbers, one thread",
    "solve": "a scale for each of 5000 rows, 5000 x 64",
}

#: The cases that have these rows.
PEER_CASES = (
    *("forward_512_64", "forward_64", "jax_512", "jax_3072", "step_512"),
    *("by_hand", "sparse_torch", "normals", "solve"),
)


class PeerRow(NamedTuple):
    """How many times as long a peer takes for some work."""

    work: str
    peer: str
    times: Estimate


def peer_rows(report: Report) -> list[PeerRow]:
    """Every peer of every row that is listed here, in the order of the list."""
    measured = {row.name: row.samples for row in report.rows if row.samples}
    found = [
        PeerRow(work, title, Samples(measured[name], {}).ratio(peer, OURS))
        for name, work in _WORK.items()
        if name in measured
        for peer, title in _PEERS.items()
        if peer in measured[name]
    ]
    order = list(dict.fromkeys(_WORK.values()))
    return sorted(found, key=lambda row: order.index(row.work))


def write_peers(report: Report, folder: Path) -> list[Path]:
    """Write ``peers.md`` and ``peers.svg`` into a folder, which is made if it is missing."""
    rows = peer_rows(report)
    if not rows:
        raise ValueError("no row was measured against another package: is PyTorch installed?")
    folder.mkdir(parents=True, exist_ok=True)
    table, figure = folder / "peers.md", folder / "peers.svg"
    table.write_text(_markdown(rows, report), encoding="utf-8")
    from matplotlib.figure import Figure

    drawing = Figure(figsize=(7, 0.7 + 0.3 * len(rows)), layout="constrained")
    draw_peers(rows, drawing.subplots())
    drawing.savefig(figure, metadata={"Date": None})
    return [table, figure]


def draw_peers(rows: Sequence[PeerRow], ax: Axes) -> None:
    """One bar a row, on a logarithmic scale that begins at 1: as fast as this package."""
    peers = list(dict.fromkeys(row.peer for row in rows))
    with style():
        for place, row in enumerate(reversed(rows)):
            colour = COLOURS[peers.index(row.peer) % len(COLOURS)]
            ax.barh(place, row.times.value - 1, left=1, xerr=row.times.spread, color=colour, height=0.7)
            ax.annotate(
                f" {row.times.value:.3g}x", (max(row.times.value + row.times.spread, 1), place), va="center"
            )
        ax.set_yticks(range(len(rows)), [f"{row.work}: {row.peer}" for row in reversed(rows)])
        ax.axvline(1, color="black", linewidth=0.8)
        ax.set_xscale("log")
        ax.margins(x=0.15)
        ax.set_xlabel("time of the other package over that of attnscale")


def _with_version(peer: str) -> str:
    try:
        return f"{peer} {version({'PyTorch': 'torch'}.get(peer, peer.lower()))}"
    except PackageNotFoundError:  # imported from a folder that was not installed
        return peer


def _markdown(rows: Sequence[PeerRow], report: Report) -> str:
    machine = report.machine
    versions = ", ".join(dict.fromkeys(_with_version(row.peer) for row in rows))
    shared = [
        "Other processes took part of the cores, which makes ratios uncertain: who divides work into few "
        "equal parts loses most.",
        "",
    ]
    lines = [
        f"Measured on {machine['date'][:10]}: {machine['cpu']}, level {machine['simd_level']}, "
        f"{machine['num_threads']} threads, {versions}; medians of {report.settings['rounds']} rounds.",
        "",
        *(shared if any(row.disturbed for row in report.rows) else ()),
        "| work | beside | times as fast | +- |",
        "|---|---|---|---|",
        *(f"| {row.work} | {row.peer} | {row.times.value:.3g} | {row.times.spread:.2g} |" for row in rows),
    ]
    return "\n".join(lines) + "\n"
