# SPDX-License-Identifier: BSD-3-Clause
"""Entropy of rows over correlated, anisotropic keys: from the spectrum of their covariance."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._arguments import at_least, finite, plain
from ._expected import expected_entropy

Array = NDArray[np.float64]
_NODES, _HERMITE, _GRID = 8, 64, 48


def score_spectrum(query: ArrayLike, key: ArrayLike) -> Any:
    """Eigenvalues of ``M^(1/2) Sigma M^(1/2) / head_dim``: Sigma the keys' covariance, M = E[q q^T].

    The score of a query with the keys has the variance ``q^T Sigma q / head_dim`` within its row. A mean
    that all keys share moves a row's scores alike, and drops out. For queries like normal ones of second
    moment M the variance is ``sum of lambda_i g_i^2`` with these eigenvalues and independent normal g_i.

    Parameters
    ----------
    query, key : array_like, shape (..., n, head_dim)

    Returns
    -------
    ndarray of float64, shape (..., head_dim)
        From the largest; their sum is the mean variance of a row's scores at the standard scale.

    Examples
    --------
    >>> import attnscale as at
    >>> heads = at.datasets.minilm_qk()
    >>> spectrum = score_spectrum(heads.query, heads.key)
    >>> spectrum.shape, spectrum[0, :3].round(3)
    ((18, 32), array([0.186, 0.164, 0.132]))
    """
    q, k = finite("query", query), finite("key", key)
    for name, x in (("query", q), ("key", k)):
        if x.ndim < 2 or 0 in x.shape:
            raise ValueError(f"{name} must be (..., n, head_dim) and not empty, got shape {x.shape}")
    if q.shape[-1] != k.shape[-1]:
        raise ValueError(f"query and key must have the same head_dim, got {q.shape[-1]} and {k.shape[-1]}")
    k = k - k.mean(-2, keepdims=True)
    sigma, moment = (x.swapaxes(-1, -2) @ x / x.shape[-2] for x in (k, q))
    values, vectors = np.linalg.eigh(moment)
    root = vectors * np.sqrt(np.maximum(values, 0))[..., None, :]
    inner = root.swapaxes(-1, -2) @ sigma @ root / q.shape[-1]
    return np.maximum(np.linalg.eigvalsh(inner)[..., ::-1], 0)


def spectrum_entropy(n: ArrayLike, *, spectrum: ArrayLike, beta: ArrayLike = 1) -> Any:
    """E[H] of a row of n normal keys with a covariance, over normal queries: from the spectrum of both.

    Given the query, the scores are independent and normal, of variance ``sigma^2 = sum of lambda_i g_i^2``:
    the row has exactly the entropy of the random energy model at ``beta sigma``. The average over the query
    is a quadrature over the largest term and over the others, whose cumulants are ``2^(m-1) (m-1)! sum of
    lambda^m``. To first order ``ln n - beta^2 (sum of lambda) / 2``: correlation of the keys enters through
    their spectrum and nothing else.

    Parameters
    ----------
    n : array_like
        Number of keys, at least 1.
    spectrum : array_like, shape (..., head_dim)
        lambda, at least 0, as of :func:`score_spectrum`; ``[1 / head_dim] * head_dim`` is white.
    beta : array_like, default 1
        The multiple of the standard scale, at least 0.

    Returns
    -------
    float or ndarray of float64
        Nats; n, beta and the axes of the spectrum before the last broadcast.

    Examples
    --------
    >>> white, one = [1 / 64] * 64, [1.0]  # as many directions, or one: the same mean variance
    >>> spectrum_entropy(512, spectrum=[white, [*one, *[0.0] * 63]]).round(3)
    array([5.742, 5.768])
    """
    lam = at_least("spectrum", spectrum, 0)
    if lam.ndim == 0 or lam.shape[-1] == 0:
        raise ValueError(f"spectrum must have at least one eigenvalue, got shape {lam.shape}")
    counts, betas = at_least("n", n, 1), at_least("beta", beta, 0)
    shape = np.broadcast_shapes(counts.shape, betas.shape, lam.shape[:-1])
    counts, betas = np.broadcast_to(counts, shape), np.broadcast_to(betas, shape)
    lam = np.broadcast_to(lam, (*shape, lam.shape[-1]))
    result = np.empty(shape)
    for index in np.ndindex(shape):
        variance, weight = _nodes(lam[index])
        sigma = betas[index] * np.sqrt(variance)
        result[index] = weight @ _entropy(float(counts[index]), sigma)
    return plain(result)


def _entropy(n: float, sigma: Array) -> Array:
    """The entropy h_n(sigma) of normal scores, interpolated in ln sigma where there are many sigma."""
    from scipy.interpolate import CubicSpline  # at first use: `import attnscale` stays fast

    inside = np.clip(sigma, 1e-3, None)  # a smaller sigma gives ln n to 1e-6
    grid = np.linspace(math.log(inside.min()) - 1e-9, math.log(inside.max()) + 1e-9, _GRID)
    curve = CubicSpline(grid, expected_entropy(n, np.exp(grid), model="gaussian"))
    return np.asarray(curve(np.log(inside)), np.float64)


def _nodes(lam: Array) -> tuple[Array, Array]:
    """Nodes and weights of sum of lambda g^2: the largest by Gauss and Hermite, the others as one sum."""
    order = np.sort(lam)[::-1]
    g, w = np.polynomial.hermite_e.hermegauss(_HERMITE)
    rest, share = _rest(order[1:])
    nodes = order[0] * g[:, None] ** 2 + rest
    return nodes.ravel(), (w[:, None] / w.sum() * share).ravel()


def _rest(lam: Array) -> tuple[Array, Array]:
    """Gauss nodes and weights of a sum from its moments: exact for polynomials of degree 2 _NODES - 1."""
    mean = lam.sum()
    if mean == 0:
        return np.zeros(1), np.ones(1)
    share = lam / mean
    kappa = [2.0 ** (m - 1) * math.factorial(m - 1) * (share**m).sum() for m in range(1, 2 * _NODES + 1)]
    raw = [1.0]
    for m in range(1, 2 * _NODES + 1):
        raw.append(sum(math.comb(m - 1, j - 1) * kappa[j - 1] * raw[m - j] for j in range(1, m + 1)))
    nodes, weights = _golub_welsch(raw)
    return mean * nodes, weights


def _golub_welsch(raw: list[float]) -> tuple[Array, Array]:
    """Gauss rule from moments about 0, by the Cholesky factor of their Hankel matrix (Golub, Welsch 1969)."""
    for size in range(_NODES, 0, -1):  # fewer where rounding leaves the Hankel matrix indefinite
        hankel = np.array([[raw[i + j] for j in range(size + 1)] for i in range(size + 1)])
        unit = 1 / np.sqrt(np.diag(hankel))
        try:
            upper = np.linalg.cholesky(hankel * unit * unit[:, None]).T / unit
        except np.linalg.LinAlgError:
            continue
        diagonal, ratio = np.diag(upper), np.diag(upper, 1) / np.diag(upper)[:-1]
        alpha = ratio - np.concatenate([[0.0], ratio[:-1]])
        off = diagonal[1:size] / diagonal[: size - 1]
        nodes, vectors = np.linalg.eigh(np.diag(alpha) + np.diag(off, 1) + np.diag(off, -1))
        if (nodes > -1e-9).all():
            return np.maximum(nodes, 0), vectors[0] ** 2
    return np.array([raw[1]]), np.ones(1)
