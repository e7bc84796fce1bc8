# SPDX-License-Identifier: BSD-3-Clause
"""Rotary positions with clipped distances, ReRoPE.

Within the clip every key has its own distance. A key beyond it has the clip as its distance: its score is
that of the unrotated key with a query rotated by the clip (Su Jianlin 2023, kexue.fm/9708).
"""

from __future__ import annotations

from typing import Any

import torch
from attnscale import torch as ours
from torch import Tensor

from .transformer import rotate


def clipped_rows(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    scale: float | Tensor,
    clip: int,
    backend: str,
    causal: bool = False,
) -> tuple[Tensor, Tensor]:
    """Output and entropy of each row, merged by log-sum-exp from passes without a matrix of scores.

    Parameters
    ----------
    query, key, value : Tensor, shape (batch, heads, n, head_dim)
        Tensors before rotation.
    scale : float or Tensor
        The whole multiplier of the scores: a number, or of shape (heads, 1); for causal rows also of shape
        (heads or 1, n).
    clip : int
        The largest distance.
    backend : {"core", "torch"}
        The backend of :func:`attnscale.torch.attention`.
    causal : bool
        Whether a query sees only the keys up to its own position.

    Examples
    --------
    >>> q, k, v = torch.randn(3, 1, 2, 40, 8, generator=torch.Generator().manual_seed(0))
    >>> output, _ = clipped_rows(q, k, v, scale=0.5, clip=7, backend="core")
    >>> bool(torch.allclose(output, (clipped_scores(q, k, 7) * 0.5).softmax(-1) @ v, atol=1e-5))
    True
    """
    turned = (rotate(query), rotate(key), value)
    before = (rotate(query, at=clip), key, value)
    options: dict[str, Any] = {"scale": scale, "backend": backend}
    beyond = {"causal": -clip - 1, **options}
    parts = [_part(turned, {"window": (clip, 0 if causal else clip), **options}), _part(before, beyond)]
    if not causal:
        after = tuple(each.flip(-2) for each in (rotate(query, at=-clip), key, value))
        parts.append([each.flip(2) for each in _part(after, beyond)])
    return _merge(parts)


def clipped_scores(query: Tensor, key: Tensor, clip: int) -> Tensor:
    """Products of rotated queries and keys, without a scale: (batch, heads, n, n)."""
    n = query.shape[-2]
    place = torch.arange(n, device=query.device)
    distance = place[:, None] - place
    bare = key.transpose(-1, -2)
    near = rotate(query) @ rotate(key).transpose(-1, -2)
    scores = torch.where(distance > clip, rotate(query, at=clip) @ bare, near)
    return torch.where(distance < -clip, rotate(query, at=-clip) @ bare, scores)


def _part(tensors: tuple[Tensor, ...], options: dict[str, Any]) -> list[Tensor]:
    """Output, log-sum-exp and mean score of the rows over some of the keys."""
    rows = ours.attention_statistics(*tensors, statistics=("lse", "mean_score"), **options)
    return [rows.output, rows.lse, rows.mean_score]


def _merge(parts: list[list[Tensor]]) -> tuple[Tensor, Tensor]:
    """Output and entropy of the rows over all keys; a part without keys has lse -inf and weight 0."""
    lse = torch.logsumexp(torch.stack([part[1] for part in parts]), 0)
    shares = [(part[1] - lse).exp() for part in parts]
    output = sum(share[..., None] * part[0] for share, part in zip(shares, parts, strict=True))
    mean = sum(
        torch.where(share > 0, share * part[2], 0.0) for share, part in zip(shares, parts, strict=True)
    )
    return output, lse - mean
