# SPDX-License-Identifier: BSD-3-Clause
"""How many of n random keys sparsemax gives a weight, and the scale that keeps their number."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._arguments import at_least, between, plain

__all__ = ["expected_support", "sparsity_beta"]

# A Laplace transform is inverted by Abate and Whitt 1995, ORSA J. Computing 7, 36: the Fourier series of
# the Bromwich integral, its tail summed by Euler's transformation. The error is exp(-_SHIFT).
_SHIFT, _TERMS, _EULER = 23.0, 60, 15
_STEP = 0.01  # between the scores of the key that is asked about


def expected_support(n: ArrayLike, beta: ArrayLike) -> Any:
    """Expected number of keys with a weight under sparsemax, of n with independent normal scores.

    A key with score beta z has a weight if and only if the scores above it exceed it by less than 1 in
    all: ``S = sum of beta (s_j - z)_+ < 1`` over the other keys. The Laplace transform of one term is
    ``L(t) = Phi(z) + phi(z) R(z + beta t)`` with the Mills ratio R, that of S is its power n - 1, and
    ``E = n integral phi(z) P(S < 1) dz``.

    For many keys, the gaps below the largest of n normal scores are those of a Poisson process of rate
    e^(-x) over ``b = isf(1/n)``, and the number has the law of 1 + Poisson(b / beta). So
    ``E -> 1 + b / beta``, which :func:`sparsity_beta` keeps.

    Parameters
    ----------
    n : array_like
        Number of keys, at least 1.
    beta : array_like
        The multiple of the standard scale, at least 0.05.

    Returns
    -------
    float or ndarray of float64
        The arguments broadcast. Between 1 and n, right to 6 digits.

    Examples
    --------
    >>> expected_support([64, 512, 16384], 1).round(3)
    array([3.243, 3.935, 4.857])
    >>> expected_support([64, 512, 16384], sparsity_beta([64, 512, 16384])).round(3)
    array([3.942, 3.935, 3.922])
    """
    counts, betas = np.broadcast_arrays(at_least("n", n, 1), at_least("beta", beta, 0.05))
    values = [_support(float(a), float(b)) for a, b in zip(counts.flat, betas.flat, strict=True)]
    return plain(np.reshape(np.array(values, np.float64), counts.shape))


def sparsity_beta(n: ArrayLike, *, n0: ArrayLike = 512, keys: ArrayLike = 1) -> Any:
    """isf(keys / n) / isf(keys / n0): the multiple that keeps the support of sparse attention.

    isf is the upper quantile of the standard normal distribution, so that isf(keys / n) is about the
    score of the key of that rank. The gaps between the top scores shrink like 1 / isf(keys / n), and a
    scale that grows like isf keeps them. To first order ``sqrt(ln n / ln n0)``.

    Parameters
    ----------
    n, n0 : array_like
        Numbers of keys, more than 2 keys each; the multiple is 1 at n0.
    keys : array_like, default 1
        The rank, greater than 0: 1 for sparsemax, 3 for entmax-1.5.

    Returns
    -------
    float or ndarray of float64

    Examples
    --------
    >>> sparsity_beta([512, 4096, 32768]).round(4)
    array([1.    , 1.2084, 1.3892])
    """
    from scipy.special import ndtri  # at first use: `import attnscale` stays fast

    rank = between("keys", keys, 0, math.inf)
    shares = [rank / at_least(name, value, 1) for name, value in (("n", n), ("n0", n0))]
    for name, share in zip(("n", "n0"), shares, strict=True):
        if (share >= 0.5).any():
            raise ValueError(f"{name} must be more than 2 keys, got {float((rank / share).min()):g}")
    return plain(ndtri(shares[0]) / ndtri(shares[1]))


def _support(n: float, beta: float) -> float:
    from scipy.special import comb, ndtr

    s = np.arange(-7.0, 39.0, _STEP)
    density = np.exp(-s * s / 2) / math.sqrt(2 * math.pi)
    places = np.arange(_TERMS + _EULER + 1)
    at = _SHIFT / 2 + 1j * np.pi * places
    # Far above the row's scores there is no key, and with a thousand keys above it no key has a weight.
    near = (n * density > 1e-20) & (n * ndtr(-s) < 1000)
    terms = (-1.0) ** places * (_transform(n, beta, s[near], at) / at).real
    terms[:, 0] /= 2
    partial = math.exp(_SHIFT / 2) * np.cumsum(terms, axis=-1)[:, _TERMS:]
    below = partial @ (comb(_EULER, np.arange(_EULER + 1)) / 2**_EULER)  # P(S < 1)
    return float(np.clip(n * (density[near] * below).sum() * _STEP, 1, n))


def _transform(n: float, beta: float, s: NDArray[np.float64], at: NDArray[Any]) -> Any:
    """Laplace transform of the excess of n - 1 keys over beta s, of shape (s, at)."""
    from scipy.special import log1p, ndtr, wofz  # log1p of NumPy loses small complex numbers

    if n == 1:
        return np.ones((s.size, at.size), complex)

    # The Mills ratio of complex argument: erfcx(x) = w(ix).
    x = s[:, None] + beta * at
    mills = math.sqrt(math.pi / 2) * wofz(1j * x / math.sqrt(2))
    density = np.exp(-s * s / 2) / math.sqrt(2 * math.pi)
    return np.exp((n - 1) * log1p(density[:, None] * mills - ndtr(-s)[:, None]))
