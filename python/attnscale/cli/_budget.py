# SPDX-License-Identifier: BSD-3-Clause
"""Budgets of a cache of keys and values, shared out by head: bits of a number, and tokens that are kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .._io import InputError


class Budget(NamedTuple):
    """What a key head gets on average; None is not shared out."""

    bits: float | None = None
    tokens: float | None = None


def read_budget(given: Sequence[str]) -> Budget:
    """The values of ``--budget``: bits=4, tokens=512, or both."""
    found: dict[str, float] = {}
    for text in given:
        name, _, value = text.partition("=")
        try:
            number = float(value)
        except ValueError:
            number = np.nan
        if name not in Budget._fields or name in found or not 0 < number < np.inf:
            rule = "must be bits=B, tokens=N or both, with numbers above 0"
            raise InputError(f"--budget {rule}, got {' '.join(given)}")
        found[name] = number
    return Budget(**found)


def bits_by_head(renyi2: NDArray[np.float64], mean: float) -> NDArray[np.float64]:
    """Bits of a number in the cache of each key head: b + (mean of H_2 - H_2 of the head) / 4, H_2 in bits.

    Parameters
    ----------
    renyi2 : ndarray
        Renyi entropy of order 2 of each key head, in nats.
    mean : float
        Bits of a number on average, b.
    """
    in_bits = renyi2 / np.log(2)
    shared: NDArray[np.float64] = mean + (in_bits.mean() - in_bits) / 4
    return shared


def tokens_by_head(
    effective_keys: NDArray[np.float64], most: NDArray[np.int64], mean: float
) -> NDArray[np.int64]:
    """Tokens to keep of each key head, in proportion to its effective keys, at least 1 and at most `most`.

    What a head cannot use goes to the others. The tokens add up to the mean times the heads, rounded, or to
    the sum of `most` where that is less.
    """
    total = min(round(mean * len(most)), int(most.sum()))
    # The factor of the effective keys is the root of an increasing function, between two that enclose it.
    low, high = 0.0, float((most / effective_keys).max())
    for _ in range(200):
        middle = (low + high) / 2
        less = np.clip(middle * effective_keys, 1, most).sum() < total
        low, high = (middle, high) if less else (low, middle)
    shares = np.clip(high * effective_keys, 1, most)
    whole = np.floor(shares).astype(np.int64)
    left = max(total - int(whole.sum()), 0)
    # The largest remainders are rounded up, until the sum is right.
    for place in np.argsort(whole - shares, kind="stable")[:left]:
        whole[place] += whole[place] < most[place]
    return whole


def of_key_heads(values: NDArray[Any], key_heads: int, how: Any) -> NDArray[np.float64]:
    """Combine what the query heads that read each key head have."""
    found: NDArray[np.float64] = how(values.reshape(key_heads, -1), axis=1)
    return found


def mean_renyi2(renyi2: NDArray[np.float64], axis: int) -> NDArray[np.float64]:
    """H_2 of several heads that share keys: that of the mean of their sums of squared weights."""
    return np.asarray(-np.log(np.exp(-renyi2).mean(axis=axis)))
