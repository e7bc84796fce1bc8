# SPDX-License-Identifier: BSD-3-Clause
"""Unknown keyword options: an error that suggests the option that may have been meant."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar, cast

_Function = TypeVar("_Function", bound=Callable[..., Any])


#: Names of other functions and packages for the same option.
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
    """Refuse unknown keyword options, as Python does, and suggest one of `known` or `also`."""
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
    """Refuse options that are not parameters of the function; a valid call costs no time here."""
    if not options.keys() <= parameters.keys():
        check_options(function, options, parameters)


def hinted(function: _Function) -> _Function:
    """The function, with a suggestion in its error about an unknown keyword."""
    parameters = inspect.signature(function).parameters

    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        refuse_unknown(function.__name__, options, parameters)
        return function(*arguments, **options)

    return cast(_Function, call)
