# SPDX-License-Identifier: BSD-3-Clause
"""Statistics of some rows of a call of attention, taken beside whatever computes the call."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .._functional import attention_statistics
from .._learned import Sink
from .interface import call_options

__all__ = ["some_rows"]


def some_rows(
    module: Any,
    query: Tensor,
    key: Tensor,
    attention_mask: Any,
    given: dict[str, Any],
    *,
    rows: int | None,
    statistics: tuple[str, ...],
) -> dict[str, Tensor]:
    """Statistics, (batch, heads, rows), of a call of a layer of transformers.

    Parameters
    ----------
    module, query, key, attention_mask
        As transformers gives them to its attention functions.
    given : dict
        The other arguments of the call.
    rows : int or None
        How many queries of the first text of the batch, evenly spread and with the last one; None: all
        queries of all texts.
    statistics : tuple of str
    """
    n_queries, n_keys = query.shape[2], key.shape[2]
    options = _options(module, query, key, attention_mask, given)
    if rows is not None:
        query, key = query[:1], key[:1]
        if rows < n_queries:
            index = torch.arange(1, rows + 1, device=query.device) * n_queries // rows - 1
            query, options = query[:, :, index], _of_rows(options, index, n_queries, n_keys)
        options = {name: _of_first_text(option) for name, option in options.items()}
    found = attention_statistics(query, key, statistics=statistics, **options)
    return {name: getattr(found, name) for name in statistics}


def _options(module: Any, query: Tensor, key: Tensor, mask: Any, given: dict[str, Any]) -> dict[str, Any]:
    """The options of the call; a mask of two axes, which flash attention has, is the padding alone."""
    if mask is not None and not isinstance(mask, Tensor):
        raise NotImplementedError(
            f"{type(module).__name__} has a mask of the kind {type(mask).__name__}, which cannot be read here"
        )
    if mask is None or mask.ndim != 2:
        return call_options(module, query, key, mask, **given)
    options = call_options(module, query, key, None, **given)
    return options | {"attn_mask": mask[:, None, None, -key.shape[2] :].bool()}


def _of_rows(options: dict[str, Any], index: Tensor, n_queries: int, n_keys: int) -> dict[str, Any]:
    """The options for some of the queries, whose places among the keys a mask then says."""
    found = dict(options)
    bottom = found.pop("causal", None) == "bottom_right"
    is_causal = found.pop("is_causal", False) or bottom
    left, right = found.pop("window", None) or (None, None)
    ahead = torch.arange(n_keys, device=index.device) - (index + (n_keys - n_queries) * bottom)[:, None]
    seen = torch.ones_like(ahead, dtype=torch.bool)
    if is_causal:
        seen &= ahead <= 0
    if left is not None:
        seen &= ahead >= -left
    if right is not None:
        seen &= ahead <= right
    mask = found.get("attn_mask")
    if mask is None:
        found["attn_mask"] = seen
    else:
        mask = mask[..., index, :] if mask.shape[-2] > 1 else mask
        found["attn_mask"] = mask & seen if mask.dtype == torch.bool else mask.masked_fill(~seen, -torch.inf)
    if isinstance(sink := found.get("normalizer"), Sink) and sink.logits.ndim == 3:
        found["normalizer"] = Sink(sink.logits[..., index])
    return found


def _of_first_text(option: Any) -> Any:
    """The option for the first text of the batch alone."""
    if isinstance(option, Sink):
        return Sink(option.logits[:1]) if option.logits.ndim == 3 else option
    return option[:1] if isinstance(option, Tensor) and option.ndim == 4 else option
