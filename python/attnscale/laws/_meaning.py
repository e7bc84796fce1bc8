# SPDX-License-Identifier: BSD-3-Clause
"""The meanings that laws give their n."""

from __future__ import annotations

from typing import Literal

__all__ = ["COUNTED_AT", "LEAST", "MEANINGS_OF_N", "NMeans"]

NMeans = Literal[
    "visible keys",
    "row size",
    "query position",
    "query position + 1",
    "query position + 2",
    "query-key distance",
    "row entropy",
    "row gaps",
    "not used",
]

#: The meanings that a law may give its n, and how attention() finds it for each query.
MEANINGS_OF_N: dict[NMeans, str] = {
    "visible keys": "keys that the query may see, after every mask",
    "row size": "keys up to the last one that causal, window and key_lengths let the query see "
    "(causal: i + 1); a mask or the window's left side does not shorten it",
    "query position": "0-based index of the key that the query is aligned with, whatever is masked",
    "query position + 1": "1-based index of the key that the query is aligned with, whatever is masked",
    "query position + 2": "0-based index of the key that the query is aligned with, plus 2",
    "query-key distance": "positions between the query and each key: one row has many n",
    "row entropy": "entropy of the row at the standard scale, in nats: a first pass measures it",
    "row gaps": "sup over t > 0 of ln N(t) / t, N(t) = scores at most t below the row's top one, "
    "at the standard scale: measured from the row",
    "not used": "the scale is the same at every length",
}

#: n of a causal query at position i that sees the keys 0 ... i, less i.
COUNTED_AT: dict[str, float] = {
    "visible keys": 1,
    "row size": 1,
    "query position": 0,
    "query position + 1": 1,
    "query position + 2": 2,
    "not used": 1,
}

#: The smallest n.
LEAST: dict[str, int] = {
    **dict.fromkeys(MEANINGS_OF_N, 1),
    "query position": 0,
    "query position + 2": 2,
    "query-key distance": 0,
    "row entropy": 0,
    "row gaps": 0,
}
