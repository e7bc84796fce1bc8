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
    from ._length_generalization import LengthGeneralizationConfig, length_generalization

__all__ = [
    "Estimate",
    "Experiment",
    "LengthGeneralizationConfig",
    "RunOptions",
    "Training",
    "TrainingResult",
    "Variable",
    "experiment",
    "length_generalization",
    "names",
    "stored",
]

#: The configs, by the experiment whose module has them.
_CONFIGS = {"LengthGeneralizationConfig": "length_generalization"}


def __getattr__(name: str) -> Any:
    module = MODULES.get(_CONFIGS.get(name, name))
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{module}", __name__), name)


def __dir__() -> list[str]:
    return sorted(__all__)
