# SPDX-License-Identifier: BSD-3-Clause
"""Errors of what is computed from means over seeds and texts, where texts of one file are not independent."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..held_out import shares

_DRAWS = 2000


def crossed_error(values: ArrayLike, files: ArrayLike) -> float:
    """The standard error of the mean of `values`, by a bootstrap that draws seeds and files.

    All seeds read the same texts, so that a text's own difficulty does not vanish in the mean over seeds.
    A draw takes a sample of the seeds and, independently, one of the files with all their texts.

    Parameters
    ----------
    values : array_like, shape (seeds, texts)
    files : array_like of int, shape (texts,)
        Ids of the files that the texts are of.

    Returns
    -------
    float
        NaN with a single file. A single seed is not drawn: the error is then that of the files.

    Notes
    -----
    Of k seeds, or files, k - 1 are drawn with replacement, because k would make the error too small by
    sqrt(1 - 1/k) (Rao and Wu 1988, JASA 83, 231). What a seed and a file have in common is counted twice, so
    that the error is rather too large (Owen 2007, arXiv 0712.1111). The draws are the same at each call.

    Examples
    --------
    >>> texts = np.random.default_rng(0).normal(size=(1, 400))
    >>> round(crossed_error(texts, np.arange(400)), 2)  # 1 / sqrt(400)
    0.05
    """
    if len(np.unique(np.asarray(files))) < 2:
        return float("nan")
    return float(crossed_means(values, files).std(ddof=1))


def crossed_means(values: ArrayLike, files: ArrayLike) -> NDArray[np.float64]:
    """Means over seeds and texts in each draw of the bootstrap of :func:`crossed_error`.

    Parameters
    ----------
    values : array_like, shape (seeds, ..., texts)
    files : array_like of int, shape (texts,)

    Returns
    -------
    ndarray, shape (draws, ...)
        A single seed, or a single file, is not drawn.

    Examples
    --------
    >>> crossed_means([[[1.0], [2.0]], [[1.0], [2.0]]], [0]).std(0)  # two seeds agree on two means
    array([0., 0.])
    """
    values = np.asarray(values, np.float64)
    kinds, where = np.unique(np.asarray(files), return_inverse=True)
    rng = np.random.default_rng(0)
    flat = values.reshape(len(values), -1, values.shape[-1])
    by_file = flat @ (where[:, None] == np.arange(len(kinds)))  # seeds, means, files
    of_seeds, of_files = (shares(rng, len(each), _DRAWS) for each in (values, kinds))
    sums = np.einsum("ds,smf,df->dm", of_seeds, by_file, of_files, optimize=True)
    means = sums / (of_files @ np.bincount(where))[:, None]
    return np.asarray(means.reshape(_DRAWS, *values.shape[1:-1]))
