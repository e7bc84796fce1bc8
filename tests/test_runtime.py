# SPDX-License-Identifier: BSD-3-Clause
"""SIMD levels, threads, fork, Ctrl-C, threadpoolctl, import time."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import attnscale as at
import numpy as np
import pytest

LEVELS = at.show_config()["available_simd_levels"]


def run_python(code: str, *options: str, timeout: float = 60, **environment: str) -> str:
    """What a fresh interpreter prints; its error output is the message of a failure."""
    done = subprocess.run(
        [sys.executable, *options, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def error_of(code: str, **environment: str) -> str:
    """The last line that a failing interpreter prints."""
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **environment}, capture_output=True, text=True
    )
    assert done.returncode == 1
    return done.stderr.strip().splitlines()[-1]


# ---- SIMD level --------------------------------------------------------------------------------


@pytest.mark.parametrize("level", LEVELS)
def test_forced_level_is_the_one_in_use(level: str) -> None:
    code = "import attnscale as at; print(at.simd_level(), at.show_config()['simd_level'])"
    assert run_python(code, ATTNSCALE_SIMD=level).split() == [level, level]


def test_best_level_without_the_variable() -> None:
    assert run_python("import attnscale as at; print(at.simd_level())", ATTNSCALE_SIMD="").strip() == LEVELS[-1]


def test_unknown_level_lists_the_choices() -> None:
    message = error_of("import attnscale as at; at.simd_level()", ATTNSCALE_SIMD="avx3")
    assert message == (
        f"RuntimeError: ATTNSCALE_SIMD must be one of {', '.join(LEVELS)} "
        "(what this build and this CPU have), got 'avx3'"
    )


def test_unknown_level_stops_a_computation_too() -> None:
    code = "import attnscale as at, numpy as np; x = np.ones((1, 4, 8)); at.attention(x, x, x)"
    assert "ATTNSCALE_SIMD" in error_of(code, ATTNSCALE_SIMD="avx3")


@pytest.mark.slow
@pytest.mark.parametrize("level", LEVELS[:-1])
def test_suite_at_every_lower_level(level: str) -> None:
    """The numeric tests once more in a process that is forced to the level."""
    here = os.path.dirname(__file__)
    names = ("attention", "curve", "dtypes", "masks", "promises", "scale", "state", "statistics", "strides")
    files = [os.path.join(here, f"test_{name}.py") for name in names]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *files],
        env={**os.environ, "ATTNSCALE_SIMD": level},
        capture_output=True,
        text=True,
        cwd=os.path.dirname(here),
    )
    assert done.returncode == 0, done.stdout[-4000:]
    assert re.search(r"\d+ passed", done.stdout)


# ---- number of threads -------------------------------------------------------------------------


@pytest.fixture
def restore_threads() -> Iterator[None]:
    before = at.get_num_threads()
    yield
    at.set_num_threads(before)


@pytest.mark.usefixtures("restore_threads")
def test_set_num_threads() -> None:
    at.set_num_threads(3)
    assert at.get_num_threads() == 3
    assert at.show_config()["num_threads"] == 3


@pytest.mark.parametrize(
    ("n", "error", "text"),
    [
        (0, ValueError, "n must be at least 1, got 0"),
        (-2, ValueError, "n must be at least 1, got -2"),
        (2.0, TypeError, "n must be an integer, got 2.0"),
        ("2", TypeError, "n must be an integer, got '2'"),
        (True, TypeError, "n must be an integer, got True"),
    ],
)
def test_bad_number_of_threads(n: object, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=re.escape(text)):
        at.set_num_threads(n)


def test_number_of_threads_from_the_environment() -> None:
    code = "import attnscale as at; print(at.get_num_threads())"
    assert int(run_python(code, ATTNSCALE_NUM_THREADS="5")) == 5
    for bad in ("0", "-1", "two", "1.5"):
        message = error_of(code, ATTNSCALE_NUM_THREADS=bad)
        assert message == f"RuntimeError: ATTNSCALE_NUM_THREADS must be an integer >= 1, got '{bad}'"


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no CPU affinity on this system")
def test_default_is_the_affinity() -> None:
    code = (
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))});"
        "import attnscale as at; print(at.get_num_threads())"
    )
    assert int(run_python(code, ATTNSCALE_NUM_THREADS="")) == 1


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="counts threads in /proc")
def test_threads_start_with_the_first_parallel_call() -> None:
    code = """
import os, numpy as np
before = len(os.listdir("/proc/self/task"))
import attnscale as at
x = np.ones((16, 300, 64), np.float32)
at.attention(x, x, x, num_threads=1)
print(len(os.listdir("/proc/self/task")) - before)
at.attention(x, x, x, num_threads=3)
print(len(os.listdir("/proc/self/task")) - before)
"""
    assert run_python(code).split() == ["0", "2"]


def test_results_do_not_depend_on_threads() -> None:
    rng = np.random.default_rng(1)
    q, k, v = rng.standard_normal((3, 3, 700, 48))
    runs = [at.attention_statistics(q, k, v, is_causal=True, num_threads=n) for n in (1, 2, 3, 7)]
    for run in runs[1:]:
        assert np.array_equal(run.output, runs[0].output)
        assert np.array_equal(run.entropy, runs[0].entropy)


def test_concurrent_calls_give_the_same_results() -> None:
    rng = np.random.default_rng(2)
    q, k, v = rng.standard_normal((3, 4, 300, 32))
    expected = at.attention(q, k, v)
    wrong = []

    def call() -> None:
        for _ in range(20):
            if not np.array_equal(at.attention(q, k, v), expected):
                wrong.append(threading.get_ident())

    callers = [threading.Thread(target=call) for _ in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert wrong == []


# ---- threadpoolctl -----------------------------------------------------------------------------


@pytest.mark.usefixtures("restore_threads")
def test_threadpoolctl_sees_and_limits_the_pool() -> None:
    threadpoolctl = pytest.importorskip("threadpoolctl")
    at.set_num_threads(4)
    (pool,) = [info for info in threadpoolctl.threadpool_info() if info["user_api"] == "attnscale"]
    assert pool["internal_api"] == "attnscale"
    assert pool["num_threads"] == 4
    assert pool["version"] == at.__version__
    with threadpoolctl.threadpool_limits(limits=2, user_api="attnscale"):
        assert at.get_num_threads() == 2
    assert at.get_num_threads() == 4


# ---- configuration and import ------------------------------------------------------------------


def test_show_config() -> None:
    config = at.show_config()
    assert config["version"] == at.__version__
    assert config["simd_level"] in config["available_simd_levels"]
    assert config["numpy"] == np.__version__
    assert "-ffp-contract=off" in config["flags"]
    assert "-ffast-math" not in config["flags"]
    assert "-march=native" not in config["flags"]
    text = str(config).splitlines()
    assert len(text) == len(config)
    assert any(re.fullmatch(r"SIMD level +" + config["simd_level"], line) for line in text)
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", config[name]) for name in ("xsimd", "xtensor", "pybind11"))


def test_import_costs_little_more_than_numpy() -> None:
    """At most 50 ms. The best of five runs: other work on the machine only adds."""
    code = (
        "import time, numpy; start = time.perf_counter(); import attnscale; print(time.perf_counter() - start)"
    )
    assert min(float(run_python(code)) for _ in range(5)) < 0.05


# ---- fork --------------------------------------------------------------------------------------

FORK = """
import multiprocessing, sys, threading, warnings
import numpy as np
import attnscale as at

warnings.simplefilter("ignore", DeprecationWarning)  # fork with threads: this is what is tested
x = np.random.default_rng(3).standard_normal((8, 300, 32))

def work(_):
    return at.attention(x, x, x, num_threads=3)

if __name__ == "__main__":
    method, moment = sys.argv[1:]
    if moment == "after":
        work(0)
    done = threading.Event()
    def keep_busy():
        while not done.is_set():
            work(0)
    other = threading.Thread(target=keep_busy)
    if moment == "during":
        other.start()
    with multiprocessing.get_context(method).Pool(2) as pool:
        results = pool.map_async(work, range(6)).get(timeout=40)
    done.set()
    assert all(np.array_equal(result, work(0)) for result in results)
    print("good")
"""


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
@pytest.mark.parametrize("moment", ["before", "after", "during"])
def test_fork(method: str, moment: str, tmp_path) -> None:
    """A child computes, whether it starts before, after or during the parent's parallel calls."""
    script = tmp_path / "forks.py"
    script.write_text(FORK)
    done = subprocess.run(
        [sys.executable, script, method, moment], capture_output=True, text=True, timeout=60
    )
    assert done.stdout.strip() == "good", done.stderr


# ---- Ctrl-C ------------------------------------------------------------------------------------


@contextmanager
def interrupt_after(seconds: float) -> Iterator[list[float]]:
    """Sends SIGINT; the list receives the time at which it was sent."""
    sent: list[float] = []

    def send() -> None:
        sent.append(time.perf_counter())
        os.kill(os.getpid(), signal.SIGINT)

    timer = threading.Timer(seconds, send)
    timer.start()
    try:
        yield sent
    finally:
        timer.cancel()
        timer.join()


def long_calls() -> dict[str, object]:
    """Calls that would take many seconds, one for each driver and each way to split the work."""
    x = np.ones((1, 100_000, 64))
    decode = np.ones((1, 1, 16))
    keys = np.broadcast_to(np.ones((1, 1, 16)), (64, 1 << 24, 16))
    return {
        "attention": lambda n: at.attention(x, x, x, num_threads=n),
        "entropy": lambda n: at.attention_entropy(x, x, num_threads=n),
        "curve": lambda n: at.entropy_curve(x, x, np.linspace(0.1, 1, 8), num_threads=n),
        "decode": lambda n: at.attention_entropy(
            np.broadcast_to(decode, (64, 1, 16)), keys, num_threads=n
        ),
    }


@pytest.mark.parametrize("n_threads", [1, 2])
@pytest.mark.parametrize("call", ["attention", "entropy", "curve", "decode"])
def test_ctrl_c_is_answered_within_a_fifth_of_a_second(call: str, n_threads: int) -> None:
    run = long_calls()[call]
    with interrupt_after(0.3) as sent, pytest.raises(KeyboardInterrupt):
        run(n_threads)
    assert time.perf_counter() - sent[0] < 0.2
    x = np.ones((4, 100, 8))
    assert np.array_equal(at.attention(x, x, x, num_threads=2), x)


def test_other_python_threads_run_meanwhile() -> None:
    x = np.ones((1, 20_000, 64))
    counts = [0]
    done = threading.Event()

    def count() -> None:
        while not done.is_set():
            counts[0] += 1
            time.sleep(0.001)

    counter = threading.Thread(target=count)
    counter.start()
    at.attention_entropy(x, x, num_threads=1)
    done.set()
    counter.join()
    assert counts[0] > 20
