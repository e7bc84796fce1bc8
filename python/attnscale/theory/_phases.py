# SPDX-License-Identifier: BSD-3-Clause
"""Large n: the annealed entropy, and rows in which the nearest few keys hold the weight."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._base.checks import choose
from ._arguments import at_least, between, plain, pointwise, together
from ._densities import gauss_legendre
from ._rows import EULER_GAMMA, MODELS
from ._sphere import sphere_entropy_deficit


def annealed_entropy(
    n: ArrayLike, beta: ArrayLike, *, head_dim: ArrayLike = 64, model: str = "sphere"
) -> Any:
    """ln n minus a deficit independent of n: the entropy while many keys share the weight.

    The deficit is beta^2/2 for Gaussian scores, and :func:`sphere_entropy_deficit` at scale
    ``beta / sqrt(head_dim)`` for keys on a sphere. The value is negative where few keys hold the weight and
    the approximation no longer holds: for Gaussian scores from :func:`critical_beta` on.
    :func:`expected_entropy` is exact on both sides.

    Parameters
    ----------
    n : array_like
        Number of keys, at least 1.
    beta : array_like
        The multiple of the standard scale, at least 0.
    head_dim : array_like, default 64
        At least 2; used only by the model "sphere".
    model : {"sphere", "gaussian"}

    Returns
    -------
    float or ndarray of float64
        Nats; the arguments broadcast.

    Examples
    --------
    >>> annealed_entropy([512, 4096], 1).round(3)
    array([5.749, 7.829])
    """
    counts, betas = at_least("n", n, 1), at_least("beta", beta, 0)
    dims = at_least("head_dim", head_dim, 2, integer=True)
    if choose("model", model, MODELS) == "sphere":
        deficit = sphere_entropy_deficit(betas / np.sqrt(dims), dims)
    else:
        deficit = 0.5 * betas * betas + 0.0 * dims
    return plain(np.log(counts) - deficit)


def critical_beta(n: ArrayLike) -> Any:
    """sqrt(2 ln n): where a row of n Gaussian scores freezes onto a few keys.

    The freezing point of Derrida's random energy model (Phys. Rev. B 24, 2613, 1981): there the annealed
    entropy ln n - beta^2/2 is 0. It is a transition only in the limit of large n, which is approached slowly.

    Parameters
    ----------
    n : array_like
        Number of keys, at least 1.

    Returns
    -------
    float or ndarray of float64

    Examples
    --------
    >>> critical_beta([512, 32768]).round(4)
    array([3.5322, 4.5601])
    """
    return plain(np.sqrt(2 * np.log(at_least("n", n, 1))))


def condensed_entropy(m: ArrayLike) -> Any:
    """Limit of E[H] for large n beyond the freezing point, at beta = critical_beta(n) / m.

    ``psi(1) - psi(1 - m)``: the entropy of Poisson-Dirichlet weights of parameter m. The limit is
    approached like 1/ln n: at m = 0.8 it is 4.71 nats, and a row of 10^12 keys has 3.09.

    Parameters
    ----------
    m : array_like
        critical_beta(n) / beta, in [0, 1).

    Returns
    -------
    float or ndarray of float64
        Nats.

    Examples
    --------
    >>> round(condensed_entropy(0.8), 4)
    4.7118
    """
    from scipy.special import digamma  # at first use: `import attnscale` stays fast

    return plain(digamma(1.0) - digamma(1 - between("m", m, 0, 1, closed="low")))


def condensed_concentration(m: ArrayLike) -> Any:
    """Limit of E[sum p^2] for large n beyond the freezing point: 1 - m.

    Parameters
    ----------
    m : array_like
        critical_beta(n) / beta, in [0, 1).

    Returns
    -------
    float or ndarray of float64

    Examples
    --------
    >>> condensed_concentration(0.75)
    0.25
    """
    return plain(1 - between("m", m, 0, 1, closed="low"))


Array = NDArray[np.float64]

# The outer integral is over ln of a unit exponential number, by the trapezoidal rule.
_STEP = 0.125
_LEVELS = np.arange(-38.0, 4.0, _STEP)
_NODES = 16  # nodes of an inner panel
# Ends of the inner panels around the mode, in units of its width.
_PANELS = np.array([1.2, 2.5, 4, 6, 9, 13, 20, 30, 45, 70])
_PANELS = np.concatenate([-_PANELS[::-1], [0.0], _PANELS])
_FULL = 4.0  # 1 - exp(-e^y) is 1 above


def critical_limit_beta(n: ArrayLike, t: ArrayLike, *, head_dim: ArrayLike = 64) -> Any:
    """The multiple at which the nearest keys on a sphere share the weight: ``t (n C)^(2/(d-1)) / sqrt(d)``.

    For keys uniform on the sphere, ``P(1 - cosine < y)`` is ``C y^((d-1)/2)`` for small y, with
    ``C = 2^((d-1)/2) / ((d-1) B(1/2, (d-1)/2))``. So the nearest of n keys is at ``1 - cosine`` of the order
    of ``(n C)^(-2/(d-1))``, and at a larger order of the scale one key has all of the weight.

    Parameters
    ----------
    n : array_like
        Number of keys, at least 1.
    t : array_like
        Position in the critical regime, greater than 0: small for many keys, large for one.
    head_dim : array_like, default 64
        d, at least 2.

    Returns
    -------
    float or ndarray of float64
        ``scale * sqrt(head_dim)``; the arguments broadcast.

    Notes
    -----
    The order n^(2/(d-1)) and the limit are those of Bruno et al., Scaling limits of long-context
    transformers, 2026, arXiv 2605.08505.

    Examples
    --------
    >>> critical_limit_beta([512, 32768], 1, head_dim=4).round(2)
    array([ 22.77, 364.31])
    """
    counts, times = at_least("n", n, 1), between("t", t, 0, math.inf)
    counts, times, dims = together(
        n=counts, t=times, head_dim=at_least("head_dim", head_dim, 2, integer=True)
    )
    from scipy.special import betaln  # at first use: `import attnscale` stays fast

    half = (dims - 1) / 2
    log_c = half * math.log(2) - np.log(dims - 1) - betaln(0.5, half)
    return plain(times * np.exp((np.log(counts) + log_c) / half) / np.sqrt(dims))


def critical_limit_entropy(t: ArrayLike, *, head_dim: ArrayLike = 64) -> Any:
    """Limit of E[H] for many keys on a sphere at :func:`critical_limit_beta`, at any t.

    The weights tend to ``exp(-x_k)`` over their sum Z, with ``x_k = t G_k^(2/(d-1))`` and the arrivals
    G_1 < G_2 < ... of a Poisson process of rate 1. For an independent exponential number E the variable
    ``u = ln(E / Z)`` exceeds a value with the probability ``E exp(-e^u Z) = exp(-F(u) / t^a)``, so that
    ``F(u) / t^a`` is exponential, too. With ``a = (d-1)/2`` and x over the positive numbers::

        F(u) = integral a x^(a-1) (1 - exp(-e^(u-x))) dx
        E[H] = -gamma - E[r(u)],  r(u) the mean of u - x under the density ~ x^(a-1) e^(u-x) exp(-e^(u-x))

    Parameters
    ----------
    t : array_like
        Greater than 0.
    head_dim : array_like, default 64
        d, at least 2.

    Returns
    -------
    float or ndarray of float64
        Nats; the arguments broadcast. Errors are below 1e-6 (measured: 3e-8).

    Notes
    -----
    The limit of the weights is from arXiv 2605.08505, the integral is ours. It says nothing about
    rows in use unless head_dim is small: it needs ``beta sqrt(d)`` far above d/2, so that the keys that
    matter are close to the query. :func:`expected_entropy` is exact at every n.

    Examples
    --------
    Rows of 20000 keys are at the limit with 4 dimensions, and far from it with 64:

    >>> from attnscale.theory import expected_entropy
    >>> t, d = np.array([1.0, 20.0]), np.array([4, 64])
    >>> expected_entropy(20_000, critical_limit_beta(20_000, t, head_dim=d), head_dim=d).round(3)
    array([1.884, 2.264])
    >>> critical_limit_entropy(t, head_dim=d).round(3)
    array([ 1.885, 16.962])
    """
    times, dims = between("t", t, 0, math.inf), at_least("head_dim", head_dim, 2, integer=True)
    times, dims = together(t=times, head_dim=dims)
    return plain(pointwise(_entropy, times, dims))


class _Moments(NamedTuple):
    """ln F(u), ln F'(u) and r(u)."""

    log_f: Array
    log_slope: Array
    mean: Array


def _entropy(t: float, d: float) -> float:
    log_f = _LEVELS + (d - 1) / 2 * math.log(t)
    u = log_f - math.lgamma((d + 1) / 2)  # F(u) <= Gamma(a + 1) e^u: below the root
    # ln F is concave: Newton's steps rise to the root.
    for _ in range(60):
        found = _moments(u, d)
        step = (log_f - found.log_f) * np.exp(found.log_f - found.log_slope)
        u = u + step
        if (np.abs(step) <= 1e-10 * (1 + np.abs(u))).all():
            break
    weights = _STEP * np.exp(_LEVELS - np.exp(_LEVELS))
    return max(0.0, -EULER_GAMMA - float((weights * _moments(u, d).mean).sum()))


def _moments(u: Array, d: float) -> _Moments:
    """Quadrature over s = sqrt(x), a x^(a-1) dx = (d-1) s^(d-2) ds, measured from the peak's mode."""
    mode, y_mode, width = _peak(u, d)
    inner = np.sqrt(np.maximum(u - _FULL, 0.0))  # below, F has its full density
    first = np.where(inner > 0, (y_mode - _FULL) / (inner + mode), -mode)
    cuts = np.maximum(width[:, None] * _PANELS, first[:, None])
    nodes, weights = gauss_legendre(_NODES)
    half = np.diff(cuts, axis=1)[:, :, None] / 2
    h = (cuts[:, :-1, None] + half * (1 + nodes)).reshape(u.size, -1)
    y = y_mode[:, None] - h * (2 * mode[:, None] + h)
    # The densities are taken relative to this one's value at the mode.
    density = (d - 2) * np.log1p(np.maximum(h / mode[:, None], 1e-16 - 1))
    density = np.exp(density + np.minimum(y, 0.0) - np.minimum(y_mode, 0.0)[:, None])
    density *= (half * weights).reshape(u.size, -1)
    e = np.exp(np.clip(y, -30.0, _FULL + 1))
    lost = (density * (-np.expm1(-e) / np.minimum(e, 1.0))).sum(1)
    density *= np.exp(-e) * np.maximum(e, 1.0)
    slope = density.sum(1)
    shift = (d - 2) * np.log(mode) + np.minimum(y_mode, 0.0) + math.log(d - 1)
    full = np.exp((d - 1) * np.log(np.maximum(inner, 1e-200)) - shift)
    return _Moments(np.log(lost + full) + shift, np.log(slope) + shift, (density * y).sum(1) / slope)


def _peak(u: Array, d: float) -> tuple[Array, Array, Array]:
    """Mode over s of s^(d-2) e^y exp(-e^y), y = u - s^2, with its y and the width of the peak."""
    low, high = np.sqrt(np.maximum(u, 0.0)), np.sqrt(np.maximum(u, 0.0) + d) + 3
    for _ in range(50):
        mode = (low + high) / 2
        rising = d - 2 > 2 * mode * mode * -np.expm1(np.minimum(u - mode * mode, 0.0))
        low, high = np.where(rising, mode, low), np.where(rising, high, mode)
    square = mode * mode
    # At the mode 1 - e^y = (d-2) / (2 s^2), which does not cancel.
    y = np.where(square > d, np.log1p(-(d - 2) / np.maximum(2 * square, d)), u - square)
    curvature = 2 * -np.expm1(y) + 4 * square * np.exp(y) + (d - 2) / np.maximum(square, 1e-9)
    return mode, y, 1 / np.sqrt(np.maximum(curvature, 0.5))


def top_gap_probability(n: ArrayLike, gap: ArrayLike) -> Any:
    """P(the two largest of n independent normal scores are nearer than a gap).

    ``1 - n integral phi(s) Phi(s - gap)^(n-1) ds``: the others all lie below the largest by more. The
    density at 0 is positive, about ``isf(1/n)``, at every n.

    Parameters
    ----------
    n : array_like
        Number of keys, at least 2.
    gap : array_like
        In standard deviations, at least 0.

    Returns
    -------
    float or ndarray of float64

    Examples
    --------
    >>> top_gap_probability([64, 4096], 0.1).round(3)
    array([0.212, 0.307])
    """
    from scipy.special import log_ndtr  # at first use: `import attnscale` stays fast

    s = np.arange(-12.0, 39.0, 0.02)
    below = log_ndtr(s)

    def probability(count: float, each: float) -> float:
        # The difference to a gap of 0, whose integral is 1, keeps the digits of a small probability.
        near = np.exp((count - 1) * below) - np.exp((count - 1) * log_ndtr(s - each))
        density = np.exp(math.log(count) - s * s / 2) / math.sqrt(2 * math.pi)
        return 0.02 * float((density * near).sum())

    return plain(np.clip(pointwise(probability, at_least("n", n, 2), at_least("gap", gap, 0)), 0, 1))


def critical_scale_tail(n: ArrayLike, level: ArrayLike) -> Any:
    """The part of P(Lambda > level) that comes from the two largest scores: nearly all at a large level.

    Lambda = max over k >= 2 of ln(k) / Delta_k is the critical scale of a row
    (:class:`attnscale.laws.CriticalScale`). It is above the level if the second score is within
    ln(2) / level of the first. For n normal scores that is :func:`top_gap_probability`, which falls
    like 1 / level: Lambda has no mean at any n, and its averages depend on the number of rows. Its quantiles
    are sound; the median of normal scores grows like sqrt(ln n).

    Parameters
    ----------
    n : array_like
        Number of keys, at least 2.
    level : array_like
        Greater than 0.

    Returns
    -------
    float or ndarray of float64
        A lower bound of P(Lambda > level), and its limit for a large level.

    Examples
    --------
    >>> critical_scale_tail(512, [10, 100, 1000]).round(4)
    array([0.1919, 0.0209, 0.0021])
    """
    return top_gap_probability(n, math.log(2) / between("level", level, 0, math.inf))
