# SPDX-License-Identifier: BSD-3-Clause
"""Figures of entropy, heads, laws and experiments. Needs matplotlib (``pip install matplotlib``).

Every function draws on ``ax`` (a new figure's if it is None), returns it and never shows it. The
colours are those of Okabe and Ito, which colour-blind readers can tell apart; :func:`style` sets
fonts and sizes for print.
"""

from ._calibration import calibrated_beta
from ._experiments import experiment, jl_distortion, needle, saturation
from ._head_map import head_map
from ._heads import entropy_by_head
from ._jl import jl_dimensions
from ._length import entropy_vs_length
from ._map import attention_map
from ._multiples import law_comparison, multiplier_vs_length
from ._phase import phase_diagram
from ._style import COLOURS, style
from ._sweep import sweep

__all__ = [
    "COLOURS",
    "attention_map",
    "calibrated_beta",
    "entropy_by_head",
    "entropy_vs_length",
    "experiment",
    "head_map",
    "jl_dimensions",
    "jl_distortion",
    "law_comparison",
    "multiplier_vs_length",
    "needle",
    "phase_diagram",
    "saturation",
    "style",
    "sweep",
]
