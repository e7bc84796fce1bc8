# SPDX-License-Identifier: BSD-3-Clause
"""Cases about many scales at once: the search for a scale, and the entropy curve."""

from __future__ import annotations

from importlib import import_module
from itertools import count
from typing import Any

import numpy as np
from attnscale import attention_entropy, entropy_curve, solve_scale
from attnscale.theory import expected_entropy

from ._rows import Row, Unit, at_least, at_most, skipped
from ._session import OURS, Session, random_heads
from ._timing import estimate

__all__ = ["curve", "expected", "solve"]

_PERPLEXITY = 30.0


def solve(session: Session, name: str) -> list[Row]:
    """Solving one scale per row, against scikit-learn's binary search for perplexity on a given matrix."""
    n = 5000
    q, k, _ = random_heads(1, n, 64)[:, 0]
    what = f"scale of {n} rows faster than scikit-learn's search, {n} x 64"
    target = at_least(20)
    try:
        search: Any = import_module("sklearn.manifold._utils")._binary_search_perplexity
    except (ImportError, AttributeError):
        return [skipped(name, what, Unit.RATIO, "scikit-learn is not installed", target)]
    # scikit-learn's weights are exp(-beta * distance^2); any matrix can serve as distances.
    distances = -(q @ k.T)
    measured = session.measure(
        {
            OURS: lambda: solve_scale(q, k, np.log(_PERPLEXITY), tolerance=1e-6),
            "scikit-learn": lambda: search(distances, _PERPLEXITY, 0),
        },
        rounds=min(session.rounds, 3),
    )
    flops = 2.0 * n**2 * 64
    note = "q . k is part of ours, and not of theirs"
    return [
        measured.row(
            name, what, Unit.RATIO, lambda m: m.speedup("scikit-learn"), target, flops=flops, note=note
        )
    ]


def curve(session: Session, name: str) -> list[Row]:
    """Time of an entropy curve of sixteen scales over that of one entropy pass."""
    n = 3072
    q, k, _ = random_heads(8, n, 64)
    scales = np.geomspace(0.01, 1, 16)
    measured = session.measure(
        {OURS: lambda: entropy_curve(q, k, scales), "one": lambda: attention_entropy(q, k)}
    )
    flops = 2.0 * 8 * n**2 * 64
    what = f"entropy at 16 scales over entropy at one, 8 x {n} x 64"
    return [
        measured.row(name, what, Unit.RATIO, lambda m: m.samples.ratio(OURS, "one"), at_most(6), flops=flops)
    ]


def expected(session: Session, name: str) -> list[Row]:
    """An exact expectation, with another scale in every call so that nothing is cached."""
    steps = count()
    measured = session.measure({OURS: lambda: expected_entropy(4096, 1 + 1e-5 * next(steps))})
    what = "exact expected entropy, n = 4096"
    return [
        measured.row(name, what, Unit.MILLISECONDS, lambda m: estimate(m.samples.wall[OURS]), at_most(5e-3))
    ]
