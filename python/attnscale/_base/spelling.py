# SPDX-License-Identifier: BSD-3-Clause
"""Laws and normalizers as text: NAME or NAME(parameter=value)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from .checks import meant, shown

_S = TypeVar("_S", bound="Spelled")


class Spelled:
    """Base of frozen dataclasses with a spelling, made with the object from its checked fields.

    PyTorch code compiled for any numbers (``dynamic=True``) cannot write them as text, so it reads the text
    made before.
    """

    _spelled: str | None = None

    def __post_init__(self) -> None:
        self._check()
        object.__setattr__(self, "_spelled", self._spell())

    def _check(self) -> None:
        """Refuse fields that are out of range, and normalize others."""

    def _spell(self) -> str:
        """The text that stands for this object."""
        raise NotImplementedError

    @classmethod
    def _of_one_call(cls: type[_S], **fields: Any) -> _S:
        """A checked object of all these fields; its text, slow for arrays of numbers, is made on demand."""
        found = cls.__new__(cls)
        for name, value in fields.items():
            object.__setattr__(found, name, value)
        found._check()
        return found


def parse_spelling(text: str, what: str) -> tuple[str, dict[str, Any]]:
    """Name and parameters of a spelling; the parameters are Python literals. `what`: "a law".

    Examples
    --------
    >>> parse_spelling("sink(logits=[0, -1.5])", "a normalizer")
    ('sink', {'logits': [0, -1.5]})
    """
    import ast

    call: tuple[str, list[tuple[str, ast.expr]]] | None = None
    try:
        node = ast.parse(text.strip(), mode="eval").body
        if isinstance(node, ast.Name):
            call = node.id, []
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.args:
            call = node.func.id, [(_keyword_name(each), each.value) for each in node.keywords]
    except (SyntaxError, ValueError):
        pass
    if call is None:
        raise ValueError(f"{what} is written NAME or NAME(parameter=value, ...), got {shown(text)}")
    name, given = call
    call_of = f"{what.split()[-1]} {name!r}"
    parameters: dict[str, Any] = {}
    for each, value in given:
        if each in parameters:  # the parser takes what Python's compiler would refuse
            raise ValueError(f"{call_of} must have each parameter once, got {shown(each)} twice")
        try:
            parameters[each] = ast.literal_eval(value)
        except ValueError:
            rule = "a number, a list, or text in quotes"
            raise ValueError(f"{each} of {call_of} must be {rule}, got {shown(ast.unparse(value))}") from None
    return name, parameters


def _keyword_name(keyword: Any) -> str:
    if keyword.arg is None:
        raise ValueError("** has no place in a spelling")
    return str(keyword.arg)


def check_parameters(
    what: str, how: str, given: Iterable[str], known: Sequence[str], required: Iterable[str]
) -> None:
    """Refuse unknown and missing parameters; `what` is "law 'ssmax'", `how` the way to give them."""
    for unknown in set(given) - set(known):
        listed = ", ".join(known) if known else "none"
        raise TypeError(
            f"{meant(unknown, known)}{what} has no parameter {unknown!r}; its parameters: {listed}"
        )
    for missing in required:
        if missing not in given:
            raise TypeError(f"{what} needs {missing}: {how.format(missing)}")


def spell(name: str, parameters: dict[str, Any]) -> str:
    """NAME, or NAME(parameter=value, ...) with whole numbers as integers."""
    listed = ", ".join(f"{each}={as_literal(value)}" for each, value in parameters.items())
    return f"{name}({listed})" if listed else name


def as_number(value: float) -> str:
    """The shortest text of a number that tells it from every other number, for labels.

    Examples
    --------
    >>> as_number(64.0), as_number(1 / 12), as_number(float("inf"))
    ('64', '0.08333333333333333', 'inf')
    """
    return as_literal(value) if math.isfinite(value) else str(float(value))


def as_literal(value: Any) -> str:
    """The text of a parameter's value that :func:`parse_spelling` reads back as an equal one.

    Examples
    --------
    >>> as_literal((64.0, 0.1, float("-inf")))
    '[64, 0.1, -1e999]'
    """
    if hasattr(value, "__array__") and hasattr(value, "tolist"):  # the repr of a NumPy value is not a literal
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(as_literal, value))}]"
    if isinstance(value, float) and math.isinf(value):
        return "1e999" if value > 0 else "-1e999"
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return repr(int(value))
    return repr(value)
