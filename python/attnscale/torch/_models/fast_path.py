# SPDX-License-Identifier: BSD-3-Clause
"""PyTorch's fused path of its transformer modules in evaluation, which a watch replaces by their parts.

Unwatched, ``nn.MultiheadAttention`` and ``nn.TransformerEncoderLayer`` are one operator, and a
``TransformerEncoder`` cuts padding off. While a mode of PyTorch is active or a layer has hooks, their parts
run. Usually only rounding differs. More differs where the operator bypasses a module that would change its
weights (an adapter in place of ``linear1`` or around ``self_attn``), where a layer has a mask of numbers,
which the operator takes for hidden keys, and in rows of padding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache, partial
from inspect import signature
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module, MultiheadAttention, TransformerEncoder, TransformerEncoderLayer

from .._base.private import DisableTorchDispatch, DisableTorchFunction, function_modes, tree_leaves
from .._base.tensors import shows

#: Smallest multiple of the difference by rounding that counts as a difference.
_SLACK = 8.0
#: Types of tensors with PyTorch's own operations; with others PyTorch does not take the fused path.
_PLAIN = (Tensor, torch.nn.Parameter)


def parts(module: Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> float | None:
    """The largest difference between an output of a watched module and what PyTorch computes unwatched.

    Only ``nn.TransformerEncoderLayer`` and ``nn.MultiheadAttention`` are checked. `output` was computed in
    the current gradient mode, while a mode of PyTorch was active or hooks of this package were attached. None
    if the fused path is not taken without a watch, and if the difference, outside of rows of padding, is
    rounding: a multiple of the operator's change when its input is rounded otherwise. inf where only one of
    the two is NaN, and where the operator refuses the call.
    """
    kind = _kind_of(module, (TransformerEncoderLayer, MultiheadAttention))
    if kind is None:
        return None
    given = _bound(kind, module, args, kwargs)
    x, *_ = given.values()
    if not _is_plain(module, given.values()):
        return None
    try:
        fused = _unwatched(kind, module, given)
        if fused is None:
            return None
        found, want = (_rows(kind, each, given) for each in (fused, output))
        difference = _largest(found, want)
        least = torch.finfo(x.dtype).eps * max(_size(each) for each in want)
        if difference <= least:
            return None
        again = _unwatched(kind, module, _rounded(given, x))
        return (
            None
            if difference <= _SLACK * (least + _largest(_rows(kind, again, given), found))
            else difference
        )
    except Exception:  # the operator may accept less than its parts; the pass must go on
        return math.inf


def with_padding_cut(
    module: Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor
) -> Tensor | None:
    """The output of a watched ``nn.TransformerEncoder`` with rows of padding as they are without a watch.

    In evaluation the encoder cuts off padding after each text if it can: its last layer gives 0 there. None
    if the encoder cuts off nothing. Arguments as for :func:`parts`.
    """
    kind = _kind_of(module, (TransformerEncoder,))
    if kind is None or output.is_nested:
        return None
    given = _bound(kind, module, args, kwargs)
    if given.get("src_key_padding_mask") is None or not _is_plain(module, given.values()):
        return None
    try:
        _unwatched(kind, module, given)
    except _Reached as reached:
        if not reached.input.is_nested:
            return None
        lengths = torch.tensor([len(row) for row in reached.input.unbind()], device=output.device)
    with DisableTorchFunction(), DisableTorchDispatch():
        padding = torch.zeros_like(output[:1, :1])
        if module.norm is not None:
            padding = module.norm.forward(padding)
        place = torch.arange(output.shape[1], device=output.device)
        return torch.where((place >= lengths[:, None])[..., None], padding, output)


# ---- the path that PyTorch takes ---------------------------------------------------------------------


class _NotFused(Exception):
    """Raised where PyTorch computes the module by its parts."""


class _Reached(Exception):
    """Raised when an encoder calls its first layer; holds its input."""

    def __init__(self, given: Tensor) -> None:
        super().__init__()
        self.input = given


class _FirstLayer:
    """Replaces the first layer of an encoder, which is not computed."""

    def __init__(self, layer: Module) -> None:
        self._layer = layer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._layer, name)

    def __call__(self, given: Tensor, **_: Any) -> Any:
        raise _Reached(given)


def _not_fused(module: Module) -> Any:
    raise _NotFused


#: Attributes of a module that PyTorch reads first, or only, if it computes the module by its parts.
_BY_PARTS: dict[type[Module], tuple[str, Callable[[Any], Any]]] = {
    TransformerEncoderLayer: ("_sa_block", _not_fused),
    MultiheadAttention: ("dropout", _not_fused),
    TransformerEncoder: ("layers", lambda module: [_FirstLayer(module._modules["layers"][0])]),
}


class _Twin(Module):
    """A module with all attributes of another one, which raises where it is not a fused operator."""

    def modules(self) -> Iterator[Module]:
        """The modules with hooks from outside this package, which keep PyTorch from the operator."""
        return (each for each in super().modules() if _has_others_hooks(each))


@lru_cache(maxsize=16)
def _twin_class(kind: Any, own: Any) -> type[Module]:
    name, read = _BY_PARTS[kind]
    return type(own.__name__, (_Twin, own), {name: property(read)})


def _unwatched(kind: Any, module: Any, given: dict[str, Any]) -> Any:
    """The result of the fused operator, without hooks and modes; None if PyTorch does not take it."""
    own: Any = type(module)
    twin = object.__new__(_twin_class(kind, own))
    twin.__dict__ = module.__dict__
    try:
        with DisableTorchFunction(), DisableTorchDispatch():
            return kind.forward(twin, **given)
    except _NotFused:
        return None


def _kind_of(module: Module, kinds: tuple[type[Module], ...]) -> type[Module] | None:
    """PyTorch's class with a module's forward pass, if it may be fused: no mode from elsewhere is active."""
    if not isinstance(module, kinds) or module.training or "forward" in vars(module):
        return None
    if not all(_is_of_these_modules(mode) for mode in function_modes()):
        return None
    return next((kind for kind in kinds if type(module).forward is kind.forward), None)


def _has_others_hooks(module: Module) -> bool:
    hooks = (getattr(module, name, {}) for name in ("_forward_hooks", "_forward_pre_hooks"))
    return any(not _is_ours(hook) for each in hooks for hook in each.values())


def _is_ours(hook: Any) -> bool:
    """Whether a hook is a method of a class of this folder."""
    while isinstance(hook, partial):
        hook = hook.func
    return _is_of_these_modules(getattr(hook, "__self__", None))


def _is_of_these_modules(x: Any) -> bool:
    """Whether the class of an object is defined in this folder."""
    return type(x).__module__.rpartition(".")[0] == __name__.rpartition(".")[0]


def _is_plain(module: Module, given: Iterable[Any]) -> bool:
    """Whether no tensor has its own operations, or rows of several lengths."""
    tensors = (*module.parameters(), *(x for x in tree_leaves(list(given)) if isinstance(x, Tensor)))
    return all(type(x) in _PLAIN and not x.is_nested for x in tensors)


@lru_cache(maxsize=16)
def _signature(kind: Any) -> Any:
    return signature(kind.forward)


def _bound(kind: Any, module: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    found = dict(_signature(kind).bind(module, *args, **kwargs).arguments)
    del found["self"]
    return found


# ---- two outputs -------------------------------------------------------------------------------------


def _rows(kind: type[Module], output: Any, given: dict[str, Any]) -> list[Tensor]:
    """The output, and the weights if there are any, without rows of padded queries."""
    found = [x.detach() for x in (output if isinstance(output, tuple) else (output,)) if x is not None]
    padding = given.get("src_key_padding_mask" if kind is TransformerEncoderLayer else "key_padding_mask")
    with DisableTorchFunction(), DisableTorchDispatch():
        if padding is None:
            return [x.double() for x in found]
        real = ~padding if padding.dtype == torch.bool else shows(padding)
        return [(x if x.dim() == 3 else x.transpose(1, 2))[real].double() for x in found]


def _largest(found: list[Tensor], want: list[Tensor]) -> float:
    """The largest difference; inf where one of two numbers is NaN."""
    with DisableTorchFunction(), DisableTorchDispatch():
        largest = 0.0
        for x, y in zip(found, want, strict=True):
            difference = torch.where(x.isnan() & y.isnan() | (x == y), 0.0, (x - y).abs())
            if difference.numel():
                largest = max(largest, difference.nan_to_num(nan=math.inf).amax().item())
        return largest


def _size(x: Tensor) -> float:
    """The largest absolute entry of a tensor, NaN ignored."""
    with DisableTorchFunction(), DisableTorchDispatch():
        return x.nan_to_num(nan=0.0).abs().amax().item() if x.numel() else 0.0


def _rounded(given: dict[str, Any], x: Tensor) -> dict[str, Any]:
    """The arguments with `x`, wherever it occurs, rounded otherwise: by eps up and down in turn."""
    with DisableTorchFunction(), DisableTorchDispatch():
        signs = 1 - 2 * (torch.arange(x.shape[-1], device=x.device) % 2).to(x.dtype)
        other = torch.addcmul(x, x, signs, value=torch.finfo(x.dtype).eps)
    return {name: other if each is x else each for name, each in given.items()}
