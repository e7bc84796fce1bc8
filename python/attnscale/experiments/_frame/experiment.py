# SPDX-License-Identifier: BSD-3-Clause
"""The declaration of an experiment: models that are trained one by one, and what is measured of each."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from .criterion import Criterion
from .verdict import Measured, Verdict, judge

if TYPE_CHECKING:
    from .training import Training

__all__ = ["Cells", "Experiment", "Variable", "training_loss"]

#: Axes of the grid of models that are trained separately: names, and the labels along each.
Cells = Mapping[str, tuple[Any, ...]]


@dataclass(frozen=True)
class Variable:
    """One array that is measured of each model.

    Attributes
    ----------
    coords : dict of str to tuple
        Names of the axes, in order, and the labels along each; empty for a number.
    unit : str
        "nat" or "" (a plain number).
    meaning : str
        What the array holds, in words.
    """

    coords: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    unit: str = ""
    meaning: str = ""

    @property
    def dims(self) -> tuple[str, ...]:
        """Names of the axes."""
        return tuple(self.coords)

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents of the axes."""
        return tuple(len(labels) for labels in self.coords.values())


def training_loss(ends: tuple[int, ...]) -> Variable:
    """The variable of the mean losses of a training's parts, which end before these steps."""
    return Variable({"step": ends}, "nat", "loss of the training, mean since the step before")


@dataclass(frozen=True)
class Experiment:
    """An experiment: what is asked, what would refute it, and how one model of it is trained.

    Attributes
    ----------
    name : str
        Name of the function in :mod:`attnscale.experiments`.
    claim : str
        The claim's id in docs/claims.md.
    question : str
        What is asked.
    criterion : callable
        ``criterion(config)``: what would refute the claim, as differences that the claim predicts. It is
        data, so that it can be registered before a run and evaluated after it.
    config : type
        A frozen dataclass of numbers, text and tuples: all that defines the experiment but the seeds. Its
        defaults are the full run; ``config.reduced()`` takes less than a minute.
    cells : callable
        ``cells(config)``: the axes of separately trained models.
    measure : callable
        ``measure(config, cell, seed, training)``: trains and evaluates the model of one cell and seed.
        The arrays that it returns, by name, depend on these arguments and on nothing else.
    variables : callable
        ``variables(config)``: a :class:`Variable` for each array that ``measure`` returns; the first is the
        main one.
    """

    name: str
    claim: str
    question: str
    criterion: Callable[[Any], Criterion]
    config: type[Any]
    cells: Callable[[Any], Cells]
    measure: Callable[[Any, dict[str, Any], int, Training], Mapping[str, Any]]
    variables: Callable[[Any], Mapping[str, Variable]]

    def criterion_of(self, parameters: Mapping[str, Any]) -> Criterion:
        """The criterion for a result with these parameters, whose lists stand for tuples."""
        values = {name: tuple(v) if isinstance(v, list) else v for name, v in parameters.items()}
        return self.criterion(self.config(**values))

    def is_reduced(self, parameters: Mapping[str, Any]) -> bool:
        """Whether these parameters are those of ``config.reduced()``, on any device."""
        small, given = (json.loads(json.dumps(each)) for each in (asdict(self.config.reduced()), parameters))
        return all(given.get(name, value) == value for name, value in small.items() if name != "device")

    def refuted(self, table: Measured, config: Any = None) -> Verdict:
        """The verdict of a table of measurements on the claims, by the criterion for `config`.

        By default that is the full run's config. :meth:`TrainingResult.verdict` takes the result's own.
        """
        config = self.config() if config is None else config
        reduced = self.is_reduced(asdict(config))
        return judge(self.criterion(config), table, experiment=self.name, reduced=reduced)
