# SPDX-License-Identifier: BSD-3-Clause
"""Result of an experiment, and its JSON file."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from .._base.drawing import drawn_by
from .._base.provenance import Provenance
from .._base.seeds import seed_from_json, seed_to_json
from .._base.spelling import as_number
from .._base.tabled import Labelled, Unit
from .._grid.files import read_json, write_json
from .._grid.table import Column, Table, places
from ._experiment import Grid, exact
from ._tally import Tally

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_KIND = "attnscale mc"
# Results that were pickled before this module moved have its class under the old name.
sys.modules.setdefault("attnscale._provenance", sys.modules[Provenance.__module__])


@dataclass(frozen=True, eq=False)
class Estimate:
    """One estimated quantity.

    Attributes
    ----------
    value, standard_error : float or ndarray of float64
        Numbers in the shape of the result's axes. NaN without samples. The error of a mean is also NaN with
        one sample; the error of a share (of rows that are saturated, found, kept) is never 0, even if all
        rows agree: with no event in N rows it is about sqrt(2) / N.
    unit : str
        "nat" or "" (a plain number).
    """

    value: Any
    standard_error: Any
    unit: str = ""


@dataclass(frozen=True, eq=False, repr=False)
class ExperimentResult(Table):
    """Estimates with standard errors, and all that is needed to repeat or continue them.

    Attributes
    ----------
    experiment : str
        Name of the function in :mod:`attnscale.montecarlo`.
    quantity : str
        Quantity of ``value``: the first of ``estimates``.
    value, standard_error : float or ndarray of float64
        One axis for each parameter given as a sequence, in the order of ``axes``.
    estimates : dict of str to Estimate
        All quantities; ``result["name"]`` is short for ``result.estimates["name"]``.
    axes : dict of str to tuple
        Labels along each axis of ``value``.
    samples : int or ndarray of int64
        Number of samples, of the shape of ``value``.
    parameters : dict
        All that defines the experiment, sequences included, without the number of samples.
    interrupted : bool
        Whether Ctrl-C came before all samples were drawn; ``resume=`` continues.
    target_error : float or None
        Requested standard error; None if a number of samples was requested.
    provenance : Provenance
        Versions and seed.
    missing : int
        Number of cases with fewer samples than requested: after Ctrl-C, or while other parts draw.
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
    _betas: NDArray[np.float64] | None = field(repr=False)  # beta of the laws, of the shape of value
    _seed: np.random.SeedSequence = field(repr=False)
    _tallies: tuple[Tally, ...] = field(repr=False)
    missing: int = 0

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

    def names(self) -> tuple[str, ...]:
        """The names of the quantities, the main one first."""
        return tuple(self.estimates)

    def column(self, name: str | None = None) -> Column:
        """A quantity with its error, its exact value if there is one, and the number of samples."""
        name = name or self.quantity
        value, error, unit = (getattr(self[name], each) for each in ("value", "standard_error", "unit"))
        exact = self.exact().get(name)
        return Column(self.axes, np.asarray(value), unit, np.asarray(error), np.asarray(self.samples), exact)

    def select(self, name: str | None = None, **labels: Any) -> NDArray[np.float64]:
        """Values of a quantity where its axes have these labels; other axes stay.

        Examples
        --------
        >>> import attnscale as at
        >>> result = at.montecarlo.max_cosine([64, 512], [16, 64], samples=10, rng=0)
        >>> result.select(n=512).shape
        (2,)
        """
        name = name or self.quantity
        return np.asarray(np.asarray(self[name].value)[places(name, self.axes, labels)])

    def rows(self) -> list[dict[str, Any]]:
        """One dictionary for every point of the axes: labels, each quantity with its error, samples; with a
        target error, also ``target_reached``.

        Examples
        --------
        >>> import attnscale as at
        >>> result = at.montecarlo.max_cosine([64, 512], 16, samples=10, rng=0)
        >>> [row["n"] for row in result.rows()]
        [64, 512]
        """
        found = self._rows_of({name: f"{name}_standard_error" for name in self.estimates})
        if self.target_error is not None:
            for row, reached in zip(found, np.ravel(self.target_reached), strict=True):
                row["target_reached"] = bool(reached)
        return found

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the result as a JSON file that :meth:`load` reads back bit for bit.

        Examples
        --------
        >>> import attnscale as at, pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp(), "cosines.json")
        >>> at.montecarlo.max_cosine([64, 512], 16, samples=10, rng=0).save(path)
        >>> before = at.montecarlo.ExperimentResult.load(path)
        >>> at.montecarlo.max_cosine([64, 512], 16, samples=20, resume=before).samples
        array([20, 20])
        """
        write_json(path, _KIND, as_stored({each.name: getattr(self, each.name) for each in fields(self)}))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> ExperimentResult:
        """The result that :meth:`save` wrote; ``resume=`` continues it.

        Raises
        ------
        ValueError
            If the file is not such a result.
        """
        stored = from_stored(read_json(path, _KIND))
        estimates = {name: Estimate(**each) for name, each in stored.pop("estimates").items()}
        return cls(estimates=estimates, **stored)

    def exact(self) -> dict[str, NDArray[np.float64]]:
        """Expectations from :mod:`attnscale.theory`, for the quantities that have one.

        Returns
        -------
        dict of str to ndarray
            Arrays of the shape of ``value``; empty without a theory.
        """
        return exact(self.experiment, Grid(self.axes, self.parameters, self._betas))

    def plot(self, ax: Axes | None = None, *, unit: Unit = "nats") -> Axes:
        """Draw the main quantity with error bars, and the exact curve if there is one.

        Parameters
        ----------
        ax : matplotlib Axes, optional
            A new figure's by default.
        unit : {"nats", "bits"}
            Unit of the axis, if the quantity is an entropy.

        Returns
        -------
        matplotlib Axes
        """
        axes: Axes = drawn_by("experiment")(self, ax=ax, unit=unit)
        return axes

    def _coordinates(self) -> dict[str, Any]:
        return {name: list(labels) for name, labels in self.axes.items()}

    def _dataset(self) -> dict[str, Labelled]:
        """The variables of the Dataset: value, standard_error and exact belong to the main quantity."""
        named = {self.quantity: "value", f"{self.quantity}_standard_error": "standard_error"}
        found = {named.get(name, name): each for name, each in self._variables().items()}
        for name in self.estimates:
            held = named.get(name, name)
            found[held] = found[held]._replace(attrs={"long_name": name})
        if (exact := self.column().exact) is not None:
            found["exact"] = Labelled(tuple(self.axes), exact, found["value"].unit)
        return found

    def _attributes(self) -> dict[str, Any]:
        return {
            "experiment": self.experiment,
            "parameters": json.dumps(self.parameters),
            "interrupted": int(self.interrupted),  # netCDF has no booleans
            **({} if self.target_error is None else {"target_error": self.target_error}),
            **{f"provenance_{name}": value for name, value in self.provenance.to_dict().items()},
        }

    def _title(self) -> str:
        fixed = ((name, value) for name, value in self.parameters.items() if name not in self.axes)
        listed = ", ".join(f"{name}={value!r}" for name, value in fixed if value is not None)
        return f"{self.experiment}({listed})"

    def _notes(self) -> list[str]:
        notes = []
        missed = 0 if self.target_error is None else int(np.size(self.samples) - np.sum(self.target_reached))
        if missed:
            aim = as_number(cast(float, self.target_error))
            notes.append(f"  target_error={aim} not reached in {missed} of {np.size(self.samples)}")
        return notes + (["  interrupted; resume=result continues"] if self.interrupted else [])


def as_stored(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields of an ExperimentResult in a file."""
    return {
        **fields,
        "estimates": {
            name: {key: each if key == "unit" else _listed(each) for key, each in vars(estimate).items()}
            for name, estimate in fields["estimates"].items()
        },
        "samples": np.asarray(fields["samples"]).tolist(),
        "provenance": asdict(fields["provenance"]),
        "_betas": None if fields["_betas"] is None else _listed(fields["_betas"]),
        "_seed": seed_to_json(fields["_seed"]),
        "_tallies": [
            {name: _listed(each) for name, each in vars(tally).items()} for tally in fields["_tallies"]
        ],
    }


def from_stored(stored: dict[str, Any]) -> dict[str, Any]:
    """The fields that :func:`as_stored` wrote; estimates as dictionaries."""
    shape = tuple(map(len, stored["axes"].values()))
    made = stored["provenance"]
    seed = made["seed"]
    return {
        **stored,
        "estimates": {
            name: {key: each[key] if key == "unit" else _shaped(each[key], shape) for key in each}
            for name, each in stored["estimates"].items()
        },
        "axes": {name: tuple(labels) for name, labels in stored["axes"].items()},
        "samples": np.array(stored["samples"], np.int64) if shape else stored["samples"],
        "provenance": Provenance(
            **{
                **made,
                "seed": tuple(seed) if isinstance(seed, list) else seed,
                "spawn_key": tuple(made["spawn_key"]),
            }
        ),
        "_betas": None if stored["_betas"] is None else np.array(stored["_betas"], np.float64),
        "_seed": seed_from_json(stored["_seed"]),
        "_tallies": tuple(_tally(each) for each in stored["_tallies"]),
    }


def _tally(stored: dict[str, Any]) -> Tally:
    arrays = (np.array(stored[name], np.float64) for name in ("origin", "sums", "products"))
    return Tally(int(stored["rows"]), *arrays)


def _listed(values: Any) -> Any:
    """Numbers as nested lists; null for NaN and infinity."""
    array: NDArray[Any] = np.asarray(values)
    return np.where(np.isfinite(array), array.astype(object), np.array(None)).tolist()


def _shaped(stored: Any, shape: tuple[int, ...]) -> Any:
    array = np.array(stored, np.float64)
    return array if shape else float(array)
