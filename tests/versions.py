# SPDX-License-Identifier: BSD-3-Clause
"""Tests about some versions of another package: on others they are skipped, and say so."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Any

import pytest
from packaging.requirements import Requirement  # which pytest needs, too


def written_for(requirement: str) -> pytest.MarkDecorator:
    """A mark of tests that hold for a requirement, such as ``torch==2.13.*``.

    A package that is not installed is none of its business: such tests skip or run by themselves.
    """
    wanted = Requirement(requirement)
    try:
        there = version(wanted.name)
    except PackageNotFoundError:
        there = None
    return pytest.mark.skipif(
        there is not None and not wanted.specifier.contains(there, prereleases=True),
        reason=f"is written for {requirement}, and {there} is installed",
    )


def ready(name: str) -> Any:
    """An engine of this name, or a skip of the test where its package is absent or too old."""
    import attnscale as at

    engine = at.conformance.engines.find_engine(name)
    try:
        engine.need()
    except ImportError as error:
        pytest.skip(str(error))
    return engine
