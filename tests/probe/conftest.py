"""Probes that several files of tests read."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import attnscale as at
import pytest
from small_bench import Bench


@pytest.fixture(scope="session")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", at.audit.AuditWarning)
        yield Bench(tmp_path_factory.mktemp("probes"))
