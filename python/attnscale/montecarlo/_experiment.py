# SPDX-License-Identifier: BSD-3-Clause
"""Declaration of an experiment, and its cases, which give rows of numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from .._core import mc_means_and_shares
from ._parameters import Axis
from ._tally import Tally

_Function = TypeVar("_Function", bound=Callable[..., Any])


class Quantity(NamedTuple):
    """A quantity that an experiment estimates."""

    unit: str = ""  # "nat", or "" for a plain number
    label: str = ""  # on an axis of a figure; the quantity's name by default


class Grid(NamedTuple):
    """The points of an experiment."""

    axes: Mapping[str, tuple[Any, ...]]  # labels along each axis of the result
    parameters: Mapping[str, Any]
    betas: Any  # beta of the laws, of the shape of the result; None without laws

    def along(self, name: str) -> Any:
        """A parameter, shaped to broadcast along its axis."""
        if name not in self.axes:
            return self.parameters[name]
        shape = [len(labels) if axis == name else 1 for axis, labels in self.axes.items()]
        return np.reshape(np.array(self.axes[name]), shape)


@dataclass(eq=False)
class Declaration:
    """Facts about an experiment that are known before it runs."""

    subject: str  # a description in one line
    quantities: Mapping[str, Quantity]  # estimated quantities; a target error applies to the first
    samples: int  # default number of samples for each point of the outer axes
    #: Parameters for the x axis of a figure; the first that varies is used.
    along: tuple[str, ...] = ("n", "head_dim")
    #: Function of a :class:`Grid` that gives the theoretical expectations of quantities.
    exact: Callable[[Grid], dict[str, Any]] | None = None
    known: str = ""  # quantities with a value in `exact`, in words
    #: Descriptions of defaults that the signature gives as None.
    defaults: Mapping[str, str] = field(default_factory=dict)
    choices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # choices of text parameters
    arrays: tuple[str, ...] = ()  # parameters that accept a model's own queries and keys
    shares: tuple[str, ...] = ()  # quantities that are 0 or 1 in every row; their mean is a share
    bounded: tuple[str, ...] = ()  # quantities between 0 and 1 in every row
    block: int = 1  # samples in a row
    name: str = field(init=False)  # name of the experiment's function in :mod:`attnscale.montecarlo`
    function: Callable[..., Any] = field(init=False)  # that function

    def of(self, function: _Function) -> _Function:
        """Decorate the declared function, and add the experiment to :data:`DECLARATIONS`."""
        self.name, self.function = function.__name__, function
        DECLARATIONS[self.name] = self
        return function


#: The experiments by name, in the package's order.
DECLARATIONS: dict[str, Declaration] = {}


def exact(experiment: str, grid: Grid) -> dict[str, NDArray[np.float64]]:
    """Expectations of the experiment's quantities, of the shape of its axes; empty if unknown."""
    declared = DECLARATIONS.get(experiment)
    found = declared.exact(grid) if declared is not None and declared.exact is not None else {}
    shape = tuple(map(len, grid.axes.values()))
    return {name: np.broadcast_to(np.asarray(value, np.float64), shape) for name, value in found.items()}


class RowSource(Protocol):
    """Rows first ... first + count - 1 of the generator with a key, (count, *inner axes, columns), float64.

    Each row depends only on the key and its index.
    """

    def __call__(self, *, key: int, first: int, count: int) -> NDArray[np.float64]: ...


Estimator: TypeAlias = Callable[[Tally], tuple[NDArray[np.float64], NDArray[np.float64]]]


@dataclass(frozen=True, eq=False)
class Draws:
    """A point of the outer axes."""

    identity: tuple[int, ...]  # numbers that give the case its own random numbers
    rows: RowSource
    cost: float  # approximate operations of a row, by which work is divided; results do not depend on it
    #: Function of a tally that gives values and standard errors, (..., quantities), of quantities other than
    #: means.
    estimate: Estimator | None = None


@dataclass(frozen=True, eq=False)
class Prepared:
    """An experiment with its parameters, ready to run."""

    declared: Declaration
    #: Each point of the outer axes is a case; its rows have an entry for each inner point.
    outer: tuple[Axis, ...]
    cases: Sequence[Draws]  # in the order of the outer axes, the last varying fastest
    inner: tuple[Axis, ...] = ()
    about: dict[str, Any] = field(default_factory=dict)  # parameters that are not axes, for JSON
    #: Beta of the laws, shape (*outer axes, *inner axes); None for experiments without laws.
    betas: NDArray[np.float64] | None = None

    @property
    def parameters(self) -> dict[str, Any]:
        """All parameters that define the experiment, for JSON."""
        return {axis.name: axis.given for axis in (*self.outer, *self.inner)} | self.about

    def empty_tally(self) -> Tally:
        """A tally for the rows of one case."""
        return Tally.empty((*map(len, self.inner), len(self.declared.quantities)))

    def estimate(self, case: Draws, tally: Tally) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Values and standard errors of a case, (..., quantities)."""
        if case.estimate is not None:
            return case.estimate(tally)
        names, declared = list(self.declared.quantities), self.declared
        shares = [names.index(name) for name in declared.shares]
        bounded = [names.index(name) for name in declared.bounded]
        return mc_means_and_shares(tally, shares, bounded)

    def identity(self, case: Draws) -> tuple[int, ...]:
        """Numbers that identify this case of this experiment."""
        return (crc32(self.declared.name.encode()), *case.identity)
