# SPDX-License-Identifier: BSD-3-Clause
"""Arrays on a device: attended there by PyTorch, and back to the library that they came from."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from .._checks import shown
from .._results import AttentionStatistics
from .homes import is_tensor

__all__ = ["attend_there"]


def attend_there(name: str, given: Mapping[str, Any]) -> Any:
    """The function of attnscale.torch of this name on arrays on a device, with results that stay there.

    `given` are the arguments of the function on arrays by their names. Arrays go to PyTorch and back by
    DLPack, without a copy.
    """
    try:
        on_tensors = import_module("attnscale.torch")  # which is made of this package's functions on arrays
    except ImportError as error:
        raise TypeError(f"query is on a device, where attention needs PyTorch ({error})") from None
    options = {each: _tensor_of(each, x) for each, x in given.items() if each != "unknown"}
    for each in ("out", "dims"):
        if options.pop(each, None) is not None:
            raise ValueError(f"{each} must be None for arrays on a device, got {shown(given[each])}")
    back = _namespace(given["query"]).from_dlpack if not is_tensor(given["query"]) else _itself
    found = getattr(on_tensors, name)(**options)
    if not isinstance(found, on_tensors.AttentionStatistics):
        return back(found)
    rows = {each: back(x) for each, x in found._asdict().items() if x is not None}
    return AttentionStatistics(**rows)


def _tensor_of(name: str, x: Any) -> Any:
    """An array as a tensor; what is none stays as it is."""
    if getattr(x, "requires_grad", False):
        raise TypeError(
            f"{name} requires grad, and a result for arrays has none; use {name}.detach() or attnscale.torch"
        )
    if is_tensor(x) or not hasattr(x, "__dlpack__"):
        return x
    return sys.modules["torch"].from_dlpack(x)


def _namespace(array: Any) -> Any:
    """The module that has the functions of an array's library."""
    if hasattr(array, "__array_namespace__"):
        return array.__array_namespace__()
    return sys.modules[type(array).__module__.partition(".")[0]]


def _itself(x: Any) -> Any:
    return x
