# SPDX-License-Identifier: BSD-3-Clause
"""Exact attention and the statistics of its weights, in one streaming pass."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Unpack

from ._call.arrays import ARRAY
from ._call.call import Call
from ._call.lost_rows import warn_of_lost_rows
from ._call.weights import available, read_normalizer
from ._checks import is_on_device
from ._core import attend_arrays
from ._options import NoOptions, refuse_options, without_unknown
from ._results import AttentionStatistics, statistic_names

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

    from ._call.types import Causal, Dims, DistanceTable, KeyLengths, Layout, QKNorm, Scale, Window
    from .normalizers import Normalizer

__all__ = ["attention", "attention_entropy", "attention_statistics"]

_USUAL = ("lse", "entropy")


def _attend_there(name: str, given: dict[str, Any]) -> Any:
    """The function of this name on arrays on a device, which takes a module of its own."""
    from ._call.elsewhere import attend_there

    return attend_there(name, given)


def _attend(
    query: Any,
    key: Any,
    value: Any,
    names: tuple[str, ...],
    scale: Any,
    is_causal: Any,
    enable_gqa: Any,
    normalizer: Any,
    layout: Any,
    others: tuple[Any, ...],
) -> tuple[NDArray[Any] | None, tuple[NDArray[Any], ...]]:
    """The output, None without a value, and the statistics of these names.

    A plain call, whose `others` are all None, is read by the core itself.
    """
    plain = attend_arrays(query, key, value, names, scale, is_causal, enable_gqa, normalizer, layout, others)
    if plain is not None:
        attended, found, has_lost_rows = plain
        if has_lost_rows:
            warn_of_lost_rows(query, key, value)
        return attended, found
    *seen, distance_scale, distance_bias, softcap, qk_norm, dims, out, num_threads = others
    attn_mask, *positions = seen
    call = Call(query, key, value, enable_gqa, qk_norm, layout, num_threads, dims)
    call.see(attn_mask, is_causal, *positions)
    call.score(scale, softcap, distance_scale, distance_bias)
    output, rows = call.attend(read_normalizer(normalizer), names, out)
    return output, tuple(rows.values())


@without_unknown
def attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    *,
    scale: Scale = None,
    is_causal: bool = False,
    causal: Causal | None = None,
    attn_mask: ArrayLike | None = None,
    window: Window | None = None,
    key_lengths: KeyLengths | None = None,
    document_ids: ArrayLike | None = None,
    distance_scale: DistanceTable | None = None,
    distance_bias: DistanceTable | None = None,
    enable_gqa: bool = False,
    softcap: float | None = None,
    normalizer: str | Normalizer = "softmax",
    qk_norm: QKNorm | None = None,
    layout: Layout = "bhsd",
    dims: Dims | None = None,
    out: NDArray[Any] | None = None,
    num_threads: int | None = None,
    **unknown: Unpack[NoOptions],
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
    scale : float, array_like, Law or str, optional
        The whole multiplier of query . key. None: 1/sqrt(head_dim). An array must broadcast to
        (..., heads, n_queries): one scale a head is an array of shape (heads, 1). A law of
        :mod:`attnscale.laws`, or its name, is evaluated at the n of each query (see
        :data:`attnscale.laws.MEANINGS_OF_N`). Zero and negative scales are legal.
    is_causal : bool, default False
        Query i sees the keys 0 ... i; the same as ``causal="top_left"`` (as in PyTorch).
    causal : {"top_left", "bottom_right"} or int, optional
        Query i sees the keys up to i + offset: offset = 0 for "top_left", n_keys (or the key length)
        - n_queries for "bottom_right" (as in flash-attention; decoding), else the integer: queries that
        begin at position p of the keys have ``causal=p``.
    attn_mask : array_like of bool or float, optional
        Broadcasts to (..., heads, n_queries, n_keys). bool: True = the key takes part. float: added
        to the score; -inf hides the key, as does every number at or below half of the smallest finite one of
        the mask's type, by which other libraries hide keys.
    window : (int or None, int or None), optional
        (left, right): query i sees the keys from i + offset - left to i + offset + right, with the
        offset of ``causal``. None: that side is open.
    key_lengths : int or array_like of int, optional
        Broadcasts to the batch shape query.shape[:-3]. Keys at and after this index are hidden.
    document_ids : array_like of int, optional
        Broadcasts to (..., n_keys): the document that each key is of, each one run of equal numbers. A
        query is of the document of the key that it is aligned with (``causal``) and sees no other; masks
        and the n of a law count within it, as if each document had its own call.
    distance_scale, distance_bias : array_like or callable, optional
        Tables over the distance t between query and key, the query counted from where ``causal`` aligns
        it: the score is softcap(scale * distance_scale[t] * (query . key)) + distance_bias[t]. Entry t
        of the last axis, t = 0, 1, ..., is for both sides; other axes broadcast to (..., heads). Or a
        function of the signed distances, query less key, shape (..., n), that returns as many numbers
        on its last axis. O(n) memory; ALiBi is ``distance_bias=-slopes[:, None] * np.arange(n_keys)``.
    enable_gqa : bool, default False
        Query head h uses key head h // (heads / kv_heads), as in PyTorch.
    softcap : float, optional
        c from 1e-37 to 1e37: the score is c * tanh(score / c). After the scale, before bias and mask.
    normalizer : str or Normalizer, default "softmax"
        How scores become weights: one of :mod:`attnscale.normalizers`, or its name.
    qk_norm : {"l2", "rms"}, optional
        Queries and keys are brought to length 1, or sqrt(head_dim), before the product: query . key is
        their cosine, or head_dim times that. The scale applies to it as ever. Rows of zeros stay zero.
    layout : {"bhsd", "bshd"} or str
        "bshd": query, key, value and output are (..., n, heads, dim). Statistics, masks and scale
        are as above. Or the names of the axes in their order, as einops writes them: "b n h d", "... h t c".
    dims : mapping, optional
        For arrays whose axes have names (a DataArray of xarray, in any order; a pattern of ``layout``) that
        are none of the usual ones: the names of "heads", "sequence" (one, or those of queries and keys) and
        "channels". All other axes are batch axes, and go together by their name. Results of a DataArray
        are one, with the labels of the query (and of the keys, where there are keys); scales and masks may
        be one too.
    out : ndarray, optional
        Where the output goes: of its shape and type, apart from the inputs.
    num_threads : int, optional
        None: see :func:`attnscale.set_num_threads`. The result does not depend on it.

    Returns
    -------
    ndarray, shape (..., heads, n_queries, value_dim)
        Of the inputs' common type (``np.result_type``); ``out`` if that is given. The array is one of the
        library that the query is of: PyTorch, JAX, CuPy, any with the interface of the array API. Arrays on a
        device are attended there, by :func:`attnscale.torch.attention`.

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
    if len(unknown):
        refuse_options(attention, unknown)
    if type(query) is not ARRAY and is_on_device(query):
        there: NDArray[Any] = _attend_there("attention", locals())
        return there
    if value is None:
        raise TypeError("value must be an array, got None; attention_statistics works without a value")
    others: tuple[Any, ...] = attn_mask, causal, window, key_lengths, document_ids
    others += distance_scale, distance_bias, softcap, qk_norm, dims, out, num_threads
    output, _ = _attend(query, key, value, (), scale, is_causal, enable_gqa, normalizer, layout, others)
    assert output is not None
    return output


@without_unknown
def attention_statistics(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike | None = None,
    *,
    statistics: Iterable[str] = _USUAL,
    scale: Scale = None,
    is_causal: bool = False,
    causal: Causal | None = None,
    attn_mask: ArrayLike | None = None,
    window: Window | None = None,
    key_lengths: KeyLengths | None = None,
    document_ids: ArrayLike | None = None,
    distance_scale: DistanceTable | None = None,
    distance_bias: DistanceTable | None = None,
    enable_gqa: bool = False,
    softcap: float | None = None,
    normalizer: str | Normalizer = "softmax",
    qk_norm: QKNorm | None = None,
    layout: Layout = "bhsd",
    dims: Dims | None = None,
    out: NDArray[Any] | None = None,
    num_threads: int | None = None,
    **unknown: Unpack[NoOptions],
) -> AttentionStatistics:
    """Statistics of every row of weights, and the output, in one pass.

    Parameters
    ----------
    query, key : array_like
        As for :func:`attention`.
    value : array_like, optional
        None: no output is computed, which saves half of the work.
    statistics : sequence of str, default ("lse", "entropy")
        Fields of :class:`AttentionStatistics` but output. The default leaves out those that rows of the
        normalizer do not have.
    scale, is_causal, causal, attn_mask, window, key_lengths, document_ids, distance_scale, \
distance_bias, enable_gqa, softcap, \
normalizer, qk_norm, layout, dims, out, num_threads
        As for :func:`attention`.

    Returns
    -------
    AttentionStatistics
        With the fields asked for; with the output if there is a value.

    Raises
    ------
    TypeError, ValueError, MemoryError
        As :func:`attention`.

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
    if len(unknown):
        refuse_options(attention_statistics, unknown)
    if type(query) is not ARRAY and is_on_device(query):
        rows_there: AttentionStatistics = _attend_there("attention_statistics", locals())
        return rows_there
    if value is None and out is not None:
        raise ValueError("out is for the output, which needs a value; got out without value")
    found = read_normalizer(normalizer)
    names = available(statistic_names(statistics), found, leave_out=statistics is _USUAL)
    others: tuple[Any, ...] = attn_mask, causal, window, key_lengths, document_ids
    others += distance_scale, distance_bias, softcap, qk_norm, dims, out, num_threads
    output, rows = _attend(
        query, key, value, names, scale, is_causal, enable_gqa, found or normalizer, layout, others
    )
    return AttentionStatistics(output, **dict(zip(names, rows, strict=True)))


@without_unknown
def attention_entropy(
    query: ArrayLike,
    key: ArrayLike,
    *,
    scale: Scale = None,
    is_causal: bool = False,
    causal: Causal | None = None,
    attn_mask: ArrayLike | None = None,
    window: Window | None = None,
    key_lengths: KeyLengths | None = None,
    document_ids: ArrayLike | None = None,
    distance_scale: DistanceTable | None = None,
    distance_bias: DistanceTable | None = None,
    enable_gqa: bool = False,
    softcap: float | None = None,
    normalizer: str | Normalizer = "softmax",
    qk_norm: QKNorm | None = None,
    layout: Layout = "bhsd",
    dims: Dims | None = None,
    num_threads: int | None = None,
    **unknown: Unpack[NoOptions],
) -> NDArray[np.floating[Any]]:
    """Entropy of every row of attention weights, in nats.

    Parameters
    ----------
    query, key, scale, is_causal, causal, attn_mask, window, key_lengths, document_ids, \
distance_scale, distance_bias, enable_gqa, \
softcap, normalizer, qk_norm, layout, dims, num_threads
        As for :func:`attention`.

    Returns
    -------
    ndarray, shape (..., heads, n_queries)
        -sum_j p_j ln p_j, between 0 and ln(number of visible keys) to rounding (2e-6 in float32); 0 for a
        query without keys.
        float64 for float64 input, else float32.

    Raises
    ------
    TypeError, ValueError, MemoryError
        As :func:`attention`.

    Examples
    --------
    >>> import numpy as np, attnscale as at
    >>> rng = np.random.default_rng(0)
    >>> q, k = rng.standard_normal((2, 8, 512, 64), np.float32)
    >>> print(f"{at.attention_entropy(q, k).mean():.2f} of at most {np.log(512):.2f} nats")
    5.74 of at most 6.24 nats
    """
    if len(unknown):
        refuse_options(attention_entropy, unknown)
    if type(query) is not ARRAY and is_on_device(query):
        there: NDArray[np.floating[Any]] = _attend_there("attention_entropy", locals())
        return there
    found = read_normalizer(normalizer)
    names = available(("entropy",), found, leave_out=False)
    others: tuple[Any, ...] = attn_mask, causal, window, key_lengths, document_ids
    others += distance_scale, distance_bias, softcap, qk_norm, dims, None, num_threads
    _, rows = _attend(
        query, key, None, names, scale, is_causal, enable_gqa, found or normalizer, layout, others
    )
    return rows[0]
