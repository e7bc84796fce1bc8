# SPDX-License-Identifier: BSD-3-Clause
"""Weight of a selection of keys, strongest keys of each row and kinds of heads, on any device."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Unpack

import torch
from torch import Tensor
from torch.nn.functional import pad

from .._base.checks import positive_int
from .._base.hints import hinted
from .._call.options import takes
from .._call.plan import Plan
from ..exact.heads import HeadKinds, Places
from ..exact.selection import TopKeys, read_selected
from ._base.arguments import Arguments, TensorSelectionOptions, read_call
from ._base.device import backend_of, without_autocast
from ._base.tensors import check_one_device, joined, on_cpu, unread_rows
from ._plain.blocks import blocks_of
from ._plain.scores import key_count, rows_of

#: Options that place queries among the keys.
_PLACING = ("is_causal", "causal", "window", "key_lengths", "document_ids", "enable_gqa", "layout")


@hinted
@takes(TensorSelectionOptions)
def attention_mass(
    query: Tensor,
    key: Tensor,
    selected: Any,
    *,
    block_size: int | None = None,
    **options: Unpack[TensorSelectionOptions],
) -> Tensor:
    """:func:`attnscale.attention_mass` on tensors: the share of each row's weight on the selected keys.

    Parameters
    ----------
    query, key : Tensor
        As for :func:`attention`.
    selected : Tensor or array_like of int
        Indices of keys, (..., heads, n_queries, k), (..., n_queries, k) or (k,), as for
        :func:`attnscale.attention_mass`.
    block_size : int, optional
        If given, indices are those of blocks of this many keys.
    {names}
        As for :func:`attention`; ``backend`` is checked, and plain operations of PyTorch compute the result.

    Returns
    -------
    Tensor, shape (..., heads, n_queries)
        float64 for float64 tensors, else float32; differentiable in all but selected.

    Notes
    -----
    Rows are computed in blocks, and again in the backward pass: memory grows with the queries of a block
    times all keys.

    Examples
    --------
    A loss that keeps attention within the last four keys:

    >>> import attnscale as at, torch
    >>> q, k = torch.randn(2, 8, 32, 16, generator=torch.Generator().manual_seed(0)).requires_grad_()
    >>> near = torch.arange(32)[:, None] - torch.arange(4)  # negative: no key
    >>> loss = -at.torch.attention_mass(q, k, near, is_causal=True).log().mean()
    >>> loss.backward()
    """
    call = _read(query, key, options)
    n_keys, rows = key_count(call), call.row_extents()[0]
    wanted = torch.from_numpy(read_selected(on_cpu(selected), rows, n_keys, block_size)).to(query.device)
    with without_autocast(query.device):
        block = blocks_of(call)

        def mass(start: int, stop: int) -> tuple[Tensor]:
            member = _members(rows_of(wanted, start, stop), n_keys, block_size)
            return ((block.weights(start, stop)[1] * member).sum(-1),)

        return joined(block.scores.in_blocks(mass)[0], -1)


@hinted
@takes(TensorSelectionOptions)
def top_keys(query: Tensor, key: Tensor, k: int, **options: Unpack[TensorSelectionOptions]) -> TopKeys:
    """:func:`attnscale.top_keys` on tensors: the strongest keys of each row and their weights.

    Parameters
    ----------
    query, key : Tensor
        As for :func:`attention`.
    k : int
        At least 1; may exceed the number of keys.
    {names}
        As for :func:`attention_mass`.

    Returns
    -------
    attnscale.TopKeys
        ``index, weight``, each a tensor (..., heads, n_queries, k), the strongest first; the weight is
        differentiable.

    Raises
    ------
    TypeError, ValueError
        If k is not an integer of at least 1, and as :func:`attention_mass`.

    Examples
    --------
    >>> import attnscale as at, torch
    >>> q, k = torch.ones(1, 1, 1), torch.tensor([[[1.0], [5.0], [2.0]]]).log()
    >>> at.torch.top_keys(q, k, 2, scale=1.0)
    TopKeys(index=tensor([[[1, 2]]]), weight=tensor([[[0.6250, 0.2500]]]))
    """
    k = positive_int("k", k)
    call = _read(query, key, options)
    most = min(k, key_count(call))
    with without_autocast(query.device):
        block = blocks_of(call)

        def strongest(start: int, stop: int) -> tuple[Tensor, Tensor]:
            scores, weights = block.weights(start, stop)
            found = _largest(scores.detach(), most)
            there = scores.detach().gather(-1, found) > -math.inf  # not NaN, either
            there &= ~torch.isnan(weights.detach()).any(-1, keepdim=True)
            return found.where(there, -1), weights.gather(-1, found)

        index, weight = (joined(parts, -2) for parts in block.scores.in_blocks(strongest))
    return TopKeys(pad(index, (0, k - most), value=-1), pad(weight, (0, k - most)))


@hinted
@takes(TensorSelectionOptions)
def head_kinds(
    query: Tensor, key: Tensor, tokens: Any = None, **options: Unpack[TensorSelectionOptions]
) -> HeadKinds:
    """:func:`attnscale.head_kinds` on tensors: weight on the previous key, the first key, and so on.

    Parameters
    ----------
    query, key : Tensor
        As for :func:`attention`.
    tokens : Tensor or array_like of int, shape (..., n_keys), optional
        As for :func:`attnscale.head_kinds`.
    {names}
        As for :func:`attention_mass`.

    Returns
    -------
    attnscale.HeadKinds
        ``previous, itself, first, induction, distance``, each a tensor (..., heads, n_queries), and by
        ``per_head()`` (..., heads); differentiable in all but tokens. A row without such a key is NaN and has
        no gradient. Memory grows as in :func:`attention_mass`.

    Examples
    --------
    A loss that makes the first head attend to the previous token:

    >>> import attnscale as at, torch
    >>> q, k = torch.randn(2, 8, 32, 16, generator=torch.Generator().manual_seed(0)).requires_grad_()
    >>> loss = -at.torch.head_kinds(q, k, is_causal=True).per_head().previous[0].log()
    >>> loss.backward()
    """
    call = _read(query, key, options)
    device = query.device
    given = {name: on_cpu(x) for name, x in options.items() if name in _PLACING}
    shapes = [(tuple(x.shape), x.dtype) for x in (call.query, call.key)]
    places = Places.of(Plan.of(*unread_rows(*shapes), given), on_cpu(tokens))
    places = Places(*(None if x is None else torch.tensor(x, device=device) for x in places))
    key_index = torch.arange(key_count(call), device=device)
    with without_autocast(device):
        block = blocks_of(call)

        def rows(start: int, stop: int) -> tuple[Tensor, ...]:
            scores, weights = block.weights(start, stop)
            seen = scores.detach() != -math.inf  # NaN, too
            kinds, distance = places.of_rows(slice(start, stop), key_index)
            found = [(weights * kind).sum(-1).where((kind & seen).any(-1), math.nan) for kind in kinds]
            total, away = weights.sum(-1), (weights * distance).sum(-1)
            return *found, (away / total.where(total != 0, 1)).where(total != 0, math.nan)

        previous, itself, first, *more = (joined(parts, -1) for parts in block.scores.in_blocks(rows))
    induction = None if tokens is None else more[0]
    return HeadKinds(previous, itself, first, induction, more[-1])


def _read(query: Tensor, key: Tensor, options: Mapping[str, Any]) -> Arguments:
    """Read a call without values, whose weights PyTorch computes for every backend."""
    call = read_call(query, key, None, options)
    check_one_device(query.device, *call.tensors())
    backend_of(query.device, options.get("backend"))
    return call


def _members(part: Tensor, n_keys: int, block_size: int | None) -> Tensor:
    n_units = n_keys if block_size is None else -(-n_keys // block_size)
    found = torch.zeros(*part.shape[:-1], n_units + 1, dtype=torch.bool, device=part.device)
    found = found.scatter(-1, part.where(part >= 0, n_units), True)[..., :n_units]
    return found if block_size is None else found.repeat_interleave(block_size, -1)[..., :n_keys]


def _largest(scores: Tensor, k: int) -> Tensor:
    """Indices of the k largest of each row in order; ties go to the first ones."""
    found = scores.topk(k, -1).indices
    least = scores.gather(-1, found).sort(-1).values[..., :1]
    # Ties with the last of the k are chosen by chance: such rows are sorted.
    tied = ((scores >= least).sum(-1) > k) & (least > -math.inf).any(-1)
    if bool(tied.any()):
        found[tied] = scores[tied].sort(dim=-1, descending=True, stable=True).indices[..., :k]
    found = found.sort(-1).values
    order = scores.gather(-1, found).sort(dim=-1, descending=True, stable=True).indices
    return found.gather(-1, order)
