# SPDX-License-Identifier: BSD-3-Clause
"""Laws of the user's own that a sweep names: other processes and a store do not know them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from .. import laws


def registered_laws(values: Iterable[Any]) -> tuple[laws.FunctionLaw, ...]:
    """The registered laws that `values` spell, also inside of lists and tuples.

    Each name has one law, with its default parameters: the function is what tells it apart. Parameters
    that a spelling gives are in the spelling, which the grid or the constants have.
    """
    found: dict[str, laws.FunctionLaw] = {}
    for text in sorted(set(_texts(values))):
        try:
            law = laws.get(text)
        except (TypeError, ValueError):  # not a law, or one whose parameter is missing or wrong
            continue
        while isinstance(law, laws.Scaled):
            law = law.law
        if isinstance(law, laws.FunctionLaw):
            found.setdefault(law.name, law.with_defaults())
    return tuple(found.values())


def make_known(registered: Iterable[laws.FunctionLaw]) -> None:
    """Register in this process the laws that were registered in the caller's."""
    for law in registered:
        laws.register(law.name, n_means=law.n_means)(law.function)


def _texts(values: Iterable[Any]) -> Iterator[str]:
    for value in values:
        if isinstance(value, str):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _texts(value)
