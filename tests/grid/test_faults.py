# SPDX-License-Identifier: BSD-3-Clause
"""`make kills` takes half an hour: a few of its kills and pairs are seen here."""

from __future__ import annotations

import subprocess
import sys

import pytest
from pages import ROOT

pytest.importorskip("xarray")


def said(*arguments: str) -> list[str]:
    command = [sys.executable, "-m", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if "unshare" in done.stderr:
        pytest.skip("may not mount a file system")
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def test_of_two_processes_that_begin_a_store_one_is_refused() -> None:
    kinds = ["sweep, seeds", "sweep, constants", "mc, seeds"]
    assert said("tools.faults.pairs", "--pairs", "2") == [f"{kind}: {{'one refused': 2}}" for kind in kinds]


@pytest.mark.torch
@pytest.mark.maintainer
@pytest.mark.slow
def test_killed_commands_lose_nothing() -> None:
    pytest.importorskip("torch")
    *rows, last = said("tools.faults.kills", "--kills", "14")
    assert len(rows) == 14
    assert last.endswith("kills, seed 0: 0 faults")
