# SPDX-License-Identifier: BSD-3-Clause
"""Look up experiments by name."""

from __future__ import annotations

import pkgutil
from importlib import import_module
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from .._checks import choose, shown
from . import _studies

if TYPE_CHECKING:
    from ._frame.experiment import Experiment
    from ._frame.result import TrainingResult

__all__ = ["experiment", "names", "stored", "study"]


def names() -> tuple[str, ...]:
    """The names of the experiments.

    Examples
    --------
    >>> "length_generalization" in names()
    True
    """
    return tuple(sorted(each.name for each in pkgutil.iter_modules(_studies.__path__)))


def experiment(name: str) -> Experiment:
    """The declaration of the experiment `name`: what it asks and does."""
    found: Experiment = study(name).EXPERIMENT
    return found


def study(name: str) -> Any:
    """The module of the experiment `name`: function, config, and what it declares as ``EXPERIMENT``."""
    return import_module(f".{choose('experiment', name, names())}", _studies.__name__)


def stored(name: str, run: str = "full") -> TrainingResult:
    """The result of a run of an experiment that is shipped with the package.

    Parameters
    ----------
    name : str
        One of :func:`names`.
    run : str, default "full"
        Which run: "full", or "reduced" for that of the small config; an experiment may have others.

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
    from ._frame.result import TrainingResult, completed

    choose("experiment", name, names())
    folder = files("attnscale").joinpath("data", "experiments")
    path = folder.joinpath(f"{name}.json" if run == "full" else f"{name}-{run}.json")
    if not path.is_file():
        raise ValueError(f"run must be one whose result is shipped, got {shown(run)} of {name}")
    return completed(TrainingResult.load(str(path)), experiment(name))
