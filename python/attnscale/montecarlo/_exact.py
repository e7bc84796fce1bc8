# SPDX-License-Identifier: BSD-3-Clause
"""What the theory says of the experiments that it covers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["Grid", "exact"]

_Array = NDArray[np.float64]
_Exact = dict[str, Any]


class Grid(NamedTuple):
    """The points at which an experiment was done."""

    axes: Mapping[str, tuple[Any, ...]]  # labels along each axis of the result
    parameters: Mapping[str, Any]
    betas: Any  # of the laws, of the shape of the result; None where there are none

    def along(self, name: str) -> Any:
        """A parameter, shaped to broadcast along its axis."""
        if name not in self.axes:
            return self.parameters[name]
        shape = [len(labels) if axis == name else 1 for axis, labels in self.axes.items()]
        return np.reshape(np.array(self.axes[name]), shape)


def exact(experiment: str, grid: Grid) -> dict[str, _Array]:
    """Expectations of the experiment's quantities, of the shape of its axes; empty if none is known."""
    known = _EXACT.get(experiment)
    found = known(grid) if known else {}
    shape = tuple(map(len, grid.axes.values()))
    return {name: np.broadcast_to(np.asarray(value, np.float64), shape) for name, value in found.items()}


def _rows(grid: Grid) -> _Exact:
    from .. import theory

    model = grid.parameters["model"]
    if model not in ("sphere", "gaussian"):
        return {}
    head_dim = grid.along("head_dim") if model == "sphere" else 64  # not looked at by the other
    row = theory.expected_statistics(grid.along("n"), grid.betas, head_dim=head_dim, model=model)
    names = ("entropy", "lse", "mean_score", "concentration")
    return {name: getattr(row, name) for name in names}


def _averages(grid: Grid) -> _Exact:
    from .. import theory

    n, head_dim = grid.along("n"), grid.along("head_dim")
    concentration = theory.expected_concentration(n, grid.betas, head_dim=head_dim)
    return {"error_variance": concentration, "concentration": concentration}


def _needle(grid: Grid) -> _Exact:
    from .. import theory

    options = {"head_dim": grid.along("head_dim"), "cosine": grid.parameters["cosine"]}
    weight = theory.needle_weight(grid.along("n"), beta=grid.betas, **options)
    return {"needle_weight": weight, "needle_is_top": _chance_of_the_top(grid)}


def _retrieval(grid: Grid) -> _Exact:
    from .. import theory

    options = {"head_dim": grid.along("head_dim"), "cosine": grid.parameters["cosine"]}
    weight = theory.needle_weight(grid.along("n"), beta=grid.betas, **options)
    return {"accuracy": _chance_of_the_top(grid), "needle_weight": weight}


def _chance_of_the_top(grid: Grid) -> Any:
    """No other key is nearer: F(cosine)^(n - 1), F the distribution function of a random cosine."""
    from scipy.special import betainc

    n, head_dim = grid.along("n"), grid.along("head_dim")
    cosine = grid.parameters["cosine"]
    # (1 + t) / 2 has the beta distribution with both parameters (head_dim - 1) / 2.
    below = betainc((head_dim - 1) / 2, (head_dim - 1) / 2, (1 + cosine) / 2)
    return below ** (n - 1.0)


def _largest_cosine(grid: Grid) -> _Exact:
    from .. import theory

    return {"max_cosine": theory.expected_max_cosine(grid.along("n"), grid.along("head_dim"))}


def _dot_products(grid: Grid) -> _Exact:
    from .. import theory

    if "query" in grid.parameters:  # a model's own vectors: the pairs are all there is to know
        return {}
    dim, std = grid.along("head_dim"), grid.parameters["std"]
    query_mean, key_mean = grid.parameters["mean"]
    cut = theory.truncated_normal_variance(2.0)
    # Of the components at unit std: variance and kurtosis. E x^4 = 3 v - c^2 (1 - v) if cut at c.
    shapes = {"normal": (1.0, 3.0), "uniform": (1.0, 1.8), "laplace": (1.0, 6.0)}
    shapes["truncated_normal"] = (cut, (3 * cut - 4 * (1 - cut)) / cut**2)
    kinds = np.asarray(grid.along("distribution"))
    variance, kurtosis = (
        np.vectorize(lambda kind, i=i: shapes[kind][i], otypes=[float])(kinds) for i in (0, 1)
    )
    total = theory.dot_product_variance(
        dim,
        query_variance=variance * std**2,
        key_variance=variance * std**2,
        query_mean=query_mean,
        key_mean=key_mean,
    )
    found = {"variance": total, "scaled_variance": total / dim, "mean": dim * query_mean * key_mean}
    if query_mean == key_mean == 0:
        found["kurtosis"] = theory.dot_product_kurtosis(dim, query_kurtosis=kurtosis, key_kurtosis=kurtosis)
    return found


_EXACT: dict[str, Callable[[Grid], _Exact]] = {
    "entropy_vs_length": _rows,
    "averaging_error": _averages,
    "needle_dilution": _needle,
    "head_dimension": _retrieval,
    "max_cosine": _largest_cosine,
    "dot_product_variance": _dot_products,
}
