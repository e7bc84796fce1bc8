# SPDX-License-Identifier: BSD-3-Clause
"""Rotation of pairs of channels, and growth of channels, at a position.

With x the channels at position 0 and y those of the same tokens at another position, each turned channel is
y = a x + b x' with one partner x'; the angle has the cosine a and the sine b, up to the growth.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

#: Relative size of what a channel leaves unexplained above which it is turned, beside the type's rounding.
_TURNED = 2e-5


class Turned(NamedTuple):
    """Channels at one position against those at position 0."""

    partners: NDArray[np.int64]  # the other channel of its pair; -1 where none is seen
    angles: NDArray[np.float64]  # in rad, from -pi to pi; NaN where the partner is not known
    growth: NDArray[np.float64]  # what the position multiplies the channel by
    left: NDArray[np.float64]  # the part of a channel that nothing explains
    blur: NDArray[np.float64]  # angle that rounding hides, in rad: large where channels hardly vary


def turned(
    x: NDArray[np.float64], y: NDArray[np.float64], rounding: float, known: NDArray[np.int64] | None = None
) -> Turned:
    """Partners, angles and growth of channels, from samples of shape (samples, channels).

    `known` has partners that were found at another position.
    """
    size = np.linalg.norm(y, axis=0)
    own = (x * y).sum(0) / (x * x).sum(0)
    rest = y - own * x
    others = _others(x)
    partners = _partners(x, rest, size, others, max(_TURNED, 4 * rounding))
    if known is not None:
        partners = np.where(partners < 0, known, partners)
    partners = _mutual(partners)
    angles, growth, left = np.full(own.size, np.nan), np.abs(own), np.linalg.norm(rest, axis=0) / size
    for channel in np.flatnonzero(partners >= 0):
        pair = x[:, [channel, partners[channel]]]
        (along, across), *_ = np.linalg.lstsq(pair, y[:, channel], rcond=None)
        sign = -1.0 if channel < partners[channel] else 1.0
        angles[channel] = np.arctan2(sign * across, along)
        growth[channel] = np.hypot(along, across)
        left[channel] = np.linalg.norm(y[:, channel] - pair @ (along, across)) / size[channel]
    angles[(partners < 0) & (own > 0)] = 0.0
    np.fill_diagonal(others, np.nan)
    usual = np.sqrt(np.nanmedian(others, axis=1)) if own.size > 1 else size
    apart = np.where(partners >= 0, np.sqrt(others[np.arange(own.size), partners]), usual)
    return Turned(partners, angles, growth, left, 4 * rounding * size / np.maximum(apart, 1e-300))


def _mutual(partners: NDArray[np.int64]) -> NDArray[np.int64]:
    """Partners, with those of channels that are only known as another one's."""
    found = partners.copy()
    for channel in np.flatnonzero(partners >= 0):
        if found[partners[channel]] < 0:
            found[partners[channel]] = channel
    return found


def _others(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Squared size of each channel (columns) beside what another one (rows) explains of it."""
    squares = (x * x).sum(0)
    return np.maximum(squares[None, :] - (x.T @ x) ** 2 / squares[:, None], 0.0)


def _partners(
    x: NDArray[np.float64],
    rest: NDArray[np.float64],
    size: NDArray[np.float64],
    others: NDArray[np.float64],
    least: float,
) -> NDArray[np.int64]:
    """For each channel that turns, the other one that its remainder follows best."""
    fits = (rest.T @ x) ** 2 / np.maximum(others, 1e-300)
    np.fill_diagonal(fits, 0.0)
    best = fits.argmax(1)
    found = np.where(np.linalg.norm(rest, axis=0) > least * size, best, -1)
    explained = fits[np.arange(best.size), best] / np.maximum((rest * rest).sum(0), 1e-300)
    return np.where(explained > 0.5, found, -1)
