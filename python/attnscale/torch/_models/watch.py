# SPDX-License-Identifier: BSD-3-Clause
"""Watch of every call of attention of a model as it computes."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import chain
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode

from ..._base.checks import warn
from .._base.private import (
    DisableTorchFunction,
    TorchDispatchMode,
    is_compiler_loaded,
    is_computed_again,
    is_operator,
    is_whole_operator,
    is_wrapped,
    run_parts,
    tree_leaves,
    without_dispatch_modes,
)
from .._eager import watching
from .._functional import attention_statistics
from .axes import kin_of
from .calls import Place, SeenCall
from .fast_path import parts, with_padding_cut
from .naming import named_modules
from .operation import known
from .operators import Following
from .readings import Reading, of_flex, of_own, of_sdpa, of_weights
from .rows import Context, Running, context_of

_T = TypeVar("_T")

#: PyTorch's fused attention, as a function and as an operator in exported models.
_SDPA = (
    functional.scaled_dot_product_attention,
    torch.ops.aten.scaled_dot_product_attention,
    torch.ops.aten.scaled_dot_product_attention.default,
)
#: Operators of fused attention, called from C++.
_FUSED = frozenset(
    f"_scaled_dot_product_{name}"
    for name in (
        *("flash_attention_for_cpu", "flash_attention", "efficient_attention", "cudnn_attention"),
        "fused_attention_overrideable",
    )
)
#: Modules of PyTorch with their own operator for nested tensors.
_FUSED_LAYERS = (torch.nn.MultiheadAttention, torch.nn.TransformerEncoderLayer, torch.nn.TransformerEncoder)
#: Functions that take the numbers of a tensor out of PyTorch.
_OUTSIDE = frozenset(("numpy", "__array__", "tolist"))


class Watch:
    """Shows every call of attention inside a model while it is open; the model computes as before.

    `show` is called with each :class:`SeenCall`, under ``torch.no_grad``, before the model goes on.
    `begin_pass` is called when a pass begins (a call of the model, or of a part of it from outside), and
    `lose` with the name of a module and the reason for attention that cannot be measured; `end` with a module
    of the model and its output.

    Hooks of all modules tell which of them runs. Meanwhile two modes of PyTorch see the computation in this
    thread: calls of fused attention with their arguments, and every operator below autograd, by
    :mod:`.operators`. A watch belongs to the thread that opened it, and to threads in which PyTorch runs
    replicas of the model for it. Compiled modules run uncompiled. Recomputation in a backward pass is not
    shown again.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        show: Callable[[SeenCall], None],
        begin_pass: Callable[[], None] | None = None,
        lose: Callable[[str, str], None] | None = None,
        end: Callable[[Running, Any], None] | None = None,
    ) -> None:
        self._model, self._show, self._begin_pass, self._lose = model, show, begin_pass, lose
        self._end = end
        self._thread: int | None = None
        self._passes: dict[int, _Pass] = {}
        self._calls: Counter[str] = Counter()
        self._open = ExitStack()
        self.modules: set[torch.nn.Module] = set()
        self._compared: set[torch.nn.Module] = set()
        self._lock = threading.RLock()
        #: Whether another thread ran the model, which is not shown.
        self.missed_a_thread = False

    def open(self) -> None:
        """Watch every pass of this thread that begins from now on."""
        self._thread, self.missed_a_thread = threading.get_ident(), False
        named = named_modules(self._model)
        self.modules = {*named.values()}
        for name, module in named.items():
            for hook in (
                module.register_forward_pre_hook(partial(self._enter, name), with_kwargs=True),
                # Before other hooks, so that of two watches the one that opened last closes first.
                module.register_forward_hook(
                    partial(self._leave, name), prepend=True, with_kwargs=True, always_call=True
                ),
            ):
                self._open.callback(hook.remove)

    def close(self) -> None:
        """Stop watching, and remove all hooks."""
        for one in list(self._passes.values()):
            one.close()
        self._passes.clear()
        self._open.close()

    def __enter__(self) -> Watch:
        self.open()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # ---- which module runs ---------------------------------------------------------------------------

    def _enter(
        self, name: str, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        here = threading.get_ident()
        one = self._passes.get(here)
        if one is None and not self._is_ours(module, here):
            self.missed_a_thread = True
            return
        running = Running(module, name, args, kwargs)
        if one is not None:
            one.running.append(running)
        else:
            one = self._passes[here] = _Pass(self)
            one.running.append(running)
            if not is_computed_again():
                self._begin(one, here == self._thread)
        if isinstance(module, _FUSED_LAYERS) and any(
            isinstance(x, Tensor) and x.is_nested for x in (*args, *kwargs.values())
        ):  # these take nested tensors only while no mode is active
            one.suspend(module)
            self.lose(name, "its tensors are nested, with rows of several lengths")

    def _is_ours(self, module: torch.nn.Module, thread: int) -> bool:
        """Whether a pass that begins in a thread belongs to this watch."""
        return thread == self._thread or (bool(self._passes) and getattr(module, "_is_replica", False))

    def _begin(self, one: _Pass, is_first: bool) -> None:
        if is_first:
            self._calls.clear()
            if self._begin_pass is not None:
                self._begin_pass()
        one.begin(chain(self._model.parameters(), self._model.buffers()))

    def _leave(self, name: str, module: torch.nn.Module, args: Any, kwargs: Any, out: Any) -> Tensor | None:
        here = threading.get_ident()
        one = self._passes.get(here)
        if one is None or not one.running or one.running[-1].module is not module:
            return None
        running = one.running.pop()
        one.resume(module)
        if not one.running:
            del self._passes[here]
            one.close()
        if out is None or is_computed_again():
            return None
        if self._end is not None:
            with torch.no_grad(), _unwatched():
                self._end(running, out)
        self._compare(name, module, args, kwargs, out)
        return with_padding_cut(module, args, kwargs, out)

    def _compare(self, name: str, module: torch.nn.Module, args: Any, kwargs: Any, out: Any) -> None:
        """Warn once if PyTorch's fused operator of a layer, not used now, has another output."""
        if module in self._compared:
            return
        self._compared.add(module)
        if (difference := parts(module, args, kwargs, out)) is not None:
            warn(
                f"{type(module).__name__} {name or '(the model)'} has another output while it is watched, "
                f"off by {difference:.2g}: otherwise PyTorch takes one operator for the whole layer, which "
                "runs none of its modules and leaves out what an adapter in their place does. Rows are those "
                "of the modules"
            )

    # ---- calls of attention --------------------------------------------------------------------------

    def show(self, one: _Pass, found: Reading) -> None:
        module = one.place
        if module is None:
            return
        place = self._number(module)
        (batch, _, n_queries, _), n_keys = found.measured.query.shape, found.measured.key.shape[2]

        def is_projected(x: Tensor) -> bool:
            return bool(kin_of(*one.following.note(x).axes) & found.channels)

        rows = batch, n_queries, n_keys
        context = context_of(one.running, rows, is_projected, partial(_seen_keys, found))
        if found.asks_learned and context.kind == "self":
            context = Context("cross", None, None, is_cut=False)
        self._show(
            SeenCall(place, **_without(found, "channels", "shown", "asks_learned"), **context._asdict())
        )

    def lose(self, module: str | None, why: str) -> None:
        """Report attention of a module that cannot be measured."""
        if module is not None:
            place = self._number(module)
            if self._lose is not None:
                self._lose(str(place), why)

    def _number(self, module: str) -> Place:
        with self._lock:
            self._calls[module] += 1
            return Place(module, self._calls[module] - 1)

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
        for each in watching.watchers:
            one = each._passes[threading.get_ident()]
            one.see(partial(of_own, one.following.note), query, key, options)
        with _unwatched():
            return compute()


class _Pass:
    """One pass of a model in one thread: the running modules, and notes of the tensors that they made."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self.running: list[Running] = []
        self.following = Following(lambda: self.place)
        self._failed: set[str | None] = set()  # modules in which an operator could not be followed
        self.is_paused = False
        self._open, self._modes, self._thread = ExitStack(), ExitStack(), 0
        self._suspended_by: torch.nn.Module | None = None

    @property
    def place(self) -> str | None:
        """Name of the running module; None for one outside the model."""
        return self.running[-1].name if self.running else None

    def begin(self, constants: Iterator[Tensor]) -> None:
        """Watch the computation in this thread from now on."""
        self.following.add_constants(constants)
        self._thread = threading.get_ident()
        for hook in (
            register_module_forward_pre_hook(self._enter_other),
            register_module_forward_hook(self._leave_other, always_call=True),
        ):
            self._open.callback(hook.remove)
        before, watching.watchers = watching.watchers, (*watching.watchers, self.watch)
        self._open.callback(setattr, watching, "watchers", before)
        if is_compiler_loaded():
            self._open.enter_context(_uncompiled())
        self._open.callback(self._modes.close)
        self._look()

    def _look(self) -> None:
        self._modes.enter_context(_Operators(self))
        self._modes.enter_context(_Functions(self))

    def suspend(self, module: torch.nn.Module) -> None:
        if self._suspended_by is None:
            self._suspended_by = module
            self._modes.close()

    def resume(self, module: torch.nn.Module) -> None:
        """Watch again if it was suspended for this module."""
        if self._suspended_by is module:
            self._suspended_by = None
            self._look()

    def close(self) -> None:
        """Report weights that multiplied nothing, and stop watching."""
        self._open.close()
        unused = {each.place: each.why for each in reversed(self.following.outcomes) if not each.is_used}
        for place, why in unused.items():
            self.watch.lose(place, why)

    # ---- modules outside the model, whose attention does not count

    def _enter_other(self, module: torch.nn.Module, args: tuple[Any, ...]) -> None:
        if self._is_other(module):
            self.running.append(Running(module, None, args, {}))

    def _leave_other(self, module: torch.nn.Module, args: Any, out: Any) -> None:
        if self._is_other(module) and self.running and self.running[-1].module is module:
            self.running.pop()

    def _is_other(self, module: torch.nn.Module) -> bool:
        is_here = threading.get_ident() == self._thread
        return is_here and module not in self.watch.modules and not getattr(module, "_is_replica", False)

    # ---- computation

    def see(self, read: Callable[..., Reading], *args: Any, **kwargs: Any) -> None:
        """Show a call of attention, or report why it cannot be measured."""
        if self.place is None:
            return
        tensors = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
        with torch.no_grad(), _unwatched():
            if why := next(filter(None, map(_why_unread, tensors)), ""):
                self.watch.lose(self.place, why)
                return
            other = next(filter(_is_of_another_type, tensors), None)
            try:
                found = read(*args, **kwargs)
                if other is not None:
                    found.measured.query.sum().item()  # whether its numbers can be read
            except Exception as error:  # a watch must not end the pass
                of_type = "" if other is None else f", as its tensors are of the type {type(other).__name__}"
                self.watch.lose(
                    self.place, f"it could not be read{of_type} ({type(error).__name__}: {error})"
                )
                return
            self.watch.show(self, found)

    def follow(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """Note the result of an operator, and show weights that it multiplied with values."""
        try:
            with DisableTorchFunction():
                self.following.follow(function, args, kwargs, out)
        except Exception as error:  # a watch must not end the pass
            if self.place not in self._failed:
                self._failed.add(self.place)
                self.watch.lose(
                    self.place, f"{function} could not be followed ({type(error).__name__}: {error})"
                )
        if self.following.used:
            self.see_used()

    def see_used(self) -> None:
        used, self.following.used = self.following.used, []
        for weights in used:
            self.see(of_weights, weights, numbers=weights.numbers)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Block of operators that are part of a call already shown."""
        before, self.is_paused = self.is_paused, True
        try:
            yield
        finally:
            self.is_paused = before


class _Functions(TorchFunctionMode):
    """Mode for functions of PyTorch that are attention as a whole, or take numbers out of it."""

    def __init__(self, one: _Pass) -> None:
        super().__init__()
        self._one = one

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, one = kwargs or {}, self._one
        if function in _SDPA:
            return self._fused(function, types, args, kwargs)
        name = getattr(function, "__name__", "")
        if name == "flex_attention":
            one.see(partial(of_flex, one.following.note), *args, **kwargs)
            with one.paused():
                return function(*args, **kwargs)
        if name in _OUTSIDE and args and isinstance(args[0], Tensor):
            one.following.use_outside(args[0])
            one.see_used()
        return function(*args, **kwargs)

    def _fused(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        one = self._one
        for kind in types:  # a mask of the interface of transformers stands for its full one
            if hasattr(kind, "plain"):
                args, kwargs = kind.plain(function, args, kwargs)
        query, value = (
            args[i] if len(args) > i else kwargs[name] for i, name in ((0, "query"), (2, "value"))
        )
        if is_wrapped(query):  # the numbers are seen in its operators
            return function(*args, **kwargs)
        one.see(partial(of_sdpa, one.following.note), *args, **kwargs)
        with one.paused():
            out = function(*args, **kwargs)
        one.following.attended(query, value, out)
        return out


class _Operators(TorchDispatchMode):
    """Mode for operators below autograd, from any caller."""

    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False, because PyTorch would load its compiler, which takes seconds, to keep it from this class."""
        return False

    def __init__(self, one: _Pass) -> None:
        super().__init__()
        self._one = one

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, one = kwargs or {}, self._one
        if one.is_paused or not is_operator(function) or is_computed_again():
            return function(*args, **kwargs)
        if is_whole_operator(function) and not any(map(_is_of_another_type, tree_leaves((args, kwargs)))):
            with self:
                return run_parts(function, args, kwargs)
        name, _, _, hides = known(function)
        if hides:
            one.watch.lose(one.place, f"its weights stay inside of {hides}")
        if name in _FUSED:
            return self._fused(name, function, args, kwargs)
        out = function(*args, **kwargs)
        one.follow(function, args, kwargs, out)
        return out

    def _fused(self, name: str, function: Any, args: Any, kwargs: Any) -> Any:
        """Attention called from C++, with the arguments of PyTorch's function under other names."""
        one = self._one
        names = [each.name for each in function._schema.arguments]
        given = dict(zip(names, args, strict=False)) | kwargs
        query, key, value = (given[each] for each in ("query", "key", "value"))
        options = {"attn_mask": given.get("attn_mask", given.get("attn_bias")), "scale": given.get("scale")}
        options["is_causal"] = bool(given.get("is_causal"))
        one.see(partial(of_sdpa, one.following.note), query, key, value, enable_gqa=True, **options)
        out = function(*args, **kwargs)
        one.following.attended(query, value, out[0])
        return out


def _why_unread(x: Tensor) -> str:
    """Reason why the numbers of a tensor cannot be read, or ""."""
    if x.is_nested:
        return "its tensors are nested, with rows of several lengths"
    if x.device.type == "meta":
        return "its tensors have no numbers, as they are on the meta device"
    if is_wrapped(x):
        return f"its tensors are of the type {type(x).__name__}"
    return ""


def _is_of_another_type(x: Any) -> bool:
    """Whether a tensor overrides operators."""
    return isinstance(x, Tensor) and type(x).__torch_dispatch__ is not Tensor.__torch_dispatch__


def _seen_keys(found: Reading) -> Tensor | None:
    """The visible keys of each text, (batch, n_keys), if each is seen by its own row.

    None if every key is seen by a row, or if keys are hidden by something other than padding.
    """
    if found.shown is None:
        return None
    shown = found.shown()
    if shown.shape[-1] != found.measured.query.shape[2]:
        return None
    shown = shown[(None,) * (4 - shown.ndim)]
    keys = shown.flatten(1, 2).any(1)
    if shown.shape[-2] > 1 and bool((keys & ~shown.diagonal(dim1=-2, dim2=-1).any(1)).any()):
        return None
    return None if bool(keys.all()) else keys


def _without(found: Reading, *names: str) -> dict[str, Any]:
    return {name: x for name, x in found._asdict().items() if name not in names}


@contextmanager
def _unwatched() -> Iterator[None]:
    """Calls made in this block are not recorded."""
    before, watching.watchers = watching.watchers, ()
    try:
        with DisableTorchFunction(), without_dispatch_modes():
            yield
    finally:
        watching.watchers = before


class _Compiled:
    """Number of passes for which compiled code of this process runs uncompiled."""

    lock = threading.Lock()
    count = 0
    stance: Any = None


@contextmanager
def _uncompiled() -> Iterator[None]:
    """Block in which code compiled by PyTorch runs uncompiled, in all threads; blocks may overlap."""
    with _Compiled.lock:
        if _Compiled.count == 0:
            _Compiled.stance = torch.compiler.set_stance("force_eager")
            _Compiled.stance.__enter__()
        _Compiled.count += 1
    try:
        yield
    finally:
        with _Compiled.lock:
            _Compiled.count -= 1
            if _Compiled.count == 0:
                _Compiled.stance.__exit__(None, None, None)
                _Compiled.stance = None
