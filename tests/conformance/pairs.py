# SPDX-License-Identifier: BSD-3-Clause
"""Pairs of backends and cases as parameters of tests."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from attnscale.conformance import CASES

from . import in_cpp, in_wasm
from .backends import Backend, in_python

#: Backends of this process, by name.
BACKENDS = in_python()
if os.environ.get("TRITON_INTERPRET") != "1":
    BACKENDS |= in_cpp.backends() | in_wasm.backends()
#: Backends that need only this package.
_CORE = ("NumPy", "C++")
#: Cases that combine several options.
OF_PAIRS = {name for name in CASES if " + " in name or ": " in name}
#: Cases whose "values" or "gradients" are wrong in a backend, with the reason.
_OF_TRITON = {("an infinity in a value", "values"): "rows that see it are NaN, not infinite"}
FAULTS = {"Triton": _OF_TRITON}


def fault(backend: str, name: str, kind: str) -> str | None:
    """Known fault of a backend in a case, or None."""
    return FAULTS.get(backend, {}).get((name, kind))


def pairs(
    kind: str,
    names: Iterable[str],
    asked: Callable[[Backend, str], bool] = lambda *_: True,
    of_the_core: tuple[Any, ...] = (),
) -> list[Any]:
    """All backends with all cases of these names that they serve, marked by the library that they need.

    `of_the_core` are marks of the backends that are the core alone.
    """
    return [
        pytest.param(
            backend,
            name,
            id=f"{backend}: {name}",
            marks=[*_marks(backend, name, kind), *(of_the_core if backend in _CORE else ())],
        )
        for backend, own in BACKENDS.items()
        for name in names
        if own.serves(CASES[name]) and asked(own, name)
    ]


def _marks(backend: str, name: str, kind: str) -> list[Any]:
    wrong = fault(backend, name, kind)
    marks: list[Any] = [] if wrong is None else [pytest.mark.xfail(strict=True, reason=wrong)]
    if backend == "JAX":
        marks.append(pytest.mark.jax)
    elif backend == "WebAssembly":
        marks.append(pytest.mark.maintainer)
    elif backend not in _CORE:
        marks.append(pytest.mark.torch)
    return marks
