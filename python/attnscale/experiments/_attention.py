# SPDX-License-Identifier: BSD-3-Clause
"""The one attention of all models: this package's, or the same by PyTorch's own programs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from .. import laws, normalizers
from .. import torch as ours
from .._checks import choose, shown
from ..torch import Scaled
from ._sparse import entmax

__all__ = ["IMPLEMENTATIONS", "attend", "attend_rows", "check_implementation"]

IMPLEMENTATIONS = ("attnscale", "torch")


def check_implementation(attention: Any, device: Any) -> None:
    """Refuse what no program here computes: the fields `attention` and `device` of a config."""
    choose("attention", attention, IMPLEMENTATIONS)
    if attention == "attnscale" and str(device) != "cpu":
        raise ValueError(f"device must be 'cpu' with attention='attnscale', got {shown(device)}")


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    law: Any = "standard",
    normalizer: Any = "softmax",
    causal: bool = False,
    mask: Tensor | None = None,
    implementation: str = "attnscale",
) -> Tensor:
    """Attention, differentiable, by one of two programs that agree.

    Parameters
    ----------
    query, key, value : Tensor, shape (batch, heads, n, head_dim)
    law : str, float, Law, Scaled or Tensor
        As ``scale`` of :func:`attnscale.torch.attention`: a tensor of one scale a head has shape (heads, 1).
    normalizer : str or Normalizer
        For "torch": softmax, sparsemax or entmax.
    causal : bool
    mask : Tensor of bool, optional
        True is seen; broadcasts to (batch, heads, n, n).
    implementation : {"attnscale", "torch"}
        This package's kernels, or PyTorch's: its own attention for softmax, after the query is multiplied by
        the scale; whole matrices of weights for the others. "torch" runs on any device.

    Returns
    -------
    Tensor, shape (batch, heads, n, head_dim)

    Examples
    --------
    >>> q, k, v = torch.randn(3, 1, 2, 10, 8, generator=torch.Generator().manual_seed(0))
    >>> one, other = (attend(q, k, v, law="log_n", implementation=each) for each in IMPLEMENTATIONS)
    >>> bool(torch.allclose(one, other, atol=1e-6))
    True
    """
    if implementation == "attnscale":
        return ours.attention(
            query, key, value, scale=law, normalizer=normalizer, is_causal=causal, attn_mask=mask
        )
    query = query * _row_scale(law, query, key, mask, causal=causal)
    if _alpha(normalizer) == 1:
        # PyTorch takes a mask or causal, not both; a mask costs it its fastest program.
        seen = _seen(query, key, mask, causal=causal) if mask is not None else None
        return functional.scaled_dot_product_attention(
            query, key, value, seen, is_causal=causal and mask is None, scale=1.0
        )
    return _weights(query, key, normalizer, mask, causal=causal) @ value


def attend_rows(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    law: Any = "standard",
    normalizer: Any = "softmax",
    causal: bool = False,
    mask: Tensor | None = None,
    implementation: str = "attnscale",
) -> tuple[Tensor, Tensor]:
    """As :func:`attend`: the output, and the entropy of each row in nats, shape (batch, heads, n)."""
    if implementation == "attnscale":
        rows = ours.attention_statistics(
            *(query, key, value),
            statistics=("entropy",),
            scale=law,
            normalizer=normalizer,
            is_causal=causal,
            attn_mask=mask,
        )
        return cast("tuple[Tensor, Tensor]", (rows.output, rows.entropy))
    scaled = query * _row_scale(law, query, key, mask, causal=causal)
    weights = _weights(scaled, key, normalizer, mask, causal=causal)
    # At 0, which masked keys have, -p ln p has an infinite derivative.
    positive = weights.clamp_min(torch.finfo(weights.dtype).tiny)
    return weights @ value, torch.special.entr(positive).sum(-1)


def _weights(query: Tensor, key: Tensor, normalizer: Any, mask: Tensor | None, *, causal: bool) -> Tensor:
    """All weights, of a query that is scaled already."""
    scores = query @ key.transpose(-1, -2)
    if causal or mask is not None:
        scores = scores.masked_fill(~_seen(query, key, mask, causal=causal), -math.inf)
    alpha = _alpha(normalizer)
    return scores.softmax(-1) if alpha == 1 else entmax(scores, alpha)


def _alpha(normalizer: Any) -> float:
    """1 for softmax, 2 for sparsemax, alpha for entmax."""
    found = normalizers.get(normalizer)
    if isinstance(found, normalizers.Entmax):
        return float(found.alpha)
    known = {"softmax": 1.0, "sparsemax": 2.0}
    if found.name not in known:
        raise ValueError(
            "normalizer must be softmax, sparsemax or entmax with implementation='torch', "
            f"got {shown(found.name)}"
        )
    return known[found.name]


def _seen(query: Tensor, key: Tensor, mask: Tensor | None, *, causal: bool) -> Tensor:
    """Which keys each query sees, (..., n, n)."""
    shape = (query.shape[-2], key.shape[-2])
    seen = torch.ones(shape, dtype=torch.bool, device=query.device)
    seen = seen.tril() if causal else seen
    return seen if mask is None else seen & mask


def _row_scale(law: Any, query: Tensor, key: Tensor, mask: Tensor | None, *, causal: bool) -> Tensor:
    """The multiplier of each query, which broadcasts to it."""
    if isinstance(law, Tensor):
        return law if law.ndim == 0 else law[..., None]
    if isinstance(law, Scaled):
        factor = law.factor if law.factor.ndim == 0 else law.factor[:, None, None]
        return factor * _row_scale(law.law, query, key, mask, causal=causal)
    known = laws.get(law)
    n = _count(known, query, key, mask, causal=causal)
    scale = np.asarray(known.scale(n, query.shape[-1]))
    tensor = torch.as_tensor(scale, dtype=query.dtype, device=query.device)
    return tensor if tensor.ndim == 0 else tensor[..., None]


def _count(law: laws.Law, query: Tensor, key: Tensor, mask: Tensor | None, *, causal: bool) -> Any:
    """What the law counts, for each query: a number, or an array (..., n)."""
    meaning = law.meaning
    if meaning.is_used and meaning.at_position is None:
        raise ValueError(
            f"law must have one n a row with implementation='torch', got {law.name}: {meaning.description}"
        )
    rows: Any = _Rows(query.shape[-2], key.shape[-2], causal, mask)
    return meaning.of(rows)


@dataclass(frozen=True)
class _Rows:
    """What a law of one count a row asks of a call."""

    n_queries: int
    n_keys: int
    causal: bool
    mask: Tensor | None

    def visible_keys(self) -> Any:
        if self.mask is None:
            return self.row_sizes()
        seen = self.mask.tril() if self.causal else self.mask
        return np.maximum(seen.sum(-1).cpu().numpy(), 1)

    def row_sizes(self) -> Any:
        return self.positions() + 1 if self.causal else self.n_keys

    def positions(self) -> Any:
        return np.arange(self.n_queries)
