# SPDX-License-Identifier: BSD-3-Clause
"""The kinds of ``model=``: names, samples, densities."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from .._checks import choose, shown
from ._arguments import finite
from ._atoms import Atoms
from ._densities import Density, Function, Gaussian, Sphere
from ._finite_n import Averages, row_averages

MODELS = ("sphere", "gaussian")

# At larger beta only beta itself still changes: H, E[sum p^2] and lse / beta have their limits.
_LARGEST_BETA = 1e60


def row_function(model: Any, support: Any) -> Callable[[float, float, int], Averages]:
    """A function of n, beta and head_dim that returns the averages; only the sphere looks at head_dim."""
    if support is not None and (isinstance(model, str) or not callable(model)):
        raise TypeError("support goes with a model that is a function of the score")
    if isinstance(model, str):
        if choose("model", model, MODELS) == "sphere":
            return _sphere_row
        return lambda n, beta, head_dim: _gaussian_row(n, beta)
    if callable(model) or hasattr(model, "pdf"):
        density = _read_density(model, support)
        return lambda n, beta, head_dim: _density_row(n, beta, density)
    samples = finite("model", model).ravel()
    if samples.size == 0:
        raise ValueError("model must be at least one score, got an array of size 0")
    atoms = Atoms(samples)
    return lambda n, beta, head_dim: _atoms_row(n, beta, atoms)


@lru_cache(maxsize=4096)
def _sphere_row(n: float, beta: float, head_dim: int) -> Averages:
    return _density_row(n, beta, Sphere(head_dim))


@lru_cache(maxsize=4096)
def _gaussian_row(n: float, beta: float) -> Averages:
    return _density_row(n, beta, Gaussian())


def _density_row(n: float, beta: float, density: Density) -> Averages:
    if n == 1:
        return Averages(beta * density.mean(), 0.0, 1.0)
    if beta == 0:
        return _equal_weights(n)
    lse, entropy, concentration = row_averages(n, min(beta, _LARGEST_BETA), density)
    return _within_bounds(n, lse * max(beta / _LARGEST_BETA, 1.0), entropy, concentration)


def _atoms_row(n: float, beta: float, atoms: Atoms) -> Averages:
    if n == 1:
        return Averages(beta * atoms.mean, 0.0, 1.0)
    return _within_bounds(n, *atoms.row_averages(n, beta)) if beta else _equal_weights(n)


def _equal_weights(n: float) -> Averages:
    return Averages(math.log(n), math.log(n), 1 / n)


def _within_bounds(n: float, lse: float, entropy: float, concentration: float) -> Averages:
    """The averages without the rounding errors that lead out of their bounds."""
    return Averages(lse, min(max(entropy, 0.0), math.log(n)), min(max(concentration, 1 / n), 1.0))


def _read_density(model: Any, support: Any) -> Density:
    if hasattr(model, "pdf"):  # a frozen distribution of SciPy
        return Function(model.pdf, _read_support(model.support() if support is None else support))
    return Function(model, _read_support((-math.inf, math.inf) if support is None else support))


def _read_support(support: Any) -> tuple[float, float]:
    try:
        low, high = (float(end) for end in support)
    except (TypeError, ValueError):
        raise TypeError(f"support must be a pair of numbers, got {shown(support)}") from None
    if not low < high:
        raise ValueError(f"support must be (low, high) with low < high, got {shown(support)}")
    return low, high
