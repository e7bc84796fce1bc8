# SPDX-License-Identifier: BSD-3-Clause
"""Figures are drawn without a screen, and none is left open."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(autouse=True)
def _closed_figures() -> Iterator[None]:
    pytest.importorskip("matplotlib").use("agg")
    yield
    import matplotlib.pyplot as plt

    plt.close("all")


@pytest.fixture
def ax() -> Any:
    import matplotlib.pyplot as plt

    return plt.subplots()[1]
