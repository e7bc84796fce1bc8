# SPDX-License-Identifier: BSD-3-Clause
"""The experiments by name."""

from __future__ import annotations

from importlib import import_module
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from .._checks import shown
from .._spelling import choose_name

if TYPE_CHECKING:
    from ._experiment import Experiment
    from ._result import TrainingResult

__all__ = ["MODULES", "experiment", "names", "stored"]

#: Name of the function, and the module that has it and its ``EXPERIMENT``.
MODULES: dict[str, str] = {
    "collapse": "_collapse",
    "context": "_context",
    "hybrids": "_hybrids",
    "layers": "_layers",
    "learned_scales": "_learned_scales",
    "length_tasks": "_length_tasks",
    "recall": "_recall",
    "length_generalization": "_length_generalization",
}


def names() -> tuple[str, ...]:
    """The names of the experiments.

    Examples
    --------
    >>> "length_generalization" in names()
    True
    """
    return tuple(MODULES)


def experiment(name: str) -> Experiment:
    """What the experiment of this name asks and does."""
    module: Any = import_module(f".{MODULES[choose_name('experiment', name, names())]}", __package__)
    found: Experiment = module.EXPERIMENT
    return found


def stored(name: str, run: str = "full") -> TrainingResult:
    """The result of a run that is shipped.

    Parameters
    ----------
    name : str
        One of :func:`names`.
    run : str, default "full"
        "reduced" is that of the small config; an experiment may have others.

    Returns
    -------
    TrainingResult

    Raises
    ------
    ValueError
        If there is no such experiment, or no such run of it is shipped.

    Examples
    --------
    >>> stored("length_generalization").claim
    'T15'
    """
    from ._result import TrainingResult

    choose_name("experiment", name, names())
    folder = files("attnscale").joinpath("data", "experiments")
    path = folder.joinpath(f"{name}.json" if run == "full" else f"{name}-{run}.json")
    if not path.is_file():
        raise ValueError(f"run must be one whose result is shipped, got {shown(run)} of {name}")
    return TrainingResult.load(str(path))
