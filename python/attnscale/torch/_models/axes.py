# SPDX-License-Identifier: BSD-3-Clause
"""Axes of tensors as pieces of earlier axes, so that views, folds and products keep their meaning."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from math import prod
from typing import NamedTuple

from torch import Tensor

#: New number of an axis; also, negated, of a mark that a product leaves on its rows and columns.
new_number = itertools.count(2, 2).__next__
#: New number of the axes of a parameter; it is odd.
new_parameter = itertools.count(1, 2).__next__

#: Kin of axes from an operator whose effect on axes is not known.
UNKNOWN = 0


class Piece(NamedTuple):
    """Part of an axis: the index along the axis `root`, divided by `stride`, modulo `size`."""

    root: int
    stride: int
    size: int
    kin: frozenset[int]  # numbers of the axes that it was split from, cut out of or joined from, and marks
    is_spread: bool = False  # whether an expansion made it, so that all its entries are equal


Axis = tuple[Piece, ...]  # () if the axis has size 1
Axes = tuple[Axis, ...]


def fresh(sizes: Iterable[int], kin: frozenset[int] | None = None) -> Axes:
    """New axes, each with the given kin or a new one."""
    return tuple(
        (Piece(new_number(), 1, n, frozenset((new_number(),)) if kin is None else kin),) if n != 1 else ()
        for n in sizes
    )


def kin_of(*axes: Axis) -> frozenset[int]:
    """Numbers of all axes that pieces come from, without the marks of products."""
    return frozenset(k for axis in axes for piece in axis for k in piece.kin if k > 0)


def of_parameters(kin: frozenset[int]) -> frozenset[int]:
    return frozenset(k for k in kin if k % 2)


def marks(axis: Axis, number: int) -> bool:
    return any(number in piece.kin for piece in axis)


def marked(axis: Axis, number: int) -> Axis:
    return tuple(piece._replace(kin=piece.kin | {number}) for piece in axis)


def renamed(axis: Axis, number: int) -> Axis:
    """The axis with new roots and a mark, so that it differs from the same axis of another tensor."""
    names: dict[int, int] = {}

    def root(piece: Piece) -> int:
        if piece.root not in names:
            names[piece.root] = new_number()
        return names[piece.root]

    return tuple(
        piece._replace(root=root(piece), kin=frozenset(k for k in piece.kin if k >= 0) | {number})
        for piece in axis
    )


def resized(size: int, *axes: Axis) -> Axis:
    """An axis of another length, cut out of an axis or joined from several."""
    return fresh((size,), frozenset().union(*(piece.kin for axis in axes for piece in axis)) or None)[0]


def regroup(axes: Axes, shape: Sequence[int]) -> Axes | None:
    """Regroup pieces, in order, as axes of another shape; None if an axis is not a whole number of them."""
    if 0 in shape:  # an axis without entries may be any piece
        return None
    rest = [piece for axis in axes for piece in axis if piece.size != 1][::-1]
    found = []
    for size in shape:
        axis = []
        while size > 1:
            if not rest:
                return None
            piece = rest.pop()
            if size % piece.size == 0:
                axis.append(piece)
                size //= piece.size
            elif piece.size % size == 0:
                inner = piece.size // size
                axis.append(piece._replace(stride=piece.stride * inner, size=size))
                rest.append(piece._replace(size=inner))
                size = 1
            else:
                return None
        found.append(tuple(axis))
    return tuple(found)


def refine(one: Axis, other: Axis) -> Axis | None:
    """Split one axis into pieces of both, named by those that are not spread; None if that is impossible."""
    rests, found = (list(one)[::-1], list(other)[::-1]), []
    while all(rests):
        pair = [rest.pop() for rest in rests]
        size = min(piece.size for piece in pair)
        for i, (piece, rest) in enumerate(zip(pair, rests, strict=True)):
            if piece.size % size:
                return None
            if piece.size > size:
                inner = piece.size // size
                rest.append(piece._replace(size=inner))
                pair[i] = piece._replace(stride=piece.stride * inner, size=size)
        real = [piece for piece in pair if not piece.is_spread] or pair
        found.append(real[0]._replace(kin=frozenset().union(*(piece.kin for piece in real))))
    return tuple(found)


def unfold(x: Tensor, axes: Axes, order: Sequence[Piece]) -> Tensor:
    """One axis per piece of the order, of size 1 where the tensor lacks it; LookupError for other pieces."""
    sizes, found = [], []
    for size, axis in zip(x.shape, axes, strict=True):
        for piece in axis if size > 1 else ():
            end = piece.stride * piece.size
            parts = [each for each in order if each.root == piece.root and piece.stride <= each.stride < end]
            parts.sort(key=lambda each: -each.stride)
            if prod(each.size for each in parts) != piece.size:
                raise LookupError("an axis of its scores is not one of their softmax")
            found += parts
            sizes += [each.size for each in parts]
    if len(set(found)) < len(found):
        raise LookupError("two axes of its scores are one")
    x = x.reshape(sizes).permute([found.index(each) for each in order if each in found])
    return x[tuple(slice(None) if each in found else None for each in order)]


def fold(x: Tensor, groups: Sequence[Sequence[Piece]]) -> Tensor:
    """Join axes of pieces to one axis per group, of size 1 where the tensor lacks the whole group."""
    shape, sizes, i = list(x.shape), [], 0
    for group in groups:
        own = range(i, i + len(group))
        if any(shape[j] > 1 for j in own):
            for j, piece in zip(own, group, strict=True):
                shape[j] = piece.size
        sizes.append(prod(shape[j] for j in own))
        i += len(group)
    return x.expand(shape).reshape(sizes)
