# SPDX-License-Identifier: BSD-3-Clause
"""Random numbers of the cases: one seed for the sweep, one child of it for each case."""

from __future__ import annotations

from typing import Any

import numpy as np

from .._grid.case import Case
from .._seeds import child_seed

__all__ = ["case_seed", "seed_from_json", "seed_to_json"]


def case_seed(root: np.random.SeedSequence, case: Case) -> np.random.SeedSequence:
    """The child of `root` for a case, found from the case's own parameters.

    Its place in the grid does not enter: a case draws the same numbers whatever other cases there
    are, in whatever order they run. 128 bits of the digest keep two cases apart.
    """
    words = tuple(int(case.digest[start : start + 8], 16) for start in range(0, 32, 8))
    return child_seed(root, words)


def seed_to_json(seed: np.random.SeedSequence) -> dict[str, Any]:
    """What makes the same seed again."""
    entropy = np.asarray(seed.entropy, object)
    return {
        "entropy": [int(word) for word in entropy.ravel()] if entropy.ndim else int(entropy.item()),
        "spawn_key": [int(word) for word in seed.spawn_key],
        "pool_size": seed.pool_size,
    }


def seed_from_json(stored: dict[str, Any]) -> np.random.SeedSequence:
    """The seed that :func:`seed_to_json` wrote."""
    return np.random.SeedSequence(
        stored["entropy"], spawn_key=tuple(stored["spawn_key"]), pool_size=stored["pool_size"]
    )
