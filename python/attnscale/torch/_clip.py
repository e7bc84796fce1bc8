# SPDX-License-Identifier: BSD-3-Clause
"""QK-clip: scores above a threshold are reduced by scaling the projections of queries and keys."""

from __future__ import annotations

import torch
from torch import Tensor

from .._base.checks import number
from ._base.tensors import check_tensors


def qk_clip_(query_weight: Tensor, key_weight: Tensor, max_score: Tensor, threshold: float) -> Tensor:
    r"""Scale the projections of queries and keys of each head whose largest score is above a threshold.

    Parameters
    ----------
    query_weight : Tensor, shape (heads * head_dim, ...)
        Weight of the projection of queries as ``torch.nn.Linear`` has it, or its bias; changed in place.
    key_weight : Tensor, shape (kv_heads * head_dim, ...)
        Weight of the projection of keys. Query head h reads key head h // (heads / kv_heads).
    max_score : Tensor, shape (heads,)
        The largest score of each head since the last step, over all rows, batches and machines; -inf for a
        head that saw no key.
    threshold : float
        The largest score that a head may have; Kimi K2 was trained with 100.

    Returns
    -------
    Tensor, shape (heads,)
        The factor of the scores of each head, 1 where nothing was clipped.

    Raises
    ------
    TypeError
        If a weight or max_score is not a tensor, or the threshold is not a number.
    ValueError
        If shapes do not fit, the threshold is not above 0, or a score is NaN or +inf. The weights are
        unchanged then.

    Notes
    -----
    With :math:`S_h` the largest score of head h and :math:`\tau` the threshold, the scores of the head are
    multiplied by :math:`\gamma_h = \min(1, \tau / S_h)`, and by 1 where :math:`S_h \le 0` [1]_. A head with
    its own keys gets :math:`\sqrt{\gamma_h}` in both weights. If heads share keys, the keys of a group g get
    :math:`\sqrt{c_g}` with :math:`c_g = \max_{h \in g} \gamma_h`, the factor that all its heads have in
    common, and the queries of head h get :math:`\gamma_h / \sqrt{c_g}`. So the scores of every head get
    exactly their own factor, no weight grows, and a head that needs no clipping keeps its queries and keys.

    The factor applies to scores before a soft-cap or a bias, and only without a norm of queries and keys
    after the projections. To clip biases of the projections, call it again with the biases. Call it after the
    optimizer's step. The optimizer's own state is not scaled.

    References
    ----------
    .. [1] Kimi Team, "Kimi K2: Open Agentic Intelligence", arXiv 2507.20534, section 2.1.

    Examples
    --------
    >>> import torch
    >>> query, key = torch.nn.Linear(32, 4 * 8), torch.nn.Linear(32, 2 * 8)  # two heads share a key head
    >>> largest = torch.tensor([400.0, 50.0, 200.0, 400.0])
    >>> qk_clip_(query.weight, key.weight, largest, 100.0)
    tensor([0.2500, 1.0000, 0.5000, 0.2500])
    """
    check_tensors(query_weight=query_weight, key_weight=key_weight, max_score=max_score)
    most = number("threshold", threshold)
    if most <= 0:
        raise ValueError(f"threshold must be above 0, got {most}")
    heads, kv_heads = _heads(query_weight, key_weight, max_score)
    with torch.no_grad():
        score = max_score.detach().double()
        if bool(((score != score) | (score == torch.inf)).any()):
            raise ValueError(f"max_score must be finite or -inf, got {score.tolist()}")
        factor = torch.where(score > most, most / score, 1.0)
        shared = factor.view(kv_heads, -1).amax(dim=1).sqrt()
        _scale(key_weight, shared)
        _scale(query_weight, factor / shared.repeat_interleave(heads // kv_heads))
    return factor.to(max_score.dtype)


def _heads(query_weight: Tensor, key_weight: Tensor, max_score: Tensor) -> tuple[int, int]:
    if max_score.ndim != 1 or not len(max_score):
        raise ValueError(f"max_score must have the shape (heads,), got {tuple(max_score.shape)}")
    heads = len(max_score)
    shapes = {"query_weight": tuple(query_weight.shape), "key_weight": tuple(key_weight.shape)}
    for name, shape in shapes.items():
        if not shape or 0 in shape:
            raise ValueError(f"{name} must have the shape (heads * head_dim, ...), got {shape}")
    head_dim, rest = divmod(query_weight.shape[0], heads)
    if rest:
        raise ValueError(
            f"query_weight must have a multiple of {heads} rows, one for each head of max_score, "
            f"got {query_weight.shape[0]}"
        )
    kv_heads, rest = divmod(key_weight.shape[0], head_dim)
    if rest or not kv_heads or heads % kv_heads:
        raise ValueError(
            f"key_weight must have {head_dim} rows, the head_dim of query_weight, for each of its heads, "
            f"whose number divides {heads}, got {key_weight.shape[0]}"
        )
    return heads, kv_heads


def _scale(weight: Tensor, factors: Tensor) -> None:
    rows = weight.unflatten(0, (len(factors), -1))
    wide = factors.to(weight.device, torch.promote_types(weight.dtype, torch.float32))
    rows.mul_(wide.view(-1, *[1] * (rows.ndim - 1)))
