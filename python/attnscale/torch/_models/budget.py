# SPDX-License-Identifier: BSD-3-Clause
"""Shares of a cache for the key heads of a model: bits of a number, tokens to keep."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def bits_by_head(renyi2: NDArray[np.float64], mean: float) -> NDArray[np.float64]:
    """Bits of a number in each key head's cache: mean + (mean of H_2 - H_2) / 4, H_2 = renyi2 in bits."""
    in_bits = renyi2 / np.log(2)
    shared: NDArray[np.float64] = mean + (in_bits.mean() - in_bits) / 4
    return shared


def tokens_by_head(
    effective_keys: NDArray[np.float64], most: NDArray[np.int64], mean: float
) -> NDArray[np.int64]:
    """Tokens to keep for each key head, in proportion to its effective keys, at least 1 and at most `most`.

    The rest of a capped head goes to the others. The tokens add up to the mean times the heads, rounded, or
    to the sum of `most` if that is less.
    """
    total = min(round(mean * len(most)), int(most.sum()))
    # The factor of the effective keys is the root of an increasing function, bracketed here.
    low, high = 0.0, float((most / effective_keys).max())
    for _ in range(200):
        middle = (low + high) / 2
        less = np.clip(middle * effective_keys, 1, most).sum() < total
        low, high = (middle, high) if less else (low, middle)
    shares = np.clip(high * effective_keys, 1, most)
    whole = np.floor(shares).astype(np.int64)
    left = max(total - int(whole.sum()), 0)
    # The largest remainders are rounded up until the sum is right.
    for place in np.argsort(whole - shares, kind="stable")[:left]:
        whole[place] += whole[place] < most[place]
    return whole


def of_key_heads(values: NDArray[Any], key_of: tuple[int, ...], how: Any) -> NDArray[np.float64]:
    """Combine the values of the query heads of each key head."""
    of_heads, reads = values[: len(key_of)], np.array(key_of, int)
    return np.array([how(of_heads[reads == each], axis=0) for each in sorted({*key_of})], np.float64)


def mean_renyi2(renyi2: NDArray[np.float64], axis: int) -> NDArray[np.float64]:
    """H_2 of several heads that share keys: that of the mean of their sums of squared weights."""
    return np.asarray(-np.log(np.exp(-renyi2).mean(axis=axis)))
