# SPDX-License-Identifier: BSD-3-Clause
"""f1 ... f6: six steps from the dot product to a score that has a best key.

x asks, y answers; both are vectors of embed_dim channels, Q and K matrices (head_dim, embed_dim).

- f1 = Qx . Ky / c grows without bound: f1(x, a y) = a f1(x, y);
- f2 = Qx . Ky - (y . y)/2 is largest at y = K^T Q x;
- f3 = Qx . Ky - (Ky . Ky)/2 at Ky = Qx, and y is free along the kernel of K;
- f4 = Qx . Ky - (Ky . Ky)/2 + b . Ky at Ky = Qx + b;
- f5 is f4 with Q = K: Ky = Kx + b, the relation of TransR;
- f6 = -(Qx - Ky) . (Qx - Ky)/2 + b . Ky + c . Qx at Ky = Qx + b, and treats x and y alike.

f4 and f5 are the score of :func:`attnscale.variants.kattention`. "Largest at" holds where K maps onto
all of R^head_dim; elsewhere Ky goes to the point of its range that is nearest (:func:`peak`).

Every function returns the scores of all pairs, (..., n, m) for x of shape (..., n, embed_dim) and y of
shape (..., m, embed_dim).

>>> import numpy as np
>>> from attnscale.variants import score_functions
>>> x, y = np.array([[1.0, 2.0]]), np.array([[1.0, 2.0], [10.0, 20.0]])
>>> score_functions.f1(x, y, np.eye(2), np.eye(2))  # ten times the vector, ten times the score
array([[ 5., 50.]])
>>> score_functions.f3(x, y, np.eye(2), np.eye(2))
array([[   2.5, -200. ]])
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .._base.checks import choose, number
from ._arrays import floats, matrix, vectors, widened

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

__all__ = ["NAMES", "f1", "f2", "f3", "f4", "f5", "f6", "peak"]

#: Names of the functions, in the order of the article.
NAMES = ("f1", "f2", "f3", "f4", "f5", "f6")


@np.errstate(all="ignore")  # overflow shows as infinity or NaN in the scores
def f1(
    x: ArrayLike, y: ArrayLike, q_weight: ArrayLike, k_weight: ArrayLike, *, divisor: float = 1.0
) -> NDArray[Any]:
    """Qx . Ky / divisor: the dot product of attention.

    Parameters
    ----------
    x, y : array_like, shapes (..., n, embed_dim) and (..., m, embed_dim)
    q_weight, k_weight : array_like, shape (head_dim, embed_dim)
    divisor : float, default 1.0
        The article's c, sqrt(head_dim) in a Transformer; not 0.

    Returns
    -------
    ndarray, shape (..., n, m)

    Raises
    ------
    TypeError, ValueError
        If shapes do not fit, or divisor is 0.

    Examples
    --------
    >>> f1(np.ones((1, 2)), np.ones((1, 2)), np.eye(2), np.eye(2), divisor=2.0)
    array([[1.]])
    """
    if number("divisor", divisor) == 0:
        raise ValueError("divisor must not be 0")
    qx, ky, _ = _projected(x, y, q_weight, k_weight)
    return np.asarray(_pairs(qx, ky) / qx.dtype.type(divisor))


@np.errstate(all="ignore")  # overflow shows as infinity or NaN in the scores
def f2(x: ArrayLike, y: ArrayLike, q_weight: ArrayLike, k_weight: ArrayLike) -> NDArray[Any]:
    """``Qx . Ky - |y|^2 / 2``: a Gaussian around K^T Q x, sensitive to every change of y.

    Parameters
    ----------
    x, y, q_weight, k_weight
        As for :func:`f1`.

    Returns
    -------
    ndarray, shape (..., n, m)

    Examples
    --------
    >>> f2(np.ones((1, 2)), np.array([[1.0, 1.0], [2.0, 2.0]]), np.eye(2), np.eye(2))
    array([[1., 0.]])
    """
    qx, ky, y_wide = _projected(x, y, q_weight, k_weight)
    return np.asarray(_pairs(qx, ky) - _half_square(y_wide))


@np.errstate(all="ignore")  # overflow shows as infinity or NaN in the scores
def f3(x: ArrayLike, y: ArrayLike, q_weight: ArrayLike, k_weight: ArrayLike) -> NDArray[Any]:
    """``Qx . Ky - |Ky|^2 / 2``: a Gaussian in Ky, so that y is free along the kernel of K.

    Parameters
    ----------
    x, y, q_weight, k_weight
        As for :func:`f1`.

    Returns
    -------
    ndarray, shape (..., n, m)

    Examples
    --------
    >>> first = np.array([[1.0, 0.0]])  # K sees only the first channel
    >>> f3(np.ones((1, 2)), np.array([[1.0, 5.0], [1.0, -7.0]]), first, first)
    array([[0.5, 0.5]])
    """
    qx, ky, _ = _projected(x, y, q_weight, k_weight)
    return np.asarray(_pairs(qx, ky) - _half_square(ky))


@np.errstate(all="ignore")  # overflow shows as infinity or NaN in the scores
def f4(x: ArrayLike, y: ArrayLike, q_weight: ArrayLike, k_weight: ArrayLike, bias: ArrayLike) -> NDArray[Any]:
    """(Qx + b - Ky / 2) . Ky: the best key is a step b away from Qx.

    Parameters
    ----------
    x, y, q_weight, k_weight
        As for :func:`f1`.
    bias : array_like, shape (head_dim,)
        b.

    Returns
    -------
    ndarray, shape (..., n, m)

    Examples
    --------
    >>> position = np.arange(4.0)[:, None]
    >>> f4(position[:1], position, np.eye(1), np.eye(1), np.ones(1))  # 0 looks for 1
    array([[ 0. ,  0.5,  0. , -1.5]])
    """
    qx, ky, _ = _projected(x, y, q_weight, k_weight)
    return np.asarray(_pairs(qx + _step("bias", bias, qx), ky) - _half_square(ky))


def f5(x: ArrayLike, y: ArrayLike, k_weight: ArrayLike, bias: ArrayLike) -> NDArray[Any]:
    """f4 with Q = K: x and y have the property in the same place; TransR's relation Kx + b = Ky.

    Parameters
    ----------
    x, y, k_weight, bias
        As for :func:`f4`.

    Returns
    -------
    ndarray, shape (..., n, m)

    Notes
    -----
    Lin et al. 2015, Learning entity and relation embeddings for knowledge graph completion (AAAI):
    TransR scores a relation by ``|Kx + b - Ky|^2``.

    Examples
    --------
    >>> position = np.arange(3.0)[:, None]
    >>> f5(position, position, np.eye(1), np.ones(1)).argmax(axis=-1)  # the last has no right neighbour
    array([1, 2, 2])
    """
    return f4(x, y, k_weight, k_weight, bias)


@np.errstate(all="ignore")  # overflow shows as infinity or NaN in the scores
def f6(
    x: ArrayLike,
    y: ArrayLike,
    q_weight: ArrayLike,
    k_weight: ArrayLike,
    bias: ArrayLike,
    query_bias: ArrayLike,
) -> NDArray[Any]:
    """``-|Qx - Ky|^2 / 2 + b . Ky + c . Qx``: swapping x, Q, c with y, K, b changes nothing.

    Parameters
    ----------
    x, y, q_weight, k_weight, bias
        As for :func:`f4`.
    query_bias : array_like, shape (head_dim,)
        c. It shifts whole rows, so weights do not depend on it.

    Returns
    -------
    ndarray, shape (..., n, m)

    Examples
    --------
    >>> x, y = np.array([[1.0, 0.0]]), np.array([[0.0, 3.0]])
    >>> f6(x, y, np.eye(2), np.eye(2), np.array([0.0, 1.0]), np.array([2.0, 0.0]))
    array([[0.]])
    """
    qx, ky, _ = _projected(x, y, q_weight, k_weight)
    of_query = (qx * _step("query_bias", query_bias, qx)).sum(-1) - _half_square(qx)[..., 0, :]
    of_key = _step("bias", bias, ky)
    return np.asarray(_pairs(qx + of_key, ky) - _half_square(ky) + of_query[..., None])


def peak(
    name: str, x: ArrayLike, q_weight: ArrayLike, k_weight: ArrayLike, bias: ArrayLike | None = None
) -> NDArray[Any]:
    """The shortest y at which a score function is largest.

    Parameters
    ----------
    name : {"f2", "f3", "f4", "f5", "f6"}
        f1 has no largest value.
    x, q_weight, k_weight
        As for :func:`f1`; for f5 both weights are K.
    bias : array_like, shape (head_dim,), optional
        For f4, f5 and f6.

    Returns
    -------
    ndarray of float64, shape (..., n, embed_dim)

    Raises
    ------
    ValueError
        For f1, or if shapes do not fit.

    Notes
    -----
    K^T Q x for f2; K^+ Q x for f3 and K^+ (Q x + b) for the others, K^+ the pseudo-inverse. If K does
    not map onto R^head_dim, K y is the point of its range nearest to Q x + b.

    Examples
    --------
    >>> peak("f4", np.array([[2.0, 9.0]]), np.array([[1.0, 0.0]]), np.array([[0.0, 1.0]]), np.ones(1))
    array([[0., 3.]])
    """
    if choose("name", name, NAMES) == "f1":
        raise ValueError("name must be one of the functions with a peak, f2 ... f6; f1 grows without bound")
    x_wide = vectors("x", x).astype(np.float64)
    q = matrix("q_weight", q_weight, x_wide.shape[-1]).astype(np.float64)
    k = matrix("k_weight", k_weight, x_wide.shape[-1]).astype(np.float64)
    target = x_wide @ q.T
    if name == "f2":
        return np.asarray(target @ k)
    if bias is not None:
        if name == "f3":
            raise ValueError("bias goes with f4, f5 and f6, got name='f3'")
        target = target + _step("bias", bias, target)
    if not np.isfinite(k).all():
        raise ValueError("k_weight must be finite, got NaN or infinity")
    return np.asarray(target @ np.linalg.pinv(k).T)


def _projected(
    x: Any, y: Any, q_weight: Any, k_weight: Any
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Qx, Ky and y in the type of the arithmetic."""
    rows, keys = vectors("x", x), vectors("y", y)
    q = matrix("q_weight", q_weight, rows.shape[-1])
    k = matrix("k_weight", k_weight, rows.shape[-1])
    if keys.shape[-1] != rows.shape[-1]:
        raise ValueError(f"x and y must have the same embed_dim, got {rows.shape[-1]} and {keys.shape[-1]}")
    if q.shape[0] != k.shape[0]:
        raise ValueError(
            f"q_weight and k_weight must have the same head_dim, got {q.shape[0]} and {k.shape[0]}"
        )
    rows, keys, q, k = widened(rows, keys, q, k)
    return rows @ q.T, keys @ k.T, keys


def _pairs(qx: NDArray[Any], ky: NDArray[Any]) -> NDArray[Any]:
    return np.asarray(qx @ ky.swapaxes(-1, -2))


def _half_square(rows: NDArray[Any]) -> NDArray[Any]:
    """|row|^2 / 2 as (..., 1, m): a term of the key."""
    return np.asarray(0.5 * (rows * rows).sum(-1))[..., None, :]


def _step(name: str, bias: Any, like: NDArray[Any]) -> NDArray[Any]:
    array = floats(name, bias)
    if array.shape != like.shape[-1:]:
        raise ValueError(f"{name} must have shape (head_dim,) = {like.shape[-1:]}, got {array.shape}")
    return array.astype(like.dtype, copy=False)
