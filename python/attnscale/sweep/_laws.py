# SPDX-License-Identifier: BSD-3-Clause
"""Laws of the user's own that a sweep names: other processes and a store do not know them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from .. import laws

__all__ = ["make_known", "registered_laws"]


def registered_laws(values: Iterable[Any]) -> tuple[laws.FunctionLaw, ...]:
    """The registered laws whose names are among `values`, also inside of lists and tuples."""
    names = {text for text in _texts(values) if text in laws.names()}
    found = []
    for name in sorted(names):
        try:
            law = laws.get(name)
        except TypeError:  # it needs a parameter: the name alone stands for nothing
            continue
        if isinstance(law, laws.FunctionLaw):
            found.append(law)
    return tuple(found)


def make_known(registered: Iterable[laws.FunctionLaw]) -> None:
    """Register in this process what was registered in the caller's."""
    for law in registered:
        laws.register(law.name, n_means=law.n_means)(law.function)


def _texts(values: Iterable[Any]) -> Iterator[str]:
    for value in values:
        if isinstance(value, str):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _texts(value)
