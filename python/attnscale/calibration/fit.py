# SPDX-License-Identifier: BSD-3-Clause
"""Entropy and laws at one length of a calibration, and the fit of laws to measured values."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .._base.checks import positive_int, refusal, shown
from .._call.call import Call
from .._call.scale import check_one_scale_a_row
from .._grid.progress import check_progress, reporter
from ..exact.forward import attention_entropy
from ..exact.solve import ScaleSolution, solve_scale
from ..laws import Law, names
from ..laws._registry import with_length

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .._call.arrays import Inputs
    from .._grid.progress import Progress

    Array = NDArray[np.float64]


# ---- lengths -------------------------------------------------------------------------------------


_SHORTEST = 16  # the least default length
_FEWEST = 24  # keys: an eighth of them is the least length at which every law is defined


def default_lengths(n_keys: int, least: int = _SHORTEST) -> list[int]:
    """The number of keys and its halves, at most four, none shorter than `least`; the shortest first."""
    return [n for n in (n_keys >> k for k in (3, 2, 1)) if n >= least] + [n_keys]


def _lengths_to_calibrate(n_keys: int) -> list[int]:
    """The default lengths of a report; shorter ones if it would have only one, to tell laws apart."""
    return default_lengths(n_keys, _SHORTEST if n_keys >= 2 * _SHORTEST else 2)


def read_start(n0: Any, lengths: Any, laws: Any, n_keys: int) -> int:
    """The length whose entropy is kept; by default the shortest of several measured lengths."""
    if n0 is not None:
        return _read_length("n0", n0, n_keys)
    if lengths is not None and len(given := _given(lengths, n_keys)) > 1:
        return min(given)
    if laws is None and n_keys < _FEWEST:
        raise ValueError(f"key must have at least {_FEWEST} keys, or n0 and laws be given, got {n_keys} keys")
    return _lengths_to_calibrate(n_keys)[0]


def _read_length(name: str, value: Any, n_keys: int) -> int:
    length = positive_int(name, value)
    if not 2 <= length <= n_keys:
        raise refusal(ValueError, name, f"must be between 2 and the number of keys, {n_keys}, got {length}")
    return length


def read_lengths(lengths: Any, n0: int, n_keys: int) -> list[int]:
    """The lengths to measure, without repetition; by default a series with n0 in it."""
    if lengths is not None:
        return _given(lengths, n_keys)
    usual = _lengths_to_calibrate(n_keys)
    if n0 in usual:
        return usual
    below = [n0 >> k for k in range(1, n0.bit_length()) if n0 >> k >= usual[0]]
    above = [n0 << k for k in range((n_keys // n0).bit_length()) if n0 << k <= n_keys]
    return sorted(below) + above


def listed(lengths: Any) -> list[Any] | None:
    """``lengths=`` as a list; it is read twice."""
    try:
        given = None if lengths is None else list(lengths)
    except TypeError:
        raise TypeError(f"lengths must be integers, got {shown(lengths)}") from None
    if given == []:
        raise ValueError("lengths must name at least one length, got none")
    return given


def _given(lengths: Any, n_keys: int) -> list[int]:
    """The caller's lengths, without repetition."""
    given = listed(lengths) or []
    return list(dict.fromkeys(_read_length("lengths", n, n_keys) for n in given))


# ---- the fit -------------------------------------------------------------------------------------


_PASSES = 10  # of a search for a scale over the scores, roughly; for the progress only


class Length(NamedTuple):
    """The rows whose mean is the entropy at one length."""

    query: NDArray[Any]
    key: NDArray[Any]
    options: dict[str, Any]

    @property
    def pairs(self) -> int:
        """Pairs of a query and a key, over all heads."""
        pairs: int = math.prod(self.query.shape[:-1]) * self.key.shape[-2]
        return pairs

    def entropy(self, scale: Any) -> Array:
        """Mean entropy of each head, shape (..., heads)."""
        rows = attention_entropy(self.query, self.key, scale=scale, **self.options)
        return np.asarray(rows.mean(-1, dtype=np.float64))

    def entropy_at(self, scale: Array) -> Array:
        """Mean entropy of each head at one scale a row; NaN for heads with a scale that is not a number."""
        known = np.asarray(np.isfinite(scale).all(-1))
        return np.where(known, self.entropy(np.where(known[..., None], scale, 0.0)), np.nan)

    def law_entropy(self, law: Law) -> Array:
        """Mean entropy of each head under a law."""
        return self.entropy_at(self.law_scale(law))

    def solve(self, target: Array) -> ScaleSolution:
        """One scale for each head, at which its mean entropy is the target."""
        return solve_scale(self.query, self.key, target, per="head", on_infeasible="nan", **self.options)

    def law_scale(self, law: Law) -> Array:
        """The law's scale of each row, shape (..., heads, rows)."""
        check_one_scale_a_row(law)
        call = Call(self.query, self.key, None, {**self.options, "scale": law}).read()
        return np.broadcast_to(call.scale, call.row_shape)


class Fit(NamedTuple):
    """Laws at their amplitudes, in the fields of :class:`attnscale.Calibration`."""

    amplitude: Array
    law_beta: Array
    law_entropy: Array


@dataclass
class Passes:
    """Progress of a calibration, counted in query-key pairs."""

    lengths: Sequence[Length]
    n_laws: int
    done: int = 0
    report: Callable[[int], object] = lambda done: None

    @contextmanager
    def reported(self, progress: Progress) -> Iterator[Passes]:
        """Report the passes in this block to `progress`."""
        every = sum(each.pairs for each in self.lengths)
        with reporter(check_progress(progress), "pair", (_PASSES + self.n_laws) * every) as self.report:
            self.report(0)
            yield self

    def of_lengths(self) -> Iterator[Length]:
        """The lengths, each reported as the `_PASSES` passes of the search for its scale."""
        for each in self.lengths:
            yield each
            self._add(_PASSES * each.pairs)

    def of_laws(self, laws: Iterable[Law]) -> Iterator[Law]:
        """The laws, each reported as one pass over every length."""
        for law in laws:
            yield law
            self._add(sum(each.pairs for each in self.lengths))

    def _add(self, pairs: int) -> None:
        self.done += pairs
        self.report(self.done)


def cut(inputs: Inputs, n: int, num_threads: int | None, *, is_causal: bool) -> Length:
    """The first n keys with the first n queries; if causal, with the last eighth of these queries."""
    query, key = inputs.query[..., :n, :], inputs.key[..., :n, :]
    heads = query.ndim > 2 and query.shape[-3] != key.shape[-3]
    causal = "bottom_right" if is_causal else None
    return counted(Length(query, key, {"causal": causal, "enable_gqa": heads, "num_threads": num_threads}))


def counted(rows: Length) -> Length:
    """The rows that count in the mean entropy of their length: all, or the last eighth of causal rows.

    Causal rows must be aligned at the bottom right, so that the last rows see the same keys without the
    others.
    """
    n = rows.query.shape[-2]
    if rows.options["causal"] is None:
        return rows
    first, options = n - max(n // 8, 1), dict(rows.options)
    mask = options.get("attn_mask")
    if mask is not None and mask.shape[-2] > 1:
        options["attn_mask"] = mask[..., first:, :]
    return Length(rows.query[..., first:, :], rows.key, options)


def several_laws(laws: Any) -> tuple[Law | str | float, ...]:
    """The value of ``laws=`` as a tuple, also for a single law."""
    if isinstance(laws, (str, float, int, Law)):
        return (laws,)
    try:
        return tuple(laws)
    except TypeError:
        raise TypeError(f"laws must be a law or several, got {shown(laws)}") from None


def candidates(wanted: Iterable[Law | str | float] | None, n0: int) -> Iterator[Law]:
    """The laws to compare, without repetition; n0 is the training length where a spelling leaves it open."""
    if wanted is not None:
        chosen = [with_length(law, n0) for law in several_laws(wanted)]
        if not chosen:
            raise ValueError("laws must name at least one law, got none")
        yield from _each_once(chosen)
        return
    for name in names():
        try:
            law = with_length(name, n0)
        except TypeError:  # a parameter of the law is not determined by a length
            continue
        if law.channels != "all" or law.meaning.is_distance:
            continue
        if law.meaning.is_used or name == "standard":
            yield law


def _each_once(chosen: Iterable[Law]) -> Iterator[Law]:
    """The laws without repetition: spellings label results, so each must stand for one law."""
    seen: dict[str, Law] = {}
    for law in chosen:
        if seen.setdefault(law.spelling, law) != law:
            raise ValueError(f"laws must have a spelling each, got two different ones of {law.spelling!r}")
    yield from seen.values()


def fit_laws(compared: Iterable[Law], cuts: Sequence[Length], beta: Array, head_dim: int) -> Fit:
    """Each law times the amplitude that brings it closest to beta, and the entropy of the product."""
    fits = [_fit(law, cuts, beta, np.sqrt(head_dim)) for law in compared]
    return Fit(*(np.stack(part) for part in zip(*fits, strict=True)))


def _fit(law: Law, cuts: Sequence[Length], beta: Array, root: float) -> Fit:
    scales = [each.law_scale(law) for each in cuts]
    multiplier = np.stack([scale.mean(-1) for scale in scales], axis=-1) * root
    amplitude = amplitude_of(multiplier, beta)
    entropy = [each.entropy_at(amplitude[..., None] * s) for each, s in zip(cuts, scales, strict=True)]
    return Fit(amplitude, amplitude[..., None] * multiplier, np.stack(entropy, axis=-1))


def amplitude_of(multiplier: Array, beta: Array) -> Array:
    """The amplitude c with the least sum of (c multiplier - beta)^2 over the lengths with a beta.

    NaN without such a length, and where keys tie for the top, so that the law has no finite scale.
    """
    known = np.isfinite(beta)
    m, b = np.where(known, multiplier, 0.0), np.where(known, beta, 0.0)
    with np.errstate(invalid="ignore", divide="ignore"):
        c = (m * b).sum(-1) / (m**2).sum(-1)
        return np.asarray(np.where(np.isfinite(m).all(-1), c, np.nan))
