# SPDX-License-Identifier: BSD-3-Clause
"""The result of a comparison of two runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .._base.drawing import drawn_by
from .._base.tabled import Labelled, Sheet, Tabled
from ._causes import Cause
from ._judge import Noise, judge
from ._pair import Array, Pair

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_NAMES = ("input", "query", "key", "scores", "output")


@dataclass(frozen=True, eq=False)
class LayerDifference:
    """Differences of one layer of two runs.

    Attributes
    ----------
    layer : int
        Number of the layer.
    module : str
        The module of a that called attention.
    divergence : ndarray, shape (heads,)
        Kullback-Leibler divergence of the weights of b from those of a, in nats, mean over the kept rows; NaN
        where weights are not known.
    scores : ndarray, shape (heads,)
        Relative difference of the scores of each head.
    differences : dict of str to float
        Relative differences of the module's input and output, of queries, keys and scores; None if not known.
    """

    layer: int
    module: str
    divergence: Array
    scores: Array
    differences: dict[str, float | None]


@dataclass(frozen=True, eq=False, repr=False)
class RunComparison(Tabled):
    """Two runs compared; :func:`attnscale.compare` makes it.

    Attributes
    ----------
    cause : Cause or None
        Why the first layer differs that differs by more than rounding: its `kind`, `layer`, `module`,
        `heads`, `factor`, `fit` and `sentence`. None if nothing but rounding was found.
    noise : Noise
        The relative `size` of what no cause explains, and what it is, as in "rounding as of bfloat16".
    layers : tuple of LayerDifference
    unknown : tuple of str
        Kinds of cause that cannot be told, as a run lacks what they need.
    """

    cause: Cause | None
    noise: Noise
    layers: tuple[LayerDifference, ...]
    unknown: tuple[str, ...] = ()

    @property
    def has_weights(self) -> bool:
        """Whether the divergence of a layer is known; otherwise there are differences of scores alone."""
        return any(not np.isnan(each.divergence).all() for each in self.layers)

    def rows(self) -> list[dict[str, Any]]:
        """One row for each layer and head."""
        return [
            {
                "layer": each.layer,
                "module": each.module,
                "head": head,
                "divergence": None if np.isnan(each.divergence[head]) else float(each.divergence[head]),
                "scores": float(each.scores[head]),
            }
            for each in self.layers
            for head in range(len(each.scores))
        ]

    def to_dict(self) -> dict[str, Any]:
        """The comparison in types of JSON."""
        cause = None
        if self.cause is not None:
            facts = asdict(self.cause)
            cause = {
                **facts,
                "heads": [*self.cause.heads],
                "factors": [[*each] for each in self.cause.factors],
            }
        layers = [{"layer": each.layer, "module": each.module, **each.differences} for each in self.layers]
        return {
            "cause": cause,
            "noise": self.noise._asdict(),
            "unknown": [*self.unknown],
            "layers": layers,
            "rows": self.rows(),
        }

    @property
    def sentence(self) -> str:
        """The answer in one line."""
        if self.cause is not None:
            return self.cause.sentence
        if not self.noise.size and not any(
            each or 0.0 for one in self.layers for each in one.differences.values()
        ):
            return "no difference"
        return f"no cause: the differences are {self.noise.said}"

    def plot(self, *, ax: Axes | None = None) -> Axes:
        """Map of the divergence of each head of each layer, with the layer of the cause marked."""
        axes: Axes = drawn_by("_comparison.comparison")(self, ax)
        return axes

    def _grid(self) -> Array:
        """Divergence, or without weights the difference of scores, (layers, heads)."""
        values = [each.divergence if self.has_weights else each.scores for each in self.layers]
        grid = np.full((len(values), max(map(len, values))), np.nan)
        for row, each in zip(grid, values, strict=True):
            row[: len(each)] = each
        return grid

    def _variables(self) -> dict[str, Labelled]:
        name = "divergence" if self.has_weights else "scores"
        found = {name: Labelled(("layer", "head"), self._grid(), "nat" if self.has_weights else "")}
        found["module"] = Labelled(("layer",), [each.module for each in self.layers])
        return found

    def _coordinates(self) -> dict[str, Any]:
        return {"layer": [each.layer for each in self.layers]}

    def _sheet(self, nats: float, unit: str) -> Sheet:
        header = ("layer", "module", *_NAMES, *([f"divergence ({unit})", "head"] if self.has_weights else []))
        return Sheet(
            self.sentence, header, [self._row(each, nats) for each in self.layers], tuple(self._notes(unit))
        )

    def _row(self, each: LayerDifference, nats: float) -> tuple[str, ...]:
        numbers = [each.differences[name] for name in _NAMES]
        cells = ["-" if number is None else f"{number:.2g}" for number in numbers]
        if self.has_weights:
            most = -1 if np.isnan(each.divergence).all() else int(np.nanargmax(each.divergence))
            cells += ["-", "-"] if most < 0 else [f"{each.divergence[most] / nats:.2g}", str(most)]
        return (str(each.layer), each.module, *cells)

    def _notes(self, unit: str) -> list[str]:
        notes = ["  relative differences of a layer's input, queries, keys, scores and output"]
        if self.has_weights:
            notes[0] += f"; the largest divergence of a head ({unit}), and that head"
        if self.cause is not None:
            later = [each.layer for each in self.layers if each.layer > self.cause.layer]
            if self.cause.fit is not None:
                notes += [f"  it explains {self.cause.fit:.1%} of the layer's difference"]
            notes += [f"  layers from {later[0]} on differ because of it"] if later else []
        if self.noise.size:
            what = "what is left" if self.cause is not None else "noise"
            notes.append(f"  {what}: {self.noise.size:.2g} of the scores, {self.noise.said}")
        if self.unknown:
            notes.append(f"  not known, as a run lacks what they need: {', '.join(self.unknown)}")
        return notes


def result_of(pairs: Sequence[Pair]) -> RunComparison:
    """The comparison of all layers."""
    cause, noise = judge(pairs)
    layers = tuple(
        LayerDifference(
            pair.a.layer,
            pair.a.module,
            np.full(pair.a.heads, np.nan) if pair.divergence is None else pair.divergence,
            pair.by_head,
            pair.differences,
        )
        for pair in pairs
    )
    return RunComparison(cause, noise, layers, _unknown(pairs))


def _unknown(pairs: Sequence[Pair]) -> tuple[str, ...]:
    """Kinds of cause that no layer can tell."""
    needs = {
        "mask": ("visible",),
        "sink": ("lse",),
        "softcap": ("scale", "query"),
        "bias": ("scale", "query"),
        "rotation": ("query",),
        "values": ("output",),
        "input": ("input",),
    }
    return tuple(
        kind
        for kind, names in needs.items()
        if all(getattr(each, name) is None for pair in pairs for name in names for each in (pair.a, pair.b))
        or any(
            all(getattr(each, name) is None for each in side)
            for name in names
            for side in zip(*[(pair.a, pair.b) for pair in pairs], strict=True)
        )
    )
