# SPDX-License-Identifier: BSD-3-Clause
"""Private names of PyTorch that the package uses; PyTorch 2.13 and 2.15 have all of them.

No other module reads a private name of PyTorch. A test lists the names that a version lacks.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode
from torch.utils._python_dispatch import _pop_mode, _push_mode
from torch.utils._pytree import tree_leaves as tree_leaves
from torch.utils._pytree import tree_map_only as tree_map_only

_Function = TypeVar("_Function", bound=Callable[..., Any])

#: Contexts in which functions of PyTorch call no mode and no subclass, or no subclass.
DisableTorchFunction = torch._C.DisableTorchFunction
DisableTorchFunctionSubclass = torch._C.DisableTorchFunctionSubclass
#: A context in which operators call no mode and no subclass.
DisableTorchDispatch = torch._C._DisableTorchDispatch
#: The function modes of this thread.
function_modes = torch.overrides._get_current_function_mode_stack

# Names of this module are found faster than those of PyTorch, which matters for small calls.
#: Whether a transform of torch.func is active.
is_transformed = torch._C._are_functorch_transforms_active
_dispatch_modes, _function_modes = torch._C._len_torch_dispatch_stack, torch._C._len_torch_function_stack
_tracing_state, _is_profiled = torch._C._get_tracing_state, torch._C._autograd._profiler_enabled
_dispatch_keys = torch._C._dispatch_keys
#: Dispatch keys of a plain tensor on the CPU, inside and outside of inference mode. Tensors on other devices,
#: fake, batched, nested or sparse ones, and those stored with the opposite sign have other keys.
_INFERENCE = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU) | torch._C.DispatchKeySet(
    torch._C.DispatchKey.AutocastCPU
)
_KEYS = {
    _INFERENCE.raw_repr(),
    _INFERENCE.add(torch._C.DispatchKey.AutogradCPU).add(torch._C.DispatchKey.ADInplaceOrView).raw_repr(),
}
#: Types whose operations are PyTorch's own; a subclass may have others.
_PLAIN = (torch.Tensor, torch.nn.Parameter)


def is_traced() -> bool:
    """Whether tensors may be compiled, transformed or fake, without numbers that Python can read."""
    return torch.compiler.is_compiling() or is_transformed() or _dispatch_modes() > 0


def constant_when_compiled(function: _Function) -> _Function:
    """Mark a function whose result the compiler takes as a constant, without tracing it.

    ``torch.compiler.assume_constant_result`` does as much, but imports the compiler, which takes a second.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def has_forward_derivatives() -> bool:
    return bool(forward_ad._current_level >= 0)


def is_eager(*tensors: torch.Tensor | None) -> bool:
    """Whether a call is a plain one: an operator would run its CPU kernel on the tensors as they are.

    The call is not compiled, traced, transformed, watched or profiled, there is no forward-mode
    differentiation, and every tensor is a plain one on the CPU, without a subclass.
    """
    if (
        torch.compiler.is_compiling()
        or is_transformed()
        or _dispatch_modes()
        or _function_modes()
        or _tracing_state() is not None
        or _is_profiled()
        or forward_ad._current_level >= 0
    ):
        return False
    for x in tensors:
        if x is not None and not (type(x) in _PLAIN and _dispatch_keys(x).raw_repr() in _KEYS):
            return False
    return True


def apply_of(function: type[torch.autograd.Function]) -> Callable[..., Any]:
    """The ``apply`` of a function if is_eager(), without PyTorch's slow search for torch.func."""
    found: Callable[..., Any] = super(torch.autograd.Function, function).apply
    return found


def is_computed_again() -> bool:
    """Whether a backward pass is running, as when a checkpoint computes again."""
    return bool(torch._C._current_graph_task_id() != -1)


def is_compiler_loaded() -> bool:
    """Whether the compiler of PyTorch, which takes seconds to load, has been loaded."""
    return "torch._dynamo" in sys.modules


def flex_scores(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *others: Any) -> Any:
    """The scores of a call of ``flex_attention``, -inf where its mask hides a key."""
    from torch._higher_order_ops.flex_attention import _math_attention_inner

    return _math_attention_inner(query, key, value, *others)[1]


@contextmanager
def without_dispatch_modes() -> Iterator[None]:
    """A block in which operators of this thread run without calling a dispatch mode."""
    modes = [_pop_mode() for _ in range(_dispatch_modes())]
    try:
        yield
    finally:
        for mode in reversed(modes):
            _push_mode(mode)


def is_operator(function: Any) -> bool:
    """Whether a function passed to a dispatch mode is a single operator."""
    return isinstance(function, torch._ops.OpOverload)


def is_whole_operator(function: Any) -> bool:
    """Whether a composite operator arrives as it was called, as in inference mode."""
    return torch.is_inference_mode_enabled() and torch._C._dispatch_has_kernel_for_dispatch_key(
        function.name(), torch._C.DispatchKey.CompositeImplicitAutograd
    )


def run_parts(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an operator by its own kernel, which calls others; Python's decomposition may round differently."""
    return function._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, *args, **kwargs)


def is_wrapped(x: torch.Tensor) -> bool:
    return bool(torch._C._functorch.is_functorch_wrapped_tensor(x))
