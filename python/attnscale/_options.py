# SPDX-License-Identifier: BSD-3-Clause
"""Keyword options that a function does not have: an error that names the one which may have been meant."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any, TypedDict, TypeVar, cast

__all__ = ["NoOptions", "check_options", "hinted", "refuse_options", "without_unknown"]

_Function = TypeVar("_Function", bound=Callable[..., Any])


class NoOptions(TypedDict):
    """No keywords at all: the type of ``**unknown``.

    Type checkers call each keyword of such a call unexpected; at run time `refuse_options` does, with a hint.
    """


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


def hinted(function: _Function) -> _Function:
    """The function, whose error about an unknown keyword says which one may have been meant."""

    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        try:
            return function(*arguments, **options)
        except TypeError:
            known = list(inspect.signature(function).parameters)
            unknown = [name for name in options if name not in known]
            if not unknown:
                raise
        raise TypeError(_message(function.__name__, unknown[0], known))

    return cast(_Function, call)


def without_unknown(function: _Function) -> _Function:
    """The function itself, whose signature does not show that it takes ``**unknown`` to refuse them.

    That is :func:`hinted` for a function whose calls are too short to be wrapped.
    """
    signature = inspect.signature(function)
    shown = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
    cast(Any, function).__signature__ = signature.replace(parameters=shown)
    return function


def refuse_options(function: Callable[..., Any], unknown: Iterable[str]) -> None:
    """Refuse the keywords that a function with ``**unknown`` was given, if there are any."""
    check_options(function.__name__, unknown, inspect.signature(function).parameters)
