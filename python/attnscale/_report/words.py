# SPDX-License-Identifier: BSD-3-Clause
"""What is unusual among the heads, in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..laws import Law

    Array = NDArray[np.float64]

__all__ = ["differences", "outliers"]


class _Described(Protocol):
    """The fields of a report that are put into words."""

    @property
    def lengths(self) -> NDArray[np.int64]: ...
    @property
    def laws(self) -> Sequence[Law]: ...
    @property
    def entropy(self) -> Array: ...
    @property
    def effective_keys(self) -> Array: ...
    @property
    def growth(self) -> Array: ...
    @property
    def first_key_weight(self) -> Array: ...
    @property
    def received(self) -> Array: ...
    @property
    def received_by(self) -> Array: ...
    @property
    def best(self) -> Array: ...
    @property
    def best_misses(self) -> Array: ...

    def name(self, index: int) -> str: ...


def outliers(found: _Described) -> list[str]:
    """The heads at the ends of each quantity, one sentence each; without those that no head has."""
    first, last = int(found.lengths[0]), int(found.lengths[-1])
    keys = found.effective_keys
    growth, weight, misses = found.growth, found.first_key_weight[:, -1], found.best_misses
    said = []
    if (i := _largest(growth)) is not None:
        ends = f"{_few(keys[i, 0])} effective keys at {first}, {_few(keys[i, -1])} at {last}"
        said.append(f"{found.name(i)} spreads fastest: {ends}.")
    if len(growth) > 1 and (i := _largest(-growth)) is not None:
        ends = f"{_few(keys[i, 0])} effective keys at {first}, {_few(keys[i, -1])} at {last}"
        said.append(f"{found.name(i)} spreads least: {ends}.")
    if (i := _largest(-keys[:, -1])) is not None:
        said.append(f"{found.name(i)} is the sharpest at {last}: {_few(keys[i, -1])} effective keys.")
    if (i := _largest(weight)) is not None:
        said.append(f"{found.name(i)} gives the first key the most: {weight[i]:.1%} of the weight at {last}.")
    if (i := _largest(found.received[:, -1])) is not None:
        share, key = found.received[i, -1], int(found.received_by[i, -1])
        said.append(f"{found.name(i)} has the key that gets the most: key {key}, {share:.1%} of all weight.")
    if (i := _largest(misses)) is not None:
        law = found.laws[int(found.best[i])].spelling
        said.append(f"No law keeps {found.name(i)} well: the best, {law}, misses by {misses[i]:.2f} nat.")
    return said


def differences(first: _Described, second: _Described, names: tuple[str, str]) -> list[str]:
    """The heads whose entropy and growth differ most between two reports, and how many moved either way."""
    n, change = int(first.lengths[-1]), second.entropy[:, -1, 0] - first.entropy[:, -1, 0]
    if (i := _largest(np.abs(change))) is None:
        return []
    growth = second.growth - first.growth
    if not (np.nanmax(np.abs(change)) or np.nan_to_num(growth).any()):
        return [f"No head differs, in its entropy at {n} or in its growth."]
    keys = f"{_few(first.effective_keys[i, -1])} effective keys in {names[0]}, "
    keys += f"{_few(second.effective_keys[i, -1])} in {names[1]}"
    wider, sharper = int((change > 0.005).sum()), int((change < -0.005).sum())
    said = [
        f"{first.name(i)} differs most at {n}: {keys}.",
        f"At {n}, {wider} of {len(change)} heads are wider in {names[1]} and {sharper} are sharper, "
        f"by more than 0.005 nat; the mean entropy changes by {np.nanmean(change):+.3f} nat.",
    ]
    if (i := _largest(np.abs(growth))) is not None:
        ends = f"{first.growth[i]:+.2f} nat a doubling in {names[0]}, {second.growth[i]:+.2f} in {names[1]}"
        said.append(f"The growth of {first.name(i)} differs most: {ends}.")
    return said


def _largest(values: Array) -> int | None:
    """Index of the largest number; None where there is none."""
    return int(np.nanargmax(values)) if np.isfinite(values).any() else None


def _few(keys: float) -> str:
    """A number of keys to two or three digits."""
    return f"{keys:.1f}" if keys < 100 else f"{keys:.0f}"
