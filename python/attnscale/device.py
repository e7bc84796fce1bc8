# SPDX-License-Identifier: BSD-3-Clause
"""Attention of arrays on a device: PyTorch attends there, and results return to the arrays' library."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any, TypeVar, cast

import numpy as np

from ._base.checks import gradient_lost, is_on_device, shown
from ._call.homes import is_tensor
from .exact.forward import attention as attend_arrays
from .exact.forward import attention_entropy as entropy_of_arrays
from .exact.forward import attention_statistics as statistics_of_arrays
from .exact.results import AttentionStatistics

__all__ = ["attention", "attention_entropy", "attention_statistics"]

_Function = TypeVar("_Function", bound=Callable[..., Any])

#: A module's own name is looked up faster than NumPy's, which counts in a small call.
_ARRAY = np.ndarray


def _on_its_device(function: _Function) -> _Function:
    """The function, which passes arrays on a device to its namesake in attnscale.torch."""

    @functools.wraps(function)
    def call(query: Any, *arrays: Any, **options: Any) -> Any:
        if type(query) is _ARRAY or not is_on_device(query):
            return function(query, *arrays, **options)
        return _attend_there(function.__name__, query, *arrays, **options)

    call.__module__ = __name__
    return cast(_Function, call)


attention = _on_its_device(attend_arrays)
attention_statistics = _on_its_device(statistics_of_arrays)
attention_entropy = _on_its_device(entropy_of_arrays)


def _attend_there(name: str, query: Any, *arrays: Any, **options: Any) -> Any:
    """Call the function of this name in attnscale.torch, with arrays shared by DLPack."""
    try:
        on_tensors = import_module("attnscale.torch")
    except ImportError as error:
        raise TypeError(f"query is on a device, where attention needs PyTorch ({error})") from None
    for each in ("out", "dims"):
        if (given := options.pop(each, None)) is not None:
            raise ValueError(f"{each} must be None for arrays on a device, got {shown(given)}")
    names = ("query", "key", "value")
    tensors = [_tensor_of(name, each, x) for each, x in zip(names, (query, *arrays), strict=False)]
    options = {each: _tensor_of(name, each, x) for each, x in options.items()}
    found = getattr(on_tensors, name)(*tensors, **options)
    back = _itself if is_tensor(query) else _namespace(query).from_dlpack
    if not isinstance(found, on_tensors.AttentionStatistics):
        return back(found)
    rows = {each: back(x) for each, x in found._asdict().items() if x is not None}
    return AttentionStatistics(**rows)


def _tensor_of(function: str, name: str, x: Any) -> Any:
    """An array argument as a tensor; other arguments unchanged."""
    if getattr(x, "requires_grad", False):
        raise gradient_lost(name, function)
    if is_tensor(x) or not hasattr(x, "__dlpack__"):
        return x
    return sys.modules["torch"].from_dlpack(x)


def _namespace(array: Any) -> Any:
    """The module with the functions of an array's library."""
    if hasattr(array, "__array_namespace__"):
        return array.__array_namespace__()
    return sys.modules[type(array).__module__.partition(".")[0]]


def _itself(x: Any) -> Any:
    return x
