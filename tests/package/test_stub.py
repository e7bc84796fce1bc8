# SPDX-License-Identifier: BSD-3-Clause
"""_core.pyi agrees with the compiled module: names by stubtest, parameters by pybind11's signatures."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cases import compiled as _core

STUB = Path(__file__).resolve().parents[2] / "python" / "attnscale" / "_core.pyi"

# The stub imports nothing of the package, whose other modules `mypy` checks.
CONFIG = """
[mypy]
[mypy-attnscale]
follow_imports = skip
[mypy-attnscale.*]
follow_imports = skip
"""


def test_stubtest_finds_nothing(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    config = tmp_path / "mypy.ini"
    config.write_text(CONFIG)
    allowed = tmp_path / "allowed.txt"
    # The metaclass of classes, which is pybind11's, and not their methods; one that Python does not make.
    classes = ("CoreCall", "Intervals", "StatisticTraits", "StatisticTraits.__init__")
    allowed.write_text("\n".join(f"attnscale._core.{each}" for each in classes))
    options = ["--mypy-config-file", str(config), "--allowlist", str(allowed)]
    done = subprocess.run(
        [sys.executable, "-m", "mypy.stubtest", "attnscale._core", *options],
        capture_output=True,
        text=True,
        check=False,
        cwd=STUB.parents[1],
    )
    assert done.returncode == 0, done.stdout + done.stderr


def functions(body: list[ast.stmt], owner: Any) -> Iterator[tuple[Any, ast.FunctionDef]]:
    """Every function and method of the stub that the module has, and which it has under that name."""
    for node in body:
        if not hasattr(owner, getattr(node, "name", "")):
            continue  # stubtest tells
        if isinstance(node, ast.ClassDef):
            yield from functions(node.body, getattr(owner, node.name))
        elif isinstance(node, ast.FunctionDef) and not node.decorator_list:  # properties have no parameters
            yield getattr(owner, node.name), node


def of_stub(function: ast.FunctionDef) -> list[tuple[str | None, bool]]:
    """(name, has a default) of each parameter but self, and "*"; positional-only ones have no name."""
    given = function.args
    plain = [*given.posonlyargs, *given.args]
    without = len(plain) - len(given.defaults)
    found: list[tuple[str | None, bool]] = []
    for index, parameter in enumerate(plain):
        if parameter.arg != "self":
            found.append((parameter.arg if parameter in given.args else None, index >= without))
    if given.kwonlyargs:
        found.append(("*", False))
    return found + [
        (parameter.arg, default is not None)
        for parameter, default in zip(given.kwonlyargs, given.kw_defaults, strict=True)
    ]


def of_module(signature: str) -> list[tuple[str | None, bool]]:
    """Parameters by pybind11's first line, in which those without a name are arg0, arg1, ..."""
    node = ast.parse(f"def {signature}: ...").body[0]
    assert isinstance(node, ast.FunctionDef)
    return [
        (None if name is not None and re.fullmatch(r"arg\d+", name) else name, default)
        for name, default in of_stub(node)
    ]


STUBBED = list(functions(ast.parse(STUB.read_text(encoding="utf-8")).body, _core))


@pytest.mark.parametrize(("found", "stub"), STUBBED, ids=[node.name for _, node in STUBBED])
def test_parameters_of_the_stub(found: Any, stub: ast.FunctionDef) -> None:
    signature = found.__doc__.splitlines()[0]
    assert of_stub(stub) == of_module(signature)


@pytest.mark.parametrize(
    "signature",
    [
        "f(arg0: int, arg1: int)",
        "f(arg0: int, b: int = 0)",
        "f(arg0: int, b: int)",
        "f(arg0: int, *, b: int = 0)",
    ],
)
def test_other_parameters_would_be_seen(signature: str) -> None:
    (stub,) = ast.parse("def f(a: int, /, *, b: int) -> None: ...").body
    assert isinstance(stub, ast.FunctionDef)
    assert of_stub(stub) != of_module(signature)
    assert of_stub(stub) == of_module("f(arg0: int, *, b: int)")
