# SPDX-License-Identifier: BSD-3-Clause
"""Attention mass of a selection of keys, and the strongest keys of each row, without the matrix."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

import numpy as np

from .._base.checks import as_array, fit_to, positive_int, refusal
from .._base.hints import hinted
from .._call.call import Call
from .._call.homes import apply_at_home, is_tensor
from .._call.measures import blocks_of_rows, cut_rows
from .._call.options import AttentionEntropyOptions, takes
from .._call.rows import read_integers
from .._call.weights import normalizer_of
from .alone import attend_alone

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from ..normalizers._base import Rule

__all__ = ["TopKeys", "attention_mass", "top_keys"]


@hinted
@takes(AttentionEntropyOptions)
def attention_mass(
    query: ArrayLike,
    key: ArrayLike,
    selected: ArrayLike,
    *,
    block_size: int | None = None,
    **options: Unpack[AttentionEntropyOptions],
) -> NDArray[np.floating[Any]]:
    """The share of each row's attention on a selection of keys, such as a sparse pattern or a smaller cache.

    Parameters
    ----------
    query, key : array_like
        As for :func:`attention`.
    selected : array_like of int
        Indices of keys, in one of three shapes: (..., heads, n_queries, k); (..., n_queries, k), without the
        axis of heads, for all heads; (k,), one set for all rows. Axes of extent 1 broadcast: the cached keys
        of each head are (heads, 1, k), or (1, heads, 1, k) with a batch. Negative indices are ignored, so
        rows may have fewer than k; a repeated key counts once.
    block_size : int, optional
        The indices name blocks of this many keys: block b starts at key b * block_size.
    {names}
        As for :func:`attention`.

    Returns
    -------
    ndarray, shape (..., heads, n_queries)
        Sums of the weights of the selected keys, 0 ... 1 for a softmax. A hidden key has no weight, and the
        weight of a sink is not included. 0 for a row without keys, NaN for a row that is NaN. float64 for
        float64 input, else float32.

    Raises
    ------
    TypeError, ValueError
        If selected is not of integers, has another shape, or names a key that does not exist.

    Notes
    -----
    For a softmax this is exp(lse_selected - lse), from the log-sum-exps over the selected keys and over all.
    Each row is attended with a value of 1 for its keys and 0 for the others, block by block of rows: apart
    from the indices, memory does not grow with n_queries.

    Examples
    --------
    >>> import numpy as np, attnscale as at
    >>> q, k = np.zeros((2, 1, 4, 8))  # zero scores: every visible key weighs the same
    >>> at.attention_mass(q, k, [0, 1], is_causal=True).round(2)
    array([[1.  , 1.  , 0.67, 0.5 ]])
    >>> at.attention_mass(q, k, [[0], [0], [1], [0]], block_size=2, is_causal=True).round(2)
    array([[1.  , 1.  , 0.33, 0.5 ]])
    """
    call = Call(query, key, None, options).read()
    n_keys = call.inputs.key.shape[-2]
    wanted = read_selected(selected, call.row_shape, n_keys, block_size)
    normalizer = normalizer_of(options)
    rule = None if normalizer is None else normalizer._rule(call)
    found = np.empty((*call.row_shape, 1), type_of_sums(call))
    if wanted.shape[-2] == 1:  # one value for all rows: plain attention
        value = members(wanted, slice(None), n_keys, block_size)[..., 0, :, None].astype(found.dtype)
        call.core.attend(value, found, (), call.scale, rule)
    else:
        for cut in blocks_of_rows((*wanted.shape[:-2], call.row_shape[-1]), n_keys):
            value = members(wanted, cut, n_keys, block_size)[..., None].astype(found.dtype)
            found[..., cut, :] = attend_alone(call, rule, cut, value)
    call.check_rows(found)
    return call.rows(found[..., 0], "mass")


class TopKeys(NamedTuple):
    """The strongest keys of each row, the strongest first, from :func:`top_keys`.

    Attributes
    ----------
    index : ndarray of int64, shape (..., heads, n_queries, k)
        -1 where a row sees fewer keys.
    weight : ndarray, shape (..., heads, n_queries, k)
        0 where a row sees fewer keys.
    """

    index: NDArray[np.int64]  # type: ignore[assignment]  # tuples have a method of this name
    weight: NDArray[Any]

    def recall(self, selected: ArrayLike, *, block_size: int | None = None) -> NDArray[np.float64]:
        """The share of these keys in a selection: the recall of an indexer.

        Parameters
        ----------
        selected, block_size
            As for :func:`attention_mass`.

        Returns
        -------
        ndarray of float64, shape (..., heads, n_queries)
            0 for a row without keys.

        Examples
        --------
        >>> import numpy as np, attnscale as at
        >>> q, k = np.zeros((2, 1, 4, 8))
        >>> at.top_keys(q, k, 2).recall([0, 3])  # of equal keys, 0 and 1 are the first
        array([[0.5, 0.5, 0.5, 0.5]])
        """
        index: Any = self.index
        if not is_tensor(index):
            return apply_at_home(lambda x: _recall(np.asarray(x), selected, block_size), index)  # type: ignore[no-any-return]
        selected = selected.cpu() if is_tensor(selected) else selected  # type: ignore[union-attr]
        found = apply_at_home(lambda x: _recall(x, selected, block_size), index.cpu())
        return found.to(index.device)  # type: ignore[no-any-return]


@hinted
@takes(AttentionEntropyOptions)
def top_keys(query: ArrayLike, key: ArrayLike, k: int, **options: Unpack[AttentionEntropyOptions]) -> TopKeys:
    """The k keys that each row gives most weight to, with their weights.

    Parameters
    ----------
    query, key : array_like
        As for :func:`attention`.
    k : int
        At least 1; may exceed the number of keys.
    {names}
        As for :func:`attention`.

    Returns
    -------
    TopKeys
        ``index, weight``, each (..., heads, n_queries, k), by decreasing score; of equal scores, the lower
        key comes first. Where a row sees fewer keys, and in a row that is NaN, the index is -1. The weights
        are float64 for float64 input, else float32; those of a NaN row are NaN.

    Raises
    ------
    ValueError
        If k is less than 1.

    Notes
    -----
    One pass streams the scores in float64 and keeps a list of at most 2 k + 256 keys a row; a softmax weight
    is the row's largest weight, from one more pass, times exp(score - largest score). ``weight.sum(-1)`` is
    the most that k keys can keep: the bound of :func:`attention_mass` for every selection.

    Examples
    --------
    >>> import numpy as np, attnscale as at
    >>> q, k = np.ones((1, 2, 1)), np.log([[[1.0], [5.0], [2.0]]])  # the scores are ln 1, ln 5 and ln 2
    >>> index, weight = at.top_keys(q, k, 2, is_causal=True, scale=1.0)
    >>> index
    array([[[ 0, -1],
            [ 1,  0]]])
    >>> weight.round(3)
    array([[[1.   , 0.   ],
            [0.833, 0.167]]])
    """
    k = positive_int("k", k)
    call = Call(query, key, None, options).read()
    normalizer = normalizer_of(options)
    rule = None if normalizer is None else normalizer._rule(call)
    index, score = call.core.top_keys(call.scale, k)
    with np.errstate(invalid="ignore"):  # rows without keys
        score -= score[..., :1].copy()
    weight = np.exp(score, out=score).astype(type_of_sums(call), copy=False)
    weight[index < 0] = 0
    if rule is None or rule.kind == "softmax":
        (largest,) = call.core.attend(None, None, ("max_weight",), call.scale, rule)
        weight *= largest[..., None]
    else:
        _weigh(call, rule, index, weight)
    index[np.isnan(weight)] = -1
    call.check_rows(weight)
    axes = (..., "queries", "rank")
    return TopKeys(call.rows(index, "index", axes), call.rows(weight, "weight", axes))


# ---- selections --------------------------------------------------------------------------------------


def read_selected(
    selected: Any, row_shape: tuple[int, ...], n_keys: int, block_size: int | None
) -> NDArray[np.int64]:
    """Indices of keys or blocks, in a shape that broadcasts to (..., heads, n_queries, k)."""
    array = as_array("selected", selected)
    if array.dtype == bool:
        hint = "np.nonzero(mask)[0] are those of a row; rows with fewer keys end in -1"
        raise refusal(TypeError, "selected", f"must be indices of keys, got a mask of bool: {hint}")
    given = read_integers("selected", array).astype(np.int64)
    if given.ndim == 0:
        raise refusal(ValueError, "selected", "must have an axis of indices, got a number")
    size = 1 if block_size is None else positive_int("block_size", block_size)
    n_units, unit = -(-n_keys // size), "keys" if block_size is None else f"blocks of {size} keys"
    if given.size and given.max() >= n_units:
        raise refusal(ValueError, "selected", f"must be indices of {n_units} {unit}, got {given.max()}")
    k = given.shape[-1]
    if given.ndim > max(len(row_shape), 1):
        return fit_to("selected", given, (*row_shape, k), "(..., heads, n_queries, k)")
    given = given[None] if given.ndim == 1 else given
    fitted = fit_to("selected", given, (*row_shape[:-2], row_shape[-1], k), "(..., n_queries, k)")
    return fitted if len(row_shape) == 1 else fitted[..., None, :, :]


def members(wanted: NDArray[np.int64], cut: slice, n_keys: int, block_size: int | None) -> NDArray[np.bool_]:
    """Whether some rows select a key, (..., rows, n_keys)."""
    part = np.maximum(cut_rows(wanted, cut, -2), -1)
    n_units = n_keys if block_size is None else -(-n_keys // block_size)
    found = np.zeros((*part.shape[:-1], n_units + 1), bool)
    np.put_along_axis(found, part, True, -1)  # the last position collects absent keys
    found = found[..., :n_units]
    return found if block_size is None else found.repeat(block_size, -1)[..., :n_keys]


def _recall(index: NDArray[np.int64], selected: Any, block_size: int | None) -> NDArray[np.float64]:
    """The share of the indices of each row in a selection."""
    size = 1 if block_size is None else positive_int("block_size", block_size)
    n_keys = int(index.max(initial=0)) + 1  # the strongest keys have no larger index
    given = read_integers("selected", selected)
    given = np.where(given <= (n_keys - 1) // size, given, -1)
    wanted = read_selected(given, index.shape[:-1], n_keys, block_size)
    hits = np.zeros(index.shape[:-1])
    for cut in blocks_of_rows(hits.shape, n_keys):
        part = index[..., cut, :]
        chosen = members(wanted, cut, n_keys, block_size)
        chosen = np.broadcast_to(chosen, (*part.shape[:-1], n_keys))
        hits[..., cut] = (np.take_along_axis(chosen, np.maximum(part, 0), -1) & (part >= 0)).sum(-1)
    return np.asarray(hits / np.maximum((index >= 0).sum(-1), 1))


# ---- the strongest keys ------------------------------------------------------------------------------


def type_of_sums(call: Call) -> type[np.floating[Any]]:
    """The type of sums of weights: float64 for float64 input, else float32."""
    return np.float64 if call.inputs.dtype == np.float64 else np.float32


def _weigh(call: Call, rule: Rule | None, index: NDArray[np.int64], weight: NDArray[Any]) -> None:
    """Fill in the weights of the keys of each row, under any normalizer."""
    n_keys, k = call.inputs.key.shape[-2], index.shape[-1]
    for cut in blocks_of_rows(call.row_shape, n_keys * k):
        part = index[..., cut, :]
        value = np.zeros((*part.shape[:-1], n_keys + 1, k), weight.dtype)
        np.put_along_axis(value, part[..., None, :], 1, -2)
        weight[..., cut, :] = attend_alone(call, rule, cut, value[..., :n_keys, :])
