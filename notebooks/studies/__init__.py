# SPDX-License-Identifier: BSD-3-Clause
"""Studies, one per file, with their models, their data and the results of their runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attnscale.experiments import TrainingResult


def stored(name: str, run: str = "full") -> TrainingResult:
    """The result of a run of the study of this name, from the folder ``runs``."""
    from attnscale.experiments import find

    return find(Path(__file__).with_name(f"{name}.py")).stored(run)
