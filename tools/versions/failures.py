# SPDX-License-Identifier: BSD-3-Clause
"""Failures of a run of pytest, by the package that is likely at fault."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

__all__ = ["OURS", "Failure", "Outcome", "by_package", "package_at_fault", "read_report"]

#: Name of the group in which no other package has a part.
OURS = "attnscale and its tests"
#: Packages that call a test, and are in each of its tracebacks.
_HARNESS = {"_pytest", "pytest", "pluggy", "xdist", "execnet", "hypothesis"}
_FRAME = re.compile(
    r'^(?:E +)?(?:([^\s:][^\n:]*\.pyx?):\d+: |\s*File "([^"\n]+\.pyx?)", line )', re.MULTILINE
)
_FILE = re.compile(r"site-packages/(\w+)/")
_KIND = re.compile(r"^E +([A-Za-z_]\w*)(?:\.\w+)*\.\w*(?:Error|Warning|Exception)\b", re.MULTILINE)


class Failure(NamedTuple):
    """A test that failed.

    Attributes
    ----------
    test : str
        The name that pytest takes.
    package : str
        What is likely at fault.
    message : str
        The first line of what was raised.
    """

    test: str
    package: str
    message: str


class Outcome(NamedTuple):
    """The tests of a report: names of all, failures, and how many were skipped, by reason."""

    tests: list[str]
    failures: list[Failure]
    skipped: dict[str, int]


def _package_of(path: str) -> str | None:
    """The import name of the package that a file belongs to; None for files of ours and of pytest."""
    parts = Path(path).parts
    if "site-packages" in parts:
        name = parts[parts.index("site-packages") + 1].removesuffix(".py")
        return None if name in _HARNESS or name == "attnscale" else name
    if re.search(r"/lib/python3\.\d+t?/", path):
        return "python"
    return None


def package_at_fault(text: str, packages: Mapping[str, str]) -> str:
    """The package of the innermost frame that is not ours, else of the exception, else of a file in the text.

    The standard library is named only where no other package has a part: most often it is called wrongly.

    Parameters
    ----------
    text : str
        A traceback as pytest or Python prints it; of a warning that was made an error, too.
    packages : mapping
        The package of each name that is imported.
    """
    frames = [_package_of(first or second) for first, second in _FRAME.findall(text)]
    found = [name for name in frames if name is not None]
    named = [name for name in found if name != "python"] or found
    if not named:
        mentioned = (*_FILE.findall(text), *_KIND.findall(text))
        named = [name for name in mentioned if name in packages and name not in {"attnscale", *_HARNESS}]
    return packages.get(named[-1], named[-1]) if named else OURS


def _first_line(case: ElementTree.Element) -> str:
    return " ".join(case.get("message", "").split())[:160]


def _reason(skipped: ElementTree.Element) -> str:
    """Why a test was skipped; of a whole file the text alone tells it."""
    of_file = re.search(r"Skipped: (.*)[\"']\)", skipped.text or "")
    return of_file[1] if of_file and skipped.get("message") == "collection skipped" else _first_line(skipped)


def read_report(path: Path, packages: Mapping[str, str]) -> Outcome:
    """The outcome that a report in JUnit's format tells (`junit_family=xunit1`, which has the files)."""
    names, failures, skipped = [], [], Counter[str]()
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        inner = case.get("classname", "").partition(Path(case.get("file", "")).stem + ".")[2]
        parts = (case.get("file") or case.get("classname", ""), inner, case.get("name", ""))
        name = "::".join(part for part in parts if part)
        names.append(name)
        for found in (*case.findall("failure"), *case.findall("error")):
            text = found.text or ""
            failures.append(Failure(name, package_at_fault(text, packages), _first_line(found)))
        skipped.update(_reason(found) for found in case.findall("skipped"))
    return Outcome(names, failures, dict(skipped))


def by_package(failures: list[Failure]) -> Iterator[str]:
    """Lines of the failures, in groups; the largest comes first."""
    groups = Counter(each.package for each in failures)
    for package, count in groups.most_common():
        yield f"{package}: {count}"
        for each in failures:
            if each.package == package:
                yield f"  {each.test}\n      {each.message}"
