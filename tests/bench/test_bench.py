# SPDX-License-Identifier: BSD-3-Clause
"""The benchmark: ratios of known times, complete reports, plausible yardsticks; times are not asserted."""

from __future__ import annotations

import json
import re
from pathlib import Path

import attnscale_bench as bench
import numpy as np
import pytest
from attnscale import reference
from attnscale_bench import (
    _attention_cases,
    _gradient_cases,
    _in_model_cases,
    _machine,
    _normalizer_cases,
    _peers,
    _run,
    _session,
    _solve_cases,
    _tensor_cases,
    _variant_cases,
)
from attnscale_bench._rows import Row, Unit, at_least, skipped
from attnscale_bench._session import Measured, random_heads
from attnscale_bench._timing import Estimate, Samples, Stopwatch, estimate, interleave
from bench import main

ROOT = Path(__file__).resolve().parents[2]


class FakeClock:
    """A clock that moves only in calls of work and sleep."""

    def __init__(self, cpus=1.0):
        self.wall = self.cpu = 0.0
        self.cpus = cpus
        self.log = []

    def work(self, name, seconds):
        def call():
            self.log.append(name)
            self.wall += seconds
            self.cpu += seconds * self.cpus

        return call

    def sleep(self, seconds):
        self.log.append("sleep")
        self.wall += seconds

    def stopwatch(self):
        return Stopwatch(lambda: self.wall, lambda: self.cpu, self.sleep)


@pytest.fixture
def brief(monkeypatch):
    """Take every sample as one call, without waits, as speed does not matter here."""

    def once(candidates, rounds, *, min_seconds, stopwatch):
        assert min_seconds > 0
        return interleave(candidates, rounds, min_seconds=0.0, pause=0.0, stopwatch=stopwatch)

    for place in (_run, _session):
        monkeypatch.setattr(place, "interleave", once)


def measure(clock, candidates, rounds=3, min_seconds=1.0):
    return interleave(candidates, rounds, min_seconds=min_seconds, stopwatch=clock.stopwatch())


# ---- timing ------------------------------------------------------------------------------------


def test_candidates_take_turns():
    clock = FakeClock()
    measure(clock, {"a": clock.work("a", 2.0), "b": clock.work("b", 1.0)})
    after_warm_up = clock.log[clock.log.index("sleep") :]
    assert after_warm_up == ["sleep", "a", "sleep", "b"] * 3


def test_the_next_candidate_waits_for_threads_that_go_on():
    clock, left = FakeClock(), []

    def sleep(seconds):
        clock.sleep(seconds)
        clock.cpu += left.pop() if left else 0.0

    def leave_something_running():
        clock.work("a", 2.0)()
        left[:] = [0.05, 0.1]

    candidates = {"a": leave_something_running, "b": clock.work("b", 2.0)}
    interleave(candidates, 1, min_seconds=1.0, stopwatch=clock.stopwatch()._replace(sleep=sleep))
    assert clock.log[clock.log.index("sleep") :] == [*["sleep"] * 3, "a", *["sleep"] * 3, "b"]


def test_ratio_and_seconds():
    clock = FakeClock()
    samples = measure(clock, {"slow": clock.work("slow", 3.0), "fast": clock.work("fast", 1.5)})
    assert samples.seconds("slow") == pytest.approx(3.0)
    assert samples.ratio("slow", "fast") == pytest.approx((2.0, 0.0))
    assert samples.cpus("slow") == pytest.approx(1.0)


def test_short_calls_are_repeated_and_averaged():
    clock = FakeClock()
    samples = measure(clock, {"short": clock.work("short", 1e-3)})
    assert samples.seconds("short") == pytest.approx(1e-3)
    assert clock.log.count("short") > 3 * 1000


def test_ratio_is_taken_round_by_round():
    # The machine is twice as slow in the second round; the ratio is 3 in each round.
    samples = Samples({"a": [3.0, 6.0, 3.0], "b": [1.0, 2.0, 1.0]}, {})
    assert samples.ratio("a", "b") == Estimate(3.0, 0.0)


def test_estimate_is_median_and_half_the_quartile_distance():
    assert estimate([5.0, 1.0, 2.0, 3.0, 4.0]) == Estimate(3.0, 1.0)
    assert estimate([7.0]) == Estimate(7.0, 0.0)


# ---- shares and rows ---------------------------------------------------------------------------


def measured(cores=1.0):
    wall = {"peak": [1.0, 2.0, 1.0], "attnscale": [4.0, 8.0, 4.0], "torch": [6.0, 12.0, 6.0]}
    cpu = {name: [2 * cores * seconds for seconds in times] for name, times in wall.items()}
    cpu["attnscale"] = [seconds / 2 for seconds in cpu["attnscale"]]
    return Measured(Samples(wall, cpu), peak_flops=100.0, threads=2)


def test_share_of_peak():
    # 200 operations in 4 s, where the peak does 100 in 1 s.
    assert measured().share_of_peak(200.0) == Estimate(0.5, 0.0)
    assert measured().speedup("torch") == Estimate(1.5, 0.0)


def test_report_marks_misses():
    def share(found):
        return found.share_of_peak(200.0)

    good = measured().row("good", "one", Unit.SHARE, share, at_least(0.4), flops=200.0)
    bad = Row("bad", "two", Unit.RATIO, Estimate(1.1, 0.2), at_least(1.2))
    absent = skipped("absent", "three", Unit.RATIO, "torch is not installed", at_least(1))
    yardsticks = {"float32": Estimate(1e9, 0.0), "read": Estimate(2e9, 0.0)}
    machine = _machine.describe_machine(2)
    text = bench.Report(machine, {"rounds": 3}, yardsticks, [good, bad, absent]).to_text()
    lines = {line.split()[0]: line for line in text.splitlines() if line}
    assert re.search(r"50\.0 % +>= 40 % +ok", lines["one"])
    assert re.search(r"1\.10x +\+- 0\.20x +>= 1\.2x +MISS", lines["two"])
    assert lines["three"].endswith("torch is not installed")
    assert "1 of 2 targets met in 3 rounds." in text
    assert "Disturbed" not in text


# ---- the peers compute the same ----------------------------------------------------------------


def test_peers_agree_with_the_reference():
    q, k, v = np.random.default_rng(1).standard_normal((3, 2, 40, 16), np.float32)
    expected = reference.attention_statistics(q, k, v)
    results = [_peers.numpy_output_and_entropy(q, k, v)]
    fused = [_peers.numpy_attention(q, k, v)]
    torch = _peers.load_torch()
    if torch is not None:
        results.append(tuple(part.numpy() for part in torch.output_and_entropy(q, k, v)()))
        fused.append(torch.attention(q, k, v)().numpy()[0])
    for output, entropy in results:
        assert output.dtype == entropy.dtype == np.float32
        np.testing.assert_allclose(output, expected.output, atol=1e-5)
        np.testing.assert_allclose(entropy, expected.entropy, atol=1e-5)
    for output in fused:
        np.testing.assert_allclose(output, expected.output, atol=1e-5)


# ---- the command -------------------------------------------------------------------------------


def test_bench_json_is_complete(brief, capsys):
    assert main(["--repeat", "2", "--threads", "1", "--json", "--only", "short", "overhead"]) == 0
    report = json.loads(capsys.readouterr().out)
    tiny = ["overhead", "overhead_causal", "overhead_statistics", "overhead_entropy", "overhead_options"]
    assert [row["name"] for row in report["rows"]] == ["short", *tiny]
    assert report["rows"][0]["gflops"] > 0
    assert report["rows"][0]["share"] > 0
    for row in report["rows"]:
        assert row["value"] > 0
        assert row["seconds"] > 0
        assert row["target"]["sense"] in (">=", "<=")
        assert len(row["samples"]["attnscale"]) == len(row["samples"]["peak"]) == 2
        assert {"unit", "spread", "flops", "others", "meets_target", "disturbed", "on_cpu_time"} <= set(row)
    provenance = report["provenance"]
    for name in ("version", "simd_level", "cpu", "cpus", "date", "numpy", "python", "compiler", "flags"):
        assert provenance[name], name
    assert provenance["num_threads"] == 1
    assert report["settings"] == {"cases": ["short", "overhead"], "full": False, "rounds": 2}
    assert all(found["value"] > 0 for found in report["yardsticks"].values())


def test_the_page_has_every_question():
    page = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    for name, (question, _) in bench.SETS.items():
        assert f"| `{name}` | {question} |" in page


def test_every_case_belongs_to_a_question():
    assert {case for of in bench.SETS.values() for case in of.cases} == set(bench.CASES)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "forward"], "there is no case named 'forward'; the cases are forward_64, "),
        (["overhead"], "there is no set of cases named 'overhead'; the sets are forward, short, "),
        (["--threads", "0"], "threads must be at least 1, got 0"),
        (["--repeat", "-1"], "--repeat must be at least 1, got -1"),
    ],
)
def test_bench_answers_bad_input_in_one_line(capsys, arguments, message):
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("attnscale: error: ")
    assert message in error
    assert error.count("\n") == 1


def short_heads(heads, n, head_dim, dtype=np.float32):
    return random_heads(heads, max(8, n // 8), head_dim, dtype)


@pytest.mark.slow
def test_quick_run_covers_every_quick_case(brief, capsys, monkeypatch):
    """Tiled rows have an eighth of the length."""
    attention = (_attention_cases, _gradient_cases, _normalizer_cases)
    for cases in (*attention, _in_model_cases, _solve_cases, _tensor_cases, _variant_cases):
        monkeypatch.setattr(cases, "random_heads", short_heads)
    assert main(["--repeat", "1", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    names = {row["name"] for row in report["rows"]}
    quick = [name for name, case in bench.CASES.items() if not case.slow and not case.asked]
    assert report["settings"]["cases"] == quick
    for case in quick:
        assert any(name.startswith(case) for name in names), case
    assert all(row["value"] is not None or row["note"] for row in report["rows"])
