# SPDX-License-Identifier: BSD-3-Clause
"""Experiments on rows of attention, which differ in what the core measures of a row."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ._axes import Axis, beta_of, product
from ._declaration import Declaration
from ._experiment import Draws, Prepared
from ._limits import STREAMED, check_memory
from ._scores import RealHeads, model_rows


def score_experiment(
    declared: Declaration,
    *,
    lengths: Axis,
    dims: Axis,
    laws: Axis,
    threads: int,
    source: str | RealHeads = "sphere",
    correlation: float = 0.0,
    cosine: float = math.nan,
    parameters: dict[str, Any] | None = None,
    looks: int = 1,
) -> Prepared:
    """An experiment on rows of n keys: outer axes n and head_dim, inner axis the laws.

    `looks` is the number of multiples of its scale at which the core looks at each row, for the cost.
    """
    cases, every_beta = [], []
    for n, dim in product(lengths, dims):
        check_memory("n", n, STREAMED * n)
        check_memory("head_dim", dim, 4.0 * dim)
        betas = np.array([beta_of(law, n, dim) for law in laws.values])
        every_beta.append(betas)
        if isinstance(source, RealHeads):
            rows, cost = source.rows(n, betas.tolist(), threads), 1e5 * len(betas)
        else:
            about = {"correlation": correlation, "cosine": cosine}
            rows = model_rows(declared.name, source, n, dim, betas, threads, **about)
            cost = n * (dim + 8.0 * looks * len(betas))
        cases.append(Draws((n, dim), rows, cost))
    found = {lengths.name: lengths.given, dims.name: dims.given, laws.name: laws.given}
    return Prepared(
        declared,
        outer=(lengths, dims),
        inner=(laws,),
        cases=tuple(cases),
        parameters=found | (parameters or {}),
        betas=np.stack(every_beta),
    )
