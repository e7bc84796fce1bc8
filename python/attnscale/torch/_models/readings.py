# SPDX-License-Identifier: BSD-3-Clause
"""Reading of calls of attention, in each form, as queries, keys and options, or as scores."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from itertools import takewhile
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..._call.rows import read_causal
from ...laws import Law, get
from .._base.learned import Sink
from .._base.private import flex_scores
from .._base.tensors import array, shows
from .._plain.scores import Visible
from ..nn._inputs import hidden_by, visible_by_place
from .axes import UNKNOWN, Axes, Axis, fold, kin_of, marks, of_parameters, unfold
from .scores import FAR, Done, Groups, Note, Scores, Weights, carried_out, grouped

_SDPA = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
_FLEX = (
    *("query", "key", "value", "score_mod", "block_mask", "scale", "kernel_options", "score_buffers"),
    "mask_buffers",
)
#: Tolerance of recomputed scores against the model's own, relative to the largest.
_NEAR = {torch.float64: 1e-9, torch.float32: 1e-4}


#: Function that returns the note of a tensor.
Notes = Callable[[Tensor], Note]


class Product(NamedTuple):
    """Queries, keys and options of attention that give the rows of a call; four axes, detached."""

    query: Tensor
    key: Tensor
    options: Mapping[str, Any]

    def of_rows(self, text: int, places: Tensor) -> Product:
        """Some queries of one text of the batch; a mask gives their places among the keys."""
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
    """The part of a :class:`Call` known from operators."""

    way: str
    measured: Product
    product: Product | None
    key_of: tuple[int, ...]  # the key head of each head
    channels: frozenset[int] = frozenset()  # kin of the axes of channels of query and key
    shown: Callable[[], Tensor] | None = None  # keys that no mask hides from a row; None: all
    asks_learned: bool = False  # whether its queries are parameters and its keys are not
    has_known_axes: bool = True  # whether batch and heads are told apart
    hides_by_sum: bool = False  # whether a number added to scores hides keys


def _of_text(text: int, option: Any) -> Any:
    if isinstance(option, Sink):
        return Sink(_of_text(text, option.logits[:, None])[:, 0]) if option.logits.ndim == 3 else option
    if not (isinstance(option, Tensor) and option.ndim == 4):
        return option
    return option[text : text + 1] if len(option) > 1 else option


def key_of_heads(key: Tensor, heads: int) -> tuple[int, ...]:
    """The key head of each head; models repeat shared key heads before they attend."""
    there, n_keys = key.shape[1:3]
    if not there:
        return ()
    some = key[0, :, [0, n_keys // 2, -1]] if n_keys else key[0]
    same = (some[:, None] == some).flatten(2).all(-1) & some.flatten(1).any(1)
    own = torch.eye(there, dtype=torch.bool, device=same.device)
    first: list[int] = array((same | own).int().argmax(1).cpu()).tolist()
    sizes = {first.count(each) for each in first}
    if len(sizes) > 1:  # equal by chance
        first = list(range(there))
    number = {each: place for place, each in enumerate(sorted({*first}))}
    return tuple(number[first[head * there // heads]] for head in range(heads))


def of_sdpa(notes: Notes, *args: Any, **kwargs: Any) -> Reading:
    given = dict(zip(_SDPA, args, strict=False)) | kwargs
    query, key, mask = given["query"], given["key"], given.get("attn_mask")
    axes, channels = _axes_of(notes, query, key)
    query, key = query.detach(), key.detach()
    lead = Lead.of_sdpa(query, axes, channels)
    mask = None if mask is None else lead.of_mask(mask.detach(), key.shape[-2], query.shape[-2])
    scale = given.get("scale")
    options = {
        "scale": query.shape[-1] ** -0.5 if scale is None else float(scale),
        "is_causal": bool(given.get("is_causal", False)),
        "attn_mask": mask,
        "enable_gqa": bool(given.get("enable_gqa", False)),
    }
    product = _in_heads(Product(lead.of(query), lead.of(key), options), axes, channels)
    shaped, added = _hidden_by_sum(product)
    product = product._replace(options=with_causal(_recorded(shaped)))
    key_of = key_of_heads(product.key, product.query.shape[1])
    rows = tuple(piece for piece in axes[-2] if not piece.kin & channels)
    asks = _asks_learned(rows, notes(given["key"]).axes[-2])
    mask = shaped["attn_mask"]
    shown = None if mask is None else partial(_shown, mask)
    return Reading(
        "scaled_dot_product_attention", product, product, key_of, channels, shown, asks, lead.is_known, added
    )


def _axes_of(notes: Notes, query: Tensor, key: Tensor) -> tuple[Axes, frozenset[int]]:
    axes = notes(query).axes
    return axes, kin_of(axes[-1], notes(key).axes[-1])


def _in_heads(product: Product, axes: Axes, channels: frozenset[int]) -> Product:
    """Unfold query heads that stand as rows of their key head, as in transformers' masked generation."""
    query, key, options = product
    heads = prod(piece.size for piece in takewhile(lambda each: each.kin & channels, axes[-2]))
    mask, (batch, key_heads, rows, _) = options["attn_mask"], query.shape
    is_apart = len(axes) == 4 and heads > 1 and rows % heads == 0 and not options["is_causal"]
    if not is_apart or key_heads != key.shape[1] or (mask is not None and mask.shape[-2] not in (1, rows)):
        return product
    if mask is not None and mask.shape[-2] > 1:
        mask = mask.expand(len(mask), key_heads, rows, -1).reshape(
            len(mask), -1, rows // heads, mask.shape[-1]
        )
    query = query.reshape(batch, key_heads * heads, rows // heads, -1)
    return Product(query, key, {**options, "attn_mask": mask, "enable_gqa": True})


def _hidden_by_sum(product: Product) -> tuple[Mapping[str, Any], bool]:
    """Options that hide keys whose score got so low an addend that no weight is left."""
    query, key, options = product
    mask = options["attn_mask"]
    if mask is None or mask.dtype == torch.bool or not query.numel() or not key.numel():
        return options, False
    far = (mask <= FAR) & shows(mask)
    if not bool(far.any()):
        return options, False
    longest = [float(torch.linalg.vector_norm(x.double(), dim=-1).max()) for x in (query, key)]
    reach = 2 * abs(options["scale"]) * longest[0] * longest[1] - math.log(torch.finfo(mask.dtype).eps)
    hidden = far & (mask < mask.amax(-1, keepdim=True) - reach)
    return {**options, "attn_mask": mask.masked_fill(hidden, -torch.inf)}, bool(hidden.any())


def of_own(notes: Notes, query: Tensor, key: Tensor, options: Mapping[str, Any]) -> Reading:
    known = _recorded(options)
    known.pop("num_threads", None)
    axes, channels = _axes_of(notes, query, key)
    if known.pop("layout", "bhsd") == "bshd":
        query, key = query.transpose(-2, -3), key.transpose(-2, -3)
        axes = (*axes[:-3], axes[-2], axes[-3], axes[-1])
    query, key = query.detach(), key.detach()
    lead = Lead.of_own(query, axes, channels)
    scale = known.get("scale", "standard")
    if isinstance(scale, (str, Law)) and not (law := get(scale)).meaning.is_used:
        scale = float(law.scale(1, query.shape[-1]))
    known["scale"] = scale
    product = Product(lead.of(query), lead.of(key), known)
    return Reading("attnscale", product, product, key_of_heads(product.key, product.query.shape[1]), channels)


def of_flex(notes: Notes, *args: Any, **kwargs: Any) -> Reading:
    """A call of PyTorch's ``flex_attention``; its functions of scores and masks are evaluated."""
    given = dict(zip(_FLEX, args, strict=False)) | kwargs
    channels = _axes_of(notes, given["query"], given["key"])[1]
    query, key, value = (given[name].detach() for name in _FLEX[:3])
    groups = query.shape[1] // key.shape[1]
    wide = [x.repeat_interleave(groups, 1) for x in (key, value)]
    scores = flex_scores(query, *wide, *(given.get(name, ()) for name in _FLEX[3:]))
    options = {"scale": float(given["scale"]), "attn_mask": None}
    if bool((hidden := scores == -torch.inf).any()):
        options["attn_mask"] = torch.zeros_like(scores).masked_fill(hidden, -torch.inf)
    product = _checked(Product(query, wide[0], options), scores)
    measured = of_scores(scores, None)
    return Reading("flex_attention", measured, product, key_of_heads(wide[0], query.shape[1]), channels)


def of_weights(weights: Weights, numbers: Tensor) -> Reading:
    """Weights that the model computed by a softmax over its own scores, `numbers`."""
    scores, dim, axes = weights.scores, weights.dim, weights.axes
    sink = next((step for step in scores.steps if step.kind == "sink"), None)
    logits = numbers[..., :0]
    if sink is not None and dim == numbers.ndim - 1:
        n_keys = numbers.shape[-1] - sum(each.value.shape[-1] for each in scores.steps if each.kind == "sink")
        numbers, logits = numbers[..., :n_keys], numbers[..., n_keys:]
        axes = (*axes[:-1], sink.axes[-1])
    if not marks(axes[dim], scores.columns) and marks(axes[dim], scores.rows):
        scores = scores.swapped
    groups = grouped(scores, axes, dim)
    try:
        whole, done = groups.of(numbers, axes), carried_out(scores, groups, _lowest(numbers.dtype))
        behind = None
        if sink is not None:
            behind = _less(groups._replace(columns=[]).of(_as_one(logits)[..., None], axes), done.shift)
    except (LookupError, RuntimeError):
        return _of_rows_alone(numbers.movedim(dim, -1), logits, scores)
    whole, hidden, added = _without_hidden(_less(whole, done.shift), done)
    measured = of_scores(whole, None if behind is None else behind[..., 0])
    product = _product_of(scores, groups, done, hidden, whole, measured)
    heads = measured.query.shape[1]
    key_of = tuple(range(heads)) if product is None else key_of_heads(product.key, heads)
    asks = _asks_learned(tuple(groups.rows), tuple(groups.columns))
    hides = done.bias if done.bias is not None or scores.is_product else whole
    shown = None if hides is None else partial(_shown, hides)
    return Reading("softmax", measured, product, key_of, scores.kin, shown, asks, groups.is_known, added)


def _less(x: Tensor, shift: Tensor | float) -> Tensor:
    return x if isinstance(shift, float) and shift == 0 else x - shift


def _shown(mask: Tensor) -> Tensor:
    """True where a mask, or scores, hide no key, even if its weight is 0."""
    return mask if mask.dtype == torch.bool else mask > FAR


def _asks_learned(rows: Axis, columns: Axis) -> bool:
    """Whether rows, but not all columns, come from parameters."""
    asking, asked = kin_of(rows), kin_of(columns)
    return bool(asking) and of_parameters(asking) == asking and of_parameters(asked) != asked


def _of_rows_alone(numbers: Tensor, logits: Tensor, scores: Scores) -> Reading:
    """Weights over the last axis, with unknown meaning of the other axes."""
    sink = _as_one(logits) if logits.shape[-1] else None
    rows = numbers.flatten(0, -3)[:, None] if numbers.ndim > 2 else numbers[(None,) * (4 - numbers.ndim)]
    measured = of_scores(rows, None if sink is None else sink.reshape(rows.shape[:-1]))
    return Reading("softmax", measured, None, (0,), scores.kin, has_known_axes=False)


def of_scores(scores: Tensor, sink: Tensor | None) -> Product:
    """Scores (batch, heads, n_queries, n_keys) as a mask on products of 0, with logits of a sink."""
    *rows, n_keys = scores.shape
    # float32 reaches as low as bfloat16, for which arrays need a package.
    mask = scores.float() if scores.dtype == torch.bfloat16 else scores
    options: dict[str, Any] = {"attn_mask": mask, "scale": 1.0}
    if sink is not None:
        options["normalizer"] = Sink(sink)
    dtype = torch.float64 if scores.dtype == torch.float64 else torch.float32
    query = scores.new_zeros(*rows, 1, dtype=dtype)
    return Product(query, query.new_zeros(*rows[:2], n_keys, 1), options)


def _as_one(sinks: Tensor) -> Tensor:
    """The logit of one sink in place of several; the lowest float32 for -inf."""
    return sinks.double().logsumexp(-1).clamp(min=torch.finfo(torch.float32).min)


def _lowest(dtype: torch.dtype) -> float:
    """Scores up to this number are hidden; bfloat16 is measured in float32."""
    return torch.finfo(torch.float32 if dtype == torch.bfloat16 else dtype).min / 2


def _without_hidden(scores: Tensor, done: Done) -> tuple[Tensor, Tensor | None, bool]:
    """Scores with -inf for hidden keys, the hidden keys, and whether an added number hides one."""
    hidden, bias, added = done.hidden, done.bias, False
    if bias is not None:
        far = (bias <= FAR) & (bias > _lowest(scores.dtype))
        if bool(far.any()):
            far = far & (scores.softmax(-1) < torch.finfo(scores.dtype).eps)
            added = bool(far.any())
            hidden = far if hidden is None else far | hidden
    return scores if hidden is None else scores.masked_fill(hidden, -torch.inf), hidden, added


def _product_of(
    scores: Scores, groups: Groups, done: Done, hidden: Tensor | None, whole: Tensor, measured: Product
) -> Product | None:
    """Queries, keys and options that give the scores of a call; None if they are not one product."""
    if scores.query is None or scores.key is None:
        return None
    batch, heads, rows, columns = groups
    summed = list(scores.summed)
    try:
        order = [*batch, *heads, *rows, *summed]
        query = fold(unfold(scores.query, scores.query_axes, order), [batch, heads, rows, summed])
        order = [*batch, *heads, *columns, *summed]
        key = fold(unfold(scores.key, scores.key_axes, order), [batch, heads, columns, summed])
        query = query if done.factor is None else query * done.factor
        query, key = query.expand(*whole.shape[:3], -1), key.expand(*whole.shape[:2], whole.shape[3], -1)
    except (LookupError, RuntimeError):  # an axis was cut or joined later
        return None
    bias = done.bias if hidden is None or done.bias is None else done.bias.masked_fill(hidden, -torch.inf)
    product = _checked(
        Product(query, key, {"scale": done.scale, "softcap": done.softcap, "attn_mask": bias}), whole
    )
    sink = measured.options.get("normalizer")
    if product is not None and sink is not None:
        options = {**product.options, "normalizer": _joined_sink(scores, groups, sink)}
        product = product._replace(options=options)
    return product


def _joined_sink(scores: Scores, groups: Groups, measured: Sink) -> Sink:
    """The sink as joined to the scores (the measured one was shifted), one logit per head if rows agree."""
    steps = [step for step in scores.steps if step.kind == "sink"]
    columns = torch.cat([step.value for step in steps], -1)
    logits = groups._replace(columns=[]).of(_as_one(columns)[..., None], steps[0].axes)[..., 0]
    if not bool(torch.isclose(logits, measured.logits, rtol=1e-4, atol=1e-4).all()):
        return measured
    of_heads = logits[0, :, 0]
    alike = bool((logits == of_heads[:, None]).all())
    return Sink(of_heads) if alike else Sink(logits.expand_as(measured.logits))


def _checked(product: Product, scores: Tensor) -> Product | None:
    """The product with options as :class:`Call` has them; None if its rows are not the scores."""
    if not scores.numel() or not _is_near(product, scores):
        return None
    return product._replace(options=with_causal(_recorded(product.options)))


def _is_near(product: Product, scores: Tensor) -> bool:
    """Whether queries, keys and options give the first and the last row of scores."""
    query, key, options = product
    softcap, bias = options.get("softcap"), options["attn_mask"]
    for place in ((0, 0, 0), (-1, -1, -1)):
        made = options["scale"] * (key[place[:2]].double() @ query[place].double())
        if softcap is not None:
            made = softcap * (made / softcap).tanh()
        if bias is not None:
            made = made + bias.expand(scores.shape)[place]
        seen = scores[place].double()
        there = (seen > FAR) | (made > FAR)
        if not there.any():
            continue
        size = float(seen[seen.isfinite()].abs().clamp(max=-FAR).max()) + 1
        near = max(_NEAR.get(x.dtype, 0.05) for x in (query, scores))
        if not bool(((made - seen)[there].abs() <= near * size).all()):
            return False
    return True


def _recorded(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a call, detached, without those that are None, and with ``causal`` for both spellings."""
    causal = {"causal": read_causal(options.get("is_causal", False), options.get("causal"))}
    known = {name: x for name, x in {**options, **causal}.items() if x is not None and name != "is_causal"}
    return {name: x.detach() if isinstance(x, Tensor) else x for name, x in known.items()}


def with_causal(options: dict[str, Any]) -> dict[str, Any]:
    """The options with ``causal`` if the mask means that, and without a mask that means nothing else."""
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


class Lead(NamedTuple):
    """The axes before (rows, columns) in pieces, some of them heads; None: they are (batch, heads)."""

    shape: tuple[int, ...]
    sizes: list[int] | None
    heads: list[bool]
    is_known: bool = True

    @classmethod
    def of_sdpa(cls, query: Tensor, axes: Axes, channels: frozenset[int]) -> Lead:
        """The axes of PyTorch's call: batch and heads if there are two, others by their pieces."""
        shape = tuple(query.shape[:-2])
        if len(shape) == 2:
            return cls(shape, None, [])
        pieces = [piece for axis in axes[:-2] for piece in axis]
        heads = [bool(piece.kin & channels) for piece in pieces]
        if len(shape) > 2 and not any(heads):
            return cls(shape, [*shape], [False] * (len(shape) - 1) + [True])
        return cls(
            shape, [piece.size for piece in pieces], heads, not any(UNKNOWN in each.kin for each in pieces)
        )

    @classmethod
    def of_own(cls, query: Tensor, axes: Axes, channels: frozenset[int]) -> Lead:
        """The axes (..., heads) of this package's call, or one axis of texts and heads folded together."""
        found = cls.of_sdpa(query, axes, channels)
        if len(found.shape) == 1 and not any(found.heads):
            return found._replace(heads=[True] * len(found.heads))
        return found

    def of(self, x: Tensor) -> Tensor:
        """The tensor (..., rows, columns) as (batch, heads, rows, columns)."""
        if self.sizes is None:
            return x
        x = x.expand(*self.shape, *x.shape[-2:]).reshape(*self.sizes, *x.shape[-2:])
        order = sorted(range(len(self.sizes)), key=self.heads.__getitem__)
        n_heads = prod(size for size, is_head in zip(self.sizes, self.heads, strict=True) if is_head)
        return x.permute(*order, -2, -1).reshape(-1, n_heads, *x.shape[-2:])

    def of_mask(self, mask: Tensor, n_keys: int, n_queries: int) -> Tensor:
        """A mask for each row and key, as (batch, heads, rows, columns) or broadcastable to it."""
        return mask if self.sizes is None else self.of(mask.expand(*self.shape, n_queries, n_keys))
