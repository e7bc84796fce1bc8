# SPDX-License-Identifier: BSD-3-Clause
"""What a report says of the heads of one layer, from their queries and keys at each length."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from .._calibrate.fit import Length, counted
from .._call.rows import shows
from ..calibrate import calibrate_rows
from .curves import MULTIPLES, at_multiples, at_scale, mean
from .random_keys import random_entropy

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..laws import Law

    Array = NDArray[np.float64]

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
    curves, entropy = at_multiples(whole, n_rows)
    equal, seen = at_scale(whole, n_rows, 0.0)
    visible = seen.n_visible[:, -n_rows:]
    under = [mean(entropy[:, -n_rows:]), *(rows.law_entropy(law) for law in laws[1:])]
    random = [_random_under(law, rows, visible) for law in laws]
    return {
        "entropy": np.stack(under, axis=-1),
        "random_entropy": np.stack(random, axis=-1),
        "uniform_entropy": mean(np.log(np.maximum(visible, 1))),
        "uniform_first_key": equal["first_key_curve"],
        "uniform_received": equal["received_curve"],
        "histogram": np.stack([_histogram(x, int(visible.max())) for x in entropy[:, -n_rows:]]),
        "by_position": np.stack([mean(part) for part in np.array_split(entropy, POSITIONS, axis=1)], -1),
        "random_curve": random_entropy(visible, MULTIPLES, head_dim),
        **curves,
    }


def _random_under(law: Law, rows: Length, visible: NDArray[np.int64]) -> Array:
    """Entropy of random keys under a law, shape (heads,); NaN for a law that needs the scores themselves."""
    if law.meaning.at_position is None:
        return np.full(len(visible), np.nan)
    head_dim = rows.query.shape[-1]
    beta = np.abs(rows.law_scale(law)) * np.sqrt(head_dim)
    return random_entropy(visible, beta[..., None], head_dim)[:, 0]


def _histogram(entropies: NDArray[Any], keys: int) -> Array:
    """How many rows have an entropy in each bin; those on the last edge, and above by rounding, are in it."""
    most = max(float(np.log(keys)), 1e-6)
    seen = entropies[np.isfinite(entropies)].clip(0, most)
    return np.histogram(seen, bins=BINS, range=(0, most))[0].astype(np.float64)


def _has_bias(rows: Length) -> bool:
    """Whether a mask adds to the scores of keys that are seen."""
    mask = rows.options.get("attn_mask")
    return mask is not None and mask.dtype != np.bool_ and bool((shows(mask) & (mask != 0)).any())


def _calibrated(whole: Mapping[int, Length], laws: tuple[Law, ...]) -> dict[str, Array]:
    """The law of each head that keeps its entropy best, its constant, and what each law misses by.

    Under a soft-cap, with a bias or beside a sink a multiple of the scale that keeps the entropy need not be
    the only one, or exist: there nothing is determined.
    """
    rows = {n: counted(each) for n, each in whole.items()}
    lengths = list(rows)
    n_heads = len(rows[lengths[0]].query)
    if any({"softcap", "normalizer"} & each.options.keys() or _has_bias(each) for each in rows.values()):
        return {
            "beta": np.full((n_heads, len(lengths)), np.nan),
            "best": np.full(n_heads, -1.0),
            "best_constant": np.full(n_heads, np.nan),
            "misses": np.full((n_heads, len(laws)), np.nan),
        }
    found = calibrate_rows(rows, lengths[0], lengths, laws)
    heads, best, known = np.arange(n_heads), np.maximum(found.best, 0), found.best >= 0
    return {
        "beta": np.asarray(found.beta),
        "best": np.asarray(found.best, np.float64),
        "best_constant": np.where(known, found.amplitude[best, heads], np.nan),
        "misses": np.where(known[:, None], np.moveaxis(np.asarray(found.entropy_error), 0, -1), np.nan),
    }
