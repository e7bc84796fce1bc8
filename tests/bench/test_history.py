# SPDX-License-Identifier: BSD-3-Clause
"""The history of speed: a line a run, and the table that the documentation makes of it."""

from __future__ import annotations

import json
import re
import subprocess
from functools import partial
from pathlib import Path

import attnscale_bench as bench
import pytest
from attnscale_bench import _machine
from attnscale_bench._rows import Row, Unit, at_least
from attnscale_bench._timing import Estimate
from bench import main

ROOT = Path(__file__).resolve().parents[2]
HISTORY = ROOT / "benchmarks" / "history.jsonl"

if not HISTORY.exists():
    pytest.skip("not a source tree", allow_module_level=True)


def report(forward: float = 0.81234567, *, disturbed: bool = False) -> bench.Report:
    """A small run that measured nothing."""
    rows = [
        Row("forward_64", "forward", Unit.SHARE, Estimate(forward, 0.01), disturbed=disturbed),
        Row("forward_64_torch", "faster", Unit.RATIO, Estimate(1.5, 0.02), at_least(1)),
        Row("import", "import", Unit.MILLISECONDS, Estimate(0.02, 0.0)),
    ]
    return bench.Report(_machine.describe_machine(1), {"cases": ["forward_64"], "rounds": 3}, {}, rows)


def measured(made: bench.Report, *_: object, **__: object) -> bench.Report:
    """A run of the benchmark that is made up."""
    return made


def test_the_command_appends_a_line_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "history.jsonl"
    for made in (report(), report(0.5, disturbed=True)):
        monkeypatch.setattr(bench, "run", partial(measured, made))
        assert main(["--history", str(file)]) == 0
    first, second = bench.read_history(file)
    assert first["rows"] == {"forward_64": ["share", 0.8123, 0.01], "forward_64_torch": ["ratio", 1.5, 0.02]}
    assert first["disturbed"] == []
    assert second["disturbed"] == ["forward_64"]
    assert first["cpu"] == _machine.cpu_model()
    assert first["commit"] == bench.commit_of()
    assert "seconds" not in file.read_text(encoding="utf-8")


def test_a_run_of_times_alone_leaves_no_line(tmp_path: Path) -> None:
    file, run = tmp_path / "history.jsonl", report()
    times = bench.Report(run.machine, run.settings, {}, run.rows[2:])
    assert not bench.append_history(times, file, commit=None)
    assert not file.exists()


def test_the_commit_says_whether_sources_have_changed(tmp_path: Path) -> None:
    assert bench.commit_of(tmp_path) is None
    (tmp_path / "python").mkdir()
    (tmp_path / "python" / "a.py").write_text("a = 1\n")
    git = ("git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@example.org")
    for words in (("init", "-q"), ("add", "-A"), ("commit", "-qm", "a")):
        subprocess.run((*git, *words), check=True)
    clean = bench.commit_of(tmp_path)
    assert re.fullmatch(r"[0-9a-f]{8}", clean or "")
    (tmp_path / "history.jsonl").write_text("{}\n")
    assert bench.commit_of(tmp_path) == clean
    (tmp_path / "python" / "a.py").write_text("a = 2\n")
    assert bench.commit_of(tmp_path) == f"{clean}+"


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "_ext"))
    import _speed_history

    return _speed_history


def test_the_table_has_the_newest_run_first(tables, tmp_path: Path) -> None:
    file = tmp_path / "history.jsonl"
    bench.append_history(report(), file, commit="0123abcd")
    bench.append_history(report(0.5, disturbed=True), file, commit=None)
    head, _, *rows = tables.speed_history(file).splitlines()
    assert len(rows) == 2
    assert {line.count("|") for line in (head, *rows)} == {head.count("|")}
    assert ", no commit | " in rows[0]
    assert "| 50.0 % +- 1.0 %* |" in rows[0]
    assert ", 0123abcd | " in rows[1]
    assert "| 81.2 % +- 1.0 % |" in rows[1]
    assert "| 1.50x +- 0.02x |" in rows[1]
    assert rows[1].count("| - ") == len(tables.COLUMNS) - 2


def test_columns_are_rows_of_the_benchmark(tables) -> None:
    kept = json.loads((ROOT / "benchmarks" / "baseline.json").read_text(encoding="utf-8"))["rows"]
    assert set(tables.COLUMNS.values()) <= set(kept)


def test_stored_lines_can_be_shown(tables) -> None:
    runs = bench.read_history(HISTORY)
    assert runs
    assert [run["date"] for run in runs] == sorted(run["date"] for run in runs)
    assert len(tables.speed_history().splitlines()) == 2 + min(len(runs), tables.MOST)
