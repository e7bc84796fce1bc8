# SPDX-License-Identifier: BSD-3-Clause
"""Linformer: keys and values projected along the sequence to a fixed number of rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from .._call.arrays import laid_out
from .._call.options import takes
from .._call.types import VariantOptions
from .._checks import as_array
from .._options import hinted
from ..attention import attention
from ._arrays import wide_type
from ._heads import read_whole, refuse_causal

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from .._call.types import Scale


@hinted
@takes(VariantOptions)
def linformer_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    key_projection: ArrayLike,
    value_projection: ArrayLike | None = None,
    *,
    scale: Scale = None,
    **options: Unpack[VariantOptions],
) -> NDArray[Any]:
    """softmax(scale query (E key)^T) (F value), in O(n rows head_dim).

    Parameters
    ----------
    query : array_like, shape (..., heads, n_queries, head_dim)
    key : array_like, shape (..., kv_heads, n_keys, head_dim)
    value : array_like, shape (..., kv_heads, n_keys, value_dim)
        As for :func:`attnscale.attention`.
    key_projection : array_like, shape (rows, n_keys) or (kv_heads, rows, n_keys)
        E: learned with the model, for one n_keys.
    value_projection : array_like, optional
        F, of the same shape; None: E, which the paper calls sharing.
    scale, enable_gqa, layout, num_threads
        As for :func:`attnscale.attention`.
    is_causal, causal
        Must not be asked for: every projected row mixes all keys.

    Returns
    -------
    ndarray, shape (..., heads, n_queries, value_dim)

    Raises
    ------
    TypeError, ValueError, MemoryError
        As :func:`attnscale.attention`; a projection for another n_keys; a causal form was asked for.

    Notes
    -----
    Wang, Li, Khabsa, Fang, Ma 2020, "Linformer: Self-Attention with Linear Complexity", arXiv 2006.04768.
    There is no state for decoding: a projection belongs to one length.

    Examples
    --------
    >>> import numpy as np, attnscale as at
    >>> rng = np.random.default_rng(0)
    >>> q, k, v = rng.standard_normal((3, 2, 100, 8))
    >>> at.variants.linformer_attention(q, k, v, rng.standard_normal((16, 100)) / 10).shape
    (2, 100, 8)
    """
    causal = options.pop("is_causal", False), options.pop("causal", None)
    refuse_causal("linformer_attention", "a projected row mixes all keys", *causal)
    layout = options.pop("layout", "bhsd")
    inputs = read_whole(query, key, value, layout, enable_gqa=options.get("enable_gqa", False))
    dtype = wide_type(inputs.dtype)
    given = key_projection if value_projection is None else value_projection
    projected_key = _project("key_projection", key_projection, inputs.key, dtype)
    projected_value = _project("value_projection", given, inputs.value, dtype)
    if projected_key.shape[-2] != projected_value.shape[-2]:
        raise ValueError(
            "key_projection and value_projection must have the same number of rows, got "
            f"{projected_key.shape[-2]} and {projected_value.shape[-2]}"
        )
    output = attention(inputs.query, projected_key, projected_value, scale=scale, **options)
    with np.errstate(over="ignore"):  # what 16 bits do not hold is infinite
        output = output.astype(inputs.dtype, copy=False)
    return np.ascontiguousarray(laid_out(output, layout)) if layout == "bshd" else output


def _project(name: str, projection: Any, rows: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    array = as_array(name, projection)
    if array.dtype.kind != "f" and array.dtype.name != "bfloat16":
        raise TypeError(f"{name} must be floating point, got {array.dtype}")
    n_keys = rows.shape[-2]
    if array.ndim < 2 or array.shape[-1] != n_keys:
        raise ValueError(
            f"{name} must have the shape (rows, n_keys) with n_keys = {n_keys}: it was made for one length; "
            f"got {array.shape}"
        )
    with np.errstate(all="ignore"):  # what overflows shows as infinity or NaN in the output
        projected: NDArray[Any] = array.astype(dtype, copy=False) @ rows.astype(dtype, copy=False)
    return projected
