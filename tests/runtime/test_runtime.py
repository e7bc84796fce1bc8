# SPDX-License-Identifier: BSD-3-Clause
"""Choice of the SIMD level, number of threads, fork, threadpoolctl."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator

import attnscale as at
import numpy as np
import pytest
from attnscale._base.runtime import threads_within

LEVELS = at.show_config()["available_simd_levels"]


def run_python(code: str, *options: str, timeout: float = 240, **environment: str) -> str:
    """Run code in a new interpreter and return its output; a failure shows its error output."""
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
    """Last line of error output of code that fails in a new interpreter."""
    command, env = [sys.executable, "-c", code], {**os.environ, **environment}
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 1
    return done.stderr.strip().splitlines()[-1]


# ---- SIMD level --------------------------------------------------------------------------------


def test_best_level_without_the_variable() -> None:
    """The last level, except for avx512_bf16 on a CPU that is not faster with it."""
    best = run_python("import attnscale as at; print(at.simd_level())", ATTNSCALE_SIMD="").strip()
    assert best == LEVELS[-1] or (LEVELS[-1], best) == ("avx512_bf16", LEVELS[-2])


@pytest.mark.parametrize("level", LEVELS)
def test_the_forced_level_is_the_one_in_use(level: str) -> None:
    """`make check` runs tests marked `levels` at each level."""
    assert run_python("import attnscale as at; print(at.simd_level())", ATTNSCALE_SIMD=level).strip() == level


@pytest.mark.levels
def test_this_run_is_at_the_level_it_asked_for() -> None:
    level = at.simd_level()
    assert level == os.environ.get("ATTNSCALE_SIMD", level)
    # Without the variable it is one of the last two: test_best_level_without_the_variable.
    assert "ATTNSCALE_SIMD" in os.environ or level in LEVELS[-2:]


def test_an_emulated_level_is_in_use_only_if_it_is_asked_for() -> None:
    code = "import attnscale as at; print(at.simd_level())"
    given = {name: value for name, value in os.environ.items() if name != "ATTNSCALE_SIMD"}
    done = subprocess.run([sys.executable, "-c", code], env=given, capture_output=True, text=True, check=True)
    assert not done.stdout.startswith("emulated")


def test_unknown_level_lists_the_choices() -> None:
    message = error_of("import attnscale as at; at.simd_level()", ATTNSCALE_SIMD="avx3")
    assert message == (
        f"RuntimeError: ATTNSCALE_SIMD must be one of {', '.join(LEVELS)} "
        "(what this build and this CPU have), got 'avx3'"
    )


def test_unknown_level_stops_a_computation_too() -> None:
    code = "import attnscale as at, numpy as np; x = np.ones((1, 4, 8)); at.attention(x, x, x)"
    assert "ATTNSCALE_SIMD" in error_of(code, ATTNSCALE_SIMD="avx3")


# ---- number of threads -------------------------------------------------------------------------


@pytest.fixture
def restore_threads() -> Iterator[None]:
    before = at.get_num_threads()
    yield
    at.set_num_threads(before)


def test_threads_within_ends_with_its_block_also_by_an_error() -> None:
    before = at.get_num_threads()

    def fail() -> None:
        with threads_within(before + 1):
            assert at.get_num_threads() == before + 1
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert at.get_num_threads() == before


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
        (2**31, ValueError, "n must be at most 2147483647, got 2147483648"),
        (2**70, ValueError, "n must be at most 2147483647, got 1180591620717411303424"),
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


# ---- threadpoolctl -----------------------------------------------------------------------------


@pytest.mark.parametrize("first", ["attnscale", "threadpoolctl"])
def test_threadpoolctl_sees_the_pool_whichever_is_imported_first(first: str) -> None:
    pytest.importorskip("threadpoolctl")
    code = f"import sys, importlib.util, {first}, attnscale; print('threadpoolctl' in sys.modules)"
    code += "; importlib.util.find_spec('threadpoolctl'); import threadpoolctl"
    code += "; print([each['user_api'] for each in threadpoolctl.threadpool_info()].count('attnscale'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(first == "threadpoolctl"), "1"]


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


# ---- configuration ------------------------------------------------------------------


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


# ---- fork --------------------------------------------------------------------------------------

FORK = """
import multiprocessing, sys, threading, warnings
import numpy as np
import attnscale as at

warnings.simplefilter("ignore", DeprecationWarning)
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
        results = pool.map_async(work, range(6)).get(timeout=200)
    done.set()
    assert all(np.array_equal(result, work(0)) for result in results)
    print("good")
"""


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
@pytest.mark.parametrize("moment", ["before", "after", "during"])
def test_fork(method: str, moment: str, tmp_path) -> None:
    """A child computes if it starts before, after or during parallel calls of the parent."""
    script = tmp_path / "forks.py"
    script.write_text(FORK)
    done = subprocess.run(
        [sys.executable, script, method, moment], capture_output=True, text=True, timeout=240
    )
    assert done.stdout.strip() == "good", done.stderr
