# SPDX-License-Identifier: BSD-3-Clause
"""Differential attention: the difference of two maps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .._call.arrays import laid_out, read_inputs
from .._checks import as_array, fit_to, shown
from ..attention import attention
from ._arrays import floats, wide_type
from ._heads import read_layout

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray


def differential_attention(
    query1: ArrayLike,
    key1: ArrayLike,
    query2: ArrayLike,
    key2: ArrayLike,
    value: ArrayLike,
    *,
    lam: float | ArrayLike,
    **options: Any,
) -> NDArray[Any]:
    """(P1 - lam P2) value: what both maps see cancels.

    Parameters
    ----------
    query1, query2 : array_like, shape (..., heads, n_queries, head_dim)
    key1, key2 : array_like, shape (..., kv_heads, n_keys, head_dim)
    value : array_like, shape (..., kv_heads, n_keys, value_dim)
        As for :func:`attnscale.attention`; head_dim may differ between the two maps.
    lam : float or array_like
        Broadcasts to (..., heads, n_queries); one a head is an array of shape (heads, 1).
    **options
        Of :func:`attnscale.attention`, but for out: masks, laws, normalizer, layout. They are of both maps.

    Returns
    -------
    ndarray, shape (..., heads, n_queries, value_dim)
        The difference is taken in float32, or in float64 for float64 input.

    Raises
    ------
    TypeError
        If lam is not of numbers, or as :func:`attnscale.attention`.
    ValueError
        If lam is not finite or does not fit, if the maps differ in shape, or as :func:`attnscale.attention`.

    Notes
    -----
    Ye et al. 2024, "Differential transformer" (arXiv 2410.05258), without its projections, its head-wise
    normalisation and its parametrisation of lam. The rows of the difference sum to 1 - lam and have
    negative weights: they have no entropy. That of each map is :func:`attnscale.attention_entropy`.

    Examples
    --------
    >>> import numpy as np, attnscale as at
    >>> q1, q2, k1, k2 = np.random.default_rng(0).standard_normal((4, 2, 10, 8))
    >>> out = at.variants.differential_attention(q1, k1, q2, k2, np.ones((2, 10, 1)), lam=0.8)
    >>> out.round(12).min(), out.round(12).max()
    (np.float64(0.2), np.float64(0.2))
    """
    if "out" in options:
        raise TypeError("differential_attention has no out: it needs room for both maps")
    layout = read_layout(options.get("layout", "bhsd"))
    v = floats("value", value)
    inputs = read_inputs(query1, key1, v, layout, enable_gqa=options.get("enable_gqa", False))
    second = read_inputs(query2, key2, v, layout, enable_gqa=options.get("enable_gqa", False))
    shapes = [x.row_shape for x in (inputs, second)]
    if shapes[0] != shapes[1]:
        raise ValueError(f"both maps must have the same heads and queries, got {shapes[0]} and {shapes[1]}")
    share = read_lam(lam, shapes[0])
    # 16-bit outputs would be rounded before the difference.
    dtype = np.result_type(*(wide_type(x.dtype) for x in (inputs, second)))
    wide = v.astype(dtype, copy=False)
    first, other = (attention(query, key, wide, **options) for query, key in ((query1, key1), (query2, key2)))
    share = laid_out(share, layout)
    narrow = inputs.dtype if inputs.dtype == second.dtype else dtype
    with np.errstate(all="ignore"):  # what overflows shows as infinity or NaN in the output
        result: NDArray[Any] = first - share.astype(dtype) * other
        return result.astype(narrow, copy=False)


def read_lam(lam: Any, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """`lam` of every row, with an axis of channels."""
    array = as_array("lam", lam)
    if array.dtype.kind not in "iuf":
        raise TypeError(f"lam must be a number or an array of numbers, got {shown(lam)}")
    if not np.isfinite(array).all():
        raise ValueError("lam must be finite, got NaN or infinity")
    rows = fit_to("lam", array, shape, "(..., heads, n_queries)").astype(np.float64)
    return np.broadcast_to(rows, shape)[..., None]
