# SPDX-License-Identifier: BSD-3-Clause
"""JSON whose objects have each key once."""

from __future__ import annotations

from collections import Counter
from typing import Any

from .._base.checks import shown


class RepeatedKeyError(ValueError):
    """A key that an object has twice: readers differ in the one that they take."""


def each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of these pairs, as the ``object_pairs_hook`` of ``json.loads``."""
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        raise RepeatedKeyError(f"has the key {shown(twice)} twice")
    return found
