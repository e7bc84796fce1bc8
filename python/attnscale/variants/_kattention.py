# SPDX-License-Identifier: BSD-3-Clause
"""kattention: weights that fall with the distance of Qx + b and Ky, computed by the exact kernel."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from .._base.checks import fit_to
from .._base.hints import hinted
from .._base.statistics import statistic_names
from .._call.arrays import Inputs
from .._call.call import Call
from .._call.names import has_names
from .._call.options import KAttentionOptions, takes
from .._call.scale import read_law
from .._call.weights import available, normalizer_of
from ..exact.results import AttentionStatistics
from ._arrays import common_type, floats, matrix, vectors, wide_type, widened

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from .._call.types import Scale


def kattention(
    x: ArrayLike,
    q_weight: ArrayLike,
    k_weight: ArrayLike,
    bias: ArrayLike | None = None,
    beta: Scale = 1.0,
    **options: Unpack[KAttentionOptions],
) -> NDArray[Any]:
    """y_i = sum_j softmax_j(beta E_ij) x_j with E_ij = (Q x_i + b - K x_j / 2) . K x_j.

    E_ij is ``-|Q x_i + b - K x_j|^2 / 2`` plus a term of the row: a Gaussian kernel around Q x_i + b.
    Memory does not grow with n^2.

    Parameters
    ----------
    x : array_like, shape (..., n, embed_dim)
        Any float type; 16-bit types are storage.
    q_weight, k_weight : array_like, shape (head_dim, embed_dim) or (heads, head_dim, embed_dim)
        Q and K. For f5, with the property in the same place of x and y, they are the same.
    bias : array_like, shape (head_dim,) or (heads, head_dim), optional
        b: the step from a query to its best key. Default: 0.
    beta : float, array_like, Law or str, default 1.0
        The whole multiplier of E, as in the article: called ``scale`` elsewhere in this package, where
        beta is a multiple of 1/sqrt(head_dim). Any ``scale`` of :func:`attnscale.attention` except a law that
        measures the row.
    **options
        As for :func:`attnscale.attention`, without ``enable_gqa``, ``layout`` and ``out``.

    Returns
    -------
    ndarray, shape (..., n, embed_dim) or (..., heads, n, embed_dim)
        With an axis of heads if the weights have one.

    See Also
    --------
    kattention_heads : the same for given queries and keys.

    Notes
    -----
    "Knowledge-model-based attention" of an article of 2022, which derives it from the dot product in
    six steps: :mod:`attnscale.variants.score_functions`.

    Examples
    --------
    Each position looks one to the right: the last of the two channels counts, b = 1 is the step.

    >>> import numpy as np, attnscale as at
    >>> x = np.stack([np.array([7.0, 8.0, 9.0, 6.0]), np.arange(4.0)], axis=-1)  # content, position
    >>> position = np.array([[0.0, 1.0]])
    >>> at.variants.kattention(x, position, position, np.array([1.0]), beta=50)[:, 0].round(6)
    array([8., 9., 6., 6.])
    """
    rows = vectors("x", x)
    q = matrix("q_weight", q_weight, rows.shape[-1], heads=True)
    k = matrix("k_weight", k_weight, rows.shape[-1], heads=True)
    if q.shape != k.shape:
        raise ValueError(f"q_weight and k_weight must have the same shape, got {q.shape} and {k.shape}")
    wide, q, k = widened(rows, q, k)
    value = wide[..., None, :, :]
    with np.errstate(all="ignore"):  # overflow shows as infinity or NaN in the output
        query, key = (value @ weight.swapaxes(-1, -2) for weight in (q, k))
    output = kattention_heads(query, key, value, bias=bias, scale=beta, **options)
    output = output if q.ndim == 3 else output[..., 0, :, :]
    with np.errstate(over="ignore"):  # numbers too large for 16 bits become infinite, as in attention
        return output.astype(common_type(rows), copy=False)


@hinted
@takes(KAttentionOptions)
def kattention_heads(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    *,
    bias: ArrayLike | None = None,
    scale: Scale = None,
    **options: Unpack[KAttentionOptions],
) -> NDArray[Any]:
    """softmax_j(scale (q_i + b - k_j / 2) . k_j) value: attention by distance, for given queries and keys.

    Parameters
    ----------
    query, key, value : array_like
        As for :func:`attnscale.attention`.
    bias : array_like, shape (head_dim,) or (heads, head_dim), optional
        b; default: 0.
    scale : float, array_like, Law or str, optional
        The whole multiplier of the score, as for :func:`attnscale.attention`; None: 1/sqrt(head_dim).
        A law that measures the row is refused.
    {names}
        As for :func:`attnscale.attention`. A normalizer that compares scores with a constant (a sink, a
        sigmoid, relu) compares the score above, not the distance. ``qk_norm`` acts before the bias.

    Returns
    -------
    ndarray, shape (..., heads, n_queries, value_dim)

    Raises
    ------
    ValueError
        If the bias does not fit; else as :func:`attnscale.attention`.

    Notes
    -----
    Equal to ``softmax_j(-scale |q_i + b - k_j|^2 / 2)``. The term of the key is one more channel:
    ``(q + b, 1) . (k, -|k|^2 / 2)``. That costs O(n) memory and one channel of time, and works with every
    option of the exact kernel. The score's rounding error grows with ``scale |k|^2``: subtract the mean of
    all keys from queries and keys, which does not change the weights.

    Examples
    --------
    >>> import numpy as np, attnscale as at
    >>> q, k = np.zeros((1, 2)), np.array([[0.0, 1.0], [3.0, 0.0]])
    >>> v = np.array([[1.0], [2.0]])
    >>> weight = 1 / (1 + np.exp(0.5 - 4.5))  # exp(-|k|^2 / 2) of both keys
    >>> bool(np.isclose(at.variants.kattention_heads(q, k, v, scale=1.0)[0, 0], 2 - weight))
    True
    """
    if value is None:
        raise TypeError("value must be an array, got None; kattention_statistics works without a value")
    found = _statistics(query, key, value, bias, (), {**options, "scale": scale}).output
    assert found is not None
    return found


@hinted
@takes(KAttentionOptions)
def kattention_statistics(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike | None = None,
    *,
    bias: ArrayLike | None = None,
    scale: Scale = None,
    statistics: Iterable[str] = ("lse", "entropy"),
    **options: Unpack[KAttentionOptions],
) -> AttentionStatistics:
    """Statistics of every row of weights of :func:`kattention_heads`, and the output, in one pass.

    Parameters
    ----------
    query, key : array_like
        As for :func:`attnscale.attention`.
    value : array_like, optional
        None: no output.
    bias, scale, {names}
        As for :func:`kattention_heads`.
    statistics : sequence of str, default ("lse", "entropy")
        As for :func:`attnscale.attention_statistics`.

    Returns
    -------
    AttentionStatistics
        lse, max_score and mean_score belong to the score E. Those of ``-scale |q + b - k|^2 / 2`` are smaller
        by ``scale |q + b|^2 / 2``; the other fields are the same.

    Examples
    --------
    >>> import numpy as np, attnscale as at
    >>> q, k = np.random.default_rng(0).standard_normal((2, 1, 64, 8))
    >>> rows = at.variants.kattention_statistics(q, 100 * k, scale=1.0)  # long keys: no softmax without
    >>> rows.entropy.shape, bool(np.isfinite(rows.lse).all())  #            a penalty on their length
    ((1, 64), True)
    """
    return _statistics(query, key, value, bias, statistics, {**options, "scale": scale})


def _statistics(
    query: Any, key: Any, value: Any, bias: Any, statistics: Iterable[str], options: Mapping[str, Any]
) -> AttentionStatistics:
    found = normalizer_of(options)
    names = available(statistic_names(statistics), found, leave_out=False)
    law = read_law(options["scale"])
    if law is not None and law.meaning.measures_the_row:
        raise ValueError(
            f"scale={law.name!r} measures rows of dot products, and kattention's scores are others; pass "
            "a number, an array or a law of n"
        )
    query, key, value = (np.asarray(x) if has_names(x) else x for x in (query, key, value))
    call = Call(query, key, value, options if law is None else {**options, "scale": law})
    # Scales and laws read the call's head_dim, without the added channel.
    q, k = _with_key_term(call.inputs, bias)
    call.inputs = call.inputs._replace(query=q, key=k)
    output, rows = call.read().attend(found, names)
    return AttentionStatistics(output, **rows)


def _with_key_term(inputs: Inputs, bias: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    """(q + b, 1) and (k, -|k|^2 / 2), whose product is the score; 16-bit types as float32."""
    wide = wide_type(inputs.dtype)
    query, key = inputs.query, inputs.key
    q = np.empty((*query.shape[:-1], query.shape[-1] + 1), wide)
    k = np.empty((*key.shape[:-1], key.shape[-1] + 1), wide)
    with np.errstate(over="ignore", invalid="ignore"):  # overflow is infinite, as in a product
        q[..., :-1] = query
        if bias is not None:  # the sum of two 16-bit numbers needs more than 16 bits
            added = _bias(bias, query)
            np.add(q[..., :-1], added.astype(wide_type(added.dtype)), out=q[..., :-1], casting="same_kind")
        q[..., -1] = 1
        k[..., :-1] = key
        k[..., -1] = -0.5 * np.einsum("...c,...c->...", key, key, dtype=np.float64)
    return q, k


def _bias(bias: Any, query: NDArray[Any]) -> NDArray[Any]:
    array = np.atleast_1d(floats("bias", bias))
    shape = (*query.shape[:-2], query.shape[-1])
    return fit_to("bias", array, shape, "(..., heads, head_dim)")[..., None, :]
