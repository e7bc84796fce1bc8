# SPDX-License-Identifier: BSD-3-Clause
"""Design of a study: the models to train, their measurements, and what refutes its claims."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, Self

from ._verdict import Criterion

if TYPE_CHECKING:
    from ._training import Training

#: Axes of the grid of separately trained models: names, and the labels along each.
Cells = Mapping[str, tuple[Any, ...]]


@dataclass(frozen=True)
class Variable:
    """An array measured for each model.

    Attributes
    ----------
    coords : dict of str to tuple
        Names of the axes, in order, and the labels along each; empty for a number.
    unit : str
        "nat" or "" (a plain number).
    meaning : str
        Meaning of the array, in words.
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
    """The variable for the mean losses of a training's parts, which end before these steps."""
    return Variable({"step": ends}, "nat", "loss of the training, mean since the step before")


@dataclass(frozen=True)
class Design(ABC):
    """Declarations of a study, as a frozen dataclass; :class:`Study` is the class for users."""

    name: ClassVar[str]
    claim: ClassVar[str] = ""
    question: ClassVar[str]

    @abstractmethod
    def cells(self) -> Cells:
        """Axes of the separately trained models: names, and the labels along each."""

    @abstractmethod
    def variables(self) -> Mapping[str, Variable]:
        """A :class:`Variable` for each array that :meth:`measure` returns; the first is the main one."""

    @abstractmethod
    def measure(self, cell: dict[str, Any], seed: int, training: Training) -> Mapping[str, Any]:
        """Train and evaluate the model of one cell and seed.

        The returned arrays, by name, depend only on the study and these arguments.
        """

    @abstractmethod
    def criterion(self) -> Criterion:
        """Differences that the claims predict, and that can refute them.

        Data, so that it can be registered before a run and evaluated after it.
        """

    @classmethod
    def reduced(cls) -> Self:
        """The study of the small cell that tests run, in seconds; its results are no evidence."""
        raise ValueError(f"{cls.__name__} has no reduced run")

    def parameters(self) -> dict[str, Any]:
        """The fields and their values, as JSON types."""
        return dict(json.loads(json.dumps({each.name: getattr(self, each.name) for each in fields(self)})))

    def is_reduced(self) -> bool:
        """Whether the parameters are those of :meth:`reduced`, on any device."""
        if type(self).reduced.__func__ is Design.reduced.__func__:  # type: ignore[attr-defined]
            return False
        small, own = type(self).reduced().parameters(), self.parameters()
        return all(own[name] == value for name, value in small.items() if name != "device")
