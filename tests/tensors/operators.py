# SPDX-License-Identifier: BSD-3-Clause
"""The operators of attnscale that a call on tensors takes, seen from outside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["check", "taken"]


class _Watch(TorchDispatchMode):
    """Collects each operator of attnscale with its arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "attnscale":
            self.seen.append((func, args))
        return func(*args, **(kwargs or {}))


def taken(call: Callable[[], Any]) -> list[tuple[Any, Any]]:
    """The operators that the call takes, in their order, and their arguments."""
    with _Watch() as watch:
        call()
    return watch.seen


def check(call: Callable[[], Any], *names: str, learns: bool = True) -> None:
    """PyTorch finds no fault with the operators of these names, which the call takes, and their gradients."""
    seen = {func._schema.name.removeprefix("attnscale::"): (func, args) for func, args in taken(call)}
    assert seen.keys() >= {*names}
    for name in names:
        func, args = seen[name]
        given = [_leaf(x) if learns else x for x in args]
        assert set(torch.library.opcheck(func, given).values()) == {"SUCCESS"}


def _leaf(x: Any) -> Any:
    """A tensor that requires grad, if it may."""
    if not isinstance(x, torch.Tensor):
        return x
    return x.detach().clone().requires_grad_(x.is_floating_point())
