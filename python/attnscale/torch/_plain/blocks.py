# SPDX-License-Identifier: BSD-3-Clause
"""Exact attention in plain operations of PyTorch, on any device, in blocks of queries: ``backend="torch"``.

Memory grows with the queries of a block times all keys. Gradients come from autograd; if there are several
blocks, each is computed again in the backward pass.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, cast

import torch
from torch import Tensor

from ... import laws, normalizers
from ..._base.checks import fit_to
from ..._base.statistics import statistic_names
from ..._call.weights import available
from ...normalizers import Normalizer
from .._base.arguments import Arguments
from .._base.device import check_no_threads, without_autocast
from .._base.private import constant_when_compiled, is_traced
from .._base.tensors import common_type, swap_heads
from .plan import RowPlan, plan_rows
from .rows import BlockCall, Learnt
from .scores import Scores, at_distances, visible_of, wide_rows


def attend_in_blocks(call: Arguments, asked: tuple[str, ...]) -> tuple[Tensor | None, dict[str, Tensor]]:
    check_no_threads(call.num_threads)
    rule = _rule(call, *asked)
    with without_autocast(call.query.device):
        output, rows = _read(call, rule, asked).all_rows()
    if output is not None:
        output = output.to(common_type([x.dtype for x in call.tensors()[:3] if x is not None]))
        output = swap_heads(output, call.layout)
    return output, rows


def scores_of(call: Arguments) -> Scores:
    """Scores of a call with the normalizer softmax, computed block by block on demand."""
    return _read(call, normalizers.Softmax(), ()).scores


def weights_of_rows(call: Arguments) -> Tensor:
    with without_autocast(call.query.device):
        block = blocks_of(call)
        return block.weights(0, block.scores.row_shape[-1])[1]


def blocks_of(call: Arguments) -> BlockCall:
    """A call whose weights are read by blocks of queries."""
    return _read(call, _rule(call), ())


def scales_of_rows(call: Arguments) -> Tensor:
    """The scale of each row, (..., heads, n_queries), in float64, of a law that is not of the distance."""
    row_shape = call.row_extents()[0]
    own = _without_amplitude(call)
    found = _scale(call, own, plan_rows(own), row_shape, torch.float64)
    return found.expand(*row_shape, 1)[..., 0]


def _rule(call: Arguments, *asked: str) -> Normalizer:
    """The normalizer, checked to have these statistics; its parameters may be tensors of the call."""
    instead = {"softmax": call.sink, "sigmoid": call.bias, "entmax": call.alpha}
    given = [name for name, x in instead.items() if x is not None]
    return _normalizer(given[0] if given else call.normalizer, *asked)


@constant_when_compiled
def _normalizer(text: str, *asked: str) -> Normalizer:
    """The normalizer of this name; not traced by the compiler."""
    return _known_normalizer(text, *asked)


@lru_cache(maxsize=128)
def _known_normalizer(text: str, *asked: str) -> Normalizer:
    found = normalizers.get(text)
    available(statistic_names(asked), found, leave_out=False)
    return found


def _read(call: Arguments, rule: Normalizer, asked: tuple[str, ...]) -> BlockCall:
    given, call = call, _without_amplitude(call)
    plan = plan_rows(call)
    query, key, value = wide_rows(call)
    row_shape, wide = call.row_extents()[0], query.dtype
    visible = visible_of(call, row_shape, plan.begin, plan.end)
    factor = offset = None
    if plan.distances is not None and row_shape[-1] and visible.n_keys:
        factor, offset = _tables(call, plan, plan.distances, wide)
    query = query * _scale(given, call, plan, row_shape, wide)
    whole = factor is None and offset is None and (visible.mask is None or visible.mask.dtype == torch.bool)
    finite = whole and _is_finite(query, key, value)
    scores = Scores(query, key, visible, row_shape, factor, offset, call.softcap, finite=finite)
    return BlockCall(
        scores=scores,
        value=value,
        rule=rule,
        learnt=_learnt(call, rule, row_shape),
        asked=asked,
        of_one_type={x.dtype for x in (call.query, call.key, call.value) if x is not None} == {wide},
        is_causal=_is_causal(call),
    )


def _is_causal(call: Arguments) -> bool:
    first = call.alignment == "top_left" or call.offset == 0
    return first and call.left is call.right is call.key_lengths is call.document_ids is None


def _has_amplitude(call: Arguments) -> bool:
    """Whether the factor of the law is all that is learned."""
    return list(call.learned) == ["amplitude"]


def _without_amplitude(call: Arguments) -> Arguments:
    """The call without its law's learned factor if nothing else is learned, so that it can be planned."""
    if not _has_amplitude(call):
        return call
    return call._replace(scale=None, law=_multiplied(call.law), learned=(), lengths=())


@constant_when_compiled
def _multiplied(law: str) -> str:
    """The law inside a multiple of a law; not traced by the compiler."""
    return cast(laws.Scaled, laws.get(law)).law.spelling


def _amplitude(call: Arguments, row_shape: tuple[int, ...]) -> Tensor:
    """The learned factor of a law without other learned parameters, broadcastable to the query."""
    scale: Any = call.scale
    if not call.lengths[0]:
        return cast(Tensor, scale[0])
    return cast(Tensor, fit_to("factor", scale[:, None], row_shape, "(..., heads, n_queries)")[..., None])


def _scale(
    given: Arguments, call: Arguments, plan: RowPlan, row_shape: tuple[int, ...], dtype: torch.dtype
) -> Tensor:
    """The scale of each row, broadcastable to the query; `call` is `given` without its learned factor."""
    scale = _planned_scale(call, plan, row_shape).to(dtype)
    return scale * _amplitude(given, row_shape).to(dtype) if _has_amplitude(given) else scale


def _planned_scale(call: Arguments, plan: RowPlan, row_shape: tuple[int, ...]) -> Tensor:
    given: Any = call.scale
    rows = plan.scale
    if rows is None:
        rows = cast(Tensor, fit_to("scale", given, row_shape, "(..., heads, n_queries)"))
    if plan.slopes is not None:
        # The value is the law's, and the gradient that of its first derivatives.
        steps, start = given - given.detach(), 0
        for slope, length in zip(plan.slopes, call.lengths, strict=True):
            step = steps[start : start + length, None] if length else steps[start]
            rows = rows + slope * step.to(slope.dtype)
            start += length or 1
    return rows if rows.ndim == 0 else rows[..., None]


def _tables(
    call: Arguments, plan: RowPlan, distances: Tensor, wide: torch.dtype
) -> tuple[Tensor | None, Tensor | None]:
    """Factors of products and offsets of scores, by distance."""
    # A table is empty only if no query sees a key, which was checked before.
    given = [x if x is not None and x.shape[-1] else None for x in (call.distance_scale, call.distance_bias)]
    factor, offset = (None if x is None else at_distances(x.to(wide), distances) for x in given)
    if plan.factor is not None:
        factor = plan.factor if factor is None else factor * plan.factor
    if plan.offset is not None:
        offset = plan.offset if offset is None else offset + plan.offset
    return factor, offset


def _learnt(call: Arguments, rule: Normalizer, row_shape: tuple[int, ...]) -> Learnt:
    """Parameters of the normalizer, broadcastable to (..., heads, n_queries, 1)."""
    sink = call.sink
    if isinstance(rule, normalizers.Sink):
        sink = torch.tensor(rule.logits, dtype=torch.float32, device=call.query.device)

    def of_heads(x: Tensor | None) -> Tensor | None:
        if x is None or x.ndim == 0:
            return x
        if x.ndim > 1:  # a number for each row
            return x[..., None]
        return x[:, None, None] if len(row_shape) > 1 else x

    return Learnt(of_heads(sink), of_heads(call.bias), call.alpha)


def _is_finite(query: Tensor, key: Tensor, value: Tensor | None) -> bool:
    """Whether all entries and all products of query and key are finite; False also if unknown."""
    if is_traced() or torch.jit.is_tracing() or query.is_meta or not (query.numel() and key.numel()):
        return False
    with torch.no_grad():
        bound = torch.linalg.vector_norm(query, dim=-1).amax() * torch.linalg.vector_norm(key, dim=-1).amax()
        if value is not None and value.numel():
            bound = bound + 0 * value.abs().amax()
        return bool(torch.isfinite(bound))
