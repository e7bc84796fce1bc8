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
from ._variants import VARIANTS, VariantCost, crossover, run_variants, slope

__all__ = [
    "CASES",
    "VARIANTS",
    "CallCost",
    "Case",
    "Report",
    "Row",
    "Target",
    "Unit",
    "VariantCost",
    "call_cost",
    "crossover",
    "run",
    "run_variants",
    "slope",
]
