# SPDX-License-Identifier: BSD-3-Clause
"""The lengths of a calibration: those that are given, checked, or those that the number of keys suggests."""

from __future__ import annotations

from typing import Any

from .._checks import positive_int, refusal, shown

_SHORTEST = 32  # of the lengths that are chosen by default
_FEWEST = 24  # keys: an eighth of them is the least length at which every law can begin


def read_start(n0: Any, laws: Any, n_keys: int) -> int:
    """The length whose entropy is kept."""
    if n0 is not None:
        return _read_length("n0", n0, n_keys)
    if laws is None and n_keys < _FEWEST:
        raise ValueError(f"key must have at least {_FEWEST} keys, or n0 and laws be given, got {n_keys} keys")
    return 512 if n_keys > 512 else max(n_keys // 8, 2)


def _read_length(name: str, value: Any, n_keys: int) -> int:
    length = positive_int(name, value)
    if not 2 <= length <= n_keys:
        raise refusal(ValueError, name, f"must be between 2 and the number of keys, {n_keys}, got {length}")
    return length


def read_lengths(lengths: Any, n0: int, n_keys: int) -> list[int]:
    """The lengths to measure, each once."""
    if lengths is None:
        least = min(n0, _SHORTEST)
        below = [n0 >> k for k in range(1, n0.bit_length()) if n0 >> k >= least]
        above = [n0 << k for k in range((n_keys // n0).bit_length()) if n0 << k <= n_keys]
        return sorted(below) + above
    try:
        given = list(lengths)
    except TypeError:
        raise TypeError(f"lengths must be integers, got {shown(lengths)}") from None
    if not given:
        raise ValueError("lengths must name at least one length, got none")
    return list(dict.fromkeys(_read_length("lengths", n, n_keys) for n in given))
