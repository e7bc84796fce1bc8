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
LAWS = {
    "standard": "black",
    "log_n": at.plot.COLOURS[0],
    "annealed": at.plot.COLOURS[2],
    "entropy_invariant": at.plot.COLOURS[1],
    "calibrated": at.plot.COLOURS[3],
}
PANELS = {
    ("rotary", "as trained"): "rotary positions",
    ("rotary", "clipped"): "distances clipped at 48",
    ("none", "as trained"): "no positions",
}


def length_generalization() -> Any:
    """Accuracy against length: positions by columns, models by rows, a line for each law."""
    figure, axes = pyplot.subplots(2, 3, figsize=(9.0, 5.2), sharex=True, sharey="row")
    for row, (run, size) in enumerate((("full", "3 layers"), ("large", "6 layers"))):
        result = at.experiments.stored("length_generalization", run)
        lengths = result.variables["accuracy"].coords["n"]
        for ax, ((positions, reading), title) in zip(axes[row], PANELS.items(), strict=True):
            for law, colour in LAWS.items():
                where = {"positions": positions, "trained": "O", "reading": reading, "law": law}
                values = 100 * result.select("accuracy", **where)
                error = np.nanstd(values, 0, ddof=1) / np.sqrt(len(values))
                label = law.replace("_", " ")
                ax.errorbar(lengths, np.nanmean(values, 0), error, color=colour, marker="o", label=label)
            ax.set(xscale="log", title=f"{size}, {title}", ylim=(0, None))
            ax.set_xticks(lengths, lengths)
            ax.minorticks_off()
        axes[row, 0].set_ylabel("accuracy, %")
    for ax in axes[1]:
        ax.set_xlabel("tokens read at once; trained at 64")
    axes[0, 0].legend(fontsize=7)
    return figure


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
