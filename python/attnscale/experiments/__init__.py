# SPDX-License-Identifier: BSD-3-Clause
"""Experiments that train: small models, seeds, error bars, and what would refute the claim. Needs torch.

Each function trains the models of one experiment and returns a :class:`TrainingResult`; ``attnscale train``
does the same. :func:`stored` has the results of the full runs.
"""

import re
from typing import TYPE_CHECKING, Any

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise ImportError(f"attnscale.experiments needs torch ({error}): pip install torch") from error

from ._frame.criterion import Claim, Contrast, Criterion, difference
from ._frame.experiment import Experiment, Variable
from ._frame.result import Estimate, TrainingResult
from ._frame.run import RunOptions, register
from ._frame.training import Training
from ._frame.verdict import Finding, JudgedClaim, Verdict, judge
from ._models.best_multiples import BestMultiples, Spread, best_multiples
from ._names import experiment, names, stored, study

if TYPE_CHECKING:
    from ._studies.causal_length import CausalLengthConfig, causal_length
    from ._studies.collapse import CollapseConfig, collapse
    from ._studies.context import ContextConfig, context
    from ._studies.hybrids import HybridsConfig, hybrids
    from ._studies.layers import LayersConfig, layers
    from ._studies.learned_scales import LearnedScalesConfig, learned_scales
    from ._studies.length_generalization import LengthGeneralizationConfig, length_generalization
    from ._studies.length_tasks import LengthTasksConfig, length_tasks
    from ._studies.needle_multiples import NeedleMultiplesConfig, needle_multiples
    from ._studies.recall import RecallConfig, recall
    from ._studies.text_multiples import TextMultiplesConfig, text_multiples
    from ._studies.two_heads import TwoHeadsConfig, two_heads

__all__ = [
    "BestMultiples",
    "CausalLengthConfig",
    "Claim",
    "CollapseConfig",
    "ContextConfig",
    "Contrast",
    "Criterion",
    "Estimate",
    "Experiment",
    "Finding",
    "HybridsConfig",
    "JudgedClaim",
    "LayersConfig",
    "LearnedScalesConfig",
    "LengthGeneralizationConfig",
    "LengthTasksConfig",
    "NeedleMultiplesConfig",
    "RecallConfig",
    "RunOptions",
    "Spread",
    "TextMultiplesConfig",
    "Training",
    "TrainingResult",
    "TwoHeadsConfig",
    "Variable",
    "Verdict",
    "best_multiples",
    "causal_length",
    "collapse",
    "context",
    "difference",
    "experiment",
    "hybrids",
    "judge",
    "layers",
    "learned_scales",
    "length_generalization",
    "length_tasks",
    "names",
    "needle_multiples",
    "recall",
    "register",
    "stored",
    "text_multiples",
    "two_heads",
]


def __getattr__(name: str) -> Any:
    """An experiment's function or config class, imported on first use (`collapse`, `CollapseConfig`)."""
    of_config = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name.removesuffix("Config")).lower()
    for each in (name, of_config):
        if each in names():
            return getattr(study(each), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
