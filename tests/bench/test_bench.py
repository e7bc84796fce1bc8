# SPDX-License-Identifier: BSD-3-Clause
"""The benchmark: ratios of known times, complete reports, plausible yardsticks. No time is asserted."""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from pathlib import Path

import attnscale as at
import attnscale_bench as bench
import numpy as np
import pytest
from attnscale import reference
from attnscale_bench import (
    _attention_cases,
    _gradient_cases,
    _machine,
    _normalizer_cases,
    _peers,
    _process_cases,
    _run,
    _session,
    _solve_cases,
    _tensor_cases,
    _variant_cases,
)
from attnscale_bench._rows import Row, Unit, at_least, at_most, skipped
from attnscale_bench._session import Measured, Session, random_heads
from attnscale_bench._timing import Estimate, Samples, Stopwatch, estimate, interleave
from bench import main

ROOT = Path(__file__).resolve().parents[2]


class FakeClock:
    """Time that passes only when somebody works or sleeps."""

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
    """Every sample is one call, and nobody waits: how fast it is does not matter here."""

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


def test_a_clock_that_stands_still_does_not_hang(monkeypatch):
    monkeypatch.setattr("attnscale_bench._timing._MOST_CALLS", 10)
    samples = measure(FakeClock(), {"free": lambda: None})
    assert samples.seconds("free") == 0.0


def test_ratio_is_taken_round_by_round():
    # The machine is twice as slow in the second round: no round saw another ratio than 3.
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


def test_row_of_a_measurement():
    row = measured().row("x", "what", Unit.RATIO, lambda m: m.speedup("torch"), at_least(1.2), flops=200.0)
    assert (row.estimate, row.seconds, row.share) == (Estimate(1.5, 0.0), 4.0, 0.5)
    assert row.others == {"torch": 6.0}
    assert row.meets_target
    assert not row.disturbed


def test_row_says_that_others_used_the_cores():
    row = measured(cores=0.5).row("x", "what", Unit.SHARE, lambda m: m.share_of_peak(200.0), flops=200.0)
    assert row.disturbed
    assert row.cores == 0.5
    assert row.on_cpu_time == 1.0


@pytest.mark.parametrize(
    ("target", "value", "meets"),
    [
        (at_least(0.82), 0.82, True),
        (at_least(0.82), 0.81, False),
        (at_most(2), 2, True),
        (at_most(2), 3, False),
    ],
)
def test_target(target, value, meets):
    assert Row("x", "what", Unit.SHARE, Estimate(value, 0.0), target).meets_target is meets


def test_no_verdict_without_target_or_value():
    assert Row("x", "what", Unit.SHARE, Estimate(1.0, 0.0)).meets_target is None
    assert skipped("x", "what", Unit.RATIO, "torch is not installed", at_least(1)).meets_target is None


@pytest.mark.parametrize(
    ("unit", "value", "text"),
    [
        (Unit.SHARE, 0.8234, "82.3 %"),
        (Unit.EXTRA, 0.012, "+1.2 %"),
        (Unit.RATIO, 1.234, "1.23x"),
        (Unit.MICROSECONDS, 8.12e-6, "8.1 us"),
        (Unit.MILLISECONDS, 0.0172, "17.2 ms"),
        (Unit.MEGABYTES, 4.2e6, "4.2 MB"),
    ],
)
def test_units(unit, value, text):
    assert unit.text(value) == text


def test_report_marks_misses():
    good = measured().row(
        "good", "one", Unit.SHARE, lambda m: m.share_of_peak(200.0), at_least(0.4), flops=200.0
    )
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


# ---- yardsticks --------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_peak_counts_its_operations(dtype):
    one, two = (_machine.FmaPeak(dtype, threads) for threads in (1, 2))
    assert two.flops == 2 * one.flops == 2 * one()
    single = _machine.FmaPeak("float32", 1)
    # A vector holds half as many float64.
    assert single.flops == (2 if dtype == "float64" else 1) * one.flops


def test_read_counts_what_it_reads():
    array = np.ones(3 << 20, np.uint8)
    read = _machine.MemoryRead(array, 2)
    assert array.nbytes - 64 - 1024 <= read.bytes <= array.nbytes
    assert _machine.MemoryRead(np.empty(0, np.uint8), 1).bytes == 0


def test_yardsticks_are_plausible(brief):
    found = _run._yardsticks(Session(at.get_num_threads(), rounds=2, quick=True))
    assert set(found) == {"float32", "float64", "read"}
    # From an emulated core to a large server.
    assert all(1e6 < each.value < 1e15 for each in found.values())


def test_cpu_model(tmp_path):
    file = tmp_path / "cpuinfo"
    file.write_text("processor : 0\nmodel name\t: Some CPU @ 2 GHz\nmodel name\t: again\n")
    assert _machine.cpu_model(file) == "Some CPU @ 2 GHz"
    assert _machine.cpu_model(tmp_path / "none")


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


def test_threads_are_restored():
    before = at.get_num_threads()
    with _peers.limit_threads(before + 1, None):
        assert at.get_num_threads() == before + 1
    assert at.get_num_threads() == before


def test_without_torch(brief, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    assert _peers.load_torch() is None
    rows = _attention_cases.forward(
        Session(1, rounds=1, quick=True), "x", n=32, head_dim=8, share=at_least(0), against_torch=at_least(1)
    )
    assert [row.meets_target for row in rows] == [True, None]
    assert rows[1].note == "torch is not installed"


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


def test_bench_table(brief, capsys):
    assert main(["--repeat", "1", "--only", "overhead"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert f"level     {at.simd_level()} (of " in captured.out
    assert re.search(r"smallest call, 1 x 8 x 16 .* us .*<= 15 us", captured.out)


def test_ctrl_c_keeps_the_cases_that_are_finished(brief, capsys, monkeypatch):
    def interrupt(session, name):
        raise KeyboardInterrupt

    monkeypatch.setitem(bench.CASES, "window", bench.Case(interrupt))
    arguments = ["--repeat", "1", "--only", "overhead", "window"]
    assert main([*arguments, "--csv", "-"]) == 130
    captured = capsys.readouterr()
    assert captured.err == "attnscale: interrupted: this is what was finished\n"
    rows = list(csv.DictReader(io.StringIO(captured.out)))
    assert rows
    assert all(row["name"].startswith("overhead") for row in rows)


def test_bench_lists_its_sets_and_cases(capsys):
    assert main(["--list"]) == 0
    printed = capsys.readouterr().out
    for name, (question, cases) in bench.SETS.items():
        assert re.search(rf"^{name} +{re.escape(question)}\n +{' '.join(cases)}$", printed, re.MULTILINE)


def test_every_case_is_in_one_set():
    assert sorted(case for chosen in bench.SETS.values() for case in chosen.cases) == sorted(bench.CASES)


def test_the_page_has_every_question():
    page = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    for name, (question, _) in bench.SETS.items():
        assert f"| `{name}` | {question} |" in page


def test_a_set_is_its_cases():
    chosen = _run._choose(["overhead", "import"], ("decode", "short"), full=False)
    assert chosen == [*bench.SETS["decode"].cases, *bench.SETS["short"].cases, "import"]
    assert _run._choose(None, (), full=True) == [x for x, case in bench.CASES.items() if not case.asked]


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


def test_a_process_that_fails_is_an_error():
    with pytest.raises(RuntimeError, match=r"a process of the benchmark failed: .*boom"):
        _process_cases._python(Session(1), "-c", "raise SystemExit('boom')")


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_memory_growth_is_that_of_this_call(capsys):
    _process_cases.print_memory_growth(2048)
    grown, seconds = json.loads(capsys.readouterr().out)
    assert grown >= 0
    assert seconds > 0


@pytest.mark.parametrize(
    "case", [_process_cases.import_time, _process_cases.interrupted, _solve_cases.expected]
)
def test_times_of_one_row(case):
    (row,) = case(Session(1, rounds=1, quick=True), "name")
    assert row.estimate.value > 0
    assert row.target.sense == "<="


def short_heads(heads, n, head_dim, dtype=np.float32):
    return random_heads(heads, max(8, n // 8), head_dim, dtype)


@pytest.mark.slow
def test_quick_run_covers_every_quick_case(brief, capsys, monkeypatch):
    """With rows of an eighth of the length."""
    for cases in (
        *(_attention_cases, _gradient_cases, _normalizer_cases),
        *(_solve_cases, _tensor_cases, _variant_cases),
    ):
        monkeypatch.setattr(cases, "random_heads", short_heads)
    assert main(["--repeat", "1", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    names = {row["name"] for row in report["rows"]}
    quick = [name for name, case in bench.CASES.items() if not case.slow and not case.asked]
    assert report["settings"]["cases"] == quick
    for case in quick:
        assert any(name.startswith(case) for name in names), case
    assert all(row["value"] is not None or row["note"] for row in report["rows"])


def test_a_terminal_sees_each_row_when_it_is_measured(brief, capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert main(["--repeat", "1", "--only", "overhead", "overhead"]) == 0
    captured = capsys.readouterr()
    rows = [
        line for line in captured.err.split("\n") if re.search(r"smallest call, 1 x 8 x 16.*: .* us", line)
    ]
    assert len(rows) >= 1
    assert captured.out.startswith("attnscale ")
