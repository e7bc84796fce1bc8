# SPDX-License-Identifier: BSD-3-Clause
"""One of N parts of the cases of a grid, which several machines compute for a shared store."""

from __future__ import annotations

import operator
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from .._base.checks import refusal, shown
from .case import Case


class Part(NamedTuple):
    """Part `number` of `of` parts, counted from 1.

    Examples
    --------
    >>> Part.read("2/3", "runs/store").choose(list("abcdefgh"))
    ['b', 'e', 'h']
    """

    number: int
    of: int

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"

    @classmethod
    def read(cls, part: Any, store: object) -> Part | None:
        """The part that ``(k, N)`` or ``"k/N"`` spells; None for None.

        Raises
        ------
        TypeError, ValueError
            If it is neither, or comes without a store, which the parts share.
        """
        if part is None:
            return None
        if isinstance(part, str):
            found = re.fullmatch(r"\s*(\d{1,9})\s*/\s*(\d{1,9})\s*", part)
            pair: Any = found.groups() if found else ()
        else:
            pair = part
        try:
            number, of = (int(x) if isinstance(part, str) else operator.index(x) for x in pair)
        except (TypeError, ValueError):
            kind = ValueError if isinstance(part, str) else TypeError
            raise refusal(kind, "part", f"must be 'k/N' or a pair (k, N), got {shown(part)}") from None
        if not 1 <= number <= of:
            raise refusal(ValueError, "part", f"must be k of N parts, counted from 1 to N, got {shown(part)}")
        if store is None:
            raise refusal(
                ValueError, "part", f"must come with a store, where the parts meet, got {shown(part)} alone"
            )
        return cls(number, of)

    def choose(self, cases: Sequence[Case]) -> list[Case]:
        """Every N-th case, since long ones are often adjacent; each case is in one part.

        Raises
        ------
        ValueError
            If there are more parts than cases.
        """
        if self.of > len(cases):
            raise refusal(
                ValueError, "part", f"must be one of at most {len(cases)} parts, one a case, got {self}"
            )
        return list(cases[self.number - 1 :: self.of])


def still_missing(part: str | None, missing: int, total: int) -> list[str]:
    """The remark of a command whose part is finished while others are not; empty if all are."""
    if part is None or not missing:
        return []
    there = f"{total - missing} of {total} cases of the store are"
    return [
        f"part {part} is finished, and {there}; the same command without --part computes and shows the rest"
    ]
