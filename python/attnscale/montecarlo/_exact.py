# SPDX-License-Identifier: BSD-3-Clause
"""What the theory says of the experiments that it covers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from ._result import ExperimentResult

__all__ = ["exact"]

_Array = NDArray[np.float64]
_Exact = dict[str, Any]


def exact(result: ExperimentResult) -> dict[str, _Array]:
    """Expectations of the quantities of a result, of the shape of its axes; empty if none is known."""
    known = _EXACT.get(result.experiment)
    found = known(result) if known else {}
    shape = tuple(map(len, result.axes.values()))
    return {name: np.broadcast_to(np.asarray(value, np.float64), shape) for name, value in found.items()}


def _along(result: ExperimentResult, name: str) -> Any:
    """A parameter, shaped to broadcast along its axis."""
    if name not in result.axes:
        return result.parameters[name]
    shape = [len(labels) if axis == name else 1 for axis, labels in result.axes.items()]
    return np.reshape(np.array(result.axes[name]), shape)


def _betas(result: ExperimentResult) -> _Array:
    """Of the laws, of the shape of the result."""
    if result._betas is None:
        raise AssertionError(f"{result.experiment} has no laws")
    return result._betas


def _rows(result: ExperimentResult) -> _Exact:
    from .. import theory

    model = result.parameters["model"]
    if model not in ("sphere", "gaussian"):
        return {}
    head_dim = _along(result, "head_dim") if model == "sphere" else 64  # not looked at by the other
    row = theory.expected_statistics(_along(result, "n"), _betas(result), head_dim=head_dim, model=model)
    names = ("entropy", "lse", "mean_score", "concentration")
    return {name: getattr(row, name) for name in names}


def _averages(result: ExperimentResult) -> _Exact:
    from .. import theory

    n, head_dim = _along(result, "n"), _along(result, "head_dim")
    concentration = theory.expected_concentration(n, _betas(result), head_dim=head_dim)
    return {"error_variance": concentration, "concentration": concentration}


def _needle(result: ExperimentResult) -> _Exact:
    from .. import theory

    options = {"head_dim": _along(result, "head_dim"), "cosine": result.parameters["cosine"]}
    weight = theory.needle_weight(_along(result, "n"), beta=_betas(result), **options)
    return {"needle_weight": weight, "needle_is_top": _chance_of_the_top(result)}


def _retrieval(result: ExperimentResult) -> _Exact:
    from .. import theory

    options = {"head_dim": _along(result, "head_dim"), "cosine": result.parameters["cosine"]}
    weight = theory.needle_weight(_along(result, "n"), beta=_betas(result), **options)
    return {"accuracy": _chance_of_the_top(result), "needle_weight": weight}


def _chance_of_the_top(result: ExperimentResult) -> Any:
    """No other key is nearer: F(cosine)^(n - 1), F the distribution function of a random cosine."""
    from scipy.special import betainc

    n, head_dim = _along(result, "n"), _along(result, "head_dim")
    cosine = result.parameters["cosine"]
    # (1 + t) / 2 has the beta distribution with both parameters (head_dim - 1) / 2.
    below = betainc((head_dim - 1) / 2, (head_dim - 1) / 2, (1 + cosine) / 2)
    return below ** (n - 1.0)


def _largest_cosine(result: ExperimentResult) -> _Exact:
    from .. import theory

    return {"max_cosine": theory.expected_max_cosine(_along(result, "n"), _along(result, "head_dim"))}


def _dot_products(result: ExperimentResult) -> _Exact:
    from .. import theory

    if "query" in result.parameters:  # a model's own vectors: the pairs are all there is to know
        return {}
    dim, std = _along(result, "head_dim"), result.parameters["std"]
    query_mean, key_mean = result.parameters["mean"]
    cut = theory.truncated_normal_variance(2.0)
    # Of the components at unit std: variance and kurtosis. E x^4 = 3 v - c^2 (1 - v) if cut at c.
    shapes = {"normal": (1.0, 3.0), "uniform": (1.0, 1.8), "laplace": (1.0, 6.0)}
    shapes["truncated_normal"] = (cut, (3 * cut - 4 * (1 - cut)) / cut**2)
    kinds = np.asarray(_along(result, "distribution"))
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


_EXACT: dict[str, Callable[[ExperimentResult], _Exact]] = {
    "entropy_vs_length": _rows,
    "averaging_error": _averages,
    "needle_dilution": _needle,
    "head_dimension": _retrieval,
    "max_cosine": _largest_cosine,
    "dot_product_variance": _dot_products,
}
