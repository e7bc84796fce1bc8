# SPDX-License-Identifier: BSD-3-Clause
"""A call of attention as data, and the sizes and options from which calls are made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from .._base.checks import InputError, refusal, shown

Shape = tuple[int, ...]

#: Heads of the query in a call with default shapes.
N_HEADS = 4


class Sizes(NamedTuple):
    """Sizes of a call with default shapes, and the seed of its numbers; 5 <= queries <= keys <= 12."""

    batch: int = 2
    queries: int = 7
    keys: int = 9
    channels: int = 6
    width: int = 5
    seed: int = 1

    def draw(self, *shape: int) -> Any:
        """Normal numbers of eight significant bits."""
        return draw(*shape, seed=self.seed)

    @property
    def hidden(self) -> Any:
        """A boolean mask with a query without keys."""
        mask = np.random.default_rng(25 + self.seed).random((self.batch, 1, self.queries, self.keys)) > 0.3
        mask[0, 0, 3] = False
        return mask

    @property
    def lengths(self) -> Any:
        """A number of keys for each text; one text has none."""
        return np.array([self.keys - 5, 0, 2][: self.batch])

    @property
    def ending(self) -> dict[str, Any]:
        """Keys that end before the last one; the last query sees the last of them."""
        return {"key_lengths": np.minimum(self.lengths + 4, self.keys), "causal": "bottom_right"}

    @property
    def documents(self) -> Any:
        """Documents of each key; `lengths` and `lengths` + 3 end inside one."""
        return np.repeat([0, 1, 2], [3, 2, self.keys - 5])

    @property
    def of_batch(self) -> Any:
        """Documents of each text."""
        of = [
            ([5, 1, 3], [2, 4, self.keys - 6]),
            ([0, 1, 2], [1, self.keys - 3, 2]),
            ([7, 8], [4, self.keys - 4]),
        ]
        return np.array([np.repeat(*each) for each in of[: self.batch]])

    @property
    def bias(self) -> Any:
        """A mask of numbers that hides by -inf."""
        return np.where(self.hidden, self.draw(self.batch, N_HEADS, self.queries, self.keys), -np.inf)

    def low(self, dtype: Any) -> Any:
        """A mask that hides by the lowest number of its type."""
        return np.where(self.hidden, dtype(0.5), np.finfo(dtype).min)

    def case(self, options: Mapping[str, Any], **changed: Any) -> Case:
        """A call of these sizes."""
        shapes = {
            "query": (self.batch, N_HEADS, self.queries, self.channels),
            "key": (self.batch, N_HEADS, self.keys, self.channels),
            "value": (self.batch, N_HEADS, self.keys, self.width),
        }
        return Case(options, **(shapes | changed))


class Case(NamedTuple):
    """A call: options, shapes of query, key and value (or None), and replaced numbers."""

    options: Mapping[str, Any] = MappingProxyType({})
    query: Shape = (2, N_HEADS, 7, 6)
    key: Shape = (2, N_HEADS, 9, 6)
    value: Shape | None = (2, N_HEADS, 9, 5)
    #: Array, index and number of each replacement.
    edits: tuple[tuple[str, Any, float], ...] = ()

    def arrays(self, draw: Callable[..., Any] | None = None) -> list[Any]:
        """Query, key and value in float64, each of other numbers; `draw` takes a shape and `seed=`."""
        shapes = {"query": self.query, "key": self.key, "value": self.value}
        drawn: dict[str, Any] = {
            name: None if shape is None else (draw or _draw)(*shape, seed=1 + 5 * i)
            for i, (name, shape) in enumerate(shapes.items())
        }
        for name, place, number in self.edits:
            drawn[name][place] = number
        return list(drawn.values())


def read_cases(cases: Any) -> dict[str, Case]:
    """Cases by their names; a TypeError for anything else."""
    if not isinstance(cases, Mapping):
        raise TypeError(f"cases must map names to Case, got {shown(cases)}")
    for name, case in cases.items():
        if not isinstance(name, str) or not isinstance(case, Case):
            raise TypeError(f"cases must map names to Case, got {shown(name)}: {shown(case)}")
    return dict(cases)


def draw(*shape: int, seed: int = 1) -> Any:
    """Normal numbers with eight significant bits, different for each shape."""
    rng = np.random.default_rng([seed, *shape])
    bits = rng.standard_normal(shape, np.float32).view(np.uint32) & np.uint32(0xFFFF0000)
    return bits.view(np.float32).astype(np.float64)


_draw = draw


def numpy_type(dtype: str) -> np.dtype[Any]:
    """NumPy's type by its name; bfloat16 needs ml_dtypes."""
    if dtype != "bfloat16":
        return np.dtype(dtype)
    try:
        import ml_dtypes
    except ImportError:
        rule = "'bfloat16' needs the package ml_dtypes (pip install ml_dtypes)"
        raise refusal(InputError, "dtype", rule) from None
    found: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return found
