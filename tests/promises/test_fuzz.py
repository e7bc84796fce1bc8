# SPDX-License-Identifier: BSD-3-Clause
"""Random calls at every level are right, and the fuzzer finds planted faults."""

from __future__ import annotations

from inspect import signature
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attnscale as at
import numpy as np
import pytest
from attnscale import reference

from tools.fuzz import build, check_attend, check_linear, draw, expect, oracle, run, subjects
from tools.fuzz.bounds import weigh
from tools.fuzz.mutants import MUTANTS, Mutant
from tools.fuzz.worker import run_case

# About 6 s of one core for all levels together.
CALLS = 4000
SEED = 20


@pytest.mark.parametrize("level", run.levels_of_this_machine())
def test_random_calls(level: str) -> None:
    levels = run.levels_of_this_machine()
    each = CALLS // len(levels)
    found = run.fuzz(seed=SEED, calls=each, levels=[level], first=levels.index(level) * each, show=False)
    assert not found.faults, "\n".join(found.texts[:10])
    assert found.calls == {level: each}
    assert set(found.subjects) == set(subjects.subjects())
    # The summary names the largest error of each subject whose results are numbers.
    named = {part.split()[0] for part in found.lines()[-1].split(": ")[1].split("), ")}
    assert named == set(subjects.subjects()) - {"arguments"}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name.replace(" ", "-"))
def test_a_planted_fault_is_found(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    right = getattr(mutant.place, mutant.attribute)
    wrong = mutant.change(right)
    for index in range(mutant.calls):
        monkeypatch.setattr(mutant.place, mutant.attribute, wrong)
        found = run_case(SEED, index, mutant.subject)[1].faults
        monkeypatch.setattr(mutant.place, mutant.attribute, right)
        if found and not run_case(SEED, index, mutant.subject)[1].faults:  # it is the mutant's
            return
    pytest.fail(f"not found in {mutant.calls} calls: {mutant.name}")


def test_a_case_is_the_same_every_time() -> None:
    for index in range(50):
        assert subjects.case(SEED, index) == subjects.case(SEED, index)
        assert eval(repr(subjects.case(SEED, index))) == subjects.case(SEED, index)


def test_every_option_is_drawn() -> None:
    drawn = {option for i in range(1000) for option in subjects.case(1, i, "attend")["options"]}
    options = {*signature(at.attention).parameters} - {"query", "key", "value"}
    assert options - drawn == {"dims", "out", "num_threads"}


def test_the_oracle_agrees_with_the_twins() -> None:
    """The oracle and the twin in float64 give equal numbers."""
    agreed = 0
    for index in range(300):
        case = subjects.case(SEED, index, "attend")
        if not _is_tame(case):
            continue
        rng = draw.generator(SEED, index, 1)
        arrays, options = build.inputs(case, rng), build.options(case, rng)
        names = at.normalizers.get(options["normalizer"]).statistics
        with np.errstate(all="ignore"):
            truth = check_attend.expected(arrays, arrays["v"], options, names, case)
            twin = reference.attention_statistics(*(arrays[n] for n in "qkv"), **options)
        for name, (wanted, _) in truth.numbers.items():
            np.testing.assert_allclose(
                np.asarray(wanted, np.float64),
                getattr(twin, name),
                rtol=1e-8,
                atol=1e-9,
                err_msg=f"{index} {name}",
            )
        agreed += 1
    assert agreed > 30


def _is_tame(case: Any) -> bool:
    """Whether all numbers are ordinary, so that float64 is enough."""
    profiles = {each["profile"] for each in case["arrays"].values()}
    mask = case["options"].get("attn_mask", {"profile": "normal"})["profile"]
    smooth = case["options"]["normalizer"][0] in ("name", "Sigmoid", "Sink", "SoftmaxN", "Sparsemax", "TopK")
    return profiles | {mask} <= {"normal", "peaked", "tiny"} and case["poison"] is None and smooth


def test_bounds_where_rounding_is_larger_than_the_gap() -> None:
    """Scores 69 apart, each within 200: either may have all the weight. Or 1e308 apart, within 1e294: no."""
    form = oracle.arithmetic(np.zeros(1))
    for gap, off, error in ((69.0, 200.0, 1.0), (1e308, 1e294, 0.0)):
        s, seen = np.array([[gap, 0.0, -gap / 2]], form.wide), np.ones((1, 3), bool)
        scores = SimpleNamespace(s=s, d=np.full((1, 3), off), seen=seen, free=np.zeros(1, bool))
        with np.errstate(all="ignore"):
            row = weigh(scores, at.normalizers.get("softmax"), form)
        np.testing.assert_allclose(row.error[0, :2], error, atol=1e-14)


def test_an_overflowing_product_may_break_a_row_of_scale_zero() -> None:
    q, k = np.full((1, 4), 1e200), np.full((2, 4), 1e200)
    with np.errstate(all="ignore"):
        scores = oracle.scored(q, k, {"scale": 0.0}, oracle.arithmetic(q, k), 4.0)
    assert scores.may_break.all()


def test_bounds_are_numbers_where_scores_leave_float64() -> None:
    q, k = np.full((1, 1), 1e200), np.full((2, 1), -1e120)
    form = oracle.arithmetic(q, k)
    with np.errstate(all="ignore"):
        scores = oracle.scored(q, k, {}, form, 4.0)
        row = weigh(scores, at.normalizers.get("relu"), form)
        numbers = expect.bounds_of(row, scores, form, ("max_weight", "concentration"))
    assert all(np.asarray(limit == 0).all() for _, limit in numbers.values())


@pytest.mark.parametrize("divide", ["n", "sum"])
def test_errors_of_the_smallest_scores_reach_large_values(divide: Any) -> None:
    """Scores of 100 denormals, each off by a few: beside a value of 1e300 that shows, and more would."""
    q, k = np.ones((1, 1)), np.full((31, 1), 100 * 2.0**-1074)
    form = oracle.arithmetic(q, k)
    with np.errstate(all="ignore"):
        scores = oracle.scored(q, k, {}, form, 4.0)
        row = weigh(scores, at.normalizers.ReLU(divide), form)
        value = np.full((31, 1), form.wide(1e300))
        wanted, limit, *_ = expect.output(row, scores.seen, value, scores.broken, form, False)
    assert not row.free.any()
    assert 0.01 * wanted < limit < 0.5 * wanted


def test_a_row_of_exponentials_is_relative_to_the_keys_that_it_sees() -> None:
    """Logarithms 26000 apart: the row that sees one key has all of its weight there."""
    seen = np.array([[True, False], [True, True]])
    log = check_linear.log_products(np.zeros((2, 3)), np.array([[-104000.0] * 3, [-78000.0] * 3]), seen)
    np.testing.assert_array_equal(np.exp(log), [[1, 0], [0, 1]])


def test_the_bound_of_a_mean_covers_sums_key_by_key() -> None:
    """Sum products further than 2^490 from a center, as the core does."""
    form, n = oracle.arithmetic(np.zeros(1)), 4096
    x = 1e153 * np.random.default_rng(SEED).random((200, n))
    center, total = x.max(-1), np.zeros(200)
    for key in x.T:
        total += key - center
    w = np.full(x.shape, form.wide(1) / n)
    mean, _, limit, _ = expect.moments(w, 0.0 * x, x.astype(form.wide), 0.0 * x, x > 0, form)
    error = np.abs(center + total / n - mean)
    assert (error < limit).all()
    assert (error > 16 * form.eps * np.abs(center - mean)).any()  # what was thought to be enough
    assert (limit < 1e-11 * np.abs(mean)).all()


def test_a_measured_scale_may_be_any_that_rounding_allows() -> None:
    """Three keys of 3e9 less than a rounding apart, in float32: entropy 0, ln 3 or any between."""
    q, k = np.ones((1, 1), np.float32), np.array([[3e9], [3e9], [3e9 + 256]], np.float32)
    with np.errstate(all="ignore"):
        scores = oracle.scored(q, k, {"scale": "adaptive_temperature"}, oracle.arithmetic(q, k), 4.0)
    law = at.laws.AdaptiveTemperature()
    wanted = 3e9 * float(law.scale(np.log(3), 1))
    assert abs(float(scores.s[0, 0]) - wanted) < scores.d[0, 0] < 3e9


# Code that a process runs before its fifth call, added to sitecustomize.py.
_AT_THE_FIFTH = """
import os, time
from numpy import random
class Fatal(random.PCG64):
    def __init__(self, seed):
        if list(seed)[:2] == [3, 5]:
            {does}
        super().__init__(seed)
random.PCG64 = Fatal
"""


def test_a_crash_names_its_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").write_text(_AT_THE_FIFTH.format(does="os.abort()"))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = run.fuzz(seed=3, calls=8, levels=[at.simd_level()], only="arguments", show=False)
    crash = [text for text in found.texts if text.startswith("CRASH")]
    assert len(crash) == 1, found.texts
    assert "SIGABRT" in crash[0]
    assert f"--case 3:5 --level {at.simd_level()} --only arguments" in crash[0]
    assert sum(found.calls.values()) >= 6  # the calls after it are made too
