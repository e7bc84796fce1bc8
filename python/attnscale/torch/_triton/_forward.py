# SPDX-License-Identifier: BSD-3-Clause
"""Output and statistics of all queries, in one pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
from torch import Tensor

from ._forward_kernel import Found, attend_rows
from ._launch import configurations, launch, sizes_of
from ._problem import Problem, rows

#: Statistics that the kernel writes itself; the others follow from them.
_WRITTEN = Found._fields[1:]
#: Other statistics that a statistic is computed from.
_MADE_OF = {"max_weight": ("max_score", "lse"), "sink_weight": ("lse",), "support": ("n_visible",)}
_COUNTS = ("argmax", "n_visible")


def forward(problem: Problem, statistics: Sequence[str]) -> tuple[Tensor | None, dict[str, Tensor]]:
    """Output, None without a value, and statistics of softmax attention by name.

    The output is (batch, heads, n_queries, value_dim) in the type of the query; rows are (batch, heads,
    n_queries) in float32, and in int64 for argmax, n_visible and support.
    """
    shape = problem.row_shape
    needed = {each for name in statistics for each in _MADE_OF.get(name, (name,))}
    if problem.mask is None:
        needed.discard("n_visible")  # it is the length of the interval
    found: dict[str, Any] = {
        name: problem.query.new_empty(shape, dtype=torch.int64 if name in _COUNTS else torch.float32)
        for name in _WRITTEN
        if name in needed
    }
    output = problem.new_output()
    _run(problem, Found(rows(output), **found))
    if problem.mask is None and {"n_visible", "support"} & set(statistics):
        found["n_visible"] = problem.interval_lengths()
    return output, {name: _statistic(name, problem, found) for name in statistics}


def _run(problem: Problem, found: Found) -> None:
    batch, heads, n_queries = problem.row_shape
    if found == Found():
        return

    def programs(chosen: dict[str, Any]) -> int:
        return batch * heads * int(triton.cdiv(n_queries, chosen["BLOCK_M"]))

    launch(
        attend_rows,
        programs,
        configurations("forward", problem),
        *problem.arguments(),
        found,
        *(n_queries, problem.key.shape[-2], heads, heads // problem.key.shape[1], problem.softcap),
        **sizes_of(problem),
    )


def _statistic(name: str, problem: Problem, found: dict[str, Tensor]) -> Tensor:
    if name == "max_weight":
        # A row without keys has both numbers infinite, or a sink and a score of -inf.
        return (found["max_score"] - found["lse"]).exp().masked_fill(found["max_score"] == -torch.inf, 0.0)
    if name == "sink_weight":
        if problem.sink is None:
            return torch.where(found["lse"].isnan(), torch.nan, 0.0)
        return (problem.sink - found["lse"]).exp().expand(problem.row_shape).contiguous()
    if name == "support":
        return found["n_visible"].clone()
    return found[name]
