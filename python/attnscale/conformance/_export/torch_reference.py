# SPDX-License-Identifier: BSD-3-Clause
"""Attention of attnscale in plain PyTorch, in float64."""

from typing import Any

import torch


def attend(
    query: Any,
    key: Any,
    value: Any,
    *,
    causal: str = "",
    causal_offset: int = 0,
    window_left: int = -1,
    window_right: int = -1,
    attn_mask: Any = None,
    key_lengths: Any = None,
    document_ids: Any = None,
    scale: float | None = None,
    softcap: float | None = None,
    sink: Any = None,
    bshd: bool = False,
) -> Any:
    """Output in the type of the query, (batch, heads, queries, value_dim), or with the heads third."""
    q, k, v = (x.double().transpose(1, 2) if bshd else x.double() for x in (query, key, value))
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    score = q @ k.transpose(2, 3) * (q.shape[3] ** -0.5 if scale is None else scale)
    if softcap is not None:
        score = softcap * torch.tanh(score / softcap)
    seen = visible(score, causal, causal_offset, window_left, window_right, key_lengths, document_ids)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        seen = seen & attn_mask
    elif attn_mask is not None:
        seen = seen & (attn_mask != -torch.inf)
        score = score + attn_mask.double()
    score = score.masked_fill(~seen, -torch.inf)
    v = v.masked_fill(~seen.any(2)[..., None], 0)  # no query sees these values, which may be NaN
    largest = score.amax(3, keepdim=True)
    none = torch.full_like(score[..., :1], -torch.inf)
    outcome = none if sink is None else none.maximum(sink.double()[:, None, None])
    largest = largest.maximum(outcome)
    largest = largest.masked_fill(largest == -torch.inf, 0)
    weights = torch.exp(score - largest)
    total = weights.sum(3, keepdim=True) + torch.exp(outcome - largest)
    output = weights @ v / total.masked_fill(total == 0, 1)  # 0 in a row without keys
    return (output.transpose(1, 2) if bshd else output).to(query.dtype)


def visible(
    score: Any,
    causal: str,
    causal_offset: int,
    window_left: int,
    window_right: int,
    key_lengths: Any,
    document_ids: Any,
) -> Any:
    """True where a query sees a key, before the mask."""
    batch, _, queries, keys = score.shape
    i = torch.arange(queries, device=score.device)[:, None]
    j = torch.arange(keys, device=score.device)
    lengths = torch.full((batch,), keys, device=score.device) if key_lengths is None else key_lengths
    lengths = lengths.long()[:, None, None, None]
    position = i + (lengths - queries if causal == "bottom_right" else causal_offset)
    seen = (j < lengths).expand_as(score)
    if causal:
        seen = seen & (j <= position)
    if window_left >= 0:
        seen = seen & (j >= position - window_left)
    if window_right >= 0:
        seen = seen & (j <= position + window_right)
    if document_ids is not None:
        ids = document_ids.long()[:, None, None, :].expand_as(score)
        own = ids.gather(3, position.clamp(0, keys - 1).expand(*score.shape[:3], 1))
        seen = seen & (ids == own) & (position >= 0)
    return seen
