# SPDX-License-Identifier: BSD-3-Clause
"""What an experiment returns."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from .._provenance import Provenance
from .._spelling import as_number
from .._tables.tabled import Sheet, Tabled, Unit, Variable, nats_per
from ._exact import Grid, exact
from ._tally import Tally

if TYPE_CHECKING:
    import xarray
    from matplotlib.axes import Axes

__all__ = ["Estimate", "ExperimentResult"]


@dataclass(frozen=True, eq=False)
class Estimate:
    """One estimated quantity.

    Attributes
    ----------
    value, standard_error : float or ndarray of float64
        Of the shape of the result's axes. NaN where there are no samples. The error of a mean is NaN
        with one sample too; that of a share (of rows that are saturated, found, kept) is never 0, also
        where all rows agree: with no event in N rows it is about sqrt(2) / N.
    unit : str
        "nat" or "" (a plain number).
    """

    value: Any
    standard_error: Any
    unit: str = ""


@dataclass(frozen=True, eq=False, repr=False)
class ExperimentResult(Tabled):
    """Estimates with their standard errors, and what is needed to repeat or continue them.

    Attributes
    ----------
    experiment : str
        Name of the function in :mod:`attnscale.montecarlo`.
    quantity : str
        Which quantity ``value`` is: the first of ``estimates``.
    value, standard_error : float or ndarray of float64
        One axis for each parameter that was given as a sequence, in the order of ``axes``.
    estimates : dict of str to Estimate
        All quantities; ``result["name"]`` is short for ``result.estimates["name"]``.
    axes : dict of str to tuple
        Labels along each axis of ``value``.
    samples : int or ndarray of int64
        How many were drawn, of the shape of ``value``.
    parameters : dict
        Everything that defines the experiment, sequences included, without the number of samples.
    interrupted : bool
        Ctrl-C came before all samples were drawn; ``resume=`` continues.
    target_error : float or None
        The standard error that was asked for; None if a number of samples was.
    provenance : Provenance
        Versions and seed.
    """

    experiment: str
    quantity: str
    estimates: dict[str, Estimate]
    axes: dict[str, tuple[Any, ...]]
    samples: Any
    parameters: dict[str, Any]
    interrupted: bool
    target_error: float | None
    provenance: Provenance
    _betas: NDArray[np.float64] | None = field(repr=False)  # of the laws, of the shape of value
    _seed: np.random.SeedSequence = field(repr=False)
    _tallies: tuple[Tally, ...] = field(repr=False)

    @property
    def value(self) -> Any:
        return self.estimates[self.quantity].value

    @property
    def standard_error(self) -> Any:
        return self.estimates[self.quantity].standard_error

    @property
    def target_reached(self) -> Any:
        """Whether ``standard_error`` is at most ``target_error``, of the shape of ``value``; else None."""
        if self.target_error is None:
            return None
        reached = np.asarray(self.standard_error) <= self.target_error
        return reached if reached.shape else bool(reached)

    def __getitem__(self, name: str) -> Estimate:
        try:
            return self.estimates[name]
        except KeyError:
            raise KeyError(f"{name!r}; {self.experiment} estimates {', '.join(self.estimates)}") from None

    def rows(self) -> list[dict[str, Any]]:
        """One dictionary for every point of the axes: labels, each quantity with its error, samples.

        With a target error also ``target_reached``.

        Examples
        --------
        >>> import attnscale as at
        >>> result = at.montecarlo.max_cosine([64, 512], 16, samples=10, rng=0)
        >>> [row["n"] for row in result.rows()]
        [64, 512]
        """
        found = []
        for index in np.ndindex(*(len(labels) for labels in self.axes.values())):
            row = {name: labels[i] for (name, labels), i in zip(self.axes.items(), index, strict=True)}
            for name, estimate in self.estimates.items():
                row[name] = float(np.asarray(estimate.value)[index])
                row[f"{name}_standard_error"] = float(np.asarray(estimate.standard_error)[index])
            row["samples"] = int(np.asarray(self.samples)[index])
            if self.target_error is not None:
                row["target_reached"] = bool(np.asarray(self.target_reached)[index])
            found.append(row)
        return found

    def to_xarray(self, *, unit: Unit = "nats") -> xarray.Dataset:
        """The result as a labelled Dataset.

        Parameters
        ----------
        unit : {"nats", "bits"}
            Of entropies.

        Returns
        -------
        xarray.Dataset
            ``value`` and ``standard_error`` of the main quantity, ``NAME`` and
            ``NAME_standard_error`` of the others, ``samples``, and ``exact`` (the theory's value of
            the main quantity) where there is one. Parameters and provenance are attributes.

        Raises
        ------
        ImportError
            xarray is not installed.
        """
        try:
            import xarray
        except ImportError:
            raise ImportError("to_xarray() needs xarray: pip install xarray") from None
        dims = tuple(self.axes)
        variables: dict[str, Any] = {}
        for name, estimate in self.estimates.items():
            value, error = f"{name}", f"{name}_standard_error"
            if name == self.quantity:
                value, error = "value", "standard_error"
            nats = nats_per(unit) if estimate.unit == "nat" else 1.0
            units = {"units": unit[:-1] if estimate.unit == "nat" else estimate.unit}
            variables[value] = (dims, estimate.value / nats, {"long_name": name, **units})
            variables[error] = (dims, estimate.standard_error / nats, units)
        variables["samples"] = (dims, self.samples)
        if (known := self.exact().get(self.quantity)) is not None:
            nats = nats_per(unit) if self.estimates[self.quantity].unit == "nat" else 1.0
            variables["exact"] = (dims, known / nats, {"units": variables["value"][2]["units"]})
        coords = {name: list(labels) for name, labels in self.axes.items()}
        attrs = {
            "experiment": self.experiment,
            "parameters": json.dumps(self.parameters),
            "interrupted": int(self.interrupted),  # netCDF has no booleans
            **({} if self.target_error is None else {"target_error": self.target_error}),
            **{f"provenance_{name}": value for name, value in self.provenance.to_dict().items()},
        }
        return xarray.Dataset(variables, coords, attrs)

    def exact(self) -> dict[str, NDArray[np.float64]]:
        """The expectations of :mod:`attnscale.theory`, for the quantities of which it has one.

        Returns
        -------
        dict of str to ndarray
            Of the shape of ``value``; empty if there is no theory for the experiment.
        """
        return exact(self.experiment, Grid(self.axes, self.parameters, self._betas))

    def plot(self, ax: Axes | None = None, *, unit: Unit = "nats") -> Axes:
        """Draw the main quantity, with error bars and the exact curve where there is one.

        Parameters
        ----------
        ax : matplotlib Axes, optional
            A new figure's by default.
        unit : {"nats", "bits"}
            Of the axis, if the quantity is an entropy.

        Returns
        -------
        matplotlib Axes
        """
        from .. import plot

        return plot.experiment(self, ax=ax, unit=unit)

    def _variables(self) -> dict[str, Variable]:
        dims, found = tuple(self.axes), {}
        for name, estimate in self.estimates.items():
            found[name] = Variable(dims, estimate.value, estimate.unit)
            found[f"{name}_standard_error"] = Variable(dims, estimate.standard_error, estimate.unit)
        return {**found, "samples": Variable(dims, self.samples)}

    def _coordinates(self) -> dict[str, Any]:
        return {name: list(labels) for name, labels in self.axes.items()}

    def _sheet(self, nats: float, unit: str) -> Sheet:
        kind = self.estimates[self.quantity].unit
        size, named = (nats, unit[:-1]) if kind == "nat" else (1.0, kind)
        header = (*self.axes, f"{self.quantity}{f' ({named})' if named else ''}", "standard error", "samples")
        rows = [
            (
                *(str(row[name]) for name in self.axes),
                f"{row[self.quantity] / size:.6g}",
                f"{row[f'{self.quantity}_standard_error'] / size:.2g}",
                str(row["samples"]),
            )
            for row in self.rows()
        ]
        others = [name for name in self.estimates if name != self.quantity]
        notes = [f"  also: {', '.join(others)}"] if others else []
        missed = 0 if self.target_error is None else int(np.size(self.samples) - np.sum(self.target_reached))
        if missed:
            aim = as_number(cast(float, self.target_error))
            notes.append(f"  target_error={aim} not reached in {missed} of {np.size(self.samples)}")
        notes += ["  interrupted; resume=result continues"] if self.interrupted else []
        return Sheet(f"{self.experiment}({_fixed(self)})", header, rows, tuple(notes))


def _fixed(result: ExperimentResult) -> str:
    """Parameters that are no axis."""
    entries = ((name, value) for name, value in result.parameters.items() if name not in result.axes)
    return ", ".join(f"{name}={value!r}" for name, value in entries if value is not None)
