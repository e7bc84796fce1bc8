# SPDX-License-Identifier: BSD-3-Clause
"""Functions that the tests sweep, in a module that worker processes can import."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import attnscale as at
import numpy as np
from numpy.typing import NDArray


def power(base: float, exponent: int, factor: float = 1.0) -> float:
    return factor * base**exponent


def draw(n: int, law: str = "standard", *, rng: Any = None) -> NDArray[np.float64]:
    """Three numbers that depend on the parameters and on the stream."""
    return np.random.default_rng(rng).standard_normal(3) * n + len(law)


def entropy(n: int, scale: Any) -> at.AttentionStatistics:
    data = at.datasets.minilm_qk()
    return at.attention_statistics(data.query[:2, :n], data.key[:2, :n], scale=scale)


def scale_of(law: str) -> float:
    return float(at.laws.get(law).scale(512, 64))


def fail_at_3(n: int) -> float:
    if n == 3:
        raise LookupError(f"no {n}")
    return float(n)


class AwkwardError(Exception):
    """Cannot be unpickled: its arguments are not those of its constructor."""

    def __init__(self, *, reason: str) -> None:
        super().__init__(f"because of {reason}")


def fail_awkwardly(n: int) -> float:
    if n == 3:
        raise AwkwardError(reason="three")
    return float(n)


def die_at_3(n: int) -> float:
    if n == 3:
        time.sleep(0.5)  # the others finish first
        os.kill(os.getpid(), 9)
    return float(n)


def process_of(n: int, place: str) -> int:
    """Waits until a second process has begun a case, too: each leaves its number in the place."""
    Path(place, str(os.getpid())).touch()
    for _ in range(1000):  # of a hundredth of a second, where one is enough
        if len(os.listdir(place)) > 1:
            break
        time.sleep(0.01)
    return os.getpid()


def threads(n: int) -> int:
    return at.get_num_threads()


def slowly(n: int, rng: Any = None) -> NDArray[np.float64]:
    """Take far longer than a signal does from case 8 on, if the environment says so."""
    try:
        time.sleep(3.0 if n >= 8 and "SWEEP_WAITS" in os.environ else 0.1)
    except KeyboardInterrupt:  # what a worker has been given already it finishes
        os.environ.pop("SWEEP_WAITS", None)
        raise
    return draw(n, rng=rng)


_kept: list[Any] = []


def growing(n: int) -> int:
    """A process that grows with each case, and a joblib that minds the least growth."""
    import joblib.externals.loky.process_executor as loky

    loky._MEMORY_LEAK_CHECK_DELAY = loky._MAX_MEMORY_LEAK_SIZE = 0
    _kept.append(np.ones(1 << 20))
    return n


@dataclass(frozen=True)
class Estimate:
    """An estimate as an experiment returns it, without to_xarray."""

    value: float
    standard_error: float
    samples: int
    note: str | None = None


def estimate(n: int) -> Estimate:
    return Estimate(1 / n, 0.1, 10 * n)


@dataclass(frozen=True)
class Cut:
    value: float
    interrupted: bool


def cut_at_3(n: int) -> Cut:
    return Cut(n, interrupted=n == 3)
