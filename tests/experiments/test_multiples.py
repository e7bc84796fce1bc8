# SPDX-License-Identifier: BSD-3-Clause
"""T15, the shape of the law: multiples of the trained scale, and the best at each length."""

from __future__ import annotations

import math

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("tokenizers")

import attnscale as at  # noqa: E402
from attnscale import experiments  # noqa: E402
from attnscale.experiments import crossed_error, crossed_means  # noqa: E402
from studies import stored  # noqa: E402
from studies.data.corpus import FILE  # noqa: E402
from studies.data.held_out import held_out_texts, one_text_a_file  # noqa: E402
from studies.models.best_multiples import best_multiples  # noqa: E402
from studies.models.multiples import GRID, at_length, labels  # noqa: E402
from studies.needle_multiples import NeedleMultiples  # noqa: E402
from studies.text_multiples import TextMultiples  # noqa: E402
from tiny import TINY_TEXT  # noqa: E402

pytestmark = pytest.mark.torch

LENGTHS = (64, 128, 256, 512, 1024)


def needle(**changes):
    return NeedleMultiples(**{"steps": 3, "batch": 8, "lengths": (16, 40), "tests": 50, **changes})


def text(**changes):
    return TextMultiples(**{**TINY_TEXT, "files": 3, "most_bytes": 500_000, **changes})


def test_shapes_are_one_where_the_model_was_trained():
    assert at_length(GRID, 64, 64) == [*GRID, 1, 1, 1]
    here = dict(zip(labels(GRID), at_length(GRID, 1024, 64), strict=True))
    assert here["log n"] == pytest.approx(at.laws.get("log_n(base=64)").multiplier(1024, 32))
    assert here["sqrt(1 + ln n)"] == pytest.approx(math.sqrt((1 + math.log(1024)) / (1 + math.log(64))))
    root = math.sqrt((1 + 2 * math.log(1024)) / (1 + 2 * math.log(64)))
    assert here["sqrt(1 + 2 ln n)"] == pytest.approx(root)


def made(best, *, curvature=0.5, files=4, noise=0.0):
    """A result whose loss is a parabola in ln beta around the best multiples, at five lengths."""
    rng = np.random.default_rng(0)
    study = TextMultiples(files=files)
    variables = {name: v for name, v in study.variables().items() if name != "loss"}
    x = np.log([at_length(GRID, n, 64) for n in LENGTHS]).T  # multiples, n
    loss = 3 + curvature * (x - np.log(best)) ** 2
    by_text = loss[..., None] + rng.normal(size=(1, 5, 2, 1, 1, files))
    by_text = by_text + noise * rng.normal(size=(1, 5, 2, *loss.shape, files))
    nll = by_text.mean(-1)
    arrays = {"nll": nll, "accuracy": np.zeros_like(nll), "nll_by_text": by_text}
    arrays["text_file"] = np.tile(np.arange(files), (1, 5, 1))
    empty = {"claim": "", "question": "", "refuted_if": "", "parameters": {}, "facts": {}, "provenance": []}
    axes = {"trained": ("standard",), "seed": tuple(range(5))}
    return experiments.TrainingResult(
        experiment="text_multiples", axes=axes, variables=variables, arrays=arrays, **empty
    )


@pytest.mark.parametrize(("power", "shape"), [(1, "log n"), (0, "a constant")])
def test_the_best_multiple_and_its_shape(power, shape):
    expected = 1.2 * np.log(LENGTHS) ** power / math.log(64) ** power
    found = best_multiples(made(expected), reading="clipped")
    np.testing.assert_allclose(found.beta.value, expected, rtol=1e-9)
    assert found.inside.all()
    assert found.exponent.value == pytest.approx(power, abs=1e-9)
    assert found.misfit[shape] == pytest.approx(0, abs=1e-9)
    assert all(misfit > 0.05 for name, misfit in found.misfit.items() if name != shape)
    less = found.misfit_less["a constant"]
    assert (less.value > 0) == (power == 1)
    assert less.low <= less.value <= less.high


def test_a_best_multiple_outside_the_grid_is_the_end_and_no_part_of_the_fit():
    expected = np.array([1.0, 1.2, 1.4, 5.0, 0.1])
    found = best_multiples(made(expected), reading="as trained")
    assert found.inside.tolist() == [True, True, True, False, False]
    assert found.beta.value[3:] == pytest.approx([3.0, 0.5])
    inside = best_multiples(made(np.array([1.0, 1.2, 9.0, 9.0, 9.0])), reading="as trained")
    assert np.isnan(inside.exponent.value)


def test_a_flat_optimum_is_said_to_be_flat():
    best = np.full(5, 1.3)
    sharp, flat = (best_multiples(made(best, curvature=c, noise=0.05), reading="clipped") for c in (5, 0.01))
    assert np.ptp(flat.flat, axis=1).mean() > 4 * np.ptp(sharp.flat, axis=1).mean()
    assert (flat.beta.error > 3 * sharp.beta.error).all()
    assert (sharp.flat[:, 0] <= 1.3).all()
    assert (sharp.flat[:, 1] >= 1.3).all()


def test_the_draws_are_those_of_the_error():
    rng = np.random.default_rng(0)
    values, files = rng.normal(size=(4, 3, 6)), np.array([3, 3, 5, 7, 7, 7])
    draws = crossed_means(values, files)
    for i in range(3):
        assert draws[:, i].std(ddof=1) == pytest.approx(crossed_error(values[:, i], files))
    np.testing.assert_allclose(draws.mean(0), values.mean((0, 2)), atol=0.05)


def test_a_file_has_one_text():
    held_out = np.array([FILE if i % 23 == 22 else 2 + i % 11 for i in range(230)])
    repeated = np.zeros(230, bool)
    repeated[23:45] = True  # the second file
    streams = {"held_out": held_out, "repeated": repeated}
    texts = one_text_a_file(streams, 7, 9)
    assert texts.files.tolist() == [0, *range(2, 10)]
    every = held_out_texts(streams, 7, 27)
    assert {tuple(each) for each in texts.tokens} <= {tuple(each) for each in every.tokens}
    assert (texts.tokens[0] == held_out[7:14]).all()  # the middle one of three
    with pytest.raises(ValueError, match="files must be at most 9 with 7 fresh tokens here, got 10"):
        one_text_a_file(streams, 7, 10)


def test_needles_are_the_same_under_all_multiples():
    ours, theirs = (needle(attention=each).run(seeds=2, progress=False) for each in ("attnscale", "torch"))
    assert ours.complete
    np.testing.assert_allclose(ours.arrays["nll"], theirs.arrays["nll"], rtol=2e-3)
    nll = ours.select("nll", trained="standard", n=16)
    assert (nll[:, -3:] == ours.select("nll", trained="standard", n=16, multiple=1.0)[:, None]).all()
    assert len(np.unique(ours.select("nll", n=40))) == 2 * len(labels(needle().multiples))
    one = needle().run(seeds=[1], progress=False)
    assert (one.arrays["nll"][0, 0] == ours.arrays["nll"][0, 1]).all()


def test_texts_are_the_same_under_all_multiples():
    result = text().run(seeds=2, progress=False)
    assert result.complete
    nll, by_text = result.select("nll", trained="standard"), result.select("nll_by_text", trained="standard")
    np.testing.assert_allclose(by_text.mean(-1), nll, atol=5.1e-4)
    readings = ("clipped", "as trained")
    clipped, trained = (result.select("nll", trained="standard", reading=r) for r in readings)
    assert (nll[..., -3:, 0] == nll[..., [list(GRID).index(1.0)], 0]).all()
    assert (clipped != trained)[..., 1:].mean() > 0.9  # few steps: some agree to the last stored digit
    files = result.select("text_file", trained="standard")
    assert (files == files[0]).all()
    assert len(set(files[0])) == 3
    verdict = result.verdict()
    assert {each.seeds for claim in verdict.claims for each in claim.findings} == {2}
    same = text(attention="torch").run(seeds=1, progress=False)
    np.testing.assert_allclose(same.arrays["nll"][0, 0], nll[0], rtol=1e-3)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (lambda: needle(constants=(1.7,)), r"constants must be one of multiples for each of 1 readings"),
        (lambda: needle(multiples=(0.5, 2.0, 3.0)), "multiples must be three or more growing positive"),
        (lambda: needle(lengths=(32, 64)), r"lengths must begin with train_length=16 .* got \(32, 64\)"),
        (lambda: text(lengths=(8, 20)), r"lengths must begin with train_length=8 and go on with multiples"),
        (lambda: text(constants=(1.3,)), "constants must be one of multiples for each of 2 readings"),
        (lambda: text(width=12, heads=4), "width must be a multiple of 2 \\* heads, got 12 and 4"),
        (lambda: text(files=0), "files must be at least 1, got 0"),
    ],
)
def test_a_bad_config_is_one_line(config, message):
    with pytest.raises(ValueError, match=message):
        config()


@pytest.mark.maintainer
@pytest.mark.slow
@pytest.mark.parametrize("name", ["needle_multiples", "text_multiples"])
def test_the_reduced_run_is_within_the_stored_error_bars(name):
    kept, study = stored(name, "reduced"), experiments.find(name)
    again = study.reduced().run(seeds=[100], progress=False)
    there = kept["nll"]
    spread = there.standard_error * np.sqrt(there.seeds + 1)  # of one model, and of the mean
    # The text is Python's library: another version may be harder or easier to fill in.
    slack = 0.02 if again.facts == kept.facts else 0.3
    assert (abs(again["nll"].value - there.value) <= 4 * spread + slack).all()
