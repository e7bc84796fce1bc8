# SPDX-License-Identifier: BSD-3-Clause
"""python -m tools.faults.pairs: two processes of unequal identity begin one store at the same moment.

Of each pair one must be refused, and the store must then hold the other one's numbers alone, bit for bit. The
status is 1 if a pair ends otherwise.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import attnscale as at
import numpy as np

GRID = {"n": list(range(8, 14))}


def draws(n: int, size: float, rng: Any) -> Any:
    """Entropies of random heads of a size."""
    query, key = rng.standard_normal((2, n, 8)) * size
    return at.attention_entropy(query, key)


def sweep(store: Path | None, seed: int, size: float, **options: Any) -> Any:
    """The table of a sweep, as an array."""
    options |= {"constants": {"size": size}, "rng": seed, "progress": False}
    return at.sweep(draws, GRID, store=store, **options)["value"].values


def experiment(store: Path | None, seed: int, **options: Any) -> Any:
    """The values of an experiment."""
    return at.montecarlo.max_cosine([8, 16, 32], 16, samples=64, store=store, rng=seed, **options).value


#: The two runs of each pair, by kind; each takes a store and options.
KINDS: dict[str, tuple[Callable[..., Any], ...]] = {
    "sweep, seeds": tuple(partial(sweep, seed=seed, size=1.0) for seed in (1, 2)),
    "sweep, constants": tuple(partial(sweep, seed=1, size=size) for size in (1.0, 2.0)),
    "mc, seeds": tuple(partial(experiment, seed=seed) for seed in (1, 2)),
}


def begin(runs: tuple[Callable[..., Any], ...], store: Path, barrier: Any) -> Iterator[int]:
    """Processes that run a half each; a refused one exits with 1."""
    for part, run in enumerate(runs, 1):
        if process := os.fork():
            yield process
            continue
        status = 99
        try:
            barrier.wait()
            run(store, part=(part, 2))
            status = 0
        except ValueError as error:
            status = 1 if ", whose " in str(error) else 98
        finally:
            os._exit(status)


def judged(runs: tuple[Callable[..., Any], ...], wanted: list[Any], store: Path) -> str:
    """Outcome of a pair: "one refused", or a fault in words."""
    barrier = get_context("fork").Barrier(len(runs))
    processes = list(begin(runs, store, barrier))
    ends = [os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in processes]
    if sorted(ends) != [0, 1]:
        return f"exit statuses {ends}"
    winner = ends.index(0)
    try:
        runs[1 - winner](store)
    except ValueError:
        pass
    else:
        return "the refused one runs on this store"
    table = runs[winner](store)
    return "one refused" if np.array_equal(table, wanted[winner], equal_nan=True) else "a wrong table"


def main() -> int:
    """Run the pairs, and print what became of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--pairs", type=int, default=100, help="of each kind")
    options = parser.parse_args()
    found: dict[str, Counter[str]] = {}
    with tempfile.TemporaryDirectory() as base:
        for kind, runs in KINDS.items():
            wanted = [run(None) for run in runs]
            places = (Path(base, f"{kind}-{number}") for number in range(options.pairs))
            found[kind] = Counter(judged(runs, wanted, place) for place in places)
            print(f"{kind}: {dict(found[kind])}", flush=True)
    return 0 if all(each == {"one refused": options.pairs} for each in found.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
