# SPDX-License-Identifier: BSD-3-Clause
"""How often a row of weights is all but one-hot, and what gradient the softmax lets through."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from .._checks import shown
from ._axes import LawAxis, integer_axis, law_axis
from ._declaration import Quantity, declare
from ._run import RunOptions, num_threads_of, run
from ._score_experiment import score_experiment

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .._seeds import RNG
    from ._result import ExperimentResult

_DECLARED = declare(
    "softmax_saturation",
    "saturated rows and Jacobians, scaled and not",
    quantities={
        "saturated": Quantity("", "rows with a weight above 0.99"),
        "jacobian_trace": Quantity("", r"trace of the Jacobian, $1 - \sum p^2$"),
        "jacobian_norm": Quantity("", r"norm of the Jacobian, $\|J\|_F$"),
        "spectral_bound": Quantity(),
        "gradient_norm": Quantity(),
    },
    samples=1000,
    along=("head_dim", "n"),
    defaults={"law": "standard unscaled"},
    shares=("saturated",),
)


def softmax_saturation(
    *,
    head_dim: int | Sequence[int] = (4, 16, 64, 256),
    n: int | Sequence[int] = 512,
    law: LawAxis | None = None,
    scale: LawAxis | None = None,
    samples: int | None = None,
    rng: RNG | None = None,
    **options: Unpack[RunOptions],
) -> ExperimentResult:
    """Saturation of softmax rows of normal queries and keys, against head_dim, scaled and not.

    Parameters
    ----------
    head_dim : int or sequence of int, default (4, 16, 64, 256)
        Independent standard normal components of q and k, at least 1.
    n : int or sequence of int
        Keys in a row, at least 1; also the n of a law.
    law : str, float, Law or sequence of them, optional
        As for :func:`entropy_vs_length`; by default ``("standard", "unscaled")``: 1/sqrt(head_dim) and 1.
    scale : str, float, Law or sequence of them, optional
        Another name of ``law``, which the axis of the result then has.
    samples, rng, **options
        As for :func:`entropy_vs_length`.

    Returns
    -------
    ExperimentResult
        Means over the rows. With p the weights and J = diag(p) - p p^T the Jacobian of the softmax:

        - ``saturated``: share of rows whose largest weight exceeds 0.99;
        - ``jacobian_trace``: 1 - sum p^2;
        - ``jacobian_norm``: Frobenius norm of J, the root mean square norm of the gradient at the
          scores when that at the weights is standard normal;
        - ``spectral_bound``: min(1/2, 2 m (1 - m)), m the largest weight; J's largest eigenvalue
          lies between half of it and it;
        - ``gradient_norm``: scale times ``jacobian_norm``, the same gradient at q . k.

    Raises
    ------
    TypeError, ValueError
        An argument is of the wrong kind or out of range.

    Notes
    -----
    The squared norm is sum p^2 - 2 sum p^3 + (sum p^2)^2, and sum p^k = Z(k a) / Z(a)^k with the partition
    function Z at scale a. The eigenvalue: the diagonal of J bounds it from below, Gershgorin's
    circles from above.

    Examples
    --------
    >>> import attnscale as at
    >>> result = at.montecarlo.softmax_saturation(head_dim=[4, 64, 1024], rng=0)
    >>> result.axes["law"]
    ('standard', 'unscaled')
    >>> result.value.round(2)
    array([[0.  , 0.  ],
           [0.  , 0.12],
           [0.  , 0.62]])
    """
    if law is not None and scale is not None:
        raise ValueError(f"scale is another name of law: give one, got {shown(law)} and {shown(scale)}")
    name, given = ("law", law) if scale is None else ("scale", scale)
    experiment = score_experiment(
        _DECLARED,
        lengths=integer_axis("n", n),
        dims=integer_axis("head_dim", head_dim),
        laws=law_axis(name, ("standard", "unscaled") if given is None else given),
        threads=num_threads_of(_DECLARED, options),
        source="correlated",  # with correlation 0: normal q and keys
        looks=3,
    )
    return run(experiment, samples, rng, options)
