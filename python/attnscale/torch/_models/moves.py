# SPDX-License-Identifier: BSD-3-Clause
"""Operators that move, cut and join the axes of a tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from .axes import UNKNOWN, Piece, fresh, kin_of, marked, marks, new_number, regroup, resized
from .operation import Operation, number_of, resized_axes
from .scores import FAR, Note, Scores, Weights


def guessed(op: Operation) -> Note:
    """Note of a result with unknown axes, except leading ones that keep their sizes."""
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
        what = what.mixed()
    else:
        what = None
    return Note(tuple(axes), what, all(each.is_parameter for each in op.notes))


def _view(op: Operation) -> Note | None:
    axes = regroup(op.first.axes, op.out.shape)
    return op.first.like(axes) if axes else None


def _permute(op: Operation) -> Note:
    return op.first.like(tuple(op.first.axes[i] for i in op.args[1]))


def _transpose(op: Operation) -> Note:
    axes = list(op.first.axes)
    i, j = op.args[1:3]
    axes[i], axes[j] = axes[j], axes[i]
    return op.first.like(tuple(axes))


def _t(op: Operation) -> Note:
    return op.first.like(op.first.axes[::-1])


def _unsqueeze(op: Operation) -> Note:
    dim = op.args[1] % op.out.ndim
    return op.first.like((*op.first.axes[:dim], (), *op.first.axes[dim:]))


def _expand(op: Operation) -> Note:
    more = op.out.ndim - op.given[0].ndim
    axes = [*((),) * more, *op.first.axes]
    sizes = [1] * more + list(op.given[0].shape)
    for i, (n, m) in enumerate(zip(op.out.shape, sizes, strict=True)):
        if n != m:
            axes[i] = tuple(piece._replace(is_spread=True) for piece in fresh((n,))[0])
    return op.first.like(tuple(axes))


def _part(op: Operation) -> Note:
    shape = op.given[0].shape
    if op.out.shape == shape:
        return op.first
    return op.first.cut(resized_axes(zip(op.first.axes, op.out.shape, shape, strict=True)))


def _pad(op: Operation) -> Note:
    """Padding of a tensor; one column after scores is a sink."""
    what, note = op.first.what, _part(op)
    if isinstance(what, Scores) and list(op.args[1]) == [0, 1]:
        columns = torch.full_like(op.given[0][..., :1], float(op.argument(2, "value", 0)))
        note.axes = (*note.axes[:-1], marked(note.axes[-1], what.columns))
        note.what = what.then("sink", columns.detach(), op.first.axes)
    return note


def _repeat(op: Operation) -> Note | None:
    if op.out.ndim != op.given[0].ndim:
        return None
    return _part(op)


def _select(op: Operation) -> Note:
    dim = op.args[1] % op.given[0].ndim
    return op.first.cut((*op.first.axes[:dim], *op.first.axes[dim + 1 :]))


def _index(op: Operation) -> Note | None:
    """Indexing by one list of places along an axis; with several the axes are unknown."""
    places = [i for i, x in enumerate(op.args[1]) if x is not None]
    if len(places) == 1 and op.out.ndim == op.given[0].ndim:
        return _part(op)
    return None


def _cat(op: Operation) -> Note:
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
    """The number of a part as a piece, if the tensors are all parts of one, in order."""
    parts = [note.part for note in notes]
    first = parts[0]
    if first is None or [part and (part.axis, part.number) for part in parts] != [
        (first.axis, i) for i in range(first.parts)
    ]:
        return None
    return Piece(new_number(), 1, first.parts, kin_of(first.axis) or frozenset((new_number(),)))


def _stack(op: Operation) -> Note:
    dim = op.argument(1, "dim", 0) % op.out.ndim
    parts = _all_parts(op.notes)
    axis = fresh(op.out.shape[dim : dim + 1])[0] if parts is None else (parts,)
    found = op.first.cut((*op.first.axes[:dim], axis, *op.first.axes[dim:]))
    found.is_parameter = all(each.is_parameter for each in op.notes)
    return found


def _copy(op: Operation) -> Note | None:
    """Entries of the second tensor, written over the first."""
    return op.notes[1] if op.given[1].shape == op.out.shape else None


def _gather(op: Operation) -> None:
    """Entries from places along an axis; only the axes before it are known."""
    return


def _put(op: Operation) -> Note:
    what = op.first.what
    if (
        op.name == "index_put"
        and isinstance(what, Scores)
        and (filled := number_of(op.args[2])) is not None
        and filled <= FAR
    ):
        hides = torch.zeros(op.out.shape, dtype=torch.bool, device=op.out.device)
        hides[tuple(slice(None) if x is None else x for x in op.args[1])] = True
        return Note(op.first.axes, what.then("hide", hides, op.first.axes, filled))
    note = op.first.cut(op.first.axes)
    note.is_parameter = all(each.is_parameter for each in op.notes)
    return note


def _embedding(op: Operation) -> Note:
    return Note((*op.notes[1].axes, op.notes[0].axes[-1]))


def _convolution(op: Operation) -> Note:
    """A layer over places, with the channels of its parameter."""
    source, weight = op.first, op.notes[1]
    places = resized_axes(zip(source.axes[2:], op.out.shape[2:], op.given[0].shape[2:], strict=True))
    channels = weight.axes[0]
    if op.out.shape[1] != op.given[1].shape[0]:
        channels = resized(op.out.shape[1], channels)
    note = Note((source.axes[0], channels, *places))
    if isinstance(source.what, Weights):
        note.what = source.what
    elif isinstance(source.what, Scores):
        note.what = source.what.mixed()
    return note


def _as_complex(op: Operation) -> Note:
    return op.first.like(op.first.axes[:-1])


def _as_real(op: Operation) -> Note:
    return op.first.like((*op.first.axes, resized(2, op.first.axes[-1])))


#: Note of a result by the name of the operator; None if its effect on axes is unknown.
MOVES: dict[str, Callable[[Operation], Note | None]] = {
    **dict.fromkeys(("view", "_unsafe_view", "reshape", "_reshape_alias", "squeeze"), _view),
    **dict.fromkeys(("slice", "narrow", "index_select"), _part),
    **dict.fromkeys(("index_put", "index_copy", "scatter", "slice_scatter"), _put),
    "constant_pad_nd": _pad,
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
}
