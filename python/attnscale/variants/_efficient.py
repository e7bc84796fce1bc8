# SPDX-License-Identifier: BSD-3-Clause
"""Efficient attention: two softmaxes, one over the channels of a query, one over the keys of a channel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from .._base.checks import choose, number
from .._base.hints import hinted
from .._call.arrays import read_inputs
from .._call.options import VariantOptions, takes
from ..exact.results import describe_arrays
from ._arrays import read_layout, read_whole, refuse_causal, wide_type
from ._linear_form import LinearForm, State, attend_in

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from .._call.types import Causal, Layout

NORMALIZATIONS = ("softmax", "scaling")


def efficient_form(normalization: Any = "softmax", scale: Any = 1.0) -> LinearForm:
    choose("normalization", normalization, NORMALIZATIONS)
    factor = number("scale", scale)
    if normalization == "softmax":
        return LinearForm("exponential", "channels", factor)
    return LinearForm("given", "count", factor)


def _softmax(x: NDArray[Any], axis: int = -1) -> NDArray[Any]:
    """Softmax along an axis; a row of only -inf is NaN, as 0/0."""
    weights: NDArray[Any] = np.exp(x - x.max(axis, keepdims=True, initial=-np.inf))
    weights /= weights.sum(axis, keepdims=True)
    return weights


@hinted
@takes(VariantOptions)
def efficient_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    *,
    normalization: str = "softmax",
    scale: float = 1.0,
    **options: Unpack[VariantOptions],
) -> NDArray[Any]:
    """softmax over channels(query) (softmax over keys(key)^T value), in O(n head_dim value_dim).

    Parameters
    ----------
    query : array_like, shape (..., heads, n_queries, head_dim)
    key : array_like, shape (..., kv_heads, n_keys, head_dim)
    value : array_like, shape (..., kv_heads, n_keys, value_dim)
        As for :func:`attnscale.attention`.
    normalization : {"softmax", "scaling"}
        "softmax" as in the title, or "scaling": query (key^T value) / n with n the number of visible keys of
        the query; its weights can be negative.
    scale : float, default 1
        Multiplies query and key before their softmaxes; an addition to the paper.
    is_causal, causal : optional
        As for :func:`attnscale.attention`. Each channel's softmax then runs over the visible keys of the
        query, by a running log-sum-exp of the channel.
    enable_gqa, layout, num_threads
        As for :func:`attnscale.attention`.

    Returns
    -------
    ndarray, shape (..., heads, n_queries, value_dim)
        Rows that see no key are 0.

    Raises
    ------
    TypeError, ValueError
        If the normalization does not exist; else as :func:`attnscale.attention`.

    Notes
    -----
    The implied weights A_ij = sum_c softmax_c(q_i)_c softmax_j(k_c)_j are not negative and sum to 1, and
    their rank is at most head_dim. They differ from softmax(q k^T): see
    :func:`efficient_attention_weights`. Source: Shen, Zhang, Zhao, Yi, Li 2021, "Efficient Attention:
    Attention with Linear Complexities", arXiv 1812.01243.

    Examples
    --------
    >>> import numpy as np, attnscale as at
    >>> q, k, v = np.random.default_rng(0).standard_normal((3, 2, 1000, 8))
    >>> out = at.variants.efficient_attention(q, k, v)
    >>> weights = at.variants.efficient_attention_weights(q, k)
    >>> bool(np.allclose(out, weights @ v))
    True
    """
    return attend_in(lambda _: efficient_form(normalization, scale), query, key, value, options)


class EfficientState(State):
    """Efficient attention while keys arrive: a maximum, a sum and a weighted value per channel.

    Parameters
    ----------
    normalization, scale, enable_gqa, layout
        As for :func:`efficient_attention`.

    Examples
    --------
    >>> import numpy as np, attnscale as at
    >>> k, v = np.random.default_rng(0).standard_normal((2, 100, 8))
    >>> one = at.variants.EfficientState().update(k[:60], v[:60])
    >>> two = at.variants.EfficientState().update(k[60:], v[60:])
    >>> whole = at.variants.efficient_attention(k[:1], k, v)
    >>> bool(np.allclose(one.merge(two).read(k[:1]), whole))
    True
    """

    def __init__(
        self,
        *,
        normalization: str = "softmax",
        scale: float = 1.0,
        enable_gqa: bool = False,
        layout: Layout = "bhsd",
    ) -> None:
        super().__init__(efficient_form(normalization, scale), enable_gqa=enable_gqa, layout=layout)


@dataclass(frozen=True, eq=False, repr=False)
class GlobalMaps:
    """Parts of efficient attention: output = coefficients @ values.

    Attributes
    ----------
    maps : ndarray, shape (..., heads, head_dim, n_keys)
        Channel c's distribution over the keys: each row sums to 1. All queries share them.
    values : ndarray, shape (..., heads, head_dim, value_dim)
        maps @ value: the g_c of the article.
    coefficients : ndarray, shape (..., heads, n_queries, head_dim)
        Share of each map in a query's output: each row sums to 1.
    """

    maps: NDArray[Any]
    values: NDArray[Any]
    coefficients: NDArray[Any]

    def __repr__(self) -> str:
        return describe_arrays(self)


def global_maps(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    *,
    scale: float = 1.0,
    is_causal: bool = False,
    causal: Causal | None = None,
    layout: Layout = "bhsd",
) -> GlobalMaps:
    """The head_dim distributions over keys that efficient attention mixes, and each query's mixture.

    Parameters
    ----------
    query, key, value, scale, layout
        As for :func:`efficient_attention`; leading axes broadcast.
    is_causal, causal
        Must not be used: a causal query has its own maps.

    Returns
    -------
    GlobalMaps

    Raises
    ------
    TypeError, ValueError
        If a causal form is requested; else as :func:`efficient_attention`.

    Examples
    --------
    >>> import numpy as np, attnscale as at
    >>> q, k, v = np.random.default_rng(0).standard_normal((3, 50, 4))
    >>> found = at.variants.global_maps(q, k, v)
    >>> found.maps.shape, found.values.shape, found.coefficients.shape
    ((4, 50), (4, 4), (50, 4))
    >>> output = at.variants.efficient_attention(q, k, v)
    >>> bool(np.allclose(found.coefficients @ found.values, output))
    True
    """
    refuse_causal("global_maps", "a causal query has maps of its own", is_causal, causal)
    if value is None:
        raise TypeError("value must be an array, got None; efficient_attention_weights works without a value")
    inputs = read_whole(query, key, value, layout, enable_gqa=False)
    dtype, factor = wide_type(inputs.dtype), number("scale", scale)
    with np.errstate(all="ignore"):  # overflow shows as infinity or NaN in the output
        maps = np.swapaxes(_softmax(inputs.key.astype(dtype) * dtype.type(factor), -2), -1, -2)
        coefficients = _softmax(inputs.query.astype(dtype) * dtype.type(factor))
        found = (maps, maps @ inputs.value.astype(dtype), coefficients)
        return GlobalMaps(*(x.astype(inputs.dtype, copy=False) for x in found))


def efficient_attention_weights(
    query: ArrayLike,
    key: ArrayLike,
    *,
    scale: float = 1.0,
    is_causal: bool = False,
    causal: Causal | None = None,
    layout: Layout = "bhsd",
) -> NDArray[Any]:
    """The matrix that efficient attention never forms: softmax(query) softmax over keys(key)^T.

    Parameters
    ----------
    query, key, scale, layout
        As for :func:`efficient_attention`; leading axes broadcast.
    is_causal, causal
        Must not be used: the channels' sums differ per causal row, so there is no product form.
        ``attnscale.reference.efficient_attention`` writes the causal rows out.

    Returns
    -------
    ndarray, shape (..., heads, n_queries, n_keys)
        Rows sum to 1. Memory grows with n_queries * n_keys.

    Raises
    ------
    TypeError, ValueError
        If a causal form is requested; else as :func:`efficient_attention`.

    Examples
    --------
    The third key equals the query; dot-product attention gives it a weight of 0.992:

    >>> import numpy as np, attnscale as at
    >>> q = np.array([[2.0, 1, 3]])
    >>> k = np.array([[1.0, 0, 1], [0, 1, 0], [2, 1, 3], [1, 1, 0]])
    >>> at.variants.efficient_attention_weights(q, k).round(6)
    array([[0.130855, 0.071253, 0.696223, 0.101669]])
    """
    why = "the channels' sums of a causal row are its own"
    refuse_causal("efficient_attention_weights", why, is_causal, causal)
    inputs = read_inputs(query, key, None, read_layout(layout), enable_gqa=False)
    dtype, factor = wide_type(inputs.dtype), number("scale", scale)
    with np.errstate(all="ignore"):  # overflow shows as infinity or NaN in the weights
        maps = _softmax(inputs.key.astype(dtype) * dtype.type(factor), -2)
        coefficients = _softmax(inputs.query.astype(dtype) * dtype.type(factor))
        weights: NDArray[Any] = coefficients @ np.swapaxes(maps, -1, -2)
        return weights.astype(inputs.dtype, copy=False)
