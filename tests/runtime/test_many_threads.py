# SPDX-License-Identifier: BSD-3-Clause
"""Calls from many Python threads at once, which share the pool, lazy imports and caches.

`make test-threads` runs this where Python has no lock; with it, threads still change places inside calls.
"""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import attnscale as at
import numpy as np

THREADS = 8

# A new process: caches are empty and modules not imported when all threads begin.
FIRST_CALLS = """
import sys, threading
import numpy as np
sys.setswitchinterval(1e-6)
import attnscale as at
q = np.random.default_rng(0).standard_normal((2, 96, 16), np.float32)
start, results = threading.Barrier(THREADS), [None] * THREADS
def first(i):
    start.wait()
    results[i] = (
        float(at.laws.get("entropy_invariant").multiplier(100, 16)),
        at.attention_entropy(q, q, scale="log_n", num_threads=2).tobytes(),
        at.normalizers.__name__, at.theory.__name__, at.variants.__name__,
        at.simd_level(), at.get_num_threads(),
    )
threads = [threading.Thread(target=first, args=(i,)) for i in range(THREADS)]
[t.start() for t in threads]
[t.join() for t in threads]
assert None not in results, results
assert len(set(results)) == 1, results
print("same")
"""


def test_the_first_calls_of_a_process_may_come_from_many_threads() -> None:
    program = FIRST_CALLS.replace("THREADS", str(THREADS))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "same\n"), done.stderr[-2000:]


def test_threads_get_the_results_that_one_gets() -> None:
    rng = np.random.default_rng(1)
    arrays = [rng.standard_normal((3, 2, 40 + i, 16), np.float32) for i in range(THREADS)]
    laws = ["standard", "log_n", "ssmax(s=0.43)", "natural_log_n"]

    def work(i: int) -> list[bytes]:
        q, k, v = arrays[i % THREADS]
        parts = []
        for law in laws:
            parts.append(at.attention_statistics(q, k, v, scale=law, is_causal=True).output.tobytes())
            parts.append(at.attention_gradients(q, k, v, v, scale=law, num_threads=2).query.tobytes())
        parts.append(at.solve_scale(q, k, 2.0).scale.tobytes())
        return parts

    alone = [work(i) for i in range(THREADS)]
    start = Barrier(THREADS)

    def together(i: int) -> list[bytes]:
        start.wait()
        return [part for _ in range(4) for part in work(i)]

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(THREADS) as pool:
            found = list(pool.map(together, range(THREADS)))
    finally:
        sys.setswitchinterval(interval)
    assert found == [parts * 4 for parts in alone]
