# SPDX-License-Identifier: BSD-3-Clause
"""What holds for all heads, and what is unusual among them, in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from .measure import growth_per_doubling

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..laws import Law

    Array = NDArray[np.float64]

#: How far a head must be from all that equal weights and random keys of its mask explain, before it is told:
#: in nats or nats a doubling; for weights, a multiple of what equal weights give and a share of all weight.
_NATS = 0.1
_TIMES, _SHARE = 4, 0.01


class _Described(Protocol):
    """The fields of a report that are put into words."""

    @property
    def lengths(self) -> NDArray[np.int64]: ...
    @property
    def laws(self) -> Sequence[Law]: ...
    @property
    def entropy(self) -> Array: ...
    @property
    def random_entropy(self) -> Array: ...
    @property
    def uniform_entropy(self) -> Array: ...
    @property
    def uniform_first_key(self) -> Array: ...
    @property
    def uniform_received(self) -> Array: ...
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
    @property
    def misses(self) -> Array: ...

    def name(self, index: int) -> str: ...


def summary(found: _Described) -> list[str]:
    """How fast entropy grows over all heads, and which law keeps it best over all of them."""
    first, last = int(found.lengths[0]), int(found.lengths[-1])
    growth = found.growth[np.isfinite(found.growth)]
    if not growth.size:
        mean, equal = np.mean(found.entropy[:, -1, 0]), np.mean(found.uniform_entropy[:, -1])
        return [f"At {last} tokens the mean entropy is {mean:.2f} nat, with equal weights {equal:.2f}."]
    equal = np.mean(growth_per_doubling(found.lengths, found.uniform_entropy))
    said = [
        f"From {first} to {last} tokens entropy {_moves(growth.mean())} nat a doubling in the mean of "
        f"{_heads(len(growth))} ({growth.min():.2f} to {growth.max():.2f}), "
        f"with equal weights by {equal:.2f}."
    ]
    known = found.best >= 0
    if not known.any():
        return said
    misses = np.sqrt((found.misses[known] ** 2).mean(0))
    best = int(np.nanargmin(misses))
    heads = "each head" if known.all() else f"each of the {known.sum()} heads where one is determined"
    name, kept = found.laws[best].spelling, f"the entropies of {first} tokens"
    if best == 0:
        law = f"No law of {len(misses)}, with a constant for {heads}, keeps {kept} better"
        return [*said, f"{law} than the standard scale, which misses by {misses[0]:.2f} nat."]
    law = f"Of {len(misses)} laws, with a constant for {heads}, {name} keeps {kept} best"
    return [*said, f"{law}: it misses by {misses[best]:.2f} nat, the standard scale by {misses[0]:.2f}."]


def outliers(found: _Described) -> list[str]:
    """The heads at the ends of each quantity, one sentence each.

    Nothing is said where equal weights or random keys, on the keys that the head's mask shows, come as far:
    then a window, the length or the initial weights of a model explain it.
    """
    first, last = int(found.lengths[0]), int(found.lengths[-1])
    keys, growth, misses = found.effective_keys, found.growth, found.best_misses
    below, above = _explained(found.random_entropy[..., 0], found.uniform_entropy)
    slower, faster = _explained(
        *(
            growth_per_doubling(found.lengths, x)
            for x in (found.random_entropy[..., 0], found.uniform_entropy)
        )
    )
    said = []
    for far, word in ((growth - faster, "fastest"), (slower - growth, "least")):
        if (i := _largest(far, _NATS)) is not None:
            ends = f"{_few(keys[i, 0])} effective keys at {first}, {_few(keys[i, -1])} at {last}"
            said.append(f"{found.name(i)} spreads {word}: {ends}.")
    if (i := _largest((below - found.entropy[..., 0])[:, -1], _NATS)) is not None:
        said.append(f"{found.name(i)} is the sharpest at {last}: {_few(keys[i, -1])} effective keys.")
    weight = _beyond(found.first_key_weight[:, -1], found.uniform_first_key[:, -1])
    if (i := _largest(weight)) is not None:
        said.append(f"{found.name(i)} gives the first key the most: {weight[i]:.1%} of the weight at {last}.")
    share = _beyond(found.received[:, -1], found.uniform_received[:, -1])
    if (i := _largest(share)) is not None:
        key = int(found.received_by[i, -1])
        said.append(
            f"{found.name(i)} has the key that gets the most: key {key}, {share[i]:.1%} of all weight."
        )
    entropy = found.entropy[..., 0]
    plain = ((entropy > below - _NATS) & (entropy < above + _NATS)).all(1)
    if (i := _largest(np.where(plain, np.nan, misses), _NATS)) is not None:
        law = found.laws[int(found.best[i])].spelling
        said.append(f"No law keeps {found.name(i)} well: the best, {law}, misses by {misses[i]:.2f} nat.")
    return said


def _explained(random: Array, equal: Array) -> tuple[Array, Array]:
    """The least and the most of what random keys and equal weights have."""
    return np.fmin(random, equal), np.fmax(random, equal)


def _beyond(weights: Array, equal: Array) -> Array:
    """Weights that are far more than with equal scores; NaN in the place of the others."""
    return np.where(weights > np.maximum(_TIMES * equal, _SHARE), weights, np.nan)


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


def _largest(values: Array, least: float = -np.inf) -> int | None:
    """Index of the largest number; None where there is none, or none above `least`."""
    if not (values > least).any():
        return None
    return int(np.nanargmax(values))


def _heads(number: int) -> str:
    return "1 head" if number == 1 else f"{number} heads"


def _moves(by: float) -> str:
    return f"{'falls' if by < 0 else 'rises'} by {abs(by):.2f}"


def _few(keys: float) -> str:
    """A number of keys to two or three digits."""
    return f"{keys:.1f}" if keys < 100 else f"{keys:.0f}"
