# SPDX-License-Identifier: BSD-3-Clause
"""The figure of ``attnscale diagnose``: entropy against length, and maps of the heads at some lengths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .._tables.tabled import Unit

_MOST_MAPS = 4  # side by side
_SIDE = 0.14  # inches of a field of a map
_LINES = 3.2  # inches of the axes with lines


class Measured(NamedTuple):
    """What the layers did at each length."""

    entropy: dict[
        str, NDArray[np.float64]
    ]  # under each law, shape (lengths, layers, heads); NaN: no such head
    equal: NDArray[np.float64]  # of equal weights on the visible keys, shape (lengths, layers)
    sinks: tuple[int, ...]  # layers whose entropy counts a sink
    modules: list[str]  # the name of each layer's attention in the model
    kinds: list[str]  # "self" or "cross" attention, of each layer
    padding: tuple[int, int]  # rows that were left out as padding, of how many, at the largest length
    heads: Any = None  # more of every head, where it was asked for

    @property
    def layers(self) -> tuple[int, ...]:
        """A number for each layer, that in the names of the modules where it tells them apart."""
        from ..torch._models.by_name import layer_numbers

        return layer_numbers(self.modules)

    @property
    def groups(self) -> dict[tuple[str, str], list[int]]:
        """The layers of each tower and kind, by both; "" where there is one tower, or one kind."""
        from ..torch._models.by_name import towers_of

        towers = towers_of(self.modules)
        several = len(set(self.kinds)) > 1
        found: dict[tuple[str, str], list[int]] = {}
        for layer, (name, kind) in enumerate(zip(self.modules, self.kinds, strict=True)):
            found.setdefault((towers[name], kind if several else ""), []).append(layer)
        return found if len(found) > 1 else {("", ""): [*range(len(self.modules))]}


def draw(
    found: Measured,
    lengths: Sequence[int],
    figure: Any,
    unit: Unit = "nats",
    labels: Mapping[str, str] | None = None,
    about: str = "",
) -> None:
    """Draw the mean entropy against length, and below it each head of each layer.

    Where layers are of several towers or kinds, or there is no text, a map of the heads is all.
    """
    from .. import plot
    from ..plot._head_map import draw_head_maps
    from ..plot._names import subtitle

    shown = np.unique(np.linspace(0, len(lengths) - 1, min(_MOST_MAPS, len(lengths))).round().astype(int))
    maps = {(labels or {}).get(law, law): values[shown] for law, values in found.entropy.items()}
    n_layers, n_heads = found.entropy[next(iter(found.entropy))].shape[1:]
    height = len(maps) * (0.45 + max(_SIDE * n_layers, 0.8)) + 0.75
    width = max(4.6, 1.6 + len(shown) * (0.25 + max(_SIDE * n_heads, 0.8)))
    has_lines = len(found.groups) == 1 and 0 not in lengths
    figure.set_size_inches(width, _LINES * has_lines + height)
    below = figure
    if has_lines:
        top, below = figure.subfigures(2, 1, height_ratios=[_LINES, height])
        ax = top.subplots()
        there = ~np.isnan(found.entropy[next(iter(found.entropy))]).all(axis=0)
        heads = {law: values[:, there] for law, values in found.entropy.items()}
        equal = np.nanmean(found.equal, axis=1)
        plot.entropy_vs_length(heads, lengths, ax=ax, uniform=equal, labels=labels, unit=unit)
        ax.set_xlabel("tokens, $n$")
        subtitle(ax, about)
    titles = [f"$n = {lengths[index]}$" if lengths[index] else about for index in shown]
    most = float(np.nanmax(found.equal))
    draw_head_maps(below, maps, titles, most=most, modules=found.modules, unit=unit)
