# SPDX-License-Identifier: BSD-3-Clause
"""Notes on tensors: axes, and whether they are scores, or weights that are a softmax of scores."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .axes import UNKNOWN, Axes, Axis, Piece, fold, kin_of, marks, of_parameters, unfold

#: A number at or below this that replaces a score hides the key: -10000, rounded to bfloat16.
FAR = -9984.0


class Step(NamedTuple):
    """A factor, sum, hidden keys, cap or sink; its tensors have the scores' axes at that time, `axes`."""

    kind: str  # "mul", "add", "hide", "tanh" or "sink"
    value: Any = None
    axes: Axes = ()
    filled: float = -torch.inf  # number filled in for hidden keys


@dataclass(frozen=True)
class Scores:
    """Products of queries and keys, and the later operations on them."""

    query: Tensor | None  # None: they are not one product
    key: Tensor | None
    query_axes: Axes
    key_axes: Axes
    rows: int  # the mark of pieces that count queries
    columns: int  # the mark of pieces that count keys
    batch: frozenset[int]  # kin of the axes that query and key share
    summed: Axis
    kin: frozenset[int]  # kin of the summed axis: of channels
    steps: tuple[Step, ...] = ()
    has_keys: bool = True  # whether the keys come from more than parameters
    is_of_one_key: bool = False  # whether there is a single key, which no axis counts

    def then(self, kind: str, value: Any = None, axes: Axes = (), filled: float = -torch.inf) -> Scores:
        return replace(self, steps=(*self.steps, Step(kind, value, axes, filled)))

    def mixed(self, *kept: str) -> Scores:
        """The scores after a step that leaves no known product; steps of the kinds `kept` stay."""
        steps = tuple(step for step in self.steps if step.kind in kept and not _is_tensor_factor(step))
        return replace(self, query=None, key=None, steps=steps)

    def counted_by(self, axes: Axes) -> bool:
        """Whether an axis counts the keys; a single key has no axis."""
        return any(marks(axis, self.columns) for axis in axes)

    def has(self, *kinds: str) -> bool:
        return any(step.kind in kinds for step in self.steps)

    @property
    def swapped(self) -> Scores:
        return replace(
            self,
            query=self.key,
            key=self.query,
            query_axes=self.key_axes,
            key_axes=self.query_axes,
            rows=self.columns,
            columns=self.rows,
        )

    @property
    def is_product(self) -> bool:
        return self.query is not None


def _is_tensor_factor(step: Step) -> bool:
    return step.kind == "mul" and isinstance(step.value, Tensor)


class Groups(NamedTuple):
    """Pieces of the scores of a softmax by meaning."""

    batch: list[Piece]
    heads: list[Piece]
    rows: list[Piece]
    columns: list[Piece]

    @property
    def order(self) -> list[Piece]:
        return [*self.batch, *self.heads, *self.rows, *self.columns]

    def of(self, x: Tensor, axes: Axes) -> Tensor:
        """The tensor as (batch, heads, rows, columns), of size 1 along axes that it lacks."""
        return fold(unfold(x, axes, self.order), self)

    @property
    def is_known(self) -> bool:
        return bool(self.heads) or not any(UNKNOWN in piece.kin for piece in self.batch)


def grouped(scores: Scores, axes: Axes, dim: int) -> Groups:
    """Pieces of the axes around that of the softmax; heads share kin with the channels."""
    groups = Groups([], [], [], list(axes[dim]))
    of_layers = of_parameters(_kin_of_marked(axes, scores.rows) | _kin_of_marked(axes, scores.columns))
    for place, axis in ((i, each) for i, each in enumerate(axes) if i != dim):
        is_of_rows = marks(axis, scores.rows)
        for piece in axis:
            if scores.rows in piece.kin and not piece.kin & scores.kin:
                groups.rows.append(piece)
            elif piece.kin & scores.kin or (piece.kin & of_layers and kin_of((piece,)) <= of_layers):
                groups.heads.append(piece)
            elif piece.is_spread or piece.kin & scores.batch or scores.columns in piece.kin:
                groups.batch.append(piece)
            elif is_of_rows:
                groups.rows.append(piece)
            elif place == 0 and not of_parameters(piece.kin) and len(axes) > 3:
                groups.batch.append(piece)
            else:
                groups.heads.append(piece)
    return groups


def _kin_of_marked(axes: Axes, mark: int) -> frozenset[int]:
    return kin_of(tuple(piece for axis in axes for piece in axis if mark in piece.kin))


class Outcome:
    """Origin of weights, whether they multiplied values later, and the reason if not."""

    def __init__(
        self, place: str | None, why: str = "its weights multiply no values that PyTorch computes"
    ) -> None:
        self.place, self.why, self.is_used = place, why, False


@dataclass(frozen=True, eq=False)
class Weights:
    """A softmax of scores: the scores, their numbers and axes, and the axis of the softmax."""

    scores: Scores
    numbers: Tensor
    axes: Axes
    dim: int
    mark: int  # mark of the pieces that count keys
    n_keys: int
    outcome: Outcome
    is_cleared: bool = False  # whether single weights were multiplied by their own numbers

    def counts_keys(self, axis: Axis) -> bool:
        return marks(axis, self.mark) or (not axis and self.n_keys == 1)


class Outer(NamedTuple):
    """Elementwise product of two tensors, each constant along an axis of the other."""

    left: Tensor
    right: Tensor
    left_note: Note
    right_note: Note


class LogWeights(NamedTuple):
    """The logarithms of weights."""

    weights: Weights


class Exponentials(NamedTuple):
    """Exponentials of scores, with the numbers and the axis of keys."""

    scores: Scores
    numbers: Tensor
    axes: Axes
    is_changed: bool = False  # whether they are no longer the exponentials


class Totals(NamedTuple):
    """Sums of exponentials along an axis, or the logarithms of the sums."""

    of: Any  # the exponentials, or the scores under them
    dim: int


class Part(NamedTuple):
    """One of equal parts of an axis."""

    axis: Axis
    number: int
    parts: int


@dataclass(slots=True)
class Note:
    """Facts about a tensor."""

    axes: Axes
    what: Scores | Weights | Outer | LogWeights | Exponentials | Totals | None = None
    is_parameter: bool = False  # whether its entries come from parameters and buffers, without a product
    base: weakref.ref[Tensor] | None = None  # the tensor that it is a view of
    part: Part | None = None  # place among the parts of a split tensor

    def like(self, axes: Axes) -> Note:
        return Note(axes, self.what, self.is_parameter)

    def cut(self, axes: Axes) -> Note:
        """Note of a part of the tensor: not a whole product, and not scores without the keys' axis."""
        note, what = self.like(axes), self.what
        if isinstance(what, Scores):
            is_lost = what.counted_by(self.axes) and not what.counted_by(axes)
            note.what = None if is_lost else what.mixed()
        elif isinstance(what, Weights) and not any(marks(axis, what.mark) for axis in axes):
            note.what = replace(what, n_keys=1)
        return note


class Done(NamedTuple):
    """Steps carried out for the axes (batch, heads, rows, columns) of a softmax."""

    scale: float
    softcap: float | None
    factor: Tensor | None  # one number per row
    bias: Tensor | None  # -inf where a key was hidden
    shift: Tensor | float  # at most one number per row, which changes no weight
    hidden: Tensor | None  # where a finite number above the lowest of its type was filled in


def carried_out(scores: Scores, groups: Groups, lowest: float) -> Done:
    """Combine the steps of scores; for scores of several products only the sums and the hidden keys.

    Raises LookupError or RuntimeError if axes of a step are not those of the softmax.
    """
    now = Done(1.0, None, None, None, 0.0, None)
    is_capped = False
    for step in scores.steps:
        value = step.value
        if isinstance(value, Tensor) and step.kind != "sink":
            value = groups.of(value, step.axes)
        if step.kind == "tanh":
            is_capped = True
        elif step.kind == "hide":
            now = _hidden(now, step, value, lowest)
        elif step.kind == "add" and (not isinstance(value, Tensor) or value.shape[-1] == 1):
            now = now._replace(shift=now.shift + value)
        elif step.kind == "add":
            now = now._replace(bias=value if now.bias is None else now.bias + value)
        elif step.kind == "mul" and isinstance(value, Tensor):
            now = now._replace(factor=value if now.factor is None else now.factor * value)
        elif step.kind == "mul" and is_capped and now.softcap is None:
            now = now._replace(softcap=value, scale=now.scale * value)
        elif step.kind == "mul":
            bias = None if now.bias is None else now.bias * value
            now = now._replace(scale=now.scale * value, bias=bias, shift=now.shift * value)
    return now._replace(softcap=1.0) if is_capped and now.softcap is None else now


def _hidden(now: Done, step: Step, value: Tensor, lowest: float) -> Done:
    zeros = torch.zeros((), device=value.device) if now.bias is None else now.bias
    hidden = now.hidden
    if step.filled > lowest:
        hidden = value if hidden is None else hidden | value
    return now._replace(bias=torch.where(value, -torch.inf, zeros), hidden=hidden)
