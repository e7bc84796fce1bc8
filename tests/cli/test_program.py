# SPDX-License-Identifier: BSD-3-Clause
"""Commands that the program suggests run as printed, in the shell where they were printed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from attnscale.cli import _program

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = Path(sys.executable).with_name("attnscale")
#: A search path with make and a shell, without this environment.
BARE = os.pathsep.join(
    each for each in os.environ["PATH"].split(os.pathsep) if not (Path(each) / "attnscale").exists()
)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A folder with the makefiles of the repository, whose environment has the program of this one."""
    if not (ROOT / "Makefile").exists():
        pytest.skip("not a source tree")
    folder = tmp_path / "a clone"
    (folder / ".venv/bin").mkdir(parents=True)
    shutil.copy(ROOT / "Makefile", folder)
    shutil.copytree(ROOT / "mk", folder / "mk")
    (folder / ".venv/bin/attnscale").symlink_to(SCRIPT)
    (folder / ".venv/bin/activate").write_text('PATH="$PWD/.venv/bin:$PATH"\n')
    return folder


def shell(command: str, folder: Path, path: str = BARE) -> str:
    environment = {**os.environ, "PATH": path}
    done = subprocess.run(
        ["sh", "-c", command], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_what_make_demo_prints_runs_in_the_shell_that_ran_it(clone: Path) -> None:
    said = shell("make -s -o .venv/stamps/demo demo", clone)
    (first,) = re.findall(r"^Next: (.*?), ", said, re.MULTILINE)
    assert first == ".venv/bin/attnscale laws"
    assert shell(first, clone).startswith("law ")
    (more,) = re.findall(r"More: (.* explain) NAME$", shell(first, clone), re.MULTILINE)
    assert shell(f"{more} log_n", clone).startswith("log_n: ")
    (why,) = re.findall(r"^`(.* explain log_n)` and", said, re.MULTILINE)
    assert shell(why, clone).startswith("log_n: ")
    (activate,) = re.findall(r"^After `(.*)` attnscale is enough", said, re.MULTILINE)
    assert activate == ". .venv/bin/activate"
    assert shell(f"{activate} && attnscale --version", clone).startswith("attnscale ")


def test_an_error_leads_to_a_help_that_runs(clone: Path) -> None:
    said = shell(".venv/bin/attnscale laws --csv 2>&1 || true", clone)
    (command,) = re.findall(r"\(see (.* --help)\)$", said, re.MULTILINE)
    assert shell(command, clone).startswith("usage: .venv/bin/attnscale laws ")


def test_the_name_is_enough_where_it_leads_here(clone: Path) -> None:
    said = shell("attnscale demo --export .", clone, f"{clone / '.venv/bin'}{os.pathsep}{BARE}")
    assert "\n  attnscale calibrate heads.npz\n" in said


def test_what_an_export_prints_runs_in_the_folder(clone: Path) -> None:
    said = shell(".venv/bin/attnscale demo --export there", clone)
    (command,) = re.findall(r"^  (.* audit config.json .*)$", said, re.MULTILINE)
    assert command.startswith(f"'{clone}/.venv/bin/attnscale' ")
    assert "131072" in shell(command, clone / "there")


def test_a_module_that_is_run_is_named_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/somewhere/attnscale/__main__.py"])
    monkeypatch.setenv("PATH", str(SCRIPT.parent))
    monkeypatch.setattr(sys, "executable", str(SCRIPT.with_name("python")))
    assert _program.program() == "python -m attnscale"
    monkeypatch.setenv("PATH", BARE)
    assert _program.program() == f"{sys.executable} -m attnscale"
    assert _program.activation() is None
