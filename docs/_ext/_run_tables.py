# SPDX-License-Identifier: BSD-3-Clause
"""Tables of stored runs, generated when the site is built: no number is typed."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np

#: Names in the tables: laws in training, and ways to read a model.
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


#: The file of each table: its function, the study, and the stored runs.
TABLES = {
    "run-masked.md": ("masked_accuracy", "length_generalization", "full", "large"),
    "run-masked-compared.md": ("masked_compared", "length_generalization", "full", "cpu", "large"),
    "run-masked-same.md": ("masked_same_weights", "length_generalization", "full", "large"),
    "run-masked-likelihood.md": ("masked_likelihood", "length_generalization", "full", "large"),
    "run-paired.md": ("paired", "length_generalization", "paired"),
    "run-causal-late.md": ("causal_late", "causal_length", "full"),
    "run-causal-by-length.md": ("causal_by_length", "causal_length", "full"),
    "run-causal-entropy.md": ("causal_entropy", "causal_length", "full"),
    "run-causal-by-book.md": ("causal_by_book", "causal_length", "full"),
    "run-causal-by-package.md": ("causal_by_book", "causal_length", "packages"),
    "run-context.md": ("contexts", "context", "full"),
    "run-context-lengths.md": ("contexts_at_all_lengths", "context", "lengths"),
    "run-needle.md": ("needles", "length_tasks", "full"),
    "run-counts.md": ("counts", "length_tasks", "full"),
    "run-two-heads.md": ("two_heads", "two_heads", "full"),
    "run-two-heads-kept.md": ("two_heads_kept", "two_heads", "answered"),
    "run-recall.md": ("recall", "recall", "full"),
    "run-hybrids.md": ("hybrids", "hybrids", "full"),
    "run-hybrids-sizes.md": ("hybrids_sizes", "hybrids", "sizes"),
    "run-scales.md": ("scales", "learned_scales", "full"),
    "run-scales-norm.md": ("scales_of_normalised_rows", "learned_scales", "norm"),
    "run-layers.md": ("layers", "layers", "full"),
    "run-collapse.md": ("collapse", "collapse", "full"),
}


def run_texts():
    """The text of each file to include."""
    if find_spec("torch") is None:
        return dict.fromkeys(TABLES, _WITHOUT_TORCH)
    from studies import stored

    return {
        file: globals()[build](*(stored(study, run) for run in runs))
        for file, (build, study, *runs) in TABLES.items()
    }


def shown(by_seed, form=".3f"):
    """Mean and standard error over the seeds; empty without a measurement."""
    by_seed = np.asarray(by_seed, float)
    if not np.isfinite(by_seed).all():
        return ""
    error = by_seed.std(ddof=1) / np.sqrt(by_seed.size)
    return f"{by_seed.mean():{form}} ± {error:{form.lstrip('+')}}"


def table(head, rows):
    """A Markdown table from titles of the columns and rows of cells."""
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(str, cells))} |" for cells in lines)


def causal_late(run):
    """Loss late in long texts: in windows, and the difference of each reading of whole texts."""
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
    """Loss of whole texts less that in windows by number of keys, trained under the standard scale."""
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
    """Mean entropy of the rows by number of keys, trained under each scale and read as trained."""
    lengths = [n for n in run.variables["nll"].coords["n"] if n >= run.parameters["train_length"] // 4]
    rows = []
    for positions in run.axes["positions"]:
        for law in run.axes["trained"]:
            found = run.select("entropy", positions=positions, trained=law, reading="as trained")
            rows.append((positions, TRAINED[law], *(shown(e, ".2f") for e in found[:, -len(lengths) :].T)))
    return table(("positions", "trained", *(f"n = {n}" for n in lengths)), rows)


def causal_by_book(run):
    """Gain of laws late in long texts of each book, and added loss of whole texts, without positions."""
    from studies.data.corpus import package_of

    names = run.facts["source"]["held_out"]["names"]
    files = run.select("text_file", positions="none", trained="standard", seed=run.axes["seed"][0])
    books = np.array([package_of(names[int(each)]) for each in files])

    def late(trained, reading):
        return run.select("late_by_text", positions="none", trained=trained, reading=reading)

    plain = late("standard", "as trained")
    given = (
        plain - late("log_n", "as trained"),
        plain - late("standard", "log_n"),
        plain - late("standard", "windows"),
    )
    rows = [
        (
            book,
            int((books == book).sum()),
            *(shown(each[:, books == book].mean(1), "+.3f") for each in given),
        )
        for book in np.unique(books)
    ]
    titles = ("trained under log n, gain", "log n put in, gain", "whole texts less windows")
    return table(("book", "texts", *titles), sorted(rows, key=lambda row: -row[1]))


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
    """Loss by width and heads, and the cost of one dot-product head, in total and by position."""
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


def there(values):
    """The seeds with all numbers measured."""
    values = np.asarray(values, float)
    return values[np.isfinite(values.reshape(len(values), -1)).all(-1)]


def cells(by_seed, form=".3f"):
    """A cell for each column of (seeds, columns): mean and error, or the number of a single seed."""
    kept = there(by_seed)
    return [shown(each, form) if len(kept) > 1 else f"{each[0]:{form}}" for each in kept.T]


def of_masked(run, quantity, law="standard", *, trained="O", reading="as trained"):
    """Values of the masked language models with rotary positions: (seeds, lengths)."""
    return run.select(quantity, positions="rotary", trained=trained, reading=reading, law=law)


def masked_lengths(run):
    return [f"n = {n}" for n in run.variables["accuracy"].coords["n"]]


def masked_accuracy(full, large):
    """Accuracy of O in percent, with that of the article's one run, and with clipped distances."""
    rows = [("article", "43.27", "36.53", "23.02", "15.12", "11.54")]
    for title, run in (("3 layers", full), ("6 layers", large)):
        for reading, said in (("as trained", title), ("clipped", f"{title}, distances clipped at 48")):
            rows.append((said, *cells(100 * of_masked(run, "accuracy", reading=reading), ".2f")))
    return table(("accuracy of O, %", *masked_lengths(full)), rows)


def masked_compared(full, cpu, large):
    """E less O in points, paired by seed, with the differences of the article's one run."""
    rows = [("article", 1, "-0.16", "+4.64", "+11.02", "+5.03", "+2.04")]
    titles = ("3 layers", "3 layers, this package's kernels", "6 layers")
    for title, run in zip(titles, (full, cpu, large), strict=True):
        gain = of_masked(run, "accuracy", "log_n", trained="E") - of_masked(run, "accuracy")
        rows.append((title, len(there(gain)), *cells(100 * gain, "+.2f")))
    return table(("E less O, points", "pairs", *masked_lengths(full)), rows)


def masked_same_weights(full, large):
    """Accuracy gained by laws put into O, in points."""
    laws = {
        "log_n": r"$\log_{64} n$",
        "annealed": "annealed",
        "entropy_invariant": "entropy-invariant",
        "calibrated": "measured, each head",
    }
    rows = []
    for reading, distances in (("as trained", "as trained"), ("clipped", "clipped at 48")):
        for layers, run in ((3, full), (6, large)):
            for law, title in laws.items():
                if law == "log_n" or (reading == "as trained" and layers == 3):
                    gain = 100 * of_masked(run, "accuracy_gain", law, reading=reading)[:, 1:]
                    rows.append((f"{distances}, {layers} layers", title, *cells(gain, "+.2f")))
    return table(("distances", "law", *masked_lengths(full)[1:]), rows)


def masked_likelihood(full, large):
    """Nats of a masked token gained by log n put into O."""
    rows = []
    for reading, distances in (("as trained", "as trained"), ("clipped", "clipped at 48")):
        for layers, run in ((3, full), (6, large)):
            more = of_masked(run, "nll_gain", "log_n", reading=reading)[:, 1:]
            rows.append((f"{distances}, {layers} layers", *cells(more, "+.3f")))
    return table(("distances", *masked_lengths(full)[1:]), rows)


def contexts(run):
    """Accuracy of models trained at 32 tokens, whose nodes see their own key."""
    rows = []
    for task, title in (("context", "context"), ("graph", "graph (stochastic block model)")):
        for law, scale in (("standard", r"$1/\sqrt d$"), ("log_n", r"$\log_{32} n$")):
            found = run.select("accuracy", task=task, own_key="seen", trained="one length", law=law)
            rows.append((f"{title}, {scale}", *cells(found[:, [0, 2, 4, 5]])))
    return table(("accuracy at n", 32, 128, 512, 1024), rows)


def contexts_at_all_lengths(run):
    """Accuracy by lengths and law in training, and by the law of the reading."""
    rows = [
        (title, *cells(run.select("accuracy", trained=trained, law=law)[0, 0][:, [0, 2, 4, 5]]))
        for title, trained, law in (
            (r"trained at 32, $1/\sqrt d$", "one length", "own"),
            (r"the same, read under $\log_{32} n$", "one length", "log_n"),
            (r"trained at all lengths, $1/\sqrt d$", "standard", "own"),
            (r"the same, read under $\log_{32} n$", "standard", "log_n"),
            (r"$\log_{32} n$", "log_n", "own"),
            ("SSMax", "ssmax", "own"),
            (r"$s \ln n + b$", "ssmax_b", "own"),
        )
    ]
    return table(("accuracy at n, under the law of the training", 32, 128, 512, 1024), rows)


#: Names in the tables: laws and normalizers of the tasks where only the length changes.
TASK_LAWS = {
    "standard": r"$1/\sqrt d$",
    "log_n": r"$\log_{16} n$",
    "natural_log_n": r"$\ln n$",
    "entropy_invariant": "entropy-invariant",
    "ssmax": "SSMax, s learned",
    "sparsemax": "sparsemax",
    "entmax": "entmax, alpha 1.5",
    "asentmax": "ASEntmax",
}


def needles(run):
    """Accuracy at the needle under the standard scale, and the gain of each law."""
    lengths = (16, 256, 1024, 4096)
    of = {
        law: np.stack(
            [run.select("accuracy", task="needle", variant=law, step=3000, n=n) for n in lengths], 1
        )
        for law in TASK_LAWS
    }
    rows = [(TASK_LAWS["standard"], *(f"{each:.3f}" for each in of["standard"].mean(0)))]
    rows += [
        (f"{title}, less that" if law == "log_n" else title, *cells(of[law] - of["standard"], "+.3f"))
        for law, title in TASK_LAWS.items()
        if law != "standard"
    ]
    return table(("accuracy at n", *lengths), rows)


def counts(run):
    """Accuracy at majority and average, at 1024 tokens and at 4096."""
    rows = []
    for law, title in TASK_LAWS.items():
        means = {
            (task, n): run.select("accuracy", task=task, variant=law, step=3000, n=n).mean()
            for task in ("majority", "average")
            for n in (1024, 4096)
        }
        pairs = (f"{means[task, 1024]:.3f} ({means[task, 4096]:.3f})" for task in ("majority", "average"))
        rows.append((title, *pairs))
    return table(("accuracy at n = 1024 (4096)", "majority", "average"), rows)


def two_heads(run):
    """Accuracy in rows of 1024 tokens, of the models in the claims and related ones."""
    heads = {"one": "one of 64", "shared": "two of 64, same scores", "two": "two of 32"}
    scales = {
        "standard": r"$1/\sqrt d$",
        "sharp": r"$5/\sqrt d$",
        "log_n": r"$\log_{16}(n)/\sqrt d$",
        "natural_log_n": r"$\ln(n)/\sqrt d$",
        "ssmax": "SSMax, learned",
        "pair": r"$5/\sqrt d$ and $0.2/\sqrt d$",
        "learned": r"two learned multiples of $1/\sqrt d$",
    }
    rows = []
    for variant in run.axes["variant"]:
        if variant not in ("two: ssmax", "two: split"):
            kind, law = variant.split(": ")
            rows.append((heads[kind], scales[law], *cells(run.select("accuracy", variant=variant, n=1024))))
    return table(("accuracy at n = 1024: heads", "scales", "needle", "majority", "both"), rows)


def two_heads_kept(run):
    """Accuracy in the longest rows, and its share of the accuracy at the training length."""
    scales = {
        "one: standard": r"$1/\sqrt d$",
        "one: log_n": r"$\log_6(n)/\sqrt d$",
        "one: natural_log_n": r"$\ln(n)/\sqrt d$",
        "shared: pair": r"$5/\sqrt d$ and $0.2/\sqrt d$, same scores",
    }
    rows = [
        (
            title,
            shown(run.select("accuracy", variant=variant, n=6, part="both")),
            *cells(run.select("accuracy", variant=variant, n=384)),
            shown(run.select("kept", variant=variant, part="both")),
        )
        for variant, title in scales.items()
    ]
    return table(("scales", "both at n = 6", "needle at 384", "majority", "both", "both, kept"), rows)


def recall(run):
    """Accuracy by number of pairs."""
    rows = [(each, *map(shown, run.select("accuracy", variant=each))) for each in run.axes["variant"]]
    pairs = run.axes["pairs"]
    return table(("heads", f"P = {pairs[0]}", *pairs[1:]), rows)


def hybrids(run):
    """Loss on text, and its difference to dot products alone, over the finished models."""
    titles = {"4 sparse": "4 sparse (entmax, alpha 1.5)"}
    dot = run.select("nll", variant="4 dot")
    rows = [("4 dot", shown(dot), "")]
    for variant in ("4 sparse", "2 dot + 2 efficient", "dot + 3 efficient", "4 linear", "4 efficient"):
        loss = run.select("nll", variant=variant)
        ended = np.isfinite(loss)
        if ended.any():
            said = shown(loss) or f"{ended.sum()} of {len(loss)} models"
            cost = shown((loss - dot)[ended], "+.3f")
        else:
            early = (run.select("loss", variant=each, step=1300) for each in (variant, "4 dot"))
            said = "none ended"
            cost = f"{shown(np.subtract(*early), '+.3f')} after 1300 steps, training loss"
        rows.append((titles.get(variant, variant), said, cost))
    return table(("heads", "loss", "less that of 4 dot, by seed"), rows)


def scales(run):
    """Error of the retrieved half of recall, by the learned parts; the failed model is listed separately."""
    rows = []
    for kind, title in (
        ("", "queries and keys as they are"),
        ("-norm", "normalised"),
        ("-decay", "as they are, weights decay"),
    ):
        errors = (
            run.select("error", task="recall", model=f"{model}{kind}", n=32, output="sharp")
            for model in ("fixed", "one", "per_head")
        )
        rows.append((title, *map(_without_the_stuck, errors)))
    return table(("recall, error of the retrieved half", "fixed", "one learned", "one a head"), rows)


def _without_the_stuck(errors):
    """Mean and error without a model that did not learn the task."""
    stuck = errors > 0.5
    if stuck.any():
        (alone,) = errors[stuck]
        return f"{errors[~stuck].mean():.4f} in {(~stuck).sum()} of {len(errors)} models, {alone:.2f} in one"
    return shown(errors, ".4f")


def scales_of_normalised_rows(run):
    """Mean errors of both halves of recall, by fixed factor or learned scale."""
    titles = [f"fixed, {cosine}" for cosine in (4, 8, 16, 32, 64)]
    titles += ["one learned", "one a head", r"one a head, times $\ln n$"]
    rows = []
    for model, title in zip(run.axes["model"], titles, strict=True):
        means = run.select("error", task="recall", model=model).mean(0)  # n, output
        rows.append((title, *(", ".join(f"{each:.4f}" for each in row) for row in means)))
    head = "normalised, error of the retrieved and of the averaged half"
    return table((head, "32 keys", "128 keys"), rows)


def layers(run):
    """Least and largest mean cosine of a layer's updates, by the layer of its input."""
    near = {"1 below": -1, "2 below": -2, "3 below": -3, "1 above": 1}
    rows = []
    for model, title in (("trained", "cosine of updates"), ("untrained", "the control")):
        cosine = run.select("update_cosine", model=model).mean(0)
        row = []
        for step in near.values():
            found = np.diagonal(cosine, step)  # the output of layer l is the input of the next
            between = f"{found.min():.2f} to {found.max():.2f}"
            row.append(between if model == "trained" else f"{found.mean():.2f}")
        rows.append((title, *row))
    return table(("fed from", *near), rows)


def collapse(run):
    """Loss on new text by guard and learning rate, and the entropy without a guard."""
    guards = ("nothing", "normalised queries and keys", "sigma-reparametrisation", "entropy floor")
    rates = run.axes["learning_rate"]
    rows = [
        (title, *(shown(run.select("test_loss", guard=g, learning_rate=rate), ".2f") for rate in rates))
        for title, g in zip(guards, run.axes["guard"], strict=True)
    ]
    ends = (run.select("entropy", guard="none", learning_rate=rate)[:, -1].mean() for rate in rates)
    rows.append(("entropy at the end, nothing done", *(f"{each:.2g}" for each in ends)))
    return table(("loss on new text", *(f"rate {rate:g}" for rate in rates)), rows)
