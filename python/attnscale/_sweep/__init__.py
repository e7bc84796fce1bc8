# SPDX-License-Identifier: BSD-3-Clause
"""A function over a grid of parameters: on one core, many processes or a cluster, with resume."""

from .._grid.errors import SweepError, SweepInterrupted
from .run import sweep

__all__ = ["SweepError", "SweepInterrupted", "sweep"]
