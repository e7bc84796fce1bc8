# SPDX-License-Identifier: BSD-3-Clause
"""The benchmark: shares of this machine's peak speed, and ratios to PyTorch and NumPy in one run.

``benchmarks/bench.py`` prints the result of `run`, ``benchmarks/variant_costs.py`` that of `run_variants`.
"""

from __future__ import annotations

from ._cases import CASES, Case
from ._costs import CallCost, costs_of, crossover, slope
from ._guard import Baseline, Change, compare, describe, keep, read_baseline
from ._history import append_history, commit_of, read_history
from ._peer_table import PEER_CASES, draw_peers, found_beside, write_peers
from ._report import Report
from ._rows import Row, Target, Unit
from ._run import run
from ._sets import SETS
from ._variant_figures import draw_costs, draw_weights
from ._variants import VARIANTS, run_variants
from ._verbs import VERBS

__all__ = [
    "CASES",
    "PEER_CASES",
    "SETS",
    "VARIANTS",
    "VERBS",
    "Baseline",
    "CallCost",
    "Case",
    "Change",
    "Report",
    "Row",
    "Target",
    "Unit",
    "append_history",
    "commit_of",
    "compare",
    "costs_of",
    "crossover",
    "describe",
    "draw_costs",
    "draw_peers",
    "draw_weights",
    "found_beside",
    "keep",
    "read_baseline",
    "read_history",
    "run",
    "run_variants",
    "slope",
    "write_peers",
]
