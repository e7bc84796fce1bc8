"""Probes that several files of tests read."""

from __future__ import annotations

import pytest
from small_bench import Bench


@pytest.fixture(scope="session")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(tmp_path_factory.mktemp("probes"))
