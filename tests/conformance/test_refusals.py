# SPDX-License-Identifier: BSD-3-Clause
"""Every front end refuses a bad call by the error that refusals.json has for it, in one line."""

from __future__ import annotations

from typing import Any

import pytest

from .refusals import BAD, FRONT_ENDS, refusal, wanted

_MARKS = {"torch": [pytest.mark.torch], "JAX": [pytest.mark.jax]}
CALLS: list[Any] = [
    pytest.param(
        front_end, name, id=f"{front_end}: {name}", marks=_MARKS.get(front_end.partition(",")[0], [])
    )
    for front_end in FRONT_ENDS
    for name in BAD
]


@pytest.mark.parametrize(("front_end", "name"), CALLS)
def test_refusals(front_end: str, name: str) -> None:
    found = refusal(front_end, name)
    assert found == wanted(front_end, name)
    assert "\n" not in (found or "")
