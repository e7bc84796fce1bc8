# SPDX-License-Identifier: BSD-3-Clause
"""A stamp stands while nothing that the test depends on has changed, and no longer."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import stamps
from stamps import Stamp

SOURCE = """
import subprocess, sys
import used
open("opened.json").read()
subprocess.run([sys.executable, "-c", "import used_by_a_child"], check=True)
"""
FILES = ("source.py", "used.py", "used_by_a_child.py", "unused.py", "opened.json")


@pytest.fixture
def stamp(tmp_path: Path) -> Stamp:
    """A stamp of a source that has passed."""
    for name in FILES:
        (tmp_path / name).write_text("")
    (tmp_path / "source.py").write_text(SOURCE)
    made = Stamp("made", tmp_path / "source.py", place=tmp_path / "stamps", ours=[tmp_path])
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
    (tmp_path / name).write_text(content + "x = 1\n")
    assert stamp.holds() == (name == "unused.py")
    (tmp_path / name).write_text(content)
    assert stamp.holds()
    (tmp_path / name).unlink()
    assert stamp.holds() == (name == "unused.py")


@pytest.mark.parametrize(("name", "holds"), [("used.py", True), ("source.py", False), ("opened.json", False)])
def test_a_comment_changes_a_source_and_no_code(name: str, holds: bool, stamp: Stamp, tmp_path: Path) -> None:
    with (tmp_path / name).open("a") as stream:
        stream.write("# more\n")
    assert stamp.holds() == holds


def test_another_environment(stamp: Stamp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stamps, "environment", lambda: ["numpy 1.0"])
    assert not stamp.holds()


def test_a_damaged_stamp_does_not_hold(stamp: Stamp, tmp_path: Path) -> None:
    (file,) = (tmp_path / "stamps").iterdir()
    for text in ("", "{}", file.read_text()[:-5], "[]"):
        file.write_text(text)
        assert not stamp.holds()


def test_it_is_skipped_but_for_all(
    stamp: Stamp, pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setattr(pytestconfig.option, "all", False)
    with pytest.raises(pytest.skip.Exception, match="unchanged since it passed"):
        stamp.skip_if_unchanged(pytestconfig)
    monkeypatch.setattr(pytestconfig.option, "all", True)
    stamp.skip_if_unchanged(pytestconfig)  # it runs, and may fail: then it has no stamp
    assert not stamp.holds()
    assert not list((tmp_path / "stamps").iterdir())


def test_the_environment_of_every_stamp() -> None:
    text = "\n".join(stamps.environment())
    for each in (r"^numpy \d", r"_core\.\S+\.so \w{64}$", r"\.npz \w{64}$", r"pyproject\.toml \w{64}$"):
        assert re.search(each, text, re.MULTILINE), each


def test_modules_of_an_installed_copy_count(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert not any(each.suffix == ".py" for each in stamps._data())
    (tmp_path / "module.py").write_text("")
    monkeypatch.setattr(stamps, "PACKAGE", tmp_path)
    assert list(stamps._data()) == [tmp_path / "module.py"]


def test_packages_beside_the_environment_and_variables(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    info = tmp_path / "timm-9.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: timm\nVersion: 9\n")
    assert "OMP_NUM_THREADS" in stamps._VARIABLES
    monkeypatch.setattr(stamps, "_OPTIONAL", [str(tmp_path)])
    monkeypatch.setattr(stamps, "_VARIABLES", {"JAX_PLATFORMS": "cpu"})
    assert {"timm 9", "JAX_PLATFORMS=cpu", str(tmp_path)} <= set(stamps.environment.__wrapped__())
