# SPDX-License-Identifier: BSD-3-Clause
"""Computed pictures: small ones for the start page, and the figure of the page on figures."""

from __future__ import annotations

import re
from contextlib import chdir
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory

import attnscale as at
import matplotlib.pyplot as plt
import numpy as np

SIZE = (3.4, 2.0)  # inches; about 300 pixels wide on a card
DPI = 200


def pictures():
    """A PNG by name for each function below."""
    drawn = (
        *(entropy_of_heads, map_of_heads, sharper_weights),
        *(laws, weights_of_a_row, phases, sparse_weights, needle, errors),
    )
    cards = {f"{draw.__name__.replace('_', '-')}.png": _png(draw) for draw in drawn}
    return {**cards, "figure-for-a-paper.png": figure_of_page()}


def figure_of_page():
    """The figure of the first example on the page on figures."""
    page = Path(__file__).parents[1] / "how-to" / "figures.md"
    code = re.search(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)[1]
    names = {}
    with TemporaryDirectory() as folder, chdir(folder), BytesIO() as file:
        exec(compile(code, page.name, "exec"), names)
        names["figure"].savefig(file, format="png", dpi=DPI)
        plt.close(names["figure"])
        return file.getvalue()


def _png(draw):
    settings = {"font.size": 9, "axes.labelsize": 9, "xtick.labelsize": 8, "ytick.labelsize": 8}
    with at.plot.style(), plt.rc_context(settings), BytesIO() as file:
        figure, ax = plt.subplots(figsize=SIZE, layout="constrained")
        draw(ax)
        figure.savefig(file, format="png", dpi=DPI, bbox_inches=None)
        plt.close(figure)
        return file.getvalue()


def entropy_of_heads(ax):
    """Mean entropy of the 18 heads against length."""
    data, lengths = at.datasets.minilm_qk(), (64, 128, 256, 512)
    mean = {
        law: [at.attention_entropy(data.query[:, :n], data.key[:, :n], scale=law).mean() for n in lengths]
        for law in ("standard", "log_n", "natural_log_n")
    }
    at.plot.entropy_vs_length(mean, lengths, ax=ax)


def map_of_heads(ax):
    """Mean entropy of each head of each layer."""
    data = at.datasets.minilm_qk()
    entropy = at.attention_entropy(data.query, data.key).mean(-1).reshape(3, 6)
    at.plot.head_map(entropy, n_keys=512, modules=["0", "2", "5"], ax=ax)
    ax.set_title("", loc="left")


def weights_of_a_row(ax):
    """The weights of one word of the text, in one head."""
    data = at.datasets.minilm_qk()
    weights = at.attention_weights(data.query[12, :9], data.key[12, :9])[-1]
    ax.barh(np.arange(9), weights, color=at.plot.COLOURS[0])
    ax.set(
        yticks=np.arange(9), yticklabels=data.tokens[:9], xlabel=f'weight, for the query "{data.tokens[8]}"'
    )
    ax.invert_yaxis()
    ax.grid(visible=False, axis="y")


def sharper_weights(ax):
    """The weights of six scores at three scales."""
    scores = np.array([0.2, 1.0, 2.1, 1.6, 0.6, -0.4])
    for place, scale in enumerate((0.25, 1.0, 4.0)):
        weights = at.attention_weights(np.ones((1, 1)), scores[:, None], scale=scale)[0]
        where = np.arange(6) + 0.27 * (place - 1)
        ax.bar(where, weights, 0.25, color=at.plot.COLOURS[place], label=f"scale {scale:g}")
    ax.legend(frameon=False)
    ax.set(xlabel="key", ylabel="weight", xticks=range(6))


def laws(ax):
    """The multiple of the standard scale against n."""
    at.plot.law_comparison(
        ["standard", "log_n", "annealed(n0=512)", "natural_log_n"], (512, 4096, 32768), ax=ax
    )


def phases(ax):
    """Entropy of random keys over ln n and beta, with the line where rows freeze."""
    at.plot.phase_diagram(np.geomspace(4, 65536, 24), np.linspace(0, 8, 25), ax=ax)


def sparse_weights(ax):
    """The largest weights of one row under three normalizers."""
    scores = 2 * np.sort(np.random.default_rng(0).standard_normal(40))[::-1]
    for colour, name in zip(at.plot.COLOURS, ("softmax", "entmax15", "sparsemax"), strict=False):
        weights = at.attention_weights(np.ones((1, 1)), scores[:, None], scale=1.0, normalizer=name)[0]
        ax.plot(np.arange(1, 11), weights[:10], "o-", color=colour, label=name, markersize=4)
    ax.legend(frameon=False)
    ax.set(xlabel="key, the highest score first", ylabel="weight", ylim=(0, None))


def needle(ax):
    """The expected weight of a key to be found among random ones."""
    n = np.geomspace(64, 16384, 17).astype(int)
    for colour, (name, beta) in zip(
        at.plot.COLOURS, {"standard": 1.0, "log_n(base=64)": np.log(n) / np.log(64)}.items(), strict=False
    ):
        weight = at.theory.needle_weight(n, cosine=0.578386, beta=beta)
        ax.semilogx(n, weight, base=2, color=colour, label=name)
    ax.legend(frameon=False)
    ax.set(xlabel="keys, $n$", ylabel="weight of the right key", ylim=(0, 0.6), xticks=[64, 512, 4096, 16384])
    ax.set_xticklabels(["64", "512", "4096", "16384"])


def errors(ax):
    """The largest error of the entropy in float32 against float64, beside the entropy of equal weights."""
    rng = np.random.default_rng(0)
    n = [64, 512, 4096, 32768]
    found = []
    for length in n:
        query, key = rng.standard_normal((16, 64)), rng.standard_normal((length, 64))
        single = at.attention_entropy(query.astype(np.float32), key.astype(np.float32))
        double = at.attention_entropy(
            query.astype(np.float32).astype(float), key.astype(np.float32).astype(float)
        )
        found.append(np.abs(single - double).max())
    ax.loglog(n, found, "o-", color=at.plot.COLOURS[0], label="error in float32")
    ax.loglog(n, np.log(n), "--", color="grey", label="$\\ln n$")
    ax.legend(frameon=False, loc="center right")
    ax.set(xlabel="keys, $n$", ylabel="nats", xticks=n, xticklabels=[str(each) for each in n])
    ax.minorticks_off()
