# SPDX-License-Identifier: BSD-3-Clause
"""Results of attention_statistics and solve_scale."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from .._base.statistics import NAMES
from .._base.tabled import Labelled, Sheet, Tabled, row_dims, summary
from .._call.homes import apply_at_home
from .._core import statistic_traits

if TYPE_CHECKING:
    from numpy.typing import NDArray


def describe_arrays(result: Any) -> str:
    """Class name and the fields that are present, with type and shape instead of numbers."""
    present = ((field.name, getattr(result, field.name)) for field in fields(result))
    parts = [
        f"{name}=<{value.dtype} {tuple(value.shape)}>" if hasattr(value, "shape") else f"{name}={value!r}"
        for name, value in present
        if value is not None
    ]
    return f"{type(result).__name__}({', '.join(parts)})"


@dataclass(frozen=True, eq=False, repr=False, init=False)
class AttentionStatistics(Tabled):
    """Statistics of each row of attention weights; only those that were asked for are there.

    A row is one query of one head. With s its scores (after scale, soft-cap and bias) over the keys
    it may see and p = softmax(s):

    Attributes
    ----------
    output : ndarray, shape (..., heads, n_queries, value_dim)
        sum_j p_j v_j, of the inputs' type (the order of axes follows ``layout``). None without value.
    lse : ndarray, shape (..., heads, n_queries)
        ln sum_j exp(s_j). -inf for a row without keys.
    entropy : ndarray
        -sum_j p_j ln p_j = lse - mean_score, in nats; between 0 and ln n_visible, to rounding (2e-6 in
        float32).
    max_score : ndarray
        The largest score. -inf for a row without keys.
    mean_score : ndarray
        sum_j p_j s_j.
    score_variance : ndarray
        sum_j p_j (s_j - mean_score)^2; d entropy / d ln(scale) is minus this (no soft-cap or bias).
    concentration : ndarray
        sum_j p_j^2: the inverse of an effective number of keys.
    n_visible : ndarray of int64
        Keys that the row may see.
    argmax : ndarray of int64
        Index of the first key with the largest score; -1 for a row without keys.
    max_weight : ndarray
        The largest weight of a key.
    sink_weight : ndarray
        The weight of the sink of :class:`attnscale.normalizers.Sink` or ``SoftmaxN``; 0 without one.
        1 for a row without keys that has a sink.
    support : ndarray of int64
        Keys with a positive weight; those of a softmax are all that the row may see.
    renyi2 : ndarray
        -ln concentration, the Renyi entropy of order 2, in nats; between 0 and the entropy, to rounding.
    min_score : ndarray
        The least score. inf for a row without keys.

    Notes
    -----
    With another normalizer, p are its weights. A sink is one more outcome in lse, entropy, mean_score,
    score_variance, concentration and renyi2, and no key. Normalizers say in ``statistics`` which fields
    their rows have; those whose weights do not add up to 1 have no entropy. A row of ReLU("sum") without a
    positive score has no weights: its entropy is 0.

    Shapes are (..., heads, n_queries); types are float64 for float64 input, else float32, and int64
    for the counts. A row without keys has zeros where no other value is named. A row that sees a NaN
    or an infinite score is NaN.
    """

    # Without defaults: a field that was not asked for is no attribute.
    output: NDArray[Any] | None
    lse: NDArray[Any]
    entropy: NDArray[Any]
    max_score: NDArray[Any]
    mean_score: NDArray[Any]
    score_variance: NDArray[Any]
    concentration: NDArray[Any]
    n_visible: NDArray[np.int64]
    argmax: NDArray[np.int64]
    max_weight: NDArray[Any]
    sink_weight: NDArray[Any]
    support: NDArray[np.int64]
    renyi2: NDArray[Any]
    min_score: NDArray[Any]

    def __init__(self, output: NDArray[Any] | None = None, **statistics: NDArray[Any]) -> None:
        if unknown := statistics.keys() - NAMES:
            raise TypeError(f"statistics must be among {', '.join(NAMES)}; got {', '.join(sorted(unknown))}")
        self.__dict__.update(statistics, output=output)

    def __getattr__(self, name: str) -> Any:
        name = "entropy" if name == "effective_keys" else name  # effective_keys is made from the entropy
        if name in NAMES:
            raise AttributeError(
                f"{name} was not asked for: attention_statistics(..., statistics=(..., {name!r})) has it; "
                f"these rows have {', '.join(self._present()) or 'no statistics'}"
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @property
    def effective_keys(self) -> NDArray[Any]:
        """exp(entropy): as many keys of equal weight have this entropy."""
        keys: NDArray[Any] = apply_at_home(np.exp, self.entropy)
        return keys

    def _replace(self, **changes: Any) -> AttentionStatistics:
        """The statistics with other fields; dataclasses.replace would ask for fields that are not there."""
        return AttentionStatistics(**{**self.__dict__, **changes})

    def _present(self) -> list[str]:
        return [name for name in NAMES if name in self.__dict__]

    def _variables(self) -> dict[str, Labelled]:
        found = {}
        for name in self._present():
            values = getattr(self, name)
            dims = getattr(values, "dims", row_dims(values.ndim))
            found[name] = Labelled(dims, values, statistic_traits[name].unit)
            if name == "entropy":
                found["effective_keys"] = Labelled(dims, self.effective_keys)
        return found

    def _coordinates(self) -> dict[str, Any]:
        return coordinates_of(getattr(self, name) for name in self._present())

    def _sheet(self, nats: float, unit: str) -> Sheet:
        shapes = {f"rows {tuple(getattr(self, name).shape)}": None for name in self._present()}
        if self.output is not None:
            shapes[f"output {tuple(self.output.shape)} of {self.output.dtype}"] = None
        title = f"{type(self).__name__}: {', '.join(shapes) or 'nothing was asked for'}"
        return Sheet(title, *summary(self._variables(), nats, unit))


@dataclass(frozen=True, eq=False, repr=False)
class ScaleSolution(Tabled):
    """Scales that give a wanted entropy, and how near to it they come.

    Shapes are (..., heads, n_queries) for ``per="row"``, (..., heads) for "head" and () for "all".

    Attributes
    ----------
    scale : ndarray of float64
        The least scale >= 0 at which the entropy is at most the target, to the tolerance. NaN where no
        scale reaches the target (``feasible`` is False), or a visible dot product is NaN or infinite.
    entropy : ndarray
        The entropy at this scale, in nats; where no scale reaches the target, the nearest that one does.
        Its type is the arithmetic's for rows, else float64.
    lowest, highest : ndarray
        What any scale can reach: ln of the number of keys that tie for the largest dot product, and
        ln n_visible; means over the rows for "head" and "all". ``lowest`` is a limit that no finite
        scale need reach.
    converged : ndarray of bool
        Whether ``entropy`` is within the tolerance of the target.
    feasible : ndarray of bool
        Whether the target lies between ``lowest`` and ``highest``, to the tolerance.
    iterations : ndarray of int64
        Evaluations of the entropy; 0 where none was needed.
    per : {"row", "head", "all"}
        Which rows share a scale.
    """

    scale: NDArray[np.float64]
    entropy: NDArray[Any]
    lowest: NDArray[Any]
    highest: NDArray[Any]
    converged: NDArray[np.bool_]
    feasible: NDArray[np.bool_]
    iterations: NDArray[np.int64]
    per: str = "row"

    def _variables(self) -> dict[str, Labelled]:
        last = {"row": ("head", "query"), "head": ("head",), "all": ()}[self.per]
        found = {}
        for name in (each.name for each in fields(self) if each.name != "per"):
            values = getattr(self, name)
            kind = "nat" if name in ("entropy", "lowest", "highest") else ""
            found[name] = Labelled(getattr(values, "dims", row_dims(np.ndim(values), last)), values, kind)
        return found

    def _coordinates(self) -> dict[str, Any]:
        return coordinates_of(each.values for each in self._variables().values())

    def _sheet(self, nats: float, unit: str) -> Sheet:
        title = f"ScaleSolution per {self.per}: {np.shape(self.scale)}"
        return Sheet(title, *summary(self._variables(), nats, unit))


def labelled_as(template: Any, values: NDArray[Any], name: str, units: str = "") -> NDArray[Any]:
    """The values with the labels of `template`, which has the same axes; unchanged if it has no labels."""
    if not hasattr(template, "coords"):
        return values
    found: Any = template.copy(data=values).rename(name)
    found.attrs = {"units": units} if units else {}
    return found  # type: ignore[no-any-return]  # a DataArray stands where an array is promised


def coordinates_of(arrays: Iterable[Any]) -> dict[str, Any]:
    """Labels that arrays of xarray carry; other arrays have none."""
    return {name: each for array in arrays for name, each in getattr(array, "coords", {}).items()}
