# SPDX-License-Identifier: BSD-3-Clause
"""Laws with other values of the parameters that a model can learn."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, cast

from .._checks import shown
from ._base import Law, Scaled
from ._registry import get, names

#: A length, a factor and a power that every law takes.
_PLACEHOLDER = 2.0
#: An n at which no law's derivative is infinite.
_N = 3.0


def learnable(law: Law) -> tuple[str, ...]:
    """Names of the parameters that :meth:`Law.derivatives` knows."""
    return tuple(law.derivatives(_N, 1))


def open_law(law: str | float | Law, parameters: tuple[str, ...]) -> Law:
    """The law of :func:`get`, in which `parameters` may be missing: they get any value, to be replaced."""
    if isinstance(law, str) and law in names():
        return get(law, **dict.fromkeys(parameters, _PLACEHOLDER))
    return get(law)


def check_learnable(law: Law, parameters: Iterable[str]) -> None:
    """Refuse a parameter that the law has no gradient of."""
    known = learnable(law)
    for name in parameters:
        if name not in known:
            raise ValueError(
                f"a parameter must be one that law {law.name!r} has a gradient of "
                f"({', '.join(known) or 'it has none'}), got {shown(name)}"
            )


def takes_one_a_head(law: Law, name: str) -> bool:
    """Whether this parameter may be one number a head."""
    value = law.parameter(name)
    try:
        with_values(law, {name: value if isinstance(value, tuple) else (value,)})
    except TypeError:
        return False
    return True


def with_values(law: Law, values: Mapping[str, float | tuple[float, ...]]) -> Law:
    """The law with these values in place of its own, after the law's own checks."""
    if not isinstance(law, Scaled):
        return cast(Law, replace(cast(Any, law), **values))
    inner = {name: value for name, value in values.items() if name != "amplitude"}
    return replace(law, law=with_values(law.law, inner), amplitude=values.get("amplitude", law.amplitude))
