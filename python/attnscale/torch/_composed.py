# SPDX-License-Identifier: BSD-3-Clause
"""Functions composed of attention on tensors: relay nodes, difference and divergence of two maps."""

from __future__ import annotations

import math
from typing import Any, Unpack

import torch
from torch import Tensor

from .._base.checks import errors_of, shown
from .._base.statistics import AttentionStatistics
from .._call.arrays import shape_in
from .._call.options import check_known, takes
from ..laws import Law
from ._base.arguments import TensorDivergenceOptions, read_call
from ._base.device import backend_of, without_autocast
from ._base.learned import Learned
from ._base.private import is_traced
from ._base.tensors import (
    autocast,
    check_tensors,
    common_type,
    joined,
    row_extents,
    shows,
    swap_heads,
    wide_type,
)
from ._functional import attention, attention_statistics
from ._plain.blocks import scores_of
from ._plain.scores import Scores
from ._plain.sums import log_softmax


def relay_attention(
    x: Tensor,
    centres: Tensor,
    value: Tensor | None = None,
    *,
    num_threads: int | None = None,
    backend: str | None = None,
) -> AttentionStatistics:
    """:func:`attnscale.variants.relay_attention` on tensors, with gradients.

    Parameters
    ----------
    x : Tensor, shape (..., n, dim)
        The sequence. All tensors are on one device and may require grad.
    centres : Tensor, shape (..., nodes, dim)
        Queries of the nodes; leading axes broadcast.
    value : Tensor, shape (..., n, value_dim), optional
        Values to average; None: x itself, which then gets the gradients of both roles.
    num_threads, backend
        As for :func:`attention`.

    Returns
    -------
    AttentionStatistics
        ``output`` holds the nodes, (..., nodes, value_dim); ``lse``, ``entropy`` and ``mean_score`` belong to
        the weights of each node over the sequence.

    Examples
    --------
    >>> import attnscale as at, torch
    >>> x, centres = torch.ones(100, 8), torch.zeros(4, 8, requires_grad=True)
    >>> nodes = at.torch.relay_attention(x, centres)
    >>> nodes.output.shape
    torch.Size([4, 8])
    >>> nodes.entropy.sum().backward()
    """
    names = ("lse", "entropy", "mean_score")
    check_tensors(x=x, centres=centres)
    given = x if value is None else value
    options: dict[str, Any] = {"scale": 1.0, "num_threads": num_threads, "backend": backend}
    return attention_statistics(centres, x, given, statistics=names, **options)


def differential_attention(
    query1: Tensor,
    key1: Tensor,
    query2: Tensor,
    key2: Tensor,
    value: Tensor,
    *,
    lam: float | Tensor,
    **options: Any,
) -> Tensor:
    """:func:`attnscale.variants.differential_attention` on tensors, with gradients.

    Parameters
    ----------
    query1, query2 : Tensor, shape (..., heads, n_queries, head_dim)
    key1, key2 : Tensor, shape (..., kv_heads, n_keys, head_dim)
    value : Tensor, shape (..., kv_heads, n_keys, value_dim)
        All tensors are on one device and may require grad. head_dim may differ between the two maps.
    lam : float or Tensor
        Factor of the second map; may require grad. It broadcasts to (..., heads, n_queries); one number per
        head has the shape (heads, 1).
    **options
        Options of :func:`attention` for both maps; their tensors may require grad.

    Returns
    -------
    Tensor, shape (..., heads, n_queries, value_dim)
        The difference, taken in float32, or in float64 for float64 tensors.

    Raises
    ------
    TypeError, ValueError
        If lam is neither a number nor a tensor or does not fit, if the maps differ in shape, or if
        :func:`attention` refuses a map.

    Examples
    --------
    >>> import attnscale as at, torch
    >>> q1, q2, k1, k2 = torch.randn(4, 2, 10, 8, generator=torch.Generator().manual_seed(0))
    >>> lam = torch.full((2, 1), 0.8, requires_grad=True)  # one a head
    >>> value = torch.ones(2, 10, 1)
    >>> at.torch.differential_attention(q1, k1, q2, k2, value, lam=lam).sum().backward()
    >>> lam.grad.round()  # every row of the second map sums to 1
    tensor([[-10.],
            [-10.]])
    """
    if not isinstance(lam, (int, float, Tensor)) or isinstance(lam, bool):
        raise TypeError(f"lam must be a number or a tensor, got {shown(lam)}")
    check_tensors(query1=query1, key1=key1, query2=query2, key2=key2, value=value)
    tensors = autocast(query1, key1, query2, key2, value)
    query1, key1, query2, key2, value = tensors
    narrow = common_type(x.dtype for x in tensors)
    wide = value.to(wide_type((narrow,)))  # 16-bit outputs would be rounded before the difference
    layout = options.get("layout", "bhsd")
    with without_autocast(value.device):
        maps = ((query1, key1), (query2, key2))
        first, second = (swap_heads(attention(q, k, wide, **options), layout) for q, k in maps)
    if first.shape != second.shape:
        raise ValueError(
            "both maps must have the same heads and queries, got outputs of the shapes "
            f"{tuple(first.shape)} and {tuple(second.shape)}"
        )
    share = _share(lam, first) if isinstance(lam, Tensor) else lam
    return swap_heads((first - share * second).to(narrow), layout)


def _share(lam: Tensor, output: Tensor) -> Tensor:
    """The factor lam in a shape that multiplies an output; it must broadcast to the rows."""
    rows = output.shape[:-1]
    last = rows[max(len(rows) - lam.ndim, 0) :]
    if lam.ndim > len(rows) or any(n not in (1, m) for n, m in zip(lam.shape, last, strict=True)):
        raise ValueError(
            f"lam must broadcast to (..., heads, n_queries) = {tuple(rows)}, got shape {tuple(lam.shape)}"
        )
    return lam.to(output.dtype)[..., None]


_OF_SCORES = frozenset(TensorDivergenceOptions.__annotations__)
#: Options that may differ between the two calls, and the backend.
_OF_ONE = ("scale", "attn_mask", "softcap", "backend")


@takes(TensorDivergenceOptions)
def attention_divergence(
    query: Tensor,
    key: Tensor,
    other_query: Tensor,
    other_key: Tensor,
    *,
    other_scale: float | Tensor | str | Law | Learned | None = None,
    other_attn_mask: Tensor | None = None,
    other_softcap: float | None = None,
    **options: Unpack[TensorDivergenceOptions],
) -> Tensor:
    """:func:`attnscale.attention_divergence` on tensors: KL(p || p') of every row, with gradients.

    Parameters
    ----------
    query, key, other_query, other_key : Tensor
        As for :func:`attnscale.attention_divergence`; all of them and the scales may require grad. They keep
        their own types, also under ``torch.autocast``.
    other_scale, other_attn_mask, other_softcap, {names}
        As there; scales and backend as for :func:`attention`, without Triton.

    Returns
    -------
    Tensor, shape (..., heads, n_queries)
        inf, without a gradient, where p' hides a key that p sees; 0 for a query that sees no key under p.

    Raises
    ------
    TypeError, ValueError, MemoryError, RuntimeError
        As :func:`attention`, and if the two attentions do not fit each other.

    Notes
    -----
    With H the entropy of p, KL = lse' - scale' q' . sum_j p_j k'_j - H: attention with the other keys as
    values, with the backward pass of :func:`attention_statistics`. The gradient of s'_j is p'_j - p_j. To
    train p' alone, detach query and key. If the scores of p' are not scaled products (``other_softcap``, or a
    mask that adds numbers other than 0), both matrices of scores are written out block by block.

    Examples
    --------
    An indexer of one small head learns the weights of eight:

    >>> import attnscale as at, torch
    >>> rng = torch.Generator().manual_seed(0)
    >>> q, k = torch.randn(2, 8, 100, 64, generator=rng)  # each (heads, n, head_dim)
    >>> index_q, index_k = torch.randn(2, 1, 100, 16, generator=rng).requires_grad_()
    >>> loss = at.torch.attention_divergence(q, k, index_q, index_k, is_causal=True).mean()
    >>> loss.backward()
    """
    if any(option not in _OF_SCORES for option in options):  # the compiler of PyTorch reads no signature
        check_known(attention_divergence, options)
    layout, backend = options.get("layout", "bhsd"), options.get("backend")
    masks: dict[str, Any] = {name: x for name, x in options.items() if name not in _OF_ONE}
    check_tensors(query=query, key=key, other_query=other_query, other_key=other_key)
    rows = _row_shape(query, key, other_query, other_key, masks)
    query = _spread(query, rows, layout)
    attn_mask, lengths, documents = map(options.get, ("attn_mask", "key_lengths", "document_ids"))
    if not (attn_mask is other_attn_mask is lengths is documents is None):
        other_query = _spread(other_query, rows, layout)
    own_mask = _plain(attn_mask)
    own = {**masks, "scale": options.get("scale"), "attn_mask": own_mask, "softcap": options.get("softcap")}
    their_mask = own_mask if other_attn_mask is None else _plain(other_attn_mask)
    theirs = {**masks, "scale": other_scale, "attn_mask": their_mask, "softcap": other_softcap}
    with torch.autocast(query.device.type, enabled=False):
        with errors_of("other_query and other_key"):
            scores = scores_of(read_call(other_query, other_key, None, theirs))
        if other_softcap is None and (their_mask is None or their_mask.dtype == torch.bool):
            lse = attention_statistics(
                other_query, other_key, statistics="lse", **theirs, backend=backend
            ).lse
            value = other_key.to(scores.key.dtype)  # the output needs the digits of the arithmetic
            rows_of_own = attention_statistics(query, key, value, **own, backend=backend)
            found = _from_values(rows_of_own, scores, lse, layout)
        else:
            backend_of(query.device, backend)  # the kernels in Triton do not write out scores
            found = _from_blocks(scores_of(read_call(query, key, None, own)), scores)
        if other_attn_mask is not None:
            found = found.masked_fill(_hides(query, key, own_mask, their_mask, masks), math.inf)
    # Results below 0 come from rounding and become 0; the gradient stays.
    return found - found.detach().clamp(max=0)


# ---- the two calls --------------------------------------------------------------------------------


def _row_shape(
    query: Tensor, key: Tensor, other_query: Tensor, other_key: Tensor, masks: dict[str, Any]
) -> tuple[int, ...]:
    layout, enable_gqa = masks.get("layout", "bhsd"), masks.get("enable_gqa", False)
    for one, many, here, there in (("query", "queries", query, other_query), ("key", "keys", key, other_key)):
        n, other_n = (shape_in(layout, x.shape)[-2] for x in (here, there))
        if n != other_n:
            raise ValueError(f"other_{one} must have as many {many} as {one}, got {other_n} and {n}")
    try:
        found = [
            row_extents(pair, layout, enable_gqa=enable_gqa)[0]
            for pair in ((query, key), (other_query, other_key))
        ]
        return tuple(torch.broadcast_shapes(*found))
    except RuntimeError:
        raise ValueError(
            "the batch axes and heads of query, key, other_query and other_key must broadcast, got shapes "
            + ", ".join(str(tuple(x.shape)) for x in (query, key, other_query, other_key))
        ) from None


def _spread(query: Tensor, rows: tuple[int, ...], layout: str) -> Tensor:
    return query.expand(shape_in(layout, (*rows, query.shape[-1])))


def _plain(mask: Tensor | None) -> Tensor | None:
    """The mask; a mask of 0 and hidden keys that is not a parameter becomes boolean."""
    if mask is None or mask.dtype == torch.bool or mask.requires_grad or is_traced() or mask.is_meta:
        return mask
    shown = shows(mask)
    return shown if bool((~shown | (mask == 0)).all()) else mask


def _hides(
    query: Tensor, key: Tensor, mask: Tensor | None, other_mask: Tensor | None, masks: dict[str, Any]
) -> Tensor:
    """True where p' hides a key that p sees; the keys are counted on one channel of zeros."""
    shown = [shows(x) for x in (mask, other_mask) if x is not None]
    both = shown[0] if len(shown) == 1 else shown[0] & shown[1]
    zeros = [torch.zeros_like(x[..., :1]) for x in (query, key)]
    own, common = (
        attention_statistics(*zeros, statistics="n_visible", scale=1.0, attn_mask=x, **masks).n_visible
        for x in (mask, both)
    )
    return common < own


# ---- the divergence -------------------------------------------------------------------------------


def _from_values(own: AttentionStatistics, other: Scores, lse: Tensor, layout: str) -> Tensor:
    """The divergence from rows of p with the other keys as values, and from the query and lse of p'."""
    divergence = lse - (other.query * swap_heads(own.output, layout)).sum(-1) - own.entropy
    return divergence.masked_fill(torch.isneginf(own.lse), 0.0)


def _from_blocks(scores: Scores, other: Scores) -> Tensor:
    """The divergence from blocks of both matrices of scores, computed again in the backward pass."""

    def rows(start: int, stop: int) -> tuple[Tensor]:
        log_p, log_other = (_log_softmax(*each.of_rows(start, stop)) for each in (scores, other))
        hidden = torch.isneginf(log_p.detach()) | torch.isneginf(log_other.detach())
        differences = log_p.masked_fill(hidden, 0.0) - log_other.masked_fill(hidden, 0.0)
        return ((log_p.exp() * differences).sum(-1),)

    return joined(scores.in_blocks(rows)[0], -1)


def _log_softmax(scores: Tensor, seen: Tensor | None) -> Tensor:
    if seen is None:
        return log_softmax(scores)
    empty = ~seen.any(-1, keepdim=True)
    return log_softmax(scores.masked_fill(empty, 0.0)).masked_fill(~seen, -math.inf)
