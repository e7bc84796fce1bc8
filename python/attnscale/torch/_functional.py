# SPDX-License-Identifier: BSD-3-Clause
"""Attention on tensors, with gradients."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Unpack

import torch
from torch import Tensor

from .._base.checks import sum_over_repeats
from .._base.statistics import DIFFERENTIABLE, KEPT, NAMES, AttentionStatistics, statistic_names
from .._call.arrays import shape_in
from .._call.homes import tensor
from .._call.lost_rows import warn_of_lost_rows
from .._call.options import check_known, takes
from .._core import attend_tensors, differentiate_tensors
from ..exact.spans import members_of
from ._base.arguments import LEARNABLE, N_TENSORS, Arguments, TensorOptions, read_call
from ._base.device import Kernel, backend_of, refuse_jit_trace
from ._base.private import apply_of, is_eager
from ._base.tensors import array, check_one_device, on_cpu, swap_heads
from ._ops import attend_arrays, differentiate, differentiate_as_operator, run
from ._plain.blocks import attend_in_blocks
from ._triton import _support

_SMOOTH = frozenset(DIFFERENTIABLE)
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
        "auto": "core" on the CPU, "torch" on every other device. No tensor goes to another device.

    Returns
    -------
    Tensor, shape (..., heads, n_queries, value_dim)

    Raises
    ------
    TypeError, ValueError, MemoryError
        As :func:`attnscale.attention`; ValueError also for tensors on different devices, for tensors off the
        CPU with ``backend="core"``, and with ``backend="triton"`` for tensors off the GPU, without Triton,
        and for calls that its kernels do not support.
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
    eager = backend in _CORE and is_eager(*call.tensors)
    if not eager and kernel_of(call, asked, backend) == "torch":
        return attend_in_blocks(call, asked)
    refuse_jit_trace()
    # The backward pass starts from the log-sum-exp, which costs nothing.
    has_lse = torch.is_grad_enabled() and "lse" not in asked and call.is_softmax
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
    check_one_device(device, *call.tensors)
    found = backend_of(device, backend, "triton")
    if found == "triton":
        if reason := _support.obstacle(call, asked):
            raise ValueError(f"backend='triton' does not serve this call: {reason}; backend='torch' does")
        _load_triton(device.type)
    return found


@torch.compiler.assume_constant_result
def _load_triton(device_type: str) -> None:
    """Register the kernels in Triton for a type of device; not traced by the compiler."""
    from ._triton._operator import register  # imports Triton, which may take a second

    register(device_type)


# ---- a plain call, without the dispatcher of PyTorch, which takes longer than a small attention ------

# Results and gradients equal those of the operator ``attend``, which runs where PyTorch compiles, exports,
# transforms or watches a call.


class _Watching(threading.local):
    """Watches of models in this thread; ``attend`` of the last one replaces :func:`attend_plain`."""

    watchers: tuple[Any, ...] = ()


watching = _Watching()


def attend_plain(
    query: Any, key: Any, value: Any, statistics: tuple[str, ...], options: Mapping[str, Any]
) -> tuple[Tensor | None, tuple[Tensor, ...]] | None:
    """The output, None without a value, and the statistics of a plain call, read by the core only.

    Returns None for calls with other options, and where PyTorch compiles, transforms or watches the call.
    """
    if watching.watchers:
        return watching.watchers[-1].attend(query, key, value, statistics, options)
    scale, mask = options.get("scale"), options.get("attn_mask")
    learnable = query, key, value, scale if isinstance(scale, Tensor) else None, mask
    if query is None or key is None or not is_eager(*learnable) or torch.is_autocast_enabled("cpu"):
        return None
    has_gradient = torch.is_grad_enabled() and (query.requires_grad or _requires_grad(learnable))
    # The backward pass starts from the log-sum-exp, which costs nothing.
    kept = (*statistics, "lse") if has_gradient and "lse" not in statistics else statistics
    plain = attend_tensors(query, key, value, kept, options)
    if plain is None:
        return None
    output, rows, has_lost_rows = plain
    if has_lost_rows:  # their rows are NaN without a reason given
        warn_of_lost_rows(*[None if x is None else array(x.detach()) for x in (query, key, value, mask)])
    if not has_gradient:
        return output, rows
    found = _apply_plain((output, rows, kept, len(statistics), options), *learnable)
    return (None, found) if output is None else (found[0], found[1:])


def _requires_grad(tensors: tuple[Tensor | None, ...]) -> bool:
    return True in [x is not None and x.requires_grad for x in tensors]  # any() enters a generator


class _AttendPlain(torch.autograd.Function):
    """Autograd node of a plain call that was already computed.

    Tensors that may have a gradient are separate arguments: the first of LEARNABLE. The first rows are those
    that were asked for.
    """

    @staticmethod
    def forward(ctx: Any, given: tuple[Any, ...], *learnable: Tensor | None) -> Any:
        output, rows, ctx.names, n_asked, ctx.options = given
        ctx.save_for_backward(*learnable, output, *rows)
        ctx.set_materialize_grads(False)
        asked = rows[:n_asked]
        if not _SMOOTH.issuperset(ctx.names):
            named = zip(ctx.names, asked, strict=False)
            ctx.mark_non_differentiable(*[x for name, x in named if name not in _SMOOTH])
        return asked if output is None else (output, *asked)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        query, key, value, scale, mask, output, *rows = ctx.saved_tensors
        wanted, options, names = ctx.needs_input_grad[1:], ctx.options, ctx.names
        of_output, of_rows = (None, grads) if output is None else (grads[0], grads[1:])
        if not (scale is mask is None):
            options = _with_tensors(options, scale, mask)
        eager = not torch.is_grad_enabled() and is_eager(*grads)
        if eager:
            of_scale, of_mask = wanted[3:]
            plain = differentiate_tensors(
                query, key, value, of_output, output, names, rows, of_rows, of_scale, of_mask, options
            )
            if plain is not None:
                usual = value is None or of_output is not None
                return (None, *(plain if usual and not of_scale else _typed(plain, value, scale, wanted)))
        call = read_call(query, key, value, options)
        kept, given = dict(zip(names, rows, strict=True)), dict(zip(names, of_rows, strict=False))
        found = _differentiate(call, output, kept, of_output, given, _with_others(wanted), eager=eager)
        return (None, *found[: len(wanted)])


_apply_plain = apply_of(_AttendPlain)


def _typed(
    plain: tuple[Any, ...], value: Tensor | None, scale: Tensor | None, wanted: tuple[bool, ...]
) -> tuple[Tensor | None, ...]:
    """The gradients of a plain call, each in the form of its tensor."""
    d_query, d_key, d_value, d_scale, d_mask = plain
    if d_value is None and wanted[2]:  # the output is not in the loss
        d_value = torch.zeros_like(value)
    if d_scale is not None and scale is not None:
        d_scale = tensor(sum_over_repeats(array(d_scale), tuple(scale.shape))).to(scale.dtype)
    return d_query, d_key, d_value, d_scale, d_mask


def _with_tensors(options: Mapping[str, Any], scale: Tensor | None, mask: Tensor | None) -> Mapping[str, Any]:
    """The options of a plain call with those tensors that were saved."""
    found = dict(options)
    if scale is not None:
        found["scale"] = scale
    if mask is not None:
        found["attn_mask"] = mask
    return found


def _with_others(wanted: tuple[bool, ...]) -> tuple[bool, ...]:
    """Whether each learnable tensor has a gradient, for a plain call, which has the first of them."""
    return (*wanted, *(False,) * (len(LEARNABLE) - len(wanted)))


# ---- other eager calls ------------------------------------------------------------------------------


def attend_now(
    call: Arguments, asked: tuple[str, ...], kept: tuple[str, ...]
) -> tuple[Tensor | None, dict[str, Tensor]]:
    """Return the output, None without a value, and the requested statistics, if is_eager() accepts the call.

    `kept` adds what a backward pass starts from.
    """
    learnable = call.tensors[: len(LEARNABLE)]
    if not torch.is_grad_enabled() or not _requires_grad(learnable):
        return attend_arrays(call, asked)
    names = tuple(dict.fromkeys(asked))
    output, rows = attend_arrays(call, kept)
    found = _apply(((output, rows), names, call), *learnable)
    return (None if output is None else found[0]), dict(zip(names, found[output is not None :], strict=True))


class _Attend(torch.autograd.Function):
    """Autograd node of attention that was already computed.

    Tensors that may have a gradient are separate arguments.
    """

    @staticmethod
    def forward(
        ctx: Any,
        given: tuple[tuple[Tensor | None, dict[str, Tensor]], tuple[str, ...], Arguments],
        *learnable: Tensor | None,
    ) -> Any:
        (output, rows), asked, call = given
        ctx.form, ctx.asked, ctx.kept = call[N_TENSORS:], asked, [name for name in rows if name in KEPT]
        ctx.save_for_backward(*call.tensors, output, *[rows[name] for name in ctx.kept])
        ctx.set_materialize_grads(False)
        if counts := [rows[name] for name in asked if name not in DIFFERENTIABLE]:
            ctx.mark_non_differentiable(*counts)
        return (*(() if output is None else (output,)), *[rows[name] for name in asked])

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        saved, wanted = ctx.saved_tensors, ctx.needs_input_grad[1:]
        call, output = Arguments._make((*saved[:N_TENSORS], *ctx.form)), saved[N_TENSORS]
        kept = dict(zip(ctx.kept, saved[N_TENSORS + 1 :], strict=True))
        of_output, of_rows = (None, grads) if output is None else (grads[0], grads[1:])
        given = dict(zip(ctx.asked, of_rows, strict=True))
        eager = not torch.is_grad_enabled() and is_eager(*saved, *grads)
        return (None, *_differentiate(call, output, kept, of_output, given, wanted, eager=eager))


_apply = apply_of(_Attend)


def _differentiate(
    call: Arguments,
    output: Tensor | None,
    kept: dict[str, Any],
    of_output: Tensor | None,
    of_rows: dict[str, Any],
    wanted: tuple[bool, ...],
    *,
    eager: bool,
) -> tuple[Tensor | None, ...]:
    """Gradients of the tensors LEARNABLE; None where not wanted."""
    of_kept, given = map(kept.get, KEPT), map(of_rows.get, DIFFERENTIABLE)
    rows = (output, *of_kept, of_output, *given)
    if eager:
        return differentiate(call, rows, wanted)
    return differentiate_as_operator(call.tensors, call[N_TENSORS:], rows, wanted)
