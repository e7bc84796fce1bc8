# SPDX-License-Identifier: BSD-3-Clause
"""Identification of an engine's log-sum-exp and entropy, for tensors on any device."""

from __future__ import annotations

from typing import Any

import torch

from ..exact import entropy_identity as _entropy
from ..exact import lse as _lse
from ._base.tensors import on_cpu


def identify_lse(
    query: torch.Tensor, key: torch.Tensor, lse: torch.Tensor, *, tolerance: float = 2e-3, **options: Any
) -> _lse.LseIdentity:
    """:func:`attnscale.identify_lse` on tensors, copied to the CPU without grad.

    Parameters
    ----------
    query, key : Tensor
        As for :func:`attention`.
    lse : Tensor
        The engine's result, of shape (..., heads, n_queries) or (..., n_queries, heads).
    tolerance : float, default 2e-3
        Largest difference of a row from a convention, over max(1, abs(lse)).
    **options
        Options of :func:`attnscale.identify_lse`.

    Returns
    -------
    attnscale.LseIdentity

    Examples
    --------
    >>> import torch, attnscale as at
    >>> q, k, v = torch.randn(3, 1, 2, 8, 16, generator=torch.Generator().manual_seed(0))
    >>> lse = torch.logsumexp(q @ k.transpose(-1, -2) / 4, -1)
    >>> at.torch.identify_lse(q, k, lse / 0.6931471805599453).engines
    ('flashinfer',)
    """
    query, key, lse = (on_cpu(each) for each in (query, key, lse))
    given = {name: on_cpu(each) for name, each in options.items()}
    return _lse.identify_lse(query, key, lse, tolerance=tolerance, **given)


def identify_entropy(
    query: torch.Tensor,
    key: torch.Tensor,
    entropy: torch.Tensor,
    *,
    weights: torch.Tensor | None = None,
    tolerance: float = 2e-3,
    **options: Any,
) -> _entropy.EntropyIdentity:
    """:func:`attnscale.identify_entropy` on tensors, copied to the CPU without grad.

    Parameters
    ----------
    query, key : Tensor
        As for :func:`attention`.
    entropy : Tensor
        The engine's result: a number a row, or a mean over some axes of the rows.
    weights : Tensor, optional
        The engine's own weights, (..., heads, n_queries, n_keys).
    tolerance : float, default 2e-3
        Largest difference from a quantity, over max(1, abs(entropy)).
    **options
        Options of :func:`attnscale.identify_entropy`.

    Returns
    -------
    attnscale.EntropyIdentity

    Examples
    --------
    >>> import torch, attnscale as at
    >>> q, k = torch.randn(2, 1, 2, 8, 16, generator=torch.Generator().manual_seed(0))
    >>> p = (q @ k.transpose(-1, -2) / 4).softmax(-1)
    >>> at.torch.identify_entropy(q, k, -(p * (p + 1e-3).log()).sum(-1)).quantity.eps
    0.001
    """
    query, key, entropy, weights = (on_cpu(each) for each in (query, key, entropy, weights))
    given = {name: on_cpu(each) for name, each in options.items()}
    return _entropy.identify_entropy(query, key, entropy, weights=weights, tolerance=tolerance, **given)
