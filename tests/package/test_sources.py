# SPDX-License-Identifier: BSD-3-Clause
"""Sources are read as Python reads them: their imports, their code, the names of the package in them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import sources
from sources import Sources, Tree, facts_of

HELPERS = Path(sources.__file__).parent


def test_the_digest_of_code_is_the_same_in_each_process() -> None:
    source = "def f(x):\n    return x in {'a', 'b', 'c', 'd', 'e'}\n"
    code = (
        f"import sys; sys.path.append({str(HELPERS)!r}); from sources import *; print(facts_of({source!r}))"
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "2")
    }
    assert said == {f"{facts_of(source)}\n"}


def test_facts_that_another_reader_found_are_found_again(tmp_path: Path) -> None:
    source, kept = tmp_path / "a.py", tmp_path / "sources.json"
    source.write_text("import b\n")
    first = Sources(kept)
    first.facts(source, "digest")
    first.keep()
    source.write_text("import c\n")
    assert Sources(kept).facts(source, "digest")["imports"] == [[0, "b", ""]]
    kept.write_text(kept.read_text().replace('"reader": "', '"reader": "another '))
    assert Sources(kept).facts(source, "digest")["imports"] == [(0, "c", "")]


@pytest.mark.parametrize(
    ("source", "imports"),
    [
        ("if TYPE_CHECKING:\n    import a\nelse:\n    import b", [(0, "b", "")]),
        ("names = a.__path__", [(0, "attnscale.", "")]),
        ("setattr('attnscale.laws.f', g)", [(0, "attnscale.laws.f", "")]),
    ],
)
def test_imports_of_a_source(source: str, imports: list[tuple[int, str, str]]) -> None:
    assert facts_of(source)["imports"] == imports


def test_code_is_what_python_runs() -> None:
    first = facts_of('"""A."""\n\ndef f(x):\n    """B."""\n    return x  # C\n')
    same = facts_of("# D\ndef f(x):\n\n    return (x)\n")
    other = facts_of('"""A."""\n\ndef f(x):\n    """B."""\n    return "x"\n')
    assert first["code"] == same["code"] != other["code"]


@pytest.mark.parametrize(
    ("source", "used"),
    [
        ("import attnscale as at\nat.f(at.laws.g)", ["f", "laws"]),
        ("import attnscale\nattnscale.f", ["f"]),
        ("import attnscale as at\ngetattr(at, name)", None),
        ("import attnscale as at\nat.__all__", None),
        ("at = 1\nat.f", []),
    ],
)
def test_names_of_the_package_that_a_source_uses(source: str, used: list[str] | None) -> None:
    assert facts_of(source)["used"] == used


def test_modules_of_this_checkout_that_a_file_imports() -> None:
    tree = Tree()
    tensors = tree.closure("tests/tensors/test_torch_plain.py")
    assert {"python/attnscale/torch/_eager.py", "python/attnscale/__init__.py", "tests/cases.py"} <= tensors
    theory = tree.closure("tests/theory/test_theory_rules.py")
    assert "python/attnscale/theory/_bounds.py" in theory
    assert not any(name.startswith(("python/attnscale/torch/", "python/attnscale/cli/")) for name in theory)
    assert "python/attnscale/plot/_training.py" in tree.closure("python/attnscale/_base/drawing.py")
    assert set(tree._resolve(Path("tests"), 0, "attnscale.laws.f", "")) == {
        "python/attnscale/laws/__init__.py"
    }


def test_everything_that_a_file_has_imported_is_known() -> None:
    """The reading of sources against Python: modules of the checkout after a file of tests was imported."""
    root = HELPERS.parent
    tree = Tree()
    for file in (
        "tests/theory/test_theory_rules.py",
        "tests/report/test_report.py",
        "tests/audit/test_audit.py",
    ):
        code = (
            "import sys, runpy\n"
            f"sys.path[:0] = [{str(root)!r}, {str(HELPERS)!r}, {str((root / file).parent)!r}]\n"
            f"runpy.run_path({str(root / file)!r})\n"
            "print(*(getattr(each, '__file__', None) for each in list(sys.modules.values())), sep='\\n')\n"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        files = {Path(line) for line in done.stdout.splitlines() if line.endswith(".py")}
        names = {str(each.relative_to(root)) for each in files if each.is_relative_to(root)}
        found = {name for name in names if not name.startswith((".venv/", "build/"))}
        assert len(found) > 20
        assert found <= tree.closure(file), file
