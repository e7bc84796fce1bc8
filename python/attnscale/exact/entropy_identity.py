# SPDX-License-Identifier: BSD-3-Clause
"""Identification of the quantity that an engine or a monitor calls the entropy."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain, combinations
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

import numpy as np

from .._base.checks import fit_to, number, shown
from .._base.hints import hinted
from .._call.call import Call
from .._call.options import AttentionEntropyOptions, takes
from .._call.weights import available, normalizer_of
from .entropy_quantities import (
    EntropyQuantity,
    Weighted,
    behind_dropout,
    departures,
    in_units,
    of_weights,
    slipped,
    weigh_call,
    with_eps,
)
from .lse import read_numbers, row_errors
from .lse_conventions import rounding_of

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    Rows = NDArray[np.float64]

__all__ = ["EntropyIdentity", "EntropyQuantity", "identify_entropy"]

#: Differences of float32 sums of a row, over max(1, abs(entropy)): below, quantities are not told apart.
_FLOOR = 1e-5


@dataclass(frozen=True, eq=False)
class EntropyIdentity:
    """Result of :func:`identify_entropy`.

    Attributes
    ----------
    quantity : EntropyQuantity or None
        The simplest quantity that gives the numbers of all heads, or None.
    also : tuple of EntropyQuantity
        Other quantities that these numbers cannot tell apart.
    per_head : tuple of EntropyQuantity or None
        The quantity of each head; None for a head that fits none. One entry if the heads are averaged.
    error : ndarray, shape (heads,)
        Largest difference of each head from its quantity, or from ``nearest``, over max(1, abs(entropy)).
    nearest : EntropyQuantity
        The closest quantity over all heads, whether it fits or not.
    axes : str
        Axes of the given entropy: "heads, queries", "queries, heads", "heads", "queries" or "".
    tolerance : float
        Largest ``error`` that fits ``nearest``, including the rounding of a 16-bit entropy.
    """

    quantity: EntropyQuantity | None
    also: tuple[EntropyQuantity, ...]
    per_head: tuple[EntropyQuantity | None, ...]
    error: NDArray[np.float64]
    nearest: EntropyQuantity
    axes: str
    tolerance: float

    def __str__(self) -> str:
        worst = f"largest difference {self.error.max():.2g}, tolerance {self.tolerance:.2g}"
        if self.quantity is not None:
            more = f" and {len(self.also) - 3} more" if len(self.also) > 3 else ""
            also = "; or ".join(map(str, self.also[:3]))
            return f"{self.quantity}; {worst}" + f"; not told from: {also}{more}" * bool(self.also)
        if all(each is not None for each in self.per_head):
            heads = "; ".join(f"head {at}: {each}" for at, each in enumerate(self.per_head))
            return f"heads differ; {worst}; {heads}"
        bad = [str(at) for at, each in enumerate(self.per_head) if each is None]
        where = f" for head {', '.join(bad)}" if len(self.per_head) > 1 else ""
        return f"no known quantity{where}; nearest: {self.nearest}; {worst}"

    __repr__ = __str__


class _Reading(NamedTuple):
    """A reading of a given array: its numbers with the axes of the rows, and the axes averaged over."""

    axes: str
    given: Rows  # (..., heads, n_queries); axes averaged over have extent 1
    over: dict[str, tuple[int, ...]]


class _Candidate(NamedTuple):
    """A quantity, its numbers, and which of them count."""

    quantity: EntropyQuantity
    written: Rows
    counts: NDArray[np.bool_]


@hinted
@takes(AttentionEntropyOptions)
def identify_entropy(
    query: ArrayLike,
    key: ArrayLike,
    entropy: ArrayLike,
    *,
    weights: ArrayLike | None = None,
    tolerance: float = 2e-3,
    **options: Unpack[AttentionEntropyOptions],
) -> EntropyIdentity:
    """Identify which quantity an engine or a monitor returned as the entropy of this call.

    Parameters
    ----------
    query, key : array_like
        As for :func:`attention`.
    entropy : array_like
        The engine's result: of shape (..., heads, n_queries) or (..., n_queries, heads), or a mean over some
        of these axes, such as one number a head or one in all. A last axis of 1 may follow.
    weights : array_like, optional
        The engine's own weights, (..., heads, n_queries, n_keys), as it returned them: shows whether the
        entropy is of these, and whether these are behind dropout.
    tolerance : float, default 2e-3
        How far a number may be from a quantity, over max(1, abs(entropy)). Where float16 or bfloat16 holds
        all numbers of entropy, half of that type's step at 1 is added.
    {names}
        As for :func:`attention_entropy`.

    Returns
    -------
    EntropyIdentity
        Its text describes the result in words.

    Raises
    ------
    ValueError
        If entropy has another shape than the rows or a mean of them, no row sees a key, or the tolerance is
        not a number greater than 0.

    Notes
    -----
    Compared are nats, bits, base 10 and exp(entropy), either sign, over ln n of the visible keys, of all keys
    and of an n that is found; an eps from 1e-12 to 1e-2 in four places; hidden keys that count with score 0;
    a sink that is missing, counted beside the call, or whose term is left out; options that are not read; the
    exponential in base 2; means over all rows or over those of more than one key; and the entropy of the mean
    row. The simplest that is about as close as any is named. One with an eps or two departures, and any slip
    where a single number is given, must be ten times as close as the tolerance asks. A single number may
    still fit a quantity by chance, rows hardly do.

    Without ``weights``, dropout is recognised only in rows of at most 10 keys, where a chance match is rare.
    The matrix of weights is written out: memory grows with n_queries * n_keys.

    Examples
    --------
    >>> import numpy as np, attnscale as at
    >>> q, k = np.random.default_rng(0).standard_normal((2, 2, 5, 8))
    >>> ours = at.attention_entropy(q, k, is_causal=True)
    >>> at.identify_entropy(q, k, ours / np.log(2), is_causal=True).quantity.unit
    'bits'
    """
    allowed = number("tolerance", tolerance)
    if allowed <= 0:
        raise ValueError(f"tolerance must be greater than 0, got {shown(tolerance)}")
    plain = dict(options)
    available(("entropy",), normalizer_of(plain), leave_out=False)
    row_shape = Call(query, key, None, dict(plain)).read().row_shape
    numbers = read_numbers("entropy", entropy)
    readings = list(_readings(numbers, row_shape))
    of = weigh_call(query, key, plain)
    if not (of.n_visible > 0).any():
        raise ValueError("some row of query must see a key, got none that does")
    rounding = rounding_of(numbers.astype(np.float64))
    # A few numbers that a 16-bit type holds may be exact ones.
    floor = max(_FLOOR, rounding if _is_narrow(numbers) else 0)
    own = None if weights is None else _read_weights(weights, of)
    bases = list(slipped(query, key, plain, of))
    found = [_identified(each, bases, of, own, allowed + rounding, floor) for each in readings]
    close = max(4 * min(each.error.max() for each in found), floor)
    return min(found, key=lambda each: _rank(each, close))


def _rank(found: EntropyIdentity, close: float) -> tuple[Any, ...]:
    """Order of readings of the same numbers: those that fit, that are close, and that are simple."""
    error = float(found.error.max())
    return found.quantity is None, error > close, departures(found.nearest), error


def _is_narrow(numbers: NDArray[Any]) -> bool:
    return numbers.dtype.itemsize == 2 or np.unique(numbers).size >= 4


def _read_weights(weights: Any, of: Weighted) -> Rows:
    given = read_numbers("weights", weights).astype(np.float64)
    return np.broadcast_to(
        fit_to("weights", given, of.p.shape, "(..., heads, n_queries, n_keys)"), of.p.shape
    )


def _readings(entropy: NDArray[Any], shape: tuple[int, ...]) -> list[_Reading]:
    """The given numbers as rows, and as means over batch, heads or queries, as its shape allows."""
    given = entropy.astype(np.float64)
    forms = [given, given[..., 0]] if given.shape[-1:] == (1,) else [given]
    whole = shape if len(shape) > 1 else (1, *shape)
    groups = {"batch": tuple(range(-len(shape), -2)), "heads": (-2,) * (len(shape) > 1), "queries": (-1,)}
    groups = {name: axes for name, axes in groups.items() if axes}
    found = []
    for chosen in chain.from_iterable(combinations(groups, count) for count in range(len(groups) + 1)):
        over = {name: groups[name] for name in chosen}
        averaged = set(chain.from_iterable(over.values()))
        left = tuple(n for axis, n in enumerate(shape, -len(shape)) if axis not in averaged)
        kept = [1 if axis in averaged else n for axis, n in enumerate(whole, -len(whole))]
        axes = ", ".join(name for name in ("heads", "queries") if name in groups and name not in chosen)
        found += [_Reading(axes, x.reshape(kept), over) for x in forms if x.shape == left][:1]
    swapped = (*shape[:-2], *shape[:-3:-1])
    if len(shape) > 1:
        found += [_Reading("queries, heads", x.swapaxes(-1, -2), {}) for x in forms if x.shape == swapped][:1]
    if not found:
        raise ValueError(
            f"entropy must have the shape of the rows, {shape}, with queries before heads {swapped}, or that "
            f"of a mean over some of these axes, got {entropy.shape}"
        )
    return found


def _identified(
    reading: _Reading, bases: list[Any], of: Weighted, own: Rows | None, allowed: float, floor: float
) -> EntropyIdentity:
    given = list(bases) if own is None else [*bases, *of_weights(own, of)]
    candidates = list(_of_mean_rows(reading, of))
    candidates += [each for base in given for each in _written(reading, base, of)]
    found = _judged(reading, candidates, of, allowed, floor)
    if found.quantity is not None and found.error.max() <= floor:
        return found
    candidates += [each for base in with_eps(of) for each in _written(reading, base, of)]
    candidates += _over_found_n(reading, bases, of, floor)
    if not reading.over:
        dropped = behind_dropout(of, reading.given, floor)
        candidates += [] if dropped is None else [_Candidate(*dropped, of.n_visible > 0)]
    return _judged(reading, candidates, of, allowed, floor)


def _written(reading: _Reading, base: tuple[EntropyQuantity, Rows], of: Weighted) -> Iterator[_Candidate]:
    """The candidates of one quantity of rows in nats: in each unit, and averaged as the reading says."""
    for quantity, rows in in_units(*base, of):
        yield from _averaged(reading, quantity, rows, of.n_visible)


def _averaged(
    reading: _Reading, quantity: EntropyQuantity, rows: Rows, n_visible: NDArray[Any]
) -> Iterator[_Candidate]:
    """The candidates of rows: themselves, or their means."""
    if not reading.over:
        yield _Candidate(quantity, rows, n_visible > (quantity.over == "visible keys"))
        return
    axes, says = _axes(reading.over), " and ".join(reading.over)
    before = np.ones(rows.shape, bool)
    for least, which in ((0, ""), (1, " of the rows with keys"), (2, " of the rows of more than one key")):
        counted = n_visible >= least
        if least and (counted == before).all():
            continue
        before = counted
        with np.errstate(invalid="ignore", divide="ignore"):
            total = np.where(counted, rows, 0).sum(axes, keepdims=True)
            mean = total / counted.sum(axes, keepdims=True)
        yield _Candidate(replace(quantity, rows=f"mean over {says}{which}"), mean, np.ones(mean.shape, bool))


def _axes(over: dict[str, tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(chain.from_iterable(over.values()))


def _of_mean_rows(reading: _Reading, of: Weighted) -> Iterator[_Candidate]:
    """The entropy of rows that are averaged over some of the axes, and its mean over the others."""
    names = tuple(reading.over)
    for chosen in chain.from_iterable(combinations(names, count) for count in range(len(names), 0, -1)):
        axes = _axes({name: reading.over[name] for name in chosen})
        if math.prod(of.sink.shape[axis] for axis in axes) == 1:
            continue
        mean = Weighted(
            of.p.mean(tuple(axis - 1 for axis in axes), keepdims=True),
            of.sink.mean(axes, keepdims=True),
            of.n_visible.max(axes, keepdims=True),
            of.head_dim,
        )
        rest = _axes({name: reading.over[name] for name in names if name not in chosen})
        others = " and ".join(name for name in names if name not in chosen)
        rows = f"mean row over {' and '.join(chosen)}" + f", mean over {others}" * bool(others)
        for quantity, written in in_units(EntropyQuantity(rows=rows), mean.entropy, mean):
            averaged = written.mean(rest, keepdims=True) if rest else written
            yield _Candidate(quantity, averaged, np.ones(averaged.shape, bool))


def _over_found_n(reading: _Reading, bases: list[Any], of: Weighted, floor: float) -> Iterator[_Candidate]:
    """Quantities over ln n for one n that explains all numbers to rounding."""
    for quantity, rows in bases:
        for each in _averaged(reading, quantity, rows, of.n_visible):
            a, b = (np.where(each.counts, x, 0) for x in (each.written, reading.given))
            with np.errstate(all="ignore"):
                log_n = (a * b).sum() / (b * b).sum()
            if not math.log(1.5) < log_n < math.log(2.0**24):
                continue
            n = round(math.exp(log_n))
            if n * math.log(n) * floor > 0.01:  # the numbers do not tell n from n + 1
                n = 2 ** round(log_n / math.log(2))
            found = _Candidate(replace(each.quantity, over=n), each.written / math.log(n), each.counts)
            if row_errors(reading.given, found.written, found.counts).max() <= floor:
                yield found


def _judged(
    reading: _Reading, every: list[_Candidate], of: Weighted, allowed: float, floor: float
) -> EntropyIdentity:
    """The simplest of the candidates that are about as close as any."""
    candidates = sorted((each for each in every if each.counts.any()), key=lambda x: departures(x.quantity))
    errors = np.stack([row_errors(reading.given, each.written, each.counts) for each in candidates])
    worst = errors.max(axis=1)
    nearest = int(worst.argmin())
    # Quantities with an eps or two departures are so many that one is near almost any row; a number alone is
    # near some quantity with one departure.
    most = 0 if reading.given.size == 1 else 1
    exact = [each.quantity.eps is not None or departures(each.quantity) > most for each in candidates]
    limits = np.where(exact, max(floor, allowed / 10), allowed)
    fits = errors <= limits[:, None]
    close = fits & (errors <= np.maximum(4 * errors.min(axis=0), floor))
    holds = np.unique(reading.given[of.n_visible == 0]) if not reading.over else np.empty(0)

    def named(at: int) -> EntropyQuantity:
        return replace(candidates[at].quantity, empty=float(holds[0]) if holds.size == 1 else None)

    per_head = tuple(named(int(each.argmax())) if each.any() else None for each in close.T)
    common = np.flatnonzero(fits.all(axis=1))
    if not common.size:
        error = np.where(fits.any(axis=0), errors.min(axis=0), errors[nearest])
        return EntropyIdentity(
            None, (), per_head, error, named(nearest), reading.axes, float(limits[nearest])
        )
    best = int(next((at for at in common if close[at].all()), worst.argmin()))
    simple = departures(candidates[best].quantity)
    also = [at for at in common if close[at].all() or departures(candidates[at].quantity) <= simple]
    others = tuple(named(int(at)) for at in also if at != best)
    found = named(best)
    heads = (found,) * len(per_head)
    return EntropyIdentity(found, others, heads, errors[best], found, reading.axes, float(limits[best]))
