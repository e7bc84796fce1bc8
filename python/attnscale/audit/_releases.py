# SPDX-License-Identifier: BSD-3-Clause
"""Releases of frameworks: their order, and the releases in which a difference was seen."""

from __future__ import annotations

import re
from typing import NamedTuple

_RELEASE = re.compile(r"[vb]?(\d+(?:\.\d+)*)(?:\.?post(\d+))?(?:\.?(?:rc|dev)\d*)?(?:\+[a-z0-9.]+)?")

#: Smallest first number that is a year, as in xllamacpp 2026.10.11549, whose third is the build of llama.cpp.
_YEAR = 2000


class Release(NamedTuple):
    """A release of a framework; without numbers it stands for any.

    Attributes
    ----------
    numbers : tuple of int
    post : int
        The number behind ".post".
    """

    numbers: tuple[int, ...] = ()
    post: int = 0

    def is_before(self, other: Release) -> bool:
        """Whether this release came first; missing numbers are zeros."""
        size = max(len(self.numbers), len(other.numbers))
        ours, theirs = (
            (*each.numbers, *[0] * (size - len(each.numbers)), each.post) for each in (self, other)
        )
        return ours < theirs

    def may_be(self, other: Release) -> bool:
        """Whether the other release begins with all numbers of this one, as 0.5.12 with those of 0.5."""
        return other.numbers[: len(self.numbers)] == self.numbers


class Sighting(NamedTuple):
    """One release in which a difference was seen.

    Attributes
    ----------
    release : str
        As the framework writes it.
    how : {"reported", "read", "run"}
        By the author of a public report, by reading the file of the package, or by running the package.
    """

    release: str
    how: str


def is_release(text: str) -> bool:
    """Whether the text is a release, as "0.33.0", "v0.9", "0.5.15.post1", "0.33.0rc1+cpu" or "b9728"."""
    return _RELEASE.fullmatch(text) is not None


def release_of(text: str) -> Release:
    """The release with this name; any release for an empty text.

    Examples
    --------
    >>> release_of("0.5.15.post1")
    Release(numbers=(0, 5, 15), post=1)
    >>> release_of("b11549") == release_of("2026.10.11549")
    True
    """
    found = _RELEASE.fullmatch(text)
    if found is None:
        return Release()
    numbers = tuple(int(part) for part in found[1].split("."))
    if len(numbers) > 2 and numbers[0] >= _YEAR:
        numbers = numbers[2:3]
    return Release(numbers, int(found[2] or 0))
