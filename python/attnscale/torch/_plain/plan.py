# SPDX-License-Identifier: BSD-3-Clause
"""The plan of a call's rows as tensors on any device."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from ... import laws
from ..._call.call import Call
from ..._call.distance import law_factor
from ..._call.plan import Plan
from ..._call.weights import normalizer_of
from ...laws._registry import open_law
from .._base.arguments import N_TENSORS, SCHEMA, Arguments
from .._base.autograd import Differentiable
from .._base.private import constant_when_compiled, is_traced
from .._base.tensors import ShapeAndType, array, unread_mask, unread_rows, wide_type
from .scores import Scores, Visible, blocks_of_rows, key_count, visible_of, wide_rows
from .sums import softmax, softmax_entropy


class RowPlan(NamedTuple):
    """Tensors of the rows of a call, broadcastable to (..., heads, n_queries); None: the call has none.

    Tensors by distance have n_queries + n_keys - 1 entries on the last axis: the entry of query i and key j
    is at n_queries - 1 - i + j.
    """

    begin: Tensor | None = None  # first key that the query may see, apart from the mask
    end: Tensor | None = None  # key past the last that the query may see
    scale: Tensor | None = None  # None: the scale is a tensor of the call
    slopes: Tensor | None = None  # derivatives of scale: (learned parameters, ..., heads, n_queries)
    distances: Tensor | None = None  # position of the query minus that of the key, by distance
    factor: Tensor | None = None  # factor of the product, by distance, from a law
    offset: Tensor | None = None  # offset of the score, by distance, from a law


def plan_rows(call: Arguments) -> RowPlan:
    """The plan of a call, without a gradient."""
    traced = is_traced()
    if not traced and _has_no_small_tensors(call):
        law = laws.get(call.law) if call.law else None
        if law is None or not _reads_tensors(law, call):
            try:
                return _read_shapes(tuple(call)[N_TENSORS:], call.query.device, law, _shapes_of(call))
            except TypeError:  # an option without a hash, such as a list, which the reader refuses
                pass
    if not (traced or call.query.is_meta):
        return _read(call, _shapes_of(call), call.query.device)
    # Tensors without numbers are read by an operator, which returns a tensor for every field.
    call = call.mapped(torch.Tensor.detach)
    found = zip(_plan(*call), _extents(call), strict=True)
    return RowPlan(*(None if extents is None else x for x, extents in found))


# ---- the reader ---------------------------------------------------------------------------------

#: Query, key, value and mask, whose numbers a plan does not need.
_Shapes = tuple[ShapeAndType, ShapeAndType, ShapeAndType | None, ShapeAndType | None]


def _has_no_small_tensors(call: Arguments) -> bool:
    """Whether all tensors besides query, key, value and mask are None."""
    _, _, _, scale, _, *others = call.tensors()
    return scale is None and others.count(None) == len(others)


def _reads_tensors(law: laws.Law, call: Arguments) -> bool:
    """Whether the n of a law follows from more than shapes and options."""
    meaning = law.meaning
    return meaning.measures_the_row or (call.attn_mask is not None and meaning.reads_the_mask)


def _shapes_of(call: Arguments) -> _Shapes:
    large = call.query, call.key, call.value, call.attn_mask
    found = [None if x is None else (tuple(x.shape), x.dtype) for x in large]
    return cast(_Shapes, tuple(found))


class _TensorRows(NamedTuple):
    """Rows of a planned call, counted and measured from its tensors where a law asks for that."""

    plan: Plan
    call: Arguments

    @property
    def row_shape(self) -> tuple[int, ...]:
        return self.plan.row_shape

    def positions(self) -> Any:
        return self.plan.positions()

    def row_sizes(self) -> Any:
        return self.plan.row_sizes()

    def visible_keys(self) -> Any:
        if self.plan.mask is None:
            return self.plan.intervals.visible_keys()
        visible = self._visible(self.call)
        found = np.zeros(self.row_shape, np.int64)
        for start, stop in blocks_of_rows(self.row_shape, visible.n_keys):
            seen = visible.of_rows(start, stop)
            assert seen is not None  # there is a mask
            found[..., start:stop] = seen.sum(-1).cpu().numpy()
        return found

    def row_entropies(self) -> Any:

        def entropies(scores: Tensor) -> Any:
            weights = softmax(scores.masked_fill((scores == -math.inf).all(-1, keepdim=True), 0.0))
            return softmax_entropy(scores, weights).cpu().numpy()

        return self._measured(entropies, Call.row_entropies)

    def row_gaps(self) -> Any:
        return self._measured(lambda x: laws.CriticalScale.measure(x.cpu().numpy()), Call.row_gaps)

    def row_spreads(self) -> Any:
        return self._measured(lambda x: laws.NormSoftmax.measure(x.cpu().numpy()), Call.row_spreads)

    def _measured(self, measure: Callable[[Tensor], Any], on_arrays: Callable[[Call], Any]) -> Any:
        """One number per row from standard scores; on the CPU by `on_arrays`, which is ten times faster."""
        call = self.call.mapped(torch.Tensor.detach)
        query, key, _ = wide_rows(call)
        if query.is_cpu:
            options = {**call.options(), "scale": None, "qk_norm": None, "layout": "bhsd"}
            return on_arrays(Call(array(query), array(key), None, options).read())
        scores = Scores(
            query * self.plan.head_dim**-0.5,
            key,
            self._visible(call),
            self.row_shape,
            softcap=call.softcap,
        )
        found = np.zeros(self.row_shape)
        for start, stop in scores.blocks():
            found[..., start:stop] = measure(scores.of_rows(start, stop)[0])
        return found

    def _visible(self, call: Arguments) -> Visible:
        return visible_of(call, self.row_shape, *_interval(self.plan, call.query.device))


@lru_cache(maxsize=128)
def _read_shapes(
    options: tuple[Any, ...], device: torch.device, law: laws.Law | None, shapes: _Shapes
) -> RowPlan:
    """The plan of a call whose tensors are known by shape and type only; `law` is part of the key."""
    with torch.inference_mode(False):  # autograd would refuse inference tensors
        return _read(Arguments._make((*[None] * N_TENSORS, *options)), shapes, device)


def _read(call: Arguments, shapes: _Shapes, device: torch.device) -> RowPlan:
    small = call._replace(query=cast(Tensor, None), key=cast(Tensor, None), value=None, attn_mask=None)
    options = small.mapped(torch.Tensor.cpu).options()
    query, key, value, mask = shapes
    if mask is not None:
        options["attn_mask"] = unread_mask(mask)
    plan = Plan.of(*unread_rows(query, key, value), options)
    plan.form_scores()
    rows = _TensorRows(plan, call)
    plan.scale_rows(rows)
    rule = normalizer_of(options)
    if rule is not None and (call.bias is not None or rule.name == "sink"):
        rule._rule(rows)  # raises if it does not fit the heads
    return _as_tensors(plan, call, device)


def _as_tensors(plan: Plan, call: Arguments, device: torch.device) -> RowPlan:
    found = {} if call.scale is not None and not call.law else {"scale": plan.scale}
    law = plan.law
    if law is not None and plan.counts is not None and call.learned:
        slopes = law.derivatives(plan.counts, plan.head_dim)
        found["slopes"] = np.stack([np.broadcast_to(slopes[name], plan.row_shape) for name in call.learned])
    distances = None
    of_law = law is not None and law.meaning.is_distance
    if of_law or not call.distance_scale is call.distance_bias is None:
        signed = plan.intervals.distances()
        distances = torch.as_tensor(signed, device=device)
    if law is not None and of_law:
        found["factor"] = law_factor(law, signed, plan.head_dim)
        if hasattr(law, "bias"):
            found["offset"] = law.bias(np.abs(signed))
    wide = torch.float64 if plan.extents.wide == np.float64 else torch.float32
    tensors = {name: torch.as_tensor(np.asarray(x)).to(wide).to(device) for name, x in found.items()}
    return RowPlan(*_interval(plan, device), distances=distances, **tensors)


def _interval(plan: Plan, device: torch.device) -> tuple[Tensor | None, Tensor | None]:
    begin, end = plan.intervals.begin, plan.intervals.end
    if begin is None and end is None:
        return None, None
    given = (0 if begin is None else begin, plan.extents.n_keys if end is None else end)
    first, past = (torch.as_tensor(np.atleast_1d(x), device=device) for x in given)
    return first, past


# ---- the operator -------------------------------------------------------------------------------


def _extents(call: Arguments) -> tuple[tuple[Any, ...] | None, ...]:
    """Shapes of the tensors of an expanded plan; None for tensors that the plan does not have."""
    rows, _ = call.row_extents()
    of_law, has_bias = of_distance(call.law, *call.learned) if call.law else (False, False)
    tables = call.distance_scale is not None or call.distance_bias is not None
    by_distance = (*rows[:-1], rows[-1] + key_count(call) - 1)
    return (
        rows if call.hides() else None,
        rows if call.hides() else None,
        rows if call.scale is None or call.law else None,
        (len(call.learned), *rows) if call.learned else None,
        by_distance if of_law or tables else None,
        by_distance if of_law else None,
        by_distance if has_bias else None,
    )


@constant_when_compiled
def of_distance(law: str, *learned: str) -> tuple[bool, bool]:
    """Whether a law is of the distance, and whether it adds to scores; not traced by the compiler."""
    found = open_law(law, learned)
    return found.meaning.is_distance, found.meaning.is_distance and hasattr(found, "bias")


def _type(name: str, call: Arguments) -> torch.dtype:
    counts = name in ("begin", "end", "distances")
    return torch.int64 if counts else wide_type(x.dtype for x in call.tensors()[:3] if x is not None)


@torch.library.custom_op(
    "attnscale::row_plan",
    mutates_args=(),
    schema=f"({SCHEMA}) -> ({', '.join(['Tensor'] * len(RowPlan._fields))})",
)
def row_plan(*arguments: Any) -> tuple[Tensor, ...]:
    """The expanded plan of a call; empty tensors replace missing ones."""
    call = Arguments.of(arguments)
    plan = _read(call, _shapes_of(call), call.query.device)
    usual = {"begin": 0, "end": key_count(call)}  # a window open on both sides
    found = []
    for name, x, extents in zip(plan._fields, plan, _extents(call), strict=True):
        if extents is None:
            found.append(call.query.new_empty(0, dtype=_type(name, call)))
            continue
        x = torch.tensor(usual[name], device=call.query.device) if x is None else x
        found.append(x.expand(extents).clone(memory_format=torch.contiguous_format))
    return tuple(found)


@row_plan.register_fake
def _(*arguments: Any) -> tuple[Tensor, ...]:
    call = Arguments.of(arguments)
    return tuple(
        call.query.new_empty(0 if extents is None else extents, dtype=_type(name, call))
        for name, extents in zip(RowPlan._fields, _extents(call), strict=True)
    )


_plan = Differentiable(row_plan)
