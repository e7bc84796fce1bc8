# SPDX-License-Identifier: BSD-3-Clause
"""Linear attention: the kernel phi(q) . phi(k) for a feature map phi that is not negative."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias, Unpack

import numpy as np

from .._call.options import takes
from .._call.types import VariantOptions
from .._checks import choose
from .._options import hinted
from ._heads import read_call
from ._linear_form import LinearForm, attend_in, check_features
from ._state import State

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from .._call.types import Layout

    FeatureMap: TypeAlias = str | Callable[[NDArray[Any]], NDArray[Any]] | tuple[ArrayLike, ArrayLike]

_MAPS = ("elu", "relu")


@hinted
@takes(VariantOptions)
def linear_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    *,
    feature_map: FeatureMap = "elu",
    **options: Unpack[VariantOptions],
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
        are not negative; it is called once for all queries and once for all keys.
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
    would leave the range of the type, the sums are taken of logarithms. Where other features do, or their
    products, a head of less than 64 bits is done in float64.

    Examples
    --------
    >>> import numpy as np, attnscale as at
    >>> q, k, v = np.random.default_rng(0).standard_normal((3, 2, 100, 8))
    >>> out = at.variants.linear_attention(q, k, v, is_causal=True)
    >>> bool(np.allclose(out[:, 0], v[:, 0]))  # the first query sees the first key alone
    True
    >>> squared = at.variants.linear_attention(q, k, v, feature_map=lambda x: x**2)
    """
    if not isinstance(feature_map, tuple):
        return attend_in(lambda _: read_map(feature_map), query, key, value, options)
    read_call(query, key, value, options)
    query, key = given_features(feature_map, query, key)
    return attend_in(lambda _: LinearForm("given"), query, key, value, options)


def read_map(feature_map: Any) -> LinearForm:
    """The form of a feature map that is no pair."""
    if callable(feature_map):
        return LinearForm("given", function=feature_map)
    if not isinstance(feature_map, str):
        raise TypeError(
            f"feature_map must be a name, a callable or a pair of arrays, got {type(feature_map).__name__}"
        )
    return LinearForm(choose("feature_map", feature_map, _MAPS))


def given_features(pair: tuple[Any, ...], query: Any, key: Any) -> list[NDArray[Any]]:
    """The features of a pair, checked, in place of query and key."""
    if len(pair) != 2:
        raise ValueError(f"feature_map must hold two arrays, of query and key, got {len(pair)}")
    return [
        check_features(f"feature_map[{index}]", features, np.shape(rows)[:-1])
        for index, (features, rows) in enumerate(zip(pair, (query, key), strict=True))
    ]


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
        form = read_map(feature_map)
        if form.map == "elu":  # no key to come makes it vanish
            form = LinearForm("log_elu")
        super().__init__(form, enable_gqa=enable_gqa, layout=layout)
