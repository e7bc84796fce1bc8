# SPDX-License-Identifier: BSD-3-Clause
"""Linear attention: the kernel phi(q) . phi(k) for a feature map phi that is not negative."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from .._checks import as_array, choose
from ._arrays import wide_type
from ._heads import offset_of, read_heads
from ._log_prefix import LogSums
from ._prefix import Prefix, Sums
from ._run import Features, run
from ._state import State

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from .._call.types import Causal, Layout

    FeatureMap: TypeAlias = str | Callable[[NDArray[Any]], NDArray[Any]] | tuple[ArrayLike, ArrayLike]

__all__ = ["LinearState", "linear_attention"]

_MAPS = ("elu", "relu")


class _LogElu:
    """ln(elu(x) + 1), which no large negative x makes vanish."""

    def query(self, rows: NDArray[Any], first: int) -> NDArray[Any]:
        return np.where(rows > 0, np.log1p(np.maximum(rows, 0)), rows)

    key = query


class _Vanishing(Exception):
    """A row for which exp(x) leaves the normal numbers of the type."""


class _InRange:
    """Rows whose elu(x) + 1 the core computes; refuses those whose products of features could vanish."""

    def query(self, rows: NDArray[Any], first: int) -> NDArray[Any]:
        lowest = 0.45 * float(np.log(np.finfo(rows.dtype).tiny))
        if rows.size and rows.min() < lowest:
            raise _Vanishing
        return rows

    key = query


class _Mapped:
    """A function of rows, its results checked."""

    def __init__(self, function: Callable[[NDArray[Any]], NDArray[Any]]) -> None:
        self.function = function

    def query(self, rows: NDArray[Any], first: int) -> NDArray[Any]:
        return _checked("feature_map(x)", self.function(rows), rows.shape[:-1], rows.dtype)

    key = query


class _Given:
    """The rows themselves: features that the caller computed, or what the core maps to features."""

    def query(self, rows: NDArray[Any], first: int) -> NDArray[Any]:
        return rows

    key = query


def _checked(name: str, found: Any, rows: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    array = as_array(name, found)
    if array.dtype.kind != "f" and array.dtype.name != "bfloat16":
        raise TypeError(f"{name} must be floating point, got {array.dtype}")
    if array.ndim != len(rows) + 1 or array.shape[:-1] != rows:
        raise ValueError(f"{name} must have the shape (*{rows}, features) of its rows, got {array.shape}")
    if array.size and array.min() < 0:
        raise ValueError(f"{name} must not be negative: weights would be; got {array.min():.6g}")
    return array.astype(dtype, copy=False)


def linear_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    *,
    feature_map: FeatureMap = "elu",
    is_causal: bool = False,
    causal: Causal | None = None,
    enable_gqa: bool = False,
    layout: Layout = "bhsd",
    num_threads: int | None = None,
) -> NDArray[Any]:
    """sum_j phi(q) . phi(k_j) v_j / sum_j phi(q) . phi(k_j), in O(n features value_dim).

    Parameters
    ----------
    query : array_like, shape (..., heads, n_queries, head_dim)
    key : array_like, shape (..., kv_heads, n_keys, head_dim)
    value : array_like, shape (..., kv_heads, n_keys, value_dim)
        As for :func:`attnscale.attention`.
    feature_map : {"elu", "relu"}, callable or pair of array_like
        "elu" is elu(x) + 1. A callable takes rows (..., n, head_dim) and returns (..., n, features) that
        are not negative; it is called once a block, so a row's features may depend on that row alone.
        A pair are the features themselves, of query and key, of shape (..., n, features); their type and
        that of value is the result's.
    is_causal, causal, enable_gqa, layout, num_threads
        As for :func:`attnscale.attention`.

    Returns
    -------
    ndarray, shape (..., heads, n_queries, value_dim)
        Rows whose weights are all 0 (no key, or relu of a negative vector) are 0.

    Raises
    ------
    TypeError, ValueError, MemoryError
        As :func:`attnscale.attention`; features that are negative or have another shape.

    Notes
    -----
    Katharopoulos, Vyas, Pappas, Fleuret 2020, "Transformers are RNNs", arXiv 2006.16236. The causal form
    goes in blocks: the sums over all blocks before, and a masked product within. Where elu(x) + 1 = exp(x)
    would leave the range of the type, the sums are taken of logarithms.

    Examples
    --------
    >>> import numpy as np, attnscale as at
    >>> q, k, v = np.random.default_rng(0).standard_normal((3, 2, 100, 8))
    >>> out = at.variants.linear_attention(q, k, v, is_causal=True)
    >>> bool(np.allclose(out[:, 0], v[:, 0]))  # the first query sees the first key alone
    True
    >>> squared = at.variants.linear_attention(q, k, v, feature_map=lambda x: x**2)
    """
    inputs, result, heads = read_heads(query, key, value, enable_gqa=enable_gqa, layout=layout)
    dtype = wide_type(inputs.dtype)
    offset = offset_of(inputs, is_causal, causal)
    features: Features = _Given()
    sums: Callable[[], Prefix] = Sums
    if isinstance(feature_map, tuple):
        phi_q, phi_k = _given(feature_map, query, key)
        inputs, result, heads = read_heads(phi_q, phi_k, value, enable_gqa=enable_gqa, layout=layout)
        dtype = wide_type(inputs.dtype)
    else:
        features, sums = _read_map(feature_map)
    try:
        run(heads, features, sums, offset, dtype, num_threads)
    except _Vanishing:
        run(heads, _LogElu(), lambda: LogSums(per_channel=False), offset, dtype, num_threads)
    return result


def _read_map(feature_map: Any) -> tuple[Features, Callable[[], Prefix]]:
    """The features of rows, and the sums that take them."""
    if callable(feature_map):
        return _Mapped(feature_map), Sums
    if not isinstance(feature_map, str):
        raise TypeError(
            f"feature_map must be a name, a callable or a pair of arrays, got {type(feature_map).__name__}"
        )
    choose("feature_map", feature_map, _MAPS)
    return _InRange() if feature_map == "elu" else _Given(), partial(Sums, rows=feature_map)


def _given(pair: tuple[Any, ...], query: Any, key: Any) -> list[NDArray[Any]]:
    """The features of a pair, checked, in place of query and key."""
    if len(pair) != 2:
        raise ValueError(f"feature_map must hold two arrays, of query and key, got {len(pair)}")
    found = []
    for index, (features, rows) in enumerate(zip(pair, (query, key), strict=True)):
        array = as_array(f"feature_map[{index}]", features)
        found.append(_checked(f"feature_map[{index}]", array, np.shape(rows)[:-1], array.dtype))
    return found


class LinearState(State):
    """Linear attention while keys arrive: S = sum phi(k) v^T and z = sum phi(k).

    Parameters
    ----------
    feature_map : {"elu", "relu"} or callable
    enable_gqa, layout
        As for :func:`linear_attention`.

    Examples
    --------
    >>> import numpy as np, attnscale as at
    >>> k, v = np.random.default_rng(0).standard_normal((2, 100, 8))
    >>> state = at.variants.LinearState(feature_map="relu").update(k, v)
    >>> whole = at.variants.linear_attention(k[:3], k, v, feature_map="relu")
    >>> bool(np.allclose(state.read(k[:3]), whole))
    True
    """

    def __init__(
        self,
        *,
        feature_map: str | Callable[[NDArray[Any]], NDArray[Any]] = "elu",
        enable_gqa: bool = False,
        layout: Layout = "bhsd",
    ) -> None:
        features, make_sums = _read_map(feature_map)
        sums = make_sums()
        if isinstance(feature_map, str) and feature_map == "elu":  # no key to come makes it vanish
            features, sums = _LogElu(), LogSums(per_channel=False)
        super().__init__(features, sums, enable_gqa=enable_gqa, layout=layout)
