# SPDX-License-Identifier: BSD-3-Clause
"""Divergence of the attention weights of one call from those of another, row by row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from .._base.checks import choose, errors_of
from .._base.hints import hinted
from .._call.arrays import LAYOUTS, laid_out
from .._call.call import Call
from .._call.distance import PRODUCTS
from .._call.measures import blocks_of_rows, rows_of_block
from .._call.options import AttentionDivergenceOptions, takes
from .._call.rows import shows
from .._call.scale import check_one_scale_a_row
from .._core import CoreCall

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from .._call.types import Scale

    Array = NDArray[np.float64]

__all__ = ["attention_divergence"]


@hinted
@takes(AttentionDivergenceOptions)
def attention_divergence(
    query: ArrayLike,
    key: ArrayLike,
    other_query: ArrayLike,
    other_key: ArrayLike,
    *,
    other_scale: Scale = None,
    other_attn_mask: ArrayLike | None = None,
    other_softcap: float | None = None,
    **options: Unpack[AttentionDivergenceOptions],
) -> NDArray[np.floating[Any]]:
    """KL(p || p') of every row, in nats: p are the weights of query and key, p' those of the other pair.

    Parameters
    ----------
    query, key : array_like
        As for :func:`attention`.
    other_query, other_key : array_like
        Query and key of p': as many queries and keys, any head_dim, and heads that broadcast against those of
        query, so one other head may serve all of them.
    other_scale, other_softcap
        Multiplier of other_query . other_key, as ``scale`` with the default 1/sqrt of the other head_dim,
        and soft-cap of the scores of p'.
    other_attn_mask : array_like of bool or float, optional
        The mask of p' in place of attn_mask.
    {names}
        As for :func:`attention`; scale and softcap are p's, the other options are shared. The layout, "bhsd"
        or "bshd", is that of all four arrays.

    Returns
    -------
    ndarray, shape (..., heads, n_queries)
        sum_j p_j ln(p_j / p'_j), at least 0. inf where p' hides a key that p sees; 0 for a query that sees no
        key under p; NaN where a visible score is not finite. float64 if an array is, else float32.

    Raises
    ------
    ValueError
        If the two attentions do not fit each other in shape.

    Notes
    -----
    KL = sum_j p_j s_j - lse - sum_j p_j s'_j + lse', with s the scores (arXiv 2606.20005). The mean of
    s' = scale' q' . k' under p is scale' q' . sum_j p_j k'_j: attention with the other keys as values, so no
    array of n_queries * n_keys is made. If the scores of p' are not such products (``other_softcap``, or a
    mask that adds numbers other than 0), blocks of both score matrices are computed in float64.

    The result is a difference of numbers of the size of ln n and of the scores, with the errors of the
    entropy, the lse' and the scores together: for scores of a few units about 1e-6 in float32 and 1e-14 in
    float64, the type to use for divergences below 1e-4. Rounding below 0 is cut off.

    Examples
    --------
    >>> import numpy as np, attnscale as at
    >>> rng = np.random.default_rng(0)
    >>> q, k, q2, k2 = rng.standard_normal((4, 2, 100, 16))
    >>> print(f"{at.attention_divergence(q, k, q2, k2, is_causal=True).mean():.2f} nats")
    0.90 nats
    >>> bool((at.attention_divergence(q, k, q, k, is_causal=True) < 1e-13).all())
    True
    """
    choose("layout", options.get("layout", "bhsd"), LAYOUTS)
    mask = options.get("attn_mask") if other_attn_mask is None else other_attn_mask
    theirs = {**options, "attn_mask": mask, "scale": other_scale, "softcap": other_softcap}
    with errors_of("other_query and other_key"):
        other = Call(other_query, other_key, None, theirs)
    own = Call(query, key, None, options)
    rows = _row_shape(own, other)
    own = _spread(own, rows, other.inputs.key)
    if any(theirs.get(name) is not None for name in ("attn_mask", "key_lengths", "document_ids")):
        other = _spread(other, rows, None)
    _see(own)
    with errors_of("other_attn_mask"):
        _see(other)
    own.score()
    with errors_of("other_scale and other_softcap"):
        other.score()
    for law in (own.law, other.law):
        if law is not None:
            check_one_scale_a_row(law)
    with np.errstate(all="ignore"):  # rows show infinities and NaN
        found = _by_values(own, other) if _is_linear(other) else _by_blocks(own, other)
        if other_attn_mask is not None:
            found = np.where(_hides(own, other), np.inf, found)
        found = np.maximum(found, 0)
    wide = np.float64 in (own.inputs.dtype, other.inputs.dtype)
    return found.astype(np.float64 if wide else np.float32)


# ---- the two calls --------------------------------------------------------------------------------


def _row_shape(own: Call, other: Call) -> tuple[int, ...]:
    """(..., heads, n_queries) of the result."""
    for name, plural in (("query", "queries"), ("key", "keys")):
        here, there = (getattr(call.inputs, name).shape[-2] for call in (own, other))
        if here != there:
            raise ValueError(f"other_{name} must have as many {plural} as {name}, got {there} and {here}")
    try:
        return np.broadcast_shapes(own.row_shape, other.row_shape)
    except ValueError:
        raise ValueError(
            "the batch axes and heads of other_query and other_key must broadcast against those of query "
            f"and key, got {other.inputs.leading} and {own.inputs.leading}"
        ) from None


def _spread(call: Call, rows: tuple[int, ...], value: NDArray[Any] | None) -> Call:
    """The call with a query for each row of the result, and the value."""
    query, key, *_ = call.given
    query = np.broadcast_to(query, (*rows, query.shape[-1]))
    if value is not None:
        value = laid_out(value if value.dtype.itemsize > 2 else value.astype(np.float32), call.layout)
    return Call(laid_out(query, call.layout), laid_out(key, call.layout), value, call.options)


def _see(call: Call) -> None:
    """Find the visible keys of each query; a mask that adds only 0 becomes boolean."""
    call.see()
    if call.mask is not None and call.mask.dtype != np.bool_:
        shown = shows(call.mask)
        if (~shown | (call.mask == 0)).all():
            call.mask = shown


def _is_linear(call: Call) -> bool:
    """Whether scores are scaled products at the visible keys."""
    return call.form is PRODUCTS and (call.mask is None or call.mask.dtype == np.bool_)


def _hides(own: Call, other: Call) -> NDArray[np.bool_]:
    """Whether p' hides a key that p sees; broadcasts to (..., heads, n_queries)."""
    visible = own.visible_keys()
    masks = [shows(call.mask) for call in (own, other) if call.mask is not None]
    mask = masks[0] if len(masks) == 1 else masks[0] & masks[1]
    seen = own.intervals
    both = CoreCall(own.inputs.query, own.inputs.key, mask, seen.begin, seen.end, None, False, own.threads)
    return both.count() < visible


# ---- the divergence -------------------------------------------------------------------------------


def _by_values(own: Call, other: Call) -> Array:
    """Divergence from one pass: the other keys serve as values."""
    output, rows = own.attend(None, ("lse", "entropy"))
    assert output is not None
    (theirs,) = other.core.attend(None, None, ("lse",), other.scale, None)
    mean_key = laid_out(output, own.layout).astype(np.float64)
    mean_score = other.scale * np.einsum("...c,...c->...", other.inputs.query.astype(np.float64), mean_key)
    found = theirs.astype(np.float64) - mean_score - rows["entropy"]
    return np.where(np.isneginf(rows["lse"]), 0, found)


def _by_blocks(own: Call, other: Call) -> Array:
    """Divergence from blocks of both score matrices."""
    found = np.zeros(own.row_shape)
    for cut in blocks_of_rows(own.row_shape, own.inputs.key.shape[-2]):
        (score, seen), (theirs, shown) = (
            rows_of_block(call.inputs, call.intervals, call.mask, call.form, cut, call.scale)
            for call in (own, other)
        )
        found[..., cut] = _of_scores(score, seen, theirs, shown)
    return found


def _of_scores(score: Array, seen: NDArray[np.bool_], other: Array, shown: NDArray[np.bool_]) -> Array:
    """Divergence of each row of scores; `seen` and `shown` are the visible keys of p and p'."""
    log_p, log_other = _log_softmax(score, seen), _log_softmax(other, shown)
    terms = np.where(seen & shown, np.exp(log_p) * (log_p - log_other), 0).sum(-1)
    return np.where((seen & ~shown).any(-1), np.inf, terms)


def _log_softmax(score: Array, seen: NDArray[np.bool_]) -> Array:
    """Log-softmax: -inf at hidden keys; a row with a visible score that is not finite is NaN."""
    broken = (seen & ~np.isfinite(score)).any(-1, keepdims=True)
    score = np.where(seen, score, -np.inf)
    top = score.max(-1, keepdims=True, initial=-np.inf)
    below = score - np.where(np.isneginf(top), 0, top)
    log_p = below - np.log(np.exp(below).sum(-1, keepdims=True))
    return np.where(broken, np.nan, log_p)
