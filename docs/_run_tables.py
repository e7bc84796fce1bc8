# SPDX-License-Identifier: BSD-3-Clause
"""Tables of what stored runs measured, written as the site is built: none of their numbers is typed."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np

#: Names of the laws of a training, and of the ways to read a model, as tables have them.
TRAINED = {"standard": r"$1/\sqrt d$", "log_n": r"$\log_{256} n$", "ssmax": "SSMax"}
READ = {
    "as trained": "as trained",
    "log_n": "log n put in",
    "yarn": "YaRN's temperature",
    "clipped": "clipped",
    "clipped log_n": "clipped, log n",
    "clipped yarn": "clipped, YaRN's",
}
_WITHOUT_TORCH = "This table needs PyTorch where the site is built."


def run_texts():
    """The text of each file to include."""
    tables = {
        "run-causal-late.md": ("causal_length", "full", causal_late),
        "run-causal-by-length.md": ("causal_length", "full", causal_by_length),
        "run-causal-entropy.md": ("causal_length", "full", causal_entropy),
        "run-paired.md": ("length_generalization", "paired", paired),
        "run-hybrids-sizes.md": ("hybrids", "sizes", hybrids_sizes),
    }
    if find_spec("torch") is None:
        return dict.fromkeys(tables, _WITHOUT_TORCH)
    from studies import stored

    return {file: text(stored(name, run)) for file, (name, run, text) in tables.items()}


def shown(by_seed, form=".3f"):
    """Mean and standard error over the seeds; nothing where there was no measurement."""
    by_seed = np.asarray(by_seed, float)
    if not np.isfinite(by_seed).all():
        return ""
    error = by_seed.std(ddof=1) / np.sqrt(by_seed.size)
    return f"{by_seed.mean():{form}} ± {error:{form.lstrip('+')}}"


def table(head, rows):
    """A table of Markdown: titles of the columns, and rows of cells."""
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(str, cells))} |" for cells in lines)


def causal_late(run):
    """The loss late in long texts: in windows, and what each way to read whole texts adds to that."""
    rows = []
    for positions in run.axes["positions"]:
        for law in run.axes["trained"]:
            late = {
                each: run.select("late", positions=positions, trained=law, reading=each)
                for each in ("windows", *READ)
            }
            more = [shown(late[each] - late["windows"], "+.3f") for each in READ]
            rows.append((positions, TRAINED[law], shown(late["windows"]), *more))
    return table(("positions", "trained", "in windows", *READ.values()), rows)


def causal_by_length(run):
    """What whole texts add to the loss in windows by the number of keys, trained under the standard scale."""
    lengths = [n for n in run.variables["nll"].coords["n"] if n > run.parameters["train_length"]]
    rows = []
    for positions in run.axes["positions"]:
        place = {"positions": positions, "trained": "standard"}
        windows = run.select("nll", reading="windows", **place)[:, -len(lengths) :]
        for reading, title in READ.items():
            more = run.select("nll", reading=reading, **place)[:, -len(lengths) :] - windows
            if np.isfinite(more).all():
                rows.append((positions, title, *(shown(each, "+.3f") for each in more.T)))
    return table(("positions", "read", *(f"n = {n}" for n in lengths)), rows)


def causal_entropy(run):
    """The mean entropy of the rows by the number of keys, trained under each scale and read as trained."""
    lengths = [n for n in run.variables["nll"].coords["n"] if n >= run.parameters["train_length"] // 4]
    rows = []
    for positions in run.axes["positions"]:
        for law in run.axes["trained"]:
            found = run.select("entropy", positions=positions, trained=law, reading="as trained")
            rows.append((positions, TRAINED[law], *(shown(e, ".2f") for e in found[:, -len(lengths) :].T)))
    return table(("positions", "trained", *(f"n = {n}" for n in lengths)), rows)


def paired(run):
    """E less O, and log n put into O, in points of accuracy and in nats."""
    lengths = run.variables["accuracy"].coords["n"]
    rows = []
    for reading in ("as trained", "clipped"):
        for title, one, other in (
            ("E less O", ("E", "log_n"), ("O", "standard")),
            ("log n put into O, less O", ("O", "log_n"), ("O", "standard")),
            ("E less log n put into O", ("E", "log_n"), ("O", "log_n")),
        ):
            for name, unit, factor, form in (
                ("accuracy", "points", 100, "+.2f"),
                ("nll", "nats", 1, "+.3f"),
            ):
                first, second = (
                    run.select(name, positions="rotary", reading=reading, trained=trained, law=law)
                    for trained, law in (one, other)
                )
                cells = (shown(factor * each, form) for each in (first - second).T)
                rows.append((title, reading, unit, *cells))
    return table(("difference", "distances", "in", *(f"n = {n}" for n in lengths)), rows)


def hybrids_sizes(run):
    """The loss by width and heads, and what one head of dot products costs, in all and by place."""
    places = [each for each in run.variables["nll_by_position"].coords["position"] if each >= 32]
    rows = []
    for heads in (4, 16):
        for width in run.axes["width"]:
            dot, hybrid = (
                {name: run.select(name, variant=variant, width=width) for name in ("nll", "nll_by_position")}
                for variant in (f"{heads} dot", f"dot + {heads - 1} efficient")
            )
            by_place = (hybrid["nll_by_position"] - dot["nll_by_position"])[:, -len(places) :]
            cost = shown(hybrid["nll"] - dot["nll"], "+.3f")
            rows.append(
                (heads, width, shown(dot["nll"]), cost, *(shown(each, "+.3f") for each in by_place.T))
            )
    return table(
        ("heads", "width", "loss, all dot", "one dot costs", *(f"up to {n} tokens" for n in places)), rows
    )
