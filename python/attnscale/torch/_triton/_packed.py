# SPDX-License-Identifier: BSD-3-Clause
"""Documents one behind the other, of which each query sees its own, as intervals of keys."""

from __future__ import annotations

import torch
from torch import Tensor


def packed_intervals(
    cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, n_queries: int, *, causal: bool
) -> tuple[Tensor, Tensor]:
    """The first key that each query sees and the one past the last, (n_queries,); nothing is read on the CPU.

    Parameters
    ----------
    cu_seqlens_q, cu_seqlens_k : Tensor of integers, shape (documents + 1,)
        Where each document begins among the queries and among the keys, then where the last one ends: 0
        first, and none less than the one before.
    n_queries : int
    causal : bool
        Whether a query sees no later key: the last query of a document is aligned with its last key.
    """
    at = torch.arange(n_queries, device=cu_seqlens_q.device)
    document = torch.searchsorted(cu_seqlens_q.long(), at, right=True) - 1
    begin, end = cu_seqlens_k.long()[document], cu_seqlens_k.long()[document + 1]
    if causal:
        from_last = cu_seqlens_q.long()[document + 1] - 1 - at
        end = torch.maximum(begin, end - from_last)
    return begin, end
