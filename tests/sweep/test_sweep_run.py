# SPDX-License-Identifier: BSD-3-Clause
"""sweep over joblib, processes, threads and a dask cluster: equal results, dead workers, Ctrl-C."""

from __future__ import annotations

import io
import os
import pickle
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import attnscale as at
import numpy as np
import pytest
import sweep_functions
from attnscale._grid import case as cases
from attnscale._sweep import task as tasks

pytest.importorskip("xarray")
pytest.importorskip("joblib")

GRID = {"n": [1, 2, 3, 4], "law": ["a", "b"]}
# Seconds after which a process is taken to hang: far more than a busy machine needs.
HANGS = 120


def data(table: Any) -> Any:
    return table.drop_attrs(deep=False)


def sweep(function: Any, grid: Any, **options: Any) -> Any:
    return at.sweep(function, grid, **{"progress": False, **options})


class Backwards(Executor):
    """Runs its cases when the last one has come, in reverse order."""

    def __init__(self, n_cases: int) -> None:
        self.waiting: list[Callable[[], None]] = []
        self.n_cases = n_cases

    def submit(self, function: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.waiting.append(lambda: future.set_result(function(*args, **kwargs)))
        if len(self.waiting) == self.n_cases:
            for each in reversed(self.waiting):
                each()
        return future


@contextmanager
def processes() -> Iterator[dict[str, Any]]:
    with ProcessPoolExecutor(2) as executor:
        yield {"executor": executor}


@contextmanager
def threads() -> Iterator[dict[str, Any]]:
    with ThreadPoolExecutor(3) as executor:
        yield {"executor": executor}


@contextmanager
def backwards() -> Iterator[dict[str, Any]]:
    yield {"executor": Backwards(8)}


@contextmanager
def joblib_processes() -> Iterator[dict[str, Any]]:
    yield {"n_jobs": 2}


@contextmanager
def joblib_threads() -> Iterator[dict[str, Any]]:
    import joblib

    with joblib.parallel_config("threading"):
        yield {"n_jobs": 2}


@contextmanager
def joblib_all_at_once() -> Iterator[dict[str, Any]]:
    """A backend without results before the end, like Ray's."""
    from joblib import parallel_config
    from joblib.parallel import BACKENDS, ThreadingBackend, register_parallel_backend

    class Late(ThreadingBackend):
        supports_return_generator = False

    register_parallel_backend("late", Late)
    with parallel_config("late"):
        yield {"n_jobs": 2}
    del BACKENDS["late"]


RUNNERS = [processes, threads, backwards, joblib_processes, joblib_threads, joblib_all_at_once]


@pytest.mark.parametrize("runner", RUNNERS)
def test_results_do_not_depend_on_what_runs_them(runner: Any, tmp_path: Path) -> None:
    here = sweep(sweep_functions.draw, GRID, rng=3)
    seen: list[tuple[int, int]] = []
    with runner() as options:
        there = sweep(
            sweep_functions.draw,
            GRID,
            rng=3,
            store=tmp_path,
            **{**options, "progress": lambda *counts: seen.append(counts)},
        )
    assert data(there).identical(data(here))
    assert seen == [(done, 8) for done in range(9)]
    assert data(sweep(sweep_functions.draw, GRID, rng=3, store=tmp_path)).identical(data(here))


def test_processes_that_grow_are_replaced_without_a_word() -> None:
    """Joblib's warning would let the sweep wait for ever where warnings are errors, as in these tests."""
    pytest.importorskip("psutil")  # by which joblib measures them
    loky = pytest.importorskip("joblib.externals.loky")
    n = list(range(12))
    try:
        assert sweep(sweep_functions.growing, {"n": n}, n_jobs=2)["value"].values.tolist() == n
    finally:
        loky.get_reusable_executor().shutdown(kill_workers=True)


@pytest.mark.parametrize("runner", [processes, joblib_processes])
def test_cases_run_in_several_processes(runner: Any, tmp_path: Path) -> None:
    grid, constants = {"n": range(12)}, {"place": str(tmp_path)}
    with runner() as options:
        pids = sweep(sweep_functions.process_of, grid, constants=constants, **options)["value"].values
    assert len(set(pids)) == 2
    assert os.getpid() not in pids


def test_closures_run_in_joblib_processes() -> None:
    factor = 3
    assert sweep(lambda n: n * factor, {"n": [1, 2]}, n_jobs=2)["value"].values.tolist() == [3, 6]


def test_joblib_workers_share_the_cores() -> None:
    before = at.get_num_threads()
    try:
        at.set_num_threads(2)
        assert (sweep(sweep_functions.threads, {"n": range(4)}, n_jobs=2)["value"] == 1).all()
        assert at.get_num_threads() == 2
    finally:
        at.set_num_threads(before)


def test_a_case_gives_its_threads_back() -> None:
    before = at.get_num_threads()
    try:
        at.set_num_threads(5)
        case = cases.Case((0,), {"n": 1}, "")
        away = tasks.FunctionTask(sweep_functions.threads, {}, None, frozenset(), num_threads=2, away=True)
        for task, expected in ((away, 2), (pickle.loads(pickle.dumps(replace(away, away=False))), 2)):
            assert task(case)["value"].values == expected
            assert at.get_num_threads() == 5
        assert replace(away, away=False)(case)["value"].values == 5  # the caller's own process
    finally:
        at.set_num_threads(before)


@pytest.mark.parametrize("scale", [0.25, 0.5])  # the second one meets workers that know the first
def test_registered_laws_go_along(scale: float) -> None:
    at.laws.register("sweep_run_test")(lambda n, head_dim: np.full_like(n, scale))
    at.laws.register("not_in_the_grid")(lambda n, head_dim, *, base: n)
    grid = {"law": ["standard", "sweep_run_test"]}
    assert sweep(sweep_functions.scale_of, grid, n_jobs=2)["value"].values.tolist() == [0.125, scale]


@pytest.mark.parametrize("function", [sweep_functions.fail_at_3, sweep_functions.fail_awkwardly])
@pytest.mark.parametrize("runner", [processes, threads, joblib_processes])
def test_one_failure_elsewhere_costs_one_case(function: Any, runner: Any) -> None:
    with runner() as options, pytest.raises(at.SweepError) as raised:
        sweep(function, {"n": [1, 2, 3, 4]}, **options)
    assert list(raised.value.failures) == ["n=3"]
    assert str(raised.value).startswith("1 of 4 cases failed, the first at n=3: ")
    np.testing.assert_array_equal(raised.value.partial["value"], [1, 2, np.nan, 4])
    if runner is not threads:
        (note,) = raised.value.__notes__
        assert "in fail_a" in note  # the worker's traceback


@pytest.mark.parametrize("runner", [processes, joblib_processes])
@pytest.mark.filterwarnings("ignore::UserWarning:joblib")  # says that a worker died
def test_a_worker_that_dies_does_not_take_finished_cases_with_it(runner: Any, tmp_path: Path) -> None:
    with runner() as options, pytest.raises(at.SweepError, match="no worker returned its result") as raised:
        sweep(sweep_functions.die_at_3, {"n": [1, 2, 3]}, store=tmp_path, **options)
    assert "n=3" in raised.value.failures
    kept = len(list((tmp_path / "cases").iterdir()))
    assert kept == 3 - len(raised.value.failures)
    assert kept >= 1


class Dying(Executor):
    """An executor that takes two cases, and then breaks."""

    taken = 0

    def submit(self, function: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.taken += 1
        if self.taken > 2:
            raise BrokenExecutor("a child process terminated abruptly")
        future: Future[Any] = Future()
        future.set_result(function(*args, **kwargs))
        return future


def test_a_pool_that_breaks_before_it_has_all_cases(tmp_path: Path) -> None:
    with pytest.raises(
        at.SweepError, match=r"^2 of 4 .* BrokenExecutor: a child process .* \(2 are"
    ) as raised:
        sweep(lambda n: n, {"n": [1, 2, 3, 4]}, executor=Dying(), store=tmp_path)
    assert raised.value.partial["value"].values.tolist()[:2] == [1, 2]
    assert list(raised.value.failures) == ["n=3", "n=4"]


class Forgetting(Dying):
    """An executor that takes two cases, and breaks without a word about the others."""

    _broken = "a child process terminated abruptly"  # as in a ProcessPoolExecutor

    def submit(self, *arguments: Any, **options: Any) -> Future[Any]:
        return super().submit(*arguments, **options) if self.taken < 2 else Future()


def test_cases_that_a_broken_pool_forgot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnscale._grid.complete._LOOK", 0.01)
    with pytest.raises(at.SweepError, match=r"^2 of 4 .* returned its result: CancelledError") as raised:
        sweep(lambda n: n, {"n": [1, 2, 3, 4]}, executor=Forgetting())
    assert raised.value.partial["value"].values.tolist()[:2] == [1, 2]


def test_a_function_that_cannot_be_sent_is_a_failure_of_each_case() -> None:
    with ProcessPoolExecutor(1) as executor, pytest.raises(at.SweepError, match=r"2 of 2 .*[Pp]ickle"):
        sweep(lambda n: n, {"n": [1, 2]}, executor=executor)


SCRIPT = """
import signal, sys
from concurrent.futures import ProcessPoolExecutor
import attnscale as at
import sweep_functions

def progress(done, total):
    print(done, flush=True)

# The tests may have been started in the background, where the shell lets Ctrl-C be ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
options = {}
if sys.argv[2] == "joblib":
    options["n_jobs"] = 2
elif sys.argv[2] == "processes":
    options["executor"] = ProcessPoolExecutor(2)
grid = {"n": list(range(40))}
at.sweep(sweep_functions.slowly, grid, store=sys.argv[1], progress=progress, rng=2, **options)
"""


@pytest.mark.parametrize("runner", ["here", "processes", "joblib"])
def test_ctrl_c_keeps_finished_cases_and_says_how_to_go_on(runner: str, tmp_path: Path) -> None:
    store = tmp_path / "store"
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(store), runner],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parent,
        env=os.environ | {"SWEEP_WAITS": "1"},
        start_new_session=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line == "4\n":
            break
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the workers too
    try:
        _, errors = process.communicate(timeout=HANGS)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    kept = len(list((store / "cases").glob("*.npz")))
    assert 4 <= kept < 40
    # A file may be there whose case was not yet counted.
    assert any(f"SweepInterrupted: {n} of 40 cases are finished; " in errors for n in (kept - 1, kept))
    assert f"{str(store)!r} keeps them, and the same call computes the rest" in errors
    whole = sweep(sweep_functions.draw, {"n": list(range(40))}, rng=2)
    with ThreadPoolExecutor(40) as executor:
        resumed = sweep(sweep_functions.slowly, {"n": list(range(40))}, store=store, executor=executor)
    assert data(resumed).identical(data(whole))


@pytest.mark.slow
def test_a_dask_cluster_that_loses_a_worker_finishes(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # dask's own, of its start and of the worker that dies
        distributed = pytest.importorskip("dask.distributed")
        with (
            distributed.LocalCluster(
                n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
            ) as cluster,
            distributed.Client(cluster) as client,
        ):
            pids = dict(client.run(os.getpid).items())
            assert len(set(pids.values())) == 2
            killed = []

            def progress(done: int, total: int) -> None:
                if done == 5 and not killed:
                    killed.append(next(iter(pids.values())))
                    os.kill(killed[0], signal.SIGKILL)

            grid = {"n": list(range(30))}
            executor = client.get_executor()
            there = sweep(
                sweep_functions.slowly, grid, rng=6, executor=executor, progress=progress, store=tmp_path
            )
            assert killed
            assert killed[0] not in client.run(os.getpid).values()
    assert data(there).identical(data(sweep(sweep_functions.draw, grid, rng=6)))


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("tqdm")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    for _ in range(2):  # the second one has nothing left to do
        terminal.truncate(0)
        at.sweep(sweep_functions.draw, {"n": range(1, 4)}, rng=1, store=tmp_path)
        assert "100%" in terminal.getvalue()
        assert "3/3" in terminal.getvalue()


def test_no_bar_without_a_terminal_and_a_line_without_tqdm(monkeypatch: pytest.MonkeyPatch) -> None:
    for stream, options in ((io.StringIO(), {}), (Terminal(), {"progress": False})):
        monkeypatch.setattr(sys, "stderr", stream)
        at.sweep(sweep_functions.draw, {"n": [1]}, **options)
        assert stream.getvalue() == ""
    monkeypatch.setitem(sys.modules, "tqdm", None)
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    assert at.sweep(sweep_functions.power, {"base": [3.0], "exponent": [2]})["value"].item() == 9
    assert "1 of 1 cases" in terminal.getvalue()
