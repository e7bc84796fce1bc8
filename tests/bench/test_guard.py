# SPDX-License-Identifier: BSD-3-Clause
"""The guard against lost speed and the table against other packages, from made-up rows."""

from __future__ import annotations

import json
import re
from pathlib import Path

import attnscale_bench as bench
import pytest
from attnscale_bench import _machine
from attnscale_bench._rows import Row, Unit, at_least, at_most, skipped
from attnscale_bench._timing import Estimate
from bench import main

ROOT = Path(__file__).resolve().parents[2]

OLD = {
    "share": (Unit.SHARE, Estimate(0.80, 0.01), None),
    "over": (Unit.RATIO, Estimate(2.0, 0.05), at_most(3)),
    "faster": (Unit.RATIO, Estimate(2.0, 0.05), at_least(1)),
    "extra": (Unit.EXTRA, Estimate(0.02, 0.01), None),
    "time": (Unit.MILLISECONDS, Estimate(2.0, 0.0), at_most(3)),
    "unjudged": (Unit.RATIO, Estimate(2.0, 0.0), None),
}


def report(spread=None, samples=None, **values):
    """A run with these values in place of those of OLD."""
    rows = [
        Row(
            name,
            f"  row {name}",
            unit,
            Estimate(values.get(name, old.value), old.spread if spread is None else spread),
            target,
            samples=(samples or {}).get(name, {}),
        )
        for name, (unit, old, target) in OLD.items()
    ]
    settings = {"cases": ["overhead"], "rounds": 3}
    return bench.Report(_machine.describe_machine(1), settings, {}, rows)


@pytest.fixture
def before(tmp_path):
    path = tmp_path / "baseline.json"
    path.write_text(bench.keep(report()), encoding="utf-8")
    return bench.read_baseline(path)


def fallen(after, before):
    return {change.row.name for change in bench.compare(after, before) if change.fell}


def test_a_file_keeps_shares_and_ratios_and_no_time(before):
    assert set(before.rows) == {"share", "over", "faster", "extra"}
    assert before.rows["share"] == Estimate(0.80, 0.01)
    assert before.machine["cpu"] == _machine.cpu_model()
    assert before.cases == ["overhead"]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, set()),
        ({"share": 0.777, "over": 2.099, "faster": 1.901, "extra": 0.049}, set()),
        ({"share": 0.775}, {"share"}),
        ({"over": 2.11}, {"over"}),
        ({"faster": 1.89}, {"faster"}),
        ({"extra": 0.052}, {"extra"}),
        ({"share": 1.0, "over": 1.0, "faster": 4.0, "extra": -0.2}, set()),
        ({"time": 9.0, "unjudged": 9.0}, set()),
    ],
)
def test_a_row_fell_if_it_is_worse_by_more_than_its_scatter(before, values, expected):
    assert fallen(report(**values), before) == expected


def test_the_text_names_what_fell_what_is_missing_and_another_machine(before):
    text = bench.describe(report(share=0.5), before)
    assert "1 of 4 rows fell by more than their scatter." in text
    assert re.search(r"row share +80\.0 % \+- 1\.0 % +50\.0 % \+- 1\.0 %", text)
    assert "another machine" not in text
    other = before._replace(machine={**before.machine, "cpu": "Other"}, rows={"gone": Estimate(1.0, 0.0)})
    text = bench.describe(report(), other)
    assert "0 of 0 rows" in text
    assert "Not measured now: gone." in text
    assert "of another machine (Other, " in text


# ---- the command -------------------------------------------------------------------------------


@pytest.fixture
def made_up(monkeypatch):
    """Replace the benchmark by these rows; the arguments that it was called with."""
    asked = []

    def install(result):
        def run(names, **options):
            asked.append((names, options["sets"]))
            return result

        monkeypatch.setattr(bench, "run", run)
        return asked

    return install


def test_the_command_keeps_a_run_and_fails_if_a_later_one_is_slower(tmp_path, made_up, capsys):
    file = tmp_path / "kept.json"
    made_up(report())
    assert main(["--keep", str(file)]) == 0
    assert set(json.loads(file.read_text())["rows"]) == {"share", "over", "faster", "extra"}
    asked = made_up(report())
    assert main(["--against", str(file)]) == 0
    assert asked[-1] == (["overhead"], [])
    assert "0 of 4 rows fell" in capsys.readouterr().out
    made_up(report(share=0.6, over=9.0))
    assert main(["decode", "--against", str(file)]) == 1
    assert asked[-1] == (None, ["decode"])
    captured = capsys.readouterr()
    assert "2 of 4 rows fell" in captured.out
    assert captured.err == "attnscale: error: worse by more than the scatter (--against): over, share\n"


# ---- the table against other packages ----------------------------------------------------------


def peers():
    """A report with two lengths of attention, and one other row."""
    samples = {"peak": [1.0, 1.0], "attnscale": [2.0, 2.0], "torch": [4.0, 4.0], "jax": [9.0, 11.0]}
    rows = [
        Row(f"peers_float32_{n}{name}", "", Unit.SHARE, Estimate(share / n, 0.0), samples=samples)
        for n in (16, 64)
        for name, share in (("", 8.0), ("_torch", 4.0), ("_jax", 2.0))
    ]
    rows.append(skipped("peers_float32_16_ncnn", "", Unit.SHARE, "ncnn is not installed"))
    rows.append(Row("solve", "", Unit.RATIO, samples={"attnscale": [1.0, 1.0], "scikit-learn": [50.0, 52.0]}))
    return bench.Report(_machine.describe_machine(1), {"rounds": 2}, {}, rows)


def test_the_command_writes_table_and_figure(tmp_path, made_up, capsys):
    asked = made_up(peers())
    assert main(["--report", str(tmp_path / "new")]) == 0
    assert asked[-1] == (list(bench.PEER_CASES), [])
    table = (tmp_path / "new" / "peers.md").read_text(encoding="utf-8")
    assert "| attention, float32 | n = 16 | n = 64 |\n|---|---|---|\n| attnscale" in table
    assert re.search(
        r"\| attnscale.*, attention \| 50 % \| 12 % \|\n\| PyTorch .* %, 2x \| 6 %, 2x \|\n\| JAX", table
    )
    assert "is 2 % of it in the median, 5 % at most" in table
    assert re.search(r"\n- ncnn.*, SDPA, float32: `ncnn is not installed`\n", table)
    assert re.search(r"\| a scale for each of 5000 rows, .* \| scikit-learn .* \| 51 \| 0.5 \|", table)
    assert (tmp_path / "new" / "peers.svg").read_text(encoding="utf-8").startswith("<?xml")
    assert "peers.md" in capsys.readouterr().out
