# SPDX-License-Identifier: BSD-3-Clause
"""What the page's slider shows: the heads at multiples of their own scale, each of them measured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..attention import attention_statistics
from ..received import attention_received

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .._calibrate.fit import Length
    from .._results import AttentionStatistics

    Array = NDArray[np.float64]

#: Multiples of the head's own scale, four to a doubling; the slider stops at each of them and nowhere else.
MULTIPLES: Array = 2.0 ** np.linspace(-2, 2, 17)
#: The place of the head's own scale among them.
OWN = int(np.flatnonzero(MULTIPLES == 1)[0])


def at_multiples(whole: Length, n_rows: int) -> tuple[dict[str, Array], NDArray[Any]]:
    """What `at_scale` has at each multiple, the last axis; and the entropies of rows at the own scale."""
    root = np.sqrt(whole.query.shape[-1])
    parts, rows = zip(*(at_scale(whole, n_rows, multiple / root) for multiple in MULTIPLES), strict=True)
    found = {name: np.stack([part[name] for part in parts], axis=-1) for name in parts[0]}
    return found, rows[OWN].entropy


def at_scale(whole: Length, n_rows: int, scale: float) -> tuple[dict[str, Array], AttentionStatistics]:
    """Numbers of each head at one scale, means over the last `n_rows` rows, and the statistics of all rows.

    What a key receives is its share of the weight of all rows.
    """
    rows = attention_statistics(
        *(whole.query, whole.key, _first_key(whole)),
        statistics=("entropy", "max_weight", "lse", "n_visible"),
        scale=scale,
        **whole.options,
    )
    assert rows.output is not None
    received = attention_received(whole.query, whole.key, forward=rows, scale=scale, **whole.options)
    share = received / whole.query.shape[-2]
    numbers = {
        "curve": mean(rows.entropy[:, -n_rows:]),
        "max_weight_curve": mean(rows.max_weight[:, -n_rows:]),
        "first_key_curve": mean(rows.output[:, -n_rows:, 0]),
        "received_curve": share.max(-1).astype(np.float64),
        "received_by_curve": share.argmax(-1).astype(np.float64),
    }
    return numbers, rows


def mean(values: NDArray[Any], axis: int = -1) -> Array:
    """Mean in float64; NaN of nothing, as of a run of positions that a short text has not."""
    if not values.shape[axis]:
        return np.full(np.delete(values.shape, axis), np.nan)
    return np.asarray(values.mean(axis=axis, dtype=np.float64))


def _first_key(whole: Length) -> NDArray[Any]:
    """Values of which attention makes the weight of the first key."""
    value = np.zeros((*whole.key.shape[:-1], 1), whole.key.dtype)
    value[:, 0] = 1
    return value
