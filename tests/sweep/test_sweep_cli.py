# SPDX-License-Identifier: BSD-3-Clause
"""attnscale sweep: its file, its output, and one line on bad input."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import attnscale as at
import numpy as np
import pytest
from attnscale.cli import main

pytest.importorskip("xarray")

MODULE = """
import time
import attnscale as at

def entropy(n, law="standard", *, rng=None):
    query, key = rng.standard_normal((2, 3, n, 8))
    return {"mean": at.attention_entropy(query, key, scale=law).mean(), "rows": [n, n + 1], "note": "a"}

def fails(n):
    return 1 / (n - 2)

def rows(n):
    return [fails(n), 3]

def word(law):
    return len(law)

def slow(n):
    time.sleep(0.1)
    return n

number = 3
"""

FILE = """
function = "own_module:entropy"
rng = 4

[grid]
n = [4, 8]
law = ["standard", "log_n(base=64)"]
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A folder with a module; imports are forgotten afterwards."""
    (tmp_path / "own_module.py").write_text(MODULE)
    (tmp_path / "sweep.toml").write_text(FILE)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("own_module", None)


def run(capsys: Any, *arguments: str, status: int = 0) -> str:
    assert main(["sweep", *arguments]) == status
    return str(capsys.readouterr().out)


def expected() -> Any:
    import own_module

    laws = ["standard", at.laws.LogN(base=64)]
    return at.sweep(own_module.entropy, {"n": [4, 8], "law": laws}, rng=4, progress=False)


def test_json_has_every_case(folder: Path, capsys: Any) -> None:
    result = json.loads(run(capsys, "sweep.toml", "--json"))
    assert result["function"] == "own_module:entropy"
    assert result["seed"] == "4"
    sys.path.insert(0, str(folder))
    try:
        table = expected()
    finally:
        sys.path.remove(str(folder))
    assert [(row["n"], row["law"]) for row in result["rows"]] == [
        (n, law) for n in (4, 8) for law in ("standard", "log_n(base=64)")
    ]
    np.testing.assert_array_equal([row["mean"] for row in result["rows"]], table["mean"].values.ravel())
    assert result["rows"][-1]["rows"] == [8, 9]


def test_table_and_csv(folder: Path, capsys: Any) -> None:
    lines = run(capsys, "sweep.toml", "--csv", "out.csv").splitlines()
    assert lines[:2] == ["In all rows: note a", ""]
    assert lines[2].split() == ["n", "law", "mean", "rows"]
    assert lines[3].split()[:2] == ["4", "standard"]
    assert lines[3].split()[3:] == ["2"]
    assert lines[-1] == "Arrays are shown by their extents; --json and --csv have the numbers."
    rows = list(csv.DictReader(io.StringIO((folder / "out.csv").read_text())))
    assert list(rows[0]) == ["n", "law", "mean", "rows[0]", "rows[1]", "note"]
    assert rows[3]["rows[1]"] == "9"
    assert f"{float(rows[0]['mean']):.6g}" == lines[3].split()[2]


def test_processes_find_the_module_beside_the_file_and_the_store_is_kept(folder: Path, capsys: Any) -> None:
    pytest.importorskip("joblib")
    # Processes that know nothing of the file are there already.
    at.sweep(at.theory.jl_rule_of_thumb, {"n": [8, 9]}, n_jobs=2, progress=False)
    (folder / "sweep.toml").write_text(f'store = "kept"\nn_jobs = 2\n{FILE}')
    first = run(capsys, "sweep.toml", "--json")
    assert len(list((folder / "kept" / "cases").iterdir())) == 4
    rows = json.loads(first)["rows"]
    assert json.loads(run(capsys, "sweep.toml", "--json", "--n-jobs", "1", "--store", "new"))["rows"] == rows
    assert json.loads(run(capsys, "sweep.toml", "--json", "--n-jobs", "1"))["rows"] == rows
    assert str(folder) not in sys.path


@pytest.mark.parametrize("function", ["own_module:entropy", "attnscale.montecarlo:entropy_vs_length"])
def test_a_misspelt_law_is_named_before_the_store_is_read(function: str, folder: Path, capsys: Any) -> None:
    text = FILE.replace("own_module:entropy", function)
    (folder / "sweep.toml").write_text(text)
    run(capsys, "sweep.toml", "--store", "kept")
    (folder / "sweep.toml").write_text(text.replace('"standard"', '"log_m", "standard"'))
    assert main(["sweep", "sweep.toml", "--store", "kept"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("attnscale: error: sweep.toml: did you mean 'log_n'? the name of a law must be ")


def test_a_function_of_the_user_may_have_words_of_its_own(folder: Path, capsys: Any) -> None:
    (folder / "sweep.toml").write_text('function = "own_module:word"\n[grid]\nlaw = ["log_m", "zipf"]\n')
    assert run(capsys, "sweep.toml").split() == ["law", "value", "log_m", "5", "zipf", "4"]


def test_columns_equal_in_all_rows_stand_above_the_table(folder: Path, capsys: Any) -> None:
    text = 'function = "own_module:entropy"\nrng = 4\n[grid]\nn = [4]\nlaw = ["standard", "unscaled"]\n'
    (folder / "sweep.toml").write_text(text)
    lines = run(capsys, "sweep.toml").splitlines()
    assert lines[0] == "In all rows: n 4, rows 2, note a"
    assert lines[2].split() == ["law", "mean"]
    (folder / "sweep.toml").write_text(text.replace(', "unscaled"', ""))
    assert run(capsys, "sweep.toml").split()[:5] == ["n", "law", "mean", "rows", "note"]  # of one row nothing


def test_finished_cases_are_printed_beside_the_failure(folder: Path, capsys: Any) -> None:
    (folder / "sweep.toml").write_text('function = "own_module:fails"\n[grid]\nn = [1, 2, 4]\n')
    assert main(["sweep", "sweep.toml"]) == 2
    captured = capsys.readouterr()
    assert [line.split() for line in captured.out.splitlines()] == [
        ["n", "value"],
        ["1", "-1"],
        ["2", "-"],
        ["4", "0.5"],
    ]
    assert captured.err.startswith(
        "attnscale: error: 1 of 3 cases failed, the first at n=2: ZeroDivisionError: "
    )
    assert captured.err.count("\n") == 1


def test_an_array_that_is_missing_is_a_dash(folder: Path, capsys: Any) -> None:
    (folder / "sweep.toml").write_text('function = "own_module:rows"\n[grid]\nn = [1, 2]\n')
    assert main(["sweep", "sweep.toml"]) == 2
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines[:3]] == [["n", "value"], ["1", "2"], ["2", "-"]]


def test_the_file_of_the_page_runs(folder: Path, capsys: Any) -> None:
    page = Path(__file__).parents[2] / "docs" / "how-to" / "sweep.md"
    text = page.read_text(encoding="utf-8").split("```toml\n")[1].split("```")[0]
    (folder / "sweep.toml").write_text(
        text.replace("[512, 4096]", "[8, 16]").replace("n_jobs = 2", "n_jobs = 1")
    )
    assert run(capsys, "sweep.toml", "--csv", "out.csv").splitlines()[2].split()[:3] == ["n", "law", "value"]
    assert len((folder / "out.csv").read_text().splitlines()) == 7


FAILS = "function = 'own_module:fails'\n"
#: Refused files, and their messages.
BAD_FILES = {
    "function = 3\n[grid]\nn = [1]": "function must be a string, 'module:function', got 3",
    "[grid]\nn = [1]": "function is missing; it must be a string",
    FAILS: "grid is missing; it must be a table: [grid]",
    f"{FAILS}grid = 3": "grid must be a table: [grid], got 3",
    f"{FAILS}[gird]\nn = [1]": "did you mean 'grid'? unknown key 'gird'; the keys: function, store",
    f"{FAILS}n_jobs = true\n[grid]\nn = [1]": "n_jobs must be an integer, got True",
    f"{FAILS}n_jobs = 0\n[grid]\nn = [1]": "n_jobs must be at least 1",
    f"{FAILS}rng = 'x'\n[grid]\nn = [1]": "rng must be an integer, the seed, got 'x'",
    f"{FAILS}rng = 1\n[grid]\nn = [1]": "rng must be None where 'rng' is not its",
    f"{FAILS}store = 1\n[grid]\nn = [1]": "store must be a string, the name of a",
    f"{FAILS}store = '.'\n[grid]\nn = [1]": "store must be a new or empty directory",
    f"{FAILS}constants = []\n[grid]\nn = [1]": "constants must be a table",
    f"{FAILS}[grid]\nn = 1": "grid['n'] must be a sequence of values, got 1",
    f"{FAILS}[grid]\nm = [1]": "function must take the parameters of grid",
    "function = 'own_module'\n[grid]\nn = [1]": "must be an importable 'module:function', got 'own_module'",
    "function = 'nope:f'\n[grid]\nn = [1]": "got 'nope:f' (No module named 'nope')",
    "function = 'own_module:nope'\n[grid]\nn = [1]": "(module 'own_module' has no attribute 'nope')",
    "function = 'own_module:number'\n[grid]\nn = [1]": "function must be callable, got 'own_module:number'",
    "function = 'own_module:entropy'\n[grid]\nn = [1]\nlaw = ['log_n(bse=1)']": "has no parameter 'bse'",
    "function =": "not a readable TOML file (Invalid value",
    "\xff": "not a readable TOML file",
    'function = "attnscale.laws.get"\n[grid]\nlaw = ["nope"]': "the name of a law must be one of 'standard'",
}


@pytest.mark.parametrize("content", BAD_FILES)
def test_bad_files_are_one_line_and_status_2(content: str, folder: Path, capsys: Any) -> None:
    (folder / "bad.toml").write_bytes(content.encode("latin-1"))
    assert main(["sweep", "bad.toml"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("attnscale: error: ")
    assert captured.err.count("\n") == 1
    assert BAD_FILES[content] in captured.err


def test_ctrl_c_prints_finished_cases_and_exits_with_130(folder: Path) -> None:
    (folder / "sweep.toml").write_text(
        f'function = "own_module:slow"\nstore = "kept"\n[grid]\nn = {list(range(100))}\n'
    )
    # Started in the background, the shell would let Ctrl-C be ignored.
    code = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from attnscale.cli import main; sys.exit(main(['sweep', 'sweep.toml']))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder
    )
    while len(list(folder.glob("kept/cases/*.npz"))) < 2:
        assert process.poll() is None
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert output.splitlines()[1].split() == ["0", "0"]
    assert errors.startswith("attnscale: interrupted: ")
    assert "of 100 cases are finished; 'kept' keeps them; to resume: attnscale " in errors
    assert errors.count("\n") == 1
