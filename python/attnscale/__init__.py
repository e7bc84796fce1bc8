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

from ._base.runtime import get_num_threads, set_num_threads, show_config, simd_level
from ._sweep import SweepError, SweepInterrupted, sweep
from .calibration.calibration import Calibration, calibrate
from .device import attention, attention_entropy, attention_statistics
from .exact.results import AttentionStatistics

if TYPE_CHECKING:
    from . import (
        audit,
        conformance,
        datasets,
        laws,
        montecarlo,
        normalizers,
        plot,
        probe,
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
    from ._report.spread import report_folder
    from .calibration.estimator import LawCalibrator
    from .calibration.held_out import HeldOutError, held_out_error
    from .comparison._compare import compare
    from .comparison._result import RunComparison
    from .exact.curve import EntropyCurve, entropy_curve
    from .exact.divergence import attention_divergence
    from .exact.entropy_identity import EntropyIdentity, EntropyQuantity, identify_entropy
    from .exact.gradients import AttentionGradients, attention_gradients
    from .exact.heads import HeadKinds, head_kinds
    from .exact.lse import LSE_CONVENTIONS, LseConvention, LseIdentity, convert_lse, identify_lse
    from .exact.perplexity import PerplexitySolution, solve_perplexity
    from .exact.received import attention_received
    from .exact.selection import TopKeys, attention_mass, top_keys
    from .exact.solve import ScaleSolution, solve_scale
    from .exact.spans import attention_spans
    from .exact.state import AttentionState, attention_state, merge_states
    from .exact.weights import attention_weights

__all__ = [
    "LSE_CONVENTIONS",
    "AttentionGradients",
    "AttentionState",
    "AttentionStatistics",
    "Calibration",
    "EntropyCurve",
    "EntropyIdentity",
    "EntropyQuantity",
    "HeadKinds",
    "HeldOutError",
    "LawCalibrator",
    "LseConvention",
    "LseIdentity",
    "PerplexitySolution",
    "Report",
    "ReportPair",
    "RunComparison",
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
    "compare",
    "conformance",
    "convert_lse",
    "datasets",
    "entropy_curve",
    "export_headvis",
    "get_num_threads",
    "head_kinds",
    "held_out_error",
    "identify_entropy",
    "identify_lse",
    "laws",
    "merge_states",
    "montecarlo",
    "normalizers",
    "plot",
    "probe",
    "reference",
    "report",
    "report_folder",
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
        "probe",
        "reference",
        "theory",
        "torch",
        "variants",
    }
)


#: Names loaded at first use, from these modules: the result types alone take a third of the import.
_ELSEWHERE = {
    "AttentionGradients": "exact.gradients",
    "AttentionState": "exact.state",
    "LSE_CONVENTIONS": "exact.lse",
    "LseConvention": "exact.lse",
    "LseIdentity": "exact.lse",
    "EntropyCurve": "exact.curve",
    "EntropyIdentity": "exact.entropy_identity",
    "EntropyQuantity": "exact.entropy_identity",
    "HeadKinds": "exact.heads",
    "HeldOutError": "calibration.held_out",
    "LawCalibrator": "calibration.estimator",
    "PerplexitySolution": "exact.perplexity",
    "Report": "_report.result",
    "ReportPair": "_report.result",
    "RunComparison": "comparison._result",
    "ScaleSolution": "exact.solve",
    "TopKeys": "exact.selection",
    "attention_divergence": "exact.divergence",
    "attention_gradients": "exact.gradients",
    "attention_mass": "exact.selection",
    "attention_received": "exact.received",
    "attention_spans": "exact.spans",
    "attention_state": "exact.state",
    "attention_weights": "exact.weights",
    "compare": "comparison._compare",
    "convert_lse": "exact.lse",
    "identify_entropy": "exact.entropy_identity",
    "identify_lse": "exact.lse",
    "entropy_curve": "exact.curve",
    "export_headvis": "_report.headvis",
    "head_kinds": "exact.heads",
    "held_out_error": "calibration.held_out",
    "merge_states": "exact.state",
    "report": "_report.make",
    "report_folder": "_report.spread",
    "solve_perplexity": "exact.perplexity",
    "solve_scale": "exact.solve",
    "top_keys": "exact.selection",
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
