# SPDX-License-Identifier: BSD-3-Clause
"""The plan of a call's rows, found by the reader of calls on arrays, as tensors on any device.

The reader gets stand-ins of query, key, value and mask: arrays of their shape and type that hold one number.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ... import laws
from ..._base.checks import choose
from ..._call.call import Call
from ..._call.distance import law_factor
from ..._call.weights import normalizer_of
from ...laws._registry import open_law
from .._base.arguments import SCHEMA, Arguments
from .._base.autograd import Differentiable
from .._base.private import is_traced
from .._base.tensors import array, stand_in, wide_type
from .scores import Scores, key_count, visible_of, wide_rows
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
    call = call.mapped(torch.Tensor.detach)
    traced = is_traced()
    small = _with_large(call, None, None, None, None)
    if not traced and all(x is None for x in small.tensors):
        law = laws.get(call.law) if call.law else None
        if law is None or (call.attn_mask is None and not law.meaning.measures_the_row):
            large = (*call[:3], call.attn_mask)
            described = (None if x is None else (tuple(x.shape), x.dtype) for x in large)
            try:
                return _read_shapes(small, call.query.device, law, *described)
            except TypeError:  # an option without a hash, such as a list, which the reader refuses
                return _read(call, call.query.device)
    if not (traced or call.query.is_meta):
        return _read(call, call.query.device)
    # Tensors without numbers are read by an operator, which returns a tensor for every field.
    found = zip(_plan(*call), _extents(call), strict=True)
    return RowPlan(*(None if extents is None else x for x, extents in found))


# ---- the reader ---------------------------------------------------------------------------------


class _TensorCall(Call):
    """The call on stand-ins; the tensors themselves are read if a law counts keys or measures rows."""

    __slots__ = ("tensors",)

    tensors: Arguments

    def visible_keys(self) -> Any:
        if self.mask is None:
            return super().visible_keys()
        return self._measured(lambda scores, seen: seen.sum(-1).cpu().numpy(), dtype=np.int64)

    def row_entropies(self) -> Any:

        def entropies(scores: Tensor, seen: Tensor) -> Any:
            scores = scores.masked_fill(~seen, -math.inf)
            weights = softmax(scores.masked_fill(~seen.any(-1, keepdim=True), 0.0))
            return softmax_entropy(scores, weights).cpu().numpy()

        return self._measured(entropies, Call.row_entropies)

    def row_gaps(self) -> Any:
        """Critical inverse temperature of each row's gaps."""
        return self._measured(lambda x, seen: laws.CriticalScale.measure(x.cpu().numpy()), Call.row_gaps)

    def row_spreads(self) -> Any:
        """Standard deviation of the scores that each row sees."""
        return self._measured(lambda x, seen: laws.NormSoftmax.measure(x.cpu().numpy()), Call.row_spreads)

    def _measured(
        self,
        measure: Callable[[Tensor, Tensor], Any],
        on_arrays: Callable[[Call], Any] | None = None,
        dtype: Any = np.float64,
    ) -> Any:
        """One number per row from standard scores; on the CPU by `on_arrays`, which is ten times faster."""
        query, key, _ = wide_rows(self.tensors)
        if on_arrays is not None and query.is_cpu:
            options = {**self.tensors.options(), "scale": None, "qk_norm": None, "layout": "bhsd"}
            return on_arrays(Call(array(query), array(key), None, options).read())
        begin, end = _interval(self, query.device)
        scores = Scores(
            query * self.head_dim**-0.5,
            key,
            visible_of(self.tensors, self.row_shape, begin, end),
            self.row_shape,
            softcap=self.tensors.softcap,
        )
        found = np.zeros(self.row_shape, dtype)
        for start, stop in scores.blocks():
            block, seen = scores.of_rows(start, stop)
            seen = torch.ones_like(block, dtype=torch.bool) if seen is None else seen.expand(block.shape)
            found[..., start:stop] = measure(block, seen)
        return found


def _with_large(call: Arguments, *tensors: Any) -> Arguments:
    """The call with `tensors` for query, key, value and mask, whose numbers the reader does not need."""
    return call._replace(**dict(zip(("query", "key", "value", "attn_mask"), tensors, strict=True)))


@lru_cache(maxsize=128)
def _read_shapes(
    call: Arguments,
    device: torch.device,
    law: laws.Law | None,
    *given: tuple[tuple[int, ...], torch.dtype] | None,
) -> RowPlan:
    """The plan of a call with tensors given by shape and type only."""
    with torch.inference_mode(False):  # autograd would refuse inference tensors
        made = (None if x is None else torch.empty((), dtype=x[1], device="cpu").expand(x[0]) for x in given)
        return _read(_with_large(call, *made), device)


def _read(call: Arguments, device: torch.device) -> RowPlan:
    large = (*call[:3], call.attn_mask)
    small = _with_large(call, None, None, None, None).mapped(torch.Tensor.cpu)
    read = _with_large(small, *(None if x is None else stand_in(x.shape, x.dtype) for x in large))
    if call.qk_norm:
        choose("qk_norm", call.qk_norm, ("l2", "rms"))
    rows = _TensorCall(*read.arrays(), {**read.options(), "qk_norm": None})  # stand-ins have no length
    rows.tensors = call
    rows.read()
    rule = normalizer_of(rows.options)
    if rule is not None and (call.bias is not None or rule.name == "sink"):
        rule._rule(rows)  # raises if it does not fit the heads
    begin, end = _interval(rows, device)
    plan = {} if call.scale is not None and not call.law else {"scale": rows.scale}
    law = rows.law
    if law is not None and rows.counts is not None and call.learned:
        found = law.derivatives(rows.counts, rows.head_dim)
        plan["slopes"] = np.stack([np.broadcast_to(found[name], rows.row_shape) for name in call.learned])
    wide = wide_type(x.dtype for x in call[:3] if x is not None)
    distances = None
    of_law = law is not None and law.meaning.is_distance
    if of_law or not call.distance_scale is call.distance_bias is None:
        signed = rows.intervals.distances()
        distances = torch.as_tensor(signed, device=device)
    if law is not None and of_law:
        plan["factor"] = law_factor(law, signed, rows.head_dim)
        if hasattr(law, "bias"):
            plan["offset"] = law.bias(np.abs(signed))
    tensors = {name: torch.as_tensor(np.asarray(x)).to(wide).to(device) for name, x in plan.items()}
    return RowPlan(begin, end, distances=distances, **tensors)


def _interval(rows: Call, device: torch.device) -> tuple[Tensor | None, Tensor | None]:
    begin, end = rows.intervals.begin, rows.intervals.end
    if begin is None and end is None:
        return None, None
    given = (0 if begin is None else begin, rows.inputs.key.shape[-2] if end is None else end)
    first, past = (torch.as_tensor(np.atleast_1d(x), device=device) for x in given)
    return first, past


# ---- the operator -------------------------------------------------------------------------------


def _extents(call: Arguments) -> tuple[tuple[Any, ...] | None, ...]:
    """Shapes of the tensors of an expanded plan; None for tensors that the plan does not have."""
    rows, _ = call.row_extents
    of_law, has_bias = of_distance(call.law, *call.learned) if call.law else (False, False)
    tables = call.distance_scale is not None or call.distance_bias is not None
    by_distance = (*rows[:-1], rows[-1] + key_count(call) - 1)
    return (
        rows if call.hides else None,
        rows if call.hides else None,
        rows if call.scale is None or call.law else None,
        (len(call.learned), *rows) if call.learned else None,
        by_distance if of_law or tables else None,
        by_distance if of_law else None,
        by_distance if has_bias else None,
    )


@torch.compiler.assume_constant_result
def of_distance(law: str, *learned: str) -> tuple[bool, bool]:
    """Whether a law is of the distance, and whether it adds to scores; not traced by the compiler."""
    found = open_law(law, learned)
    return found.meaning.is_distance, found.meaning.is_distance and hasattr(found, "bias")


def _type(name: str, call: Arguments) -> torch.dtype:
    counts = name in ("begin", "end", "distances")
    return torch.int64 if counts else wide_type(x.dtype for x in call[:3] if x is not None)


@torch.library.custom_op(
    "attnscale::row_plan",
    mutates_args=(),
    schema=f"({SCHEMA}) -> ({', '.join(['Tensor'] * len(RowPlan._fields))})",
)
def row_plan(*arguments: Any) -> tuple[Tensor, ...]:
    """The expanded plan of a call; empty tensors replace missing ones."""
    call = Arguments.of(arguments)
    plan = _read(call, call.query.device)
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
