# SPDX-License-Identifier: BSD-3-Clause
"""Draw the figures of docs/explanation/training-evidence.md from the stored results.

python scripts/draw_training.py [NAME ...]
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attnscale as at
import numpy as np
from matplotlib import pyplot

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "_static"
LENGTHS = (64, 128, 256, 512, 1024)
LAWS = {
    "log_n": at.plot.COLOURS[0],
    "annealed": at.plot.COLOURS[2],
    "entropy_invariant": at.plot.COLOURS[1],
    "calibrated": at.plot.COLOURS[3],
    "info_scale": at.plot.COLOURS[5],
}


def length_generalization() -> Any:
    """Accuracy with distances as trained and clipped, and what each law adds to it."""
    figure, axes = pyplot.subplots(1, 3, figsize=(9.6, 3.2))
    for run, title, style in (("full", "3 layers", "-"), ("large", "6 layers", "--")):
        result = at.experiments.stored("length_generalization", run)
        for reading, colour in (("as trained", at.plot.COLOURS[1]), ("clipped", at.plot.COLOURS[0])):
            label = f"{title}, distances {reading}"
            _line(
                axes[0], result, "accuracy", reading, "standard", color=colour, linestyle=style, label=label
            )
    full = at.experiments.stored("length_generalization")
    for ax, reading in zip(axes[1:], ("as trained", "clipped"), strict=True):
        for law, colour in LAWS.items():
            _line(ax, full, "accuracy_gain", reading, law, color=colour, label=law.replace("_", " "))
        ax.axhline(0, color="black", linewidth=0.6)
        ax.set(title=f"3 layers, distances {reading}", ylabel="points above the standard scale")
    axes[0].set(title="Standard scale", ylabel="accuracy, %", ylim=(0, None))
    for ax in axes:
        ax.set(xscale="log", xlabel="tokens read at once; trained at 64")
        ax.set_xticks(LENGTHS, LENGTHS)
        ax.minorticks_off()
    axes[0].legend(fontsize=6)
    axes[2].legend(fontsize=7)
    return figure


def _line(ax: Any, result: Any, name: str, reading: str, law: str, **style: Any) -> None:
    """Mean over the seeds and its standard error against the length, in percent."""
    found = 100 * result.select(name, positions="rotary", trained="O", reading=reading, law=law)
    error = found.std(0, ddof=1) / np.sqrt(len(found))
    ax.errorbar(LENGTHS, found.mean(0), error, marker="o", markersize=3, **style)


FIGURES: dict[str, Callable[[], Any]] = {"length_generalization": length_generalization}


def main(names: list[str]) -> None:
    """Draw those that are named, or all."""
    for name in names or FIGURES:
        with at.plot.style():
            path = FOLDER / f"training-{name.replace('_', '-')}.png"
            FIGURES[name]().savefig(path, dpi=110)
            print(path)


if __name__ == "__main__":
    main(sys.argv[1:])
