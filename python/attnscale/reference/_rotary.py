# SPDX-License-Identifier: BSD-3-Clause
"""Rotary positions with the rotation written out as a matrix."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def rotation(position: float, head_dim: int, *, base: float = 10000.0, interleaved: bool = False) -> Array:
    """R_m, (head_dim, head_dim): one 2 x 2 rotation for each pair of channels."""
    turned = np.zeros((head_dim, head_dim))
    for c in range(head_dim // 2):
        a, b = (2 * c, 2 * c + 1) if interleaved else (c, c + head_dim // 2)
        angle = position * base ** (-2 * c / head_dim)
        turned[[a, b], [a, b]] = np.cos(angle)
        turned[a, b], turned[b, a] = -np.sin(angle), np.sin(angle)
    return turned


def apply_rotary(x: Array, positions: Array, **options: Any) -> Array:
    """R_m x_m for rows (n, head_dim)."""
    rows = [rotation(m, x.shape[-1], **options) @ row for m, row in zip(positions, x, strict=True)]
    return np.array(rows, np.float64).reshape(x.shape)


def rotary_score(query: Array, key: Array, distances: Array, **options: Any) -> Array:
    """q^T R_(n - m) k of one query and key, for t = m - n."""
    return np.array([query @ rotation(-t, len(query), **options) @ key for t in distances])
