# SPDX-License-Identifier: BSD-3-Clause
"""Seeing every call of attention of a model where the model makes it, while it computes as ever."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from types import FunctionType
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode

from .. import _functional
from .._functional import attention_statistics
from .._private import DisableTorchFunction, is_compiler_loaded, is_computed_again
from .calls import Call, Place
from .products import FOLLOWED, follow, watching
from .readings import Reading, key_heads, of_flex, of_own, of_sdpa, of_weights, unpacked
from .rows import Running, context_of, is_one_row

_T = TypeVar("_T")

#: Names under which modules keep how many heads of queries they have.
_HEADS = ("num_heads", "num_attention_heads", "n_heads", "n_head", "heads", "nhead", "num_attn_heads")

#: PyTorch's function behind nn.MultiheadAttention, which asks whether somebody looks at its tensors,
#: and is then not looked into: with this answer it is.
_LOOKED_INTO = FunctionType(
    functional.multi_head_attention_forward.__code__,
    {**vars(functional), "has_torch_function": lambda tensors: False},
    "multi_head_attention_forward",
    functional.multi_head_attention_forward.__defaults__,
)
_LOOKED_INTO.__kwdefaults__ = functional.multi_head_attention_forward.__kwdefaults__


class Watch:
    """While it is open, every call of attention inside a model is shown, and computed as ever.

    `show` is called with each :class:`Call`, under ``torch.no_grad``, before the model goes on, and
    `begin_pass` when a pass begins: a call of the model, or of a part of it from outside.

    Hooks of all modules say which of them runs. While one does, a mode of PyTorch sees the functions that are
    called: fused attention with its arguments, and softmax that is written out over scores, by
    :mod:`.products`. Compiled modules run uncompiled. What is computed again in a backward pass is not shown
    again.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        show: Callable[[Call], None],
        begin_pass: Callable[[], None] | None = None,
    ) -> None:
        self._show, self._begin_pass = show, begin_pass
        self._names = {module: name for name, module in model.named_modules()}
        self._running: list[Running] = []
        self._calls: Counter[str] = Counter()
        self._open = ExitStack()
        self._looking: ExitStack | None = None

    def open(self) -> None:
        """Look at every pass that begins from now on."""
        if is_compiler_loaded():
            self._open.enter_context(torch.compiler.set_stance("force_eager"))
        for module in self._names:
            for hook in (
                module.register_forward_pre_hook(self._enter, with_kwargs=True),
                # First of all hooks, so that of two watches the one that opened last closes first.
                module.register_forward_hook(self._leave, prepend=True, always_call=True),
            ):
                self._open.callback(hook.remove)

    def close(self) -> None:
        """Leave the model alone."""
        self._stop()
        self._open.close()
        self._running.clear()

    def __enter__(self) -> Watch:
        self.open()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # ---- which module runs ---------------------------------------------------------------------------

    def _enter(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        first = not self._running
        self._running.append(Running(module, self._names.get(module), args, kwargs))
        if first and not is_computed_again():
            self._calls.clear()
            if self._begin_pass is not None:
                self._begin_pass()
            self._looking = ExitStack()
            for hook in (
                register_module_forward_pre_hook(self._enter_other),
                register_module_forward_hook(self._leave_other, always_call=True),
            ):
                self._looking.callback(hook.remove)
            _functional.watchers.append(self)
            self._looking.callback(_functional.watchers.remove, self)
            mode = _Mode(self)
            watching.add(id(mode))
            self._looking.callback(watching.discard, id(mode))
            self._looking.enter_context(mode)

    def _enter_other(self, module: torch.nn.Module, args: tuple[Any, ...]) -> None:
        """A module that the model does not have runs inside: what it attends to is not the model's."""
        if module not in self._names:
            self._running.append(Running(module, None, args, {}))

    def _leave_other(self, module: torch.nn.Module, args: Any, out: Any) -> None:
        if module not in self._names and self._running and self._running[-1].module is module:
            self._running.pop()

    def _leave(self, module: torch.nn.Module, args: Any, out: Any) -> None:
        if self._running and self._running[-1].module is module:
            self._running.pop()
        if not self._running:
            self._stop()

    def _stop(self) -> None:
        if self._looking is not None:
            self._looking.close()
            self._looking = None

    # ---- what it calls -------------------------------------------------------------------------------

    def seen(self, read: Callable[..., Reading], *args: Any, **kwargs: Any) -> None:
        """Show a call of attention of the module that runs now."""
        module = self._running[-1].name
        if module is None:
            return
        with torch.no_grad(), _unwatched():
            found = read(self._heads(), *args, **kwargs)
            if read is of_sdpa and is_one_row(self._running[-1]):
                found = unpacked(found)
            place = Place(module, self._calls[module])
            self._calls[module] += 1
            (batch, heads, n_queries, _), n_keys = found.measured.query.shape, found.measured.key.shape[2]
            projected = () if found.product is None else found.product[:2]
            context = context_of(self._running, (batch, n_queries, n_keys), projected)
            heads = heads if found.product is None else key_heads(found.product.key)
            self._show(Call(place, key_heads=heads, **found._asdict(), **context._asdict()))

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor | None,
        statistics: tuple[str, ...],
        options: Mapping[str, Any],
    ) -> tuple[Tensor | None, tuple[Tensor, ...]]:
        """Show a call of this package with the arguments of :func:`attend_plain`, and compute it."""
        computed = partial(attention_statistics, query, key, value, statistics=statistics, **options)
        found = self.around(query, key, options, computed)
        return found.output, tuple(getattr(found, name) for name in statistics)

    def around(self, query: Tensor, key: Tensor, options: Mapping[str, Any], compute: Callable[[], _T]) -> _T:
        """Show a call with these options, and compute it."""
        for each in _functional.watchers:
            each.seen(of_own, query, key, options)
        with _unwatched():
            return compute()

    def _heads(self) -> int | None:
        """How many heads of queries the modules that run say they have, the innermost first."""
        for running in reversed(self._running):
            for name in _HEADS:
                if isinstance(found := getattr(running.module, name, None), int) and found > 0:
                    return found
        return None


class _Mode(TorchFunctionMode):
    """What PyTorch calls in place of its functions."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self._watch = watch

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function is functional.multi_head_attention_forward:
            with self:
                return _LOOKED_INTO(*args, **kwargs)
        name = getattr(function, "__name__", "")
        if name in FOLLOWED or name == "scaled_dot_product_attention":
            for kind in types:  # a mask of the interface of transformers stands for its full one
                if hasattr(kind, "plain"):
                    args, kwargs = kind.plain(function, args, kwargs)
        if name == "scaled_dot_product_attention":
            self._watch.seen(of_sdpa, *args, **kwargs)
        elif name == "flex_attention":
            self._watch.seen(of_flex, *args, **kwargs)
        elif name == "__get__":
            name = function.__self__.__name__
        out = function(*args, **kwargs)
        if name in FOLLOWED:
            with torch.no_grad(), DisableTorchFunction():
                weights = follow(function, name, args, kwargs, out, id(self))
            if weights is not None:
                self._watch.seen(of_weights, *weights)
        return out


@contextmanager
def _unwatched() -> Iterator[None]:
    """What is computed here is nobody's attention: it is measured, or is part of a call that was shown."""
    watchers, _functional.watchers[:] = _functional.watchers[:], []
    try:
        with DisableTorchFunction():
            yield
    finally:
        _functional.watchers[:] = watchers
