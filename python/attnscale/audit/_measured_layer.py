# SPDX-License-Identifier: BSD-3-Clause
"""Numbers of one layer of a loaded model, as it computed them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

Pairing = Literal["halves", "adjacent", ""]


class Turns(Protocol):
    """Channels of queries or keys at a position, against those at position 0.

    Attributes
    ----------
    partners : ndarray of int, shape (channels,)
        The other channel of each one's pair; -1 where none is seen.
    angles : ndarray, shape (channels,)
        In rad, from -pi to pi.
    growth : ndarray, shape (channels,)
        What the position multiplies the channel by.
    left : ndarray, shape (channels,)
        The relative part of the channel that nothing explains.
    blur : ndarray, shape (channels,)
        The angle that rounding hides, in rad.
    """

    @property
    def partners(self) -> NDArray[np.int64]: ...
    @property
    def angles(self) -> NDArray[np.float64]: ...
    @property
    def growth(self) -> NDArray[np.float64]: ...
    @property
    def left(self) -> NDArray[np.float64]: ...
    @property
    def blur(self) -> NDArray[np.float64]: ...


@dataclass(frozen=True, eq=False)
class MeasuredLayer:
    """Numbers that the code of a layer gave raw queries and keys; :func:`attnscale.audit.measure` makes it.

    Attributes
    ----------
    index : int
        Number of the layer, from its module's name.
    module, tower : str
        Name of the module that calls attention, and the part of the model that it belongs to.
    way : str
        How the model computes attention, as "scaled_dot_product_attention".
    scale : float
        The number that the call of attention multiplies its scores by.
    factors : ndarray, shape (channels,)
        Everything that multiplies each channel of q . k of the first head at position 0, ``scale`` included.
    by_head : tuple of float
        The median of the factors in the first and in the last head.
    rounding : float
        Relative spacing of the numbers of its type.
    softcap : float or None
    sees : int
        The most keys that a query saw, of a text of ``tokens``.
    tokens : int
    is_causal : bool
        Whether no query saw a later key.
    sink : bool or None
        Whether the softmax has a logit without a value; None where that was not measured.
    bias : bool
        Whether numbers are added to scores.
    query, key : mapping of int to Turns
        By position.
    features : ndarray of int, shape (channels,)
        The feature of a projection, or a norm behind it, that each channel of the first head comes from.
    notes : tuple of str
    reason : str
        Why the layer was not measured, or empty.
    """

    index: int
    module: str
    tower: str = ""
    way: str = ""
    scale: float = float("nan")
    factors: NDArray[np.float64] = field(default_factory=lambda: np.empty(0), repr=False)
    by_head: tuple[float, ...] = ()
    rounding: float = 0.0
    softcap: float | None = None
    sees: int = 0
    tokens: int = 0
    is_causal: bool = False
    sink: bool | None = False
    bias: bool = False
    query: Mapping[int, Turns] = field(default_factory=dict, repr=False)
    key: Mapping[int, Turns] = field(default_factory=dict, repr=False)
    features: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64), repr=False)
    notes: tuple[str, ...] = ()
    reason: str = ""

    @property
    def head_dim(self) -> int:
        """Number of channels of a query."""
        return int(self.factors.size)

    @property
    def positions(self) -> tuple[int, ...]:
        """Positions at which queries were seen, beside 0."""
        return tuple(self.query)

    @property
    def window(self) -> int | None:
        """The most keys that a query saw, if those are fewer than there were."""
        return self.sees if self.sees < self.tokens else None

    @cached_property
    def turning(self) -> NDArray[np.bool_]:
        """Channels that turned at some position, shape (channels,)."""
        found = [each.partners >= 0 for side in (self.query, self.key) for each in side.values()]
        return np.any(found, axis=0) if found else np.zeros(self.head_dim, bool)

    @cached_property
    def partners(self) -> NDArray[np.int64]:
        """The other channel of each one's pair, by the position that shows it; -1 for channels that stay."""
        found = [each.partners for each in self.query.values()]
        return np.max(found, axis=0) if found else np.full(self.head_dim, -1)

    @cached_property
    def offset(self) -> int:
        """Usual distance of the two channels of a pair; 0 without rotation."""
        there = np.flatnonzero(self.partners >= 0)
        if not there.size:
            return 0
        return int(np.bincount(np.abs(self.partners[there] - there)).argmax())

    @property
    def pairing(self) -> Pairing:
        """Whether pairs are neighbours in the projection, "adjacent", or in its two halves."""
        there = np.flatnonzero(self.partners >= 0)
        if there.size < 3:  # one pair is both
            return ""
        distances = np.abs(self.features[there] - self.features[self.partners[there]])
        return "adjacent" if int(np.bincount(distances).argmax()) == 1 else "halves"

    @cached_property
    def rotated(self) -> NDArray[np.bool_]:
        """Channels of the block that turns, with those that turn too slowly to be seen."""
        found = np.zeros(self.head_dim, bool)
        there = np.flatnonzero(self.turning)
        if there.size:
            first = int(there[0])
            last = first + 2 * self.offset if self.offset > 1 else int(there[-1]) + 1
            found[first:last] = True
        return found

    def multiplier(self, position: int = 0, *, rotated: bool) -> float | None:
        """Median multiplier of the channels of a kind at a measured position; None without such channels."""
        chosen = self.rotated if rotated else ~self.rotated
        if not chosen.any():
            return None
        growth = 1.0 if position == 0 else self.query[position].growth[chosen]
        return float(np.median(self.factors[chosen] * growth))

    def spread(self, *, rotated: bool) -> float:
        """The relative range of the factors of the channels of a kind."""
        chosen = self.factors[self.rotated if rotated else ~self.rotated]
        middle = float(np.median(chosen))
        return float(np.ptp(chosen)) / abs(middle) if middle else float("inf")
