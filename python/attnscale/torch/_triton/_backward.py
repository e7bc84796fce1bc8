# SPDX-License-Identifier: BSD-3-Clause
"""Gradients of attention from what the forward pass kept of each row; the weights are computed again."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch
import triton
from torch import Tensor

from ._backward_kernels import (
    Terms,
    gradients_of_keys,
    gradients_of_mask,
    gradients_of_queries,
    products_with_output,
)
from ._forward import forward
from ._launch import configurations, launch, sizes_of
from ._problem import Problem, pairs, rows

_NEEDED = {
    "entropy": ("entropy",),
    "mean_score": ("entropy",),
    "score_variance": ("entropy", "score_variance"),
    "concentration": ("concentration",),
    "max_score": ("argmax",),
    "max_weight": ("argmax", "max_weight"),
}
#: Statistics whose gradients have terms beyond a linear one in x.
_CURVED = {"score_variance", "concentration", "max_weight", "max_score"}


def needed_rows(gradients: Mapping[str, Tensor]) -> tuple[str, ...]:
    found = ["lse", *(each for name in gradients for each in _NEEDED.get(name, ()))]
    return tuple(dict.fromkeys(found))


def row_terms(
    problem: Problem, rows: Mapping[str, Tensor], gradients: Mapping[str, Tensor], of_output: Tensor | None
) -> Terms:
    """Terms of each row, float32 and contiguous, without the scale; `of_output` is do . o.

    For x = ln p of an outcome, a key or a sink, with lse, the entropy H, the variance V and the
    concentration C of the row, the derivatives of the results by a score are

        lse            p
        entropy       -p (x + H)
        mean_score     p (1 + x + H)
        score_variance p ((x + H)^2 - V + 2 (x + H))
        concentration  2 p (p - C)
        max_weight     w (1 - p) at the key of the largest score, whose weight is w, and -w p at the others
        max_score      1 at the key of the largest score

    and that of the output o through the weights p (do . v - do . o). Their sum is a polynomial in x and p.
    """
    shape = problem.row_shape
    zero = rows["lse"].new_zeros(())
    constant, slope = zero if of_output is None else -of_output, zero
    curve = share = peak = zero
    if (g := gradients.get("lse")) is not None:
        constant = constant + g
    if (g := gradients.get("entropy")) is not None:
        constant, slope = constant - g * rows["entropy"], slope - g
    if (g := gradients.get("mean_score")) is not None:
        constant, slope = constant + g * (1 + rows["entropy"]), slope + g
    if (g := gradients.get("score_variance")) is not None:
        h = rows["entropy"]
        constant, slope = constant + g * (h * h - rows["score_variance"] + 2 * h), slope + 2 * g * (h + 1)
        curve = curve + g
    if (g := gradients.get("concentration")) is not None:
        constant, share = constant - 2 * g * rows["concentration"], share + 2 * g
    if (g := gradients.get("max_score")) is not None:
        peak = peak + g
    if (g := gradients.get("max_weight")) is not None:
        constant, peak = constant - g * rows["max_weight"], peak + g * rows["max_weight"]
    linear = (x.expand(shape).contiguous() for x in (constant, slope))
    scale, lse = problem.scale.expand(shape), rows["lse"].contiguous()
    if not _CURVED & gradients.keys():
        return Terms(scale, lse, *linear)
    argmax = rows["argmax"] if "argmax" in rows else torch.full_like(lse, -1)
    curved = (x.expand(shape).contiguous() for x in (curve, share, peak, argmax))
    return Terms(scale, lse, *linear, *curved)


def sink_gradient(problem: Problem, terms: Terms) -> Tensor:
    """Gradient of the sink of each row: of one more outcome, with the value 0."""
    assert problem.sink is not None
    x = problem.sink.expand(problem.row_shape) - terms.lse
    p = x.exp()
    of_row = terms.constant + terms.slope * x
    if terms.curve is not None:
        of_row = of_row + terms.curve * x * x + terms.share * p
    found: Tensor = p * of_row
    return found


def backward(
    problem: Problem,
    output: Tensor | None,
    kept: Mapping[str, Tensor],
    gradients: Mapping[str, Tensor],
    wanted: Collection[str],
) -> dict[str, Tensor]:
    """Gradients of the tensors of a problem, by the names of its fields in `wanted`.

    `output` is the result of :func:`forward`, read if "output" has a gradient. `kept` holds its statistics;
    missing ones are computed again. `gradients` are those of "output" and of statistics. Results have the
    shape of their field, but (batch, heads, n_queries) in float32 for "scale" and "sink", and each axis of
    length 1 or whole for "mask".
    """
    statistics = {name: g.float() for name, g in gradients.items() if name != "output"}
    missing = [name for name in needed_rows(statistics) if name not in kept]
    if missing:
        kept = {**kept, **forward(problem._replace(value=None), missing)[1]}
    gradient, of_output = gradients.get("output"), None
    if gradient is not None:
        assert output is not None
        gradient = gradient.to(output.dtype)
        gradient = gradient if gradient.stride(-1) == 1 else gradient.contiguous()
        of_output = _products_with_output(problem, output, gradient)
    terms = row_terms(problem, kept, statistics, of_output)
    found: dict[str, Tensor] = {}
    if {"query", "scale"} & set(wanted):
        found["query"], found["scale"] = _of_queries(problem, terms, gradient)
    if {"key", "value"} & set(wanted):
        found["key"], of_value = _of_keys(problem, terms, gradient)
        if problem.value is not None:
            found["value"] = torch.zeros_like(problem.value) if of_value is None else of_value
    if "mask" in wanted:
        found["mask"] = _of_mask(problem, terms, gradient)
    if "sink" in wanted:
        found["sink"] = sink_gradient(problem, terms)
    return {name: found[name] for name in wanted}


def _sizes(problem: Problem, gradient: Tensor | None) -> dict[str, Any]:
    """Sizes for a kernel; the values are not read if the output has no gradient."""
    return sizes_of(problem if gradient is not None else problem._replace(value=None))


def _numbers(problem: Problem) -> tuple[Any, ...]:
    """Last arguments of each kernel: extents and the soft-cap."""
    _, heads, n_queries = problem.row_shape
    return n_queries, problem.key.shape[2], heads, heads // problem.key.shape[1], problem.softcap


def _addresses(terms: Terms) -> Terms:
    return Terms(*(rows(x) for x in terms))


def _products_with_output(problem: Problem, output: Tensor, gradient: Tensor) -> Tensor:
    batch, heads, n_queries = problem.row_shape
    found = output.new_empty(problem.row_shape, dtype=torch.float32)
    sizes = sizes_of(problem)
    block = 16 if sizes["WIDEN"] else 64
    grid = (batch * heads * triton.cdiv(n_queries, block),)
    extents = {"DV": sizes["DV"], "PAD_DV": sizes["PAD_DV"], "BLOCK_M": block}
    products_with_output[grid](rows(output), rows(gradient), found, n_queries, heads, **extents)
    return found


def _of_queries(problem: Problem, terms: Terms, gradient: Tensor | None) -> tuple[Tensor, Tensor]:
    batch, heads, n_queries = problem.row_shape
    found = torch.empty_like(problem.query)
    of_scale = problem.query.new_empty(problem.row_shape, dtype=torch.float32)
    launch(
        gradients_of_queries,
        lambda chosen: batch * heads * int(triton.cdiv(n_queries, chosen["BLOCK_M"])),
        configurations("query", problem),
        *problem.arguments()[:-1],
        *(_addresses(terms), rows(gradient), rows(found), of_scale),
        *_numbers(problem),
        **_sizes(problem, gradient),
    )
    return found, of_scale


def _of_keys(problem: Problem, terms: Terms, gradient: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Gradients of keys, and of values if the output has a gradient."""
    batch, kv_heads, n_keys = problem.key.shape[:3]
    found = torch.empty_like(problem.key)
    of_value = None if gradient is None or problem.value is None else torch.empty_like(problem.value)
    query, key, value, _, _, _, mask, _ = problem.arguments()
    first, past = (None if x is None else rows(x) for x in problem.rows_of_keys())
    launch(
        gradients_of_keys,
        lambda chosen: batch * kv_heads * int(triton.cdiv(n_keys, chosen["BLOCK_N"])),
        configurations("key", problem),
        *(query, key, value, first, past, mask),
        *(_addresses(terms), rows(gradient), rows(found), rows(of_value)),
        *_numbers(problem),
        **_sizes(problem, gradient),
    )
    return found, of_value


def _of_mask(problem: Problem, terms: Terms, gradient: Tensor | None) -> Tensor:
    assert problem.mask is not None
    batch, _, _ = problem.row_shape
    n_batch, n_heads, n_rows = problem.mask.shape[:3]
    n_keys = problem.key.shape[2]
    found = problem.query.new_empty((n_batch, n_heads, n_rows, n_keys), dtype=torch.float32)

    def programs(chosen: dict[str, Any]) -> int:
        tiles = triton.cdiv(n_rows, chosen["BLOCK_M"]) * triton.cdiv(n_keys, chosen["BLOCK_N"])
        return n_batch * n_heads * int(tiles)

    query, key, value, _, begin, end, mask, _ = problem.arguments()
    launch(
        gradients_of_mask,
        programs,
        configurations("mask", problem),
        *(query, key, value, begin, end, mask, _addresses(terms), rows(gradient), pairs(found)),
        *_numbers(problem),
        *(n_batch, n_heads, n_rows, batch),
        **_sizes(problem, gradient),
    )
    return found
