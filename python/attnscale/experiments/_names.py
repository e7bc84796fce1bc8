# SPDX-License-Identifier: BSD-3-Clause
"""Look up experiments by name."""

from __future__ import annotations

import pkgutil
from importlib import import_module
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from .._checks import choose
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
    files_of = {"full": f"{name}.json"}  # by the run, all that are shipped
    for each in sorted(path.name for path in folder.iterdir()):
        if each.startswith(f"{name}-") and each.count(".") == 1:  # two dots are a registration's
            files_of[each.removeprefix(f"{name}-").removesuffix(".json")] = each
    chosen = files_of[choose(f"run of {name}", run, [*files_of])]
    return completed(TrainingResult.load(str(folder.joinpath(chosen))), experiment(name))
