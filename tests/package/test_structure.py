# SPDX-License-Identifier: BSD-3-Clause
"""The house: where files lie, which module imports which, and how long files and functions are."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from types import ModuleType

import attnscale
import pytest

ROOT = Path(__file__).resolve().parents[2]
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


def refuse_circle(below: Mapping[str, Iterable[str]]) -> None:
    """Fail with the circle if something stands on itself, by what each stands on."""
    try:
        TopologicalSorter(below).prepare()
    except CycleError as error:
        pytest.fail(f"a circle: {' <- '.join(error.args[1])}")


def test_no_module_imports_itself_around_a_circle() -> None:
    """Imports inside of functions and for type checkers count: they tie modules as the others do."""
    refuse_circle({module: imports(module) - {module} for module in FILES})


def test_a_circle_is_refused() -> None:
    with pytest.raises(pytest.fail.Exception, match=r"^a circle: [ab] <- [ab] <- [ab]$"):
        refuse_circle({"a": {"b"}, "b": {"a"}})


def test_no_folder_imports_itself_around_a_circle() -> None:
    """Folders stand on floors: each imports from lower ones alone, in functions and for types, too."""
    rooms: dict[str, set[str]] = {}
    for module in FILES:
        room = module.partition(".")[0]
        rooms.setdefault(room, set()).update({each.partition(".")[0] for each in imports(module)} - {room})
    refuse_circle(rooms)


def test_files_lie_in_folders_by_subject() -> None:
    loose = {path.name for path in PACKAGE.glob("*.py")}
    assert loose == {"__init__.py", "__main__.py", "datasets.py", "device.py"}
    assert [*(ROOT / "cpp" / "src").glob("*.?pp")] == []
    assert [path.name for path in (ROOT / "docs").glob("*.py")] == ["conf.py"]


def test_no_module_has_the_name_of_a_public_function() -> None:
    """``attnscale.attention`` is the function; no module of that name hides behind it."""
    functions = {
        name for name in attnscale.__all__ if not isinstance(getattr(attnscale, name), (type, ModuleType))
    }
    assert {"attention", "calibrate", "sweep", "report"} <= functions
    inside = [module for module in FILES if not module.startswith("cli.")]  # a file a command
    assert [module for module in inside if module.rpartition(".")[2] in functions - {"audit"}] == []


def test_a_class_of_calls_has_one_name() -> None:
    """`Call` is the call on arrays; calls of the core, of models and of a dropout have their own names."""
    classes = [
        module
        for module in FILES
        for node in ast.walk(tree(module))
        if isinstance(node, ast.ClassDef) and node.name == "Call"
    ]
    assert classes == ["_call.call"]
    aliases = [
        module for module in FILES if re.search(r"import .*\bCall as\b", FILES[module].read_text("utf-8"))
    ]
    assert aliases == []


def includes(path: Path) -> list[str]:
    """Headers between quotes that a C++ file includes."""
    return re.findall(r'^#include "([^"]+)"', path.read_text("utf-8"), re.MULTILINE)


@pytest.mark.parametrize("folder", ["kernels", "units"])
def test_kernels_stand_on_nothing_but_plain_types(folder: str) -> None:
    """A level's code may not reach what is compiled for every CPU."""
    outside = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in sorted((ROOT / "cpp" / "src" / folder).rglob("*.?pp"))
        for name in includes(path)
        if not name.startswith(("kernels/", "units/")) and name != "attnscale/types.hpp"
    ]
    assert outside == []


def test_folders_of_the_core_stand_on_floors() -> None:
    source = ROOT / "cpp" / "src"
    folders = {path.name for path in source.iterdir() if path.is_dir()}
    assert folders == {
        *("call", "exact", "experiments", "kernels", "machine", "scale", "units", "variants"),
    }
    below = {
        folder: {
            name.partition("/")[0] for path in (source / folder).rglob("*.?pp") for name in includes(path)
        }
        & folders - {folder}
        for folder in folders
    }
    refuse_circle(below)


def test_tests_reach_into_few_private_places() -> None:
    """Each such line breaks when a file moves, though what is tested stays."""
    private = re.compile(
        r"^\s*(?:from|import) attnscale(?:\.\w+)*\._|^\s*from attnscale(?:\.\w+)* import (?:\w+, )*_",
        re.MULTILINE,
    )
    found = [len(private.findall(path.read_text("utf-8"))) for path in (ROOT / "tests").rglob("*.py")]
    assert sum(found) <= 71


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
