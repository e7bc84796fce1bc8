# SPDX-License-Identifier: BSD-3-Clause
"""``attnscale report FOLDER``: the plan, parts of one page, and what ends a run."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import attnscale as at
import numpy as np
import pytest
from attnscale.cli import main

Run = Callable[..., str]
SMALL = ("--lengths", "16", "32", "--laws", "log_n", "--causal")


@pytest.fixture
def layers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A folder of three layers of four heads, in a working directory of its own."""
    monkeypatch.chdir(tmp_path)
    data = at.datasets.minilm_qk()
    Path("layers").mkdir()
    for layer in range(3):
        heads = slice(4 * layer, 4 * layer + 4)
        np.savez(f"layers/layer_{layer}.npz", query=data.query[heads, :32], key=data.key[heads, :32])
    return "layers"


def page(path: str) -> str:
    """A page without the time at which it was made."""
    return re.sub(r'"created":"[^"]*"', "", Path(path).read_text(encoding="utf-8"))


def test_parts_make_the_page_that_one_command_makes(layers: str, run: Run) -> None:
    said = run("report", layers, *SMALL, "-o", "whole.html")
    assert said.splitlines()[-1].startswith("Page: whole.html (")
    parted = ("report", layers, *SMALL, "-o", "parts.html", "--store", "store")
    first = run(*parted, "--part", "1/2")
    rest = "the same command without --part measures the rest"
    assert first.splitlines()[-1] == f"No page yet: 8 of 12 heads are measured; {rest}"
    assert not Path("parts.html").exists()
    assert run(*parted, "--part", "2/2").splitlines()[-1].startswith("Page: parts.html (")
    assert page("parts.html") == page("whole.html")
    again = run(*parted)
    assert again.splitlines()[:-1] == said.splitlines()[:-1]


def test_stores_of_two_machines_are_merged(layers: str, run: Run) -> None:
    run("report", layers, *SMALL, "-o", "whole.html")
    for part in "12":
        run("report", layers, *SMALL, "--store", part, "--part", f"{part}/2", "-o", "none.html")
    assert run("store", "merge", "1", "2", "--to", "all") == "all: 3 cases of 2 stores\n"
    run("report", layers, *SMALL, "--store", "all", "-o", "merged.html")
    assert page("merged.html") == page("whole.html")
    assert not Path("none.html").exists()


def test_the_plan_measures_no_layer(layers: str, run: Run) -> None:
    said = run("report", layers, *SMALL, "--plan")
    assert said.startswith("layers: 3 layers, 12 heads, 32 tokens, head_dim 32, float16, 49 kB\n")
    plan = json.loads(run("report", layers, *SMALL, "--plan", "--json"))
    assert (plan["layers"], plan["heads"], plan["cases"], plan["lengths"]) == (3, 12, 3, [16, 32])
    seconds = {(each["rows"], each["machines"]): each["seconds"] for each in plan["choices"]}
    assert seconds[None, 1] == pytest.approx(plan["seconds"])
    assert seconds[None, 8] == pytest.approx(plan["seconds"] / 3)  # no more machines than cases
    run("report", layers, *SMALL, "-o", "page.html")
    assert plan["page_bytes"] == pytest.approx(Path("page.html").stat().st_size, rel=0.25)
    assert not Path("report.html").exists()


def test_a_sample_of_rows_is_measured_and_said(layers: str, run: Run) -> None:
    data = at.datasets.causal_qk()
    for layer in range(3):
        np.savez(f"layers/layer_{layer}.npz", query=data.query[:2, :512], key=data.key[:2, :512])
    line = ("--causal", "--rows", "32", "--laws", "log_n", "--json")
    found = json.loads(run("report", layers, *line))
    alone = json.loads(run("report", "layers/layer_0.npz", *line))
    assert found["about"]["rows"] == alone["about"]["rows"]
    assert [each[:2] for each in (found["entropy"], found["beta"])] == [alone["entropy"], alone["beta"]]
    plan = json.loads(run("report", layers, *line, "--plan"))
    assert {each["rows"] for each in plan["choices"]} == {None, 32}


def test_long_work_shows_its_plan_before(
    layers: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("attnscale.cli._folder._FEW", 0)
    monkeypatch.setattr("attnscale.cli._folder.MINUTE", 0)
    assert main(["report", layers, *SMALL, "--store", "store", "--part", "1/2"]) == 0
    assert capsys.readouterr().err.startswith("layers: 3 layers, 12 heads, 32 tokens")
    assert main(["report", layers, *SMALL, "--store", "store", "--part", "1/2"]) == 0
    assert capsys.readouterr().err == ""  # nothing is left to do


def test_a_damaged_layer_ends_with_one_line(
    layers: str, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez("layers/layer_1.npz", query=np.full((4, 32, 32), np.nan), key=np.ones((4, 32, 32)))
    line = ("report", layers, *SMALL)
    assert main([*line, "--store", "store"]) == 2
    out, said = capsys.readouterr()
    assert (
        out.splitlines()[-1] == "No page yet: 8 of 12 heads are measured; the same command measures the rest"
    )
    assert "1 of 3 layers failed, the first at layer='layer_1': InputError: layers/layer_1.npz: query" in said
    assert said.endswith("(2 are finished; 'store' keeps them)\n")
    assert main([*line, "-o", "some.html"]) == 2
    out, said = capsys.readouterr()
    assert said.endswith("(2 are finished; the page has them, and --store DIR keeps them)\n")
    assert '"heads":"8 of 12"' in page("some.html")


REFUSED = {
    "FOLDER --part 1/2": "--part must come with a store, where the parts meet, got '1/2' alone",
    "FOLDER --part 1/4 --store s": "--part must be one of at most 3 parts, one a case, got 1/4",
    "FOLDER --n-jobs 0": "--n-jobs must be at least 1, or negative to count from all cores down, got 0",
    "FOLDER --lengths 64": "--lengths must be between 2 and the number of keys, 32, got 64",
    "FOLDER --head 0 4": "--head must be between 0 and 3, the heads of layer_0, got [0, 4]",
    "FOLDER --with-heads": "--with-heads is for a file or a model: the page of a folder has no heads or text",
    "FOLDER FOLDER --plan": "--plan is of one folder, got 2 inputs",
    "FOLDER/layer_0.npz --store s": "--store is for a folder with a file for each layer",
    "FOLDER/layer_0.npz --plan": "--plan is for a folder with a file for each layer",
    "empty": "empty: there is no file of queries and keys here",
}


@pytest.mark.parametrize("line", REFUSED)
def test_a_wrong_use_is_refused_in_one_line(layers: str, fail: Run, line: str) -> None:
    Path("empty").mkdir()
    words = line.replace("FOLDER", layers).split()
    assert fail("report", *words).startswith(f"attnscale: error: {REFUSED[line]}")
