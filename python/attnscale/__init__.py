# SPDX-License-Identifier: BSD-3-Clause
"""Exact attention on the CPU with its entropy, and published scale laws under one definition.

>>> import numpy as np, attnscale as at
>>> rng = np.random.default_rng(0)
>>> q, k, v = rng.standard_normal((3, 8, 128, 64), np.float32)  # each (heads, n, head_dim)
>>> rows = at.attention_statistics(q, k, v, scale="log_n", is_causal=True)
>>> rows.output.shape, rows.entropy.shape
((8, 128, 64), (8, 128))
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

try:
    from ._core import __version__
except ModuleNotFoundError as error:
    if error.name != f"{__name__}._core":
        raise
    raise ImportError(
        f"the compiled module {error.name} is missing for {sys.platform}, {sys.implementation.cache_tag}: "
        "pip install attnscale, or in a checkout make demo",
        name=error.name,
    ) from None

from ._results import AttentionStatistics
from ._runtime import get_num_threads, set_num_threads, show_config, simd_level
from .calibrate import Calibration, calibrate
from .device import attention, attention_entropy, attention_statistics
from .sweep import SweepError, SweepInterrupted, sweep

if TYPE_CHECKING:
    from . import (
        audit,
        conformance,
        datasets,
        laws,
        montecarlo,
        normalizers,
        plot,
        reference,
        theory,
        variants,
    )
    from . import experiments as experiments
    from . import jax as jax
    from . import torch as torch
    from ._report.headvis import export_headvis
    from ._report.make import report
    from ._report.result import Report, ReportPair
    from .calibrator import LawCalibrator
    from .curve import EntropyCurve, entropy_curve
    from .divergence import attention_divergence
    from .gradients import AttentionGradients, attention_gradients
    from .heads import HeadKinds, head_kinds
    from .held_out import HeldOutError, held_out_error
    from .lse import LSE_CONVENTIONS, LseConvention, LseIdentity, convert_lse, identify_lse
    from .matrix import attention_weights
    from .perplexity import PerplexitySolution, solve_perplexity
    from .received import attention_received
    from .selection import TopKeys, attention_mass, top_keys
    from .solve import ScaleSolution, solve_scale
    from .spans import attention_spans
    from .state import AttentionState, attention_state, merge_states

__all__ = [
    "LSE_CONVENTIONS",
    "AttentionGradients",
    "AttentionState",
    "AttentionStatistics",
    "Calibration",
    "EntropyCurve",
    "HeadKinds",
    "HeldOutError",
    "LawCalibrator",
    "LseConvention",
    "LseIdentity",
    "PerplexitySolution",
    "Report",
    "ReportPair",
    "ScaleSolution",
    "SweepError",
    "SweepInterrupted",
    "TopKeys",
    "__version__",
    "attention",
    "attention_divergence",
    "attention_entropy",
    "attention_gradients",
    "attention_mass",
    "attention_received",
    "attention_spans",
    "attention_state",
    "attention_statistics",
    "attention_weights",
    "audit",
    "calibrate",
    "conformance",
    "convert_lse",
    "datasets",
    "entropy_curve",
    "export_headvis",
    "get_num_threads",
    "head_kinds",
    "held_out_error",
    "identify_lse",
    "laws",
    "merge_states",
    "montecarlo",
    "normalizers",
    "plot",
    "reference",
    "report",
    "set_num_threads",
    "show_config",
    "simd_level",
    "solve_perplexity",
    "solve_scale",
    "sweep",
    "theory",
    "top_keys",
    "variants",
]

# Loaded at first use (SPEC 1), so that `import attnscale` costs little more than NumPy.
_SUBMODULES = frozenset(
    {
        "audit",
        "conformance",
        "datasets",
        "experiments",
        "jax",
        "laws",
        "montecarlo",
        "normalizers",
        "plot",
        "reference",
        "theory",
        "torch",
        "variants",
    }
)


#: Names loaded at first use, from these modules: the result types alone take a third of the import.
_ELSEWHERE = {
    "AttentionGradients": "gradients",
    "AttentionState": "state",
    "LSE_CONVENTIONS": "lse",
    "LseConvention": "lse",
    "LseIdentity": "lse",
    "EntropyCurve": "curve",
    "HeadKinds": "heads",
    "HeldOutError": "held_out",
    "LawCalibrator": "calibrator",
    "PerplexitySolution": "perplexity",
    "Report": "_report.result",
    "ReportPair": "_report.result",
    "ScaleSolution": "solve",
    "TopKeys": "selection",
    "attention_divergence": "divergence",
    "attention_gradients": "gradients",
    "attention_mass": "selection",
    "attention_received": "received",
    "attention_spans": "spans",
    "attention_state": "state",
    "attention_weights": "matrix",
    "convert_lse": "lse",
    "identify_lse": "lse",
    "entropy_curve": "curve",
    "export_headvis": "_report.headvis",
    "head_kinds": "heads",
    "held_out_error": "held_out",
    "merge_states": "state",
    "report": "_report.make",
    "solve_perplexity": "perplexity",
    "solve_scale": "solve",
    "top_keys": "selection",
}


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return import_module(f".{name}", __name__)
    if name in _ELSEWHERE:
        found = getattr(import_module(f".{_ELSEWHERE[name]}", __name__), name)
        globals()[name] = found  # the next access does not come here
        return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "experiments", "jax", "torch"])  # not for `import *`: these take seconds to load
