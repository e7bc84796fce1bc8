# SPDX-License-Identifier: BSD-3-Clause
"""Operators of PyTorch below autograd, followed from products of queries and keys to weights that multiply values.

Every tensor of a pass has a note. It says which pieces of earlier axes each axis is made of, so that folds, views
and permutations need no list of the ways in which libraries write them. A product of two tensors that no layer's
weight is part of makes scores; what is done to them is kept as steps. Only weights that multiply values are of
attention: a router's softmax is over no such product, and a loss over one multiplies nothing.
"""

from __future__ import annotations

import itertools
import re
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .axes import (
    UNKNOWN,
    Axes,
    Axis,
    Piece,
    fresh,
    kin_of,
    marked,
    marks,
    new_number,
    new_parameter,
    refine,
    regroup,
    renamed,
    resized,
)
from .scores import (
    FAR,
    Exponentials,
    LogWeights,
    Note,
    Outcome,
    Outer,
    Part,
    Scores,
    Step,
    Totals,
    Weights,
)


def _named(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: Operators whose result has the entries of one tensor as they are, but for their type.
_SAME = _named(
    "clone detach alias contiguous _to_copy lift_fresh lift_fresh_copy nan_to_num to positive _conj"
)
_FACTORS, _SUMS = _named("mul div neg"), _named("add sub rsub")
_LIMITS = _named("clamp clamp_min maximum")
_PARTS = _named("split split_with_sizes unsafe_split unsafe_split_with_sizes chunk unbind")
#: Operators that compute attention inside, of whose rows nothing comes out.
_INSIDE = {
    "_native_multi_head_attention": "PyTorch's fused operator of a whole layer",
    "_transformer_encoder_layer_fwd": "PyTorch's fused operator of a whole layer",
    "_flash_attention_forward": "a kernel of flash attention",
    "_efficient_attention_forward": "a kernel of memory-efficient attention",
    "_nested_tensor_softmax_with_shape": "a softmax of nested tensors",
    "_masked_softmax": "a masked softmax of PyTorch's fused layers",
}
#: Names of operators of other libraries that are attention.
_OF_OTHERS = re.compile(r"attn|attention|(^|_)mha|sdpa")


def attends_inside(function: Any) -> str:
    """What an operator is that computes attention of whose rows nothing comes out; "" of any other."""
    schema = function._schema.name
    namespace, _, name = schema.partition("::")
    if namespace in ("aten", "attnscale"):
        return _INSIDE.get(name, "")
    return f"the operator {schema}" if _OF_OTHERS.search(name) else ""


class Operation(NamedTuple):
    """One call of an operator: what it was given, the tensors among that with their notes, and its result."""

    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    given: list[Tensor]
    notes: list[Note]
    out: Tensor
    writes: bool = False  # into its first argument

    def argument(self, place: int, name: str, default: Any) -> Any:
        return self.args[place] if len(self.args) > place else self.kwargs.get(name, default)

    @property
    def first(self) -> Note:
        return self.notes[0]


class Known(NamedTuple):
    """What the schema of an operator says."""

    name: str  # without the underscore of operators that write into their first argument
    writes: bool
    is_view: bool
    hides: str  # what it is if it computes attention of whose rows nothing comes out


@cache
def known(function: Any) -> Known:
    """Read the schema of an operator."""
    schema = function._schema
    name = schema.name.partition("::")[2]
    writes = name.endswith("_") and not name.startswith("__")
    aliases = schema.returns[0].alias_info if schema.returns else None
    is_view = aliases is not None and not aliases.is_write
    return Known(name[:-1] if writes else name, writes, is_view, attends_inside(function))


class Following:
    """Notes of the tensors of one pass in one thread.

    `place` says where in the model an operator runs. In `used` are weights that have multiplied values, until
    somebody takes them out.
    """

    def __init__(self, place: Callable[[], str]) -> None:
        self._place = place
        self.used: list[Weights] = []
        self._notes: dict[int, tuple[weakref.ref[Tensor], Note]] = {}
        self._constants: set[int] = set()
        self.outcomes: list[Outcome] = []

    def add_constants(self, tensors: Iterator[Tensor]) -> None:
        """Take tensors as parameters, which buffers are, too, until something is written into them."""
        self._constants.update(map(id, tensors))

    # ---- notes

    def note(self, x: Tensor) -> Note:
        """The note of a tensor; a new one where no operator made it."""
        entry = self._notes.get(id(x))
        if entry is not None and entry[0]() is x:
            return entry[1]
        if x.is_nested:
            return Note(())
        is_parameter = id(x) in self._constants or isinstance(x, torch.nn.Parameter)
        kin = frozenset((new_parameter(),)) if is_parameter else None
        return self._mark(x, Note(fresh(x.shape, kin), None, is_parameter))

    def _mark(self, x: Tensor, note: Note) -> Note:
        key = id(x)
        self._notes[key] = weakref.ref(x, lambda _, notes=self._notes: notes.pop(key, None)), note
        return note

    def follow(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """Note what an operator made."""
        name, writes, is_view, _ = known(function)
        if "out" in kwargs:
            kwargs = {each: x for each, x in kwargs.items() if each != "out"}
        given = [x for x in _leaves(args, kwargs) if isinstance(x, Tensor)]
        if not given or any(x.is_nested for x in given):  # rows of several lengths have no such axes
            return
        notes = [self.note(x) for x in given]
        if isinstance(out, (list, tuple)):
            self._follow_several(name, args, given, notes, out, is_view)
            return
        if not isinstance(out, Tensor) or out.is_nested or (writes and out is not given[0]):
            return
        operation = Operation(name, args, kwargs, given, notes, out, writes)
        handler = _HANDLERS.get(name)
        note = self._elementwise(operation) if handler is None else handler(self, operation)
        if note is None or len(note.axes) != out.ndim:
            note = _guessed(operation)
        elif note is notes[0] or any(note is each for each in notes):
            note = note.like(note.axes)
        if is_view:
            note.base = notes[0].base or weakref.ref(given[0])
        elif writes:
            note.base = notes[0].base
            self._written(given[0], note)
        self._mark(out, note)

    def _follow_several(
        self, name: str, args: Any, given: list[Tensor], notes: list[Note], out: Sequence[Any], is_view: bool
    ) -> None:
        """Note parts of a tensor, or a result of its shape and what a backward pass needs."""
        first, shape = notes[0], given[0].shape
        for number, part in enumerate(out):
            if not isinstance(part, Tensor):
                continue
            if name == "unbind":
                dim = (args[1] if len(args) > 1 else 0) % len(shape)
                note = first.cut((*first.axes[:dim], *first.axes[dim + 1 :]))
                note.part = Part(first.axes[dim], number, len(out))
            elif part.ndim != len(shape):
                note = Note(fresh(part.shape))
            elif name in _PARTS or (name == "native_dropout" and number == 0):
                axes = _resized(zip(first.axes, part.shape, shape, strict=True))
                note = first.like(first.axes) if part.shape == shape else first.cut(axes)
                note.part = _part_of(first, shape, part.shape, number, len(out))
            else:
                note = Note(_resized(zip(first.axes, part.shape, shape, strict=True)))
                if number == 0:
                    note.what = _left_of(name, first, part.shape == shape)
            if is_view or name in _PARTS:
                note.base = first.base or weakref.ref(given[0])
            self._mark(part, note)

    def _written(self, x: Tensor, note: Note) -> None:
        """Tell the tensor of which a view was written into."""
        base = None if note.base is None else note.base()
        if base is None or base is x:
            return
        old = self.note(base)
        old.is_parameter &= note.is_parameter
        if isinstance(note.what, Scores):
            axes, places = list(old.axes), list(range(x.ndim))
            for i, (stride, size) in enumerate(zip(base.stride(), base.shape, strict=True)):
                same = next((j for j in places if x.stride(j) == stride and size > 1), None)
                if same is not None:
                    places.remove(same)
                    axes[i] = note.axes[same] if x.shape[same] == size else resized(size, note.axes[same])
            old.axes, old.what = tuple(axes), note.what.mixed("its scores were put together from parts")
        elif isinstance(old.what, Scores):
            old.what = old.what.mixed("a part of its scores was taken or replaced")

    # ---- results that have the axes of their operands

    def _elementwise(self, op: Operation) -> Note | None:
        """The note of any other operator: a result of the shape of its operands has their axes."""
        shape = op.out.shape
        if len(op.given) == 1 and op.given[0].shape == shape:
            order, axes = [0], op.first.axes
        else:
            fits = [i for i, x in enumerate(op.given) if _broadcasts(x.shape, shape)]
            order = sorted(
                fits,
                key=lambda i: (_rank(op.notes[i].what), -op.given[i].numel()),
            )
            is_joint = (
                op.name in _FACTORS or op.name in _SUMS or op.name in ("where", "masked_fill", "maximum")
            )
            if not order or not (is_joint or any(op.given[i].shape == shape for i in order)):
                return None
            axes = _joint_axes(op, order)
        what = op.notes[order[0]].what
        note = Note(axes, None, all(each.is_parameter for each in op.notes))
        if op.name in _SAME:
            note.what = what
        elif op.out.dtype == torch.bool or op.name.endswith("_like") or op.name.startswith("new_"):
            pass
        elif isinstance(what, Scores):
            note.what = self._stepped(op, order[0], axes)
        elif isinstance(what, Exponentials):
            note.what = what._replace(is_changed=True)
        else:
            if op.name == "mul" and len(op.given) == 2 and not any(each.is_parameter for each in op.notes):
                note.what = _outer(op)
                if isinstance(what, Weights) and what.n_keys == 1 and note.what is not None:
                    self.use(what)  # a product with the value of a single key needs no sum
            if note.what is None and isinstance(what, Weights):
                note.what = _changed(what, op, order[0])
        return note

    def _stepped(self, op: Operation, place: int, axes: Axes) -> Scores:
        """Scores after an elementwise operator, of which they are the operand at a place."""
        scores: Scores = op.notes[place].what  # type: ignore[assignment]
        if op.name in _LIMITS:
            return scores
        if sum(isinstance(each.what, Scores) for each in op.notes) > 1:
            return _both(op, scores, axes)
        return _STEPS.get(op.name, _unknown_step)(scores, op, place, axes)

    # ---- products

    def product(
        self, a: Tensor, b: Tensor, notes: tuple[Note, Note], axes: tuple[Axes, Axes], alpha: float = 1.0
    ) -> Note:
        """The note of a product of (batch..., rows, summed) and (batch..., summed, columns)."""
        note_a, note_b = notes
        (*batch_a, rows, summed), (*batch_b, other_summed, columns) = axes
        batch = list(zip(batch_a, batch_b, strict=True))
        left = (*batch_a, rows, columns)
        for note, other, axis in ((note_a, note_b, summed), (note_b, note_a, other_summed)):
            if isinstance(note.what, Exponentials) and marks(axis, note.what.scores.columns):
                self.outcomes.append(
                    Outcome(self._place(), "exponentials of its scores multiply values, and are no softmax")
                )
            if isinstance(note.what, Weights):
                if note.what.counts_keys(axis):
                    if not other.is_parameter:
                        self.use(note.what)
                    return Note(left)
                return Note(
                    left, note.what if any(note.what.counts_keys(each) for each in left if each) else None
                )
            if isinstance(what := note.what, Scores):
                is_apart = not (marks(axis, what.columns) or marks(axis, what.rows))
                is_mixed = is_apart and (what.counted_by(left) or not what.counted_by(note.axes))
                if is_mixed or other.is_parameter:
                    return Note(left, what.mixed("heads of its scores are mixed") if is_mixed else None)
        sides = ((note_a, batch_a, summed), (note_b, batch_b, other_summed))
        if any(note.is_parameter and not _is_in_heads(batch_of, axis) for note, batch_of, axis in sides):
            asking = ((batch_a, rows, summed), (batch_b, columns, other_summed))
            if not any(_is_in_heads((*batch_of, own), axis) for batch_of, own, axis in asking):
                return Note(left)
            note = _scores_of(a, b, batch, (rows, summed), (columns, other_summed), alpha)
            note.what = replace(note.what.mixed("its scores are products with parameters"), has_keys=False)
            return note
        return _scores_of(a, b, batch, (rows, summed), (columns, other_summed), alpha)

    def use(self, weights: Weights) -> None:
        """Say that weights multiply values."""
        if not weights.outcome.is_used:
            weights.outcome.is_used = True
            self.used.append(weights)

    def use_outside(self, x: Tensor) -> None:
        """Say that a tensor leaves PyTorch, as for NumPy: weights multiply values there."""
        if isinstance(what := self.note(x).what, Weights):
            self.use(what)

    def attended(self, query: Tensor, value: Tensor, out: Any) -> None:
        """Note the output of fused attention, which has the rows of its queries."""
        if isinstance(out, Tensor) and not out.is_nested and out.ndim == query.ndim == value.ndim:
            self._mark(out, Note((*self.note(query).axes[:-1], self.note(value).axes[-1])))

    def softmax(
        self, scores: Scores, numbers: Tensor, axes: Axes, dim: int, out: Tensor, *, is_log: bool = False
    ) -> Note:
        """The note of weights, which are the softmax of scores along an axis, or of their logarithms."""
        dim %= out.ndim
        keys = axes[dim]
        is_over_keys = marks(keys, scores.columns) or marks(keys, scores.rows) or out.shape[dim] == 1
        if not (scores.has_keys and is_over_keys):
            return Note(axes)
        mark = -new_number()
        outcome = Outcome(self._place())
        if not is_log:
            self.outcomes.append(outcome)
        weights = Weights(scores, numbers.detach(), axes, dim, mark, out.shape[dim], outcome)
        return Note(
            (*axes[:dim], marked(keys, mark), *axes[dim + 1 :]), LogWeights(weights) if is_log else weights
        )


def _left_of(name: str, note: Note, is_whole: bool) -> Scores | Weights | None:
    """Weights behind a norm, and scores of which the largest were chosen."""
    if isinstance(note.what, Weights) and is_whole:
        return note.what
    if isinstance(note.what, Scores) and name in ("topk", "sort"):
        return note.what.mixed("the largest of its scores were chosen")
    return None


def _part_of(note: Note, shape: torch.Size, part: torch.Size, number: int, count: int) -> Part | None:
    """One of parts of equal sizes of an axis."""
    cut = [i for i, (n, m) in enumerate(zip(shape, part, strict=True)) if n != m]
    return (
        Part(note.axes[cut[0]], number, count)
        if len(cut) == 1 and shape[cut[0]] == part[cut[0]] * count
        else None
    )


def _leaves(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Any]:
    for each in itertools.chain(args, kwargs.values()) if kwargs else args:
        if isinstance(each, (list, tuple)):
            yield from each
        else:
            yield each


def _broadcasts(shape: torch.Size, whole: torch.Size) -> bool:
    return len(shape) <= len(whole) and all(
        n in (1, m) for n, m in zip(reversed(shape), reversed(whole), strict=False)
    )


def _joint_axes(op: Operation, order: list[int]) -> Axes:
    """Each axis as the first operand has it that is neither of size 1 nor spread there."""
    found = []
    for place in range(1, op.out.ndim + 1):
        size = op.out.shape[-place]
        choices = [
            op.notes[i].axes[-place]
            for i in order
            if op.given[i].ndim >= place and op.given[i].shape[-place] == size
        ]
        real = (axis for axis in choices if not all(piece.is_spread for piece in axis))
        found.append(next(real, choices[0] if choices else ()))
    return tuple(found[::-1])


def _guessed(op: Operation) -> Note:
    """The note of a result whose way with axes is not known: those in front that keep their sizes are kept."""
    first, axes = op.first, []
    is_alike = op.given[0].ndim == op.out.ndim
    for place, size in enumerate(op.out.shape):
        old = first.axes[place] if place < len(first.axes) else ()
        if place < len(first.axes) and op.given[0].shape[place] == size:
            axes.append(old)
            continue
        is_alike = is_alike and place < len(first.axes)
        kin = frozenset((new_number(), UNKNOWN)).union(*(piece.kin for piece in old if is_alike))
        axes.append(fresh((size,), kin)[0])
        if not is_alike:
            axes += fresh(op.out.shape[place + 1 :], frozenset((new_number(), UNKNOWN)))
            break
    what = first.what
    if isinstance(what, Scores) and any(marks(axis, what.columns) for axis in axes):
        what = what.mixed(f"its scores come from the operator {op.name}")
    else:
        what = None
    return Note(tuple(axes), what, all(each.is_parameter for each in op.notes))


def _resized(axes: Iterable[tuple[Axis, int, int]]) -> Axes:
    """Axes with their new and old sizes, which stay where these are equal."""
    return tuple(axis if new == old else resized(new, axis) for axis, new, old in axes)


def _is_in_heads(batch: Sequence[Axis], summed: Axis) -> bool:
    """Whether rows are those of heads or were spread over a batch, as learned queries are and no layer's weights."""
    roots = {piece.root for piece in summed}
    return any(piece.is_spread or piece.root in roots for axis in batch for piece in axis)


def _scores_of(
    a: Tensor,
    b: Tensor,
    batch: list[tuple[Axis, Axis]],
    left: tuple[Axis, Axis],
    right: tuple[Axis, Axis],
    alpha: float,
) -> Note:
    shared = tuple(refine(x, y) or x for x, y in batch)
    (rows, summed), (columns, other_summed) = left, right
    row, column = -new_number(), -new_number()
    rows, columns = renamed(rows, row), renamed(columns, column)
    kin = kin_of(summed, other_summed)
    scores = Scores(
        a.detach(),
        b.detach(),
        (*shared, rows, summed),
        (*shared, summed, columns),
        row,
        column,
        kin_of(*shared) - kin,
        summed,
        kin,
    )
    return Note((*shared, rows, columns), scores if alpha == 1 else scores.then("mul", float(alpha)))


def _outer(op: Operation) -> Outer | None:
    """Factors of an elementwise product of which one is the same along an axis of the other."""
    (a, note_a), (b, note_b) = (
        _thin(x, note, op.out.ndim) for x, note in zip(op.given, op.notes, strict=True)
    )
    is_single = a.shape == b.shape and 1 in a.shape  # as a query and its only key
    if (a.shape == b.shape and not is_single) or 1 in (a.numel(), b.numel()):
        return None
    for x, note, other in ((a, note_a, b), (b, note_b, a)):  # weights that are cleared multiply no values
        if isinstance(note.what, Weights) and all(n >= m for n, m in zip(x.shape, other.shape, strict=True)):
            return None
    return Outer(a, b, note_a, note_b)


def _thin(x: Tensor, note: Note, ndim: int) -> tuple[Tensor, Note]:
    """The tensor with as many axes as the result, of size 1 where all entries are alike."""
    axes = list(note.axes)
    for place, axis in enumerate(axes):
        if axis and all(piece.is_spread for piece in axis):
            x, axes[place] = x.narrow(place, 0, 1), ()
    more = ndim - x.ndim
    return x.detach().reshape([1] * more + list(x.shape)), Note(
        (*((),) * more, *axes), note.what, note.is_parameter
    )


# ---- what is done with scores ---------------------------------------------------------------------------


def _changed(weights: Weights, op: Operation, place: int) -> Weights | None:
    """Weights after an elementwise operator; None where they are cleared and divided by what is left of them."""
    other = _operand(op, place)
    if op.name == "mul" and isinstance(other, Tensor) and other.shape[-1] > 1:
        return replace(weights, is_cleared=True)
    if op.name == "div" and isinstance(other, Tensor) and weights.is_cleared:
        weights.outcome.why = "its weights are cleared behind the softmax and divided by their sum again"
        return None
    return weights


def _rank(what: Any) -> int:
    """The place among operands of the one whose axes a result has: products of queries and keys come first."""
    if isinstance(what, Scores):
        return 0 if what.has_keys else 1
    return 1 if isinstance(what, Weights) else 2


def _both(op: Operation, first: Scores, axes: Axes) -> Scores:
    """The sum of several products, which hides the keys that one of them hides."""
    why, kept = "its scores are a sum of several products", ("add", "hide", "sink", "mul")
    found = first.mixed(why, kept)
    steps = _settled(found.steps)
    for i, note in enumerate(op.notes):
        if isinstance(what := note.what, Scores) and what is not first:
            names = _names(note.axes, axes)
            if not any(each.what is what for each in op.notes[:i]):
                steps += (
                    step._replace(
                        axes=tuple(tuple(names.get(piece[:3], piece) for piece in x) for x in step.axes)
                    )
                    for step in _settled(what.mixed(why, kept).steps)
                )
    return replace(found, steps=tuple(steps))


def _settled(steps: Sequence[Step]) -> list[Step]:
    """Steps in which what was added has the factors that came behind it, which are left out."""
    found, factor = [], 1.0
    for step in reversed(steps):
        if step.kind == "mul":
            factor *= step.value
        else:
            found.append(step._replace(value=step.value * factor) if step.kind == "add" else step)
    return found[::-1]


def _names(axes: Axes, whole: Axes) -> dict[tuple[int, ...], Piece]:
    """Pieces of axes by those in the same places of other axes."""
    found: dict[tuple[int, ...], Piece] = {}
    for one, other in zip(reversed(axes), reversed(whole), strict=False):
        if [piece.size for piece in one] == [piece.size for piece in other]:
            found.update((piece[:3], named) for piece, named in zip(one, other, strict=True))
    return found


def _number(x: Any) -> float | None:
    """A number, or a tensor without axes, as a number."""
    if isinstance(x, Tensor):
        return float(x.detach()) if x.numel() == 1 and x.ndim <= 1 and x.device.type != "meta" else None
    return float(x) if isinstance(x, (int, float)) else None


def _operand(op: Operation, place: int) -> Any:
    """The operand that is not the scores: a number, or a tensor with the axes of the result."""
    other = next((x for x in op.args[:2] if x is not op.given[place]), None)
    number = _number(other)
    return _as_wide(other, op.out.ndim) if number is None and isinstance(other, Tensor) else number


def _as_wide(x: Tensor, ndim: int) -> Tensor:
    return x.detach().reshape([1] * (ndim - x.ndim) + list(x.shape))


def _scaled(scores: Scores, op: Operation, place: int, axes: Axes) -> Scores:
    value, divides = _operand(op, place), op.name == "div"
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
    value, subtracts = _operand(op, place), op.name == "sub"
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
    return scores.then("hide", _as_wide(hides, op.out.ndim), axes, float(filled))


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

# ---- operators that move, cut and join axes ---------------------------------------------------------------


def _view(self: Following, op: Operation) -> Note | None:
    axes = regroup(op.first.axes, op.out.shape)
    return op.first.like(axes) if axes else None


def _permute(self: Following, op: Operation) -> Note:
    return op.first.like(tuple(op.first.axes[i] for i in op.args[1]))


def _transpose(self: Following, op: Operation) -> Note:
    axes = list(op.first.axes)
    i, j = op.args[1:3]
    axes[i], axes[j] = axes[j], axes[i]
    return op.first.like(tuple(axes))


def _t(self: Following, op: Operation) -> Note:
    return op.first.like(op.first.axes[::-1])


def _unsqueeze(self: Following, op: Operation) -> Note:
    dim = op.args[1] % op.out.ndim
    return op.first.like((*op.first.axes[:dim], (), *op.first.axes[dim:]))


def _expand(self: Following, op: Operation) -> Note:
    more = op.out.ndim - op.given[0].ndim
    axes = [
        (),
    ] * more + list(op.first.axes)
    sizes = [1] * more + list(op.given[0].shape)
    for i, (n, m) in enumerate(zip(op.out.shape, sizes, strict=True)):
        if n != m:
            axes[i] = tuple(piece._replace(is_spread=True) for piece in fresh((n,))[0])
    return op.first.like(tuple(axes))


def _part(self: Following, op: Operation) -> Note:
    shape = op.given[0].shape
    if op.out.shape == shape:
        return op.first
    return op.first.cut(_resized(zip(op.first.axes, op.out.shape, shape, strict=True)))


def _pad(self: Following, op: Operation) -> Note:
    """A tensor with entries around it; one column behind scores is a sink."""
    what, note = op.first.what, _part(self, op)
    if isinstance(what, Scores) and list(op.args[1]) == [0, 1]:
        columns = torch.full_like(op.given[0][..., :1], float(op.argument(2, "value", 0)))
        note.axes = (*note.axes[:-1], marked(note.axes[-1], what.columns))
        note.what = what.then("sink", columns.detach(), op.first.axes)
    return note


def _repeat(self: Following, op: Operation) -> Note | None:
    if op.out.ndim != op.given[0].ndim:
        return None
    return _part(self, op)


def _select(self: Following, op: Operation) -> Note:
    dim = op.args[1] % op.given[0].ndim
    return op.first.cut((*op.first.axes[:dim], *op.first.axes[dim + 1 :]))


def _index(self: Following, op: Operation) -> Note | None:
    """One list of places along an axis; more of them have no such axes."""
    places = [i for i, x in enumerate(op.args[1]) if x is not None]
    if len(places) == 1 and op.out.ndim == op.given[0].ndim:
        return _part(self, op)
    return None


def _cat(self: Following, op: Operation) -> Note:
    notes, given = op.notes, op.given
    dim = op.argument(1, "dim", 0) % op.out.ndim
    fits = [i for i, x in enumerate(given) if x.ndim == op.out.ndim]  # an empty cache has one axis
    first = min(fits, key=lambda i: not isinstance(notes[i].what, Scores))
    note = notes[first]
    joined = resized(op.out.shape[dim], *(notes[i].axes[dim] for i in fits))
    if op.out.shape[dim] == given[first].shape[dim]:
        joined = note.axes[dim]
    elif (parts := _all_parts(notes)) is not None and len(fits) == len(given):
        joined = (parts, *note.axes[dim])
    axes = tuple(joined if i == dim else axis for i, axis in enumerate(note.axes))
    is_sink = first == 0 and dim == op.out.ndim - 1 and all(x.shape[-1] == 1 for x in given[1:])
    if isinstance(note.what, Scores) and is_sink:
        axes = (*axes[:-1], marked(axes[-1], note.what.columns))
        columns = torch.cat([x.detach() for x in given[1:]], -1)
        return Note(axes, note.what.then("sink", columns, note.axes))
    found = note.cut(axes) if isinstance(note.what, Scores) else note.like(axes)
    found.is_parameter = all(each.is_parameter for each in notes)
    return found


def _all_parts(notes: Sequence[Note]) -> Piece | None:
    """The number of a part as a piece, where tensors are all parts of one in their order."""
    parts = [note.part for note in notes]
    first = parts[0]
    if first is None or [part and (part.axis, part.number) for part in parts] != [
        (first.axis, i) for i in range(first.count)
    ]:
        return None
    return Piece(new_number(), 1, first.count, kin_of(first.axis) or frozenset((new_number(),)))


def _stack(self: Following, op: Operation) -> Note:
    dim = op.argument(1, "dim", 0) % op.out.ndim
    parts = _all_parts(op.notes)
    axis = fresh(op.out.shape[dim : dim + 1])[0] if parts is None else (parts,)
    found = op.first.cut((*op.first.axes[:dim], axis, *op.first.axes[dim:]))
    found.is_parameter = all(each.is_parameter for each in op.notes)
    return found


def _copy(self: Following, op: Operation) -> Note | None:
    """Entries of the second tensor written over the first."""
    return op.notes[1] if op.given[1].shape == op.out.shape else None


def _gather(self: Following, op: Operation) -> None:
    """Entries from places along an axis: only the axes in front of it are kept."""
    return


def _put(self: Following, op: Operation) -> Note:
    """A tensor into which parts of others were written, as into a cache."""
    what = op.first.what
    if (
        op.name == "index_put"
        and isinstance(what, Scores)
        and (filled := _number(op.args[2])) is not None
        and filled <= FAR
    ):
        hides = torch.zeros(op.out.shape, dtype=torch.bool, device=op.out.device)
        hides[tuple(slice(None) if x is None else x for x in op.args[1])] = True
        return Note(op.first.axes, what.then("hide", hides, op.first.axes, filled))
    note = op.first.cut(op.first.axes)
    note.is_parameter = all(each.is_parameter for each in op.notes)
    return note


def _embedding(self: Following, op: Operation) -> Note:
    return Note((*op.notes[1].axes, op.notes[0].axes[-1]))


def _convolution(self: Following, op: Operation) -> Note:
    """A layer over places, whose channels are those of its parameter."""
    source, weight = op.first, op.notes[1]
    places = _resized(zip(source.axes[2:], op.out.shape[2:], op.given[0].shape[2:], strict=True))
    what = source.what if isinstance(source.what, Weights) else None
    if isinstance(source.what, Scores):
        what = source.what.mixed("heads of its scores are mixed")
    channels = (
        weight.axes[0]
        if op.out.shape[1] == op.given[1].shape[0]
        else resized(op.out.shape[1], weight.axes[0])
    )
    return Note((source.axes[0], channels, *places), what)


def _as_complex(self: Following, op: Operation) -> Note:
    return op.first.like(op.first.axes[:-1])


def _as_real(self: Following, op: Operation) -> Note:
    return op.first.like((*op.first.axes, resized(2, op.first.axes[-1])))


# ---- products, sums and softmax ----------------------------------------------------------------------------


def _bmm(self: Following, op: Operation, alpha: float = 1.0) -> Note:
    (a, b), (note_a, note_b) = op.given[-2:], op.notes[-2:]
    return self.product(a, b, (note_a, note_b), (note_a.axes, note_b.axes), alpha)


def _baddbmm(self: Following, op: Operation) -> Note:
    note, beta = _bmm(self, op, op.kwargs.get("alpha", 1)), op.kwargs.get("beta", 1)
    if isinstance(note.what, Scores) and beta:
        if isinstance(op.first.what, Scores):
            note.what = note.what.mixed("its scores are a sum of several products")
        else:
            note.what = note.what.then("add", _as_wide(op.given[0], op.out.ndim) * beta, note.axes)
    return note


def _distance(self: Following, op: Operation) -> Note:
    """Distances of queries and keys, which are no products."""
    a, b = op.given[:2]
    note = self.product(
        a,
        b.mT,
        (op.notes[0], op.notes[1]),
        (op.notes[0].axes, (*op.notes[1].axes[:-2], op.notes[1].axes[-1], op.notes[1].axes[-2])),
    )
    if isinstance(note.what, Scores):
        note.what = note.what.mixed("its scores are distances")
    return note


def _reduced(self: Following, op: Operation) -> Note | None:
    """A mean, a sum or an extreme along axes; means of heads of weights are weights."""
    dims, n = op.argument(1, "dim", None), op.given[0].ndim
    if dims is None or dims == []:
        return None
    dims = {dim % n for dim in (dims if isinstance(dims, (list, tuple)) else [dims])}
    if op.out.ndim == n:
        axes = tuple(() if i in dims else axis for i, axis in enumerate(op.first.axes))
    else:
        axes = tuple(axis for i, axis in enumerate(op.first.axes) if i not in dims)
    note, what = Note(axes), op.first.what
    if isinstance(what, Weights) and (what.n_keys == 1 or any(marks(axis, what.mark) for axis in axes)):
        note.what = what
    elif isinstance(what, Scores) and all(
        any(marks(axis, mark) for axis in axes) for mark in (what.columns, what.rows)
    ):
        note.what = what.mixed("heads of its scores are mixed")
    return note


def _sum(self: Following, op: Operation) -> Note | None:
    """A sum, which makes products of queries and keys where they were multiplied entry by entry."""
    note, what, dims = _reduced(self, op), op.first.what, op.argument(1, "dim", None)
    if note is None or len(dims) != 1:
        return note
    dim = dims[0] % op.given[0].ndim
    if isinstance(what, Exponentials) and not what.is_changed and len(note.axes) == len(op.first.axes):
        note.what = Totals(what, dim)
    if not isinstance(what, Outer):
        return note
    for each in (what.left_note, what.right_note):
        if isinstance(each.what, Weights) and each.what.counts_keys(op.first.axes[dim]):
            self.use(each.what)
            return note
    if what.left_note.is_parameter or what.right_note.is_parameter:
        return note
    return _scores_of_sum(what, op.first.axes, dim, note.axes)


def _logsumexp(self: Following, op: Operation) -> Note | None:
    note, dims = _reduced(self, op), op.args[1]
    if (
        note is not None
        and isinstance(op.first.what, Scores)
        and len(dims) == 1
        and op.out.ndim == op.given[0].ndim
    ):
        note.what = Totals(op.first.what, dims[0] % op.out.ndim)
    return note


def _scores_of_sum(outer: Outer, axes: Axes, dim: int, left: Axes) -> Note:
    """The note of products that were written as an elementwise product and its sum along an axis."""
    a, b = outer.left.shape, outer.right.shape
    row, column = -new_number(), -new_number()
    own = list(zip(outer.left_note.axes, outer.right_note.axes, strict=True))
    named = [
        renamed(y, column) if a[i] == 1 < b[i] else renamed(x, row) if b[i] == 1 < a[i] else refine(x, y) or x
        for i, (x, y) in enumerate(own)
    ]
    kin = kin_of(*own[dim])
    shared = kin_of(*(x for i, x in enumerate(named) if a[i] > 1 and b[i] > 1 and i != dim))
    scores = Scores(
        outer.left,
        outer.right,
        tuple(x if a[i] > 1 else () for i, x in enumerate(named)),
        tuple(x if b[i] > 1 else () for i, x in enumerate(named)),
        row,
        column,
        shared - kin,
        named[dim],
        kin,
    )
    keeps = len(left) == len(axes)
    kept = [() if i == dim else axis for i, axis in enumerate(named) if keeps or i != dim]
    return Note(tuple(kept), scores)


def _softmax(self: Following, op: Operation) -> Note:
    if not isinstance(op.first.what, Scores):
        return Note(op.first.axes)
    is_log = "log" in op.name
    return self.softmax(op.first.what, op.given[0], op.first.axes, op.args[1], op.out, is_log=is_log)


def _exp(self: Following, op: Operation) -> Note:
    note = op.first
    if isinstance(note.what, LogWeights):  # a loss takes the logarithms alone
        self.outcomes.append(note.what.weights.outcome)
        return Note(note.axes, note.what.weights)
    if not isinstance(note.what, Scores):
        return Note(note.axes)
    numbers = op.out.log() if op.writes else op.given[0]
    return Note(note.axes, Exponentials(note.what, numbers.detach(), note.axes))


def _div(self: Following, op: Operation) -> Note | None:
    """Exponentials over their sum, which are weights; else elementwise."""
    whole, totals = op.first.what, op.notes[-1].what
    if (
        len(op.notes) == 2
        and isinstance(totals, Totals)
        and totals.of is whole
        and isinstance(whole, Exponentials)
    ):
        return self.softmax(whole.scores, whole.numbers, whole.axes, totals.dim, op.out)
    return self._elementwise(op)


def _sub(self: Following, op: Operation) -> Note | None:
    """Scores less the logarithm of the sum of their exponentials, which are logarithms of weights; else elementwise."""
    scores, totals = op.first.what, op.notes[-1].what
    if (
        len(op.notes) == 2
        and isinstance(totals, Totals)
        and totals.of is scores
        and isinstance(scores, Scores)
    ):
        return self.softmax(scores, op.given[0], op.first.axes, totals.dim, op.out, is_log=True)
    return self._elementwise(op)


_HANDLERS: dict[str, Callable[[Following, Operation], Note | None]] = {
    **dict.fromkeys(("view", "_unsafe_view", "reshape", "_reshape_alias", "squeeze"), _view),
    **dict.fromkeys(("slice", "narrow", "index_select"), _part),
    "constant_pad_nd": _pad,
    **dict.fromkeys(("index_put", "index_copy", "scatter", "slice_scatter"), _put),
    **dict.fromkeys(("mm", "bmm"), _bmm),
    **dict.fromkeys(("addmm", "baddbmm"), _baddbmm),
    **dict.fromkeys(("_softmax", "_safe_softmax", "softmax", "_log_softmax", "log_softmax"), _softmax),
    "permute": _permute,
    "transpose": _transpose,
    "t": _t,
    "unsqueeze": _unsqueeze,
    "expand": _expand,
    "repeat": _repeat,
    "select": _select,
    "index": _index,
    "cat": _cat,
    "stack": _stack,
    "gather": _gather,
    "copy": _copy,
    "embedding": _embedding,
    "convolution": _convolution,
    "view_as_complex": _as_complex,
    "view_as_real": _as_real,
    "_cdist_forward": _distance,
    "sum": _sum,
    **dict.fromkeys(("mean", "amax", "amin", "prod", "var", "any", "all", "argmax", "argmin"), _reduced),
    "logsumexp": _logsumexp,
    "sub": _sub,
    "exp": _exp,
    "div": _div,
}
