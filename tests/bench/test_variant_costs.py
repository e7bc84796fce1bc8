# SPDX-License-Identifier: BSD-3-Clause
"""Costs of the variants against n: counts, slopes, crossovers, and the command."""

from __future__ import annotations

import json

import attnscale_bench as bench
import growth
import numpy as np
import pytest
import variant_costs
from attnscale_bench import CallCost, _costs, _verbs
from attnscale_bench._peers import load_torch


def costs(name, power, factor, lengths=(1024, 2048, 4096)):
    return [CallCost(name, n, factor * n**power, 64 * n) for n in lengths]


def test_slopes_are_powers():
    assert bench.slope(costs("a", 2, 1e-9)) == pytest.approx(2)
    assert bench.slope(costs("a", 2, 1e-9), "bytes") == pytest.approx(1)
    assert np.isnan(bench.slope(costs("a", 2, 1e-9, (1024,))))
    skipped = [*costs("a", 1, 1e-9), CallCost("a", 8192, None, None, "too long")]
    assert bench.slope(skipped) == pytest.approx(1)


def test_crossover_is_where_the_lines_meet():
    exact, linear = costs("exact", 2, 1e-9), costs("linear", 1, 3e-6)
    assert bench.crossover(exact, linear) == pytest.approx(3000)
    assert bench.crossover(exact, costs("linear", 1, 1e-7)) == 1024  # from the first length on
    assert bench.crossover(exact, costs("linear", 1, 1e-3)) is None
    assert bench.crossover([], linear) is None


def test_a_process_counts_what_a_variant_takes():
    """Efficient attention holds only its result; the matrix of weights would be n^2."""
    n = 65536
    found = bench.run_variants([n], ["efficient"], head_dim=64)[0]
    result = n * 64 * 4
    assert result * 0.9 < found.bytes < 2 * result
    assert found.seconds > 0


def test_local_and_global_attention_merges_in_place():
    """Memory is below that of two outputs, or of one in float64."""
    n = 16384
    found = bench.run_variants([n], ["local + global"], heads=4, head_dim=64)[0]
    assert found.bytes < 1.8 * 4 * n * 64 * 4


def test_what_would_take_too_long_is_left_out_and_says_so(monkeypatch):
    monkeypatch.setattr(_costs, "_in_a_process", lambda of, n, shape: json.dumps([n, 1e-6 * n**2 / 1000]))
    found = bench.run_variants([1024, 16384, 131072], ["exact"], limit=1.0)
    assert [cost.seconds is None for cost in found] == [False, False, True]
    assert found[2].why == "it would take more than 1 s"


def test_the_script_prints_slopes_and_json(capsys, monkeypatch, tmp_path):
    power = {"exact": 2, "efficient": 1}
    factor = {"exact": 1e-9, "efficient": 3e-6}
    monkeypatch.setattr(
        _costs,
        "_in_a_process",
        lambda of, n, shape: json.dumps([64 * n, factor[of[1]] * n ** power[of[1]]]),
    )
    arguments = ["--variants", "exact", "efficient", "--n", "1024", "2048", "4096"]
    assert variant_costs.main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    exact = "exact 1.05 4.19 16.8 2.00 0.0655 0.131 0.262 1.00"
    efficient = "efficient 3.07 6.14 12.3 1.00 0.0655 0.131 0.262 1.00 3000"
    assert [line.split() for line in lines[1:3]] == [exact.split(), efficient.split()]
    pytest.importorskip("matplotlib")
    figure = tmp_path / "costs.png"
    assert variant_costs.main([*arguments, "--json", "--plot", str(figure)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["summary"]["efficient"]["faster_from"] == pytest.approx(3000)
    assert len(found["costs"]) == 6
    assert figure.stat().st_size > 1000


def test_the_table_of_growth_has_slopes_and_ratios(monkeypatch, tmp_path):
    factor = {"attention": 1e-7, "PyTorch's attention": 4e-7, "attention, causal": 1e-9}
    monkeypatch.setattr(
        _costs,
        "_in_a_process",
        lambda of, n, shape: json.dumps([3 << 20, factor[of[1]] * n ** (1 + (of[1] == "attention, causal"))]),
    )
    names = [*factor]
    monkeypatch.setattr(
        "sys.argv", ["growth.py", str(tmp_path), "--only", *names, "--n", "16384", "65536", "1048576"]
    )
    growth.main()
    lines = [line.split(" | ") for line in (tmp_path / "growth.md").read_text(encoding="utf-8").splitlines()]
    cells = {row[0].strip("| "): row[1:] for row in lines if len(row) > 1}
    assert cells["256 queries"] == ["16k", "64k", "1M", "slope", "MiB", "over PyTorch |"]
    assert cells["`attention`"] == ["1.6", "6.6", "105", "1.00", "3", "0.25 |"]
    assert cells["`attention`, causal"] == ["268", "4,295", "-", "2.00", "3", " |"]


def test_every_call_of_the_table_runs():
    for name, prepare in _verbs.CALLS.items():
        if not name.startswith("PyTorch") or load_torch():
            assert prepare(1, 128, 64)() is not None
