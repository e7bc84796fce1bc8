# SPDX-License-Identifier: BSD-3-Clause
"""Calls on tensors without the dispatcher of PyTorch, which takes longer than a small attention.

Results and gradients equal those of the operator ``attend``, which runs where PyTorch compiles, exports,
transforms or watches a call.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from .._base.checks import sum_over_repeats
from .._base.statistics import DIFFERENTIABLE, KEPT
from .._call.homes import tensor
from .._call.lost_rows import warn_of_lost_rows
from .._core import attend_tensors, differentiate_tensors
from ..exact.backward import of_numbers
from ._base.arguments import LEARNABLE, N_TENSORS, Arguments, read_call
from ._base.learned import Sink
from ._base.private import apply_of, is_eager
from ._base.tensors import array, autocast
from ._ops import attend_arrays, differentiate, differentiate_as_operator

_SMOOTH = frozenset(DIFFERENTIABLE)
#: Options of integers, of which the backward pass needs the numbers of the forward pass.
_INTEGERS = ("key_lengths", "document_ids")


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
    scale, mask, normalizer = options.get("scale"), options.get("attn_mask"), options.get("normalizer")
    sink = normalizer.logits if isinstance(normalizer, Sink) else None
    learnable = query, key, value, scale if isinstance(scale, Tensor) else None, mask, sink
    if query is None or key is None or not is_eager(*learnable):
        return None
    if torch.is_autocast_enabled("cpu"):
        learnable = *autocast(query, key, value), *learnable[3:]
        query, key, value = learnable[:3]
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

    Tensors that may have a gradient are separate arguments: query, key, value, scale, attn_mask and sink. The
    first rows are those that were asked for.
    """

    @staticmethod
    def forward(ctx: Any, given: tuple[Any, ...], *learnable: Tensor | None) -> Any:
        output, rows, ctx.names, n_asked, options = given
        scale, mask, sink = learnable[3:]
        saved = [name for name in _INTEGERS if isinstance(options.get(name), Tensor)]
        ctx.integers, ctx.options = saved, options
        if saved or not (scale is mask is sink is None):
            ctx.options = _without_tensors(options)
        ctx.save_for_backward(*learnable, output, *[options[name] for name in saved], *rows)
        ctx.set_materialize_grads(False)
        asked = rows[:n_asked]
        if not _SMOOTH.issuperset(ctx.names):
            named = zip(ctx.names, asked, strict=False)
            ctx.mark_non_differentiable(*[x for name, x in named if name not in _SMOOTH])
        return asked if output is None else (output, *asked)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        query, key, value, scale, mask, sink, output, *rows = ctx.saved_tensors
        wanted, options, names = ctx.needs_input_grad[1:], ctx.options, ctx.names
        if ctx.integers:
            n = len(ctx.integers)
            options, rows = {**options, **dict(zip(ctx.integers, rows, strict=False))}, rows[n:]
        of_output, of_rows = (None, grads) if output is None else (grads[0], grads[1:])
        if not (scale is mask is sink is None):
            options = _with_tensors(options, scale, mask, sink)
        eager = not torch.is_grad_enabled() and is_eager(*grads)
        if eager:
            plain = differentiate_tensors(
                query, key, value, of_output, output, names, rows, of_rows, wanted, options
            )
            if plain is not None:
                d_query, d_key, d_value, d_scale, d_mask, d_sink = plain
                if d_value is None and wanted[2]:  # the output is not in the loss
                    d_value = torch.zeros_like(value)
                if d_scale is not None:
                    d_scale = _typed(sum_over_repeats(array(d_scale), tuple(scale.shape)), scale)
                if d_sink is not None:
                    d_sink = _typed(of_numbers(array(d_sink), sink), sink)
                return None, d_query, d_key, d_value, d_scale, d_mask, d_sink
        call = read_call(query, key, value, options)
        kept, given = dict(zip(names, rows, strict=True)), dict(zip(names, of_rows, strict=False))
        of_all = *wanted[:5], False, False, wanted[5], False, False  # in the order of LEARNABLE
        found = _differentiate(call, output, kept, of_output, given, of_all, eager=eager)
        return (None, *found[:5], found[7])


_apply_plain = apply_of(_AttendPlain)


def _typed(gradient: Any, given: Tensor) -> Tensor:
    """The gradient of a tensor, in its type."""
    found: Tensor = tensor(gradient).to(given.dtype)
    return found


def _without_tensors(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """The options of a plain call without those tensors that are saved."""
    saved = ("scale", "attn_mask", "normalizer", *_INTEGERS)
    return {name: x for name, x in options.items() if name not in saved or not isinstance(x, (Tensor, Sink))}


def _with_tensors(
    options: Mapping[str, Any], scale: Tensor | None, mask: Tensor | None, sink: Tensor | None
) -> Mapping[str, Any]:
    """The options of a plain call with those tensors that were saved."""
    found = dict(options)
    if scale is not None:
        found["scale"] = scale
    if mask is not None:
        found["attn_mask"] = mask
    if sink is not None:
        found["normalizer"] = Sink(sink)
    return found


# ---- other calls, which Python reads ----------------------------------------------------------------


def attend_now(
    call: Arguments, asked: tuple[str, ...], kept: tuple[str, ...]
) -> tuple[Tensor | None, dict[str, Tensor]]:
    """Return the output, None without a value, and the requested statistics, if is_eager() accepts the call.

    `kept` adds what a backward pass starts from.
    """
    learnable = call.tensors()[: len(LEARNABLE)]
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
        ctx.save_for_backward(*call.tensors(), output, *[rows[name] for name in ctx.kept])
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
    return differentiate_as_operator(call.tensors(), call[N_TENSORS:], rows, wanted)
