# SPDX-License-Identifier: BSD-3-Clause
"""A scale a head is a choice of coordinates of W_q: how to fold it in, and where that fails."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from .._checks import shown
from ._arguments import at_least, finite, plain


def fold_scale(weight: ArrayLike, beta: ArrayLike) -> Any:
    """W_q times the multiple of each head: it gives the same scores as a learned scale for each head.

    The score is ``beta (W_q x).k / sqrt(d) = ((beta W_q) x).k / sqrt(d)``: every model with a scale a head
    is one without, under rotary positions, biases and masks alike (the bias is added behind the scale).
    Queries that are normalised lose it, since ``norm(beta q) = norm(q)`` for beta > 0: there a scale adds
    to what the model can do, unless the norm has a gain of its own, which then takes it. Heads or layers
    that share one W_q cannot have scales of their own folded in. A law of n is never absorbed: it is not a
    constant.

    Parameters
    ----------
    weight : array_like, shape (heads, head_dim, model_dim)
        Weight of the query projection. A bias is folded in alike, as shape (heads, head_dim, 1).
    beta : array_like
        One number, or one a head: the multiple of the standard scale.

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
    """How far an update of low rank stays from a scale: least ``|(beta - 1) W - B A|_F`` over rank r.

    An adapter that trains ``W_q + B A`` with W_q frozen can only change the scale of what lies in r
    directions. By Eckart and Young the rest is ``|beta - 1|`` times the root of the sum of squares of the
    singular values of W beyond the r-th: 0 where r is at least the rank of W.

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
    if isinstance(rank, bool) or rank != math.floor(rank) or rank < 0:
        raise ValueError(f"rank must be a whole number of at least 0, got {shown(rank)}")
    w, factor = finite("weight", weight), at_least("beta", beta, 0)
    if w.ndim < 2 or 0 in w.shape:
        raise ValueError(f"weight must be (..., rows, columns) and not empty, got shape {w.shape}")
    squares = np.linalg.svd(w, compute_uv=False) ** 2
    total = squares.sum(-1)
    share = np.sqrt(squares[..., int(rank) :].sum(-1) / np.where(total > 0, total, 1))
    return plain(np.where(factor == 1, 0.0, share) + 0.0 * factor)
