# SPDX-License-Identifier: BSD-3-Clause
"""Exact attention and the statistics of its weights, in one streaming pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Unpack

from .._base.statistics import statistic_names
from .._call.blocks import lazily
from .._call.call import Call
from .._call.lost_rows import warn_of_lost_rows
from .._call.options import AttentionEntropyOptions, AttentionOptions, check_known, takes
from .._call.weights import available, normalizer_of
from .._core import attend_arrays
from .results import AttentionStatistics

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

__all__ = ["attention", "attention_entropy", "attention_statistics"]

_USUAL = ("lse", "entropy")


def _attend(
    function: Callable[..., Any], query: Any, key: Any, value: Any, names: tuple[str, ...], options: Any
) -> tuple[NDArray[Any] | None, tuple[NDArray[Any], ...]]:
    """The output, or None without a value, and these statistics; errors name `function`."""
    plain = attend_arrays(query, key, value, names, options)
    if plain is not None:
        attended, found, has_lost_rows = plain
        if has_lost_rows:
            warn_of_lost_rows(query, key, value, options.get("attn_mask"))
        return attended, found
    check_known(function, options)
    given = {"query": query, "key": key} | ({} if value is None else {"value": value})
    if function is not attention_statistics and (lazy := lazily(function, given, options)) is not None:
        return lazy, (lazy,)
    call = Call(query, key, value, options).read()
    output, rows = call.attend(normalizer_of(options), names, options.get("out"))
    return output, tuple(rows.values())


@takes(AttentionOptions)
def attention(
    query: ArrayLike, key: ArrayLike, value: ArrayLike, **options: Unpack[AttentionOptions]
) -> NDArray[Any]:
    """softmax(scale * query key^T) value (or another normalizer), without the matrix of weights.

    Parameters
    ----------
    query : array_like, shape (..., heads, n_queries, head_dim)
        float64, float32, float16 or bfloat16 (of ``ml_dtypes``). 16-bit types are storage: the
        arithmetic is float32. At the levels "avx512_bf16" and "amx_bf16" of :func:`attnscale.simd_level` the
        products of bfloat16 arrays are bfloat16's: scores and statistics are as exact, and the output
        is within 2 eps (eps = 2^-7) of the sum of ``p |value|``. Any strides; torch tensors and other
        arrays on the CPU are read in place. 2-D arrays are one head.
    key : array_like, shape (..., kv_heads, n_keys, head_dim)
    value : array_like, shape (..., kv_heads, n_keys, value_dim)
        Leading axes of query, key and value broadcast.
    {options}

    Returns
    -------
    ndarray, shape (..., heads, n_queries, value_dim)
        Of the inputs' common type (``np.result_type``); ``out`` if that is given. The array belongs to the
        query's library: PyTorch, JAX, CuPy or any with the array API. Arrays on a device are attended there,
        by :func:`attnscale.torch.attention`. Of dask arrays cut along leading axes alone, a dask array.

    Raises
    ------
    TypeError
        If an array is not of a float type, or an option of the wrong kind.
    ValueError
        If shapes do not fit, or an option is out of range.
    MemoryError
        If the result cannot be allocated.

    Notes
    -----
    A key is seen if all of ``causal``, ``attn_mask``, ``window``, ``key_lengths`` and ``document_ids``
    let it. A query that sees no key has output 0. A NaN or infinity in a visible query, key or value
    reaches the rows that see it, and no other.

    The softmax is the streaming one of Milakov & Gimelshein 2018 (arXiv 1805.02867) and of Dao et al.
    2022 (arXiv 2205.14135): memory does not grow with n_queries * n_keys.

    Examples
    --------
    >>> import numpy as np, attnscale as at
    >>> rng = np.random.default_rng(0)
    >>> q, k, v = rng.standard_normal((3, 2, 8, 100, 64), np.float32)  # each (batch, heads, n, dim)
    >>> at.attention(q, k, v, is_causal=True).shape
    (2, 8, 100, 64)
    """
    if value is None:
        raise TypeError("value must be an array, got None; attention_statistics works without a value")
    output, _ = _attend(attention, query, key, value, (), options)
    assert output is not None
    return output


@takes(AttentionOptions)
def attention_statistics(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike | None = None,
    *,
    statistics: Iterable[str] = _USUAL,
    **options: Unpack[AttentionOptions],
) -> AttentionStatistics:
    """Statistics of every row of weights, and the output, in one pass.

    Parameters
    ----------
    query, key : array_like
        As for :func:`attention`.
    value : array_like, optional
        Without a value no output is computed, which saves half of the work.
    statistics : sequence of str, default ("lse", "entropy")
        Fields of :class:`AttentionStatistics` except output. The default omits those that the normalizer's
        rows lack.
    {names}
        As for :func:`attention`.

    Returns
    -------
    AttentionStatistics
        With the requested fields, and the output if there is a value.

    Raises
    ------
    ValueError
        If a statistic is unknown, or `out` is given without a value.

    Notes
    -----
    entropy = lse - sum_j p_j s_j, both sums taken in the pass that finds the output. Sums over keys
    are kept relative to the running maximum and in float64 across tiles.

    Examples
    --------
    >>> import numpy as np, attnscale as at
    >>> q, k = np.zeros((2, 1, 4, 8))
    >>> rows = at.attention_statistics(q, k, is_causal=True, statistics=("entropy", "n_visible"))
    >>> np.exp(rows.entropy).round(6), rows.n_visible  # zero scores: every visible key counts the same
    (array([[1., 2., 3., 4.]]), array([[1, 2, 3, 4]]))
    """
    if value is None and options.get("out") is not None:
        raise ValueError("out is for the output, which needs a value; got out without value")
    found = normalizer_of(options)
    names = available(statistic_names(statistics), found, leave_out=statistics is _USUAL)
    output, rows = _attend(attention_statistics, query, key, value, names, options)
    return AttentionStatistics(output, **dict(zip(names, rows, strict=True)))


@takes(AttentionEntropyOptions)
def attention_entropy(
    query: ArrayLike, key: ArrayLike, **options: Unpack[AttentionEntropyOptions]
) -> NDArray[np.floating[Any]]:
    """Entropy of every row of attention weights, in nats.

    Parameters
    ----------
    query, key, {names}
        As for :func:`attention`.

    Returns
    -------
    ndarray, shape (..., heads, n_queries)
        -sum_j p_j ln p_j, between 0 and ln(number of visible keys) to rounding (2e-6 in float32); 0 for a
        query without keys. float64 for float64 input, else float32. Of dask arrays, as for :func:`attention`.

    Raises
    ------
    ValueError
        If shapes do not fit, or an option is out of range.

    Examples
    --------
    >>> import numpy as np, attnscale as at
    >>> rng = np.random.default_rng(0)
    >>> q, k = rng.standard_normal((2, 8, 512, 64), np.float32)
    >>> print(f"{at.attention_entropy(q, k).mean():.2f} of at most {np.log(512):.2f} nats")
    5.74 of at most 6.24 nats
    """
    names = available(("entropy",), normalizer_of(options), leave_out=False)
    _, rows = _attend(attention_entropy, query, key, None, names, options)
    return rows[0]
