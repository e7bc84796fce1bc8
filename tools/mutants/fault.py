# SPDX-License-Identifier: BSD-3-Clause
"""Planted faults, and the steps that can catch them."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Fault", "Step", "asan", "cpp", "pytest", "tool"]


class Step(NamedTuple):
    """A narrow part of a target of the Makefile: it fails where it catches a fault."""

    kind: str  # "pytest", "cpp", "asan" or "tool"
    words: tuple[str, ...]
    level: str = ""  # a forced SIMD level; "" is the best one of the machine

    def __str__(self) -> str:
        words = " ".join(repr(word) if " " in word else word for word in self.words)
        at = f" at {self.level}" if self.level else ""
        return words if self.kind == "tool" else f"{_NAMES[self.kind]} {words}{at}"


_NAMES = {"pytest": "pytest", "cpp": "C++ tests", "asan": "C++ tests under the address sanitizer"}


class Fault(NamedTuple):
    """A replaced text of a file, the steps that must notice, and the target that runs them."""

    name: str  # what is wrong then, as a part of a sentence
    file: str
    old: str  # occurs once
    new: str
    steps: tuple[Step, ...]
    target: str = "test"  # of the Makefile: "test" or "check"


def pytest(*files: str, k: str = "", level: str = "") -> tuple[Step, ...]:
    """Tests of Python; at a forced level those that are marked for it."""
    chosen = ("-k", k) if k else ()
    return (Step("pytest", (*files, *chosen, *(("-m", "levels") if level else ())), level),)


def cpp(file: str, case: str = "", level: str = "") -> tuple[Step, ...]:
    """Tests of one C++ file, or those of them with a name."""
    return (Step("cpp", (file, case) if case else (file,), level),)


def asan(file: str, case: str) -> tuple[Step, ...]:
    """Tests of a case of one C++ file under the address sanitizer."""
    return (Step("asan", (file, case), "baseline"),)


def tool(*words: str) -> tuple[Step, ...]:
    """A linter, or the build of the documentation."""
    return (Step("tool", words),)
