# SPDX-License-Identifier: BSD-3-Clause
"""Softmax-weighted sum of KeOps, compiled for each width."""

from __future__ import annotations

from typing import Any

import numpy as np

from ._engine import Engine, refuse
from ._torch import run


def _attend(query: Any, key: Any, value: Any, *, scale: Any = None, **rest: Any) -> Any:
    import pykeops
    from pykeops.torch import LazyTensor

    pykeops.set_verbose(False)
    refuse(rest, query, key, value)
    if np.ndim(scale) or len({x.shape[:2] for x in (query, key, value)}) > 1:
        raise NotImplementedError("one scale, one batch and one number of heads")
    if 0 in (*query.shape, *key.shape, *value.shape) or query.dtype not in (np.float32, np.float64):
        raise NotImplementedError("float32 and float64, and no empty arrays")
    factor = query.shape[3] ** -0.5 if scale is None else float(scale)

    def call(q: Any, k: Any, v: Any) -> Any:
        rows = LazyTensor((q * factor)[:, :, :, None].contiguous())
        keys, values = (LazyTensor(x[:, :, None].contiguous()) for x in (k, v))
        scores = (rows * keys).sum(-1)
        lse = scores.logsumexp(axis=3)
        return {"output": scores.sumsoftmaxweight(values, axis=3), "lse": lse.squeeze(-1)}

    return run(call, query, key, value, differentiated=())  # gradients would be compiled for minutes


KEOPS = Engine(
    name="keops",
    call="pykeops.torch.LazyTensor.sumsoftmaxweight, logsumexp",
    package="pykeops",
    run_with="2.3",
    attend=_attend,
    requirements=("pykeops==2.3", "keopscore==2.3", "pybind11==3.1.0"),
    notes="The scale is multiplied into the queries. Needs a C++ compiler, which "
    "takes half a minute for each pair of widths.",
)
