# SPDX-License-Identifier: BSD-3-Clause
"""What decoding keeps instead of keys and values: sums whose size does not depend on their number."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from .._call.arrays import Inputs, read_inputs, swap_heads
from .._checks import boolean
from ._arrays import wide_type
from ._heads import read_layout, split_heads
from ._prefix import Prefix
from ._run import ROWS, Features

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

__all__ = ["State"]


class State:
    """Keys and values taken in so far, as the sums that later queries read.

    Each family has its own subclass, with the options of its function. ``update`` takes keys and values
    in, ``read`` answers queries that see all of them, ``merge`` joins two states over different keys.

    Attributes
    ----------
    n_keys : int
        Keys taken in so far.

    Examples
    --------
    >>> import numpy as np, attnscale as at
    >>> rng = np.random.default_rng(0)
    >>> q, k, v = rng.standard_normal((3, 2, 10, 4))
    >>> state = at.variants.EfficientState()
    >>> rows = [state.update(k[:, [i]], v[:, [i]]).read(q[:, [i]]) for i in range(10)]
    >>> causal = at.variants.efficient_attention(q, k, v, is_causal=True)
    >>> bool(np.allclose(np.concatenate(rows, axis=1), causal))
    True
    """

    n_keys: int

    def __init__(self, features: Features, sums: Prefix, *, enable_gqa: bool, layout: str) -> None:
        self._features = features
        self._sums = sums
        self._enable_gqa = boolean("enable_gqa", enable_gqa)
        self._layout = read_layout(layout)
        self._shapes: tuple[tuple[int, ...], tuple[int, ...]] | None = None
        self.n_keys = 0

    def update(self, key: ArrayLike, value: ArrayLike) -> Self:
        """Take keys and values in, after those before; returns the state itself.

        Parameters
        ----------
        key : array_like, shape (..., kv_heads, n, head_dim)
        value : array_like, shape (..., kv_heads, n, value_dim)

        Raises
        ------
        TypeError, ValueError
            As exact attention, and where the heads or dimensions are not those of the first update.
        """
        inputs = read_inputs(key, key, value, False, self._layout)
        assert inputs.value is not None
        self._check_shapes(inputs.key, inputs.value)
        dtype = wide_type(inputs.dtype)
        keys, values = self._shared(inputs.key), self._shared(inputs.value)
        n = keys.shape[-2]
        with np.errstate(all="ignore"):
            for start in range(0, n, ROWS):
                rows = np.s_[..., start : min(start + ROWS, n), :]
                features = self._features.key(keys[rows].astype(dtype, copy=False), self.n_keys + start)
                self._sums.add(features, values[rows].astype(dtype, copy=False))
        self.n_keys += n
        return self

    def read(self, query: ArrayLike) -> NDArray[Any]:
        """Outputs of queries that see all keys so far, the last query beside the last key.

        Parameters
        ----------
        query : array_like, shape (..., heads, n, head_dim)

        Returns
        -------
        ndarray, shape (..., heads, n, value_dim)

        Raises
        ------
        TypeError, ValueError
            As exact attention, and if no key was taken in yet.
        """
        inputs, shape = self._read_query(query)
        q = inputs.query
        n = q.shape[-2]
        grouped = split_heads(q, inputs.key.shape[-3]) if self._grouped(inputs.key) else q
        with np.errstate(all="ignore"):
            rows = self._rows(grouped.astype(wide_type(q.dtype), copy=False), n)
        output = rows.reshape(shape).astype(q.dtype, copy=False)
        return swap_heads(output) if self._layout == "bshd" else output

    def merge(self, other: Self) -> Self:
        """The state over the keys of both, which must not overlap; neither is changed.

        Raises
        ------
        TypeError
            If the other one is of another family.
        ValueError
            If the shapes differ.
        """
        if type(other) is not type(self):
            raise TypeError(f"other must be a {type(self).__name__}, got {type(other).__name__}")
        if self._shapes and other._shapes and self._shapes != other._shapes:
            raise ValueError(f"the states must have the same shapes, got {self._shapes} and {other._shapes}")
        merged = copy.copy(self)
        merged._sums = self._sums.merge(other._sums)
        merged._shapes = self._shapes or other._shapes
        merged.n_keys = self.n_keys + other.n_keys
        return merged

    def _rows(self, query: NDArray[Any], n: int) -> NDArray[Any]:
        return self._sums.read(self._features.query(query, self.n_keys - n))

    def _read_query(self, query: ArrayLike) -> tuple[Inputs, tuple[int, ...]]:
        """The query, and the shape of the output."""
        if self._shapes is None:
            raise ValueError("the state holds no keys yet; update(key, value) comes before read(query)")
        # Arrays without keys carry the shapes to the checks of exact attention.
        key, value = (np.empty(shape, np.float32) for shape in self._shapes)
        q = query if self._layout == "bhsd" else swap_heads(np.asarray(query))
        inputs = read_inputs(q, key, value, self._enable_gqa, "bhsd")
        inputs = inputs._replace(dtype=inputs.query.dtype)
        return inputs, (*inputs.leading, inputs.query.shape[-2], value.shape[-1])

    def _grouped(self, key: NDArray[Any]) -> bool:
        return self._enable_gqa and key.ndim > 2

    def _shared(self, array: NDArray[Any]) -> NDArray[Any]:
        """With an axis along which query heads share a key head."""
        return array[..., None, :, :] if self._grouped(array) else array

    def _check_shapes(self, key: NDArray[Any], value: NDArray[Any]) -> None:
        shapes = (
            (*key.shape[:-2], 0, key.shape[-1]),
            (*value.shape[:-2], 0, value.shape[-1]),
        )
        if self._shapes is not None and shapes != self._shapes:
            raise ValueError(
                "key and value must have the heads and dimensions of the first update, "
                f"{self._shapes}, got {shapes} (n left out as 0)"
            )
        if self._grouped(key) and key.shape[-3] != value.shape[-3]:
            raise ValueError(
                f"key and value of a state must have the same heads, "
                f"got {key.shape[-3]} and {value.shape[-3]}"
            )
        self._shapes = shapes
