# SPDX-License-Identifier: BSD-3-Clause
"""Subjects of cases: how each is drawn and checked."""

from __future__ import annotations

from . import (
    arguments,
    check_attend,
    check_curve,
    check_family,
    check_gradients,
    check_kattention,
    check_linear,
    check_solve,
    check_ssd,
    check_state,
)
from .draw import Case, Draw

_ALL = {
    "arguments": arguments,
    "attend": check_attend,
    "curve": check_curve,
    "family": check_family,
    "gradients": check_gradients,
    "kattention": check_kattention,
    "linear": check_linear,
    "solve": check_solve,
    "ssd": check_ssd,
    "state": check_state,
}
DRAW = {name: module.draw for name, module in _ALL.items()}
CHECK = {name: module.check for name, module in _ALL.items()}

#: How often each is drawn; a case is found by its place among them, so the order stays.
_SHARES = {"attend": 20, "curve": 3, "solve": 2, "state": 3, "linear": 4, "ssd": 2, "kattention": 2}
_SHARES |= {"family": 3, "arguments": 3, "gradients": 6}
_SUBJECTS = tuple(name for name, times in _SHARES.items() for _ in range(times))


def subjects() -> tuple[str, ...]:
    """Subjects of calls."""
    return tuple(_SHARES)


def case(seed: int, index: int, only: str | None = None) -> Case:
    """The call of this index: {"subject", ...}; the same for the same arguments on every machine."""
    draw = Draw(seed, index)
    subject = draw.pick(_SUBJECTS)
    subject = only or subject
    return {"subject": subject, **DRAW[subject](draw)}
