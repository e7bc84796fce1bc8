# SPDX-License-Identifier: BSD-3-Clause
"""A stamp stands while nothing that the test depends on has changed, and no longer."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import stamps
from stamps import Stamp

SOURCE = """
import subprocess, sys
import used
subprocess.run([sys.executable, "-c", "import used_by_a_child"], check=True)
"""
FILES = ("source.py", "used.py", "used_by_a_child.py", "unused.py", "extension.so", "data.json")


@pytest.fixture
def stamp(tmp_path: Path) -> Stamp:
    """A stamp of a source that has passed."""
    for name in FILES:
        (tmp_path / name).write_text("")
    (tmp_path / "source.py").write_text(SOURCE)
    made = Stamp(
        "made",
        tmp_path / "source.py",
        place=tmp_path / "stamps",
        ours=[tmp_path],
        always=[tmp_path / "extension.so", tmp_path / "data.json"],
    )
    assert not made.holds()
    folder = tmp_path / "imports"
    folder.mkdir()
    variables = os.environ | made.recording(folder)
    subprocess.run([sys.executable, "source.py"], cwd=tmp_path, env=variables, check=True)
    made.keep(folder)
    assert made.holds()
    return made


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_it_depends_on_has_changed(name: str, stamp: Stamp, tmp_path: Path) -> None:
    content = (tmp_path / name).read_text()
    (tmp_path / name).write_text(content + " ")
    assert stamp.holds() == (name == "unused.py")
    (tmp_path / name).write_text(content)
    assert stamp.holds()
    (tmp_path / name).unlink()
    assert stamp.holds() == (name == "unused.py")


def test_another_environment(stamp: Stamp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stamps, "_environment", lambda: ["numpy 1.0"])
    assert not stamp.holds()


def test_a_damaged_stamp_does_not_hold(stamp: Stamp, tmp_path: Path) -> None:
    (file,) = (tmp_path / "stamps").iterdir()
    for text in ("", "{}", file.read_text()[:-5], "[]"):
        file.write_text(text)
        assert not stamp.holds()


def test_it_is_skipped_but_for_all(stamp: Stamp, pytestconfig: pytest.Config, tmp_path: Path) -> None:
    option = pytestconfig.option
    before, option.all = option.all, False
    try:
        with pytest.raises(pytest.skip.Exception, match="unchanged since it passed"):
            stamp.skip_if_unchanged(pytestconfig)
        option.all = True
        stamp.skip_if_unchanged(pytestconfig)  # it runs, and may fail: then it has no stamp
    finally:
        option.all = before
    assert not stamp.holds()
    assert not list((tmp_path / "stamps").iterdir())


def test_files_of_every_stamp() -> None:
    files = {file.name for file in stamps._always()}
    assert {Path(stamps._core.__file__).name, "stamps.py"} <= files
    assert any(name.endswith(".npz") for name in files)
    assert any(line.startswith("numpy ") for line in stamps._environment())
