# SPDX-License-Identifier: BSD-3-Clause
"""The standard error of a mean over seeds and texts, where texts of one file are not independent."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from ..._bootstrap import shares

__all__ = ["crossed_error"]

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
    values = np.asarray(values, np.float64)
    kinds, where = np.unique(np.asarray(files), return_inverse=True)
    if len(kinds) < 2:
        return float("nan")
    rng = np.random.default_rng(0)
    sizes = np.bincount(where)
    by_file = np.stack([np.bincount(where, each) for each in values])  # seeds, files
    of_seeds = shares(rng, len(values), _DRAWS) if len(values) > 1 else np.ones((_DRAWS, 1))
    of_files = shares(rng, len(kinds), _DRAWS)
    sums = np.einsum("ds,sf,df->d", of_seeds, by_file, of_files)
    return float((sums / (of_files @ sizes)).std(ddof=1))
