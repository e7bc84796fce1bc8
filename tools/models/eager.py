# SPDX-License-Identifier: BSD-3-Clause
"""The weights of attention that a model computes itself, by module and number of call, in plain torch.

Every softmax over the last axis of a product of two tensors is remembered, and so is what is made of it, by
the memory that it lies in; the first product with another tensor says that it was attention.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections import Counter
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

_PRODUCTS = {"matmul", "__matmul__", "__rmatmul__", "bmm", "baddbmm", "baddbmm_", "einsum"}
#: Functions whose results are no longer scores.
_ENDS = {
    "linear",
    "layer_norm",
    "rms_norm",
    "embedding",
    "conv1d",
    "conv2d",
    "conv3d",
    "group_norm",
    "batch_norm",
}
_CROSS = ("encoder_hidden_states", "key_value_states", "cross_states", "cross_attention_states", "context")


class Seen(NamedTuple):
    """A call of attention."""

    weights: Tensor  # (..., queries, keys and sinks) in float64
    cross: bool  # whether the module was given states of an encoder
    way: str
    mask: Tensor | None  # the innermost padding mask that has a number for each query


class _Made(NamedTuple):
    kind: str  # "scores" or "weights"
    origin: Tensor  # the weights as the softmax gave them
    alive: Tensor


class Eager(TorchFunctionMode):
    """Sees the weights of a model that runs inside, in ``calls`` by name: "name#1" is the second call."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.calls: dict[str, Seen] = {}
        self._model = model
        self._names = {module: name for name, module in model.named_modules()}
        self._running: list[tuple[Any, dict[str, Any]]] = []
        self._numbers: Counter[str] = Counter()
        self._made: dict[int, _Made] = {}  # what each piece of memory holds, which it keeps alive
        self._confirmed: set[int] = set()
        self._hooks = ExitStack()

    def __enter__(self) -> Eager:
        for module in self._names:
            before = module.register_forward_pre_hook(self._begin, with_kwargs=True)
            after = module.register_forward_hook(self._end, always_call=True)
            self._hooks.callback(before.remove)
            self._hooks.callback(after.remove)
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._hooks.close()

    def _begin(self, module: Any, args: Any, kwargs: Any) -> None:
        names = _parameters(type(module).forward)
        self._running.append((module, dict(zip(names, args, strict=False)) | kwargs))

    def _end(self, module: Any, args: Any, output: Any) -> None:
        if self._running and self._running[-1][0] is module:
            self._running.pop()

    def _keep(self, weights: Tensor, way: str, cross: bool = False) -> None:
        name = self._names[self._running[-1][0]] if self._running else ""
        number = self._numbers[name]
        self._numbers[name] += 1
        given = self._running[-1][1] if self._running else {}
        tensors = [x for x in given.values() if isinstance(x, Tensor)]
        memory = [given[key] for key in _CROSS if isinstance(given.get(key), Tensor)]
        cross = cross or any(x is not tensors[0] for x in memory)
        cross = cross or bool(re.search("cross_?att|encoder_attn|encdec", name, re.IGNORECASE))
        if isinstance(given.get("query"), Tensor) and isinstance(given.get("key"), Tensor):
            cross = cross or given["query"] is not given["key"]
        self.calls[f"{name}#{number}" if number else name] = Seen(
            weights.detach().double(), cross, way, self._mask(weights)
        )

    def _mask(self, weights: Tensor) -> Tensor | None:
        for _, given in reversed(self._running):
            mask = given.get("attention_mask")
            fits = isinstance(mask, Tensor) and mask.ndim == 2 and mask.shape[1] == weights.shape[-2]
            if fits and not mask.is_floating_point():
                return mask.bool()
        return None

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(function, "__name__", "")
        if function is functional.multi_head_attention_forward:
            return self._multi_head(args, kwargs)
        if name == "scaled_dot_product_attention":
            self._keep(fused(*args, **kwargs), "fused")
            return function(*args, **kwargs)
        tensors = [*_tensors((*args, *kwargs.values()))]
        known = [found for x in tensors if (found := self._made.get(_memory(x))) is not None]
        out = function(*args, **kwargs)
        if isinstance(out, Tensor) and out.is_floating_point() and out.numel():
            self._follow(name, tensors, known, out)
        return out

    def _follow(self, name: str, tensors: list[Tensor], known: list[_Made], out: Tensor) -> None:
        weights = next((each.origin for each in known if each.kind == "weights"), None)
        if name in _PRODUCTS:
            if weights is not None:
                self._confirm(weights, tensors)
            elif len(tensors) > 1 and not any(isinstance(x, torch.nn.Parameter) for x in tensors):
                self._made[_memory(out)] = _Made("scores", out, out)
        elif "softmax" in name and "log" not in name:
            if known and weights is None and _sums_to_one(out):
                self._made[_memory(out)] = _Made("weights", out, out)
        elif known and name not in _ENDS and _memory(out) not in self._made:
            kind = "scores" if weights is None else "weights"
            self._made[_memory(out)] = _Made(kind, out if weights is None else weights, out)

    def _confirm(self, weights: Tensor, tensors: list[Tensor]) -> None:
        if _memory(weights) in self._confirmed:
            return
        made = [self._made.get(_memory(x)) for x in tensors]
        others = [x for x, of in zip(tensors, made, strict=True) if of is None or of.kind != "weights"]
        if any(not isinstance(x, torch.nn.Parameter) for x in others):
            self._confirmed.add(_memory(weights))
            self._keep(weights, "softmax")

    def _multi_head(self, args: Any, kwargs: Any) -> Any:
        """PyTorch's own module with the weights of each head."""
        names = [*inspect.signature(functional.multi_head_attention_forward).parameters]
        given = dict(zip(names, args, strict=False)) | kwargs
        asked = {**given, "need_weights": True, "average_attn_weights": False}
        out, weights = functional.multi_head_attention_forward(**asked)
        self._keep(weights, "multi_head_attention_forward", given["query"] is not given["key"])
        if not given.get("need_weights", True):
            return out, None
        return out, weights.mean(1) if given.get("average_attn_weights", True) else weights


def fused(query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0,
          is_causal: bool = False, scale: Any = None, enable_gqa: bool = False) -> Tensor:  # fmt: skip
    """The weights of PyTorch's fused attention, as its documentation writes them."""
    query, key = query.double(), key.double()
    if enable_gqa:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        scores = scores.masked_fill(~seen, -torch.inf)
    if attn_mask is not None:
        if attn_mask.dtype != torch.bool:
            scores, attn_mask = scores + attn_mask, attn_mask > torch.finfo(attn_mask.dtype).min / 2
        scores = scores.masked_fill(~attn_mask, -torch.inf)
    return scores.softmax(-1)


@functools.cache
def _parameters(forward: Any) -> tuple[str, ...]:
    return tuple(inspect.signature(forward).parameters)[1:]


def _memory(x: Tensor) -> int:
    """Memory address of a tensor; tensors made by torch.func have none of their own."""
    try:
        return x.untyped_storage().data_ptr()
    except NotImplementedError:
        return id(x)


def _tensors(values: Any) -> Any:
    for each in values:
        if isinstance(each, Tensor):
            yield each
        elif isinstance(each, (list, tuple)):
            yield from (x for x in each if isinstance(x, Tensor))


def _sums_to_one(x: Tensor) -> bool:
    sums = x.detach().double().sum(-1)
    return bool(((sums - 1).abs() < 1e-3).logical_or(sums.isnan()).all())


def entropies(weights: Tensor) -> Tensor:
    """Entropy of each row, in float64."""
    return -torch.special.xlogy(weights, weights).sum(-1)


def weights_of(model: Any, inputs: dict[str, Any]) -> dict[str, Seen]:
    """Weights of the model's own eager attention in one pass."""
    torch.manual_seed(0)
    with torch.no_grad(), Eager(model) as seen:
        model(**inputs)
    return seen.calls
