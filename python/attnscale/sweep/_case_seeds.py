# SPDX-License-Identifier: BSD-3-Clause
"""Random numbers of the cases: one seed for the sweep, one child of it for each case."""

from __future__ import annotations

import numpy as np

from .._grid.case import Case
from .._seeds import child_seed


def case_seed(root: np.random.SeedSequence, case: Case) -> np.random.SeedSequence:
    """The child of `root` for a case, found from the case's own parameters.

    The place in the grid does not enter: a case draws the same numbers whatever other cases there
    are, in whatever order they run. 128 bits of the digest keep two cases apart.
    """
    words = tuple(int(case.digest[start : start + 8], 16) for start in range(0, 32, 8))
    return child_seed(root, words)
