# SPDX-License-Identifier: BSD-3-Clause
"""Draw the figures of docs/explanation/training-evidence.md from the stored results.

python tools/evidence/draw_training.py [NAME ...]

Each picture names its results, so that a test can detect outdated pictures.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attnscale as at
import numpy as np
from matplotlib import pyplot

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "notebooks"))

from studies import stored as load  # noqa: E402
from studies.models.best_multiples import best_multiples  # noqa: E402

FOLDER = ROOT / "docs" / "_static"
RUNS = ROOT / "notebooks" / "studies" / "runs"
LENGTHS = (64, 128, 256, 512, 1024)
LAWS = {
    "log_n": (at.plot.COLOURS[0], "log n"),
    "annealed": (at.plot.COLOURS[2], "sqrt(1 + 2 ln(n/64))"),
    "entropy_invariant": (at.plot.COLOURS[1], "entropy-invariant"),
    "calibrated": (at.plot.COLOURS[3], "entropy-invariant by head"),
    "info_scale": (at.plot.COLOURS[5], "InfoScale"),
}
_drawn_from: dict[str, str] = {}


def stored(name: str, run: str = "full") -> Any:
    """A stored result, which the current picture then names."""
    file = f"{name}.json" if run == "full" else f"{name}-{run}.json"
    _drawn_from[file] = hashlib.sha256((RUNS / file).read_bytes()).hexdigest()[:16]
    return load(name, run)


def length_generalization() -> Any:
    """Accuracy with distances as trained and clipped, and the gain of each law."""
    figure, axes = pyplot.subplots(1, 3, figsize=(9.6, 3.2))
    for run, title, style in (("full", "3 layers", "-"), ("large", "6 layers", "--")):
        result = stored("length_generalization", run)
        for reading, colour in (("as trained", at.plot.COLOURS[1]), ("clipped", at.plot.COLOURS[0])):
            label = f"{title}, distances {reading}"
            _line(
                axes[0], result, "accuracy", reading, "standard", color=colour, linestyle=style, label=label
            )
    full = stored("length_generalization")
    for ax, reading in zip(axes[1:], ("as trained", "clipped"), strict=True):
        for law, (colour, label) in LAWS.items():
            _line(ax, full, "accuracy_gain", reading, law, color=colour, label=label)
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
    _bars(ax, LENGTHS, found, **style)


def learned_scales() -> Any:
    """Errors, scales and spreads of recall by model, a point for each seed."""
    result = stored("learned_scales")
    models = [model for model in result.axes["model"] if not model.startswith("unscaled")]
    figure, axes = pyplot.subplots(1, 3, figsize=(9.6, 3.6), layout="constrained")
    for place, model in enumerate(models):
        colour = at.plot.COLOURS[("fixed", "one", "per_head").index(model.split("-")[0])]
        error = result.select("error", task="recall", model=model, n=32, output="sharp")
        axes[0].plot(np.full(error.size, place), error, "o", color=colour, markersize=4, alpha=0.6)
        for ax, name in zip(axes[1:], ("scale", "spread"), strict=True):
            heads = np.abs(result.select(name, task="recall", model=model))
            ax.plot(place + np.array([-0.15, 0.15]), heads.T, "o-", color=colour, markersize=3, linewidth=0.7)
    axes[0].set(yscale="log", title="Error of the retrieved half")
    axes[1].set(title="Scale: retrieving, averaging head")
    axes[1].set_yscale("symlog", linthresh=0.1)
    axes[2].set(title="Spread of a row's scores")
    for ax in axes:
        ax.set_xticks(range(len(models)), [_model_in_words(each) for each in models], rotation=60, ha="right")
    return figure


def _model_in_words(model: str) -> str:
    """Label of a model, such as "per head, QK norm" for "per_head-norm"."""
    scale, _, rest = model.replace("per_head", "per head").replace("one", "one for both").partition("-")
    return ", ".join(filter(None, (scale, {"norm": "QK norm", "decay": "weight decay"}.get(rest))))


def layers() -> Any:
    """Cosines of updates, trained and untrained, and of sentence embeddings."""
    result = stored("layers")
    figure, axes = pyplot.subplots(1, 3, figsize=(9.6, 3.4), layout="constrained")
    update, final = result["update_cosine"].value, result["final_cosine"].value[0]
    titles = ("Update, trained", "Update, initial weights", "Sentence embedding, trained")
    for ax, table, title in zip(axes, (*update, final), titles, strict=True):
        picture = ax.imshow(table, cmap="viridis", vmin=0, vmax=1)
        for (i, j), value in np.ndenumerate(table):
            colour = "w" if value < 0.6 else "k"
            ax.text(j, i, f"{value:.2f}", ha="center", va="center", fontsize=6.5, color=colour)
        ax.set(title=title, xlabel="fed with the state after layer")
        ax.set_xticks(range(7))
        ax.set_yticks(range(6), range(1, 7))
        ax.grid(visible=False)
    axes[0].set_ylabel("layer")
    figure.colorbar(picture, ax=axes, label="cosine", shrink=0.8)
    return figure


def collapse() -> Any:
    """Entropy against the step at two learning rates, and the loss against the rate."""
    result = stored("collapse")
    rates, step = result.axes["learning_rate"], result.variables["entropy"].coords["step"]
    figure, axes = pyplot.subplots(1, 3, figsize=(9.6, 3.2), layout="constrained")
    names = {"none": "nothing done", "qk_norm": "QK norm", "sigma_reparam": "sigma-reparametrisation"}
    for guard, colour in zip(result.axes["guard"], at.plot.COLOURS, strict=False):
        entropy = np.nanmean(result.select("entropy", guard=guard), axis=(1, 3))
        for ax, rate in zip(axes, (1, 2), strict=False):
            ax.plot(step, entropy[rate], color=colour, label=names.get(guard, guard.replace("_", " ")))
            ax.set(xlabel="step", title=f"Entropy of the rows, rate {rates[rate]:g}", ylim=(0, 3.4))
        losses = result.select("test_loss", guard=guard)
        error = np.nanstd(losses, axis=-1, ddof=1) / np.isfinite(losses).sum(-1) ** 0.5
        axes[2].errorbar(rates, np.nanmean(losses, axis=-1), error, fmt="o-", color=colour, markersize=4)
    axes[2].set(xscale="log", xlabel="learning rate", title="Loss on new text at the end")
    axes[2].set_xticks(rates, [f"{rate:g}" for rate in rates])
    axes[2].minorticks_off()
    axes[0].set_ylabel("nats")
    axes[2].set_ylabel("nats of a token")
    axes[0].legend(fontsize=7, loc="center right", bbox_to_anchor=(1, 0.36))
    return figure


def multiples() -> Any:
    """The loss above the least against the multiple of the trained scale, and the best multiple against n."""
    figure, axes = pyplot.subplots(1, 3, figsize=(9.6, 3.2), layout="constrained")
    read = (
        ("text_multiples", {"reading": "clipped"}, "text, distances clipped"),
        ("needle_multiples", {}, "needle"),
    )
    for ax, (name, labels, title) in zip(axes, read, strict=False):
        result = stored(name)
        best = best_multiples(result, **labels)
        grid = [each for each in result.variables["nll"].coords["multiple"] if not isinstance(each, str)]
        loss = np.nanmean(result.select("nll", trained="standard", **labels), axis=0)[: len(grid)]
        for i, (n, colour) in enumerate(zip(best.lengths, at.plot.COLOURS, strict=False)):
            ax.plot(grid, loss[:, i] - loss[:, i].min(), "o-", color=colour, markersize=3, label=f"n = {n}")
        ax.set(title=f"{title[:1].upper()}{title[1:]}", ylim=(-0.01, 0.42), xlabel="multiple of the scale")
        bars = np.array([best.beta.value - best.beta.low, best.beta.high - best.beta.value])
        away = best.lengths / best.lengths[0]
        colour = at.plot.COLOURS[0 if name == "text_multiples" else 1]
        axes[2].errorbar(away, best.beta.value, bars, fmt="o", color=colour, markersize=4, label=title)
        axes[2].plot(away, np.log(best.lengths) / np.log(best.lengths[0]), color=colour)
        root = np.sqrt((1 + np.log(best.lengths)) / (1 + np.log(best.lengths[0])))
        axes[2].plot(away, root, "--", color=colour)
    axes[0].set_ylabel("nats above the least")
    for style, law in (("-", "log n of either"), ("--", "sqrt(1 + ln n) of either")):
        axes[2].plot([], [], style, color="black", label=law)
    axes[2].set(
        title="Best multiple, with 95 % interval", xlabel="n over the training length", ylim=(0.5, 3.1)
    )
    for ax in axes:
        ax.set(xscale="log")
        ax.minorticks_off()
        ax.legend(fontsize=6)
    for ax in axes[:2]:
        ax.set_xticks([0.5, 1, 2, 4], ["0.5", "1", "2", "4"])
    axes[2].set_xticks([1, 4, 16, 64, 256], ["1", "4", "16", "64", "256"])
    return figure


def context() -> Any:
    """Accuracy of models of a context trained at 32 tokens under each law, and pairs that a layer recalls."""
    run, recall = stored("context"), stored("recall")
    figure, axes = pyplot.subplots(1, 3, figsize=(9.6, 3.2), layout="constrained")
    lengths = run.variables["accuracy"].coords["n"]
    names = (r"$1/\sqrt{d}$", r"$\log_{32} n$", "annealed", r"$2\,\log_{32} n$")
    for ax, task, title in zip(axes, ("context", "graph"), ("Sampled contexts", "Graphs"), strict=False):
        for law, name, colour in zip(
            run.variables["accuracy"].coords["law"], names, at.plot.COLOURS, strict=False
        ):
            cell = {"task": task, "own_key": "seen", "trained": "one length", "law": law}
            _bars(ax, lengths, run.select("accuracy", **cell), color=colour, label=name)
        ax.set(xscale="log", xlabel="tokens, n; trained at 32", title=title, ylim=(0.55, 1))
        ax.set_xticks(lengths, lengths)
    pairs = np.array(recall.axes["pairs"]) / 8  # d_k
    for place, variant in enumerate(recall.axes["variant"][:4]):
        right = np.array([recall.select("accuracy", variant=variant, pairs=n) for n in recall.axes["pairs"]])
        style = {"color": at.plot.COLOURS[place], "linestyle": "--" if variant == "dot + efficient" else "-"}
        _bars(axes[2], pairs, right.T, label=variant, **style)
    axes[2].set(xscale="log", xlabel="pairs over $d_k$", title="Recall of one pair", ylim=(0, 1.05))
    axes[2].set_xticks(pairs, [f"{each:g}" for each in pairs])
    axes[0].set_ylabel("accuracy")
    for ax in axes[::2]:
        ax.legend(fontsize=7)
    for ax in axes:
        ax.minorticks_off()
    return figure


READ = {"as trained": "", "clipped": ", clipped"}
POSITIONS = {"none": "no positions", "alibi": "ALiBi", "plain rotary": "rotary alone"}
POSITIONS["rotary"] = "rotary and convolution"


def causal_length() -> Any:
    """Added loss of whole texts of prose, gain of laws without positions, and entropy."""
    run = stored("causal_length")
    lengths = np.array(run.variables["nll"].coords["n"])

    def of(name: str, positions: str, reading: str, trained: str = "standard") -> Any:
        return run.select(name, positions=positions, trained=trained, reading=reading)

    figure, axes = pyplot.subplots(1, 3, figsize=(9.6, 4.2), layout="constrained")
    for colour, positions in zip(at.plot.COLOURS, run.axes["positions"], strict=False):
        for reading, style in (("as trained", "-"), ("clipped", "--")):
            more = of("nll", positions, reading) - of("nll", positions, "windows")
            if np.isfinite(more).all():
                label = f"{POSITIONS[positions]}{READ[reading]}"
                _bars(axes[0], lengths, more, color=colour, linestyle=style, label=label)
        entropy = of("entropy", positions, "as trained")
        _bars(axes[2], lengths, entropy, color=colour, label=POSITIONS[positions])
    ways = {
        "1/sqrt(d)": ("as trained", "standard"),
        "log n put in": ("log_n", "standard"),
        "YaRN's temperature put in": ("yarn", "standard"),
        "trained under log n": ("as trained", "log_n"),
        "trained under SSMax": ("as trained", "ssmax"),
    }
    for colour, (label, (reading, trained)) in zip(at.plot.COLOURS, ways.items(), strict=False):
        more = of("nll", "none", reading, trained) - of("nll", "none", "windows", trained)
        _bars(axes[1], lengths, more, color=colour, label=label)
    axes[0].set(title="1/sqrt(d); axis linear below 0.1", ylabel="nats above windows of 256")
    axes[0].set_yscale("symlog", linthresh=0.1)
    axes[1].set(title="Without positions", ylabel="nats above windows of 256")
    axes[2].plot(lengths, np.log(0.75 * lengths), color="black", linewidth=0.6, label="equal weights")
    axes[2].set(title="Mean entropy of the rows", ylabel="nats")
    for ax in axes:
        ax.set(xscale="log", xlabel="keys of a row")
        ax.set_xticks(lengths[::2], lengths[::2])
        ax.minorticks_off()
        ax.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.2))
    return figure


def _bars(ax: Any, lengths: Any, by_seed: Any, **style: Any) -> None:
    """Mean over the seeds and its standard error against the number of keys."""
    error = by_seed.std(0, ddof=1) / np.sqrt(len(by_seed))
    ax.errorbar(lengths, by_seed.mean(0), error, marker="o", markersize=3, **style)


FIGURES: dict[str, Callable[[], Any]] = {
    "multiples": multiples,
    "context": context,
    "length_generalization": length_generalization,
    "causal_length": causal_length,
    "learned_scales": learned_scales,
    "layers": layers,
    "collapse": collapse,
}


def main(names: list[str]) -> None:
    """Draw the named figures, or all."""
    for name in names or FIGURES:
        with at.plot.style():
            path = FOLDER / f"training-{name.replace('_', '-')}.png"
            _drawn_from.clear()
            figure = FIGURES[name]()
            source = " ".join(f"{file}:{digest}" for file, digest in sorted(_drawn_from.items()))
            figure.savefig(path, dpi=110, metadata={"Source": source})
            print(path)


if __name__ == "__main__":
    main(sys.argv[1:])
