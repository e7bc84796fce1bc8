# SPDX-License-Identifier: BSD-3-Clause
"""What a calibration says, in words that hold for its heads and lengths only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from .._tables.tabled import nats_per

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..laws import Law


class _Described(Protocol):
    """The fields of a calibration that its property ``recommendation`` puts into words."""

    @property
    def n0(self) -> int: ...
    @property
    def lengths(self) -> NDArray[np.int64]: ...
    @property
    def beta(self) -> NDArray[np.float64]: ...
    @property
    def equal_scores(self) -> NDArray[np.bool_]: ...
    @property
    def determined(self) -> NDArray[np.bool_]: ...
    @property
    def laws(self) -> Sequence[Law]: ...
    @property
    def first(self) -> int: ...
    @property
    def amplitude(self) -> NDArray[np.float64]: ...
    @property
    def ranking(self) -> Mapping[str, float]: ...
    @property
    def best(self) -> NDArray[np.int64]: ...
    @property
    def median_error(self) -> float: ...


def describe(found: _Described, unit: str = "nats") -> str:
    """Which law and with what constants, the errors, which head prefers what, how beta moves."""
    told = _verdict(found, nats_per(unit), unit[:-1]) if found.determined.any() else _nothing(found)
    return " ".join([*_equal_scores(found), *told])


def _nothing(found: _Described) -> list[str]:
    lengths = np.isfinite(found.beta).sum(-1)
    if not lengths.any():
        return [f"No head keeps its entropy of n = {found.n0} at any beta over {_span(found)}."]
    return [
        f"Undetermined: no head keeps its entropy of n = {found.n0} at two lengths or more, and at one "
        "length every law does so with a constant of the head. Give more lengths, or another n0.",
        *_beta_of_the_median(found),
    ]


def _verdict(found: _Described, nats: float, unit: str) -> list[str]:
    """Which law comes closest and by how much it misses; errors are divided by `nats`, and called `unit`."""
    determined = found.determined.ravel()
    group, least = next(iter(found.ranking.items()))
    first, first_four = found.laws[found.first], list(found.ranking.items())[:4]
    misses, of_median = f"{least / nats:.3f} {unit}", f"{found.median_error / nats:.3f} {unit}"
    constants = found.amplitude[found.first].ravel()[determined]
    low, middle, high = np.quantile(constants, [0.25, 0.5, 0.75])
    return [
        f"To keep the entropy of n = {found.n0} over {_span(found)}, use a constant of each head times "
        f"{group}: it misses by {misses} (root mean square over {determined.sum()} heads and the "
        "lengths). "
        f"The constants of {first.spelling} are {low:.3f} to {high:.3f} for the middle half of the heads. "
        f"With the median, {middle:.3f}, for all of them it misses by {of_median}.",
        f"In order: {', '.join(f'{name} {error / nats:.3f}' for name, error in first_four)}.",
        f"Best head by head: {_preferences(found)}.",
        *_beta_of_the_median(found),
    ]


def _preferences(found: _Described) -> str:
    best = found.best.ravel()
    counts = np.bincount(best[best >= 0], minlength=len(found.laws))
    order = [i for i in np.argsort(-counts, kind="stable") if counts[i]]
    told = [f"{found.laws[i].spelling} for {counts[i]}" for i in order]
    left = int((best < 0).sum())
    return ", ".join([*told, *([f"undetermined for {left}"] if left else [])])


def _beta_of_the_median(found: _Described) -> list[str]:
    last = found.beta[..., -1]
    beta = f"{np.nanmedian(last):.3f}" if np.isfinite(last).any() else "nothing that exists"
    return [f"The median head needs beta = {beta} at n = {found.lengths[-1]}."]


def _equal_scores(found: _Described) -> list[str]:
    """A line that names the heads with equal scores, which have nothing to calibrate."""
    heads = [", ".join(map(str, index)) for index in np.argwhere(found.equal_scores).tolist()]
    if not heads:
        return []
    named = f"Head {heads[0]} has" if len(heads) == 1 else f"Heads {'; '.join(heads)} have"
    return [f"{named} equal scores: no beta changes the entropy."]


def _span(found: _Described) -> str:
    low, high = found.lengths.min(), found.lengths.max()
    return f"n = {low}" if low == high else f"n = {low} to {high}"
