# SPDX-License-Identifier: BSD-3-Clause
"""Elementwise operators on scores, kept as steps, and on weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from .axes import Axes, Piece
from .operation import LIMITS, Operation, as_wide, operand
from .scores import FAR, Scores, Step, Weights


def stepped(op: Operation, place: int, axes: Axes) -> Scores:
    """Scores after an elementwise operator with them as the operand at `place`."""
    scores: Scores = op.notes[place].what  # type: ignore[assignment]
    if op.name in LIMITS:
        return scores
    if sum(isinstance(each.what, Scores) for each in op.notes) > 1:
        return _both(op, scores, axes)
    return _STEPS.get(op.name, _unknown_step)(scores, op, place, axes)


def changed(weights: Weights, op: Operation, place: int) -> Weights | None:
    """Weights after an elementwise operator; None if they were cleared and are divided by the rest."""
    other = operand(op, place)
    if op.name == "mul" and isinstance(other, Tensor) and other.shape[-1] > 1:
        return replace(weights, is_cleared=True)
    if op.name == "div" and isinstance(other, Tensor) and weights.is_cleared:
        weights.outcome.why = "its weights are cleared behind the softmax and divided by their sum again"
        return None
    return weights


def rank(what: Any) -> int:
    """Rank of an operand whose axes a result takes: those of queries and keys come first."""
    if isinstance(what, Scores):
        return 0 if what.has_keys else 1
    return 1 if isinstance(what, Weights) else 2


def _both(op: Operation, first: Scores, axes: Axes) -> Scores:
    """The sum of several products, with the hidden keys of each."""
    kept = ("add", "hide", "sink", "mul")
    found = first.mixed(*kept)
    steps = _settled(found.steps)
    others = {
        id(each.what): each for each in op.notes if isinstance(each.what, Scores) and each.what is not first
    }
    for note in others.values():
        what: Scores = note.what  # type: ignore[assignment]
        names = _names(note.axes, axes)
        for step in _settled(what.mixed(*kept).steps):
            renamed = tuple(tuple(names.get(piece[:3], piece) for piece in axis) for axis in step.axes)
            steps.append(step._replace(axes=renamed))
    return replace(found, steps=tuple(steps))


def _settled(steps: Sequence[Step]) -> list[Step]:
    """Steps with later factors multiplied into the sums, without the factors."""
    found, factor = [], 1.0
    for step in reversed(steps):
        if step.kind == "mul":
            factor *= step.value
        else:
            found.append(step._replace(value=step.value * factor) if step.kind == "add" else step)
    return found[::-1]


def _names(axes: Axes, whole: Axes) -> dict[tuple[int, ...], Piece]:
    """Pieces of axes to those in the same places of other axes."""
    found: dict[tuple[int, ...], Piece] = {}
    for one, other in zip(reversed(axes), reversed(whole), strict=False):
        if [piece.size for piece in one] == [piece.size for piece in other]:
            found.update((piece[:3], named) for piece, named in zip(one, other, strict=True))
    return found


def _scaled(scores: Scores, op: Operation, place: int, axes: Axes) -> Scores:
    value, divides = operand(op, place), op.name == "div"
    if value is None or (divides and op.args[0] is not op.given[place]):
        return _unknown_step(scores, op, place, axes)
    is_number = not isinstance(value, Tensor)
    if is_number and scores.is_product and scores.has("tanh") and any(_is_behind_cap(scores)):
        return _unknown_step(scores, op, place, axes)
    if not is_number and (value.shape[-1] > 1 or scores.has("add", "hide", "tanh")):
        return scores.mixed("add", "hide", "sink", "mul")
    return scores.then("mul", 1 / value if divides else value, axes)


def _is_behind_cap(scores: Scores) -> Iterator[bool]:
    """For each step after the cap, whether it is a factor."""
    kinds = [step.kind for step in scores.steps]
    return (kind == "mul" for kind in kinds[kinds.index("tanh") + 1 :])


def _added(scores: Scores, op: Operation, place: int, axes: Axes) -> Scores:
    value, subtracts = operand(op, place), op.name == "sub"
    if value is None or (subtracts and op.args[0] is not op.given[place]):
        return _unknown_step(scores, op, place, axes)
    factor = op.kwargs.get("alpha", 1) * (-1 if subtracts else 1)
    return scores.then("add", value if factor == 1 else value * factor, axes)


def _filled(scores: Scores, op: Operation, place: int, axes: Axes) -> Scores:
    """Scores with keys hidden by a mask that fills in a number too low for a weight."""
    own = op.given[place]
    if op.name == "where":
        mask, kept, other = op.args[:3]
        hides, filled = (mask.logical_not(), other) if kept is own else (mask, kept)
    else:
        hides, filled = op.args[1], op.args[2]
    if isinstance(filled, Tensor):
        filled = float(filled.max()) if filled.numel() and filled.device.type != "meta" else None
    if filled is None or filled > FAR:
        return _unknown_step(scores, op, place, axes)
    return scores.then("hide", as_wide(hides, op.out.ndim), axes, float(filled))


def _negated(scores: Scores, op: Operation, place: int, axes: Axes) -> Scores:
    return scores.then("mul", -1.0)


def _capped(scores: Scores, op: Operation, place: int, axes: Axes) -> Scores:
    if not scores.is_product or scores.has("add", "hide", "tanh", "sink"):
        return _unknown_step(scores, op, place, axes)
    return scores.then("tanh")


def _unknown_step(scores: Scores, op: Operation, place: int, axes: Axes) -> Scores:
    return scores.mixed("sink")


_STEPS: dict[str, Callable[[Scores, Operation, int, Axes], Scores]] = {
    **dict.fromkeys(("mul", "div"), _scaled),
    **dict.fromkeys(("add", "sub"), _added),
    **dict.fromkeys(("where", "masked_fill"), _filled),
    "neg": _negated,
    "tanh": _capped,
}
