# SPDX-License-Identifier: BSD-3-Clause
"""Shares of each row's weight among parts of the context, without the matrix."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from .._base.checks import as_array, shown
from .._base.hints import hinted
from .._call.call import Call
from .._call.options import AttentionEntropyOptions, takes
from .._call.weights import normalizer_of

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray


__all__ = ["attention_spans"]


@hinted
@takes(AttentionEntropyOptions)
def attention_spans(
    query: ArrayLike,
    key: ArrayLike,
    lengths: ArrayLike | None = None,
    *,
    ids: ArrayLike | None = None,
    **options: Unpack[AttentionEntropyOptions],
) -> NDArray[np.floating[Any]]:
    """The weight of each row on each span of the keys: system prompt, question, retrieved text.

    Parameters
    ----------
    query, key : array_like
        As for :func:`attention`.
    lengths : array_like of int, shape (n_spans,)
        Number of keys in each span, in order; they add up to n_keys.
    ids : array_like of int, shape (n_keys,)
        In place of lengths, the span of each key, from 0; a key with a negative id is in no span.
    {names}
        As for :func:`attention`.

    Returns
    -------
    ndarray, shape (..., heads, n_queries, n_spans)
        Sums of weights, for every layout. The rest to 1 is in no span, or in a sink. 0 for a row without
        keys, NaN for a row that is NaN. float64 for float64 input, else float32.

    Raises
    ------
    TypeError, ValueError
        If lengths or ids are not integers of that shape, or not exactly one of them is given.

    Notes
    -----
    With values of 1 for the keys of a span and 0 for the others, the output of attention is the weight of the
    span: the cost is that of attention with n_spans channels, and no matrix of weights is stored.

    Examples
    --------
    >>> import numpy as np, attnscale as at
    >>> q, k = np.zeros((2, 1, 4, 8))  # zero scores: every visible key weighs the same
    >>> at.attention_spans(q, k, [1, 3], is_causal=True).round(2)
    array([[[1.  , 0.  ],
            [0.5 , 0.5 ],
            [0.33, 0.67],
            [0.25, 0.75]]])
    """
    call = Call(query, key, None, options).read()
    wide = np.float64 if call.inputs.dtype == np.float64 else np.float32
    members = members_of(lengths, ids, call.inputs.key.shape[-2]).astype(wide)
    found = np.empty((*call.row_shape, members.shape[-1]), wide)
    normalizer = normalizer_of(options)
    call.core.attend(members, found, (), call.scale, None if normalizer is None else normalizer._rule(call))
    call.check_rows(found)
    return call.rows(found, "spans", (..., "queries", "span"))


def members_of(lengths: Any, ids: Any, n_keys: int) -> NDArray[np.bool_]:
    """Whether each key is in each span, (n_keys, n_spans)."""
    if (lengths is None) == (ids is None):
        raise ValueError(f"one of lengths and ids must be given, got {'none' if ids is None else 'both'}")
    if ids is not None:
        of_keys = _integers("ids", ids)
        if of_keys.shape != (n_keys,):
            raise ValueError(f"ids must have one number for each of {n_keys} keys, got shape {of_keys.shape}")
        return np.asarray(of_keys[:, None] == np.arange(of_keys.max(initial=-1) + 1))
    counts = _integers("lengths", lengths)
    if counts.ndim != 1 or (counts < 0).any() or counts.sum() != n_keys:
        raise ValueError(
            f"lengths must be numbers of keys that add up to n_keys = {n_keys}, got {shown(counts.tolist())}"
        )
    return np.repeat(np.eye(len(counts), dtype=bool), counts, axis=0)


def _integers(name: str, given: Any) -> NDArray[Any]:
    array = as_array(name, given)
    if array.dtype.kind not in "iu" and array.size:
        raise TypeError(f"{name} must be integers, got {array.dtype}")
    return array.astype(np.int64)
