# SPDX-License-Identifier: BSD-3-Clause
"""Gradients of attention, from what the forward pass kept of each row: the weights are computed again."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch
import triton
from torch import Tensor

from ._configurations import configurations
from ._forward import forward
from ._gradient_tiles import Terms
from ._key_kernel import gradients_of_keys
from ._launch import launch, sizes_of
from ._mask_kernel import gradients_of_mask
from ._problem import Problem, pairs, rows
from ._query_kernel import gradients_of_queries, products_with_output
from ._row_terms import needed_rows, row_terms, sink_gradient


def backward(
    problem: Problem,
    output: Tensor | None,
    kept: Mapping[str, Tensor],
    gradients: Mapping[str, Tensor],
    wanted: Collection[str],
) -> dict[str, Tensor]:
    """The gradients of the tensors of a problem.

    Parameters
    ----------
    problem : Problem
    output : Tensor or None
        That of :func:`forward`; read if "output" has a gradient.
    kept : mapping of Tensor, shape (batch, heads, n_queries)
        Statistics that :func:`forward` has given. Those that are needed and missing are computed again.
    gradients : mapping of Tensor
        The gradients of "output" and of statistics, by their names.
    wanted : collection of str
        Names of fields of the problem: "query", "key", "value", "scale", "mask", "sink".

    Returns
    -------
    dict of Tensor
        Of the shape of the field, but (batch, heads, n_queries) and float32 for "scale" and "sink", and with
        each axis of length 1 or whole for "mask".
    """
    statistics = {name: g.float() for name, g in gradients.items() if name != "output"}
    missing = [name for name in needed_rows(statistics) if name not in kept]
    if missing:
        kept = {**kept, **forward(problem._replace(value=None), missing)[1]}
    gradient, of_output = gradients.get("output"), None
    if gradient is not None:
        assert output is not None
        gradient = _with_unit_stride(gradient.to(output.dtype))
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


def _with_unit_stride(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def _sizes(problem: Problem, gradient: Tensor | None) -> dict[str, Any]:
    """Sizes for a kernel, which does not read the values if the output has no gradient."""
    return sizes_of(problem if gradient is not None else problem._replace(value=None))


def _numbers(problem: Problem) -> tuple[Any, ...]:
    """The last arguments of each kernel: extents and the soft-cap."""
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
    """The gradients of queries and of their scales."""
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
    """The gradients of keys, and of values if the output has a gradient."""
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
    """The gradient of the mask, in float32."""
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
