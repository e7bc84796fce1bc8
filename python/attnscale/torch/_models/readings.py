# SPDX-License-Identifier: BSD-3-Clause
"""How each way to call attention is read: as queries, keys and options, or as scores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..._call.rows import read_causal
from ...laws import Law, get
from .._learned import Sink
from .._private import flex_scores
from .._scores import Visible
from .._tensors import shows
from ..nn._inputs import hidden_by, visible_by_place
from .products import Scores

_SDPA = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
_FLEX = (
    *("query", "key", "value", "score_mod", "block_mask", "scale", "kernel_options", "score_buffers"),
    "mask_buffers",
)
#: How far scores that were made again may be from the model's own, in parts of the largest.
_NEAR = {torch.float64: 1e-9, torch.float32: 1e-4}


class Product(NamedTuple):
    """Queries, keys and options of :func:`attnscale.torch.attention_statistics` that give the rows of a call.

    They have four axes each and are detached from autograd.
    """

    query: Tensor
    key: Tensor
    options: Mapping[str, Any]

    def of_rows(self, text: int, places: Tensor) -> Product:
        """Some queries of one text of the batch; a mask says where they are among the keys."""
        options = {name: _of_text(text, option) for name, option in self.options.items()}
        query, key = self.query[text : text + 1], self.key[text : text + 1]
        if len(places) < query.shape[2]:
            begin, end, _, n_keys = visible_by_place(query, key, options)
            begin, end = (x[..., places] if x is not None and x.shape[-1] > 1 else x for x in (begin, end))
            mask = options.pop("attn_mask", None)
            if mask is not None and mask.shape[-2] > 1:
                mask = mask[..., places, :]
            seen = Visible(begin, end, None, n_keys).of_rows(0, len(places))
            options = {name: x for name, x in options.items() if name not in ("causal", "window")}
            options["attn_mask"] = hidden_by(mask, seen)
            if isinstance(sink := options.get("normalizer"), Sink) and sink.logits.ndim == 3:
                options["normalizer"] = Sink(sink.logits[..., places])
        return Product(query[:, :, places], key, options)


class Reading(NamedTuple):
    """The part of a :class:`Call` that the function's arguments say."""

    way: str
    measured: Product
    product: Product | None


def _of_text(text: int, option: Any) -> Any:
    """The option for one text of the batch alone."""
    if isinstance(option, Sink):
        return Sink(_of_text(text, option.logits[:, None])[:, 0]) if option.logits.ndim == 3 else option
    if not (isinstance(option, Tensor) and option.ndim == 4):
        return option
    return option[text : text + 1] if len(option) > 1 else option


def key_heads(key: Tensor) -> int:
    """How many heads of keys differ: models repeat what grouped queries share before they attend."""
    heads, n_keys = key.shape[1:3]
    some = key[0, :, [0, n_keys // 2, -1]] if n_keys else key[0]
    alike = (some[1:] == some[:-1]).flatten(1).all(1) & some[1:].flatten(1).any(1)
    groups = [size for size in range(heads, 1, -1) if heads % size == 0]
    for size in groups:
        if bool(alike[[i for i in range(heads - 1) if (i + 1) % size]].all()):
            return heads // size
    return heads


def of_sdpa(heads: int | None, *args: Any, **kwargs: Any) -> Reading:
    """A call of PyTorch's ``scaled_dot_product_attention``."""
    given = dict(zip(_SDPA, args, strict=False)) | kwargs
    query, key, mask = given["query"].detach(), given["key"].detach(), given.get("attn_mask")
    form = _Form(query.shape[:-1], heads)
    if mask is not None:
        mask = mask.detach()
        if query.ndim != 4:
            mask = form.of(mask.expand(*query.shape[:-1], key.shape[-2]))
    scale = given.get("scale")
    options = {
        "scale": query.shape[-1] ** -0.5 if scale is None else float(scale),
        "is_causal": bool(given.get("is_causal", False)),
        "attn_mask": mask,
        "enable_gqa": bool(given.get("enable_gqa", False)),
    }
    known = with_causal(_recorded(options))
    product = Product(form.of(query), form.of(key), known)
    return Reading("scaled_dot_product_attention", product, product)


def unpacked(found: Reading) -> Reading:
    """The call of one query for each head, where query heads that share keys stand as the rows of one head.

    transformers writes a step of generation so where a mask is given.
    """
    query, key, options = found.measured
    mask = options.get("attn_mask")
    if mask is None or query.shape[1] != key.shape[1] or key.shape[1] == 1:
        return found
    if mask.shape[-2] > 1:
        mask = mask.reshape(len(mask), -1, 1, mask.shape[-1])
    options = {**options, "attn_mask": mask, "enable_gqa": True}
    product = Product(query.flatten(1, 2)[:, :, None], key, options)
    return Reading(found.way, product, product)


def of_own(heads: int | None, query: Tensor, key: Tensor, options: Mapping[str, Any]) -> Reading:
    """A call of this package's attention."""
    known = _recorded(options)
    known.pop("num_threads", None)
    if known.pop("layout", "bhsd") == "bshd":
        query, key = query.transpose(-2, -3), key.transpose(-2, -3)
    query, key = query.detach(), key.detach()
    form = _Form(query.shape[:-1], heads)
    scale = known.get("scale", "standard")
    if isinstance(scale, (str, Law)) and not (law := get(scale)).meaning.is_used:
        scale = float(law.scale(1, query.shape[-1]))
    known["scale"] = scale
    product = Product(form.of(query), form.of(key), known)
    return Reading("attnscale", product, product)


def of_flex(heads: int | None, *args: Any, **kwargs: Any) -> Reading:
    """A call of PyTorch's ``flex_attention``, whose functions of scores and masks are carried out."""
    given = dict(zip(_FLEX, args, strict=False)) | kwargs
    query, key, value = (given[name].detach() for name in _FLEX[:3])
    groups = query.shape[1] // key.shape[1]
    wide = (x.repeat_interleave(groups, 1) for x in (key, value))
    scores = flex_scores(query, *wide, *(given.get(name, ()) for name in _FLEX[3:]))
    hidden = torch.zeros_like(scores).masked_fill(scores == -torch.inf, -torch.inf)
    note = Scores(
        scores.shape[-1], query, key.repeat_interleave(groups, 1), float(given["scale"]), bias=hidden
    )
    product = _of_product(note, _Form(scores.shape[:-1], None), scores.shape, scores)
    return Reading("flex_attention", of_scores(scores, 0), product)


def of_weights(heads: int | None, note: Scores, scores: Tensor) -> Reading:
    """Weights that the model computed by a softmax over its own scores."""
    if note.shift is not None:
        scores = scores - note.shift
    form = _Form(scores.shape[:-1], heads)
    whole = form.of(scores)
    product = _of_product(note, form, scores.shape, whole)
    return Reading("softmax", of_scores(whole, note.sinks), product)


def of_scores(scores: Tensor, sinks: int) -> Product:
    """Scores (batch, heads, n_queries, n_keys + sinks) as a mask on products of 0."""
    *rows, columns = scores.shape
    keys, logits = scores.split([columns - sinks, sinks], -1)
    # Numbers of float32 are as low as those of bfloat16, which arrays need a package for.
    mask = keys.float() if keys.dtype == torch.bfloat16 else keys
    options: dict[str, Any] = {"attn_mask": mask, "scale": 1.0}
    if sinks:
        options["normalizer"] = Sink(_as_one(logits))
    dtype = torch.float64 if scores.dtype == torch.float64 else torch.float32
    query = scores.new_zeros(*rows, 1, dtype=dtype)
    return Product(query, query.new_zeros(*rows[:2], columns - sinks, 1), options)


def _as_one(sinks: Tensor) -> Tensor:
    """The logit of one sink in the place of several, finite where they are -inf."""
    return sinks.double().logsumexp(-1).clamp(min=torch.finfo(torch.float32).min)


def _of_product(note: Scores, form: _Form, shape: torch.Size, scores: Tensor) -> Product | None:
    """Queries, keys and options that give the scores; None where the scores are more than that."""
    if note.query is None or note.key is None or note.in_cap:
        return None
    n_keys = shape[-1] - note.sinks
    try:
        query = form.of(_spread(note.query, (*shape[:-1], note.query.shape[-1])))
        key = form.of(_spread(note.key, (*shape[:-2], n_keys, note.key.shape[-1])))
        bias = note.bias
        if bias is not None:
            bias = bias.expand(*shape[:-1], n_keys) if len(shape) == 4 and bias.ndim < 2 else bias
            bias = bias if len(shape) == 4 else form.of(bias.expand(*shape[:-1], n_keys))
    except RuntimeError:  # what was expanded has other axes
        return None
    options = {"scale": note.scale, "softcap": note.softcap, "attn_mask": bias}
    if not _is_near(query, key, note, bias, scores[..., :n_keys]):
        return None
    if note.sink is not None:
        logits = _as_one(form.of(note.sink.expand(*shape[:-1], note.sinks)))
        of_heads = logits[0, :, 0]
        options["normalizer"] = Sink(of_heads if bool((logits == of_heads[:, None]).all()) else logits)
    return Product(query, key, with_causal(_recorded(options)))


def _recorded(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that a call was given, detached, without those that are None and with one for causal."""
    causal = {"causal": read_causal(options.get("is_causal", False), options.get("causal"))}
    known = {name: x for name, x in {**options, **causal}.items() if x is not None and name != "is_causal"}
    return {name: x.detach() if isinstance(x, Tensor) else x for name, x in known.items()}


def with_causal(options: dict[str, Any]) -> dict[str, Any]:
    """The record with ``causal`` where the mask says so, without a mask that says nothing else."""
    mask = options.get("attn_mask")
    if mask is None or mask.ndim < 2 or mask.shape[-1] != mask.shape[-2] or mask.shape[-1] < 2:
        return options
    seen = shows(mask)
    if bool(seen.triu(1).any()):
        return options
    lower = torch.ones_like(seen).tril()
    added = mask.dtype != torch.bool and bool(mask.where(seen, 0).any())
    if not added and bool((seen == lower).all()):
        options = {name: x for name, x in options.items() if name != "attn_mask"}
    return {**options, "causal": "top_left"}


def _spread(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    return x.expand(shape) if x.ndim == len(shape) else x.reshape(shape)


def _is_near(query: Tensor, key: Tensor, note: Scores, bias: Tensor | None, scores: Tensor) -> bool:
    """Whether the first and the last row of scores are what the factors and the steps behind them give."""
    for place in ((0, 0, 0), (-1, -1, -1)):
        made = note.scale * (key[place[:2]].double() @ query[place].double())
        if note.softcap is not None:
            made = note.softcap * (made / note.softcap).tanh()
        if bias is not None:
            made = made + bias.expand(scores.shape)[place]
        seen = scores[place].double()
        there = (seen > -1e4) | (made > -1e4)
        if not there.any():
            continue
        size = float(seen[seen.isfinite()].abs().clamp(max=1e4).max()) + 1
        near = _NEAR.get(query.dtype, 0.05)
        if not bool(((made - seen)[there].abs() <= near * size).all()):
            return False
    return True


class _Form:
    """The axes (batch, heads) of a call whose rows are (..., n_queries); `heads` is what the module has."""

    def __init__(self, rows: torch.Size, heads: int | None) -> None:
        self._swapped = len(rows) == 3 and heads not in (None, rows[1]) and rows[2] == heads
        self._folded = len(rows) == 2 and heads is not None and rows[0] % heads == 0
        self._heads = heads

    def of(self, x: Tensor) -> Tensor:
        """The tensor (..., rows, columns) as (batch, heads, rows, columns)."""
        if x.ndim == 4:
            return x.transpose(1, 2) if self._swapped else x
        if x.ndim == 3:
            return x.unflatten(0, (-1, self._heads)) if self._folded else x[:, None]
        return x[None, None] if x.ndim == 2 else x.flatten(0, -4)
