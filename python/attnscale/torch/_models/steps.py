# SPDX-License-Identifier: BSD-3-Clause
"""Elementwise operators on scores, kept as steps, and on weights."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace

from torch import Tensor

from .axes import Axes
from .operation import LIMITS, Operation, as_wide, operand
from .scores import FAR, Scores, Weights


def stepped(op: Operation, place: int, axes: Axes) -> Scores:
    """Scores after an elementwise operator, of which they are the operand at a place."""
    scores: Scores = op.notes[place].what  # type: ignore[assignment]
    if op.name in LIMITS:
        return scores
    if sum(isinstance(each.what, Scores) for each in op.notes) > 1:
        return _both(op)
    return _STEPS.get(op.name, _unknown_step)(scores, op, place, axes)


def changed(weights: Weights, op: Operation, place: int) -> Weights | None:
    """Weights after an elementwise operator; None where they are cleared and divided by what is left."""
    other = operand(op, place)
    if op.name == "mul" and isinstance(other, Tensor) and other.shape[-1] > 1:
        return replace(weights, is_cleared=True)
    if op.name == "div" and isinstance(other, Tensor) and weights.is_cleared:
        weights.outcome.why = "its weights are cleared behind the softmax and divided by their sum again"
        return None
    return weights


def _both(op: Operation) -> Scores:
    """The sum of several products, which hides the keys that one of them hides."""
    several = [each.what for each in op.notes if isinstance(each.what, Scores)]
    several.sort(key=lambda each: not each.has_keys)
    kept = ("add", "hide", "sink", "mul")
    parts = [each.mixed("its scores are a sum of several products", kept) for each in dict.fromkeys(several)]
    return replace(parts[0], steps=tuple(itertools.chain(*(part.steps for part in parts))))


def _scaled(scores: Scores, op: Operation, place: int, axes: Axes) -> Scores:
    value, divides = operand(op, place), op.name == "div"
    if value is None or (divides and op.args[0] is not op.given[place]):
        return _unknown_step(scores, op, place, axes)
    is_number = not isinstance(value, Tensor)
    if is_number and scores.is_product and scores.has("tanh") and any(_is_behind_cap(scores)):
        return _unknown_step(scores, op, place, axes)
    if not is_number and (value.shape[-1] > 1 or scores.has("add", "hide", "tanh")):
        return scores.mixed("its scores have a factor for each key", ("add", "hide", "sink", "mul"))
    return scores.then("mul", 1 / value if divides else value, axes)


def _is_behind_cap(scores: Scores) -> Iterator[bool]:
    """Of each step behind the cap, whether it is its factor."""
    kinds = [step.kind for step in scores.steps]
    return (kind == "mul" for kind in kinds[kinds.index("tanh") + 1 :])


def _added(scores: Scores, op: Operation, place: int, axes: Axes) -> Scores:
    value, subtracts = operand(op, place), op.name == "sub"
    if value is None or (subtracts and op.args[0] is not op.given[place]):
        return _unknown_step(scores, op, place, axes)
    factor = op.kwargs.get("alpha", 1) * (-1 if subtracts else 1)
    return scores.then("add", value if factor == 1 else value * factor, axes)


def _filled(scores: Scores, op: Operation, place: int, axes: Axes) -> Scores:
    """Scores that a mask replaces by a number so low that their keys have no weight, and are hidden."""
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
    return scores.mixed(f"its scores come from the operator {op.name}", ("sink",))


_STEPS: dict[str, Callable[[Scores, Operation, int, Axes], Scores]] = {
    **dict.fromkeys(("mul", "div"), _scaled),
    **dict.fromkeys(("add", "sub"), _added),
    **dict.fromkeys(("where", "masked_fill"), _filled),
    "neg": _negated,
    "tanh": _capped,
}
