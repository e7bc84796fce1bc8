# SPDX-License-Identifier: BSD-3-Clause
"""A report of a folder with a file of queries and keys for each layer: its layers and heads as cases.

A case is some heads of one layer, measured one head at a time: no process holds more than one head as numbers
of the core. A store keeps the arrays of each case.
"""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .._base.checks import InputError, boolean, refusal, several, shown
from .._core import __version__
from .._files.fingerprint import fingerprint
from .._files.layers import StoredLayer, stored_layers
from .._grid.case import Case
from .._grid.describe import describe, digest
from .._sweep.task import FunctionTask, registered_laws
from ..calibration.fit import Length, candidates, default_lengths, read_lengths, several_laws
from .make import LAWS, as_measured, read_rows
from .measure import measure_heads

if TYPE_CHECKING:
    from .._grid.complete import Outcome
    from ..laws import Law

#: Pairs of a query and a key in a case, over all lengths: a few minutes of two cores.
_MOST_PAIRS = 2**34


@dataclass(frozen=True)
class Work:
    """The layers of a folder, and what is measured of each head."""

    folder: Path
    layers: tuple[StoredLayer, ...]
    lengths: tuple[int, ...]
    laws: tuple[Law, ...]  # the first is the standard one
    is_causal: bool
    layout: str
    rows: int | None = None  # sampled rows of each length; None for all
    heads: tuple[int, ...] | None = None  # of each layer; None for all
    num_threads: int | None = None

    @property
    def options(self) -> dict[str, Any]:
        """Options of :func:`measure_part` that all cases share."""
        names = ("lengths", "laws", "is_causal", "rows", "num_threads")
        return {name: getattr(self, name) for name in names}

    @property
    def identity(self) -> dict[str, Any]:
        """Identity of a store: of all that its cases have in common, but not of the files."""
        names = ("lengths", "laws", "is_causal", "layout", "rows")
        return {"attnscale": __version__} | {name: describe(name, getattr(self, name)) for name in names}

    def pairs(self, lengths: Sequence[int] | None = None) -> int:
        """Pairs of a query and a key that a head's time is proportional to, over the lengths."""
        return sum(n * self._full_rows(n) for n in lengths or self.lengths)

    def _full_rows(self, n: int) -> int:
        """Rows of a length that take as long, if all see n keys: every row, and again those that count."""
        every = min(self.rows or n, n)
        if not self.is_causal:
            return 2 * every
        counted = min(every, max(n // 8, 1))
        return every // 2 + (counted if every == n else 2 * counted)

    def heads_of(self, layer: StoredLayer) -> Sequence[int]:
        """The heads of a layer that are measured."""
        return range(layer.shape[0][-3]) if self.heads is None else self.heads

    @property
    def n_heads(self) -> int:
        """Measured heads of all layers."""
        return sum(len(self.heads_of(layer)) for layer in self.layers)

    def with_rows(self, rows: int | None) -> Work:
        """The work with another sample of rows."""
        return replace(self, rows=rows)

    def cases(self, *, stored: bool) -> list[Case]:
        """The cases, layer by layer; a case that is `stored` is recognized by its file's content."""
        found: list[Case] = []
        for place, layer in enumerate(self.layers):
            content = fingerprint(layer.files) if stored else ""
            every = self.heads_of(layer)
            for first, end in _shares(len(every), self.pairs()):
                heads = [*every[first:end]]
                key = digest({"content": content, "heads": heads}) if stored else ""
                named = {"layer": layer.name}
                if len(heads) < len(every):
                    named["heads"] = f"{heads[0]}-{heads[-1]}"
                found.append(Case((place, *heads), named, key))
        return found


def _shares(n_heads: int, pairs: int) -> list[tuple[int, int]]:
    """First head and end of each case of a layer; every machine gets the same ones."""
    parts = min(max(-(-n_heads * pairs // _MOST_PAIRS), 1), n_heads)
    ends = [n_heads * part // parts for part in range(parts + 1)]
    return list(pairwise(ends))


# ---- the layers ----------------------------------------------------------------------------------


def read_folder(
    folder: str | os.PathLike[str],
    *,
    lengths: Sequence[int] | None,
    laws: Iterable[Law | str | float] | None,
    is_causal: bool,
    layout: str,
    rows: int | None = None,
    heads: Sequence[int] | None = None,
    num_threads: int | None = None,
) -> Work:
    """The work of a folder, from headers of its files alone."""
    try:
        place = Path(folder)
    except TypeError:
        raise refusal(TypeError, "folder", f"must be a path, got {shown(folder)}") from None
    layers = tuple(stored_layers(place, layout=layout))
    n_keys = _check_alike(layers)
    chosen = default_lengths(n_keys) if lengths is None else sorted(read_lengths(lengths, n_keys, n_keys))
    wanted = LAWS if laws is None else several_laws(laws)
    compared = tuple(candidates(dict.fromkeys(("standard", *wanted)), chosen[0]))
    causal = boolean("is_causal", is_causal)
    return Work(
        place,
        layers,
        tuple(chosen),
        compared,
        causal,
        layout,
        read_rows(rows),
        _read_heads(heads, layers),
        num_threads,
    )


def _read_heads(heads: Any, layers: Sequence[StoredLayer]) -> tuple[int, ...] | None:
    """The value of ``heads=``, checked: heads that each layer has, once each; None for all."""
    if heads is None:
        return None
    found = several("heads", heads, "head", "integers")
    try:
        chosen = tuple(sorted({operator.index(head) for head in found}))
    except TypeError:
        raise refusal(TypeError, "heads", f"must be integers, got {shown(heads)}") from None
    least = min(layers, key=lambda layer: layer.shape[0][-3])
    if chosen[0] < 0 or chosen[-1] >= least.shape[0][-3]:
        rule = f"must be between 0 and {least.shape[0][-3] - 1}, the heads of {least.name}"
        raise refusal(ValueError, "heads", f"{rule}, got {shown(heads)}")
    return chosen


def _check_alike(layers: Sequence[StoredLayer]) -> int:
    """The number of tokens of all layers; refuses layers of other tokens or head_dim, and batches."""
    first = layers[0]
    for layer in layers:
        query, key = layer.shape
        if len(query) < 3 or math.prod(query[:-3]) != 1:  # a batch of one text has an axis of 1 before
            rule = "query must have the axes (heads, n, head_dim)"
            raise InputError(f"{layer.name}: {rule}, got shape {query}")
        if query[-2] != key[-2]:
            seen = f"{query[-2]} and {key[-2]}"
            hint = "; is its layout bshd?" if query[-3] == key[-3] else ""
            raise InputError(f"{layer.name}: a report needs as many queries as keys, got {seen}{hint}")
        if key[-2:] != first.shape[1][-2:]:
            seen, wanted = (f"{n} tokens of head_dim {d}" for n, d in (key[-2:], first.shape[1][-2:]))
            raise InputError(
                f"{layer.name}: all layers must have the same tokens and head_dim, got {seen}, and {wanted} "
                f"in {first.name}"
            )
    n_keys = first.shape[1][-2]
    if n_keys < 2:
        raise InputError(f"{first.name}: key must have at least 2 keys, got {n_keys}")
    return n_keys


# ---- one case ------------------------------------------------------------------------------------


def measure_part(
    part: tuple[StoredLayer, Sequence[int]],
    *,
    lengths: Sequence[int],
    laws: tuple[Law, ...],
    is_causal: bool,
    rows: int | None,
    num_threads: int | None,
) -> dict[str, np.ndarray[Any, Any]]:
    """The arrays of a report for some heads of a layer, read one at a time."""
    layer, heads = part
    options = {
        "causal": "bottom_right" if is_causal else None,
        "enable_gqa": False,
        "num_threads": num_threads,
    }
    parts = []
    for head in heads:
        stored = layer.read(n=lengths[-1], heads=[head])
        q, k = (as_measured(x).reshape(1, *x.shape[-2:]) for x in (stored.query, stored.key))
        whole = {n: Length(q[:, :n], k[:, :n], options) for n in lengths}
        parts.append(measure_heads(whole, laws, lambda text: None, rows))
    return {name: np.concatenate([each[name] for each in parts]) for name in parts[0]}


@dataclass(frozen=True)
class PartTask:
    """All that a process needs to run a case."""

    measure: FunctionTask
    layers: tuple[StoredLayer, ...]

    @classmethod
    def of(cls, work: Work, num_threads: int | None) -> PartTask:
        """The task of a folder, with the largest number of threads in another process."""
        spelled = registered_laws(law.spelling for law in work.laws)
        task = FunctionTask(measure_part, work.options, None, frozenset(), spelled, num_threads)
        return cls(task, tuple(map(replace, work.layers)))  # without what was opened here

    def __call__(self, case: Case) -> Outcome:
        place, *heads = case.index
        part = (replace(self.layers[place]), heads)  # what it opens is closed at the end
        return self.measure(Case(case.index, {"part": part}, case.digest))
