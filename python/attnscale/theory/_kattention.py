# SPDX-License-Identifier: BSD-3-Clause
"""Normalising constants of kattention's score."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from .._base.checks import number
from ._arguments import finite, plain


def kattention_log_normalizer(
    point: ArrayLike, k_weight: ArrayLike | None = None, *, scale: float = 1.0
) -> Any:
    """ln of the integral of ``exp(scale (p . u - |u|^2 / 2))`` over all keys u, p = Qx + b.

    Over u in R^head_dim it is finite for every K, since K does not occur in it. Over y in R^embed_dim,
    with u = Ky, it is infinite as soon as K maps some y != 0 to 0: the score is then constant
    along a line. "The constant is finite" and "y is free along the kernel of K" exclude each other.

    Parameters
    ----------
    point : array_like, shape (..., head_dim)
        p = Qx + b.
    k_weight : array_like, shape (head_dim, embed_dim), optional
        K, for the integral over y. None: the integral over u.
    scale : float, default 1.0
        > 0.

    Returns
    -------
    float or ndarray of float64, shape (...)
        inf if K has a kernel.

    Notes
    -----
    ``(D/2) ln(2 pi / scale) + scale |p|^2 / 2`` over u, and ``(E/2) ln(2 pi / scale) - ln det(K^T K) / 2 +
    scale |P p|^2 / 2`` over y, P the projection onto the range of K: Gaussian integrals. The rank of K
    is judged as :func:`numpy.linalg.matrix_rank` does.

    Examples
    --------
    >>> import numpy as np
    >>> from attnscale.theory import kattention_log_normalizer
    >>> round(kattention_log_normalizer([3.0, 4.0]), 6)  # ln(2 pi) + 25 / 2
    14.337877
    >>> kattention_log_normalizer([3.0], [[1.0, 0.0]])  # y = (0, t) is not seen
    inf
    """
    p = finite("point", point)
    if p.ndim == 0:
        raise ValueError("point must have shape (..., head_dim), got a number")
    factor = number("scale", scale)
    if factor <= 0:
        raise ValueError(f"scale must be greater than 0, got {factor:g}")
    if k_weight is None:
        return _gaussian(p, p.shape[-1], factor)
    k = finite("k_weight", k_weight)
    if k.ndim != 2 or k.shape[0] != p.shape[-1]:
        raise ValueError(f"k_weight must be (head_dim = {p.shape[-1]}, embed_dim), got shape {k.shape}")
    if np.linalg.matrix_rank(k) < k.shape[1]:
        return plain(np.full(p.shape[:-1], np.inf))
    basis, triangle = np.linalg.qr(k)
    log_det = np.log(np.abs(np.diag(triangle))).sum()  # half of that of K^T K
    return plain(_gaussian(p @ basis, k.shape[1], factor) - log_det)


def _gaussian(p: np.ndarray[Any, Any], dimension: int, scale: float) -> Any:
    square = 0.5 * scale * (p * p).sum(-1)
    return plain(0.5 * dimension * math.log(2 * math.pi / scale) + square)
