# SPDX-License-Identifier: BSD-3-Clause
"""Scores that a model computes itself, from the product of queries and keys to what their weights multiply.

Each tensor on this way carries a note, an attribute that lives as long as the tensor, of what it is: first
:class:`Scores`, behind the softmax :class:`Weights`. Only weights that multiply values are of attention: a
router's softmax is over no product of two tensors, and a loss over one multiplies nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

_NOTE = "_attnscale_note"


def _named(text: str) -> frozenset[str]:
    return frozenset(text.split())


_PRODUCTS = _named("matmul __matmul__ bmm baddbmm baddbmm_ einsum")
_SOFTMAX = _named("softmax _softmax")
#: Functions whose result has the entries of one tensor, in another order or shape.
_SHAPES = _named("""
    view reshape view_as permute transpose swapaxes movedim unsqueeze squeeze flatten unflatten expand
    expand_as mT
""")
#: Functions whose result has the entries of one tensor as they are, but for their type.
_SAME = _named("""
    to float double half bfloat16 type type_as clone contiguous detach dropout nan_to_num
""")
_FACTORS = _named("mul mul_ __mul__ __rmul__ __imul__ multiply div div_ __truediv__ __itruediv__ divide")
_SUMS = _named("add add_ __add__ __radd__ __iadd__ sub sub_ __sub__ __isub__")
_FILLS = _named("masked_fill masked_fill_ where")
#: Functions that keep all scores but those too far below zero to have a weight.
_LIMITS = _named("clamp clamp_ max maximum")
_JOINS = _named("cat concat concatenate")
#: Layers that mix heads of scores, or vectors.
_LAYERS = _named("linear conv2d conv1d")
#: Functions behind which scores are still scores, though no longer of one known product.
_MIXES = _LAYERS | _named("""
    __getitem__ __setitem__ index_select gather chunk split unbind stack pad as_strided copy_ roll
    scatter index_copy_ repeat neg min minimum tril triu diagonal flip sum narrow slice
""")
#: The names of all functions that :func:`follow` wants to hear of.
FOLLOWED = (
    _PRODUCTS | _SOFTMAX | _SHAPES | _SAME | _FACTORS | _SUMS | _FILLS | _LIMITS | _JOINS | _MIXES | {"tanh"}
)

#: What is filled in below this number hides a key, as far as its weight goes.
_FAR = -1e4


@dataclass(frozen=True)
class Scores:
    """What scores are made of, as far as it is known: softcap(scale * query . key) + bias + shift."""

    width: int  # how many columns the product had
    query: Tensor | None = None  # (..., n_queries, head_dim), the factors of the product; None: not known
    key: Tensor | None = None  # (..., n_keys, head_dim)
    scale: float = 1.0
    softcap: float | None = None
    bias: Tensor | None = None  # broadcasts to the scores
    shift: Tensor | float | None = None  # one number for each row at most, which changes no weight
    sink: Tensor | None = None  # the columns behind those of the keys, (..., n_queries, sinks)
    in_cap: bool = False  # whether the last factor of a soft-cap is still to come

    @property
    def is_bare(self) -> bool:
        """Whether the scores are a multiple of the product and nothing else."""
        return self.bias is None and self.softcap is None and not self.in_cap and self.sink is None

    @property
    def mixed(self) -> Scores:
        """Scores of which it is only known that they are some."""
        return Scores(width=self.width, sink=self.sink, shift=self.shift)

    @property
    def sinks(self) -> int:
        """How many columns are behind those of the keys."""
        return 0 if self.sink is None else self.sink.shape[-1]


#: Who watches now.
watching: set[int] = set()


@dataclass
class Weights:
    """Weights that are a softmax of scores."""

    made_of: tuple[Scores, Tensor] | None  # the scores and their values, as long as somebody asks for them
    confirmed: set[int] = field(default_factory=set)  # for whom they have multiplied values

    def confirm(self, watcher: int) -> tuple[Scores, Tensor] | None:
        """What they are made of, which is let go where all have it: weights live on until a backward pass."""
        self.confirmed.add(watcher)
        found = self.made_of
        if watching <= self.confirmed:
            self.made_of = None
        return found


class _Step(NamedTuple):
    """A function of PyTorch that was called, and with what."""

    function: Callable[..., Any]
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def other(self) -> Any:
        """The operand that is not the scores."""
        given = [*self.args, *(self.kwargs[each] for each in ("other", "value") if each in self.kwargs)]
        return next((x for x in given if not hasattr(x, _NOTE)), None)


def follow(
    function: Callable[..., Any],
    name: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    out: Any,
    watcher: int,
) -> tuple[Scores, Tensor] | None:
    """Note what a function has made of scores or weights, for one of those who watch.

    What weights were made of is returned where the function has multiplied values with them for the first
    time.
    """
    noted = [x for x in _tensors(args) if hasattr(x, _NOTE)]
    if not noted:
        if name in _PRODUCTS and isinstance(out, Tensor):
            _mark(out, _product(name, args, kwargs, out.shape[-1]))
        return None
    first, note = noted[0], getattr(noted[0], _NOTE)
    if isinstance(note, Weights):
        if name not in _PRODUCTS:
            _mark(out, note)
        elif watcher not in note.confirmed and _has_values(noted, args, kwargs):
            return note.confirm(watcher)
        return None
    if name in _SOFTMAX:
        if isinstance(out, Tensor) and _is_last_axis(args, kwargs, out.ndim):
            _mark(out, Weights((note, first.detach())))
    elif name in _LAYERS and not _mixes_heads(name, args, note, out):
        return None  # a layer for vectors: they were no scores
    elif len(noted) > 1 or name in _MIXES:
        _mark(args[0] if name in ("__setitem__", "copy_") else out, note.mixed)
    elif name in _LIMITS:
        if isinstance(out, Tensor) and out.shape == first.shape:  # not the largest of each row
            _mark(out, note)
    elif name not in _PRODUCTS:
        try:
            _mark(out, _STEPS[name](note, _Step(function, name, args, kwargs)))
        except RuntimeError:  # what was added before has axes that the step is not for
            _mark(out, note.mixed)
    elif name == "baddbmm":  # scores that are added to a product of others
        _mark(out, note.mixed)
    return None


def _tensors(args: tuple[Any, ...]) -> Iterator[Tensor]:
    for each in args:
        if isinstance(each, Tensor):
            yield each
        elif isinstance(each, (list, tuple)):
            yield from (x for x in each if isinstance(x, Tensor))


def _mark(out: Any, note: Scores | Weights | None) -> None:
    if isinstance(out, Tensor):
        if note is not None:
            setattr(out, _NOTE, note)
        elif hasattr(out, _NOTE):  # changed in place
            delattr(out, _NOTE)
    elif isinstance(out, (list, tuple)):
        for each in out:
            _mark(each, note)


def _is_parameter(x: Tensor) -> bool:
    return isinstance(x, torch.nn.Parameter) or (x._is_view() and isinstance(x._base, torch.nn.Parameter))


def _has_values(noted: list[Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether weights multiply a tensor that has something for each key, and that no parameter is."""
    n_keys = set(noted[0].shape[-2:])
    others = [x for x in _tensors((*args, *kwargs.values())) if x is not noted[0]]
    return any(not _is_parameter(x) and n_keys & set(x.shape) for x in others)


def _mixes_heads(name: str, args: tuple[Any, ...], note: Scores, out: Tensor) -> bool:
    """Whether a layer leaves the keys of scores apart; a linear one makes as many heads as there were."""
    if name == "linear":
        return len(set(args[1].shape)) == 1 and note.width in out.shape[:-1]
    return note.width in out.shape


def _is_last_axis(args: tuple[Any, ...], kwargs: dict[str, Any], ndim: int) -> bool:
    dim = kwargs.get("dim", next((x for x in args[1:] if isinstance(x, int)), None))
    return dim in (-1, ndim - 1)


# ---- the product -----------------------------------------------------------------------------------


def _product(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], width: int) -> Scores | None:
    """The note of a product, None where it can be no scores: of a parameter, or of one row of numbers.

    A parameter that has got the axes of batch and heads is a query that was learned, and makes scores.
    """
    tensors = [*_tensors((*args, *kwargs.values()))]
    if len(tensors) < 2 or any(x.ndim < 2 or (_is_parameter(x) and x.ndim < 4) for x in tensors[-2:]):
        return None
    query, key = (x.detach() for x in tensors[-2:])
    if name == "einsum":
        return _of_einsum(args[0], query, key, width) if len(tensors) == 2 else Scores(width)
    if not name.startswith("baddbmm"):
        return Scores(width, query, key.mT)
    beta, alpha = (kwargs.get(each, 1) for each in ("beta", "alpha"))
    return Scores(width, query, key.mT, float(alpha), bias=tensors[0].detach() * beta if beta else None)


def _of_einsum(equation: str, query: Tensor, key: Tensor, width: int) -> Scores:
    """The factors of scores with their axes in the order of the result; nothing is known of another order."""
    terms, _, result = equation.replace(" ", "").partition("->")
    left, _, right = terms.partition(",")
    summed = [axis for axis in left if axis in right and axis not in result]
    if "." in equation or len(summed) != 1 or len(set(left)) < len(left) or len(set(right)) < len(right):
        return Scores(width)
    if result[-1:] not in right or result[-1:] in left:
        left, right, query, key = right, left, key, query
    lead, row, column = result[:-2], result[-2:-1], result[-1:]
    if row in right or row not in left or column in left or column not in right:
        return Scores(width)
    return Scores(
        width, _ordered(query, left, lead + row + summed[0]), _ordered(key, right, lead + column + summed[0])
    )


def _ordered(x: Tensor, axes: str, wanted: str) -> Tensor:
    """The tensor with its axes in the wanted order; those that it does not have are of size 1."""
    there = x.permute([axes.index(axis) for axis in wanted if axis in axes])
    return there[tuple(slice(None) if axis in axes else None for axis in wanted)]


# ---- what is done with scores ------------------------------------------------------------------------


def _reshaped(note: Scores, step: _Step) -> Scores:
    """The note of scores in another shape, which what was added to them takes, too."""
    if step.name in _SAME:
        return note
    if note.sinks:
        return note.mixed
    old = step.args[0].shape

    def alike(x: Any) -> Any:
        is_spread = isinstance(x, Tensor) and x.ndim > 0
        return step.function(x.expand(old), *step.args[1:], **step.kwargs) if is_spread else x

    return replace(note, bias=alike(note.bias), shift=alike(note.shift))


def _number(x: Any) -> float | None:
    """A number, or a tensor without axes, as a number."""
    if isinstance(x, Tensor):
        return float(x) if x.numel() == 1 and x.ndim <= 1 else None
    return float(x) if isinstance(x, (int, float)) else None


def _scaled(note: Scores, step: _Step) -> Scores:
    other, divides = step.other(), "div" in step.name
    if divides and not hasattr(step.args[0], _NOTE):
        return note.mixed
    factor = _number(other)
    if factor is not None:
        factor = 1 / factor if divides and factor else factor
        if note.in_cap:
            return replace(note, softcap=factor, scale=note.scale * factor, in_cap=False)
        return replace(note, scale=note.scale * factor) if note.is_bare else note.mixed
    query, fits = note.query, isinstance(other, Tensor) and other.shape[-1] == 1
    if fits and note.is_bare and query is not None and query.ndim >= other.ndim:  # one a head or row
        return replace(note, query=query / other if divides else query * other)
    return note.mixed


def _added(note: Scores, step: _Step) -> Scores:
    other, subtracts = step.other(), "sub" in step.name
    if note.in_cap or "alpha" in step.kwargs or (subtracts and not hasattr(step.args[0], _NOTE)):
        return note.mixed
    number = _number(other)
    term = number if number is not None else other.detach()
    if subtracts:
        term = -term
    if number is not None or other.shape[-1] == 1:
        return replace(note, shift=term if note.shift is None else note.shift + term)
    return replace(note, bias=term if note.bias is None else note.bias + term)


def _filled(note: Scores, step: _Step) -> Scores:
    """Scores that a mask replaces by a number so low that their keys have no weight, and are hidden."""
    args, kwargs = step.args, step.kwargs
    if step.name == "where":
        kept = len(args) == 3 and hasattr(args[1], _NOTE)
        mask, value = (args[0].logical_not(), args[2]) if kept else (args[0], args[1])
    else:
        mask, value = (*args[1:], *(kwargs[each] for each in ("mask", "value") if each in kwargs))
    number = _number(value)
    if number is None or number > _FAR or note.in_cap:
        return note.mixed
    before = torch.zeros((), device=mask.device) if note.bias is None else note.bias
    return replace(note, bias=torch.where(mask, -torch.inf, before))


def _joined(note: Scores, step: _Step) -> Scores:
    """Scores with columns behind them, which no key belongs to."""
    args, kwargs = step.args, step.kwargs
    parts = args[0] if args else kwargs["tensors"]
    dim = kwargs.get("dim", args[1] if len(args) > 1 else 0)
    behind = parts[1:]
    is_sink = all(x.shape[-1] == 1 for x in behind) and dim in (-1, parts[0].ndim - 1)
    if not (hasattr(parts[0], _NOTE) and is_sink):
        return note.mixed
    columns = [x.detach() for x in behind]
    return replace(note, sink=torch.cat(columns if note.sink is None else [note.sink, *columns], -1))


def _capped(note: Scores, step: _Step) -> Scores:
    return replace(note, in_cap=True) if note.is_bare else note.mixed


_STEPS: dict[str, Callable[[Scores, _Step], Scores]] = {
    **dict.fromkeys(_SHAPES | _SAME, _reshaped),
    **dict.fromkeys(_FACTORS, _scaled),
    **dict.fromkeys(_SUMS, _added),
    **dict.fromkeys(_FILLS, _filled),
    **dict.fromkeys(_JOINS, _joined),
    "tanh": _capped,
}
