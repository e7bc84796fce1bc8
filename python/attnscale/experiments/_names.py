# SPDX-License-Identifier: BSD-3-Clause
"""The experiments by name."""

from __future__ import annotations

from importlib import import_module
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from .._spelling import choose_name

if TYPE_CHECKING:
    from ._experiment import Experiment
    from ._result import TrainingResult

__all__ = ["MODULES", "experiment", "names", "stored"]

#: Name of the function, and the module that has it and its ``EXPERIMENT``.
MODULES: dict[str, str] = {
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


def stored(name: str) -> TrainingResult:
    """The result of the full run that is shipped.

    Parameters
    ----------
    name : str
        One of :func:`names`.

    Returns
    -------
    TrainingResult

    Raises
    ------
    ValueError
        If there is no such experiment, or none of its results is shipped.
    """
    from ._result import TrainingResult

    choose_name("experiment", name, names())
    path = files("attnscale").joinpath("data", "experiments", f"{name}.json")
    if not path.is_file():
        raise ValueError(f"experiment must be one with a stored result, got {name!r}, which has none")
    return TrainingResult.load(str(path))
