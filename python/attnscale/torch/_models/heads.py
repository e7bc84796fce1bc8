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
from .by_name import differing
from .calls import Call

__all__ = ["groups_of", "kept_rows", "on_host"]


def on_host(option: Any) -> Any:
    """A tensor as an array of NumPy, a copy if it is on a device; what else is an option stays as it is."""
    if isinstance(option, Sink):
        return sink_of_array(array(option.logits.detach().cpu()))
    return array(option.detach().cpu()) if isinstance(option, torch.Tensor) else option


def kept_rows(call: Call) -> Length:
    """A copy of the queries and keys of one call; the query is such that 1/sqrt(head_dim) is its own scale.

    The copy is in the memory of the CPU.
    """
    query, key, options = call.product("keep_heads keeps")
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


def groups_of(passes: Sequence[Mapping[str, Length | None]], numbers: Sequence[int]) -> list[Group]:
    """The heads of each call with their rows at every length: one for each pass, the later of two alike.

    Parameters
    ----------
    passes : sequence of mapping of str to Length
        By the name of the call.
    numbers : sequence of int
        A number for each call of the last pass, which the page shows.
    """
    by_length: dict[int, dict[str, Length]] = {}
    for each in passes:
        whole = {name: rows for name, rows in each.items() if rows is not None}
        for name, rows in whole.items():
            _check(name, rows)
        lengths = {name: rows.query.shape[-2] for name, rows in whole.items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(differing("a report", "the number of tokens", lengths))
        by_length[next(iter(lengths.values()))] = whole
    names = list(passes[-1])
    if any(list(each) != names for each in by_length.values()):
        raise ValueError("a report needs passes through the same layers")
    groups: list[Group] = []
    for number, name in zip(numbers, names, strict=True):
        found = {n: _one(by_length[n][name]) for n in sorted(by_length)}
        n_heads = len(next(iter(found.values())).query)
        groups.append((found, [(number, head) for head in range(n_heads)]))
    return groups


def _check(name: str, rows: Length) -> None:
    """Refuse what is not one text that sees itself."""
    batch, n_queries, n_keys = rows.query.shape[0], rows.query.shape[-2], rows.key.shape[-2]
    if batch != 1:
        raise ValueError(f"a report needs passes with one text, got a batch of {batch} in {name}")
    if n_queries != n_keys or n_queries < 2:
        raise ValueError(
            "a report needs passes over whole texts, with as many queries as keys, "
            f"got {n_queries} and {n_keys} in {name}"
        )
    if np.ndim(getattr(rows.options.get("normalizer"), "logits", 0.0)) > 1:
        raise ValueError(f"a report needs one sink for each head, got one for each row in {name}")


def _one(rows: Length) -> Length:
    """The rows without the batch axis."""
    options = dict(rows.options)
    mask = options.get("attn_mask")
    if mask is not None and mask.ndim == 4:
        options["attn_mask"] = mask[0]
    return Length(rows.query[0], rows.key[0], options)
