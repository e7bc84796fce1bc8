# SPDX-License-Identifier: BSD-3-Clause
"""Shares of rows: their errors, and runs that stop at an error."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from attnscale import montecarlo as mc
from attnscale._core import share_error
from attnscale.cli import main


@pytest.mark.parametrize("n", [64, 256, 1000])
def test_two_errors_hold_the_share(n: int) -> None:
    """The exact coverage of k/N +- 2 errors, over a grid of true shares; 0.95 if k/N were normal.

    Half the interval of Wilson (z = 1) in the place of this error holds the share in 63 % of all runs, the
    standard deviation of the posterior of Jeffreys in 75 %, and sqrt(share (1 - share) / N) in none where the
    share is far below 1/N.
    """
    from scipy.stats import binom

    k = np.arange(n + 1)
    error = share_error(k / n, n)
    coverage = []
    for share in np.geomspace(1e-3 / n, 0.5, 1000):
        weight = binom.pmf(k, n, share)
        coverage.append(weight[np.abs(k / n - share) <= 2 * error].sum())
    assert min(coverage) > 0.92
    assert np.mean(coverage) > 0.95


def test_many_events_have_the_usual_error() -> None:
    share, n = np.array([0.3, 0.5]), 10_000
    np.testing.assert_allclose(share_error(share, n), np.sqrt(share * (1 - share) / n), rtol=1e-3)
    np.testing.assert_allclose(share_error(1 - share, n), share_error(share, n), rtol=1e-12)  # either side


SHARES = {
    "saturated": lambda **o: mc.softmax_saturation(head_dim=4, n=16, law="unscaled", rng=2, **o),
    "needle_is_top": lambda **o: mc.needle_dilution(16, head_dim=64, cosine=0.9, rng=0, **o),
    "accuracy": lambda **o: mc.head_dimension(64, n=16, rng=0, **o),
    "success": lambda **o: mc.jl_distortion(n=10, dim=50, k=2000, rng=0, **o),
    "outside": lambda **o: mc.jl_distortion(n=10, dim=50, k=2000, rng=0, **o),
}


@pytest.mark.parametrize("name", SHARES)
def test_no_event_is_not_certainty(name: str) -> None:
    estimate = SHARES[name](samples=20)[name]
    assert estimate.value in (0, 1)
    assert estimate.standard_error == pytest.approx(share_error(np.array(0.0), 20))
    assert estimate.standard_error == pytest.approx(0.0629, abs=1e-4)


@pytest.mark.parametrize("seed", [2, 3])
def test_a_rare_event_does_not_end_the_run(seed: int) -> None:
    """0 of the first 256 rows are saturated; the share is 0.00258 (1000000 rows). It stopped there."""
    options = {"head_dim": 4, "n": 16, "law": "unscaled", "rng": seed}
    assert mc.softmax_saturation(samples=256, **options).value == 0
    result = mc.softmax_saturation(target_error=0.0004, **options)
    assert result.samples > 5000
    assert abs(result.value - 0.00258) < 4 * result.standard_error
    assert 0.0002 < result.standard_error <= 0.0004
    assert result.target_reached is True


def test_a_result_says_that_its_target_was_missed() -> None:
    easy, hard = (
        mc.max_cosine([8, 64], 4, target_error=error, max_samples=600, rng=0) for error in (0.1, 1e-9)
    )
    assert easy.target_reached.tolist() == [True, True]
    assert hard.target_reached.tolist() == [False, False]
    assert [row["target_reached"] for row in hard.rows()] == [False, False]
    assert "target_error=1e-09 not reached in 2 of 2" in repr(hard)
    assert "not reached" not in repr(easy)
    fixed = mc.max_cosine(8, 4, samples=10, rng=0)
    assert fixed.target_reached is None
    assert "target_reached" not in fixed.rows()[0]
    pytest.importorskip("xarray")
    assert hard.to_xarray().attrs["target_error"] == 1e-9
    assert "target_error" not in fixed.to_xarray().attrs


def test_the_command_says_it_too(capsys: Any) -> None:
    arguments = ["mc", "max_cosine", "--n", "8", "64", "--target-error", "1e-9", "--max-samples", "600"]
    assert main([*arguments, "--json"]) == 0
    captured = capsys.readouterr()
    assert captured.err == (
        "attnscale: --target-error 1e-09 was not reached in 2 of 2 rows within 600 samples, "
        "the limit set by --max-samples\n"
    )
    report = json.loads(captured.out)
    assert report["target_error"] == 1e-9
    assert [row["target_reached"] for row in report["rows"]] == [False, False]
    assert main(["mc", "max_cosine", "--n", "8", "--target-error", "0.1"]) == 0
    assert capsys.readouterr().err == ""


def test_the_command_prints_no_error_of_0(capsys: Any) -> None:
    arguments = ["softmax_saturation", "--head-dim", "4", "--n", "16", "--laws", "unscaled", "--seed", "2"]
    assert main(["mc", *arguments, "--samples", "256"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].split()[-3:] == ["0.0000", "0.0055", "256"]


def test_samples_that_are_rounded_up_are_named(capsys: Any) -> None:
    arguments = ["mc", "dot_product_variance", "--head-dim", "4", "--seed", "0", "--samples"]
    assert main([*arguments, "2000"]) == 0
    captured = capsys.readouterr()
    assert captured.out.splitlines()[-1].split()[-1] == "2048"
    assert captured.err == "attnscale: --samples 2000 was rounded up to 2048: pairs come in blocks of 64\n"
    assert main([*arguments, "2048"]) == 0
    assert capsys.readouterr().err == ""
