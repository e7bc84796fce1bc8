# SPDX-License-Identifier: BSD-3-Clause
"""How fast one call is on this machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .._core import run_fma
from .._runtime import get_num_threads
from ..attention import attention_entropy

_ROUNDS = 7
# Multiply-adds in registers for about 5 ms: 64 tasks a thread, short enough to share the cores evenly.
_TASKS, _STEPS = 64, 40_000


class Pace(NamedTuple):
    """Seconds of a call, and its multiplications and additions a second over those of the cores."""

    seconds: float
    share_of_peak: float


class _Time(NamedTuple):
    wall: float
    cpu: float


def entropy_pace(query: NDArray[np.float32], key: NDArray[np.float32]) -> Pace:
    """Time the entropy of every row in turns with the peak of the same level and number of threads.

    2 * head_dim operations are counted for each query and key: not the exponentials.

    Examples
    --------
    >>> import numpy as np
    >>> pace = entropy_pace(*np.random.default_rng(0).standard_normal((2, 4, 256, 64), np.float32))
    >>> pace.seconds > 0 and pace.share_of_peak > 0
    True
    """
    threads = get_num_threads()
    flops = 2.0 * query.size * key.shape[-2]
    peak_flops = _peak(threads)
    attention_entropy(query, key)  # the first call touches new pages and starts threads
    pairs = [
        (_timed(lambda: _peak(threads)), _timed(lambda: attention_entropy(query, key)))
        for _ in range(_ROUNDS)
    ]
    # Where other processes took part of the cores, the time of the CPUs is the fair one.
    disturbed = median(peak.cpu / peak.wall for peak, _ in pairs) < 0.95 * threads
    ratios = [peak.cpu / call.cpu if disturbed else peak.wall / call.wall for peak, call in pairs if call.cpu]
    return Pace(median(call.wall for _, call in pairs), flops / peak_flops * median(ratios or [0.0]))


def _peak(threads: int) -> float:
    """Run multiply-adds in registers on all threads, and return how many operations that were."""
    return run_fma(_TASKS * threads, _STEPS, False, threads)


def _timed(call: Callable[[], object]) -> _Time:
    time.sleep(0.02)
    cpu, wall = time.process_time(), time.perf_counter()
    call()
    return _Time(time.perf_counter() - wall, time.process_time() - cpu)
