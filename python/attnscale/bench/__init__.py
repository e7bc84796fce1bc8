# SPDX-License-Identifier: BSD-3-Clause
"""How fast it is here: shares of this machine's peak, and ratios to PyTorch and NumPy in one run.

`run` is what the command ``attnscale bench`` prints, `call_cost` times one call.
"""

from __future__ import annotations

from ._call_cost import CallCost, call_cost
from ._cases import CASES, Case
from ._report import Report
from ._rows import Row, Target, Unit
from ._run import run

__all__ = ["CASES", "CallCost", "Case", "Report", "Row", "Target", "Unit", "call_cost", "run"]
