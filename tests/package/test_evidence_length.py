# SPDX-License-Identifier: BSD-3-Clause
"""T15: pages on laws and longer texts agree with the stored runs."""

from __future__ import annotations

import numpy as np
import pytest
from attnscale.experiments._verdict import crossed_error
from pages import page
from scipy import stats
from stored_runs import EVIDENCE, cells, p_value, pair, run, there
from studies.models.best_multiples import best_multiples

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

RUNS = {"3 layers": None, "6 layers": "large", "3 layers, this package's kernels": "cpu"}


def of_masked(which, quantity, law, *, trained="O", reading="as trained"):
    """Results of the models with rotary positions: (seeds, lengths), NaN where there is none."""
    return run("length_generalization", which).select(
        quantity, positions="rotary", trained=trained, reading=reading, law=law
    )


def compared(which=None):
    """E less O by seed, in points."""
    e = of_masked(which, "accuracy", "log_n", trained="E")
    return 100 * there(e - of_masked(which, "accuracy", "standard"))


def test_three_large_models_agree_by_chance():
    gain, error = (100 * of_masked("large", f"accuracy_gain{e}", "log_n")[:, 2] for e in ("", "_error"))
    own = error.mean()
    assert gain.std(ddof=1) < 0.5 * own
    assert f"of one model over its own texts, {own:.2f} points, it is undecided" in page(EVIDENCE)
    contrasts = sum(len(c.findings) for c in run("length_generalization", "large").verdict().claims)
    assert stats.t.ppf(1 - 0.05 / (2 * contrasts), 2) * own / 3**0.5 > gain.mean()


def test_the_articles_comparison():
    text, full = page(EVIDENCE), compared()
    assert (full[:, 0] < 0).all()
    assert all(p_value(full[:, i]) > 0.1 for i in (2, 3))
    assert "The exploratory runs do not show a gain of E" in text
    short = cells(full, "+.2f")
    for name in (f"docs/articles/{each}.md" for each in ("004", "zh/004")):
        assert all(short[i] in page(name) for i in (2, 3)), name
        assert short[0].lstrip("+-") in page(name), name


def of_pairs(trained, law, *, quantity="accuracy", which="paired"):
    """Results of the registered pairs with distances as trained: (seeds, lengths)."""
    place = {"positions": "rotary", "reading": "as trained"}
    return run("length_generalization", which).select(quantity, trained=trained, law=law, **place)


def test_the_one_contrast_of_the_registered_pairs():
    text = page(EVIDENCE)
    models = {
        name: 100 * of_pairs(*each, which="primary")
        for name, each in {"O": ("O", "standard"), "E": ("E", "log_n")}.items()
    }
    gain = models["E"] - models["O"]
    first, equal, _ = (
        f"{100 * each.value:+.2f} ± {100 * each.error:.2f}"
        for claim in run("length_generalization", "primary").verdict().claims
        for each in claim.findings
    )
    assert f"E less O is {first} points, above 0 in {(gain[:, 1] > 0).sum()} of 40 pairs" in text
    assert f"{equal} more than log n put in" in page("docs/claims.md")
    for name in (
        "docs/claims.md",
        "docs/articles/004.md",
        "docs/articles/zh/004.md",
        "notebooks/12_length.py",
    ):
        assert first in page(name), name


def test_the_registered_pairs():
    assert run("length_generalization", "paired").complete
    plain, put_in = (100 * of_pairs("O", law) for law in ("standard", "log_n"))
    for each in cells(put_in - plain, ".2f")[2:]:
        assert each in page("docs/claims.md")


@pytest.mark.parametrize("title", ["3 layers", "6 layers"])
def test_accuracies_and_what_clipping_gives_back(title):
    results = page("docs/explanation/results.md")
    trained = 100 * there(of_masked(RUNS[title], "accuracy", "standard"))
    clipped = 100 * there(of_masked(RUNS[title], "accuracy", "standard", reading="clipped"))
    if title == "3 layers":
        assert all(f"{each.mean(0)[3]:.2f}" in results for each in (trained, clipped))
        gain = 100 * of_masked(RUNS[title], "accuracy_gain", "log_n")
        assert f"adds {cells(gain, '.2f')[3]} points" in results
    assert (clipped.mean(0) > trained.mean(0))[3]


def test_causal_models_of_prose():
    text, kept = page(EVIDENCE), run("causal_length")
    assert kept.complete

    def late(reading, positions="none", trained="standard"):
        return kept.select("late", reading=reading, positions=positions, trained=trained)

    def added(reading, positions):
        return cells((late(reading, positions) - late("windows", positions))[:, None], ".2f")[0].split()[0]

    for positions, whole, clipped in (("plain rotary", "1.60", "0.04"), ("rotary", "0.05", "0.01")):
        assert (added("as trained", positions), added("clipped", positions)) == (whole, clipped)
    assert added("as trained", "alibi") == "-0.02"
    worse = [
        (late(law, "plain rotary") - late("as trained", "plain rotary")).mean() for law in ("log_n", "yarn")
    ]
    assert [f"{each:.2f}" for each in worse] == ["0.17", "0.21"]
    found = {each.name: each for claim in kept.verdict().claims for each in claim.findings}
    for name in (
        *("whole texts less windows, none", "1/sqrt(d) less log_n, none"),
        "trained under 1/sqrt(d) less log_n, none",
    ):
        shown = pair(found[name].value, found[name].error, ".3f")
        assert shown in text, name
        assert shown in page("docs/claims.md") or not name.startswith("whole"), name
    assert all(found[f"1/sqrt(d) less {law}, none"].low < 0 for law in ("log_n", "yarn"))
    files = kept.select("text_file", positions="none", trained="standard")[0]
    assert (len(set(files)), len(files)) == (16, 32)
    name = "trained under 1/sqrt(d) less log_n, none"
    low, high, degrees = found[name].by_cluster
    error = (high - low) / 2 / stats.t.isf(0.05 / 20 / 2, degrees)
    assert pair(found[name].value, error, ".3f") in text
    assert low < 0
    _prose_by_book(text, kept, files.astype(int), late("as trained").size)
    for trained, grown in (("standard", "2.63"), ("log_n", "1.67")):
        entropy = kept.select("entropy", reading="as trained", positions="none", trained=trained).mean(0)
        assert f"{entropy[-1] - entropy[4]:.2f}" == grown


def _prose_by_book(text, kept, files, seeds):
    """The gain of training under log n, with the books of the texts for clusters."""
    names = kept.facts["source"]["held_out"]["names"]
    books = np.array([names[i].split("/")[3] for i in files])
    one, other = (
        kept.select("late_by_text", reading="as trained", positions="none", trained=each)
        for each in ("standard", "log_n")
    )
    gain = one - other
    by_book = {book: gain[:, books == book].mean() for book in np.unique(books)}
    assert len(by_book) == 6
    assert min(by_book.values()) > 0
    _, place, texts = np.unique(books, return_inverse=True, return_counts=True)
    error, of_seeds = crossed_error(gain, place), gain.mean(1).var(ddof=1) / seeds
    of_books = error**2 - of_seeds
    many = texts.sum() ** 2 / (texts**2).sum()
    freedom = error**4 / (of_seeds**2 / (seeds - 1) + of_books**2 / (many - 1))
    assert f"the gain is {pair(gain.mean(), error, '.3f')} with {freedom:.1f} degrees of freedom" in text
    assert stats.t.ppf(1 - 0.05 / 40, freedom) * error > gain.mean()


def test_prose_with_whole_packages_held_out():
    text, kept = page(EVIDENCE), run("causal_length", "packages")
    found = {each.name: each for claim in kept.verdict().claims for each in claim.findings}
    pages = [page(each) for each in ("docs/claims.md", "docs/explanation/results.md")]
    for name in ("trained under 1/sqrt(d) less log_n, as trained", "1/sqrt(d) less log n put in"):
        assert all(pair(found[name].value, found[name].error, ".3f") in each for each in pages), name

    def late(reading, trained="standard"):
        return kept.select("late", reading=reading, positions="none", trained=trained).mean()

    plain = late("as trained")
    sharper = late("windows") - min(late(f"windows x {each}") for each in ("1.15", "1.3", "1.5"))
    assert f"the best constant from 0.85 to 1.5 gains {sharper:.3f}" in text
    constant = plain - late("x 1.3")
    assert f"a constant 1.3, which gains {constant:.3f} itself" in text
    assert 0.7 < constant / (plain - late("log_n")) < 0.8


def test_how_many_models_pass():
    passed = []
    for which in RUNS.values():
        gain, error = (of_masked(which, f"accuracy_gain{e}", "log_n") for e in ("", "_error"))
        kept = np.isfinite(gain).all(-1)
        passed.append((gain[kept, 2:4] > 2 * error[kept, 2:4]).all(-1))
    assert [(int(each.sum()), len(each)) for each in passed] == [(5, 5), (3, 3), (1, 3)]
    count = f"{sum(each.sum() for each in passed)} of {sum(map(len, passed))} models"
    assert count == "9 of 11 models"
    assert count in page("notebooks/12_length.py")


def test_tasks_where_only_the_length_changes():
    tasks = run("length_tasks")

    def gain(task, variant, n):
        one, other = (
            tasks.select("accuracy", task=task, variant=each, step=3000, n=n)
            for each in (variant, "standard")
        )
        return one - other

    needle, majority = (
        pair(each.value, each.error, ".3f")
        for claim in run("length_tasks", "pair").verdict().claims
        for each in claim.findings
    )
    text = page(EVIDENCE)
    assert f"finds it better: {needle} of accuracy at 1024 tokens" in text
    assert f"where all are counted, by {majority}, is undecided" in text
    for variant in ("log_n", "natural_log_n", "ssmax"):
        assert (tasks.select("accuracy", task="average", variant=variant, step=3000, n=4096) == 1).all()
    for variant in tasks.axes["variant"][1:]:
        assert (gain("majority", variant, 1024).mean() < 0) == (variant != "ssmax")


def test_the_shape_of_the_law():
    text = page(EVIDENCE)
    needle, clipped = (
        best_multiples(run(name), **labels)
        for name, labels in (("needle_multiples", {}), ("text_multiples", {"reading": "clipped"}))
    )
    powers = [pair(each.exponent.value, each.exponent.error, ".2f") for each in (needle, clipped)]
    assert f"At the needle p = {powers[0]}, and on text with clipped distances {powers[1]}." in text
    assert all(each in page("docs/claims.md") for each in powers)

    roots = []
    for each in (needle, clipped):
        u = np.log(np.log(each.lengths))
        logs = [0.5 * np.log(1 + a * np.log(each.lengths)) for a in (1, 2)]
        roots += [(u - u.mean()) @ one / ((u - u.mean()) @ u) for one in logs]
        assert each.exponent.high < 1
        assert each.exponent.low > 0
    assert f"have p = {min(roots):.2f} to {max(roots):.2f}" in text
    assert needle.exponent.low < min(roots)
    assert max(roots) < needle.exponent.high
    assert clipped.exponent.high < min(roots)

    def points(other):
        one, two = (
            100 * run("needle_multiples").select("accuracy", trained="standard", n=4096, multiple=each)
            for each in ("log n", other)
        )
        return cells((one - two)[:, None], ".1f")[0]

    assert f"with {points('sqrt(1 + ln n)')} points more than $\\sqrt{{1 + \\ln n}}$" in text
    pilot = best_multiples(run("text_multiples", "pilot"), reading="clipped")
    assert f"(one seed) has p = {pilot.exponent.value:.2f}" in text
