# SPDX-License-Identifier: BSD-3-Clause
"""One line about what an experiment was done with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .._grid.table import Table
from .._spelling import as_number
from ._style import law_label

# In the order of the line; {} is the value.
_WORDS = {
    "model": "{} model",
    "correlation": "correlation {}",
    "head_dim": "$d={}$",
    "n": "$n={}$",
    "dim": "{} coordinates",
    "k": "$k={}$",
    "kind": "{} matrices",
    "cosine": "cosine {}",
    "law": "{}",
    "scale": "{}",
    "normalizer": "{}",
    "distribution": "{} components",
    "eps": r"$\varepsilon={}$",
}


def describe(table: Table, unchanging: Sequence[str] = ()) -> str:
    """The parameters of a table that are no axis, and how many samples there were.

    `unchanging` are axes along which the quantity is the same.

    Examples
    --------
    >>> import attnscale as at
    >>> describe(at.montecarlo.needle_dilution([64, 512], cosine=0.6, samples=100, rng=0))
    '$d=64$, cosine 0.6, standard, $1/\\\\sqrt{d}$, 100 samples'
    """
    axes, given = table.column().axes, table.parameters
    fixed = {name: value for name, value in given.items() if name not in axes and value is not None}
    words = [_WORDS[name].format(_value(name, fixed[name])) for name in _WORDS if name in fixed]
    if "query" in fixed or not isinstance(fixed.get("model", ""), str):
        words = ["a model's own queries and keys", *words[int("model" in fixed) :]]
    same = [f"the same for every {name.replace('_', ' ')}" for name in unchanging]
    return ", ".join([*words, *_moments(fixed), *_samples(table), *same])


def _value(name: str, value: Any) -> str:
    if isinstance(value, str):
        return law_label(value) if name in ("law", "scale") else value
    return as_number(value) if isinstance(value, (int, float)) else str(value)


def _moments(fixed: Mapping[str, Any]) -> list[str]:
    """Mean and standard deviation of components, where they are not 0 and 1."""
    usual = {"mean": ([0.0, 0.0], 0.0, (0.0, 0.0)), "std": (1.0,)}
    return [f"{name} {fixed[name]}" for name in usual if name in fixed and fixed[name] not in usual[name]]


def _samples(table: Table) -> list[str]:
    samples = table.column().count
    if samples is None or not np.size(samples):
        return []
    least, most = int(np.min(samples)), int(np.max(samples))
    return [f"{most} samples" if least == most else f"{least} to {most} samples"]
