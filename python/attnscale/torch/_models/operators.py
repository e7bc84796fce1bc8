# SPDX-License-Identifier: BSD-3-Clause
"""Operators below autograd, followed from products of queries and keys to weights that multiply values.

Every tensor of a pass has a note. It says which pieces of earlier axes each axis is made of, so that folds,
views and permutations need no list of the spellings of libraries. A product of two tensors without a layer's
weight makes scores; later operations on them are kept as steps. Only weights that multiply values belong to
attention: a router's softmax is not over such a product, and a loss over one multiplies nothing.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from .axes import (
    UNKNOWN,
    Axes,
    Axis,
    fresh,
    kin_of,
    marked,
    marks,
    new_number,
    new_parameter,
    refine,
    renamed,
    resized,
)
from .moves import MOVES, guessed
from .operation import (
    JOINT,
    PARTS,
    SAME,
    Operation,
    as_wide,
    broadcasts,
    joint_axes,
    known,
    leaves,
    resized_axes,
)
from .scores import Exponentials, LogWeights, Note, Outcome, Outer, Part, Scores, Totals, Weights
from .steps import changed, rank, stepped


class Following:
    """Record of what each tensor of a pass is: scores, weights, and the axes it is made of.

    `place` returns the module in which an operator runs. `used` collects weights that have multiplied values,
    until the caller takes them out.
    """

    def __init__(self, place: Callable[[], str | None]) -> None:
        self._place = place
        self.used: list[Weights] = []
        self._notes: dict[int, tuple[weakref.ref[Tensor], Note]] = {}
        self._constants: set[int] = set()
        self.outcomes: list[Outcome] = []

    def add_constants(self, tensors: Iterator[Tensor]) -> None:
        """Treat tensors as parameters (also for buffers) until something is written into them."""
        self._constants.update(map(id, tensors))

    # ---- notes

    def note(self, x: Tensor) -> Note:
        """The note of a tensor; a new one if no operator made it."""
        entry = self._notes.get(id(x))
        if entry is not None and entry[0]() is x:
            return entry[1]
        if x.is_nested:
            return Note(())
        is_parameter = id(x) in self._constants or isinstance(x, torch.nn.Parameter)
        is_parameter |= x._is_view() and isinstance(x._base, torch.nn.Parameter)  # such as a flat parameter
        axes = fresh(x.shape, frozenset((new_parameter(),)) if is_parameter else None)
        if x.ndim == 4 and not is_parameter:  # the second axis may be one of texts or of heads
            axes = (axes[0], marked(axes[1], UNKNOWN), *axes[2:])
        return self._mark(x, Note(axes, None, is_parameter))

    def _mark(self, x: Tensor, note: Note) -> Note:
        key, notes = id(x), self._notes

        def forget(_: object) -> None:
            notes.pop(key, None)

        notes[key] = weakref.ref(x, forget), note
        return note

    def follow(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        name, writes, is_view, _ = known(function)
        if "out" in kwargs:
            kwargs = {each: x for each, x in kwargs.items() if each != "out"}
        given = [x for x in leaves(args, kwargs) if isinstance(x, Tensor)]
        if not given or any(x.is_nested for x in given):  # rows of several lengths have no such axes
            return
        notes = [self.note(x) for x in given]
        if isinstance(out, (list, tuple)):
            self._follow_several(name, args, given, notes, out, is_view)
            return
        if not isinstance(out, Tensor) or out.is_nested or (writes and out is not given[0]):
            return
        operation = Operation(name, args, kwargs, given, notes, out, writes)
        if name in MOVES:
            note = MOVES[name](operation)
        else:
            made = _PRODUCTS.get(name)
            note = self.elementwise(operation) if made is None else made(self, operation)
        if note is None or len(note.axes) != out.ndim:
            note = guessed(operation)
        elif any(note is each for each in notes):
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
        """Note parts of a tensor, or a result of its shape with data for a backward pass."""
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
            elif name in PARTS or (name == "native_dropout" and number == 0):
                axes = resized_axes(zip(first.axes, part.shape, shape, strict=True))
                note = first.like(first.axes) if part.shape == shape else first.cut(axes)
                note.part = _part_of(first, shape, part.shape, number, len(out))
            else:
                note = Note(resized_axes(zip(first.axes, part.shape, shape, strict=True)))
                if number == 0:
                    note.what = _left_of(name, first, part.shape == shape)
            if is_view or name in PARTS:
                note.base = first.base or weakref.ref(given[0])
            self._mark(part, note)

    def _written(self, x: Tensor, note: Note) -> None:
        """Update the base of a view that was written into."""
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
            old.axes, old.what = tuple(axes), note.what.mixed()
        elif isinstance(old.what, Scores):
            old.what = old.what.mixed()

    # ---- results with the axes of their operands

    def elementwise(self, op: Operation) -> Note | None:
        """Note of an elementwise result, which has the axes of its operands."""
        shape = op.out.shape
        if len(op.given) == 1 and op.given[0].shape == shape:
            order, axes = [0], op.first.axes
        else:
            fits = [i for i, x in enumerate(op.given) if broadcasts(x.shape, shape)]
            order = sorted(fits, key=lambda i: (rank(op.notes[i].what), -op.given[i].numel()))
            if not order or not (op.name in JOINT or any(op.given[i].shape == shape for i in order)):
                return None
            axes = joint_axes(op, order)
        what = op.notes[order[0]].what
        note = Note(axes, None, all(each.is_parameter for each in op.notes))
        if op.name in SAME:
            note.what = what
        elif op.out.dtype == torch.bool or op.name.endswith("_like") or op.name.startswith("new_"):
            pass
        elif isinstance(what, Scores):
            note.what = stepped(op, order[0], axes)
        elif isinstance(what, Exponentials):
            note.what = what._replace(is_changed=True)
        else:
            if op.name == "mul" and len(op.given) == 2 and not any(each.is_parameter for each in op.notes):
                note.what = _outer(op)
                if isinstance(what, Weights) and what.n_keys == 1 and note.what is not None:
                    self.use(what)  # a product with the value of a single key needs no sum
            if note.what is None and isinstance(what, Weights):
                note.what = changed(what, op, order[0])
        return note

    # ---- products

    def product(
        self, a: Tensor, b: Tensor, notes: tuple[Note, Note], axes: tuple[Axes, Axes], alpha: float = 1.0
    ) -> Note:
        """Note of a product of (batch..., rows, summed) and (batch..., summed, columns)."""
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
                is_mixed = other.is_parameter and any(note.what.counts_keys(each) for each in left if each)
                return Note(left, note.what if is_mixed else None)
            if isinstance(what := note.what, Scores):
                is_apart = not (marks(axis, what.columns) or marks(axis, what.rows))
                is_mixed = is_apart and (what.is_of_one_key or what.counted_by(left))
                if is_mixed or other.is_parameter:
                    return Note(left, what.mixed() if is_mixed else None)
        sides = ((note_a, batch_a, summed), (note_b, batch_b, other_summed))
        if any(note.is_parameter and not _is_in_heads(batch_of, axis) for note, batch_of, axis in sides):
            asking = ((batch_a, rows, summed), (batch_b, columns, other_summed))
            if not any(_is_in_heads((*batch_of, own), axis) for batch_of, own, axis in asking):
                return Note(left)
            scores, kept = _scores_of(a, b, batch, (rows, summed), (columns, other_summed))
            mixed = scores.mixed()
            return Note(kept, replace(mixed, has_keys=False))
        scores, kept = _scores_of(a, b, batch, (rows, summed), (columns, other_summed))
        return Note(kept, scores if alpha == 1 else scores.then("mul", float(alpha)))

    def use(self, weights: Weights) -> None:
        if not weights.outcome.is_used:
            weights.outcome.is_used = True
            self.used.append(weights)

    def use_outside(self, x: Tensor) -> None:
        """Mark weights that leave PyTorch, for example to NumPy, as multiplied with values there."""
        if isinstance(what := self.note(x).what, Weights):
            self.use(what)

    def attended(self, query: Tensor, value: Tensor, out: Any) -> None:
        """Note the output of fused attention, which has the rows of its queries."""
        if isinstance(out, Tensor) and not out.is_nested and out.ndim == query.ndim == value.ndim:
            self._mark(out, Note((*self.note(query).axes[:-1], self.note(value).axes[-1])))

    def softmax(
        self, scores: Scores, numbers: Tensor, axes: Axes, dim: int, out: Tensor, *, is_log: bool = False
    ) -> Note:
        """Note of weights or their logarithms, made by a softmax of scores along an axis."""
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
    """Weights after a norm, or scores after choosing the largest; None for others."""
    if isinstance(note.what, Weights) and is_whole:
        return note.what
    if isinstance(note.what, Scores) and name in ("topk", "sort"):
        return note.what.mixed()
    return None


def _part_of(note: Note, shape: torch.Size, part: torch.Size, number: int, count: int) -> Part | None:
    cut = [i for i, (n, m) in enumerate(zip(shape, part, strict=True)) if n != m]
    return (
        Part(note.axes[cut[0]], number, count)
        if len(cut) == 1 and shape[cut[0]] == part[cut[0]] * count
        else None
    )


def _is_in_heads(batch: Sequence[Axis], summed: Axis) -> bool:
    """Whether rows are of heads or spread over a batch, as learned queries are but no layer's weights."""
    roots = {piece.root for piece in summed}
    return any(piece.is_spread or piece.root in roots for axis in batch for piece in axis)


def _scores_of(
    a: Tensor,
    b: Tensor,
    batch: list[tuple[Axis, Axis]],
    left: tuple[Axis, Axis],
    right: tuple[Axis, Axis],
) -> tuple[Scores, Axes]:
    """The product of (batch..., rows, summed) and (batch..., summed, columns) as scores, and its axes."""
    shared = tuple(refine(x, y) or x for x, y in batch)
    (rows, summed), (columns, other_summed) = left, right
    row, column = -new_number(), -new_number()
    rows, columns = renamed(rows, row), renamed(columns, column)
    kin = kin_of(summed, other_summed)
    axes = (*shared, rows, summed), (*shared, summed, columns)
    alike = kin_of(*shared) - kin
    one = not columns
    scores = Scores(a.detach(), b.detach(), *axes, row, column, alike, summed, kin, is_of_one_key=one)
    return scores, (*shared, rows, columns)


def _outer(op: Operation) -> Outer | None:
    """Factors of an elementwise product in which one is constant along an axis of the other."""
    (a, note_a), (b, note_b) = (
        _thin(x, note, op.out.ndim) for x, note in zip(op.given, op.notes, strict=True)
    )
    is_single = a.shape == b.shape and 1 in a.shape  # such as a query and its only key
    if (a.shape == b.shape and not is_single) or 1 in (a.numel(), b.numel()):
        return None
    for x, note, other in ((a, note_a, b), (b, note_b, a)):  # cleared weights multiply no values
        if isinstance(note.what, Weights) and all(n >= m for n, m in zip(x.shape, other.shape, strict=True)):
            return None
    return Outer(a, b, note_a, note_b)


def _thin(x: Tensor, note: Note, ndim: int) -> tuple[Tensor, Note]:
    """The tensor with as many axes as the result, reduced to size 1 where all entries are equal."""
    axes = list(note.axes)
    for place, axis in enumerate(axes):
        if axis and all(piece.is_spread for piece in axis):
            x, axes[place] = x.narrow(place, 0, 1), ()
    more = ndim - x.ndim
    return x.detach().reshape([1] * more + list(x.shape)), Note(
        (*((),) * more, *axes), note.what, note.is_parameter
    )


# ---- products, sums and softmax ----------------------------------------


def _bmm(self: Following, op: Operation, alpha: float = 1.0) -> Note:
    (a, b), (note_a, note_b) = op.given[-2:], op.notes[-2:]
    return self.product(a, b, (note_a, note_b), (note_a.axes, note_b.axes), alpha)


def _baddbmm(self: Following, op: Operation) -> Note:
    note, beta = _bmm(self, op, op.kwargs.get("alpha", 1)), op.kwargs.get("beta", 1)
    if isinstance(note.what, Scores) and beta:
        if isinstance(op.first.what, Scores):
            note.what = note.what.mixed()
        else:
            note.what = note.what.then("add", as_wide(op.given[0], op.out.ndim) * beta, note.axes)
    return note


def _distance(self: Following, op: Operation) -> Note:
    """Distances of queries and keys, which are not products."""
    a, b = op.given[:2]
    note = self.product(
        a,
        b.mT,
        (op.notes[0], op.notes[1]),
        (op.notes[0].axes, (*op.notes[1].axes[:-2], op.notes[1].axes[-1], op.notes[1].axes[-2])),
    )
    if isinstance(note.what, Scores):
        note.what = note.what.mixed()
    return note


def _reduced(self: Following, op: Operation) -> Note | None:
    """A mean, sum or extreme along axes; means of heads of weights are weights."""
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
        note.what = what.mixed()
    return note


def _sum(self: Following, op: Operation) -> Note | None:
    """A sum; over elementwise products of queries and keys it makes their products."""
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
    """Note of products written as an elementwise product and its sum along an axis."""
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
    if isinstance(note.what, LogWeights):  # a loss takes only the logarithms
        self.outcomes.append(note.what.weights.outcome)
        return Note(note.axes, note.what.weights)
    if not isinstance(note.what, Scores):
        return Note(note.axes)
    numbers = op.out.log() if op.writes else op.given[0]
    return Note(note.axes, Exponentials(note.what, numbers.detach(), note.axes))


def _totals(op: Operation, kind: type[Exponentials] | type[Scores]) -> int | None:
    """The axis along which the second operand is the total of the first; None if it is not."""
    whole, totals = op.first.what, op.notes[-1].what
    is_total = len(op.notes) == 2 and isinstance(totals, Totals) and totals.of is whole
    return totals.dim if is_total and isinstance(totals, Totals) and isinstance(whole, kind) else None


def _div(self: Following, op: Operation) -> Note | None:
    """Exponentials over their sum are weights; other quotients are elementwise."""
    whole = op.first.what
    if (dim := _totals(op, Exponentials)) is not None and isinstance(whole, Exponentials):
        return self.softmax(whole.scores, whole.numbers, whole.axes, dim, op.out)
    return self.elementwise(op)


def _sub(self: Following, op: Operation) -> Note | None:
    """Scores minus their log-sum-exp are logarithms of weights; other differences are elementwise."""
    scores = op.first.what
    if (dim := _totals(op, Scores)) is not None and isinstance(scores, Scores):
        return self.softmax(scores, op.given[0], op.first.axes, dim, op.out, is_log=True)
    return self.elementwise(op)


#: Operators that make, sum or use products, by name.
_PRODUCTS: dict[str, Callable[[Following, Operation], Note | None]] = {
    **dict.fromkeys(("mm", "bmm"), _bmm),
    **dict.fromkeys(("addmm", "baddbmm"), _baddbmm),
    **dict.fromkeys(("_softmax", "_safe_softmax", "softmax", "_log_softmax", "log_softmax"), _softmax),
    **dict.fromkeys(("mean", "amax", "amin", "prod", "var", "any", "all", "argmax", "argmin"), _reduced),
    "_cdist_forward": _distance,
    "sum": _sum,
    "logsumexp": _logsumexp,
    "sub": _sub,
    "exp": _exp,
    "div": _div,
}
