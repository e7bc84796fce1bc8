# SPDX-License-Identifier: BSD-3-Clause
"""Distortion of distances by a random projection: Johnson and Lindenstrauss, measured."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
from numpy.typing import NDArray

from .._base.checks import as_array, choose, positive_int, refusal, shown
from .._core import mc_points, mc_projection_rows
from ._experiment import Declaration, Draws, Prepared, Quantity
from ._parameters import axis, check_count, check_memory, describe_array, fraction, integer_axis, product
from ._run import RunOptions, num_threads_of, run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .._base.seeds import RNG
    from ._result import ExperimentResult

KINDS = ("gaussian", "sign", "sparse")
_DISTORTION = Declaration(
    "change of distances by a random projection",
    quantities={
        "distortion": Quantity("", "largest relative change of $|x - y|^2$"),
        "outside": Quantity(),
        "success": Quantity(),
        "mean_ratio": Quantity(),
        "ratio_std": Quantity(),
    },
    samples=10,
    along=("k",),
    defaults={"n": "100", "dim": "1000"},
    choices={"kind": KINDS},
    shares=("success",),
    bounded=("outside",),
)


@_DISTORTION.of
def jl_distortion(
    points: Any = None,
    *,
    n: int | None = None,
    dim: int | None = None,
    k: int | Sequence[int] = (50, 200, 800),
    kind: str | Sequence[str] = "gaussian",
    eps: float | Sequence[float] = 0.5,
    samples: int | None = None,
    rng: RNG | None = None,
    **options: Unpack[RunOptions],
) -> ExperimentResult:
    """Distortion of all squared distances between points by a random projection to k dimensions.

    Parameters
    ----------
    points : array_like, shape (n, dim), optional
        At least two. They are centred in double, scaled so that their squares are in range, and rounded to
        float32: neither an offset nor the unit costs digits. Points that are then equal are refused; the
        relative error of a pair's ratio is about 2e-7 times its distance from the mean over the distance
        between them.
    n, dim : int, optional
        In place of points: n points of dim independent normal coordinates, redrawn for each sample; 100 and
        1000 by default.
    k : int or sequence of int, default (50, 200, 800)
        Dimensions to project to, at least 1.
    kind : {"gaussian", "sign", "sparse"} or sequence of them
        Entries of the matrix, of variance 1/k: normal; +-1/sqrt(k); or sqrt(3/k) times +1, 0, -1
        with probabilities 1/6, 2/3, 1/6 (Achlioptas 2003).
    eps : float or sequence of float
        A distance is kept if its square changes by a factor between 1 - eps and 1 + eps.
    samples : int, optional
        Projections for each k and kind; 10 by default.
    rng, **options
        As for :func:`entropy_vs_length`.

    Returns
    -------
    ExperimentResult
        Means over the projections: ``distortion`` (the largest relative change of a squared distance),
        ``outside`` (share of pairs that change by more than eps), ``success`` (share of projections that keep
        all pairs), ``mean_ratio`` and ``ratio_std`` of the squared distances after and before.

    See Also
    --------
    attnscale.theory.jl_min_dim : a sufficient k.

    Examples
    --------
    >>> import attnscale as at
    >>> result = at.montecarlo.jl_distortion(n=100, dim=1000, k=[50, 400], rng=0)
    >>> bool(result.value[0] > result.value[1])
    True
    """
    threads = num_threads_of(_DISTORTION, options)
    dims = integer_axis("k", k)
    kinds = axis("kind", kind, lambda name, value: choose(name, value, KINDS))
    tolerances = axis("eps", eps, fraction)
    fixed, shape, described = _source(points, n, dim)
    check_memory("k", max(dims.values), 4.0 * shape[0] * (shape[1] + max(dims.values)))
    shared: dict[str, Any] = {
        "points": fixed,
        "n": shape[0],
        "dim": shape[1],
        "eps": tolerances.values,
        "num_threads": threads,
    }
    cases = [
        Draws(
            (*shape, size, KINDS.index(chosen)),
            partial(mc_projection_rows, k=size, kind=chosen, **shared),
            shape[0] * size * float(shape[1] + shape[0]),
        )
        for size, chosen in product(dims, kinds)
    ]
    experiment = Prepared(_DISTORTION, (dims, kinds), cases, inner=(tolerances,), about=described)
    return run(experiment, samples, rng, options)


def _source(
    points: Any, n: Any, dim: Any
) -> tuple[NDArray[np.float32] | None, tuple[int, int], dict[str, Any]]:
    """The points, or None for normal ones; their shape; and the parameters in the result."""
    if points is None:
        n, dim = 100 if n is None else n, 1000 if dim is None else dim
        shape = (check_count("n", positive_int("n", n)), check_count("dim", positive_int("dim", dim)))
        if shape[0] < 2:
            raise refusal(ValueError, "n", f"must be at least 2, got {n}")
        check_memory("n", shape[0], 4.0 * shape[0] * shape[1])
        return None, shape, {"n": n, "dim": dim}
    if n is not None or dim is not None:
        raise ValueError(f"points exclude n and dim, got n={shown(n)} and dim={shown(dim)}")
    given = as_array("points", points)
    if given.dtype.kind not in "f":
        raise TypeError(f"points must be floating point, got {given.dtype}")
    if given.ndim != 2 or given.shape[0] < 2 or given.shape[1] < 1:
        raise ValueError(f"points must have shape (n, dim) with n of at least 2, got {given.shape}")
    with np.errstate(over="ignore"):  # values beyond float64 become infinite, and are refused
        wide = given.astype(np.float64)
    return mc_points(wide), given.shape, {"points": describe_array(given)}
