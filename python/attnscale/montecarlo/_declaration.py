# SPDX-License-Identifier: BSD-3-Clause
"""The declarations of the experiments, which command line, figures and documentation read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class Quantity(NamedTuple):
    """A quantity that an experiment estimates."""

    unit: str = ""  # "nat", or "" for a plain number
    label: str = ""  # what an axis of a figure calls it; its name where this is empty


class Grid(NamedTuple):
    """The points at which an experiment was done."""

    axes: Mapping[str, tuple[Any, ...]]  # labels along each axis of the result
    parameters: Mapping[str, Any]
    betas: Any  # beta of the laws, of the shape of the result; None where there are none

    def along(self, name: str) -> Any:
        """A parameter, shaped to broadcast along its axis."""
        if name not in self.axes:
            return self.parameters[name]
        shape = [len(labels) if axis == name else 1 for axis, labels in self.axes.items()]
        return np.reshape(np.array(self.axes[name]), shape)


@dataclass(frozen=True, eq=False)
class Declaration:
    """What is known of an experiment before it is run.

    Attributes
    ----------
    name : str
        The name of the experiment's function in :mod:`attnscale.montecarlo`.
    subject : str
        What it is about, in a line.
    quantities : dict of str to Quantity
        What it estimates; the first is the one that a target error is for.
    samples : int
        How many it draws unless told otherwise, for each point of its outer axes.
    along : tuple of str
        Parameters that a figure has along x, the first that varies.
    exact : callable or None
        From a :class:`Grid` to the expectations of those quantities that the theory has.
    known : str
        Where `exact` has a value, in words.
    defaults : dict of str to str
        In words, the values of parameters whose default in the signature is None.
    choices : dict of str to tuple of str
        What parameters that are words may be.
    arrays : tuple of str
        Parameters that take a model's own queries and keys.
    shares : tuple of str
        Quantities that every row has or has not, 0 or 1; their mean is a share.
    bounded : tuple of str
        Quantities that are from 0 to 1 in every row.
    block : int
        Samples in a row.
    """

    name: str
    subject: str
    quantities: Mapping[str, Quantity]
    samples: int
    along: tuple[str, ...] = ("n", "head_dim")
    exact: Callable[[Grid], dict[str, Any]] | None = None
    known: str = ""
    defaults: Mapping[str, str] = field(default_factory=dict)
    choices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    arrays: tuple[str, ...] = ()
    shares: tuple[str, ...] = ()
    bounded: tuple[str, ...] = ()
    block: int = 1

    @property
    def function(self) -> Callable[..., Any]:
        """The function of the experiment in :mod:`attnscale.montecarlo`, which users call."""
        found: Callable[..., Any] = getattr(import_module(__package__), self.name)
        return found


#: The experiments by name, in the order in which the package lists them.
DECLARATIONS: dict[str, Declaration] = {}


def declare(name: str, subject: str, **about: Any) -> Declaration:
    """Add an experiment to :data:`DECLARATIONS`; `about` are the other fields of :class:`Declaration`."""
    DECLARATIONS[name] = Declaration(name, subject, **about)
    return DECLARATIONS[name]


def exact(experiment: str, grid: Grid) -> dict[str, NDArray[np.float64]]:
    """Expectations of the experiment's quantities, of the shape of its axes; empty if none is known."""
    declared = DECLARATIONS.get(experiment)
    found = declared.exact(grid) if declared is not None and declared.exact is not None else {}
    shape = tuple(map(len, grid.axes.values()))
    return {name: np.broadcast_to(np.asarray(value, np.float64), shape) for name, value in found.items()}
