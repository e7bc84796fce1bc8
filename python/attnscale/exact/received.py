# SPDX-License-Identifier: BSD-3-Clause
"""Column sums of the attention matrix, the weight that each key receives, without the matrix."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from .._base.checks import choose, shown
from .._base.hints import hinted
from .._call.call import Call
from .._call.options import AttentionEntropyOptions, takes
from .._call.weights import normalizer_of
from .._core import CoreCall
from .backward import receive
from .results import AttentionStatistics

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray


__all__ = ["attention_received"]

_REDUCTIONS = ("sum", "mean", "max")


@hinted
@takes(AttentionEntropyOptions)
def attention_received(
    query: ArrayLike,
    key: ArrayLike,
    *,
    reduce: str = "sum",
    forward: AttentionStatistics | None = None,
    **options: Unpack[AttentionEntropyOptions],
) -> NDArray[np.floating[Any]]:
    """The weight that each key receives from all queries: column sums of the attention matrix.

    The keys with the largest sums are the heavy hitters that some caches keep.

    Parameters
    ----------
    query, key : array_like
        As for :func:`attention`.
    reduce : {"sum", "mean", "max"}, default "sum"
        Reduction over the queries: the sum of the weights; their mean over the queries that may see the key,
        which does not favour the first keys of a causal mask; or the largest weight.
    forward : AttentionStatistics, optional
        The result of :func:`attention_statistics` for the same call: its lse, if present, is not computed
        again, which saves half of the work.
    {names}
        As for :func:`attention`.

    Returns
    -------
    ndarray, shape (..., heads, n_keys)
        One number for each key and query head, even if heads share a key (``enable_gqa``). 0 for a key that
        no query sees. float64 for float64 input, else float32. A row that is NaN makes its visible keys NaN.

    Raises
    ------
    ValueError
        If reduce is something else, or forward belongs to another call.

    Notes
    -----
    Two passes over the scores: the first finds the log-sum-exp of each row, the second the weights
    exp(score - lse), which are added up for each key. Memory does not grow with n_queries * n_keys. Sums over
    queries are in float64 across vectors of queries, and have the same bits for any number of threads.

    Sums over several blocks of queries add up: a cache that grows adds those of its new queries. Zhang et
    al. 2023, "H2O: Heavy-Hitter Oracle" (arXiv 2306.14048), keep the keys with the largest sums.

    Examples
    --------
    >>> import numpy as np, attnscale as at
    >>> q, k = np.zeros((2, 1, 4, 8))  # zero scores: every visible key weighs the same
    >>> at.attention_received(q, k, is_causal=True).round(3)
    array([[2.083, 1.083, 0.583, 0.25 ]])
    >>> at.attention_received(q, k, is_causal=True, reduce="max")
    array([[1.        , 0.5       , 0.33333333, 0.25      ]])
    """
    choose("reduce", reduce, _REDUCTIONS)
    if forward is not None and not isinstance(forward, AttentionStatistics):
        raise TypeError(f"forward must be an AttentionStatistics, got {shown(forward)}")
    call = Call(query, key, None, options).read()
    found = receive(call, normalizer_of(options), forward, largest=reduce == "max")
    call.check_rows(found)
    if reduce == "mean":
        found /= np.maximum(_queries_of_keys(call), 1)
    wide = call.inputs.dtype == np.float64
    return call.rows(found if wide else found.astype(np.float32), "received", (..., "keys"))


def _queries_of_keys(call: Call) -> NDArray[np.int64]:
    """Number of queries that may see each key; broadcasts to (..., heads, n_keys).

    It counts visible keys with queries and keys exchanged.
    """
    inputs = call.inputs
    first, past = queries_of_keys(
        call.intervals.begin, call.intervals.end, inputs.query.shape[-2], inputs.key.shape[-2]
    )
    if call.mask is None:
        return np.asarray(past - first)
    return CoreCall(
        inputs.key, inputs.query, exchanged(call.mask), first, past, None, False, call.threads
    ).count()


def exchanged(mask: NDArray[Any]) -> NDArray[Any]:
    """A mask with queries and keys exchanged."""
    return mask.reshape((1,) * (2 - mask.ndim) + mask.shape).swapaxes(-1, -2)


def queries_of_keys(
    begin: NDArray[np.int64] | None, end: NDArray[np.int64] | None, n_queries: int, n_keys: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The queries first ... past - 1 whose intervals of keys hold each key.

    The ends never decrease from a query to the next, so these queries are adjacent.
    """
    past = np.full(n_keys, n_queries) if begin is None else _at_most(begin, n_queries, n_keys)
    first = np.zeros(n_keys, np.int64) if end is None else _at_most(end, n_queries, n_keys)
    return first, np.maximum(past, first)


def _at_most(bounds: NDArray[np.int64], n_queries: int, n_keys: int) -> NDArray[np.int64]:
    """For each key, the number of queries whose bound is at most its index; bounds do not decrease."""
    rows = np.broadcast_to(bounds, (*bounds.shape[:-1], n_queries))
    found = np.empty((*bounds.shape[:-1], n_keys), np.int64)
    for lead in np.ndindex(bounds.shape[:-1]):
        found[lead] = np.searchsorted(rows[lead], np.arange(n_keys), side="right")
    return found
