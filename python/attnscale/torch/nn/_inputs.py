# SPDX-License-Identifier: BSD-3-Clause
"""Inputs and masks of a module, checked and joined; nested tensors as padded ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from .._base.arguments import read_call
from .._base.tensors import shows
from .._plain.plan import plan_rows
from .._plain.scores import Visible


def check_inputs(
    query: Tensor, key: Tensor, value: Tensor, channels: tuple[int, int, int], *, batch_first: bool
) -> None:
    """Refuse inputs unless all are (n, channels) or all have a batch; `channels`: embed_dim, kdim, vdim."""
    given = (query, key, value)
    if query.dim() not in (2, 3) or any(x.dim() != query.dim() for x in given):
        axes = ", ".join(str(x.dim()) for x in given)
        raise ValueError(f"query, key and value must have 3 axes each, or 2 without a batch, got {axes}")
    for x, name, wide, count in zip(
        given, ("query", "key", "value"), ("embed_dim", "kdim", "vdim"), channels, strict=True
    ):
        if x.shape[-1] != count:
            raise ValueError(f"{name} must have {wide} = {count} channels, got shape {tuple(x.shape)}")
    batch = 0 if batch_first else 1
    if key.shape[:-1] != value.shape[:-1] or (query.dim() == 3 and query.shape[batch] != key.shape[batch]):
        raise ValueError(
            "key and value must have the same length, and all the same batch, got the shapes "
            f"{', '.join(str(tuple(x.shape)) for x in given)} with batch_first={batch_first}"
        )


def check_masks(attn_mask: Tensor | None, padding: Tensor | None, query: Tensor, key: Tensor) -> None:
    """Refuse masks that do not fit; arguments as for :func:`join_masks`."""
    for name, mask in (("attn_mask", attn_mask), ("key_padding_mask", padding)):
        if mask is not None and mask.dtype != torch.bool and not mask.is_floating_point():
            raise TypeError(f"{name} must be bool, True hides, or float, which is added, got {mask.dtype}")
    pairs = (query.shape[-2], key.shape[-2])
    every = (query.shape[:-2].numel(), *pairs)
    if attn_mask is not None and tuple(attn_mask.shape) not in (pairs, every):
        raise ValueError(
            f"attn_mask must have shape (n_queries, n_keys) = {pairs} or (batch * heads, n_queries, n_keys) "
            f"= {every}, got {tuple(attn_mask.shape)}"
        )
    of_keys = (*query.shape[:-3], key.shape[-2])
    if padding is not None and tuple(padding.shape) != of_keys:
        name = "(batch, n_keys)" if len(of_keys) == 2 else "(n_keys,)"
        raise ValueError(f"key_padding_mask must have shape {name} = {of_keys}, got {tuple(padding.shape)}")


def join_masks(attn_mask: Tensor | None, padding: Tensor | None, query: Tensor, key: Tensor) -> Tensor | None:
    """One mask, broadcastable to (batch, heads, n_queries, n_keys): bool, True is visible; or float, added.

    `attn_mask` is (n_queries, n_keys) or (batch * heads, n_queries, n_keys), `padding` (batch, n_keys) or
    (n_keys,). In both True hides a key, and numbers are added to the scores. Only the shapes of query and key
    are read; their heads are an axis.
    """
    if attn_mask is not None and attn_mask.dim() == 3:
        attn_mask = attn_mask.reshape(*query.shape[:-1], key.shape[-2])
    if padding is not None:
        padding = padding[..., None, None, :]
        padding = padding if query.dim() == 4 else padding[..., 0, :, :][None]
    masks = [mask for mask in (attn_mask, padding) if mask is not None]
    if not masks:
        return None
    if all(mask.dtype == torch.bool for mask in masks):
        seen = [~mask for mask in masks]
        return seen[0] if len(seen) == 1 else seen[0] & seen[1]
    if len(masks) == 1:
        return masks[0]
    added = [_added(mask, query.dtype) for mask in masks]
    return added[0] + added[1]


def _added(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """The mask as numbers; a hidden key is -inf in any type, also in the sum of two masks."""
    if mask.dtype != torch.bool:
        return hidden_by(mask, shows(mask))
    return hidden_by(torch.zeros_like(mask, dtype=dtype), ~mask)


def hidden_by(mask: Tensor | None, seen: Any) -> Any:
    """The mask with every invisible key hidden; None for either argument hides nothing."""
    if mask is None or seen is None:
        return seen if mask is None else mask
    return mask & seen if mask.dtype == torch.bool else mask.masked_fill(~seen, -torch.inf)


def visible_by_place(query: Tensor, key: Tensor, options: Mapping[str, Any]) -> Visible:
    """Keys that ``causal`` and ``window`` show to each query, in every head and batch entry."""
    head = (slice(1),) * (query.dim() - 2)
    of_place = {name: options[name] for name in ("is_causal", "causal", "window") if name in options}
    plan = plan_rows(read_call(query[head], key[head], None, of_place))
    return Visible(plan.begin, plan.end, None, key.shape[-2])


#: Function of padded query, key and value and the padding of the keys; returns output and weights.
Attend = Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor | None]]


def by_padding(
    attend: Attend, query: Tensor, key: Tensor, value: Tensor, **masks: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """Attend to nested tensors by padding: the output is nested like the query, weights are padded with 0."""
    _check_nested(query, key, value, **masks)
    n_queries, n_keys = _lengths(query), _lengths(key)
    padded = {id(x): torch.nested.to_padded_tensor(x, 0.0) for x in (query, key, value)}
    q, k, v = (padded[id(x)] for x in (query, key, value))
    output, weights = attend(q, k, v, _beyond(n_keys, k))
    if weights is not None:
        rows = _beyond(n_queries, q)[..., None]
        weights = weights.masked_fill(rows if weights.dim() == 3 else rows[:, None], 0.0)
    return _nest([row[:n] for row, n in zip(output, n_queries, strict=True)], query), weights


def _check_nested(query: Tensor, key: Tensor, value: Tensor, **masks: Tensor | None) -> None:
    flags = [x.is_nested for x in (query, key, value)]
    if not all(flags):
        raise ValueError(f"query, key and value must all be nested tensors, or none of them, got {flags}")
    if query.dim() != 3:
        raise ValueError(f"a nested query must have the axes (batch, n, embed_dim), got {query.dim()} axes")
    for name, mask in masks.items():
        if mask is not None:
            raise ValueError(
                f"{name} must be None for nested tensors, whose lengths hide padding, "
                f"got shape {tuple(mask.shape)}"
            )
    if _lengths(key) != _lengths(value) or query.size(0) != key.size(0):
        raise ValueError(
            "nested key and value must have the same lengths, and a sequence for each of the query, got "
            f"lengths {_lengths(query)}, {_lengths(key)} and {_lengths(value)}"
        )


def _lengths(nested: Tensor) -> list[int]:
    return [row.shape[0] for row in nested.unbind()]


def _beyond(lengths: list[int], padded: Tensor) -> Tensor:
    place = torch.arange(padded.shape[1], device=padded.device)
    return place >= torch.tensor(lengths, device=padded.device)[:, None]


def _nest(rows: list[Tensor], like: Tensor) -> Tensor:
    """The rows in the layout of a nested tensor; a jagged one keeps its offsets, so that sums work."""
    if like.layout == torch.jagged:
        return torch.nested.nested_tensor_from_jagged(torch.cat(rows), offsets=like.offsets())
    nested: Tensor = torch.nested.as_nested_tensor(rows)
    return nested
