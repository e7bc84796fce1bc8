# SPDX-License-Identifier: BSD-3-Clause
"""Queries and keys inside a page, from which it measures a head again."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..calibration.fit import Length

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Options of rows that the page supports.
_KNOWN = {"causal", "window", "enable_gqa", "num_threads"}
_BYTES = 2  # of a number in float16


class KeptHead(NamedTuple):
    """One head at the longest length of a report; 1/sqrt(head_dim) is its own scale."""

    query: NDArray[np.float16]  # (n, head_dim)
    key: NDArray[np.float16]
    is_causal: bool
    window: tuple[int | None, int | None] | None

    def to_dict(self) -> dict[str, Any]:
        """Content for the page: arrays as base64 bytes, row by row, little-endian float16."""
        n, head_dim = self.query.shape
        query, key = (base64.b64encode(x.astype("<f2").tobytes()).decode() for x in (self.query, self.key))
        rows = {"is_causal": self.is_causal, "window": list(self.window) if self.window else None}
        return {"n": n, "head_dim": head_dim, **rows, "query": query, "key": key}


def kept_heads(parts: Sequence[Length]) -> tuple[KeptHead | None, ...]:
    """The heads of all parts; None for a head that the page cannot measure.

    Unsupported are masks, soft-caps, normalizers other than softmax, different numbers of queries and keys,
    and numbers too large for float16.
    """
    return tuple(head for part in parts for head in _of_part(part))


def _of_part(part: Length) -> Iterator[KeptHead | None]:
    query, key, options = part
    used = {name for name, value in options.items() if value is not None}
    known = used <= _KNOWN and query.shape[-2:] == key.shape[-2:]
    with np.errstate(over="ignore"):
        q, k = query.astype(np.float16), key.astype(np.float16)
    for head in range(len(q)):
        of_head = q[head], k[head * len(k) // len(q)]
        fits = known and all(np.isfinite(x).all() for x in of_head)
        yield KeptHead(*of_head, options["causal"] is not None, options.get("window")) if fits else None


def size_of(parts: Sequence[Length]) -> int:
    """Bytes of these parts' heads in a page, where each key is written for every head."""
    numbers = sum(2 * part.query.size for part in parts)
    return -(-numbers * _BYTES // 3) * 4
