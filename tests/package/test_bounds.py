# SPDX-License-Identifier: BSD-3-Clause
"""The oldest versions of other packages: bounds of pyproject.toml, and what an older package is told."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.version import Version
from versions import written_for

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
EXTRAS: dict[str, list[str]] = PROJECT["project"]["optional-dependencies"]
DECLARED = {
    "build": PROJECT["build-system"]["requires"],
    "attnscale": PROJECT["project"]["dependencies"],
    **EXTRAS,
}


def bounds() -> dict[str, Version]:
    """The oldest version of each package; several extras have one bound."""
    found: dict[str, Version] = {}
    for wanted in map(Requirement, (each for group in DECLARED.values() for each in group)):
        if wanted.name != "attnscale":
            (bound,) = wanted.specifier
            assert bound.operator == ">="
            assert found.setdefault(wanted.name, Version(bound.version)) == Version(bound.version)
    return found


@pytest.mark.parametrize("group", DECLARED)
def test_every_requirement_has_a_lower_bound_alone(group: str) -> None:
    """A bound above would keep what is newer from users, who cannot lift it."""
    for wanted in map(Requirement, DECLARED[group]):
        assert wanted.name == "attnscale" or [each.operator for each in wanted.specifier] == [">="], wanted


def test_one_bound_a_package() -> None:
    assert bounds()["numpy"] >= Version("2")


def test_the_build_has_the_bounds_of_the_scripts() -> None:
    """pybind11 is asked for by CMake, too, and both packages by scripts/make-venv."""
    script = (ROOT / "scripts" / "make-venv").read_text(encoding="utf-8")
    for wanted in DECLARED["build"]:
        assert f'"{wanted}"' in script
    listed = (ROOT / "cpp" / "bindings" / "CMakeLists.txt").read_text(encoding="utf-8")
    asked = re.search(r"find_package\(pybind11 (\S+) ", listed)
    assert asked
    assert Version(asked[1]) == bounds()["pybind11"]


#: An older package in place of the real one, and what is then asked for.
TOO_OLD: dict[str, tuple[str, str, str]] = {
    "torch": ("2.5.1+cpu", "attnscale.torch", "attnscale.torch needs torch"),
    "jax": ("0.8.1", "attnscale.jax", "attnscale.jax needs jax"),
    "transformers": ("5.3.0", "attnscale.torch.register", "attnscale.torch.register needs transformers"),
}


@pytest.mark.parametrize("package", TOO_OLD)
def test_an_older_package_is_refused_with_the_bound(package: str) -> None:
    older, asked, told = TOO_OLD[package]
    if package == "transformers":
        pytest.importorskip("torch")
    found = printed(
        "import sys, types, attnscale\n"
        f"sys.modules[{package!r}] = types.SimpleNamespace(__version__={older!r})\n"
        f"try:\n    {asked}\nexcept ImportError as error:\n    print(error)\n"
    )
    bound = bounds()[package]
    assert found == f"{told} {bound} or newer, got {older}: pip install '{package}>={bound}'"


def printed(script: str) -> str:
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return run.stdout.strip()


@pytest.mark.parametrize(
    ("requirement", "is_skipped"),
    [
        (f"pytest=={Version(version('pytest')).major}.*", False),
        ("pytest>=8", False),
        ("pytest<8", True),
        ("no-such-package==1", False),
    ],
)
def test_a_test_written_for_other_versions_is_skipped(requirement: str, is_skipped: bool) -> None:
    mark: Any = written_for(requirement).mark
    assert mark.args == (is_skipped,)
    assert mark.kwargs["reason"].startswith(f"is written for {requirement}, and ")
