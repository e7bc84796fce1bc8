# SPDX-License-Identifier: BSD-3-Clause
"""Laws as they are written on a command line: NAME or NAME(parameter=value)."""

from __future__ import annotations

import ast
from typing import Any

from .. import laws
from .._io import InputError

__all__ = ["read_call", "read_law"]


def read_law(text: str) -> laws.Law:
    """The law written as NAME or NAME(parameter=value, ...).

    Examples
    --------
    >>> read_law("log_n(base=1024)")
    LogN(base=1024.0, floor=1.0)
    """
    name, parameters = read_call(text)
    try:
        return laws.get(name, **parameters)
    except (ValueError, TypeError) as error:
        raise InputError(str(error)) from None


def read_call(text: str) -> tuple[str, dict[str, Any]]:
    """Name and parameters of a law's spelling; the parameters are Python literals."""
    try:
        node = ast.parse(text.strip(), mode="eval").body
        if isinstance(node, ast.Name):
            return node.id, {}
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.args:
            return node.func.id, {_keyword_name(each): ast.literal_eval(each.value) for each in node.keywords}
    except (SyntaxError, ValueError):
        pass
    raise InputError(f"a law is written NAME or NAME(parameter=value, ...), got {text!r}")


def _keyword_name(keyword: ast.keyword) -> str:
    if keyword.arg is None:
        raise ValueError("** has no place in the spelling of a law")
    return keyword.arg
