# SPDX-License-Identifier: BSD-3-Clause
"""Every notebook runs, its assertions hold, and its paired .ipynb shows the same cells."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"
# What each notebook has a section on.
CLAIMS = {
    "01_attention_and_entropy": ("T3", "T4", "T6"),
    "02_why_scaled": ("T1", "T2", "T3", "T4"),
    "03_entropy_invariance": ("T7", "T8", "T9", "T10", "T11", "T12", "T14"),
    "04_johnson_lindenstrauss": ("T18", "T19", "T20", "T21"),
    "05_phases": ("T12", "T13", "T16"),
    "06_which_n": ("T6",),
    "07_calibrating_a_real_model": ("T4", "T12"),
    "08_efficient_attention": ("T25", "T26"),
    "09_sparse_attention": ("T22", "T23", "T24"),
    "10_limits_of_qk_attention": ("T28", "T29", "T30", "T31", "T32", "T33"),
}
SOURCES = sorted(NOTEBOOKS.glob("[0-9]*.py"))


def by_name(path):
    return path.stem


def test_there_are_notebooks():
    assert [path.stem for path in SOURCES] == sorted(CLAIMS)


@pytest.mark.slow
@pytest.mark.parametrize("source", SOURCES, ids=by_name)
def test_runs(source, tmp_path):
    """As a script: what a reader would run, without a browser."""
    pytest.importorskip("matplotlib")
    result = subprocess.run(
        [sys.executable, str(source)],
        cwd=tmp_path,
        env={**os.environ, "MPLBACKEND": "agg"},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-2000:]


@pytest.mark.parametrize("source", SOURCES, ids=by_name)
def test_asserts_its_claims(source):
    text = source.read_text(encoding="utf-8")
    assert text.count("assert") >= 10
    for claim in CLAIMS[source.stem]:
        assert re.search(rf"^# ## .*\b{claim}\b", text, flags=re.MULTILINE), claim


@pytest.mark.parametrize("source", SOURCES, ids=by_name)
def test_ipynb_has_the_same_cells_and_their_outputs(source):
    jupytext = pytest.importorskip("jupytext")
    paired = source.with_suffix(".ipynb")
    assert paired.stat().st_size < 1_000_000
    stored = json.loads(paired.read_text(encoding="utf-8"))["cells"]
    written = jupytext.read(source)["cells"]
    assert [(cell["cell_type"], "".join(cell["source"])) for cell in stored] == [
        (cell["cell_type"], cell["source"]) for cell in written
    ]
    outputs = [output for cell in stored if cell["cell_type"] == "code" for output in cell["outputs"]]
    assert sum("image/png" in output.get("data", {}) for output in outputs) >= 3
    assert not [output for output in outputs if output["output_type"] == "error"]
