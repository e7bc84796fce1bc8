# SPDX-License-Identifier: BSD-3-Clause
"""Cases of random numbers and simulations, against the same work in NumPy."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from attnscale import _core
from numpy.typing import NDArray

from ._rows import Row, Unit, at_least, at_most, skipped
from ._session import OURS, Measured, Session
from ._timing import Estimate

__all__ = ["normals", "products", "projection", "rows", "two_threads"]

_STANDARD = ("normal", (0.0, 1.0))
_KEY = 1
_HEAD_DIM = 64
_EPS = (0.1, 0.2, 0.3)

Array = NDArray[Any]


def _scaled(find: Callable[[Measured], Estimate], factor: float, m: Measured) -> Estimate:
    return Estimate(*(factor * part for part in find(m)))


def _per_item(items: int, m: Measured, of: str = OURS) -> Estimate:
    seconds = np.array(m.samples.wall[of]) / items
    low, middle, high = np.quantile(seconds, [0.25, 0.5, 0.75])
    return Estimate(float(middle), float(high - low) / 2)


def normals(session: Session, name: str) -> list[Row]:
    """Time to fill an array with standard normal numbers, on one thread."""
    out, wide = np.empty(1 << 18, np.float32), np.empty(1 << 18)
    large = 1 << 24  # 64 MB, allocated anew by the system in every call
    generator = np.random.Generator(np.random.Philox(_KEY))
    measured = session.measure(
        {
            OURS: lambda: _fill(out),
            "float64": lambda: _fill(wide),
            "new": lambda: _fill(np.empty(large, np.float32)),
            "numpy": lambda: generator.standard_normal(dtype=np.float32, out=out),
        }
    )
    rows = [
        (name, "a float32 standard normal number, one thread", OURS, out.size, 0.4e-9),
        (f"{name}_new", "  into new memory", "new", large, 0.7e-9),
        (f"{name}_float64", "a float64 standard normal number, one thread", "float64", wide.size, 0.9e-9),
    ]
    return [
        *(
            measured.row(row, what, Unit.NANOSECONDS, partial(_per_item, items, of=of), at_most(most), of=of)
            for row, what, of, items, most in rows
        ),
        measured.row(
            f"{name}_numpy",
            "float32 faster than NumPy's Philox generator",
            Unit.RATIO,
            lambda m: m.speedup("numpy"),
            at_least(8),
        ),
    ]


def _fill(out: Array) -> None:
    _core.mc_fill(out, *_STANDARD, _KEY, 0, 0, 1)


def products(session: Session, name: str) -> list[Row]:
    """Variance of q . k over a million pairs; NumPy's time is extrapolated from a tenth of the pairs."""
    pairs, share = 1_000_000, 10
    generator = np.random.default_rng(_KEY)

    def by_numpy() -> None:
        q, k = generator.standard_normal((2, pairs // share, _HEAD_DIM))
        np.einsum("ij,ij->i", q, k).var()

    measured = session.measure({OURS: lambda: _dot_products(pairs), "numpy": by_numpy})
    what = f"variance of {pairs} dot products faster than NumPy, d = {_HEAD_DIM}"
    find = partial(_scaled, lambda m: m.speedup("numpy"), share)
    return [measured.row(name, what, Unit.RATIO, find, at_least(20))]


def _dot_products(pairs: int, threads: int = 0) -> None:
    _core.mc_dot_products(
        head_dim=_HEAD_DIM,
        x=_STANDARD,
        y=_STANDARD,
        block=pairs,
        key=_KEY,
        count=pairs,
        num_threads=threads,
    )


def rows(session: Session, name: str) -> list[Row]:
    """Entropy of rows of random keys; NumPy draws every key of a few rows."""
    n, count, few = 16384, 1000, 4
    generator = np.random.default_rng(_KEY)

    def by_numpy() -> None:
        q = generator.standard_normal((few, _HEAD_DIM), np.float32)
        k = generator.standard_normal((few, n, _HEAD_DIM), np.float32)
        s = np.einsum("rd,rnd->rn", q, k) / np.float32(np.sqrt(_HEAD_DIM))
        p = np.exp(s - s.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        (p * np.log(p)).sum(axis=1)

    measured = session.measure({OURS: lambda: _rows(n, count), "numpy": by_numpy})
    what = f"entropy of {count} rows of {n} random keys faster than NumPy, d = {_HEAD_DIM}"
    find = partial(_scaled, lambda m: m.speedup("numpy"), count / few)
    return [measured.row(name, what, Unit.RATIO, find, at_least(10))]


def _rows(n: int, count: int, threads: int = 0) -> None:
    _core.mc_score_rows(
        model="sphere",
        n=n,
        head_dim=_HEAD_DIM,
        correlation=0.0,
        multipliers=[1.0],
        needle_cosine=float("nan"),
        key=_KEY,
        count=count,
        num_threads=threads,
    )


def projection(session: Session, name: str) -> list[Row]:
    """A random projection and the ratios of all squared distances, against two Gram matrices."""
    points, dim, k = 2000, 4096, 256
    x = np.random.default_rng(_KEY).standard_normal((points, dim), np.float32)
    generator = np.random.default_rng(_KEY)

    def ours() -> None:
        _core.pair_distances_ratio(x, _core.mc_project(x, k, "gaussian", _KEY), _EPS)

    def by_numpy() -> None:
        matrix = generator.standard_normal((k, dim), np.float32) / np.float32(np.sqrt(k))
        ratio = _all_distances(x @ matrix.T) / _all_distances(x)
        _ = ratio.min(), ratio.max(), ratio.mean(), ratio.var()
        for eps in _EPS:
            np.count_nonzero(np.abs(ratio - 1) > eps)

    measured = session.measure({OURS: ours, "numpy": by_numpy})
    what = f"projection of {points} points, {dim} to {k}, all pairs, faster than NumPy"
    flops = 2.0 * points * dim * k + points * (points - 1.0) * (dim + k)
    return [
        measured.row(name, what, Unit.RATIO, lambda m: m.speedup("numpy"), at_least(5), flops=flops),
    ]


def _all_distances(x: Array) -> Array:
    """Squared distances of all pairs from inner products."""
    products = x @ x.T
    norms = products.diagonal()
    squares: Array = norms[:, None] + norms - 2 * products
    return squares[np.triu_indices(len(x), 1)]


def two_threads(session: Session, name: str) -> list[Row]:
    """The time of one thread over that of two."""
    out = np.empty(1 << 20, np.float32)
    work: dict[str, tuple[str, Callable[[int], None]]] = {
        "fill": ("normal numbers", lambda threads: _core.mc_fill(out, *_STANDARD, _KEY, 0, 0, threads)),
        "rows": ("rows of random keys", lambda threads: _rows(16384, 200, threads)),
    }
    found = []
    for kind, (what, call) in work.items():
        text, target = f"two threads faster than one, {what}", at_least(1.9)
        if session.threads < 2:
            found.append(skipped(f"{name}_{kind}", text, Unit.RATIO, "needs two threads", target))
            continue
        measured = session.measure({OURS: partial(call, 2), "one": partial(call, 1)})
        find = partial(Measured.speedup, other="one")
        found.append(measured.row(f"{name}_{kind}", text, Unit.RATIO, find, target))
    return found
