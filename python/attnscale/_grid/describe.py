# SPDX-License-Identifier: BSD-3-Clause
"""Identity of a parameter or a function across runs, as JSON and as a digest."""

from __future__ import annotations

import ast
import dataclasses
import enum
import functools
import hashlib
import inspect
import json
import os
import textwrap
from collections.abc import Callable, Mapping
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

from .._base.pieces import sha256_of


def digest(description: Any) -> str:
    """SHA-256 of a description, in hexadecimal."""
    text = json.dumps(description, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def function_name(function: Callable[..., Any]) -> str:
    """``module:qualified.name`` of a function, of a partial's function, or of an object's class."""
    while isinstance(function, functools.partial):
        function = function.func
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{getattr(named, '__module__', None) or 'builtins'}:{named.__qualname__}"


def describe(name: str, value: Any) -> Any:
    """`value` as JSON that is equal for equal values in any process, and different otherwise.

    Numbers stay numbers; arrays become type, shape and digest; functions name and source; dataclasses and
    containers their contents; other objects their repr.

    Raises
    ------
    TypeError
        If only the address of `value` identifies it; the message calls it `name`.

    Examples
    --------
    >>> describe("n", np.int64(512)), describe("window", (3, None))
    (512, [3, None])
    >>> describe("scale", np.float64(0.5)), describe("scale", 1j)
    (0.5, {'complex': '1j'})
    """
    if isinstance(value, enum.Enum):
        return {_class_name(type(value)): value.name}
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [describe(name, entry) for entry in value]
    if isinstance(value, (set, frozenset)):
        return {"set": sorted((describe(name, entry) for entry in value), key=digest)}
    if isinstance(value, Mapping):
        pairs = [[describe(name, key), describe(name, entry)] for key, entry in value.items()]
        return {"mapping": sorted(pairs, key=digest)}
    if isinstance(value, os.PathLike):
        return {"path": os.fspath(value)}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        entries = {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
        return {_class_name(type(value)): {key: describe(name, entry) for key, entry in entries.items()}}
    if isinstance(value, ModuleType):
        return {"module": value.__name__}
    if isinstance(value, type):
        return {"class": _class_name(value)}
    if hasattr(value, "__array__") and not callable(value):
        return _describe_array(name, np.asarray(value))
    if isinstance(value, (FunctionType, MethodType, functools.partial)) or inspect.isroutine(value):
        return _describe_function(name, value)
    return _describe_object(name, value)


def _class_name(cls: type) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"


def _describe_array(name: str, array: np.ndarray[Any, Any]) -> Any:
    if array.dtype.hasobject:
        return {"objects": [describe(name, entry) for entry in array.flat], "shape": list(array.shape)}
    return {"array": sha256_of(array), "dtype": array.dtype.str, "shape": list(array.shape)}


def _describe_object(name: str, value: Any) -> Any:
    if getattr(type(value), "__repr__", None) is object.__repr__:
        raise TypeError(
            f"{name} must be told apart from one run to the next, got an object of class "
            f"{type(value).__name__}, which has no repr of its own; give the class a __repr__, or make it a "
            "dataclass"
        )
    return {type(value).__name__: repr(value)}


def _describe_function(name: str, function: Any) -> Any:
    """The function's name and source, and its defaults, bound arguments and closure."""
    if isinstance(function, functools.partial):
        parts = [function.func, function.args, function.keywords]
        return {"partial": [describe(name, part) for part in parts]}
    if isinstance(function, MethodType):
        return {
            "method": _describe_function(name, function.__func__),
            "of": describe(name, function.__self__),
        }
    description: dict[str, Any] = {"function": function_name(function)}
    plain = inspect.unwrap(function)
    if not isinstance(plain, FunctionType):
        return description  # a compiled function has only its name
    description["source"] = hashlib.sha256(_source(plain).encode()).hexdigest()
    defaults = {f"default {i}": value for i, value in enumerate(plain.__defaults__ or ())}
    carried: dict[str, Any] = {**defaults, **(plain.__kwdefaults__ or {}), **_closure(plain)}
    if carried:
        description["carries"] = {key: describe(f"{name} ({key})", carried[key]) for key in carried}
    return description


def _closure(function: FunctionType) -> dict[str, Any]:
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    # A recursive function holds itself.
    return {key: cell.cell_contents for key, cell in cells if cell.cell_contents is not function}


def _source(function: FunctionType) -> str:
    """Source without comments, docstring and layout; the bytecode if there is no source to parse."""
    if function.__name__ == "<lambda>":  # the source of a lambda includes the statement around it
        return _bytecode(function.__code__)
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):  # typed at a prompt, or built by exec
        return _bytecode(function.__code__)
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return ast.unparse(tree)


def _bytecode(code: CodeType) -> str:
    constants = [_bytecode(each) if isinstance(each, CodeType) else repr(each) for each in code.co_consts]
    return repr((code.co_code.hex(), code.co_names, code.co_varnames, constants))
