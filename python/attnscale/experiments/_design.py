# SPDX-License-Identifier: BSD-3-Clause
"""What a study declares: which models are trained one by one, what is measured of each, what refutes it."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, Self

from ._verdict import Criterion

if TYPE_CHECKING:
    from ._training import Training

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
class Design(ABC):
    """What a study declares, as a frozen dataclass; :class:`Study` has the words for its users."""

    name: ClassVar[str]
    claim: ClassVar[str] = ""
    question: ClassVar[str]

    @abstractmethod
    def cells(self) -> Cells:
        """Axes of the models that are trained one by one: names, and the labels along each."""

    @abstractmethod
    def variables(self) -> Mapping[str, Variable]:
        """A :class:`Variable` for each array that :meth:`measure` returns; the first is the main one."""

    @abstractmethod
    def measure(self, cell: dict[str, Any], seed: int, training: Training) -> Mapping[str, Any]:
        """Train and evaluate the model of one cell and seed.

        The arrays that it returns, by name, depend on the study, these arguments and nothing else.
        """

    @abstractmethod
    def criterion(self) -> Criterion:
        """What would refute the claim, as differences that the claim predicts.

        It is data, so that it can be registered before a run and evaluated after it.
        """

    @classmethod
    def reduced(cls) -> Self:
        """The study of the small cell that tests run again, in some seconds; its results are no evidence."""
        raise ValueError(f"{cls.__name__} has no reduced run")

    def parameters(self) -> dict[str, Any]:
        """The fields and their values, in types that JSON has."""
        return dict(json.loads(json.dumps({each.name: getattr(self, each.name) for each in fields(self)})))

    def is_reduced(self) -> bool:
        """Whether these are the parameters of :meth:`reduced`, on any device."""
        if type(self).reduced.__func__ is Design.reduced.__func__:  # type: ignore[attr-defined]
            return False
        small, own = type(self).reduced().parameters(), self.parameters()
        return all(own[name] == value for name, value in small.items() if name != "device")
