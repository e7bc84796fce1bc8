# SPDX-License-Identifier: BSD-3-Clause
"""A run of all tests leaves out the files that have nothing new to find, and no other."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import unchanged
from sources import Tree
from unchanged import Recorder, Stamps

HELPERS = Path(unchanged.__file__).parent
CONFTEST = f"""
import os, sys

sys.path.append({str(HELPERS)!r})
sys.meta_path[:] = [finder for finder in sys.meta_path if "Redirecting" not in type(finder).__name__]
from unchanged import register

def pytest_addoption(parser):
    parser.addoption("--all", action="store_true")

def pytest_configure(config):
    register(config, lambda: ["python"])
"""
STARTS = "import subprocess\n\ndef test_it():\n    subprocess.run(['true'], check=True)\n"
FILES = {
    "pyproject.toml": (  # with the options of this project
        '[tool.pytest.ini_options]\ntestpaths = ["tests"]\npythonpath = ["tests", "python"]\n'
        'addopts = ["-ra", "--strict-markers", "--strict-config"]\nmarkers = ["slow: a mark"]\n'
    ),
    "python/attnscale/__init__.py": (
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    from . import laws\n    from .leaf import leaf\n"
        "def __getattr__(name):\n"
        "    from importlib import import_module\n"
        "    return getattr(import_module(f'.{name}', __name__), name)\n"
    ),
    "python/attnscale/leaf.py": 'def leaf():\n    """One."""\n    return 1\n',
    "python/attnscale/other.py": 'def other():\n    """Two."""\n    return 1\n',
    "python/attnscale/laws/__init__.py": 'def law():\n    """A formula."""\n',
    "tests/conftest.py": CONFTEST,
    "tests/helper.py": (
        "from functools import cache\nfrom pathlib import Path\n\n@cache\ndef page():\n"
        "    return Path(__file__).with_name('page.md').read_text()\n"
    ),
    "tests/page.md": "A page\n",
    "tests/unused.json": "{}\n",
    "tests/folder/a.txt": "",
    "tests/test_leaf.py": "import attnscale as at\n\ndef test_it():\n    assert at.leaf() == 1\n",
    "tests/test_law.py": "from attnscale.laws import law\n\ndef test_it():\n    assert law.__doc__\n",
    "tests/test_page.py": "from helper import page\n\ndef test_it():\n    assert page()\n",
    "tests/test_second_page.py": "from helper import page\n\ndef test_it():\n    assert page()\n",
    "tests/test_text.py": (
        "from pathlib import Path\n\ndef test_it():\n"
        "    assert Path(__file__).parents[1].joinpath('python/attnscale/leaf.py').read_text()\n"
    ),
    "tests/test_names.py": (
        "import os\nfrom pathlib import Path\n\ndef test_it():\n"
        "    assert os.listdir(Path(__file__).with_name('folder'))\n"
    ),
    "packaging/tool.py": "def tool():\n    return 1\n",
    "packaging/loaded.py": "LOADED = 1\n",
    "packaging/script.py": "from attnscale.other import other\n\nother()\n",
    "tests/test_tool.py": (
        "import sys\nfrom pathlib import Path\n\n"
        "sys.path.append(str(Path(__file__).parents[1] / 'packaging'))\n"
        "from tool import tool\n\ndef test_it():\n    assert tool()\n"
    ),
    "tests/test_loaded.py": (
        "from importlib.util import module_from_spec, spec_from_file_location\nfrom pathlib import Path\n\n"
        "def test_it():\n"
        "    spec = spec_from_file_location('it', Path(__file__).parents[1] / 'packaging' / 'loaded.py')\n"
        "    spec.loader.exec_module(module_from_spec(spec))\n"
    ),
    "tests/test_script.py": (
        "from pathlib import Path\nfrom runpy import run_path\n\ndef test_it():\n"
        "    assert run_path(str(Path(__file__).parents[1] / 'packaging' / 'script.py'))\n"
    ),
    "tests/test_docstring.py": (
        "from inspect import getdoc\n\nfrom attnscale.other import other\n\n"
        "def test_it():\n    assert getdoc(other)\n"
    ),
    "linked/data.json": "{}\n",
    "tests/test_linked.py": (
        "from pathlib import Path\n\ndef test_it(tmp_path):\n"
        "    (tmp_path / 'a').symlink_to(Path(__file__).parents[1] / 'linked')\n"
        "    assert (tmp_path / 'a' / 'data.json').read_text()\n"
    ),
    "third_party/data.json": "{}\n",
    "tests/test_third_party.py": (
        "from pathlib import Path\n\ndef test_it():\n"
        "    assert Path(__file__).parents[1].joinpath('third_party/data.json').read_text()\n"
    ),
    "build/program": "#!/bin/sh\n",
    "tests/test_program.py": (
        "import subprocess\nfrom pathlib import Path\n\ndef test_it():\n"
        "    program = Path(__file__).parents[1] / 'build' / 'program'\n"
        "    program.chmod(0o700)\n    subprocess.run([program], check=True)\n"
    ),
    "tests/test_pool.py": (
        "from concurrent.futures import ProcessPoolExecutor\nfrom multiprocessing import get_context\n\n"
        "def test_it():\n    with ProcessPoolExecutor(1, get_context('spawn')) as pool:\n"
        "        assert pool.submit(abs, -1).result() == 1\n"
    ),
    "tests/test_process.py": STARTS,
    "tests/package/test_tree.py": STARTS,
    "tests/package/test_names_of_files.py": "def test_it():\n    pass\n",
}
EVERY = {name for name in FILES if "/test_" in name}
TWO = ("-p", "xdist.plugin", "-n", "2")
TREE = "tests/package/test_tree.py"
PROCESSES = (TREE, "tests/test_process.py", "tests/test_program.py", "tests/test_pool.py")
SEE_NEW_FILES = {"tests/package/test_names_of_files.py", *PROCESSES}
LEAF, TEXT = "tests/test_leaf.py", "tests/test_text.py"
DOCSTRING, SCRIPT = "tests/test_docstring.py", "tests/test_script.py"
PAGES = ("tests/test_page.py", "tests/test_second_page.py")


def run(root: Path, *options: str, **variables: str) -> tuple[set[str], subprocess.CompletedProcess[str]]:
    """Files of which a test ran, and what pytest said."""
    kept = {name: value for name, value in os.environ.items() if name not in ("CI", "PYTEST_ADDOPTS")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", *options],
        cwd=root,
        env={**kept, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if re.search("PASSED|FAILED", line)]
    return {name for name in EVERY if any(name in line for line in lines)}, done


def plant(root: Path, name: str, text: str | None = None) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(FILES[name] if text is None else text)


def passed(root: Path) -> set[str]:
    """Files that have nothing new to find."""
    (place,) = (each for each in (root / "build" / "stamps").iterdir() if each.is_dir())
    stamps = Stamps(place, Tree(root), ["python"])
    return {file for file in stamps.files() if stamps.tests(file) is not None}


@pytest.fixture(scope="module")
def stamped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout whose tests passed, in two processes; copy it before changing it."""
    root = tmp_path_factory.mktemp("stamped")
    for name in FILES:
        plant(root, name)
    ran, done = run(root, *TWO)
    assert ran == EVERY, done.stdout
    assert passed(root) == EVERY
    return root


@pytest.fixture
def root(stamped: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(stamped, tmp_path / "root"))


@pytest.mark.parametrize(
    ("name", "before", "after", "runs"),
    [
        ("python/attnscale/leaf.py", "One.", "Uno.", {TEXT}),
        ("python/attnscale/leaf.py", "\n", "  # why\n", {TEXT}),
        ("python/attnscale/leaf.py", "return 1", "return 2", {LEAF, TEXT, *PROCESSES}),
        ("python/attnscale/other.py", "Two.", "Due.", {DOCSTRING}),
        ("python/attnscale/other.py", "return 1", "return 2", {SCRIPT, DOCSTRING, *PROCESSES}),
        ("packaging/tool.py", "return 1", "return 2", {"tests/test_tool.py", *PROCESSES}),
        ("packaging/loaded.py", "1", "2", {"tests/test_loaded.py", *PROCESSES}),
        ("packaging/script.py", "other()", "found = other()", {SCRIPT, *PROCESSES}),
        ("linked/data.json", "{}", "[]", {"tests/test_linked.py", *PROCESSES}),
        ("third_party/data.json", "{}", "[]", {"tests/test_third_party.py"}),
        ("build/program", "sh\n", "sh\n:\n", {"tests/test_program.py"}),
        ("python/attnscale/laws/__init__.py", "A formula.", "Another.", {"tests/test_law.py", *PROCESSES}),
        ("tests/helper.py", "page.md", "../tests/page.md", {*PAGES, *PROCESSES}),
        ("tests/page.md", "A page", "Another", {*PAGES, TREE}),
        (LEAF, "== 1", "> 0", {LEAF, *PROCESSES}),
        ("tests/unused.json", "{}", "[]", {*PROCESSES}),
        ("tests/conftest.py", "import os", "import re", EVERY),
    ],
)
def test_files_that_run_after_a_change(
    name: str, before: str, after: str, runs: set[str], root: Path
) -> None:
    assert before in FILES[name]
    plant(root, name, FILES[name].replace(before, after) if before else after)
    assert EVERY - passed(root) == runs
    plant(root, name)
    assert passed(root) == EVERY


def test_a_new_file_in_a_folder_that_was_listed(root: Path) -> None:
    plant(root, "tests/folder/b.txt", "")
    assert EVERY - passed(root) == {"tests/test_names.py", *SEE_NEW_FILES}


def test_other_surroundings(root: Path) -> None:
    (place,) = (each for each in (root / "build" / "stamps").iterdir() if each.is_dir())
    stamps = Stamps(place, Tree(root), ["another python"])
    assert not any(stamps.tests(file) for file in stamps.files())


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"tests": 1, "reads": [], "digest": ""}'])
def test_a_damaged_stamp_does_not_hold(text: str, root: Path) -> None:
    (stamp,) = root.rglob("test_leaf.py.json")
    stamp.write_text(text)
    assert EVERY - passed(root) == {"tests/test_leaf.py"}


@pytest.mark.parametrize("processes", [(), TWO])
def test_unchanged_files_are_left_out_and_counted(processes: tuple[str, ...], root: Path) -> None:
    ran, done = run(root, *processes)
    assert (ran, done.returncode) == (set(), 0)
    said = f"{len(EVERY)} tests of {len(EVERY)} files unchanged since they passed (--all runs them)"
    assert said in done.stdout
    plant(root, "tests/test_leaf.py", FILES["tests/test_leaf.py"].replace("== 1", "== 2"))
    for _ in range(2):  # a file that failed has no stamp
        ran, done = run(root, *processes)
        assert done.returncode == 1
        assert "tests/test_leaf.py" in ran
        assert "tests/test_page.py" not in ran
    plant(root, "tests/test_leaf.py")
    assert passed(root) == EVERY - {LEAF, *PROCESSES}  # the latter have seen the other file


@pytest.mark.parametrize(
    ("options", "variables", "files"),
    [
        (["--all"], {}, EVERY),
        ([], {"CI": "true"}, EVERY),
        (["tests/test_leaf.py"], {}, {"tests/test_leaf.py"}),
        (["-k", "test_leaf"], {}, {"tests/test_leaf.py"}),
        (["-m", "not slow"], {}, EVERY),  # another choice has its own stamps
    ],
)
def test_runs_that_leave_out_nothing(
    options: list[str], variables: dict[str, str], files: set[str], root: Path
) -> None:
    ran, done = run(root, *options, **variables)
    assert ran == files, done.stdout


@pytest.mark.parametrize("options", [("--setup-plan",), ("-W", "ignore")])
def test_a_run_in_another_way_stamps_nothing(options: tuple[str, ...], root: Path) -> None:
    plant(root, LEAF, FILES[LEAF].replace("== 1", "> 0"))
    run(root, *options)
    assert LEAF not in passed(root)


def test_a_source_that_two_files_ask_for(root: Path) -> None:
    """inspect.getsource reads a file once in a process."""
    text = (
        "import inspect\n\nimport attnscale as at\n\ndef test_it():\n    assert inspect.getsource(at.leaf)\n"
    )
    two = {LEAF, "tests/test_law.py"}
    for name in two:
        plant(root, name, text)
    run(root)
    assert passed(root) >= two
    plant(root, "python/attnscale/leaf.py", FILES["python/attnscale/leaf.py"] + "# more\n")
    assert not passed(root) & two


@pytest.mark.parametrize(
    ("statement", "processes"), [("raise KeyboardInterrupt", ()), ("__import__('os')._exit(1)", TWO)]
)
def test_a_run_that_breaks_off_stamps_nothing(statement: str, processes: tuple[str, ...], root: Path) -> None:
    plant(root, "tests/test_z.py", f"def test_it():\n    {statement}\n")
    assert EVERY - passed(root) == SEE_NEW_FILES
    run(root, *processes)
    assert EVERY - passed(root) == SEE_NEW_FILES


def test_a_file_that_changes_while_it_runs_has_no_stamp(root: Path) -> None:
    text = "import helper\n\ndef test_it():\n    open(helper.__file__, 'a').write('# more\\nmore = 1\\n')\n"
    plant(root, "tests/test_leaf.py", text)
    ran, _ = run(root)
    assert "tests/test_leaf.py" in ran
    assert "tests/test_leaf.py" not in passed(root)


def test_files_of_tools_change_with_every_run_and_do_not_count(tmp_path: Path) -> None:
    for name in ("a", "build/a", ".mypy_cache/a"):
        plant(tmp_path, name, "text")
    tree = Tree(tmp_path)
    assert [tree.text(name) == "not there" for name in ("a", "build/a", ".mypy_cache/a")] == [
        False,
        False,
        True,
    ]


def test_the_recorder_hears_who_reads(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    (tmp_path / "a.md").write_text("")
    scope: dict[str, object] = {}
    source = "def read(hear, path):\n    hear('open', (path, 'r', 0))\n"
    exec(compile(source, str(tmp_path / "helper.py"), "exec"), scope)
    recorder.running = "test_a.py"
    scope["read"](recorder._hear, str(tmp_path / "a.md"))  # type: ignore[operator]
    for path, mode in (("/etc/passwd", "r"), (str(tmp_path / "b.md"), "w"), (3, "r")):
        recorder._hear("open", (path, mode, 0))
    assert recorder.found == {"helper.py": {("text", "a.md")}, "test_a.py": {("text", "a.md")}}


def test_what_the_stamps_read_belongs_to_the_test_that_asks() -> None:
    """Stamps are imported by each file of tests, which must not depend on the whole checkout by that."""
    recorder, path = Recorder(), unchanged.ROOT / "README.md"
    for name in ("tests/sources.py", "tests/cases.py"):
        code = compile("hear('open', (path, 'r'))", str(unchanged.ROOT / name), "exec")
        exec(code, {"hear": recorder._hear, "path": str(path)})
    assert set(recorder.found) == {"tests/cases.py", "tests/package/test_unchanged.py"}
