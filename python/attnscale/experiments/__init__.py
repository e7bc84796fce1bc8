# SPDX-License-Identifier: BSD-3-Clause
"""Experiments that train: small models, seeds, error bars, and what would refute the claim. Needs torch.

Each function trains the models of one experiment and returns a :class:`TrainingResult`; ``attnscale train``
does the same. :func:`stored` has the results of the full runs.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise ImportError(f"attnscale.experiments needs torch ({error}): pip install torch") from error

from ._experiment import Experiment, Variable
from ._names import MODULES, experiment, names, stored
from ._result import Estimate, TrainingResult
from ._run import RunOptions
from ._training import Training

if TYPE_CHECKING:
    from ._collapse import CollapseConfig, collapse
    from ._context import ContextConfig, context
    from ._hybrids import HybridsConfig, hybrids
    from ._layers import LayersConfig, layers
    from ._learned_scales import LearnedScalesConfig, learned_scales
    from ._length_generalization import LengthGeneralizationConfig, length_generalization
    from ._length_tasks import LengthTasksConfig, length_tasks
    from ._recall import RecallConfig, recall

__all__ = [
    "CollapseConfig",
    "ContextConfig",
    "Estimate",
    "Experiment",
    "HybridsConfig",
    "LayersConfig",
    "LearnedScalesConfig",
    "LengthGeneralizationConfig",
    "LengthTasksConfig",
    "RecallConfig",
    "RunOptions",
    "Training",
    "TrainingResult",
    "Variable",
    "collapse",
    "context",
    "experiment",
    "hybrids",
    "layers",
    "learned_scales",
    "length_generalization",
    "length_tasks",
    "names",
    "recall",
    "stored",
]

#: The configs, by the experiment whose module has them.
_CONFIGS: dict[str, str] = {
    "CollapseConfig": "collapse",
    "ContextConfig": "context",
    "HybridsConfig": "hybrids",
    "LayersConfig": "layers",
    "LearnedScalesConfig": "learned_scales",
    "LengthGeneralizationConfig": "length_generalization",
    "LengthTasksConfig": "length_tasks",
    "RecallConfig": "recall",
}


def __getattr__(name: str) -> Any:
    module = MODULES.get(_CONFIGS.get(name, name))
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{module}", __name__), name)


def __dir__() -> list[str]:
    return sorted(__all__)
