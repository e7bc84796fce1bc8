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

from ..calibration.fit import Length, counted
from ..theory import expected_entropy
from .calibrated import CountedRows, calibrated, guessed, law_scales
from .rows import Ladder, Points, Rows

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

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
_BASES = 4  # multiples that are not twice another

_KNOTS = 5  # rows with an exact expectation, if rows see different numbers of keys
_GOLDEN = (5**0.5 - 1) / 2
_NARROW = 0.2  # span of the logarithms of near numbers; that of the last eighth of causal rows is 0.13


def measure_heads(
    whole: Mapping[int, Length],
    laws: tuple[Law, ...],
    tell: Callable[[str], object],
    most_rows: int | None = None,
) -> dict[str, Array]:
    """Arrays with the heads first and, for values of each length, the lengths second.

    `whole` has the rows at each length, ascending: query and key of shape (heads, n, head_dim), the query
    multiplied so that 1/sqrt(head_dim) is the head's own scale. The first law is the standard one. At most
    `most_rows` rows of a length are measured, from everywhere in the text.
    """
    parts, kept, target = [], {}, None
    for n, each in whole.items():
        tell(f"n = {n}")
        found, kept[n] = _at_length(each, laws, most_rows, target)
        target = found["curve"][:, OWN] if target is None else target
        parts.append(found)
    found = {name: np.stack([part[name] for part in parts], axis=1) for name in parts[0]}
    tell("calibration")
    return found | calibrated(kept, laws, MULTIPLES, is_causal=_is_causal(whole))


def _is_causal(whole: Mapping[int, Length]) -> bool:
    return next(iter(whole.values())).options["causal"] is not None


def spread_out(first: int, stop: int, most: int | None) -> slice | NDArray[np.int64]:
    """One row of each of `most` equal stretches from `first` to `stop`; None for all.

    The places in the stretches are spread by the golden ratio: a sample at equal distances would see a head
    that repeats itself, as in images or tables, always at the same place of its period.

    Examples
    --------
    >>> spread_out(0, 100, 4)
    array([12, 27, 68, 83])
    """
    if most is None or stop - first <= most:
        return slice(first, stop)
    ends = first + np.arange(most + 1) * (stop - first) // most
    place = (0.5 + _GOLDEN * np.arange(most)) % 1
    return ends[:-1] + (place * np.diff(ends)).astype(np.int64)


def _at_length(
    whole: Length, laws: tuple[Law, ...], most_rows: int | None, target: Array | None
) -> tuple[dict[str, Array], CountedRows]:
    """The numbers of the heads at one length, and the rows that count in its entropy.

    The target is the entropy of the first length, None there.
    """
    n_rows, head_dim = whole.query.shape[-2:]
    first = n_rows - len(counted(whole).query[0])
    every = Rows(whole, spread_out(0, n_rows, most_rows))
    rows = Rows(whole, spread_out(first, n_rows, most_rows)) if first else every
    curves, entropy, along = _at_multiples(rows, every)
    scales = law_scales(counted(whole), laws, rows.at - first)
    guess = guessed(curves["curve"], curves["curve"][:, OWN] if target is None else target, MULTIPLES)
    there = np.broadcast_to((guess.multiple / np.sqrt(head_dim))[:, None, None], (*scales.shape[:2], 1))
    under = rows.mean_entropies(np.concatenate([scales[..., 1:], there], axis=-1))
    first_key, share = every.of_equal_weights()
    if rows is not every:
        first_key = rows.of_equal_weights()[0]
    random = [_random_under(law, scales[..., i], rows, head_dim) for i, law in enumerate(laws)]
    found = {
        "entropy": np.concatenate([curves["curve"][:, OWN, None], under[:, :-1]], axis=-1),
        "entropy_error": _standard_error(entropy, n_rows - first),
        "random_entropy": np.stack(random, axis=-1),
        "uniform_entropy": _mean(np.log(rows.outcomes)),
        "uniform_first_key": _mean(first_key),
        "uniform_received": share.max(-1),
        "histogram": np.stack([_histogram(x, int(rows.outcomes.max())) for x in entropy]),
        "by_position": _along_text(along, every.at, n_rows),
        "random_curve": _random_entropy(rows.n_visible, MULTIPLES, head_dim),
        **curves,
    }
    return found, CountedRows(rows, curves["curve"], scales, guess, under[:, -1])


def _at_multiples(rows: Rows, every: Rows) -> tuple[dict[str, Array], NDArray[Any], NDArray[Any]]:
    """Numbers of each head at the multiples, the last axis, and entropies of rows at the own scale.

    Means are over `rows`, which are the last of `every` row or a sample of their own. The entropies are those
    of `rows` and of `every` row.
    """
    own = MULTIPLES / np.sqrt(every.call.head_dim)
    ladder = Ladder(own[:_BASES], len(own))
    # The last rows of all are not measured again.
    again = rows is not every and not np.isin(rows.at, every.at, assume_unique=True).all()
    parts, entropies, along = [], [], []
    for heads, some in every.parts(len(own)):
        points, share = some.at_scales(ladder)
        assert share is not None
        along.append(points.entropy[..., OWN])
        if again:
            points = rows.of_heads(heads).at_scales(ladder, received=False)[0]
        else:
            points = Points(*(part[:, -len(rows.at) :] for part in points))
        entropies.append(points.entropy[..., OWN])
        parts.append(
            {
                "curve": _mean(points.entropy, 1),
                "max_weight_curve": _mean(points.max_weight, 1),
                "first_key_curve": _mean(points.first_key, 1),
                "received_curve": share.max(1),
                "received_by_curve": share.argmax(1).astype(np.float64),
            }
        )
    found = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return found, np.concatenate(entropies), np.concatenate(along)


def _along_text(entropy: NDArray[Any], at: NDArray[np.int64], n_rows: int) -> Array:
    """Mean entropy of runs of adjacent rows; NaN for a run beyond a short text, or without a row."""
    runs = np.array_split(np.arange(n_rows), POSITIONS)
    ends = np.cumsum([len(run) for run in runs])[:-1]
    return np.stack([_mean(part) for part in np.split(entropy, np.searchsorted(at, ends), axis=1)], -1)


def _standard_error(entropy: NDArray[Any], n_rows: int) -> Array:
    """Standard error of the mean of rows of equal stretches, out of `n_rows`, from neighbours' differences.

    0 if all rows are there. Neighbours differ less than any two rows where the entropy moves along the text,
    and so do the means of other samples.
    """
    rows = entropy.shape[1]
    if rows == n_rows:
        return np.zeros(len(entropy))
    steps = np.diff(entropy.astype(np.float64), axis=1)
    return np.asarray(np.sqrt((steps**2).sum(1) / (2 * max(rows - 1, 1)) / rows * (1 - rows / n_rows)))


def _random_under(law: Law, scales: Array, rows: Rows, head_dim: int) -> Array:
    """Entropy of random keys under a law, shape (heads,); NaN for a law that needs the scores."""
    if law.meaning.at_position is None:
        return np.full(len(scales), np.nan)
    beta = np.abs(scales) * np.sqrt(head_dim)
    return _random_entropy(rows.n_visible, beta[..., None], head_dim)[:, 0]


def _histogram(entropies: NDArray[Any], outcomes: int) -> Array:
    """Number of rows with an entropy in each bin; the last bin includes its edge, and excess by rounding."""
    most = max(float(np.log(outcomes)), 1e-6)
    seen = entropies[np.isfinite(entropies)].clip(0, most)
    return np.histogram(seen, bins=BINS, range=(0, most))[0].astype(np.float64)


def _mean(values: NDArray[Any], axis: int = -1) -> Array:
    """Mean in float64; NaN if empty, as for a run of positions beyond a short text."""
    if not values.shape[axis]:
        return np.full(np.delete(values.shape, axis), np.nan)
    return np.asarray(values.mean(axis=axis, dtype=np.float64))


def _random_entropy(visible: NDArray[np.int64], beta: Array, head_dim: int) -> Array:
    """Mean over the rows of the expected entropy of as many random keys, shape (heads, betas).

    The keys are independent and uniform on a sphere, with scores of variance beta^2. `visible` has the shape
    (heads, rows), and beta is shared, or (heads, rows, betas). Rows with different numbers of keys are
    interpolated between five of them, along the logarithm of the number, or averaged over two numbers where
    all are near and beta is the same.
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
    logs, each = np.log(counts), np.log(visible)
    if 0 < logs[-1] - logs[0] < _NARROW and (beta == beta[0]).all():
        # Two points with the mean and variance of the logarithms: exact for a cubic over even rows.
        two = np.exp(each.mean() + np.array([-1, 1]) * each.std())
        return float(np.mean([_expected(n, float(beta[0]), head_dim) for n in two.tolist()]))
    knots = np.unique(np.linspace(0, len(counts) - 1, _KNOTS).round().astype(int))
    values = [_expected(float(counts[i]), float(beta[first[i]]), head_dim) for i in knots]
    return float(np.interp(each, logs[knots], values).mean())


@lru_cache(maxsize=4096)
def _expected(n: float, beta: float, head_dim: int) -> float:
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
