# SPDX-License-Identifier: BSD-3-Clause
"""Studies that train small models: seeds, error bars, and criteria of refutation. Needs torch.

A :class:`Study` is a class in its own file, which ``attnscale train FILE.py`` runs. The studies of this
repository and the results of their runs are in its folder ``notebooks/studies``.
"""

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise ImportError(f"attnscale.experiments needs torch ({error}): pip install torch") from error

from ._design import Cells, Variable, training_loss
from ._result import Estimate, TrainingResult
from ._run import RunOptions
from ._study import Study, find, names
from ._train import History, ends_of_parts
from ._training import Training
from ._verdict import (
    Claim,
    Contrast,
    Criterion,
    Finding,
    JudgedClaim,
    Verdict,
    crossed_error,
    crossed_means,
    difference,
    judge,
)

__all__ = [
    "Cells",
    "Claim",
    "Contrast",
    "Criterion",
    "Estimate",
    "Finding",
    "History",
    "JudgedClaim",
    "RunOptions",
    "Study",
    "Training",
    "TrainingResult",
    "Variable",
    "Verdict",
    "crossed_error",
    "crossed_means",
    "difference",
    "ends_of_parts",
    "find",
    "judge",
    "names",
    "training_loss",
]
