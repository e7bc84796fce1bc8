# SPDX-License-Identifier: BSD-3-Clause
"""The contributor's pages name every folder, and nothing that does not exist."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "docs" / "contributing"
PACKAGE = ROOT / "python" / "attnscale"

if not PAGES.exists():
    pytest.skip("not a source tree", allow_module_level=True)

#: Folders whose subfolders have a line each, by the heading of their list.
LISTED = {
    "python/attnscale": (PACKAGE, PACKAGE / "torch"),
    "cpp": (ROOT / "cpp", ROOT / "cpp" / "src", ROOT / "cpp" / "src" / "kernels"),
    "tools": (ROOT / "tools",),
    "tests": (ROOT / "tests",),
}
#: Folders that names on the pages begin at.
STARTS = (ROOT, PACKAGE, PACKAGE / "audit" / "_rules", ROOT / "cpp", ROOT / "cpp" / "include" / "attnscale")


def page(name: str) -> str:
    return (PAGES / name).read_text(encoding="utf-8")


def folders(base: Path) -> Iterator[Path]:
    """Folders below that hold files, other than what Python keeps there."""
    for path in sorted(base.iterdir()):
        if path.is_dir() and not path.name.startswith((".", "__")):
            kept = (each for each in path.rglob("*") if each.is_file() and "__pycache__" not in each.parts)
            if any(kept):
                yield path


@pytest.mark.parametrize("heading", LISTED)
def test_every_folder_has_a_line_and_every_line_a_folder(heading: str) -> None:
    base, *_ = LISTED[heading]
    section = page("architecture.md").split(f"\n## {heading}\n")[1].split("\n## ")[0]
    named = re.findall(r"^- `([\w/]+)`: \S", section, re.MULTILINE)
    there = [str(path.relative_to(base)) for parent in LISTED[heading] for path in folders(parent)]
    assert sorted(named) == sorted(there)


def names_on(text: str) -> set[str]:
    """Paths between backticks, without options behind them and without names in capitals."""
    quoted = (each.split()[0] for each in re.findall(r"`([^`\n]+)`", text))
    return {name for name in quoted if re.fullmatch(r"[\w./-]+/[\w./-]*|[\w-]+\.(?:py|hpp|cpp|md)", name)}


@pytest.mark.parametrize("path", sorted(PAGES.glob("*.md")), ids=lambda path: path.stem)
def test_every_path_on_the_pages_exists(path: Path) -> None:
    names = names_on(path.read_text(encoding="utf-8"))
    if not (ROOT / ".github").exists():  # the source archive
        names = {name for name in names if not name.startswith(".github/")}
    assert [name for name in sorted(names) if not any((start / name).exists() for start in STARTS)] == []
    assert names != set()


def test_paths_are_found_on_a_page() -> None:
    text = "`a/b.py --check` and `make test`, `c.py`, `docs/`, `backend=x`, `git show HASH`"
    assert names_on(text) == {"a/b.py", "c.py", "docs/"}


def test_the_picture_is_that_of_the_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "_ext"))
    import _call_picture

    assert page("call.svg") == _call_picture.picture()
    box = _call_picture.BOXES[0]._replace(files=("python/attnscale/nobody.py",))
    monkeypatch.setattr(_call_picture, "BOXES", (box, *_call_picture.BOXES[1:]))
    with pytest.raises(FileNotFoundError, match=r"names python/attnscale/nobody\.py"):
        _call_picture.picture()
    sys.modules.pop("_call_picture")


def test_examples_are_commits_with_these_subjects() -> None:
    examples = re.findall(r'`([0-9a-f]{8})`\s+"([^"]+)"', page("recipes.md"))
    assert len(examples) == page("recipes.md").count("\n## A") + 1
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("not a checkout of git")
    git = ("git", "-C", str(ROOT))
    told = (*git, "rev-parse", "--is-shallow-repository")
    if subprocess.run(told, capture_output=True, text=True, check=True).stdout.strip() == "true":
        pytest.skip("a checkout without its history")
    for commit, subject in examples:
        show = (*git, "show", "-s", "--format=%s", commit)
        seen = subprocess.run(show, capture_output=True, text=True, check=True).stdout
        assert seen.startswith(" ".join(subject.split())), commit


def test_the_pages_are_short() -> None:
    words = {path.stem: path.read_text(encoding="utf-8").split() for path in PAGES.glob("*.md")}
    counted = {name: sum(bool(re.search(r"\w", each)) for each in found) for name, found in words.items()}
    assert counted.pop("dependencies") <= 1900  # a table to look things up in
    assert sum(counted.values()) <= 2000
    assert len((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").split()) <= 500


def test_there_are_ten_decisions() -> None:
    paragraphs = page("decisions.md").split("\n\n")[2:]
    assert len(paragraphs) == 10
    assert all(each.startswith("**") for each in paragraphs)


def test_the_container_builds_the_demo() -> None:
    settings = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text(encoding="utf-8"))
    assert settings["postCreateCommand"] == "make demo"
    for needed in ("g++", "make", "python3-venv"):
        assert f" {needed}" in settings["onCreateCommand"]


def test_updates_look_at_folders_that_have_what_they_update() -> None:
    path = ROOT / ".github" / "dependabot.yml"
    if not path.exists():
        pytest.skip("settings of a hosted service, which the source archive leaves out")
    updates = pytest.importorskip("yaml").safe_load(path.read_text(encoding="utf-8"))["updates"]
    kinds = {(each["package-ecosystem"], each["directory"]) for each in updates}
    assert kinds == {("github-actions", "/"), ("pip", "/"), ("pip", "/packaging")}
    assert (ROOT / "packaging" / "wheel-tools.txt").exists()
