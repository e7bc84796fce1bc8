# SPDX-License-Identifier: BSD-3-Clause
"""Rotary positions of queries and keys."""

from __future__ import annotations

import torch
from torch import Tensor


def rotate(x: Tensor, base: float) -> Tensor:
    """Rows (..., n, head_dim) turned by their index: channel c of the first half with c of the second.

    The angle of row i is i * base^(-2c / head_dim) (Su et al. 2021, arXiv 2104.09864, in the order of
    channels of GPT-NeoX and Llama).
    """
    n, head_dim = x.shape[-2:]
    half = head_dim // 2
    speed = base ** (-torch.arange(half, dtype=torch.float64, device=x.device) / half)
    angle = torch.arange(n, dtype=torch.float64, device=x.device)[:, None] * speed
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    first, second = x[..., :half], x[..., half:]
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
