# SPDX-License-Identifier: BSD-3-Clause
"""Functions composed of attention on tensors: relay nodes, and the difference of two maps."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from .._call.statistics import AttentionStatistics
from .._checks import shown
from ._device import without_autocast
from ._functional import attention, attention_statistics
from ._tensors import autocast, check_tensors, common_type, wide_type


def relay_attention(
    x: Tensor,
    centres: Tensor,
    value: Tensor | None = None,
    *,
    num_threads: int | None = None,
    backend: str | None = None,
) -> AttentionStatistics:
    """:func:`attnscale.variants.relay_attention` on tensors, with gradients.

    Parameters
    ----------
    x : Tensor, shape (..., n, dim)
        The sequence. All tensors are on one device and may require grad.
    centres : Tensor, shape (..., nodes, dim)
        Queries of the nodes; leading axes broadcast.
    value : Tensor, shape (..., n, value_dim), optional
        What is averaged; None: x itself, which then gets the gradients of both roles.
    num_threads, backend
        As for :func:`attention`.

    Returns
    -------
    AttentionStatistics
        ``output`` are the nodes, (..., nodes, value_dim); ``lse``, ``entropy`` and ``mean_score`` are those
        of the weights of each node over the sequence.

    Examples
    --------
    >>> import attnscale as at, torch
    >>> x, centres = torch.ones(100, 8), torch.zeros(4, 8, requires_grad=True)
    >>> nodes = at.torch.relay_attention(x, centres)
    >>> nodes.output.shape
    torch.Size([4, 8])
    >>> nodes.entropy.sum().backward()
    """
    names = ("lse", "entropy", "mean_score")
    check_tensors(x=x, centres=centres)
    given = x if value is None else value
    options: dict[str, Any] = {"scale": 1.0, "num_threads": num_threads, "backend": backend}
    return attention_statistics(centres, x, given, statistics=names, **options)


def differential_attention(
    query1: Tensor,
    key1: Tensor,
    query2: Tensor,
    key2: Tensor,
    value: Tensor,
    *,
    lam: float | Tensor,
    **options: Any,
) -> Tensor:
    """:func:`attnscale.variants.differential_attention` on tensors, with gradients.

    Parameters
    ----------
    query1, query2 : Tensor, shape (..., heads, n_queries, head_dim)
    key1, key2 : Tensor, shape (..., kv_heads, n_keys, head_dim)
    value : Tensor, shape (..., kv_heads, n_keys, value_dim)
        All tensors are on one device and may require grad. head_dim may differ between the two maps.
    lam : float or Tensor
        Factor of the second map, which may require grad. It broadcasts to (..., heads, n_queries); one number
        for each head is a tensor of shape (heads, 1).
    **options
        Options of :func:`attention`, for both maps; their tensors may require grad.

    Returns
    -------
    Tensor, shape (..., heads, n_queries, value_dim)
        The difference is taken in float32, or in float64 for float64 tensors.

    Raises
    ------
    TypeError, ValueError
        If lam is neither a number nor a tensor or does not fit, if the maps differ in shape, or as
        :func:`attention`.

    Examples
    --------
    >>> import attnscale as at, torch
    >>> q1, q2, k1, k2 = torch.randn(4, 2, 10, 8, generator=torch.Generator().manual_seed(0))
    >>> lam = torch.full((2, 1), 0.8, requires_grad=True)  # one a head
    >>> value = torch.ones(2, 10, 1)
    >>> at.torch.differential_attention(q1, k1, q2, k2, value, lam=lam).sum().backward()
    >>> lam.grad.round()  # every row of the second map sums to 1
    tensor([[-10.],
            [-10.]])
    """
    if not isinstance(lam, (int, float, Tensor)) or isinstance(lam, bool):
        raise TypeError(f"lam must be a number or a tensor, got {shown(lam)}")
    check_tensors(query1=query1, key1=key1, query2=query2, key2=key2, value=value)
    tensors = autocast(query1, key1, query2, key2, value)
    query1, key1, query2, key2, value = tensors
    narrow = common_type(x.dtype for x in tensors)
    wide = value.to(wide_type((narrow,)))  # 16-bit outputs would be rounded before the difference
    with without_autocast(value.device):
        first = attention(query1, key1, wide, **options)
        second = attention(query2, key2, wide, **options)
    if first.shape != second.shape:
        raise ValueError(
            "both maps must have the same heads and queries, got outputs of the shapes "
            f"{tuple(first.shape)} and {tuple(second.shape)}"
        )
    swapped = options.get("layout") == "bshd" and query1.ndim > 2
    return (first - _share(lam, first, swapped=swapped) * second).to(narrow)


def _share(lam: float | Tensor, output: Tensor, *, swapped: bool) -> float | Tensor:
    """The factor lam in a shape that multiplies an output, to whose rows it broadcasts."""
    if not isinstance(lam, Tensor):
        return lam
    rows = (output.transpose(-3, -2) if swapped else output).shape[:-1]
    extents = zip(reversed(lam.shape), reversed(rows), strict=False)
    if lam.ndim > len(rows) or any(n not in (1, m) for n, m in extents):
        raise ValueError(
            f"lam must broadcast to (..., heads, n_queries) = {tuple(rows)}, got shape {tuple(lam.shape)}"
        )
    share = lam.to(output.dtype)[..., None]
    while swapped and share.ndim < 3:
        share = share[None]
    return share.transpose(-3, -2) if swapped else share
