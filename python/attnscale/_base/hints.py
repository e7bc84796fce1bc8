# SPDX-License-Identifier: BSD-3-Clause
"""Keyword options that a function does not have: an error that names the one which may have been meant."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar, cast

_Function = TypeVar("_Function", bound=Callable[..., Any])


#: What other functions, and other packages, call the same thing.
_SAID_AS = {
    "scale": ("law", "laws", "scales", "beta"),
    "scales": ("scale", "laws", "law"),
    "law": ("scale", "laws", "scales", "beta"),
    "laws": ("law", "scale", "scales"),
    "temperature": ("scale", "law"),
    "n": ("lengths",),
    "lengths": ("n",),
    "n_samples": ("samples",),
    "seed": ("rng",),
    "random_state": ("rng",),
    "d": ("head_dim",),
    "threads": ("num_threads",),
    "causal": ("is_causal",),
    "mask": ("attn_mask",),
    "attention_mask": ("attn_mask",),
    "bias": ("attn_mask",),
    "q": ("query",),
    "k": ("key",),
    "v": ("value",),
    "target": ("target_entropy",),
    "entropy": ("target_entropy",),
    "cap": ("softcap",),
    "gqa": ("enable_gqa",),
}


def check_options(
    function: str, given: Iterable[str], known: Iterable[str], also: Iterable[str] = ()
) -> None:
    """Refuse keyword options that are not known, as Python does, and say what may have been meant.

    Parameters
    ----------
    function : str
        What was called.
    given, known : iterable of str
        Names of options.
    also : iterable of str
        Other parameters of the function, which may have been meant.
    """
    names = tuple(known)
    for unknown in given:
        if unknown not in names:
            raise TypeError(_message(function, unknown, [*names, *also]))


def _message(function: str, unknown: str, known: list[str]) -> str:
    from difflib import get_close_matches

    near = [name for name in _SAID_AS.get(unknown, ()) if name in known]
    near = near or get_close_matches(unknown, known, 1, 0.7)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"{function}() got an unexpected keyword argument {unknown!r}{hint}"


def refuse_unknown(
    function: str, options: Mapping[str, Any], parameters: Mapping[str, inspect.Parameter]
) -> None:
    """Refuse options that are none of a function's parameters; a call without such takes no time here."""
    if not options.keys() <= parameters.keys():
        check_options(function, options, parameters)


def hinted(function: _Function) -> _Function:
    """The function, whose error about an unknown keyword says which one may have been meant."""
    parameters = inspect.signature(function).parameters

    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        refuse_unknown(function.__name__, options, parameters)
        return function(*arguments, **options)

    return cast(_Function, call)
