# SPDX-License-Identifier: BSD-3-Clause
"""Queries and keys that a log keeps, as the rows that a report measures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from ..._calibrate.fit import Length
from ..._report.make import Group
from .._arguments import sink_of_array
from .._learned import Sink
from .._tensors import array

__all__ = ["groups_of", "kept_rows", "on_host"]


def on_host(option: Any) -> Any:
    """A tensor as an array of NumPy, a copy if it is on a device; what else is an option stays as it is."""
    if isinstance(option, Sink):
        return sink_of_array(array(option.logits.detach().cpu()))
    return array(option.detach().cpu()) if isinstance(option, torch.Tensor) else option


def kept_rows(query: torch.Tensor, key: torch.Tensor, options: Mapping[str, Any]) -> Length:
    """A copy of the queries and keys of one call; the query is such that 1/sqrt(head_dim) is its own scale.

    The tensors have the shape (batch, heads, n, head_dim), and the options are those of attention. The copy
    is in the memory of the CPU.
    """
    own = options["scale"] * math.sqrt(query.shape[-1])
    causal = options.get("is_causal") or options.get("causal") is not None
    names = ("attn_mask", "window", "softcap", "normalizer")
    known = {name: on_host(options[name]) for name in names if options.get(name) is not None}
    form = {
        "causal": "bottom_right" if causal else None,
        "enable_gqa": query.shape[1] != key.shape[1],
        "num_threads": None,
    }
    rows = np.multiply(on_host(query), own, dtype=np.float32), np.array(on_host(key), np.float32)
    return Length(*rows, form | known)


def groups_of(passes: Sequence[Mapping[int, Length]]) -> list[Group]:
    """The heads of each layer with their rows at every length: one for each pass, the later of two alike."""
    by_length = {}
    for each in passes:
        for layer, rows in each.items():
            _check(layer, rows)
        by_length[next(iter(each.values())).query.shape[-2]] = each
    layers = sorted(next(iter(by_length.values())))
    if any(sorted(each) != layers for each in by_length.values()):
        raise ValueError("a report needs passes through the same layers")
    if any(rows.query.shape[-2] != n for n, each in by_length.items() for rows in each.values()):
        raise ValueError("a report needs layers that all see the same number of tokens in a pass")
    groups: list[Group] = []
    for layer in layers:
        found = {n: _one(by_length[n][layer]) for n in sorted(by_length)}
        n_heads = len(next(iter(found.values())).query)
        groups.append((found, [(layer, head) for head in range(n_heads)]))
    return groups


def _check(layer: int, rows: Length) -> None:
    """Refuse what is not one text that sees itself."""
    batch, n_queries, n_keys = rows.query.shape[0], rows.query.shape[-2], rows.key.shape[-2]
    if batch != 1:
        raise ValueError(f"a report needs passes with one text, got a batch of {batch} in layer {layer}")
    if n_queries != n_keys or n_queries < 2:
        raise ValueError(
            "a report needs passes over whole texts, with as many queries as keys, "
            f"got {n_queries} and {n_keys} in layer {layer}"
        )
    if np.ndim(getattr(rows.options.get("normalizer"), "logits", 0.0)) > 1:
        raise ValueError(f"a report needs one sink for each head, got one for each row in layer {layer}")


def _one(rows: Length) -> Length:
    """The rows without the batch axis."""
    options = dict(rows.options)
    mask = options.get("attn_mask")
    if mask is not None and mask.ndim == 4:
        options["attn_mask"] = mask[0]
    return Length(rows.query[0], rows.key[0], options)
