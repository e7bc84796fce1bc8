# SPDX-License-Identifier: BSD-3-Clause
"""Nested tensors, batches of sequences of different lengths, as padded tensors and back."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

#: A function of padded query, key and value and the padding of the keys that gives output and weights.
Attend = Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor | None]]


def by_padding(
    attend: Attend, query: Tensor, key: Tensor, value: Tensor, **masks: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """Attend to nested tensors by padding: the output is nested as the query, weights are padded with 0."""
    _check(query, key, value, **masks)
    n_queries, n_keys = _lengths(query), _lengths(key)
    padded = {id(x): torch.nested.to_padded_tensor(x, 0.0) for x in (query, key, value)}
    q, k, v = (padded[id(x)] for x in (query, key, value))
    output, weights = attend(q, k, v, _beyond(n_keys, k))
    if weights is not None:
        rows = _beyond(n_queries, q)[..., None]
        weights = weights.masked_fill(rows if weights.dim() == 3 else rows[:, None], 0.0)
    return _nest([row[:n] for row, n in zip(output, n_queries, strict=True)], query), weights


def _check(query: Tensor, key: Tensor, value: Tensor, **masks: Tensor | None) -> None:
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
    """A mask that is True at padding, (batch, longest)."""
    place = torch.arange(padded.shape[1], device=padded.device)
    return place >= torch.tensor(lengths, device=padded.device)[:, None]


def _nest(rows: list[Tensor], like: Tensor) -> Tensor:
    """The rows in the layout of a nested tensor.

    A jagged layout gets the very same offsets, which sums of both tensors need.
    """
    if like.layout == torch.jagged:
        return torch.nested.nested_tensor_from_jagged(torch.cat(rows), offsets=like.offsets())
    nested: Tensor = torch.nested.as_nested_tensor(rows)
    return nested
