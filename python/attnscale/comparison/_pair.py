# SPDX-License-Identifier: BSD-3-Clause
"""One layer of two runs side by side: scores, weights, and relative differences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .._base.checks import InputError
from .._base.text import some_of
from .._files.recording import KeptRows

Array: TypeAlias = NDArray[np.float64]

#: Relative rounding of a number of each type.
EPSILON = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
_ROWS = 16
_LEAST_WEIGHT = 1e-12  # in a divergence


@dataclass(frozen=True, eq=False)
class Pair:
    """One layer of both runs, with the rows and keys that both kept."""

    a: KeptRows
    b: KeptRows

    @cached_property
    def scores(self) -> tuple[Array, Array]:
        """Scores (heads, rows, keys) of both runs, before soft-cap and bias if queries and keys are known."""
        if self.has_products:
            known = self.has_scales
            return product_of(self.a, known=known), product_of(self.b, known=known)
        return final_scores(self.a), final_scores(self.b)

    @property
    def has_products(self) -> bool:
        return self.a.query is not None and self.b.query is not None

    @property
    def has_scales(self) -> bool:
        return self.a.scale is not None and self.b.scale is not None

    @property
    def epsilon(self) -> float:
        """Relative rounding of a number of the coarser type."""
        return max(EPSILON.get(each.dtype, EPSILON["float32"]) for each in (self.a, self.b))

    @cached_property
    def by_head(self) -> Array:
        """Relative difference of the scores of each head."""
        here, there = self.scores
        return np.array([relative(x, y) for x, y in zip(here, there, strict=True)])

    @cached_property
    def differences(self) -> dict[str, float | None]:
        """Relative differences: of the module's input, queries, keys, scores, and of its output."""
        found: dict[str, float | None] = {
            name: relative(getattr(self.a, name), getattr(self.b, name))
            if getattr(self.a, name) is not None
            and getattr(self.b, name) is not None
            and getattr(self.a, name).shape == getattr(self.b, name).shape
            else None
            for name in ("input", "query", "key", "output")
        }
        return {**found, "scores": relative(*self.scores)}

    @property
    def size(self) -> float:
        """Relative difference of the scores."""
        return self.differences["scores"] or 0.0

    @cached_property
    def usual(self) -> dict[str, float]:
        """Median over the rows of each relative difference, 0 if it is not known.

        A few rows that differ more, as those that rounding sent to another expert, do not count.
        """
        found = {}
        for name, known in self.differences.items():
            here, there = self.scores if name == "scores" else (getattr(self.a, name), getattr(self.b, name))
            rows = [] if known is None else zip(*(np.moveaxis(x, -2, 0) for x in (here, there)), strict=True)
            found[name] = float(np.median([relative(*row) for row in rows] or [0.0]))
        return found

    @cached_property
    def divergence(self) -> Array | None:
        """Kullback-Leibler divergence of each head in nats, mean over its rows; None if weights are unknown.

        The kept keys are outcomes, and all others with the sink are one more: a bound from below.
        """
        weights = [_weights(each) for each in (self.a, self.b)]
        if weights[0] is None or weights[1] is None:
            return None
        p, q = (each for each in weights if each is not None)
        ratio = np.log(np.maximum(p, _LEAST_WEIGHT)) - np.log(np.maximum(q, _LEAST_WEIGHT))
        found: Array = np.maximum((p * ratio).sum(-1).mean(-1), 0.0)
        return found


def product_of(rows: KeptRows, *, known: bool) -> Array:
    """Products of queries and keys, times the scale if it is `known`."""
    assert rows.query is not None
    assert rows.key is not None
    key = rows.key.astype(np.float64)[rows.key_of]
    found: Array = rows.query.astype(np.float64) @ key.swapaxes(-1, -2)
    return found * rows.scale if known and rows.scale is not None else found


def final_scores(rows: KeptRows) -> Array:
    """Scores as the softmax has them, but for the mask."""
    if rows.scores is not None:
        return rows.scores.astype(np.float64)
    made = product_of(rows, known=True)
    if rows.softcap is not None:
        made = rows.softcap * np.tanh(made / rows.softcap)
    return made if rows.bias is None else made + rows.bias


def _weights(rows: KeptRows) -> Array | None:
    """Weights of the kept keys and of all else, (heads, rows, keys + 1)."""
    if rows.lse is None or rows.seen is None or (rows.query is not None and rows.scale is None):
        return None
    made = np.where(rows.seen, np.nan_to_num(final_scores(rows), nan=-np.inf), -np.inf)
    with np.errstate(over="ignore", invalid="ignore"):
        weights = np.nan_to_num(np.exp(np.minimum(made - rows.lse[..., None].astype(np.float64), 0.0)))
    rest = np.maximum(1 - weights.sum(-1, keepdims=True), 0.0)
    found: Array = np.concatenate([weights, rest], -1)
    return found


def relative(x: NDArray[np.floating], y: NDArray[np.floating]) -> float:
    """Length of the difference over the mean length of both; numbers that are not finite are left out."""
    there = np.isfinite(x) & np.isfinite(y)
    x, y = (np.where(there, each, 0.0).astype(np.float64) for each in (x, y))
    length = np.sqrt(((x**2).sum() + (y**2).sum()) / 2)
    return float(np.sqrt(((x - y) ** 2).sum()) / length) if length else 0.0


def pairs_of(a: Sequence[KeptRows], b: Sequence[KeptRows]) -> list[Pair]:
    """The layers of two runs side by side: by name, by number, or in the order of their calls."""
    if not (a and b):
        raise InputError("a and b must have a layer with kept rows, got none")
    if len(a) == len(b):
        return [_pair(*each) for each in zip(a, b, strict=True)]
    for name in ("module", "layer"):
        there = {getattr(each, name): each for each in b}
        found = [(each, there[getattr(each, name)]) for each in a if getattr(each, name) in there]
        if found and len(there) == len(b):
            return [_pair(*each) for each in found]
    names = [some_of([each.module for each in run]) for run in (a, b)]
    raise InputError(f"a and b must have layers in common, got {names[0]} and {names[1]}")


def _pair(a: KeptRows, b: KeptRows) -> Pair:
    """Two layers with the rows and keys that both kept."""
    if a.heads != b.heads:
        raise InputError(
            f"a and b must have as many heads in a layer, got {a.heads} in {a.module} of a "
            f"and {b.heads} in {b.module} of b"
        )
    rows = _spread(np.intersect1d(a.positions, b.positions))
    keys = _spread(np.intersect1d(a.key_positions, b.key_positions))
    if not (len(rows) and len(keys)):
        raise InputError(f"a and b must have rows at the same positions, got none in {a.module}")
    return Pair(*(_in_float32(_some(run, rows, keys)) for run in (a, b)))


def _in_float32(layer: KeptRows) -> KeptRows:
    """The layer with queries and keys of a file of heads in the type of those of a recording."""
    if layer.query is None or layer.key is None:
        return layer
    return replace(layer, query=layer.query.astype(np.float32), key=layer.key.astype(np.float32))


def _spread(places: NDArray[np.int64]) -> NDArray[np.int64]:
    """A few of the places, evenly spread, with the first and the last one."""
    few = np.linspace(0, len(places) - 1, min(_ROWS, len(places))).round().astype(int)
    found: NDArray[np.int64] = places[few]
    return found


def _some(layer: KeptRows, rows: NDArray[np.int64], keys: NDArray[np.int64]) -> KeptRows:
    at, to = (
        np.searchsorted(all_of, some)
        for all_of, some in ((layer.positions, rows), (layer.key_positions, keys))
    )
    if len(at) == len(layer.positions) and len(to) == len(layer.key_positions):
        return layer
    change: dict[str, Any] = {"positions": rows, "key_positions": keys}
    for name in ("query", "visible", "first", "last", "lse"):
        change[name] = _taken(getattr(layer, name), at, 1)
    for name in ("input", "output"):
        change[name] = _taken(getattr(layer, name), at, 0)
    for name in ("scores", "bias", "seen"):
        change[name] = _taken(_taken(getattr(layer, name), at, 1), to, 2)
    change["key"] = _taken(layer.key, to, 1)
    if layer.sink is not None and layer.sink.ndim == 2:
        change["sink"] = layer.sink[:, at]
    return replace(layer, **change)


def _taken(array: NDArray[Any] | None, at: NDArray[np.intp], axis: int) -> NDArray[Any] | None:
    # Not np.take, which copies a whole array whose numbers lie between multiples of their size.
    where: Any = (*[slice(None)] * axis, at)
    return None if array is None else array[where]
