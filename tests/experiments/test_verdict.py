# SPDX-License-Identifier: BSD-3-Clause
"""Criteria of runs: verdicts in both directions, their rates of errors, and open ones."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

torch = pytest.importorskip("torch")

from attnscale import experiments  # noqa: E402
from attnscale.experiments import (  # noqa: E402
    Claim,
    Criterion,
    _verdict,
    crossed_error,
    difference,
    judge,
)
from studies import stored  # noqa: E402
from studies.context import Context  # noqa: E402
from studies.hybrids import Hybrids  # noqa: E402
from studies.learned_scales import LearnedScales  # noqa: E402
from studies.length_generalization import LengthGeneralization  # noqa: E402

pytestmark = pytest.mark.torch


class Columns:
    """A table of two models, "a" and "b", by seed: the part of a result that a verdict reads."""

    def __init__(self, **arrays):
        self.arrays = arrays

    def select(self, name, *, model):
        if model not in ("a", "b"):
            raise KeyError(f"model must be a or b, got {model}")
        return self.arrays[name]["ab".index(model)]


def criterion(count=1, needs="all", least=0.0, models=("b", "a")):
    each = tuple(difference(f"{i}", f"x{i}", {"model": models}, {}, least=least) for i in range(count))
    return Criterion((Claim("b is larger", each, needs),))


def table(effects, seeds=5, rng=0):
    """Models with a large spread over seeds and a small one within pairs of a seed."""
    rng = np.random.default_rng(rng)
    common = 10 * rng.normal(size=(len(effects), 1, seeds))
    values = common + rng.normal(size=(len(effects), 2, seeds))
    values[:, 1] += np.asarray(effects)[:, None]
    return Columns(**{f"x{i}": each for i, each in enumerate(values)})


@pytest.mark.parametrize(
    ("effects", "needs", "outcome"),
    [
        ((20, 20), "all", "shown"),
        ((20, -20), "all", "refuted"),
        ((20, 0), "all", "undecided"),
        ((20, 0), "any", "shown"),
        ((-20, 0), "any", "undecided"),
        ((-20, -20), "any", "refuted"),
    ],
)
def test_verdicts_fire_both_ways(effects, needs, outcome):
    verdict = judge(criterion(2, needs), table(effects))
    assert verdict.claims[0].outcome == outcome
    assert verdict.refuted == (outcome == "refuted")


def test_the_margin_is_what_the_claim_predicts():
    within = table((-1,), seeds=12)  # a loss of about 1, and a margin on either side of it
    assert judge(criterion(least=-4), within).claims[0].outcome == "shown"
    assert judge(criterion(least=4), within).claims[0].outcome == "refuted"


def test_intervals_are_those_of_t_shared_by_all_contrasts():
    given = table((1, 2, 3), seeds=4)
    found = judge(criterion(3), given).claims[0].findings
    for i, each in enumerate(found):
        by_seed = given.arrays[f"x{i}"][1] - given.arrays[f"x{i}"][0]
        interval = stats.ttest_1samp(by_seed, 0).confidence_interval(1 - 0.05 / 3)
        assert (each.low, each.high) == pytest.approx(tuple(interval))
        assert each.p == pytest.approx(min(1, 3 * stats.ttest_1samp(by_seed, 0).pvalue))
        assert each.seeds == 4


@pytest.mark.parametrize("seeds", [3, 5])
def test_wrong_verdicts_are_as_rare_as_the_rate_says(seeds):
    """2000 tables of 4 contrasts without an effect; a rule of two standard errors would fire in 9 to 36 %."""
    wrong = naive = 0
    rng = np.random.default_rng(1)
    quantile = stats.t.isf(0.05 / 4 / 2, seeds - 1)
    for _ in range(2000):
        by_seed = rng.normal(size=(4, seeds))
        ratio = by_seed.mean(1) / by_seed.std(1, ddof=1) * np.sqrt(seeds)
        wrong += (abs(ratio) > quantile).any()
        naive += (abs(ratio) > 2).any()
    assert wrong / 2000 < 0.05 + 3 * np.sqrt(0.05 * 0.95 / 2000)
    assert naive / 2000 > 0.3
    for start in range(60):  # and the verdict is that rule
        given = table((0, 0, 0, 0), seeds, rng=start)
        ratio = [stats.ttest_1samp(each[1] - each[0], 0).statistic for each in given.arrays.values()]
        found = [each.outcome != "undecided" for each in judge(criterion(4), given).claims[0].findings]
        assert found == [abs(each) > quantile for each in ratio]


def test_the_visible_difference_is_seen_in_80_of_100_runs():
    found = judge(criterion(), table((0,), seeds=6)).claims[0].findings[0]
    true = found.visible / found.error  # in standard errors of the mean
    by_seed = true / np.sqrt(6) + np.random.default_rng(2).normal(size=(4000, 6))
    ratio = by_seed.mean(1) / by_seed.std(1, ddof=1) * np.sqrt(6)
    assert (ratio > stats.t.isf(0.025, 5)).mean() == pytest.approx(0.8, abs=0.025)


@pytest.mark.parametrize(
    ("change", "models", "note"),
    [
        (lambda x: x, ("c", "a"), "not measured: model must be a or b, got c"),
        (lambda x: np.where([[0, 1, 0]], np.nan, x), ("b", "a"), "2 of 3 seeds are there"),
        (lambda x: x[:, :1], ("b", "a"), "one seed has no error"),
        (lambda x: np.ones_like(x), ("b", "a"), "no spread over the seeds"),
    ],
)
def test_what_cannot_be_told_is_undecided(change, models, note):
    given = Columns(x0=change(table((50,), seeds=3).arrays["x0"]))
    (found,) = judge(criterion(models=models), given).claims[0].findings
    assert found.outcome == "undecided"
    assert note in found.note
    assert note in str(judge(criterion(models=models), given))


def of_texts(by_text, **ids):
    """A table with the gain of "b" on each text, and the files or clusters of the texts."""
    return Columns(
        x0=np.stack((np.zeros(len(by_text)), by_text.mean(1))),
        x0_by_text=np.stack((0 * by_text, by_text)),
        **{name: np.stack((np.full(len(each), np.nan), each)) for name, each in ids.items()},
    )


def test_texts_of_one_file_count_as_one():
    """Two models and 40 texts of 4 files, each with a gain of its own."""
    rng = np.random.default_rng(0)
    files = np.repeat(np.arange(4.0), 10)
    by_text = 1 + rng.normal(size=4)[files.astype(int)] + 0.01 * rng.normal(size=(5, 40))
    found = judge(criterion(), of_texts(by_text, text_file=files)).claims[0].findings[0]
    assert found.error == pytest.approx(crossed_error(by_text, files))
    assert found.error > 20 * by_text.mean(1).std(ddof=1) / np.sqrt(5)


#: Texts of each book of the stored run of causal_length.
BOOKS = (12, 7, 7, 3, 2, 1)


def test_degrees_of_freedom_are_those_of_seeds_and_of_clusters():
    books = np.repeat(np.arange(6.0), BOOKS)
    of_books, of_seeds = np.arange(6)[books.astype(int)] + np.zeros((5, 1)), np.arange(5.0)[:, None]
    for by_text, degrees in ((of_books, 4 - 1), (of_seeds + 0 * books, 5 - 1)):  # 32^2 / 256 books
        found = judge(criterion(), of_texts(by_text, text_cluster=books)).claims[0].findings[0]
        assert found.degrees == pytest.approx(degrees)
        quantile = stats.t.isf(0.025, degrees)
        assert found.high - found.value == pytest.approx(quantile * found.error)
    both = judge(criterion(), of_texts(of_books + of_seeds, text_cluster=books)).claims[0].findings[0]
    assert 3 < both.degrees < 3 + 4
    large = np.repeat(np.arange(2.0), (31, 1))  # 1.07 clusters
    few = judge(criterion(), of_texts(large + np.zeros((5, 1)), text_cluster=large)).claims[0].findings[0]
    assert few.degrees == 1
    assert few.outcome == "undecided"


def test_an_old_criterion_keeps_its_intervals_and_has_those_by_cluster_beside_them():
    rng, books = np.random.default_rng(0), np.repeat(np.arange(6.0), BOOKS)
    by_text = 1 + rng.normal(size=6)[books.astype(int)] + rng.normal(size=(5, 32))
    texts = of_texts(by_text, text_file=np.arange(32.0), text_cluster=books)
    old = replace(criterion(), degrees="seeds")
    assert Criterion.from_dict(json.loads(json.dumps(old.to_dict()))).to_dict() == old.to_dict()
    assert "degrees" not in old.to_dict()  # as it was registered
    (found,), (new,) = (judge(each, texts).claims[0].findings for each in (old, criterion()))
    assert found.error == pytest.approx(crossed_error(by_text, np.arange(32)))
    assert found.high - found.value == pytest.approx(stats.t.isf(0.025, 4) * found.error)
    assert found.by_cluster == (new.low, new.high, new.degrees)
    assert new.by_cluster is None
    assert f"(df {new.degrees:.2g})" in str(judge(old, texts))


def test_intervals_of_few_clusters_cover_as_the_rate_says(monkeypatch):
    """250 studies of 5 seeds and 6 books at a rate of 1 %; a normal quantile instead of t would miss more."""
    monkeypatch.setattr(_verdict, "_DRAWS", 200)
    rng, books = np.random.default_rng(0), np.repeat(np.arange(6), BOOKS)
    runs, missed, naive = 250, 0, 0
    for _ in range(runs):
        by_text = rng.normal(size=6)[books] + 0.3 * rng.normal(size=(5, 1)) + 0.3 * rng.normal(size=(5, 32))
        texts = of_texts(by_text, text_cluster=books.astype(float))
        found = judge(replace(criterion(), rate=0.01), texts).claims[0].findings[0]
        missed += found.outcome != "undecided"
        naive += abs(found.value) > stats.norm.isf(0.005) * found.error
    bound = 0.01 + 3 * np.sqrt(0.01 * 0.99 / runs)
    assert missed / runs < bound < naive / runs


def test_old_runs_have_the_books_of_their_texts():
    found = stored("causal_length")
    ids = found.select("text_cluster", positions="none", trained="standard", seed=0)
    assert sorted(np.unique(ids, return_counts=True)[1], reverse=True) == [*BOOKS]
    assert all(each.by_cluster for claim in found.verdict().claims for each in claim.findings)


def test_errors_over_seeds_and_files_are_right():
    """The bootstrap of one study gives the spread of means over 300 studies of 4 seeds and 20 files."""
    rng = np.random.default_rng(0)
    files = np.repeat(np.arange(20), 3)

    def study():
        of_seed, of_file = 0.5 * rng.normal(size=(4, 1)), rng.normal(size=20)[files]
        return of_seed + of_file + 0.3 * rng.normal(size=(4, 60))

    true = np.std([study().mean() for _ in range(300)])
    found = np.sqrt(np.mean([crossed_error(study(), files) ** 2 for _ in range(40)]))
    assert found == pytest.approx(true, rel=0.15)
    assert np.isnan(crossed_error(np.ones((3, 4)), np.zeros(4)))
    of_file = rng.normal(size=4)
    of_seed = rng.normal(size=(3, 1))
    for values, units in ((of_file[None], of_file), (of_seed + np.zeros(4), of_seed)):
        expected = units.std(ddof=1) / np.sqrt(units.size)
        assert crossed_error(values, np.arange(4)) == pytest.approx(expected, rel=0.06)


def test_a_criterion_survives_json():
    for name in experiments.names():
        given = experiments.find(name)().criterion()
        assert Criterion.from_dict(json.loads(json.dumps(given.to_dict()))).to_dict() == given.to_dict()
        assert all(each.name in given.sentence for claim in given.claims for each in claim.contrasts)


def obeying(result, sign):
    """The result with noise as measurements and all contrasts 1 above or below their margins."""
    rng = np.random.default_rng(0)
    arrays = {name: 0.01 * rng.normal(size=values.shape) for name, values in result.arrays.items()}
    contrasts = [each for claim in result.criterion.claims for each in claim.contrasts]
    places = replace(result, arrays={k: np.arange(v.size).reshape(v.shape) for k, v in arrays.items()})
    for name in {each.variable for each in contrasts}:
        own = [each for each in contrasts if each.variable == name]
        for seed in range(len(result.axes["seed"])):
            weights = np.zeros((len(own), arrays[name].size))
            for row, each in zip(weights, own, strict=True):
                for weight, labels in each.terms:
                    row[int(places.select(name, **labels)[seed])] += weight
            solved = np.linalg.pinv(weights) @ [each.least + sign for each in own]
            arrays[name] += solved.reshape(arrays[name].shape)
    return replace(result, arrays=arrays)


#: Shipped runs with criteria of their own, and their designs.
OWN = {
    ("context", "lengths"): Context.many_lengths(),
    ("hybrids", "sizes"): Hybrids.sizes(),
    ("learned_scales", "norm"): LearnedScales.normalised(),
    ("length_generalization", "paired"): LengthGeneralization.paired(),
}


@pytest.mark.parametrize(("name", "run"), [*product(experiments.names(), ["full", "reduced"]), *OWN])
def test_each_criterion_reads_the_table_of_its_design(name, run):
    """A table in favour of the claims shows them all, and its opposite refutes them all."""
    kept, study = stored(name, run), experiments.find(name)
    for sign, outcome in ((1, "shown"), (-1, "refuted")):
        table = obeying(kept, sign)
        assert {each.outcome for each in table.verdict().claims} == {outcome}
        usual = study() if run == "full" else study.reduced()
        criterion = OWN.get((name, run), usual).criterion()
        assert judge(criterion, table).refuted == (sign < 0)


def test_registrations_that_are_shipped():
    """A registered run has the design, seeds and criterion of its registration, and its hash."""
    folder = Path(__file__).parents[2] / "notebooks" / "studies" / "runs"
    found = sorted(folder.glob("*.registration.json"))
    assert len(found) >= len(OWN)
    for path in found:
        name, _, run = path.name.removesuffix(".registration.json").partition("-")
        written = json.loads(path.read_text(encoding="utf-8"))
        parts = written.keys() - {"format", "kind", "sha256", "created"}
        text = json.dumps({part: written[part] for part in parts}, sort_keys=True)
        assert hashlib.sha256(text.encode()).hexdigest() == written["sha256"]
        kept = stored(name, run or "full")
        assert kept.registration == written["sha256"]
        assert written["config"] == kept.parameters
        assert written["seeds"] == list(kept.axes["seed"])
        assert written["criterion"] == json.loads(json.dumps(kept.criterion.to_dict()))
        assert all(written["created"] < record["created"] for record in kept.provenance)
        assert kept.complete
        assert not kept.verdict().exploratory
