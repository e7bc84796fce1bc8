# SPDX-License-Identifier: BSD-3-Clause
"""Weights of each row on the previous word, the first word, and the words that followed its word before."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

import numpy as np

from .._base.checks import fit_to
from .._base.hints import hinted
from .._call.call import Call
from .._call.homes import apply_at_home, is_tensor
from .._call.measures import blocks_of_rows, seen_in_block
from .._call.options import AttentionEntropyOptions, takes
from .._call.plan import Plan
from .._call.rows import read_integers
from .._call.weights import normalizer_of
from .alone import attend_alone
from .selection import type_of_sums

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

__all__ = ["HeadKinds", "head_kinds"]


class HeadKinds(NamedTuple):
    """Result of :func:`head_kinds`: arrays (..., heads, n_queries), or (..., heads) after :meth:`per_head`.

    Attributes
    ----------
    previous : ndarray
        Weight on the key before the query's own.
    itself : ndarray
        Weight on the query's own key.
    first : ndarray
        Weight on the first key of the sequence, or of the query's document.
    induction : ndarray or None
        Weight on the keys that follow an earlier occurrence of the query's token; None without tokens.
    distance : ndarray
        Mean distance in keys, under the weights.
    """

    previous: NDArray[Any]
    itself: NDArray[Any]
    first: NDArray[Any]
    induction: NDArray[Any] | None
    distance: NDArray[Any]

    def per_head(self) -> HeadKinds:
        """Means over the queries that see such a key; NaN without such queries.

        Returns
        -------
        HeadKinds

        Examples
        --------
        >>> import numpy as np, attnscale as at
        >>> q, k = np.zeros((2, 1, 4, 8))
        >>> at.head_kinds(q, k, is_causal=True).per_head().previous.round(3)  # (1/2 + 1/3 + 1/4) / 3
        array([0.361])
        """
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Mean of empty slice", RuntimeWarning)
            means: list[Any] = [x if x is None else _mean(x) for x in self]
        return HeadKinds(*means)


@hinted
@takes(AttentionEntropyOptions)
def head_kinds(
    query: ArrayLike,
    key: ArrayLike,
    tokens: ArrayLike | None = None,
    **options: Unpack[AttentionEntropyOptions],
) -> HeadKinds:
    """Weights of each row on the previous key, its own, the first, and those that followed its token before.

    Parameters
    ----------
    query, key : array_like
        As for :func:`attention`.
    tokens : array_like of int, shape (..., n_keys), optional
        The token of each key; broadcasts to the batch axes. Without tokens, induction is None.
    {names}
        As for :func:`attention`. A query's own key is the one that ``causal`` aligns with it.

    Returns
    -------
    HeadKinds
        previous, itself, first, induction, distance, each (..., heads, n_queries); NaN where the row sees no
        such key, so means over rows omit it, and in a row that is NaN. float64 for float64 input, else
        float32.

    Raises
    ------
    ValueError
        If tokens are not integers of that shape.

    Notes
    -----
    The induction score is that of Olsson et al. 2022, "In-context learning and induction heads" (arXiv
    2209.11895): the weight on all keys j + 1, up to the query's own, after an earlier key j with the query's
    token. Heads that copy what followed a repeated token score near 1.

    The distance is sum_j w_j abs(i - j) / sum_j w_j, with i the query's own key. One pass computes all five,
    with values that mark the keys of each kind: memory does not grow with n_queries * n_keys.

    Examples
    --------
    >>> import numpy as np, attnscale as at
    >>> q, k = np.zeros((2, 1, 4, 8))  # zero scores: every visible key weighs the same
    >>> kinds = at.head_kinds(q, k, [7, 5, 7, 5], is_causal=True)
    >>> kinds.induction.round(2)  # the third token has been there: 5 followed it; and 7 followed 5
    array([[ nan,  nan, 0.33, 0.25]])
    >>> kinds.distance
    array([[0. , 0.5, 1. , 1.5]])
    """
    call = Call(query, key, None, options).read()
    place, n_kinds = Places.of(call, tokens), 3 if tokens is None else 4
    found = np.empty((*call.row_shape, n_kinds + 2), type_of_sums(call))
    for cut, kinds, sums in _sums(call, place, n_kinds + 2, lambda kinds, distance: [*kinds, True, distance]):
        found[..., cut, :] = sums
        seen = seen_in_block(call.extents, call.intervals, call.mask, cut)
        for i, kind in enumerate(kinds):
            np.copyto(found[..., cut, i], np.nan, where=~(kind & seen).any(-1))
    call.check_rows(found[..., -1])
    previous, itself, first, *induction, total, distances = np.moveaxis(found, -1, 0)
    with np.errstate(invalid="ignore"):
        rows: list[Any] = [previous, itself, first, *(induction or [None]), distances / total]
    named = zip(HeadKinds._fields, rows, strict=True)
    results: list[Any] = [x if x is None else call.rows(x, name) for name, x in named]
    return HeadKinds(*results)


def weight_by_distance(call: Call) -> NDArray[np.float64]:
    """Weights of each head, summed by distance 0, 1, 2-3, 4-7, ..., of a read call: (..., heads, bins)."""
    n_bins = (max(call.row_shape[-1], call.inputs.key.shape[-2], 1) - 1).bit_length() + 1
    found = np.zeros((*call.row_shape[:-1], n_bins))

    def in_bins(_: Any, distance: Any) -> list[Any]:
        binary_digits = np.minimum(np.frexp(distance)[1], n_bins - 1)
        return [binary_digits == i for i in range(n_bins)]

    for _, _, sums in _sums(call, Places.of(call, None), n_bins, in_bins):
        found += sums.sum(-2, dtype=np.float64)
    return found


def _sums(
    call: Call, place: Places, count: int, numbers: Callable[[list[Any], Any], Any]
) -> Iterator[tuple[slice, list[Any], NDArray[Any]]]:
    """Blocks of rows: their slice, kinds of their keys, and sums of weights times `count` numbers of keys."""
    normalizer = normalizer_of(call.options)
    rule = None if normalizer is None else normalizer._rule(call)
    key = np.arange(call.inputs.key.shape[-2])
    some = seen_in_block(call.extents, call.intervals, call.mask, slice(0, 1))
    lead = np.broadcast_shapes(place.of_rows(slice(0, 1), key)[0][-1].shape[:-2], some.shape[:-2])
    for cut in blocks_of_rows((*lead, call.row_shape[-1]), len(key) * count):
        kinds, distance = place.of_rows(cut, key)
        value = np.stack(np.broadcast_arrays(*numbers(kinds, distance)), -1, dtype=type_of_sums(call))
        yield cut, kinds, attend_alone(call, rule, cut, value)


def _mean(rows: Any) -> Any:
    """Means of rows, without NaN; those of a tensor have gradients."""
    if is_tensor(rows):
        return rows.nanmean(-1)
    return apply_at_home(lambda x: np.asarray(np.nanmean(x, axis=-1)), rows)


class Places(NamedTuple):
    """Positions of queries among the keys; arrays or tensors, each (..., heads, n_queries)."""

    own: Any  # the key that the query is aligned with
    first: Any  # the first key of its document
    known: Any  # whether a key stands at the query's position
    token: Any = None  # the token of that key
    before: Any = None  # the token before each key, (..., heads, 1, n_keys); arbitrary for the first

    @staticmethod
    def of(plan: Plan, tokens: Any) -> Places:
        """The positions in a call whose visible keys are known, with its tokens, which may be None."""
        own, origin = plan.intervals.aligned(), plan.intervals.origin
        n_keys = plan.extents.n_keys
        first = np.zeros(1, np.int64) if origin is None else origin
        places = Places(*np.broadcast_arrays(own, first, (own >= 0) & (own < n_keys)))
        if tokens is None:
            return places
        if plan.names is not None:
            tokens = plan.names.place_option("tokens", tokens, ("keys",))
        shape = (*plan.extents.leading[:-1], n_keys)
        of_keys = fit_to("tokens", read_integers("tokens", tokens), shape, "(..., n_keys)").astype(np.int64)
        if of_keys.ndim > 1:
            of_keys = of_keys[..., None, :]
        lead = np.broadcast_shapes(of_keys.shape[:-1], own.shape[:-1])
        padded = np.zeros((*lead, n_keys + 1), np.int64)
        padded[..., :n_keys] = of_keys
        index = np.broadcast_to(np.where(places.known, own, n_keys), (*lead, own.shape[-1]))
        before = np.roll(of_keys, 1, -1)[..., None, :]
        return places._replace(token=np.take_along_axis(padded, index, -1), before=before)

    def of_rows(self, cut: slice, key: Any) -> tuple[list[Any], Any]:
        """Masks of each kind of key for some rows, and distances; all broadcast to (..., rows, n_keys).

        The key is 0 ... n_keys - 1, an array or tensor like the positions.
        """
        own, first, known = (x[..., cut][..., None] for x in self[:3])
        kinds = [key == own - 1, key == own, key == first]
        if self.token is not None:
            same = self.before == self.token[..., cut][..., None]
            kinds.append(same & known & (key > first) & (key <= own))
        return kinds, abs(own - key)
