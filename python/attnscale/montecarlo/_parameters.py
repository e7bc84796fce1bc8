# SPDX-License-Identifier: BSD-3-Clause
"""Parameters of an experiment: axes of values, checked and labelled, and limits of the machine."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .. import laws
from .._base.checks import number, positive_int, refusal, shown
from .._base.pieces import sha256_of
from .._call.scale import check_one_scale_a_row

if TYPE_CHECKING:
    from ..laws import Law

#: One or several arguments of attnscale.laws.get; a number is the scale itself.
LawAxis: TypeAlias = "str | float | Law | Sequence[str | float | Law]"

_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


@dataclass(frozen=True, eq=False)
class Axis:
    """Values of one parameter."""

    name: str
    values: tuple[Any, ...]  # values to compute with
    labels: tuple[Any, ...]  # labels of results
    scalar: bool  # whether a single value was given: then results have no such axis

    def __len__(self) -> int:
        return len(self.values)

    @property
    def given(self) -> Any:
        """The label or list of labels, as given."""
        return self.labels[0] if self.scalar else list(self.labels)


def axis(name: str, given: Any, check: Callable[[str, Any], Any]) -> Axis:
    """An axis of one value or a sequence, each checked by ``check(name, value)``."""
    scalar = isinstance(given, (str, laws.Law)) or not isinstance(given, (Sequence, np.ndarray, range))
    if isinstance(given, np.ndarray) and given.ndim != 1:
        if given.ndim == 0:
            return axis(name, given.item(), check)
        raise refusal(ValueError, name, f"must be one value or a sequence of them, got shape {given.shape}")
    entries = [given] if scalar else list(given)
    if not entries:
        raise refusal(ValueError, name, "must have at least one value, got none")
    values = tuple(check(name, entry) for entry in entries)
    return Axis(name, values, values, scalar)


def integer_axis(name: str, given: Any, *, least: int = 1) -> Axis:
    """An axis of integers from `least` to 2^53."""

    def check(name: str, value: Any) -> int:
        converted = positive_int(name, value)
        if converted < least:
            raise refusal(ValueError, name, f"must be at least {least}, got {converted}")
        return check_count(name, converted)

    return distinct(axis(name, given, check))


def law_axis(name: str, given: Any) -> Axis:
    """An axis of laws, each labelled with its spelling."""
    laid = axis(name, given, _read_law)
    return distinct(Axis(name, laid.values, tuple(law.spelling for law in laid.values), laid.scalar))


def fraction(name: str, value: Any) -> float:
    """A number strictly between 0 and 1."""
    converted = number(name, value)
    if not 0 < converted < 1:
        raise refusal(ValueError, name, f"must be in (0, 1), got {converted:g}")
    return converted


def beta_of(law: Law, n: int, head_dim: int) -> float:
    """A law's multiple of 1/sqrt(head_dim) for the last of n queries.

    The experiments have no masks, so visible keys, row size and position + 1 are the same.
    """
    check_one_scale_a_row(law)
    beta = law.multiplier_at(n, head_dim)
    if not isinstance(beta, float):
        raise refusal(
            ValueError, "law", f"must give one scale for each n, got {shown(law)} with one for each head"
        )
    if not math.isfinite(beta) or beta < 0:
        rule = f"must give a finite scale of at least 0, got {beta} from {law.spelling} at n = {n}"
        raise refusal(ValueError, "law", rule)
    return beta


def product(*axes: Axis) -> list[tuple[Any, ...]]:
    """All combinations of values, the last axis running fastest."""
    return list(itertools.product(*(each.values for each in axes)))


def _read_law(name: str, value: Any) -> Law:
    law = laws.get(value)
    if isinstance(law, laws.Constant) and law.value < 0:
        raise ValueError(f"{name}: a scale must be at least 0, got {law.value:g}")
    return law


def distinct(laid: Axis) -> Axis:
    """The axis, if its labels are distinct."""
    if len(set(laid.labels)) < len(laid.labels):
        raise ValueError(f"{laid.name} must have distinct values, got {list(laid.labels)}")
    return laid


#: Bytes per key of a streamed row: the core keeps sums for each 2^18 keys.
STREAMED = 128 / 2**18

_MOST = 2**53


def check_count(name: str, value: int) -> int:
    """`value`, unless float64, used for laws and means, cannot hold it."""
    if value > _MOST:
        raise refusal(
            ValueError, name, f"must be at most 2^53, beyond which float64 skips integers, got {value}"
        )
    return value


def check_memory(name: str, value: int, size: float) -> None:
    """Refuse a parameter whose arrays of `size` bytes exceed the machine's memory."""
    there = machine_memory()
    if size > there:
        raise refusal(
            ValueError,
            name,
            f"must be small enough for the memory of this machine, {amount(there)}, got {value}, "
            f"whose arrays take {amount(size)}",
        )


def describe_array(array: NDArray[Any]) -> str:
    """Type, shape and the start of the SHA-256 of the contents.

    Examples
    --------
    >>> describe_array(np.zeros((2, 3)))
    'float64 (2, 3) sha256:17b0761f87b081d5'
    """
    return f"{array.dtype} {array.shape} sha256:{sha256_of(array)[:16]}"


def machine_memory() -> float:
    """Bytes of this machine's memory; infinite if the system does not tell."""
    try:
        there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return math.inf
    return there if there > 0 else math.inf


def amount(size: float) -> str:
    """A number of bytes as text with three digits and a unit.

    Examples
    --------
    >>> amount(8e12)
    '7.28 TiB'
    """
    power = 0
    while size >= 1000 and power < len(_UNITS) - 1:
        size, power = size / 1024, power + 1
    return f"{size:.3g} {_UNITS[power]}"
