# SPDX-License-Identifier: BSD-3-Clause
"""Measurements of the heads of one layer, from their queries and keys at each length.

Every head is also measured at multiples of its own scale, for the page's slider, and compared with the
entropy of random keys in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from .._call.rows import shows
from ..calibration.calibration import calibrate_rows
from ..calibration.fit import Length, counted
from ..exact.forward import attention_statistics
from ..exact.received import attention_received
from ..normalizers import Sink
from ..theory import expected_entropy

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from ..exact.results import AttentionStatistics
    from ..laws import Law

    Array = NDArray[np.float64]

#: Bins of the histogram of row entropies, up to that of equal weights on the most keys and the sink.
BINS = 20
#: Runs of adjacent queries whose mean entropy is shown along the text.
POSITIONS = 16
#: Multiples of the head's own scale, four to a doubling: the stops of the slider.
MULTIPLES: Array = 2.0 ** np.linspace(-2, 2, 17)
#: Index of the head's own scale.
OWN = int(np.flatnonzero(MULTIPLES == 1)[0])

_KNOTS = 5  # rows with an exact expectation, if rows see different numbers of keys


def measure_heads(
    whole: Mapping[int, Length], laws: tuple[Law, ...], tell: Callable[[str], object]
) -> dict[str, Array]:
    """Arrays with the heads first and, for values of each length, the lengths second.

    `whole` has the rows at each length, ascending: query and key of shape (heads, n, head_dim), the query
    multiplied so that 1/sqrt(head_dim) is the head's own scale. The first law is the standard one.
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
    curves, entropy = _at_multiples(whole, n_rows)
    equal, seen = _at_scale(whole, n_rows, 0.0)
    visible = seen.n_visible[:, -n_rows:]
    outcomes = np.maximum(visible, 1) + isinstance(whole.options.get("normalizer"), Sink)
    under = [_mean(entropy[:, -n_rows:]), *(rows.law_entropy(law) for law in laws[1:])]
    random = [_random_under(law, rows, visible) for law in laws]
    return {
        "entropy": np.stack(under, axis=-1),
        "random_entropy": np.stack(random, axis=-1),
        "uniform_entropy": _mean(np.log(outcomes)),
        "uniform_first_key": equal["first_key_curve"],
        "uniform_received": equal["received_curve"],
        "histogram": np.stack([_histogram(x, int(outcomes.max())) for x in entropy[:, -n_rows:]]),
        "by_position": np.stack([_mean(part) for part in np.array_split(entropy, POSITIONS, axis=1)], -1),
        "random_curve": _random_entropy(visible, MULTIPLES, head_dim),
        **curves,
    }


def _random_under(law: Law, rows: Length, visible: NDArray[np.int64]) -> Array:
    """Entropy of random keys under a law, shape (heads,); NaN for a law that needs the scores."""
    if law.meaning.at_position is None:
        return np.full(len(visible), np.nan)
    head_dim = rows.query.shape[-1]
    beta = np.abs(rows.law_scale(law)) * np.sqrt(head_dim)
    return _random_entropy(visible, beta[..., None], head_dim)[:, 0]


def _histogram(entropies: NDArray[Any], outcomes: int) -> Array:
    """Number of rows with an entropy in each bin; the last bin includes its edge, and excess by rounding."""
    most = max(float(np.log(outcomes)), 1e-6)
    seen = entropies[np.isfinite(entropies)].clip(0, most)
    return np.histogram(seen, bins=BINS, range=(0, most))[0].astype(np.float64)


def _has_bias(rows: Length) -> bool:
    """Whether a mask adds to the scores of visible keys."""
    mask = rows.options.get("attn_mask")
    return mask is not None and mask.dtype != np.bool_ and bool((shows(mask) & (mask != 0)).any())


def _calibrated(whole: Mapping[int, Length], laws: tuple[Law, ...]) -> dict[str, Array]:
    """The law that best keeps each head's entropy, its constant, and the error of each law.

    Under a soft-cap, with a bias or beside a sink, several multiples of the scale or none may keep the
    entropy: nothing is determined there.
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


def _at_multiples(whole: Length, n_rows: int) -> tuple[dict[str, Array], NDArray[Any]]:
    """Results of `_at_scale` at each multiple, the last axis, and the row entropies at the own scale."""
    root = np.sqrt(whole.query.shape[-1])
    parts, rows = zip(*(_at_scale(whole, n_rows, multiple / root) for multiple in MULTIPLES), strict=True)
    found = {name: np.stack([part[name] for part in parts], axis=-1) for name in parts[0]}
    return found, rows[OWN].entropy


def _at_scale(whole: Length, n_rows: int, scale: float) -> tuple[dict[str, Array], AttentionStatistics]:
    """Numbers of each head at one scale, means over the last `n_rows` rows, and statistics of all rows.

    A key's share is taken of the weight of all rows.
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
        "curve": _mean(rows.entropy[:, -n_rows:]),
        "max_weight_curve": _mean(rows.max_weight[:, -n_rows:]),
        "first_key_curve": _mean(rows.output[:, -n_rows:, 0]),
        "received_curve": share.max(-1).astype(np.float64),
        "received_by_curve": share.argmax(-1).astype(np.float64),
    }
    return numbers, rows


def _mean(values: NDArray[Any], axis: int = -1) -> Array:
    """Mean in float64; NaN if empty, as for a run of positions beyond a short text."""
    if not values.shape[axis]:
        return np.full(np.delete(values.shape, axis), np.nan)
    return np.asarray(values.mean(axis=axis, dtype=np.float64))


def _first_key(whole: Length) -> NDArray[Any]:
    """Values with which attention gives the weight of the first key."""
    value = np.zeros((*whole.key.shape[:-1], 1), whole.key.dtype)
    value[:, 0] = 1
    return value


def _random_entropy(visible: NDArray[np.int64], beta: Array, head_dim: int) -> Array:
    """Mean over the rows of the expected entropy of as many random keys, shape (heads, betas).

    The keys are independent and uniform on a sphere, with scores of variance beta^2. `visible` has the shape
    (heads, rows), and beta is shared, or (heads, rows, betas). Rows with different numbers of keys are
    interpolated between five of them, along the logarithm of the number.
    """
    counts = np.maximum(visible, 1)
    if beta.ndim == 1:  # heads with equal numbers of visible keys share the answer
        kinds, which = np.unique(counts, axis=0, return_inverse=True)
        every = np.broadcast_to(beta, (*kinds.shape, len(beta)))
        return _each(kinds, every, head_dim)[which.reshape(-1)]
    return _each(counts, beta, head_dim)


def _each(counts: NDArray[np.int64], beta: Array, head_dim: int) -> Array:
    return np.array(
        [[_mean_of_random(n, b, head_dim) for b in betas.T] for n, betas in zip(counts, beta, strict=True)]
    )


def _mean_of_random(visible: NDArray[np.int64], beta: Array, head_dim: int) -> float:
    if not np.isfinite(beta).all():
        return float("nan")
    counts, first = np.unique(visible, return_index=True)
    knots = np.unique(np.linspace(0, len(counts) - 1, _KNOTS).round().astype(int))
    values = [_expected(int(counts[i]), float(beta[first[i]]), head_dim) for i in knots]
    return float(np.interp(np.log(visible), np.log(counts[knots]), values).mean())


@lru_cache(maxsize=4096)
def _expected(n: int, beta: float, head_dim: int) -> float:
    """The exact expectation, cached since it is slow and shared by heads and layers."""
    return float(expected_entropy(n, beta, head_dim=head_dim))


def growth_per_doubling(lengths: ArrayLike, entropy: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rise from the first length to the last (the last axis) per doubling; NaN for one length.

    Examples
    --------
    >>> float(growth_per_doubling([64, 128, 256], np.array([2.0, 2.3, 3.0])))
    0.5
    """
    ends = np.asarray(lengths, np.float64)[[0, -1]]
    with np.errstate(invalid="ignore"):
        found: NDArray[np.float64] = (entropy[..., -1] - entropy[..., 0]) / np.log2(ends[1] / ends[0])
    return found
