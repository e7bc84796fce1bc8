# SPDX-License-Identifier: BSD-3-Clause
"""Looking at the calls of attention of a model of transformers, which go on as they are."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from transformers import AttentionInterface

__all__ = ["Watch"]

#: The name under which a file of transformers has its attention functions.
_FUNCTIONS = "ALL_ATTENTION_FUNCTIONS"


class Watch:
    """While it is open, a function sees the arguments of every call of attention of a model.

    The model's own attention computes as before: only the function that transformers calls is another one,
    which passes the call on, and shows it. What the model computes is bit for bit the same.

    Parameters
    ----------
    model : torch.nn.Module
        A model with layers that call the attention interface of transformers.
    show : callable
        Called with the layer's name in the model, the layer, query, key, mask, and the other arguments.
    """

    def __init__(self, model: torch.nn.Module, show: Callable[..., None]) -> None:
        self._names = {id(module): name for name, module in model.named_modules()}
        self._model, self._show = model, show
        self._before: list[tuple[AttentionInterface, str, Any]] = []
        if not list(_interfaces(model)):
            raise ValueError(
                "model must have layers that call the attention interface of transformers, "
                f"got {type(model).__name__} without one"
            )

    def open(self) -> None:
        """Look at every call from now on."""
        for interface, name in {(id(each[0]), each[1]): each for each in _interfaces(self._model)}.values():
            local = interface._local_mapping
            self._before.append((interface, name, local.get(name)))
            interface[name] = self._shown(interface.get(name))

    def close(self) -> None:
        """Leave the calls alone."""
        while self._before:
            interface, name, own = self._before.pop()
            if own is None:
                del interface[name]
            else:
                interface[name] = own

    def _shown(self, own: Callable[..., Any] | None) -> Callable[..., Any]:
        def attend(
            module: Any, query: Any, key: Any, value: Any, mask: Any = None, *rest: Any, **given: Any
        ) -> Any:
            function = _eager_of(module) if own is None else own
            name = self._names.get(id(module))
            if name is not None:  # another model may run in between
                with torch.no_grad():
                    self._show(name, module, query.detach(), key.detach(), mask, given)
            return function(module, query, key, value, mask, *rest, **given)

        return attend


def _interfaces(model: torch.nn.Module) -> Iterator[tuple[AttentionInterface, str]]:
    """Where the model's layers look their attention function up, and by which name."""
    for module in model.modules():
        implementation = getattr(getattr(module, "config", None), "_attn_implementation", None)
        for found in _from_files(module, _FUNCTIONS):
            if implementation is not None and isinstance(found, AttentionInterface):
                yield found, implementation


def _from_files(module: Any, name: str) -> Iterator[Any]:
    """What the files that define the module's class, and its bases, have under a name."""
    for each in type(module).__mro__:
        found = getattr(sys.modules.get(each.__module__), name, None)
        if found is not None:
            yield found


def _eager_of(module: Any) -> Callable[..., Any]:
    """Eager attention, which no interface lists: every file of a model has its own."""
    function = next(_from_files(module, "eager_attention_forward"), None)
    if function is None:
        raise NotImplementedError(f"the eager attention of {type(module).__name__} was not found in its file")
    return function
