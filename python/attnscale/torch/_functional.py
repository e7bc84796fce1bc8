# SPDX-License-Identifier: BSD-3-Clause
"""Attention on tensors, with gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Unpack

import torch
from torch import Tensor

from .._call.options import check_known, takes
from .._call.statistics import AttentionStatistics
from .._results import NAMES, statistic_names
from ._arguments import TensorOptions, read_call
from ._blocks import attend_in_blocks
from ._device import kernel_of, refuse_jit_trace
from ._eager import attend_now, attend_plain
from ._ops import run
from ._private import is_eager

_OPTIONS = frozenset(TensorOptions.__annotations__)
#: The values of ``backend=`` for which the kernels of this package take tensors on the CPU.
_CORE = (None, "auto", "core")


@takes(TensorOptions)
def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    **options: Unpack[TensorOptions],
) -> Tensor:
    """:func:`attnscale.attention` on tensors, differentiable in all of them.

    Parameters
    ----------
    query, key, value : Tensor
        Tensors with shapes and types as for :func:`attnscale.attention`, read in place. Under
        ``torch.autocast`` they are taken in its type.
    scale, attn_mask, distance_scale, distance_bias : Tensor, optional
        Tensors that may require grad; so may the parameters of a :class:`Learned` law, the factor of a
        :class:`Scaled` law, the logits of a :class:`Sink`, the bias of a :class:`Sigmoid` and the alpha of an
        :class:`Entmax`.
    is_causal, causal, window, key_lengths, document_ids, enable_gqa, softcap, normalizer, qk_norm, layout, \
num_threads
        As for :func:`attnscale.attention`.
    backend : {"auto", "core", "torch", "triton"}, optional
        What computes attention. "core": the kernels of this package, on the CPU. "torch": plain operations of
        PyTorch, on any device. "triton": kernels for CUDA and ROCm, which have not run on a GPU. None and
        "auto": "core" on the CPU, "torch" on every other device. No tensor goes to another device.

    Returns
    -------
    Tensor, shape (..., heads, n_queries, value_dim)

    Raises
    ------
    TypeError, ValueError, MemoryError
        As :func:`attnscale.attention`; ValueError also for tensors on different devices, for tensors off the
        CPU with ``backend="core"``, and with ``backend="triton"`` for those that are not on a GPU, without
        Triton, and for a call that its kernels do not serve.
    RuntimeError
        If a second derivative is taken, which "core" and "triton" do not have; under ``torch.jit.trace`` but
        with ``backend="torch"``.

    Notes
    -----
    "core" is an operator of PyTorch, ``torch.ops.attnscale.attend``: ``torch.compile`` takes it without a
    graph break, ``torch.func.grad`` and ``vmap`` work. The backward pass recomputes the weights from the
    saved log-sum-exp, no array of n_queries * n_keys is made, and gradients are bit for bit the same for any
    number of threads.

    "torch" takes the same options except ``num_threads``, and refuses the same calls. It works in blocks of
    queries: memory grows with the queries of a block times all keys; sums are in float32 at least. In the
    backward pass, which is that of autograd, each block is computed again where there are several. The counts
    on a mask and measurements of rows that a law takes are read on the CPU. A second derivative takes a
    learned law as linear in its parameters. A softmax in float32 or float64 whose output alone is wanted may
    be PyTorch's own.

    Examples
    --------
    >>> import attnscale as at, torch
    >>> q, k, v = torch.randn(3, 2, 8, 100, 64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    >>> at.torch.attention(q, k, v, is_causal=True).square().sum().backward()
    """
    if value is None:
        raise TypeError("value must be a tensor, got None; attention_statistics works without a value")
    plain = attend_plain(query, key, value, (), options)
    if plain is not None:
        return plain[0]
    return _attend(attention, query, key, value, (), options)[0]


@takes(TensorOptions)
def attention_statistics(
    query: Tensor,
    key: Tensor,
    value: Tensor | None = None,
    *,
    statistics: Sequence[str] = ("lse", "entropy"),
    **options: Unpack[TensorOptions],
) -> AttentionStatistics:
    """:func:`attnscale.attention_statistics` on tensors: output and statistics, all in one pass.

    Parameters
    ----------
    query, key, value : Tensor
        Tensors as for :func:`attention`; without a value there is no output.
    statistics : sequence of str, default ("lse", "entropy")
        Names of fields of :class:`attnscale.AttentionStatistics`. All but n_visible, argmax, support,
        sink_weight and min_score have a gradient.
    {names}
        As for :func:`attention`.

    Returns
    -------
    AttentionStatistics
        A named tuple of tensors; None stands for what was not asked for.

    Raises
    ------
    TypeError, ValueError, MemoryError, RuntimeError
        As :func:`attention`.

    Examples
    --------
    Entropy in the loss: a row that attends evenly, ln 4, learns to be less even.

    >>> import attnscale as at, torch
    >>> q, k = torch.ones(1, 1, 4), torch.eye(4)[None].requires_grad_()  # (heads, n, dim)
    >>> rows = at.torch.attention_statistics(q, k)
    >>> rows.entropy.detach()
    tensor([[1.3863]])
    >>> rows.entropy.sum().backward()
    >>> k.grad.abs().max()  # the even row is the maximum of the entropy
    tensor(0.)
    """
    asked = statistic_names(statistics)
    plain = attend_plain(query, key, value, asked, options)
    if plain is not None:
        return AttentionStatistics(plain[0], **dict(zip(asked, plain[1], strict=True)))
    output, found = _attend(attention_statistics, query, key, value, asked, options)
    return AttentionStatistics(output, **found)


@takes(TensorOptions)
def attention_entropy(
    query: Tensor,
    key: Tensor,
    **options: Unpack[TensorOptions],
) -> Tensor:
    """:func:`attnscale.attention_entropy` on tensors: the entropy of every row of weights, in nats.

    Parameters
    ----------
    query, key, {names}
        As for :func:`attention`.

    Returns
    -------
    Tensor, shape (..., heads, n_queries)
        float64 for float64 tensors, else float32; differentiable.

    Raises
    ------
    TypeError, ValueError, MemoryError, RuntimeError
        As :func:`attention`.

    Examples
    --------
    >>> import attnscale as at, torch
    >>> q, k = torch.randn(2, 8, 512, 64, generator=torch.Generator().manual_seed(0))
    >>> print(f"{at.torch.attention_entropy(q, k).mean():.1f} of at most ln 512 = 6.2 nats")
    5.7 of at most ln 512 = 6.2 nats
    """
    return _attend(attention_entropy, query, key, None, ("entropy",), options)[1]["entropy"]


def _attend(
    function: Callable[..., Any],
    query: Any,
    key: Any,
    value: Any,
    asked: tuple[str, ...],
    options: Mapping[str, Any],
) -> tuple[Tensor | None, dict[str, Tensor]]:
    """The output, None without a value, and the statistics asked for."""
    if any(name not in _OPTIONS for name in options):  # the compiler of PyTorch follows no signature
        check_known(function, options)
    call, backend = read_call(query, key, value, options), options.get("backend")
    eager = backend in _CORE and is_eager(*call.tensors)
    if not eager and kernel_of(call, asked, backend) == "torch":
        return attend_in_blocks(call, asked)
    refuse_jit_trace()
    # The backward pass starts from the log-sum-exp, which costs nothing.
    has_lse = torch.is_grad_enabled() and "lse" not in asked and call.is_softmax
    kept = (*asked, "lse") if has_lse else asked
    if eager:
        return attend_now(call, options, asked, kept)
    output, *rows = run(*call, kept)
    found = {name: row for name, row in zip(NAMES, rows, strict=True) if name in asked}
    return (None if call.value is None else output), found
