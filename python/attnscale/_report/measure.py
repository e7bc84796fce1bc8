# SPDX-License-Identifier: BSD-3-Clause
"""What a report says of the heads of one layer, from their queries and keys at each length."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from .._calibrate.fit import Length, counted
from ..attention import attention_statistics
from ..calibrate import calibrate_rows
from ..curve import entropy_curve
from ..received import attention_received
from .curves import BETWEEN, MULTIPLES
from .random_keys import random_entropy

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..laws import Law

    Array = NDArray[np.float64]

__all__ = ["BINS", "POSITIONS", "measure_heads"]

#: Bins of the histogram of row entropies, from 0 to the entropy of equal weights on the most keys of a row.
BINS = 20
#: Runs of neighbouring queries whose mean entropy is shown along the text.
POSITIONS = 16


def measure_heads(
    whole: Mapping[int, Length], laws: tuple[Law, ...], tell: Callable[[str], object]
) -> dict[str, Array]:
    """Arrays with the heads first; those of each length have the lengths second.

    `whole` has the rows at each length, the shortest first: query and key of shape (heads, n, head_dim), the
    query multiplied such that 1/sqrt(head_dim) is the head's own scale. The first law is the standard one.
    """
    parts = []
    for n, each in whole.items():
        tell(f"n = {n}")
        parts.append(_at_length(each, laws))
    found = {name: np.stack([part[name] for part in parts], axis=1) for name in parts[0]}
    tell("calibration")
    return found | _calibrated(whole, laws)


def _at_length(whole: Length, laws: tuple[Law, ...]) -> dict[str, Array]:
    rows = counted(whole)
    n_rows, head_dim = rows.query.shape[-2:]
    own = attention_statistics(
        *(whole.query, whole.key, _first_key(whole)),
        statistics=("entropy", "max_weight", "n_visible"),
        **whole.options,
    )
    assert own.output is not None
    visible = own.n_visible[:, -n_rows:]
    scales = np.concatenate([MULTIPLES, BETWEEN]) / np.sqrt(head_dim)
    curve = _mean(entropy_curve(rows.query, rows.key, scales, **rows.options).entropy, axis=1)
    entropy = own.entropy[:, -n_rows:]
    under = [_mean(entropy), *(rows.law_entropy(law) for law in laws[1:])]
    return {
        "entropy": np.stack(under, axis=-1),
        "random_entropy": np.stack([random_entropy(rows, visible, law) for law in laws], axis=-1),
        "uniform_entropy": _mean(np.log(np.maximum(visible, 1))),
        "histogram": np.stack([_histogram(x, int(visible.max())) for x in entropy]),
        "by_position": np.stack([_mean(part) for part in np.array_split(own.entropy, POSITIONS, axis=1)], -1),
        "first_key_weight": _mean(own.output[:, -n_rows:, 0]),
        "max_weight": _mean(own.max_weight[:, -n_rows:]),
        **_received(whole),
        "curve": curve[:, : len(MULTIPLES)],
        "between": curve[:, len(MULTIPLES) :],
    }


def _mean(values: NDArray[Any], axis: int = -1) -> Array:
    """Mean in float64; NaN of nothing, as of a run of positions that a short text has not."""
    if not values.shape[axis]:
        return np.full(np.delete(values.shape, axis), np.nan)
    return np.asarray(values.mean(axis=axis, dtype=np.float64))


def _first_key(whole: Length) -> NDArray[Any]:
    """Values of which attention makes the weight of the first key."""
    value = np.zeros((*whole.key.shape[:-1], 1), whole.key.dtype)
    value[:, 0] = 1
    return value


def _histogram(entropies: NDArray[Any], keys: int) -> Array:
    """How many rows have an entropy in each bin; those on the last edge, and above by rounding, are in it."""
    most = max(float(np.log(keys)), 1e-6)
    seen = entropies[np.isfinite(entropies)].clip(0, most)
    return np.histogram(seen, bins=BINS, range=(0, most))[0].astype(np.float64)


def _received(whole: Length) -> dict[str, Array]:
    """The largest share of the weights of all queries that one key gets, and which key that is."""
    share = attention_received(whole.query, whole.key, **whole.options) / whole.query.shape[-2]
    return {
        "received": share.max(-1).astype(np.float64),
        "received_by": share.argmax(-1).astype(np.float64),
    }


def _calibrated(whole: Mapping[int, Length], laws: tuple[Law, ...]) -> dict[str, Array]:
    """The law of each head that keeps its entropy best: index, constant, and what it misses by.

    Under a soft-cap or beside a sink a multiple of the scale that keeps the entropy need not be the only one,
    or exist: there nothing is determined.
    """
    rows = {n: counted(each) for n, each in whole.items()}
    lengths = list(rows)
    n_heads = len(rows[lengths[0]].query)
    if any({"softcap", "normalizer"} & each.options.keys() for each in rows.values()):
        unknown = np.full(n_heads, np.nan)
        beta = np.full((n_heads, len(lengths)), np.nan)
        return {
            "beta": beta,
            "best": np.full(n_heads, -1.0),
            "best_constant": unknown,
            "best_misses": unknown,
        }
    found = calibrate_rows(rows, lengths[0], lengths, laws)
    heads, best, known = np.arange(n_heads), np.maximum(found.best, 0), found.best >= 0
    return {
        "beta": np.asarray(found.beta),
        "best": np.asarray(found.best, np.float64),
        "best_constant": np.where(known, found.amplitude[best, heads], np.nan),
        "best_misses": np.where(known, found.entropy_error[best, heads], np.nan),
    }
