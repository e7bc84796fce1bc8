# SPDX-License-Identifier: BSD-3-Clause
"""Figures of entropy, heads, laws and experiments. Needs matplotlib (``pip install matplotlib``).

Every function draws on ``ax`` (a new figure's if it is None), returns it and never shows it. The colours
are those of Okabe and Ito, which colour-blind readers can tell apart; :func:`style` sets fonts and figure
sizes for print, and :func:`shared_legend` gives several panels one legend.
"""

from ._experiments import experiment, jl_distortion, needle, saturation, sweep
from ._heads import entropy_by_head, head_map
from ._length import entropy_vs_length
from ._map import attention_map
from ._multiples import calibrated_beta, law_comparison, multiplier_vs_length
from ._shared import shared_legend
from ._style import COLOURS, style
from ._theory import jl_dimensions, phase_diagram

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
    "shared_legend",
    "style",
    "sweep",
]
