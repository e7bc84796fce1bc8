# SPDX-License-Identifier: BSD-3-Clause
"""Attention of linear time in plain operations of PyTorch, on any device: ``backend="torch"``.

The sums over keys are carried from block to block. The queries of a block read the sums of the keys before
it, and the keys of the block pair by pair. Gradients come from autograd.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, Self, cast

import torch
from torch import Tensor

from ..._call.arrays import FLOAT64, Unread, read_extents
from ...variants._arrays import offset_of, read_layout
from ...variants._gradients import form_of
from ...variants._linear import decay_of
from ...variants._linear_form import LinearForm
from .._base.autograd import compute_again
from .._base.device import without_autocast
from .._base.private import constant_when_compiled
from .._base.tensors import ShapeAndType, common_type, repeat_heads, swap_heads, unread_rows, wide_type

#: Keys of a block, and of a block whose pairs are written out feature by feature.
_KEYS, _KEYS_OF_FEATURES = 128, 32


class _Plan(NamedTuple):
    """Form, alignment and rows of a call, from shapes and options."""

    form: LinearForm
    offset: int | None  # query i sees the keys 0 ... i + offset; None: all
    row_shape: tuple[int, ...]  # (..., heads, n_queries)


def attend_by_sums(
    name: str, rows: tuple[Tensor, ...], own: dict[str, Any], masks: dict[str, Any], layout: str, gqa: bool
) -> Tensor:
    """The output of a family with the options `own`; `masks` holds is_causal and causal."""
    described = {option: tuple(x.shape) if isinstance(x, Tensor) else x for option, x in own.items()}
    shapes = [(tuple(x.shape), x.dtype) for x in rows]
    form, offset, row_shape = _plan(name, shapes, described, masks, layout, gqa)
    wide = wide_type(x.dtype for x in rows)
    with without_autocast(rows[0].device):
        query, key, value = repeat_heads([swap_heads(x, layout).to(wide) for x in rows], enabled=gqa)
        read = _features(form, query, key, offset, own.get("projection"))
        decay = own.get("log_decay")
        if decay is not None:
            decay = decay.to(wide).expand(row_shape)
        found = _attend(form, read, value, decay, offset).expand(*row_shape, -1)
    return swap_heads(found.to(common_type(x.dtype for x in rows)), layout).contiguous()


@constant_when_compiled
def _plan(
    name: str,
    shapes: list[ShapeAndType],
    own: dict[str, Any],
    masks: dict[str, Any],
    layout: str,
    gqa: bool,
) -> _Plan:
    """The plan of tensors known by shape and type; not traced by the compiler.

    In `own` a shape replaces each option that is a tensor.
    """
    extents = read_extents(*unread_rows(*shapes), read_layout(layout), enable_gqa=gqa)
    own = {
        option: Unread(x, FLOAT64) if option in ("log_decay", "projection") else x
        for option, x in own.items()
    }
    offset = 0 if name == "ssd" else offset_of(extents, **masks)
    form = form_of(name, extents, own, offset)
    if name == "ssd":
        decay_of(extents, own)
    return _Plan(form, offset, extents.row_shape)


# ---- features -----------------------------------------------------------------------------------


class _Features(NamedTuple):
    """Features of the rows of queries and keys, or their logarithms."""

    query: Tensor
    key: Tensor
    are_logarithms: bool


def _features(
    form: LinearForm, query: Tensor, key: Tensor, offset: int | None, projection: Tensor | None
) -> _Features:
    match form.map:
        case "given":
            return _Features(query, key, False)
        case "relu":
            return _Features(query.relu(), key.relu(), False)
        case "turned":
            turned = [
                _turned(x.relu(), first, form.max_length) for x, first in ((query, offset or 0), (key, 0))
            ]
            return _Features(turned[0], turned[1], False)
        case "elu":  # elu(x) + 1 is 1 + x above 0, and exp(x) below
            logs = [torch.where(x > 0, x.relu().log1p(), x) for x in (query, key)]
        case "projected":
            directions = cast(Tensor, projection).to(query.dtype).mT * (2 * form.norm_factor) ** 0.5
            logs = [
                x @ directions - form.norm_factor * x.square().sum(-1, keepdim=True) for x in (query, key)
            ]
        case _:  # "exponential"
            return _over_channels(form.scale * query, form.scale * key, offset)
    return _Features(logs[0], logs[1], True)


def _turned(features: Tensor, first: int, max_length: int) -> Tensor:
    """Features times the cosine and the sine of their position's angle, concatenated."""
    angle = torch.arange(first, first + features.shape[-2], dtype=torch.float64, device="cpu")
    angle = angle[:, None] * (torch.pi / (2 * max_length))
    turns = (turn.to(features.device, features.dtype) for turn in (angle.cos(), angle.sin()))
    return torch.cat([features * turn for turn in turns], -1)


def _over_channels(query: Tensor, key: Tensor, offset: int | None) -> _Features:
    """Logarithms of each channel's share, less that of the channel's sum over the visible keys."""
    shares = query.log_softmax(-1)
    if offset is None or not key.shape[-2]:
        return _Features(shares - key.logsumexp(-2, keepdim=True), key, True)
    last = torch.arange(query.shape[-2], device=key.device) + offset
    sums = key.logcumsumexp(-2)[..., last.clamp(0, key.shape[-2] - 1), :]
    return _Features(shares - sums, key, True)


# ---- sums ---------------------------------------------------------------------------------------


class _Sums(NamedTuple):
    """sum phi(k) v^T over keys, (..., features, value_dim)."""

    sums: Tensor

    @classmethod
    def empty(cls, key: Tensor, value: Tensor) -> Self:
        return cls(key[..., :0, :].mT @ value[..., :0, :])

    def read(self, query: Tensor, key: Tensor, value: Tensor, decay: Tensor | None, seen: Tensor) -> Tensor:
        """phi(q)^T times these sums, and times those of the visible keys of the block."""
        weights = (query @ key.mT).masked_fill(~seen, 0)
        before = query @ self.sums
        if decay is not None:
            past = decay.cumsum(-1)
            passed = past[..., :, None] - past[..., None, :]
            weights = weights * passed.masked_fill(~seen, -torch.inf).exp()
            before = past.exp()[..., None] * before
        return before + _weighted(weights, value, seen)

    def add(self, key: Tensor, value: Tensor, decay: Tensor | None) -> _Sums:
        if decay is None:
            return _Sums(self.sums + key.mT @ value)
        past = decay.cumsum(-1)
        whole = past[..., -1:]
        key = key * (whole - past).exp()[..., None]
        return _Sums(whole.exp()[..., None] * self.sums + key.mT @ value)


class _LogSums(NamedTuple):
    """Sums over features in log space, each feature over the largest it had; exponents never exceed 0."""

    sums: Tensor
    reference: Tensor  # the largest logarithm of each feature, (..., 1, features)

    @classmethod
    def empty(cls, key: Tensor, value: Tensor) -> Self:
        none = key.detach()[..., :0, :]
        return cls(none.mT @ value[..., :0, :], none.sum(-2, keepdim=True) - torch.inf)

    def read(self, query: Tensor, key: Tensor, value: Tensor, decay: None, seen: Tensor) -> Tensor:
        """Like `_Sums.read`, up to a positive factor per row."""
        before = query + self.reference
        top = before.amax(-1)
        pairs = query[..., :, None, :] + key[..., None, :, :]
        pairs = pairs.masked_fill(~seen[..., None], -torch.inf)
        if key.shape[-2]:
            top = torch.maximum(top, pairs.amax((-2, -1)))
        top = top.detach().masked_fill(top == -torch.inf, 0)[..., None]
        weights = (pairs - top[..., None]).exp().sum(-1)
        return (before - top).exp() @ self.sums + _weighted(weights, value, seen)

    def add(self, key: Tensor, value: Tensor, decay: None) -> _LogSums:
        largest = torch.maximum(self.reference, key.detach().amax(-2, keepdim=True))
        top = largest.masked_fill(largest == -torch.inf, 0)
        sums = (self.reference - top).exp().mT * self.sums + (key - top).exp().mT @ value
        return _LogSums(sums, largest)


def _weighted(weights: Tensor, value: Tensor, seen: Tensor) -> Tensor:
    """The weighted sums of values; a value that is not finite makes NaN only of the rows that see it."""
    is_bad = ~value.isfinite()
    reached = seen.to(value.dtype) @ is_bad.to(value.dtype) > 0
    return (weights @ value.masked_fill(is_bad, 0)).masked_fill(reached, torch.nan)


# ---- blocks -------------------------------------------------------------------------------------


def _attend(
    form: LinearForm, rows: _Features, value: Tensor, decay: Tensor | None, offset: int | None
) -> Tensor:
    """The output of every query, with rows divided as the form says."""
    n_queries, n_keys = rows.query.shape[-2], rows.key.shape[-2]
    divided = form.norm in ("weights", "channels")  # the shares of channels add up to 1
    if divided:
        value = torch.cat((value, torch.ones_like(value[..., :1])), -1)
    found = _numerators(rows, value, decay, offset)
    if divided:
        found, total = found[..., :-1], found[..., -1:]
        return found / total.masked_fill(total == 0, 1)
    if form.norm == "none":
        return found
    if offset is None:
        return found * (form.scale**2 / max(n_keys, 1))
    seen = (torch.arange(n_queries, device=found.device) + offset + 1).clamp(0, n_keys)
    return found * (form.scale**2 / seen.clamp(min=1).to(found.dtype))[:, None]


def _numerators(rows: _Features, value: Tensor, decay: Tensor | None, offset: int | None) -> Tensor:
    """The weighted sums of values, block by block; in log space each row has a factor of its own."""
    query, key, are_logarithms = rows
    size = _KEYS_OF_FEATURES if are_logarithms else _KEYS
    sums: Any = (_LogSums if are_logarithms else _Sums).empty(key, value)
    found = []
    for queries, keys in _blocks(query.shape[-2], key.shape[-2], offset, size):
        q, k, v = query[..., queries, :], key[..., keys, :], value[..., keys, :]
        a = None if decay is None else decay[..., keys]
        if q.shape[-2]:
            seen = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril()
            # Pairs of rows times features are computed again in the backward pass.
            found.append(compute_again(sums.read, q, k, v, a, seen, enabled=are_logarithms))
        if k.shape[-2]:
            sums = sums.add(k, v, a)
    return torch.cat(found, -2) if found else query @ sums.sums


def _blocks(n_queries: int, n_keys: int, offset: int | None, size: int) -> Iterator[tuple[slice, slice]]:
    """Queries and keys of each block; query i sees all earlier blocks, and its own up to i + offset."""
    first = n_keys if offset is None else min(max(offset, 0), n_keys)
    offset = first if offset is None else offset
    yield slice(0, max(min(-offset, n_queries), 0)), slice(0, 0)  # these queries see no key
    yield slice(0, 0), slice(0, first)
    last = min(n_keys, n_queries + offset)
    for start in range(first, last, size):
        stop = min(start + size, last)
        yield slice(start - offset, stop - offset), slice(start, stop)
    yield slice(min(max(last - offset, 0), n_queries), n_queries), slice(0, 0)
