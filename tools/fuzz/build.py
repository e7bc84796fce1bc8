# SPDX-License-Identifier: BSD-3-Clause
"""Arguments of a call from the plain data of a case."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attnscale as at
import numpy as np
from attnscale._call.options import DEFAULTS

from .arrays import dtype_of, make, poison, strided, values
from .draw import Case

__all__ = ["inputs", "make", "normalizer", "options", "read_scale"]

Array = np.ndarray[Any, Any]

FUNCTIONS = {
    "decay": lambda t: 1 / (1.0 + 0.1 * np.abs(t)),
    "sine": lambda t: np.sin(0.7 * t) + 0.0,
    "signed": lambda t: 0.05 * t,
}


def inputs(case: Case, rng: np.random.Generator, names: Any = ("q", "k", "v")) -> dict[str, Array]:
    """The arrays of a case; one of them with NaN or infinity if it says so."""
    found = {name: make(case["arrays"][name], rng) for name in names}
    where = case.get("poison")
    if where in found:
        found[where] = poison(found[where], rng, case.get("share", 0.05))
    return found


def normalizer(spec: Any) -> Any:
    return spec[1] if spec[0] == "name" else getattr(at.normalizers, spec[0])(*spec[1:])


def read_scale(spec: Any, rng: np.random.Generator) -> Any:
    """Value for scale=."""
    if spec[0] == "array":
        return rng.standard_normal(spec[1]) * spec[2]
    if spec[0] == "law":
        return getattr(at.laws, spec[1])(**spec[2])
    return None if spec[0] == "none" else spec[1]


def options(case: Case, rng: np.random.Generator) -> Case:
    """Keyword arguments of the call, arrays made."""
    spec, shape = case["options"], case["shape"]
    made: dict[str, Callable[[Any], Any]] = {
        "scale": lambda x: read_scale(x, rng),
        "attn_mask": lambda x: mask(x, rng),
        "window": tuple,
        "key_lengths": _lengths,
        "document_ids": lambda x: documents(x, shape["nk"], rng),
        "distance_scale": lambda x: _table(x, shape, rng),
        "distance_bias": lambda x: _table(x, shape, rng),
        "normalizer": normalizer,
    }
    return {name: made.get(name, lambda x: x)(spec[name]) for name in DEFAULTS if name in spec}


def _lengths(spec: Case) -> Any:
    if spec["dtype"] == "int" and 0 not in spec["axes"]:
        return spec["values"]
    return np.array(spec["values"], spec["dtype"]).reshape(spec["axes"])


def mask(spec: Case, rng: np.random.Generator) -> Array:
    hidden = np.asarray(rng.random(spec["axes"]) < spec["hidden"])
    if spec["dtype"] == "bool":
        return strided(np.asarray(~hidden), spec["strides"])
    dtype = dtype_of(spec["dtype"])
    found = np.asarray(values(rng, spec["axes"], spec["profile"], dtype)).astype(dtype)
    infinite = dtype.type(-np.inf)
    lowest = np.nextafter(infinite, dtype.type(0))
    hiding = np.array([infinite, lowest, lowest / 2])[rng.integers(0, 3, hidden.shape)]
    found = np.asarray(np.where(hidden, hiding, found)).astype(dtype)
    return strided(found, spec["strides"])


def documents(spec: Case, n_keys: int, rng: np.random.Generator) -> Array:
    """Runs of equal numbers, each number in one run."""
    rows = []
    for _ in range(int(np.prod(spec["axes"]))):
        cuts = np.sort(rng.integers(0, n_keys + 1, spec["runs"] - 1))
        rows.append(rng.permutation(8)[np.searchsorted(cuts, np.arange(n_keys), side="right")])
    return np.array(rows, spec["dtype"]).reshape(*spec["axes"], n_keys)


def _table(spec: Any, shape: Case, rng: np.random.Generator) -> Any:
    if spec[0] == "function":
        return FUNCTIONS[spec[1]]
    n = 2 * (shape["nq"] + shape["nk"]) + 4  # causal= may be an integer far outside
    table: Array = rng.standard_normal((*spec[1], n))
    return table
