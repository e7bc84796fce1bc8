# SPDX-License-Identifier: BSD-3-Clause
"""What a call costs before any arithmetic, and what the import costs."""

from __future__ import annotations

import subprocess
import sys
import timeit
from collections.abc import Callable
from typing import Any

import attnscale as at
import pytest
from cases import random_inputs

MICROSECOND = 1e-6


def best_time(call: Callable[[], Any]) -> float:
    """Seconds a call, the best of many short runs: other work on the machine only adds."""
    return min(timeit.repeat(call, number=200, repeat=40)) / 200


@pytest.mark.parametrize(
    "call",
    [
        lambda q, k, v: at.attention(q, k, v),
        lambda q, k, v: at.attention(q, k, v, is_causal=True, scale=0.25),
        lambda q, k, v: at.attention_statistics(q, k, v),
        lambda q, k, v: at.attention_entropy(q, k),
    ],
    ids=["attention", "causal", "statistics", "entropy"],
)
def test_a_tiny_call_takes_at_most_15_microseconds(call: Callable[..., Any]) -> None:
    arrays = random_inputs(1, batch=(1,), heads=1, n_queries=8, n_keys=8, head_dim=16)
    assert best_time(lambda: call(*arrays)) < 15 * MICROSECOND


def test_a_law_takes_at_most_100_microseconds() -> None:
    q, k, v = random_inputs(1, batch=(1,), heads=1, n_queries=8, n_keys=8, head_dim=16)
    assert best_time(lambda: at.attention(q, k, v, is_causal=True, scale="log_n")) < 100 * MICROSECOND


def test_import_takes_at_most_50_milliseconds_over_numpy() -> None:
    code = "import numpy, time; t = time.perf_counter(); import attnscale; print(time.perf_counter() - t)"
    times = [
        float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
        for _ in range(5)
    ]
    assert min(times) < 0.05
