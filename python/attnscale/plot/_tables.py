# SPDX-License-Identifier: BSD-3-Clause
"""Data of a figure: a table of results, or a Dataset read as one, and a line on its origin."""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .._base.checks import shown
from .._base.spelling import as_number
from .._grid.table import Column, Table
from ..montecarlo._experiment import DECLARATIONS
from ._style import law_label

if TYPE_CHECKING:
    import xarray


def is_table(given: Any) -> bool:
    """Whether `given` is a table of results or a Dataset."""
    return isinstance(given, Table) or hasattr(given, "data_vars")


def read_table(name: str, given: Any, *, unit: str = "") -> Table:
    """`given` as a table; `unit` is that of a Dataset's variable without one."""
    if isinstance(given, Table):
        return given
    if hasattr(given, "data_vars"):
        return _DatasetTable(given, unit)
    raise TypeError(f"{name} must be a result of attnscale.montecarlo or its Dataset, got {shown(given)}")


class _DatasetTable(Table):
    """A Dataset of a result, or of a sweep, as a table.

    The variable "value" is the quantity named by its attribute ``long_name``, with the error "standard_error"
    and the exact value "exact"; the error of another variable is NAME_standard_error.
    """

    def __init__(self, dataset: xarray.Dataset, unit: str) -> None:
        self._data, self._unit = dataset, unit
        self.experiment, self.parameters = _origin(dataset.attrs)
        self._main = str(dataset["value"].attrs.get("long_name", "value")) if "value" in dataset else None

    def names(self) -> tuple[str, ...]:
        held = [str(name) for name in self._data.data_vars]
        about = {"standard_error", "samples", "exact"} if self._main is not None else set()
        about |= {f"{name}_standard_error" for name in held}
        found = [name for name in held if name not in about and name != "value"]
        return (*([] if self._main is None else [self._main]), *found)

    def column(self, name: str | None = None) -> Column:
        name = name or self.names()[0]
        is_main = name == self._main
        variable = self._data["value" if is_main else name]
        error = self._data.get("standard_error" if is_main else f"{name}_standard_error")
        exact = self._data.get("exact") if is_main else None
        samples = self._data.get("samples")
        kind = variable.attrs.get("units", self._unit)
        nats = math.log(2) if kind == "bit" else 1  # from to_xarray(unit="bits")
        return Column(
            axes={str(dim): tuple(variable[dim].values.tolist()) for dim in variable.dims},
            value=variable.values * nats if kind == "bit" else variable.values,
            unit="nat" if kind == "bit" else kind,
            error=None if error is None else error.values * nats,
            count=None if samples is None else np.asarray(samples.values),
            exact=None if exact is None else exact.values * nats,
        )


def _origin(attrs: Any) -> tuple[str, dict[str, Any]]:
    """Name and parameters of the experiment behind a Dataset; the name may be empty."""
    if "experiment" in attrs:
        return str(attrs["experiment"]), json.loads(attrs.get("parameters", "{}"))
    module, _, name = str(attrs.get("function", "")).partition(":")
    # The sweep of another version may name an unknown experiment, or have its constants as text only.
    declared = DECLARATIONS.get(name) if module.startswith("attnscale.montecarlo.") else None
    if declared is None or "parameters" not in attrs:
        return "", {}
    signature = inspect.signature(declared.function).parameters.values()
    usual = {each.name: each.default for each in signature if each.default is not each.empty}
    given = {**usual, **json.loads(attrs["parameters"])}
    given["head_dim"] = given.get("head_dim") or 64
    about_the_run = ("samples", "rng", "options")
    return name, {key: value for key, value in given.items() if key not in about_the_run}


# In the order of the line; {} is the value.
_WORDS = {
    "model": "{} model",
    "correlation": "correlation {}",
    "head_dim": "$d={}$",
    "n": "$n={}$",
    "dim": "{} coordinates",
    "k": "$k={}$",
    "kind": "{} matrices",
    "cosine": "cosine {}",
    "law": "{}",
    "scale": "{}",
    "normalizer": "{}",
    "distribution": "{} components",
    "eps": r"$\varepsilon={}$",
}


def describe(table: Table, unchanging: Sequence[str] = ()) -> str:
    """The parameters of a table that are not axes, and the number of samples.

    `unchanging` are axes along which the quantity is constant.

    Examples
    --------
    >>> import attnscale as at
    >>> describe(at.montecarlo.needle_dilution([64, 512], cosine=0.6, samples=100, rng=0))
    '$d=64$, cosine 0.6, standard, $1/\\\\sqrt{d}$, 100 samples'
    """
    axes, given = table.column().axes, table.parameters
    fixed = {name: value for name, value in given.items() if name not in axes and value is not None}
    words = [_WORDS[name].format(_value(name, fixed[name])) for name in _WORDS if name in fixed]
    if "query" in fixed or not isinstance(fixed.get("model", ""), str):
        words = ["a model's own queries and keys", *words[int("model" in fixed) :]]
    # Mean and standard deviation of components, if not 0 and 1.
    usual = {"mean": ([0.0, 0.0], 0.0, (0.0, 0.0)), "std": (1.0,)}
    words += [f"{name} {fixed[name]}" for name in usual if name in fixed and fixed[name] not in usual[name]]
    samples = table.column().count
    if samples is not None and np.size(samples):
        least, most = int(np.min(samples)), int(np.max(samples))
        words.append(f"{most} samples" if least == most else f"{least} to {most} samples")
    words += [f"the same for every {name.replace('_', ' ')}" for name in unchanging]
    return ", ".join(words)


def _value(name: str, value: Any) -> str:
    if isinstance(value, str):
        return law_label(value) if name in ("law", "scale") else value
    return as_number(value) if isinstance(value, (int, float)) else str(value)
