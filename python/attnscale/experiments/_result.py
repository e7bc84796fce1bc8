# SPDX-License-Identifier: BSD-3-Clause
"""Result of a study: arrays over its cells and seeds, and all that is needed to repeat them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .._base.drawing import drawn_by
from .._base.tabled import Labelled
from .._grid.files import read_json, write_json
from .._grid.table import Column, Table, places
from ._design import Variable
from ._verdict import Criterion, Verdict, judge

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_KIND = "attnscale train"
_DIGITS = 6  # significant digits of a stored number: seeds already differ in the third


class Estimate(NamedTuple):
    """Mean over the seeds, its standard error (NaN with one seed), and the number of seeds."""

    value: NDArray[np.float64]
    standard_error: NDArray[np.float64]
    seeds: NDArray[np.int64]


@dataclass(frozen=True, eq=False, repr=False)
class TrainingResult(Table):
    """Measurements of each trained model, by cell and seed.

    Attributes
    ----------
    experiment, claim : str
        Name of the study, and id of the claim.
    question, refuted_if : str
        The question, and what would refute the claim, in words, as in the code when the models were trained.
    axes : dict of str to tuple
        Labels along the axes of the cells, then along "seed".
    variables : dict of str to Variable
        Axes, unit and meaning of the measured arrays; the first is the main one.
    arrays : dict of str to ndarray
        Measurements along ``axes``, then the variable's own axes; NaN for missing models.
    parameters : dict
        The study's fields: its definition except the seeds.
    facts : dict
        Facts of the data: sizes, hashes, splits.
    provenance : list of dict
        Versions and machines, each distinct combination with its number of models.
    interrupted : bool
        Whether Ctrl-C came before all models were trained.
    criterion : Criterion or None
        The criterion of :meth:`verdict`; None in files older than evaluated criteria.
    registration : str
        Hash of the registration of the training; empty for an exploratory run.
    reduced : bool
        Whether it is the small cell that tests run, whose verdicts are no evidence.
    """

    experiment: str
    claim: str
    question: str
    refuted_if: str
    axes: dict[str, tuple[Any, ...]]
    variables: dict[str, Variable]
    arrays: dict[str, NDArray[np.float64]]
    parameters: dict[str, Any]
    facts: dict[str, Any]
    provenance: list[dict[str, Any]]
    interrupted: bool = False
    criterion: Criterion | None = None
    registration: str = ""
    reduced: bool = False

    counts = "seeds"

    def __getitem__(self, name: str) -> Estimate:
        """Mean and standard error of a variable over the seeds, along the axes of the cells, then its own."""
        values = self.select(name)
        axis = list(self.axes).index("seed")
        there = np.isfinite(values).sum(axis)
        with np.errstate(invalid="ignore", divide="ignore"):
            mean = np.where(np.isfinite(values), values, 0).sum(axis) / there
            away = np.where(np.isfinite(values), values - np.expand_dims(mean, axis), 0)
            error = np.sqrt((away**2).sum(axis) / (there - 1) / there)
        return Estimate(mean, np.where(there > 1, error, np.nan), there)

    @property
    def complete(self) -> bool:
        """Whether all models are trained."""
        return bool((self._finished() > 0).all())

    def names(self) -> tuple[str, ...]:
        """The names of the variables, the main one first."""
        return tuple(self.variables)

    def column(self, name: str | None = None) -> Column:
        """The mean of a variable over the seeds, its standard error and the number of seeds."""
        name = self.names()[0] if name is None else name
        value, error, seeds = self[name]
        axes = {axis: labels for axis, labels in self._coords(name).items() if axis != "seed"}
        return Column(axes, value, self.variables[name].unit, error, seeds)

    def select(self, name: str, **labels: Any) -> NDArray[np.float64]:
        """Array of a variable where its axes have these labels; other axes stay.

        Examples
        --------
        ``result.select("accuracy", variant="dot", n=512)`` has the axes that are left, the seeds among them.
        """
        if name not in self.arrays:
            raise KeyError(f"{name!r}; {self.experiment} measures {', '.join(self.arrays)}")
        return np.asarray(self.arrays[name][places(name, self._coords(name), labels)])

    def rows(self, name: str | None = None) -> list[dict[str, Any]]:
        """A dictionary for every point of a variable: labels, mean over the seeds, its error, seeds."""
        return self._rows_of({self.names()[0] if name is None else name: "standard_error"})

    def verdict(self) -> Verdict:
        """Verdict on each claim: shown, refuted or undecided, with intervals.

        Raises
        ------
        ValueError
            If the result has no criterion, because its file is older than criteria: :meth:`Study.completed`
            adds the present one.
        """
        if self.criterion is None:
            raise ValueError(
                "criterion must be in the result for a verdict, got None: the file is older than criteria; "
                "attnscale train NAME --judge FILE evaluates it by the present one"
            )
        return judge(
            self.criterion,
            self,
            experiment=self.experiment,
            registration=self.registration,
            reduced=self.reduced,
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the result as a JSON file, with six digits of each number."""
        stored = {each.name: getattr(self, each.name) for each in fields(self)}
        stored["variables"] = {name: asdict(variable) for name, variable in self.variables.items()}
        stored["arrays"] = {name: _rounded(values) for name, values in self.arrays.items()}
        stored["criterion"] = None if self.criterion is None else self.criterion.to_dict()
        write_json(path, _KIND, stored)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> TrainingResult:
        """Read the result that :meth:`save` wrote."""
        stored = read_json(path, _KIND, usual=_KIND)
        variables = {
            name: Variable(_tuples(each["coords"]), each["unit"], each["meaning"])
            for name, each in stored.pop("variables").items()
        }
        axes = _tuples(stored.pop("axes"))
        criterion = stored.pop("criterion", None)
        stored["criterion"] = None if criterion is None else Criterion.from_dict(criterion)
        lead = tuple(map(len, axes.values()))
        arrays = {
            name: np.array(values, np.float64).reshape(*lead, *variables[name].shape)
            for name, values in stored.pop("arrays").items()
        }
        return cls(axes=axes, variables=variables, arrays=arrays, **stored)

    def plot(
        self, name: str | None = None, *, x: str | None = None, ax: Axes | Figure | None = None, **labels: Any
    ) -> Axes:
        """Mean over the seeds with error bars: a line for each point of the other axes.

        Parameters
        ----------
        name : str, optional
            A variable; the main one by default.
        x : str, optional
            The axis along the abscissa; by default the variable's last own axis, else the last of the cells.
        ax : matplotlib Axes or Figure, optional
            Where to draw; a new figure by default. A figure gets several panels if one would have more than
            eight lines; the first panel is returned.
        labels
            Draw only the points whose axes have these labels.
        """
        name = self.names()[0] if name is None else name
        axes: Axes = drawn_by("_training.training")(name, self.column(name).at(name, **labels), x, ax)
        return axes

    def _finished(self) -> NDArray[np.int64]:
        """Number of finite entries in the arrays of each model."""
        lead = len(self.axes)
        counts = [np.isfinite(each).reshape(*each.shape[:lead], -1).sum(-1) for each in self.arrays.values()]
        return np.asarray(sum(counts))

    def _variables(self) -> dict[str, Labelled]:
        return {
            name: Labelled((*self.axes, *variable.dims), self.arrays[name], variable.unit)
            for name, variable in self.variables.items()
        }

    def _coordinates(self) -> dict[str, Any]:
        own = {dim: labels for each in self.variables.values() for dim, labels in each.coords.items()}
        return {name: list(map(_label, labels)) for name, labels in {**self.axes, **own}.items()}

    def _attributes(self) -> dict[str, Any]:
        texts = {name: getattr(self, name) for name in ("experiment", "claim", "question", "refuted_if")}
        records = {"parameters": self.parameters, "facts": self.facts, "provenance": self.provenance}
        return {**texts, **{name: json.dumps(each) for name, each in records.items()}}

    def _title(self) -> str:
        return f"{self.experiment}: {self.question}"

    def _notes(self) -> list[str]:
        missing = int((self._finished() == 0).sum())
        notes = [f"  {missing} of {self._finished().size} models are not trained"] if missing else []
        return [*notes, f"  refuted if {self.refuted_if}"]

    def _coords(self, name: str) -> dict[str, tuple[Any, ...]]:
        """All axes of a variable's array: those of the cells, "seed", then its own."""
        return {**self.axes, **self.variables[name].coords}


def _label(value: Any) -> Any:
    return value if isinstance(value, (int, float, str)) else str(value)


def _tuples(stored: Mapping[str, Any]) -> dict[str, tuple[Any, ...]]:
    return {name: tuple(labels) for name, labels in stored.items()}


def _rounded(values: NDArray[np.float64]) -> list[float | None]:
    """All numbers in one list; None (null in JSON, read as NaN) for NaN and infinity."""
    return [float(f"{each:.{_DIGITS}g}") if np.isfinite(each) else None for each in values.ravel().tolist()]
