# SPDX-License-Identifier: BSD-3-Clause
"""A pytest plugin: a run of all tests leaves out the files that are unchanged since they passed.

A file of tests depends on the code of what it imports (tests/sources.py), on the bytes of the files of this
checkout that it or a helper opened as text or started, on the names in the folders that they listed, on
Python, the installed packages and the extension module (tests/stamps.py). One that asks for docstrings
depends on them. One that starts processes depends on all code, and on all files but pages; in tests/package
on pages, too, and on the names of all files.

A stamp in build/stamps says that a file passed with all that. It is removed before the file runs, and written
at the end if each of its tests ran and none failed. Nothing is left out with --all, -k, -W, -o or CI=true,
nor where the command line names files.
"""

from __future__ import annotations

import linecache
import os
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, TypedDict

import pytest
from sources import ROOT, Tree, digest_of, read, write

_READS = {"open": "text", "os.listdir": "names", "os.scandir": "names"}
_STARTS = frozenset({"subprocess.Popen", "os.posix_spawn", "os.exec", "os.fork", "os.forkpty", "os.system"})
# Imports list folders and open files, and pytest reads what it rewrites: the closure has these.
_IMPORTING = (
    "<frozen importlib._bootstrap",
    "_pytest/assertion/rewrite.py",
    "_pytest/pathlib.py",
    "_pytest/main.py",
)
# Every file imports the stamps through conftest.py: what they read counts for the test that asks alone.
_OF_STAMPS = ("tests/sources.py", "tests/stamps.py", "tests/unchanged.py")
# Tests here ask whether files exist, which no recorder hears.
_LOOK_AROUND = ("tests/package/", "tests/audit/test_audit_frameworks.py")

Reads = set[tuple[str, str]]


class Recorder:
    """Record of opened files, listed folders and started processes, by the file of tests that did it.

    A file does it if a function of it is being called, or if it is the one that runs. So what a helper caches
    is known for the helper, and counts for each file that imports it.
    """

    def __init__(self, root: Path = ROOT) -> None:
        self._root = f"{root}{os.sep}"
        self._unread = tuple(f"{root}{os.sep}{each}{os.sep}" for each in (".venv", ".git", "build/stamps"))
        self._apart = tuple(f"{root}{os.sep}{each}{os.sep}" for each in (".venv", "build", ".git", "python"))
        self.running: str | None = None
        self.found: defaultdict[str, Reads] = defaultdict(set)

    def start(self) -> None:
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        kind = _READS.get(event)
        if kind is not None:
            self._hear_read(kind, *arguments[:2])
        elif event in _STARTS:
            self._add(("process", ""), sys._getframe(1))
            if event == "subprocess.Popen":  # a program that was built here
                self._hear_read("text", arguments[0])

    def _hear_read(self, kind: str, path: Any, mode: Any = None) -> None:
        if isinstance(path, int) or (kind == "text" and isinstance(mode, str) and mode[:1] in "wxa"):
            return
        name = os.path.abspath(os.fsdecode("." if path is None else path)) + (
            os.sep if kind == "names" else ""
        )
        if not name.startswith(self._root) or name.startswith(self._unread) or name.endswith(".pyc"):
            return
        frame = sys._getframe(2)
        if not any(each in frame.f_code.co_filename for each in _IMPORTING):
            self._add((kind, name[len(self._root) :].rstrip(os.sep) or "."), frame)

    def _add(self, what: tuple[str, str], frame: FrameType | None) -> None:
        if self.running is not None:
            self.found[self.running].add(what)
        while frame is not None:
            name = frame.f_code.co_filename
            if name.startswith(self._root) and not name.startswith(self._apart):
                file = name[len(self._root) :]
                if file not in _OF_STAMPS:
                    self.found[file].add(what)
            frame = frame.f_back


class Stamps:
    """The files of tests that passed with what there is now.

    Parameters
    ----------
    place : path
        Folder of the stamps.
    tree : Tree
        The checkout.
    surroundings : list of str
        What else all tests depend on.
    """

    def __init__(self, place: Path, tree: Tree, surroundings: list[str]) -> None:
        self.place, self.tree, self.surroundings = place, tree, surroundings

    def files(self) -> list[str]:
        """Files that have a stamp, whether it holds or not."""
        names = (str(each.relative_to(self.place)) for each in self.place.rglob("*.json"))
        return sorted(name.removesuffix(".json") for name in names)

    def tests(self, file: str) -> int | None:
        """Number of tests of a file that passed with what there is now; None if it did not."""
        kept = read(self._path(file))
        try:
            reads = {(kind, name) for kind, name in kept["reads"]}
            return int(kept["tests"]) if kept["digest"] == self._digest(file, reads) else None
        except (KeyError, TypeError, ValueError):
            return None

    def remove(self, file: str) -> None:
        self._path(file).unlink(missing_ok=True)

    def keep(self, file: str, tests: int, found: Mapping[str, Reads]) -> None:
        """Stamp a file that passed; `found` has what each file read."""
        reads = set().union(*(found.get(each, ()) for each in self._uses(file)))
        content = {"tests": tests, "digest": self._digest(file, reads), "reads": sorted(reads)}
        write(self._path(file), content)

    def _path(self, file: str) -> Path:
        return self.place / f"{file}.json"

    def _uses(self, file: str) -> frozenset[str]:
        around = [str(folder / "conftest.py") for folder in Path(file).parents]
        return self.tree.closure(file, *(each for each in around if each in self.tree.bytes))

    def _digest(self, file: str, reads: Reads) -> str:
        tree, looks_around = self.tree, file.startswith(_LOOK_AROUND)
        uses = self._uses(file)
        digest = tree.text if tree.reads_docstrings(uses) else tree.code
        parts = [("code", name, digest(name)) for name in uses]
        parts.append(("text", file, tree.text(file)))
        if tree.starts_processes(uses):
            reads = reads | {("process", "")}
        if looks_around:
            parts.append(("names", ".", tree.listing(".")))
        for kind, name in reads:
            if kind == "process":
                parts.append((kind, name, tree.all_code + (tree.all_pages if looks_around else "")))
            else:
                found = tree.listing(name) if kind == "names" else tree.text(name)
                parts.append((kind, name, found))
        return digest_of([self.surroundings, sorted(parts)])


class Told(TypedDict):
    """Report of a worker of xdist at its end."""

    items: dict[str, int]  # tests of each file
    failed: list[str]  # files that could not be imported
    found: dict[str, list[tuple[str, str]]]


class Plugin:
    """The part in the process that collects and runs tests: it leaves out files, and records."""

    def __init__(self, root: Path, left_out: dict[str, int], recorder: Recorder) -> None:
        self._root, self.left_out, self._recorder = root, left_out, recorder
        self._items: Counter[str] = Counter()
        self._failed: set[str] = set()

    def _name(self, path: Path) -> str:
        return str(path.relative_to(self._root)) if path.is_relative_to(self._root) else str(path)

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        return True if self._name(collection_path) in self.left_out else None

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(
        self, collector: pytest.Collector
    ) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        name = self._name(collector.path)
        if isinstance(collector, pytest.File):
            self._begin(name)
            self._items[name] += 0
        report = yield
        if report.failed:
            self._failed.add(name)
        return report

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._items.update(self._name(item.path) for item in session.items)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> None:
        self._begin(self._name(item.path))

    def _begin(self, file: str) -> None:
        """Note the file that runs; it is to read what inspect.getsource has kept for another one."""
        if self._recorder.running != file:
            self._recorder.running = file
            for path in [each for each in linecache.cache if each.startswith(str(self._root))]:
                del linecache.cache[path]

    def told(self) -> Told:
        found = {file: sorted(reads) for file, reads in self._recorder.found.items()}
        return {"items": dict(self._items), "failed": sorted(self._failed), "found": found}

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["unchanged"] = self.told()


class Keeper:
    """The part in the process that the caller started: it chooses the files to leave out, and stamps.

    Parameters
    ----------
    stamps : Stamps
    everything : bool
        Leave out nothing.
    """

    def __init__(self, stamps: Stamps, everything: bool) -> None:
        self._stamps = stamps
        self.left_out: dict[str, int] = {}
        for file in stamps.files():
            tests = None if everything else stamps.tests(file)
            if tests is None:
                stamps.remove(file)  # it runs
            else:
                self.left_out[file] = tests
        self._ended: Counter[str] = Counter()
        self._failed: set[str] = set()
        self._workers = 0
        self._told: list[Told | None] = []

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        self._workers += 1
        node.workerinput["left_out"] = self.left_out

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self._told.append(getattr(node, "workeroutput", {}).get("unchanged"))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        file = report.nodeid.partition("::")[0]
        self._ended[file] += report.when == "teardown"
        if report.failed:
            self._failed.add(file)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        alone = session.config.pluginmanager.get_plugin("unchanged")
        told = self._told if self._workers else [alone.told()]
        heard = [each for each in told if each is not None]  # a worker that broke says nothing
        usual = {pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED}
        if exitstatus in usual and len(heard) == max(1, self._workers):
            self._keep(heard)
        self._stamps.tree.sources.keep()
        if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and self.left_out:
            session.exitstatus = pytest.ExitCode.OK

    def _keep(self, told: Iterable[Told]) -> None:
        items: dict[str, int] = {}
        found: defaultdict[str, Reads] = defaultdict(set)
        for each in told:
            items |= each["items"]  # each worker collects all
            self._failed.update(each["failed"])
            for file, reads in each["found"].items():
                found[file] |= {(kind, name) for kind, name in reads}
        before, root = self._stamps, self._stamps.tree.root
        now = Stamps(before.place, Tree(root, before.tree.sources), before.surroundings)
        for file, tests in items.items():
            if file not in self._failed and self._ended[file] == tests:
                before.keep(file, tests, found)
                if now.tests(file) is None:  # something changed while it ran
                    before.remove(file)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self.left_out:
            tests, files = sum(self.left_out.values()), len(self.left_out)
            kept = f"{tests:,} tests of {files} files unchanged since they passed"
            terminalreporter.write_line(f"{kept} (--all runs them)")


def is_for_all(config: pytest.Config) -> bool:
    """Whether a run leaves out nothing."""
    return bool(config.getoption("--all") or "CI" in os.environ)


def _is_whole(config: pytest.Config) -> bool:
    """Whether each file runs as the marks and pyproject.toml say: the caller named nothing else."""
    files = ("keyword", "collectonly", "deselect", "ignore", "ignore_glob", "lf")
    steps = ("stepwise", "stepwise_skip", "stepwise_reset", "setuponly", "setupplan")
    others = ("runxfail", "pythonwarnings")
    narrowed = any(getattr(config.option, each, False) for each in (*files, *steps, *others))
    # pytest enters its options --strict-markers and --strict-config of pyproject.toml here, too.
    overridden = {*(config.option.override_ini or ())} - {"strict_markers=true", "strict_config=true"}
    return config.args_source == pytest.Config.ArgsSource.TESTPATHS and not narrowed and not overridden


def register(config: pytest.Config, surroundings: Callable[[], list[str]]) -> None:
    """Add the plugin to a run of all tests, which depend on these surroundings, too."""
    root, given = config.rootpath, getattr(config, "workerinput", None)
    if given is None:
        if "CI" in os.environ or not _is_whole(config):  # stamps cost seconds, and CI has no second run
            return
        place = root / "build" / "stamps" / (digest_of(config.option.markexpr)[:8])
        keeper = Keeper(Stamps(place, Tree(root), surroundings()), is_for_all(config))
        config.pluginmanager.register(keeper, "unchanged-keeper")
        left_out = keeper.left_out
    elif "left_out" in given:
        left_out = given["left_out"]
    else:
        return
    recorder = Recorder(root)
    recorder.start()
    config.pluginmanager.register(Plugin(root, left_out, recorder), "unchanged")
