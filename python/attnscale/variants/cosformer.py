# SPDX-License-Identifier: BSD-3-Clause
"""cosFormer: relu features, weighted by the cosine of a distance."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from .._checks import positive_int
from ._arrays import wide_type
from ._heads import offset_of, read_heads
from ._prefix import Sums
from ._run import run
from ._state import State

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from .._call.types import Causal, Layout

__all__ = ["CosformerState", "cosformer_attention"]


class _Turned:
    """relu(x) times cos and sin of pi position / (2 M): their product is the cosine of the distance."""

    def __init__(self, max_length: int) -> None:
        self.max_length = max_length

    def query(self, rows: NDArray[Any], first: int) -> NDArray[Any]:
        self.check(first + rows.shape[-2])
        positive = np.maximum(rows, 0)
        angle = np.arange(first, first + rows.shape[-2]) * (math.pi / (2 * self.max_length))
        cos, sin = (f(angle).astype(rows.dtype)[:, None] for f in (np.cos, np.sin))
        return np.concatenate([positive * cos, positive * sin], axis=-1)

    key = query

    def check(self, length: int) -> None:
        """Beyond M the cosine, and with it the weight, would be negative."""
        if length > self.max_length:
            raise ValueError(
                f"max_length must be at least the number of positions, {length}, got {self.max_length}"
            )


def cosformer_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    *,
    max_length: int,
    is_causal: bool = False,
    causal: Causal | None = None,
    enable_gqa: bool = False,
    layout: Layout = "bhsd",
    num_threads: int | None = None,
) -> NDArray[Any]:
    """Weights relu(q_i) . relu(k_j) cos(pi (i - j) / (2 M)), normalised, in O(n head_dim value_dim).

    Parameters
    ----------
    query : array_like, shape (..., heads, n_queries, head_dim)
    key : array_like, shape (..., kv_heads, n_keys, head_dim)
    value : array_like, shape (..., kv_heads, n_keys, value_dim)
        As for :func:`attnscale.attention`.
    max_length : int
        M, at least the number of positions. The paper takes the length of the sequence; a number that
        stays lets the sums stream, since earlier keys need not be turned again.
    is_causal, causal, enable_gqa, layout, num_threads
        As for :func:`attnscale.attention`. With ``causal="bottom_right"`` the last query has the position
        of the last key, otherwise the first that of the first.

    Returns
    -------
    ndarray, shape (..., heads, n_queries, value_dim)
        Rows whose weights are all 0 are 0.

    Raises
    ------
    TypeError, ValueError, MemoryError
        As :func:`attnscale.attention`; more positions than max_length.

    Notes
    -----
    cos(a - b) = cos a cos b + sin a sin b makes it a linear attention with 2 head_dim features. Source: Qin
    et al. 2022, "cosFormer: Rethinking Softmax in Attention", arXiv 2202.08791.

    Examples
    --------
    >>> import numpy as np, attnscale as at
    >>> q, k, v = np.random.default_rng(0).standard_normal((3, 2, 100, 8))
    >>> at.variants.cosformer_attention(q, k, v, max_length=4096, is_causal=True).shape
    (2, 100, 8)
    """
    inputs, result, heads = read_heads(query, key, value, enable_gqa=enable_gqa, layout=layout)
    features = _Turned(positive_int("max_length", max_length))
    features.check(max(inputs.query.shape[-2], inputs.key.shape[-2]))
    offset = offset_of(inputs, is_causal, causal)
    run(heads, features, Sums, offset, wide_type(inputs.dtype), num_threads)
    return result


class CosformerState(State):
    """cosFormer while keys arrive; a query that is read has the position of the last key.

    Parameters
    ----------
    max_length, enable_gqa, layout
        As for :func:`cosformer_attention`. Keys beyond max_length are a ValueError. States of different
        keys do not merge: both count their positions from 0.

    Examples
    --------
    >>> import numpy as np, attnscale as at
    >>> q, k, v = np.random.default_rng(0).standard_normal((3, 100, 8))
    >>> state = at.variants.CosformerState(max_length=128).update(k, v)
    >>> whole = at.variants.cosformer_attention(q, k, v, max_length=128, is_causal=True)
    >>> bool(np.allclose(state.read(q[99:]), whole[99:]))
    True
    """

    def __init__(self, *, max_length: int, enable_gqa: bool = False, layout: Layout = "bhsd") -> None:
        features = _Turned(positive_int("max_length", max_length))
        super().__init__(features, Sums(), enable_gqa=enable_gqa, layout=layout)

    def merge(self, other: Any) -> Any:
        """Not possible: positions count from 0 in each state."""
        raise TypeError("CosformerState objects do not merge: each counts its positions from 0")
