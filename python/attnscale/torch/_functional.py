# SPDX-License-Identifier: BSD-3-Clause
"""Attention on tensors, with gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Unpack

import torch
from torch import Tensor

from .._base.statistics import NAMES, AttentionStatistics, statistic_names
from .._call.arrays import shape_in
from .._call.options import check_known, takes
from ..exact.spans import members_of
from ._base.arguments import Arguments, TensorOptions, read_call
from ._base.device import Kernel, backend_of, refuse_jit_trace
from ._base.private import constant_when_compiled, is_eager
from ._base.tensors import check_one_device, on_cpu, swap_heads
from ._eager import attend_now, attend_plain
from ._ops import run
from ._plain.blocks import attend_in_blocks

_OPTIONS = frozenset(TensorOptions.__annotations__)
#: Values of ``backend=`` that run the kernels of this package on CPU tensors.
_CORE = (None, "auto", "core")


@takes(TensorOptions)
def attention(query: Tensor, key: Tensor, value: Tensor, **options: Unpack[TensorOptions]) -> Tensor:
    """:func:`attnscale.attention` on tensors, differentiable in all of them.

    Parameters
    ----------
    query, key, value : Tensor
        Tensors with shapes and types as for :func:`attnscale.attention`, read in place. Under
        ``torch.autocast`` they are converted to its type.
    scale, attn_mask, distance_scale, distance_bias : Tensor, optional
        Tensors that may require grad; so may the parameters of a :class:`Learned` law, the factor of a
        :class:`Scaled` law, the logits of a :class:`Sink`, the bias of a :class:`Sigmoid` and the alpha of an
        :class:`Entmax`.
    is_causal, causal, window, key_lengths, document_ids, enable_gqa, softcap, normalizer, qk_norm, layout, \
num_threads
        As for :func:`attnscale.attention`.
    backend : {"auto", "core", "torch", "triton"}, optional
        "core": the kernels of this package, on the CPU. "torch": plain operations of PyTorch, on any device.
        "triton": kernels for CUDA and ROCm, which have not run on a GPU. None and "auto": "core" on the CPU,
        "torch" on other devices. No tensor moves to another device.

    Returns
    -------
    Tensor, shape (..., heads, n_queries, value_dim)

    Raises
    ------
    TypeError, ValueError, MemoryError
        As :func:`attnscale.attention`; ValueError also for tensors on different devices, for tensors off the
        CPU with ``backend="core"``, and with ``backend="triton"`` for tensors off the GPU and for calls that
        its kernels do not support.
    ImportError
        If ``backend="triton"`` finds no Triton, or an old one.
    RuntimeError
        If a second derivative is taken, which "core" and "triton" do not have, and under ``torch.jit.trace``
        except with ``backend="torch"``.

    Notes
    -----
    "core" is an operator of PyTorch, ``torch.ops.attnscale.attend``: ``torch.compile`` takes it without a
    graph break, ``torch.func.grad`` and ``vmap`` work. The backward pass recomputes the weights from the
    saved log-sum-exp, no array of n_queries * n_keys is made, and gradients are bit for bit the same for any
    number of threads.

    "torch" takes the same options except ``num_threads``, and refuses the same calls. It works in blocks of
    queries: memory grows with the queries of a block times all keys; sums are in float32 at least. The
    backward pass is autograd's; if there are several blocks, each is computed again. Counts on a mask and
    measurements of rows for a law are read on the CPU. A second derivative treats a learned law as linear in
    its parameters. If only the output of a float32 or float64 softmax is needed, PyTorch's own may compute
    it.

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
    return _run(attention, query, key, value, (), options)[0]


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
        A named tuple of tensors; fields that were not requested are None.

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
    output, found = _run(attention_statistics, query, key, value, asked, options)
    return AttentionStatistics(output, **found)


@takes(TensorOptions)
def attention_entropy(query: Tensor, key: Tensor, **options: Unpack[TensorOptions]) -> Tensor:
    """:func:`attnscale.attention_entropy` on tensors: the entropy of every row of weights, in nats.

    Parameters
    ----------
    query, key, {names}
        As for :func:`attention`.

    Returns
    -------
    Tensor, shape (..., heads, n_queries)
        float64 for float64 tensors, else float32; differentiable.

    Examples
    --------
    >>> import attnscale as at, torch
    >>> q, k = torch.randn(2, 8, 512, 64, generator=torch.Generator().manual_seed(0))
    >>> print(f"{at.torch.attention_entropy(q, k).mean():.1f} of at most ln 512 = 6.2 nats")
    5.7 of at most ln 512 = 6.2 nats
    """
    asked = ("entropy",)
    plain = attend_plain(query, key, None, asked, options)
    if plain is not None:
        return plain[1][0]
    return _run(attention_entropy, query, key, None, asked, options)[1]["entropy"]


@takes(TensorOptions)
def attention_spans(
    query: Tensor, key: Tensor, lengths: Any = None, *, ids: Any = None, **options: Unpack[TensorOptions]
) -> Tensor:
    """:func:`attnscale.attention_spans` on tensors: the weight of each row on each span of the keys.

    Parameters
    ----------
    query, key : Tensor
        As for :func:`attention`.
    lengths : sequence or Tensor of int, shape (n_spans,)
        Keys in each span; they add up to n_keys.
    ids : sequence or Tensor of int, shape (n_keys,)
        In place of lengths, the span of each key, from 0; a negative id is in no span.
    {names}
        As for :func:`attention`.

    Returns
    -------
    Tensor, shape (..., heads, n_queries, n_spans)
        float64 for float64 tensors, else float32; differentiable.

    Raises
    ------
    TypeError, ValueError
        If lengths or ids are not integers of that shape, or not exactly one of them is given.

    Examples
    --------
    >>> import attnscale as at, torch
    >>> q, k = torch.zeros(2, 1, 4, 8)
    >>> at.torch.attention_spans(q, k, [1, 3], is_causal=True)[0, -1]
    tensor([0.2500, 0.7500])
    """
    layout = options.get("layout", "bhsd")
    members = torch.from_numpy(members_of(on_cpu(lengths), on_cpu(ids), shape_in(layout, key.shape)[-2]))
    query, key = (x.float() if x.dtype in (torch.float16, torch.bfloat16) else x for x in (query, key))
    return swap_heads(attention(query, key, members.to(key.device, key.dtype), **options), layout)


def _run(
    function: Callable[..., Any],
    query: Any,
    key: Any,
    value: Any,
    asked: tuple[str, ...],
    options: Mapping[str, Any],
) -> tuple[Tensor | None, dict[str, Tensor]]:
    if any(name not in _OPTIONS for name in options):  # the compiler of PyTorch reads no signature
        check_known(function, options)
    call, backend = read_call(query, key, value, options), options.get("backend")
    eager = backend in _CORE and is_eager(*call.tensors())
    if not eager and kernel_of(call, asked, backend) == "torch":
        return attend_in_blocks(call, asked)
    refuse_jit_trace()
    # The backward pass starts from the log-sum-exp, which costs nothing.
    has_lse = torch.is_grad_enabled() and "lse" not in asked and call.is_softmax()
    kept = (*asked, "lse") if has_lse else asked
    if eager:
        return attend_now(call, asked, kept)
    output, *rows = run(*call, kept)
    found = {name: row for name, row in zip(NAMES, rows, strict=True) if name in asked}
    return (None if call.value is None else output), found


# ---- choice of the backend -------------------------------------------------------------------------


def kernel_of(call: Arguments, asked: tuple[str, ...], backend: str | None) -> Kernel:
    """The backend of a call with the requested statistics `asked`.

    "core": kernels of this package for the CPU. "triton": kernels for CUDA and HIP, only on request. "torch":
    plain operations of PyTorch, on any device.
    """
    device = call.query.device
    check_one_device(device, *call.tensors())
    found = backend_of(device, backend, "triton")
    if found == "triton":
        from ._triton._support import obstacle  # the kernels' folder is for the calls that ask for it

        if reason := obstacle(call, asked):
            raise ValueError(f"backend='triton' does not serve this call: {reason}; backend='torch' does")
        _load_triton(device.type)
    return found


@constant_when_compiled
def _load_triton(device_type: str) -> None:
    """Register the kernels in Triton for a type of device; not traced by the compiler."""
    from ._triton._support import check_installed

    check_installed()
    from ._triton._operator import register  # imports Triton, which may take a second

    register(device_type)
