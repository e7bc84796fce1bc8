# SPDX-License-Identifier: BSD-3-Clause
"""Models of heads: rows from the spectrum of keys or cumulants of scores, sinks, and a scale in W_q."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._base.checks import answer_infeasible, read_on_infeasible, shown
from ._arguments import at_least, between, finite, plain, together, whole
from ._expected import expected_entropy

Array = NDArray[np.float64]
_NODES, _HERMITE, _GRID = 8, 64, 48


def score_spectrum(query: ArrayLike, key: ArrayLike) -> Any:
    """Eigenvalues of ``M^(1/2) Sigma M^(1/2) / head_dim``: Sigma the keys' covariance, M = E[q q^T].

    The scores of a query have the variance ``q^T Sigma q / head_dim`` within its row. A mean that all keys
    share shifts a row's scores equally, and drops out. For queries like normal ones of second
    moment M the variance is ``sum of lambda_i g_i^2`` with these eigenvalues and independent normal g_i.

    Parameters
    ----------
    query, key : array_like, shape (..., n, head_dim)

    Returns
    -------
    ndarray of float64, shape (..., head_dim)
        In descending order; their sum is the mean variance of a row's scores at the standard scale.

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
    """E[H] of a row of n normal keys with a covariance, over normal queries, from the spectrum of both.

    Given the query, the scores are independent and normal, of variance ``sigma^2 = sum of lambda_i g_i^2``:
    the row has exactly the entropy of the random energy model at ``beta sigma``. The average over the query
    is a quadrature over the largest term and over the others, whose cumulants are ``2^(m-1) (m-1)! sum of
    lambda^m``. To first order ``ln n - beta^2 (sum of lambda) / 2``: correlation of the keys enters through
    their spectrum alone.

    Parameters
    ----------
    n : array_like
        Number of keys, at least 1.
    spectrum : array_like, shape (..., head_dim)
        lambda, at least 0, as from :func:`score_spectrum`; ``[1 / head_dim] * head_dim`` is white.
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
    """The entropy h_n(sigma) of normal scores, interpolated in ln sigma if there are many sigma."""
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
    for size in range(_NODES, 0, -1):  # fewer if rounding leaves the Hankel matrix indefinite
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


_ORDERS = (2, 3, 4)


def score_cumulants(scores: ArrayLike, *, order: int = 2) -> Any:
    """Cumulants kappa_2 to kappa_order of the scores of each row, under equal weights.

    Parameters
    ----------
    scores : array_like
        Rows of scores at the standard scale, of shape (..., n).
    order : {2, 3, 4}, default 2

    Returns
    -------
    ndarray of float64, shape (..., order - 1)
        Variance, third and fourth cumulant. Average over the rows of a head before
        :func:`cumulant_beta`.

    Examples
    --------
    >>> score_cumulants([[1.0, -1.0, 1.0, -1.0]], order=4)
    array([[ 1.,  0., -2.]])
    """
    if order not in _ORDERS:
        raise ValueError(f"order must be one of {_ORDERS}, got {shown(order)}")
    x = finite("scores", scores)
    if x.ndim == 0 or x.shape[-1] == 0:
        raise ValueError(f"scores must be rows of at least one score, got shape {x.shape}")
    x = x - x.mean(-1, keepdims=True)
    second, third, fourth = ((x**power).mean(-1) for power in _ORDERS)
    return np.stack([second, third, fourth - 3 * second**2][: order - 1], axis=-1)


def cumulant_beta(n: ArrayLike, *, n0: ArrayLike, cumulants: ArrayLike, on_infeasible: str = "warn") -> Any:
    """The multiple that keeps a head's annealed entropy at that of n0 keys at 1.

    With psi the cumulant function of the head's scores, ``ln E e^(beta s)``, the entropy is
    ``ln n - D(beta)`` with the deficit ``D = beta psi' - psi``, the sum of
    ``(k - 1) / k! kappa_k beta^k`` over k >= 2. The multiple solves ``D(beta) = D(1) + ln(n / n0)``.
    With the variance alone, ``beta = sqrt(1 + 2 ln(n / n0) / kappa_2)``: :func:`annealed_beta` for a
    head with its own variance.

    The deficit is annealed: it is right while many keys share the weight. Cumulants beyond the variance
    help only if rows are long enough to measure them.

    Parameters
    ----------
    n, n0 : array_like
        Numbers of keys, at least 1.
    cumulants : array_like, shape (..., order - 1)
        kappa_2, kappa_3, ... of the scores at the standard scale; kappa_2 greater than 0. The axes before the
        last are heads, against which n broadcasts.
    on_infeasible : {"warn", "nan", "raise"}, default "warn"
        Result if no beta has that deficit: NaN with a warning, NaN, or an error.

    Returns
    -------
    float or ndarray of float64
        The smallest such multiple.

    Examples
    --------
    >>> cumulant_beta([512, 4096], n0=512, cumulants=[1.0]).round(4)  # annealed_beta
    array([1.    , 2.2713])
    >>> cumulant_beta(4096, n0=512, cumulants=[[4.0], [0.5]]).round(4)  # a sharp head, a flat one
    array([1.4282, 3.0525])
    """
    read_on_infeasible(on_infeasible)
    kappa = finite("cumulants", cumulants)
    if kappa.ndim == 0 or kappa.shape[-1] == 0 or not (kappa[..., 0] > 0).all():
        raise ValueError(f"cumulants must begin with a variance greater than 0, got {kappa.tolist()}")
    counts, starts = at_least("n", n, 1), at_least("n0", n0, 1)
    orders = np.arange(2, 2 + kappa.shape[-1])
    terms = kappa * (orders - 1) / np.array([math.factorial(k) for k in orders])
    goal = terms.sum(-1) + np.log(counts / starts)
    terms = np.broadcast_to(terms, (*goal.shape, len(orders)))
    values = [
        _first_root(row, float(g)) for row, g in zip(terms.reshape(-1, len(orders)), goal.flat, strict=True)
    ]
    beta = np.reshape(np.array(values, np.float64), goal.shape)
    if np.isnan(beta).any():
        worst = float(goal[np.isnan(beta)].flat[0])
        answer_infeasible(
            on_infeasible, f"no beta gives these cumulants an entropy deficit of {worst:.6g} nats"
        )
    return plain(beta)


def _first_root(terms: NDArray[np.float64], goal: float) -> float:
    """The smallest beta >= 0 with sum of terms beta^k = goal, k from 2; NaN if there is none."""
    if goal < 0:
        return math.nan
    roots = np.roots([*terms[::-1], 0.0, -goal])
    real = roots.real[(np.abs(roots.imag) <= 1e-9 * (1 + np.abs(roots))) & (roots.real >= -1e-12)]
    return float(max(real.min(), 0.0)) if real.size else math.nan


def sink_entropy(weight: ArrayLike, rest: ArrayLike) -> Any:
    """The entropy of a row with one key set apart: ``h(w) + (1 - w) H'``.

    w is the weight of that key, H' the entropy of the other keys' weights divided by their sum, and
    ``h(w) = -w ln w - (1 - w) ln(1 - w)``. This is the chain rule of entropy (Shannon 1948, section 6), an
    identity in each row. With a model for H', such as :func:`spectrum_entropy` of the keys without the sink,
    it models a head with a sink. As h is concave, use the weight of every row and average the result: the
    entropy at the mean weight is larger.

    Parameters
    ----------
    weight : array_like
        w, from 0 to 1.
    rest : array_like
        H' in nats, at least 0; it broadcasts against `weight`.

    Returns
    -------
    float or ndarray of float64
        Nats.

    Examples
    --------
    >>> import attnscale as at
    >>> heads = at.datasets.minilm_qk()
    >>> query, key = heads.query[11], heads.key[11]  # head 5 of layer 2: 36 % of the weight on the first key
    >>> rest = at.theory.spectrum_entropy(511, spectrum=at.theory.score_spectrum(query, key[1:]))
    >>> first = at.attention_weights(query, key)[:, 0]
    >>> without = at.theory.spectrum_entropy(512, spectrum=at.theory.score_spectrum(query, key))
    >>> [round(float(each), 2) for each in (at.attention_entropy(query, key).mean(), without)]
    [4.1, 5.57]
    >>> round(float(sink_entropy(first, rest).mean()), 2)
    4.09
    """
    from scipy.special import entr  # at first use: `import attnscale` stays fast

    w = between("weight", weight, 0, 1, closed="low high")
    w, other = together(weight=w, rest=at_least("rest", rest, 0))
    return plain(entr(w) + entr(1 - w) + (1 - w) * other)


def sink_weight(weight: ArrayLike, *, n: ArrayLike, n0: ArrayLike) -> Any:
    """The weight of one key in a row of n keys, if it has `weight` in a row of n0.

    Assumes that the key keeps its score and that the other keys' exponentials add up in proportion to their
    number: ``w / (w + (1 - w) (n - 1) / (n0 - 1))``.

    Parameters
    ----------
    weight : array_like
        From 0 to 1.
    n, n0 : array_like
        Numbers of keys, at least 2.

    Returns
    -------
    float or ndarray of float64

    Examples
    --------
    >>> sink_weight([0.5, 0.9], n=[[65], [513]], n0=65).round(3)
    array([[0.5  , 0.9  ],
           [0.111, 0.529]])
    """
    w, counts, starts = together(
        weight=between("weight", weight, 0, 1, closed="low high"),
        n=at_least("n", n, 2),
        n0=at_least("n0", n0, 2),
    )
    return plain(w / (w + (1 - w) * (counts - 1) / (starts - 1)))


def fold_scale(weight: ArrayLike, beta: ArrayLike) -> Any:
    """W_q times the multiple of each head, which gives the same scores as a learned scale per head.

    The score is ``beta (W_q x).k / sqrt(d) = ((beta W_q) x).k / sqrt(d)``: every model with a scale per head
    equals one without, also under rotary positions, biases and masks (the bias is added after the scale).
    Normalised queries lose it, since ``norm(beta q) = norm(q)`` for beta > 0: there a scale adds to the
    possible models, unless the norm has its own gain, which then takes it. Heads or layers that share one W_q
    cannot have their own scales folded in. A law of n cannot be folded in: it is not a constant.

    Parameters
    ----------
    weight : array_like, shape (heads, head_dim, model_dim)
        Weight of the query projection. A bias is folded in the same way, with shape (heads, head_dim, 1).
    beta : array_like
        The multiple of the standard scale: one number, or one per head.

    Returns
    -------
    ndarray of float64, of the shape of weight

    Examples
    --------
    >>> fold_scale([[[1.0, 2.0]], [[3.0, 4.0]]], [0.5, 2.0])
    array([[[0.5, 1. ]],
    <BLANKLINE>
           [[6. , 8. ]]])
    """
    w, factor = finite("weight", weight), finite("beta", beta)
    if w.ndim != 3:
        raise ValueError(f"weight must be (heads, head_dim, model_dim), got shape {w.shape}")
    if factor.ndim > 1 or (factor.ndim and factor.size != len(w)):
        raise ValueError(f"beta must be a number or one for each of {len(w)} heads, got shape {factor.shape}")
    return w * factor.reshape(-1, 1, 1)


def scale_update_residual(weight: ArrayLike, beta: ArrayLike, *, rank: int) -> Any:
    """Distance of an update of low rank from a scale: smallest ``|(beta - 1) W - B A|_F`` over rank r.

    An adapter that trains ``W_q + B A`` with W_q frozen can change the scale only in r directions. By Eckart
    and Young the rest is ``|beta - 1|`` times the root of the sum of squares of the singular values of W
    beyond the r-th: 0 if r is at least the rank of W.

    Parameters
    ----------
    weight : array_like, shape (..., rows, columns)
    beta : array_like
        The multiple of the standard scale; broadcasts with the axes before the last two.
    rank : int
        r, at least 0.

    Returns
    -------
    float or ndarray of float64
        Relative to ``|(beta - 1) W|_F``, between 0 and 1; 0 for beta = 1.

    Examples
    --------
    >>> round(scale_update_residual([[3.0, 0.0], [0.0, 4.0]], 1.5, rank=1), 3)
    0.6
    """
    most, w, factor = whole("rank", rank), finite("weight", weight), at_least("beta", beta, 0)
    if w.ndim < 2 or 0 in w.shape:
        raise ValueError(f"weight must be (..., rows, columns) and not empty, got shape {w.shape}")
    squares = np.linalg.svd(w, compute_uv=False) ** 2
    total = squares.sum(-1)
    share = np.sqrt(squares[..., most:].sum(-1) / np.where(total > 0, total, 1))
    return plain(np.where(factor == 1, 0.0, share) + 0.0 * factor)
