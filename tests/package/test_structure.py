# SPDX-License-Identifier: BSD-3-Clause
"""How the package is built: which module imports which, and how long files and functions are."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import attnscale
import pytest

PACKAGE = Path(attnscale.__file__).parent
#: Dotted names of all modules below the package; that of the package itself is "".
FILES = {
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix("__init__").rstrip("."): path
    for path in sorted(PACKAGE.rglob("*.py"))
}


@cache
def tree(module: str) -> ast.Module:
    return ast.parse(FILES[module].read_text(encoding="utf-8"))


@cache
def imports(module: str) -> frozenset[str]:
    """Modules of the package that this one imports, anywhere: in functions and for types too."""
    return frozenset(_imports(module))


def _imports(module: str) -> Iterator[str]:
    package = module if FILES[module].name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.ImportFrom) and node.level:
            parts = package.split(".") if package else []
            start = [*parts[: len(parts) + 1 - node.level], *(node.module or "").split(".")]
            source = ".".join(filter(None, start))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "attnscale":
            source = (node.module or "").partition(".")[2]
        elif isinstance(node, ast.Import):
            yield from (
                alias.name.partition(".")[2]
                for alias in node.names
                if alias.name.split(".")[0] == "attnscale"
            )
            continue
        else:
            continue
        for alias in node.names:
            inner = f"{source}.{alias.name}".lstrip(".")
            if inner in FILES:
                yield inner
            elif source in FILES and inner != "_core":
                yield source


def test_the_walk_sees_every_kind_of_import() -> None:
    assert {"_base.checks", "laws._base", "laws._meaning"} <= imports("laws._registry")  # .. and .
    assert "theory" in imports("laws._invariance")  # in a function
    assert "device" in imports("")
    assert {"montecarlo._result", "montecarlo._averaging"} <= imports("montecarlo")


def test_no_module_imports_itself_around_a_circle() -> None:
    """Imports inside of functions and for type checkers count: they tie modules as the others do."""
    sorter = TopologicalSorter({module: imports(module) - {module} for module in FILES})
    try:
        sorter.prepare()
    except CycleError as error:
        pytest.fail(f"a circle of imports: {' <- '.join(error.args[1])}")


def test_parts_import_their_siblings_not_the_face_of_the_package() -> None:
    """What ``import attnscale`` shows is for users: inside, a name comes from the module that makes it."""
    assert [module for module in FILES if module != "__main__" and "" in imports(module)] == []


@pytest.mark.parametrize("module", FILES, ids=lambda module: module or "attnscale")
def test_files_and_functions_are_short(module: str) -> None:
    assert FILES[module].read_text(encoding="utf-8").count("\n") <= 600
    long = {
        node.name: lines
        for node in ast.walk(tree(module))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and (lines := _code_lines(node)) > 40
    }
    assert long == {}


def _code_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of the body behind the docstring."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return 0 if not body else (function.end_lineno or 0) - body[0].lineno + 1
