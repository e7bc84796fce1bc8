# SPDX-License-Identifier: BSD-3-Clause
"""The function of the sweep stored in kept/sweep; its source is part of the store's identity."""

from __future__ import annotations

from typing import Any

import attnscale as at
import numpy as np


def entropies(n: int, law: str, rng: np.random.Generator, *, heads: int) -> dict[str, Any]:
    """Mean entropy of a few random heads, their spread, and the name of the law."""
    query, key = rng.standard_normal((2, heads, n, 8))
    entropy = at.attention_entropy(query, key, scale=law).mean(-1)
    return {"mean": entropy.mean(), "heads": entropy, "name": law}
