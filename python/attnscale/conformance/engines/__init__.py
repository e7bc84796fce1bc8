# SPDX-License-Identifier: BSD-3-Clause
"""Ready adapters of other engines, a module a package; each imports its package when it is called.

A module has a record :class:`Engine` for each of its adapters. An adapter takes NumPy arrays of
(batch, heads, n, dim) and the options of :func:`attnscale.attention`, hands over what its engine can be
asked, without mending it, and raises NotImplementedError for the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from ..._base.checks import choose, shown
from ._engine import Engine

__all__ = ["Engine", "engines", "find_engine"]


@cache
def engines() -> Mapping[str, Engine]:
    """Every ready adapter by its name; no engine is imported.

    Examples
    --------
    >>> import attnscale as at
    >>> at.conformance.engines.engines()["torch"].call
    'torch.nn.functional.scaled_dot_product_attention'
    """
    found: dict[str, Engine] = {}
    for module in iter_modules(__path__):
        if not module.name.startswith("_"):
            loaded = import_module(f"{__name__}.{module.name}")
            found |= {each.name: each for each in vars(loaded).values() if isinstance(each, Engine)}
    return dict(sorted(found.items()))


def find_engine(name: str) -> Engine:
    """The adapter of an engine; a ValueError names those that there are."""
    return engines()[choose("engine", name, tuple(engines()))]


def read_engine(engine: str | Callable[..., Any]) -> Callable[..., Any]:
    """The function of an engine that is given, or named."""
    attend = find_engine(engine) if isinstance(engine, str) else engine
    if not callable(attend):
        raise TypeError(f"engine must be a function or the name of an engine, got {shown(engine)}")
    return attend
