# SPDX-License-Identifier: BSD-3-Clause
"""Attention of linear time on tensors, with gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypedDict, Unpack

import numpy as np
import torch
from torch import Tensor

from .. import variants
from .._base.checks import choose, number, shown
from .._call.arrays import shape_in
from .._call.homes import tensor
from .._call.options import check_known, takes
from ..variants._efficient import NORMALIZATIONS
from ._base.arguments import alignment_of
from ._base.autograd import Differentiable
from ._base.device import backend_of, check_no_threads
from ._base.tensors import array, autocast, check_on_cpu, check_one_device, check_tensors, row_extents
from ._ops import filled
from ._plain.linear import attend_by_sums

#: Options that only some families have. Without a feature map, rows of linear_attention are features.
_OWN = ("log_decay", "projection", "feature_map", "normalization", "scale", "max_length")
_SCHEMA = (
    "str variant, Tensor query, Tensor key, Tensor value, Tensor? log_decay, Tensor? projection, "
    "str? feature_map, str? normalization, float? scale, int? max_length, str alignment, int? offset, "
    "bool enable_gqa, str layout, int? num_threads"
)
_N_ARGUMENTS = _SCHEMA.count(",") + 1
_LEARNABLE = slice(1, 5)  # query, key, value, log_decay


class SsdOptions(TypedDict, total=False):
    """Options of every family."""

    enable_gqa: bool
    layout: str
    num_threads: int | None
    backend: str | None


class LinearAttentionOptions(SsdOptions, total=False):
    """Options of the families that a call makes causal."""

    is_causal: bool
    causal: str | int | None


_OF_ALL, _OF_CAUSAL = frozenset(SsdOptions.__annotations__), frozenset(LinearAttentionOptions.__annotations__)


@takes(LinearAttentionOptions)
def efficient_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    normalization: str = "softmax",
    scale: float = 1.0,
    **options: Unpack[LinearAttentionOptions],
) -> Tensor:
    """:func:`attnscale.variants.efficient_attention` on tensors, with gradients.

    Parameters
    ----------
    query, key, value : Tensor
        Tensors on one device, which may require grad.
    normalization, scale
        As for the function on arrays.
    {names}
        As for :func:`attention`; there are no kernels in Triton.

    Examples
    --------
    >>> import attnscale as at, torch
    >>> q, k, v = torch.ones(3, 2, 50, 8).requires_grad_()
    >>> at.torch.efficient_attention(q, k, v, is_causal=True).shape
    torch.Size([2, 50, 8])
    """
    own = {"normalization": choose("normalization", normalization, NORMALIZATIONS), "scale": _scale(scale)}
    return _run(efficient_attention, query, key, value, own, options)


@takes(LinearAttentionOptions)
def linear_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    feature_map: str | tuple[Tensor, Tensor] = "elu",
    **options: Unpack[LinearAttentionOptions],
) -> Tensor:
    """:func:`attnscale.variants.linear_attention` on tensors, with gradients.

    Parameters
    ----------
    query, key, value : Tensor
        Tensors on one device, which may require grad.
    feature_map : {"elu", "relu"} or pair of Tensors, default "elu"
        Name of the map, or features of query and key, at least 0, which get the gradients.
    {names}
        As for :func:`attention`; there are no kernels in Triton.

    Examples
    --------
    >>> import attnscale as at, torch
    >>> q, k, v = torch.ones(3, 2, 50, 8).requires_grad_()
    >>> features = (q.exp(), k.exp())  # a custom feature map
    >>> at.torch.linear_attention(q, k, v, feature_map=features).shape
    torch.Size([2, 50, 8])
    """
    if isinstance(feature_map, tuple) and len(feature_map) == 2:
        check_tensors(query=query, key=key)
        check_tensors(**dict(zip(("feature_map[0]", "feature_map[1]"), feature_map, strict=True)))
        return _run(linear_attention, *feature_map, value, {}, options)
    if not isinstance(feature_map, str):
        raise TypeError(f"feature_map must be a name or a pair of tensors, got {shown(feature_map)}")
    return _run(linear_attention, query, key, value, {"feature_map": feature_map}, options)


@takes(LinearAttentionOptions)
def cosformer_attention(
    query: Tensor, key: Tensor, value: Tensor, *, max_length: int, **options: Unpack[LinearAttentionOptions]
) -> Tensor:
    """:func:`attnscale.variants.cosformer_attention` on tensors, with gradients.

    Parameters
    ----------
    query, key, value : Tensor
        Tensors on one device, which may require grad.
    max_length
        As for the function on arrays.
    {names}
        As for :func:`attention`; there are no kernels in Triton.

    Examples
    --------
    >>> import attnscale as at, torch
    >>> q, k, v = torch.ones(3, 2, 50, 8).requires_grad_()
    >>> at.torch.cosformer_attention(q, k, v, max_length=64).shape
    torch.Size([2, 50, 8])
    """
    return _run(cosformer_attention, query, key, value, {"max_length": max_length}, options)


@takes(LinearAttentionOptions)
def performer_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    projection: Tensor,
    scale: float | None = None,
    **options: Unpack[LinearAttentionOptions],
) -> Tensor:
    """:func:`attnscale.variants.performer_attention` on tensors, with gradients.

    Parameters
    ----------
    query, key, value : Tensor
        Tensors on one device, which may require grad.
    projection : Tensor, shape (features, head_dim)
        The directions, for example from :func:`attnscale.variants.performer_projection`; without a gradient.
    scale
        As for the function on arrays.
    {names}
        As for :func:`attention`; there are no kernels in Triton.

    Examples
    --------
    >>> import attnscale as at, torch
    >>> q, k, v = torch.ones(3, 2, 50, 8).requires_grad_()
    >>> directions = torch.from_numpy(at.variants.performer_projection(32, 8, rng=0))
    >>> at.torch.performer_attention(q, k, v, projection=directions).shape
    torch.Size([2, 50, 8])
    """
    check_tensors(projection=projection)
    if projection.requires_grad:
        raise ValueError("projection has no gradient in performer_attention; use projection.detach()")
    own = {"projection": projection, "scale": None if scale is None else _scale(scale)}
    return _run(performer_attention, query, key, value, own, options)


@takes(SsdOptions)
def ssd(
    query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor, **options: Unpack[SsdOptions]
) -> Tensor:
    """:func:`attnscale.variants.ssd` (state-space duality) on tensors, with gradients.

    Parameters
    ----------
    query, key, value, log_decay : Tensor
        Tensors on one device, which may require grad.
    {names}
        As for :func:`attention`; there are no kernels in Triton.

    Examples
    --------
    >>> import attnscale as at, torch
    >>> q, k, v = torch.ones(3, 2, 50, 8).requires_grad_()
    >>> decay = torch.full((2, 50), -0.1, requires_grad=True)
    >>> at.torch.ssd(q, k, v, decay).sum().backward()
    >>> decay.grad.shape
    torch.Size([2, 50])
    """
    check_tensors(log_decay=log_decay)
    return _run(ssd, query, key, value, {"log_decay": log_decay}, options)


def _scale(scale: Any) -> float:
    """The checked scale; a symbol of the compiler is checked by the array functions."""
    return scale if torch.compiler.is_compiling() else number("scale", scale)


def _run(
    function: Callable[..., Tensor],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    own: dict[str, Any],
    options: Mapping[str, Any],
) -> Tensor:
    name, given = function.__name__, options.get
    known = _OF_ALL if name == "ssd" else _OF_CAUSAL
    if any(option not in known for option in options):  # the compiler of PyTorch reads no signature
        check_known(function, options)
    check_tensors(query=query, key=key, value=value)
    check_one_device(query.device, query, key, value, *(x for x in own.values() if isinstance(x, Tensor)))
    rows = autocast(query, key, value)
    enable_gqa, layout = given("enable_gqa", False), given("layout", "bhsd")
    if backend_of(query.device, given("backend")) == "torch":
        check_no_threads(given("num_threads"))
        masks = {"is_causal": given("is_causal", False), "causal": given("causal")}
        own = {option: x for option, x in own.items() if x is not None}
        if name == "linear_attention":
            own.setdefault("feature_map", (None, None))
        return attend_by_sums(name, rows, own, masks, layout, gqa=enable_gqa)
    aligned = alignment_of(given("is_causal", False), given("causal"))
    form = *map(own.get, _OWN), *aligned, enable_gqa, layout, given("num_threads")
    found: Tensor = _attend(name, *rows, *form)
    return found


# ---- operators ----------------------------------------------------------------------------------


def _options(arguments: tuple[Any, ...]) -> dict[str, Any]:
    name, query, key, _, *own, alignment, offset, enable_gqa, layout, num_threads = arguments[:_N_ARGUMENTS]
    check_on_cpu(*(x for x in arguments if isinstance(x, Tensor)))
    options = {"enable_gqa": enable_gqa, "layout": layout, "num_threads": num_threads}
    if name != "ssd":
        options["causal"] = alignment or offset
    for option, x in zip(_OWN, own, strict=True):
        if x is not None:
            options[option] = array(x) if isinstance(x, Tensor) else x
    if name == "linear_attention" and "feature_map" not in options:
        options["feature_map"] = (array(query), array(key))
    return options


@torch.library.custom_op(
    "attnscale::attend_variant", mutates_args=(), device_types="cpu", schema=f"({_SCHEMA}) -> Tensor"
)
def attend_variant(*arguments: Any) -> Tensor:
    rows = (array(x) for x in arguments[1:4])
    return tensor(getattr(variants, arguments[0])(*rows, **_options(arguments)))


@attend_variant.register_fake
def _(*arguments: Any) -> Tensor:
    enable_gqa, layout = arguments[_N_ARGUMENTS - 3 : _N_ARGUMENTS - 1]
    rows, dtype = row_extents(arguments[1:4], layout, enable_gqa=enable_gqa)
    shape = shape_in(layout, (*rows, arguments[3].shape[-1]))
    return torch.empty(shape, dtype=dtype, device=arguments[1].device)


@torch.library.custom_op(
    "attnscale::attend_variant_backward",
    mutates_args=(),
    device_types="cpu",
    schema=f"({_SCHEMA}, Tensor grad_output) -> (Tensor, Tensor, Tensor, Tensor)",
)
def attend_variant_backward(*arguments: Any) -> tuple[Tensor, ...]:
    """Gradients of query, key, value and log_decay; empty for a log_decay of None."""
    rows = [array(x) for x in (*arguments[1:4], arguments[-1])]
    found = variants.gradients(arguments[0], *rows, **_options(arguments))
    query, key = (found.query, found.key) if found.feature_map is None else found.feature_map
    both = zip((query, key, found.value, found.log_decay), arguments[_LEARNABLE], strict=True)
    own = (None if x is None else tensor(np.ascontiguousarray(x)).to(given.dtype) for x, given in both)
    return filled(arguments[1], *own)


@attend_variant_backward.register_fake
def _(*arguments: Any) -> tuple[Tensor, ...]:
    own = (None if x is None else torch.empty(x.shape, dtype=x.dtype) for x in arguments[_LEARNABLE])
    return filled(arguments[1], *own)


_backward = Differentiable(attend_variant_backward)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[1:6])
    ctx.name, ctx.rest = inputs[0], inputs[6:]


def _pull_back(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    given = (ctx.name, *ctx.saved_tensors, *ctx.rest, grad)
    found = _backward(*given)
    wanted = ctx.needs_input_grad[_LEARNABLE]
    own = (x if want else None for x, want in zip(found, wanted, strict=True))
    return (None, *own, *(None for _ in range(_N_ARGUMENTS - 5)))


_attend = Differentiable(attend_variant, _save, _pull_back)
