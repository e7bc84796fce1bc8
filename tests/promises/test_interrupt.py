# SPDX-License-Identifier: BSD-3-Clause
"""Ctrl-C ends a long call at once, and later calls work."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import attnscale as at
import numpy as np
import pytest
from cases import random_inputs

# Seconds after which a process is taken to hang: far more than a busy machine needs.
HANGS = 120

# Each call has minutes of work or more. The parent sends SIGINT when it has read `ready`.
SCRIPT = """
import sys
import numpy as np
import attnscale as at

n, n_queries = {n_keys}, {n_queries}
x = np.ones((1, 16), np.float32)
q = np.broadcast_to(x, (64, n_queries, 16))
k = np.broadcast_to(x, (64, n, 16))
out = np.empty((64, n_queries, 16), np.float32)
try:
    print("ready", flush=True)
    {call}
except KeyboardInterrupt:
    print("interrupted")
    print(at.attention(k[0, :3], k[0, :3], k[0, :3], num_threads={threads})[0, 0])
else:
    print("finished")
"""


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("call", "n_queries", "n_keys"),
    [
        ("at.attention(q, k, k, out=out, num_threads={threads})", 2**20, 2**20),
        ("at.attention(q, k, k, out=out, num_threads={threads})", 1, 2**32),
        ("at.attention(q, k, k, normalizer='sparsemax', out=out, num_threads={threads})", 2**20, 2**20),
        ("at.attention_entropy(q, k, num_threads={threads})", 2**20, 2**20),
        ("at.entropy_curve(q, k, np.linspace(0, 1, 64), num_threads={threads})", 2**14, 2**24),
        ("at.solve_scale(q, k, 1.0, num_threads={threads})", 2**20, 2**20),
        (
            "at.attention(q, k, k, attn_mask=np.broadcast_to(np.array(True), (n_queries, n)),"
            " scale='log_n', out=out, num_threads={threads})",
            2**20,
            2**20,
        ),
        (
            "at.attention_gradients(q[:1], k[:1], k[:1], out[:1], num_threads={threads},"
            " forward=at.AttentionStatistics(out[:1], lse=np.zeros((1, n_queries))))",
            2**20,
            2**20,
        ),
        (
            "at.variants.linear_attention(q[:1], k[:1], k[:1], feature_map='relu', num_threads={threads})",
            1,
            2**32,
        ),
        ("at.variants.gradients('linear_attention', q, k, k, x, num_threads={threads})", 2**20, 2**20),
    ],
    ids=[
        *("attention", "decoding", "sparsemax", "entropy", "curve", "solve", "count", "gradients", "linear"),
        "linear gradients",
    ],
)
def test_sigint_ends_a_call_before_it_is_finished(
    call: str, n_queries: int, n_keys: int, threads: int
) -> None:
    code = SCRIPT.format(
        n_keys=n_keys, n_queries=n_queries, call=call.format(threads=threads), threads=threads
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
            time.sleep(0.3)  # most often, it is in the call by now
            child.send_signal(signal.SIGINT)
            answer, _ = child.communicate(timeout=HANGS)
        finally:
            child.kill()
    assert answer.split() == ["interrupted", "1.0"]  # the pool works on


def test_what_a_signal_handler_raises_is_what_surfaces() -> None:
    class AlarmError(Exception):
        pass

    def ring(*_: Any) -> None:
        raise AlarmError

    q = np.broadcast_to(np.ones((1, 8), np.float32), (2**20, 8))

    def call() -> None:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        at.attention_entropy(q, q)

    before = signal.signal(signal.SIGALRM, ring)
    try:
        with pytest.raises(AlarmError):
            call()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert at.attention_entropy(q[:2], q[:2]).shape == (2,)


# Nothing else could end the call.
OTHER_THREAD = """
import _thread, threading
import numpy as np
import attnscale as at

q = np.broadcast_to(np.ones((1, 16), np.float32), (64, 2**20, 16))
try:
    threading.Timer(0.1, _thread.interrupt_main).start()
    at.attention_entropy(q, q, num_threads=1)
except KeyboardInterrupt:
    print("interrupted")
"""


def test_other_threads_run_during_a_call() -> None:
    command = [sys.executable, "-c", OTHER_THREAD]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=HANGS)
    assert done.stdout == "interrupted\n"


def test_calls_from_many_threads_agree() -> None:
    inputs = [random_inputs(seed, n_queries=150, n_keys=300) for seed in range(8)]
    want = [at.attention(*each) for each in inputs]
    seen: list[Any] = [None] * 8

    def work(index: int) -> None:
        for _ in range(20):
            seen[index] = at.attention(*inputs[index])

    threads = [threading.Thread(target=work, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for one, other in zip(seen, want, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="counts threads in /proc")
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("call", ["attention(q, q, q", "attention_entropy(q, q", "entropy_curve(q, q, [1.0]"])
def test_a_call_starts_the_threads_it_is_given(call: str, threads: int) -> None:
    code = f"""
import os
import numpy as np
import attnscale as at

q = np.ones((8, 600, 16), np.float32)
before = len(os.listdir("/proc/self/task"))
at.{call}, num_threads={threads})
print(len(os.listdir("/proc/self/task")) - before)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) == threads - 1


def test_sigterm_ends_a_command_as_ctrl_c_does(tmp_path: Path) -> None:
    """As clusters stop a job; in the background of a shell SIGINT may be ignored."""
    store = tmp_path / "kept"
    words = ["mc", "max-cosine", "--n", "65536", "--samples", "9000000", "--store", str(store)]
    code = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        f"from attnscale.__main__ import run; sys.argv = {['attnscale', *words]!r}; sys.exit(run())"
    )
    with subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True) as child:
        try:
            while not (store / "attnscale-mc.json").exists():
                assert child.poll() is None
                time.sleep(0.02)
            child.send_signal(signal.SIGTERM)
            _, errors = child.communicate(timeout=HANGS)
        finally:
            child.kill()
    assert child.returncode == 143
    assert "attnscale: interrupted" in errors
    assert f"--store {store}" in errors
