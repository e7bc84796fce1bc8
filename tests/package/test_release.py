# SPDX-License-Identifier: BSD-3-Clause
"""Checks and files of `make release`, and the lines that its rehearsal types."""

from __future__ import annotations

import re
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "packaging"))

import pythons  # noqa: E402
import rehearse  # noqa: E402
import release  # noqa: E402

READ = (
    "cpp/include/attnscale/version.hpp",
    "CHANGELOG.md",
    "CITATION.cff",
    "packaging/conda/recipe.yaml",
)
VERSION = release.version_of(ROOT)
MAJOR, MINOR, PATCH = VERSION.split(".")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The files that say the version, without a date."""
    date = release.heading_of(ROOT)[1]
    for name in READ:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        text = (ROOT / name).read_text(encoding="utf-8")
        text = re.sub(r"^date-released: .*\n", "", text, flags=re.MULTILINE)
        (tmp_path / name).write_text(text.replace(f"({date})", "(unreleased)", 1), encoding="utf-8")
    return tmp_path


def change(path: Path, before: str, after: str) -> None:
    """Replace a text that is there."""
    text = path.read_text(encoding="utf-8")
    assert before in text
    path.write_text(text.replace(before, after, 1), encoding="utf-8")


def test_every_file_says_the_version_of_the_header() -> None:
    dated = release.heading_of(ROOT)[1] != "unreleased"
    assert release.problems(ROOT, final=dated) == []


@pytest.mark.parametrize(
    ("name", "before", "after", "complaint"),
    [
        (READ[0], f"MINOR {MINOR}", "MINOR 99", f"version.hpp, numbers is '{MAJOR}.99.{PATCH}'"),
        (READ[1], f"## {VERSION}", "## 0.0.9", "CHANGELOG.md, first section is '0.0.9'"),
        (READ[2], f"version: {VERSION}", "version: 0.0.9", "CITATION.cff, version 1 is '0.0.9'"),
        (READ[2], "license:", "date-released: 2026-12-01\nlicense:", "date-released in CITATION.cff"),
        (READ[3], f"version: {VERSION}", "version: 0.0.9", "conda/recipe.yaml is '0.0.9'"),
    ],
)
def test_a_release_is_refused_where_a_file_says_another_version(
    tree: Path, name: str, before: str, after: str, complaint: str
) -> None:
    assert release.problems(tree, final=False) == []
    change(tree / name, before, after)
    (found,) = release.problems(tree, final=False)
    assert complaint in found


def test_a_final_release_is_dated_and_has_the_tag_of_its_version(tree: Path) -> None:
    assert release.problems(tree, final=False) == []
    (undated,) = release.problems(tree, final=True)
    assert "a release has a date" in undated
    change(tree / "CHANGELOG.md", "(unreleased)", "(2026-12-01)")
    change(tree / "CITATION.cff", "license:", "date-released: 2026-12-01\nlicense:")
    assert release.problems(tree, final=True, tag=f"v{VERSION}") == []
    assert release.problems(tree, final=True, tag="v9.9.9") == [f"tag is '9.9.9', the version is '{VERSION}'"]


def test_a_file_that_hides_the_citation_from_zenodo_is_refused(tree: Path) -> None:
    (tree / ".zenodo.json").write_text("{}")
    assert release.problems(tree, final=False) == ["Zenodo would read .zenodo.json in place of CITATION.cff"]


def test_the_same_pages_give_the_same_archive(tmp_path: Path) -> None:
    for name in ("index.html", "how-to/a.html", ".doctrees/index.doctree", ".buildinfo"):
        page = tmp_path / "html" / name
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(name)
    for archive in ("a.zip", "b.zip"):
        release.pack(tmp_path / "html", tmp_path / archive, "docs")
        (tmp_path / "html" / "index.html").touch()
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()
    with zipfile.ZipFile(tmp_path / "a.zip") as packed:
        assert packed.namelist() == ["docs/how-to/a.html", "docs/index.html"]


def test_wheels_with_different_bills_of_materials_are_no_release(tmp_path: Path) -> None:
    wheels = [tmp_path / f"attnscale-{name}.whl" for name in "ab"]
    for wheel, bill in zip(wheels, ("{}", "[]"), strict=True):
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr("attnscale-0.dist-info/sboms/attnscale.cdx.json", bill)
    assert release.bill_of(wheels[:1]) == b"{}"
    with pytest.raises(SystemExit, match=r"not one .* for attnscale-a\.whl, attnscale-b\.whl"):
        release.bill_of(wheels)


def test_the_rehearsal_types_the_command_lines_of_the_readme() -> None:
    lines = rehearse.command_lines(ROOT / "README.md")
    assert lines[0] == "attnscale demo --export ."
    assert "attnscale report heads.npz -o report.html" in lines


def test_the_rehearsal_refuses_files_that_are_not_those_of_the_sums(tmp_path: Path) -> None:
    (tmp_path / "attnscale-1.cdx.json").write_bytes(b"a")
    a = "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb"
    (tmp_path / "SHA256SUMS").write_text(f"{a}  attnscale-1.cdx.json\n")
    assert rehearse.look_at(tmp_path) == {"SHA256SUMS": "the files have these sums"}
    (tmp_path / "attnscale-1.cdx.json").write_bytes(b"b")
    with pytest.raises(SystemExit, match=r"attnscale-1\.cdx\.json is not the file of SHA256SUMS"):
        rehearse.look_at(tmp_path)


def test_the_rehearsal_follows_the_links_of_the_first_page(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "attnscale-1-docs.zip", "w") as packed:
        packed.writestr("attnscale-1-docs/index.html", '<a href="a.html#b"></a><img src="c.png">')
        packed.writestr("attnscale-1-docs/a.html", "")
    with pytest.raises(SystemExit, match=r"links \['c\.png'\]"):
        rehearse.look_at(tmp_path)


def test_a_free_threaded_python_has_the_headers_of_the_usual_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pythons, "ROOT", tmp_path)
    include = tmp_path / "build" / "python3.14" / "usr" / "include"
    for name, text in (
        ("python3.14/Python.h", ""),
        ("x86_64-linux-gnu/python3.14/pyconfig.h", "#define A 1\n/* #undef Py_GIL_DISABLED */\n"),
    ):
        (include / name).parent.mkdir(parents=True, exist_ok=True)
        (include / name).write_text(text)
    for free_threaded in (False, True):
        python = pythons.Python("3.14", free_threaded=free_threaded)
        headers = pythons.copy_headers(python, tmp_path / python.name)
        assert sorted(path.name for path in headers.iterdir()) == ["Python.h", "pyconfig.h"]
        config = (headers / "pyconfig.h").read_text()
        assert ("#define Py_GIL_DISABLED 1" in config) == free_threaded
