# SPDX-License-Identifier: BSD-3-Clause
"""A call in its parts, which a slip may change before the output is computed.

The formulas are those of attnscale.reference, cut where engines slip: which number is the scale, where the
soft-cap stands, what a hidden key's score is, which head of the key belongs to a head of the query.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .. import normalizers
from ..reference._attention import distances, of_distance, offset_of, same_document
from ..reference._normalizers import with_length
from ._call import Case

Array = NDArray[Any]
Seen = NDArray[np.bool_]


class Places(NamedTuple):
    """Positions of queries and keys: i, j, j - i - offset, the number of keys, and its largest value."""

    i: Array
    j: Array
    distance: Array
    lengths: Any
    n_queries: int
    n_keys: int


def _causal(at: Places) -> Seen:
    return at.distance <= 0


def _within(at: Places) -> Seen:
    return np.asarray(at.j < at.lengths)


@dataclass
class Draft:
    """A call, arrays with heads first, and the rules by which it is computed.

    A slip sets fields and rules; `copy` keeps those of the original.
    """

    case: Case
    query: Array
    key: Array
    value: Array
    options: dict[str, Any]
    #: Type of the arrays that the engine is given.
    dtype: str = "float64"
    scale: Any = None
    #: Heads of the key and of the value that belong to the heads of the query.
    key_heads: Array | None = None
    value_heads: Array | None = None
    causal: Callable[[Places], Seen] = _causal
    within: Callable[[Places], Seen] = _within
    #: Offset of the causal mask, from keys (of each text) and queries.
    offset: Callable[[Any, int], Any] | None = None
    #: A boolean mask, and numbers that are added; read from attn_mask.
    lets: Seen | None = None
    added: Array | None = None
    #: Stage of the soft-cap, and the power of its divisor.
    cap: str = "scores"
    base: float = math.e
    #: Score of a hidden key; with `keeps`, the smallest exp(score - largest) of a hidden key; with `leak`,
    #: the number added to its score.
    hidden: float = -np.inf
    keeps: float = 0.0
    leak: float | None = None
    #: How often each key counts.
    counts: Array | None = None
    sink: Any = None
    sink_is_shifted: bool = True
    #: Type of 16 bits in which scores overflow.
    narrow: bool = False
    zeros: bool = False
    #: A score of -inf from an infinite key or query is a weight of 0, not NaN.
    is_ieee: bool = False
    #: Names of the slips that changed it.
    changed: tuple[str, ...] = field(default=())

    def copy(self) -> Draft:
        """A draft that can be changed."""
        other = copy(self)
        other.options = dict(self.options)
        return other


def draft_of(case: Case, arrays: list[Any], dtype: str = "float64") -> Draft:
    """The parts of a call."""
    options = dict(case.options)
    heads_first = [_heads_first(np.asarray(x, np.float64), options) for x in arrays]
    query, key, value = heads_first
    norm = options.pop("qk_norm", None)
    if norm is not None:
        query, key = (with_length(x, norm) for x in (query, key))
    made = Draft(case, query, key, value, options, dtype)
    made.scale = options.get("scale")
    if made.scale is None:
        made.scale = 1 / np.sqrt(max(query.shape[-1], 1))
    if options.get("enable_gqa") and query.ndim > 2:
        made.key_heads, made.value_heads = (_in_place(query.shape[-3], x.shape[-3]) for x in (key, value))
    mask = options.get("attn_mask")
    if mask is not None:
        made.lets, made.added = read_mask(np.asarray(mask))
    made.sink = sink_of(options)
    return made


def read_mask(mask: Array) -> tuple[Seen, Array | None]:
    """Keys that a mask lets through, and the numbers that it adds to their scores."""
    if mask.dtype == np.bool_:
        return mask, None
    wide = mask.astype(np.float64)
    lets = ~(wide <= float(np.finfo(mask.dtype).min) / 2)
    return lets, np.where(lets, wide, 0)


def sink_of(options: Mapping[str, Any]) -> Any:
    """Logits of the call's sink, which broadcast to its rows and an axis of keys; None without one."""
    found = normalizers.get(options.get("normalizer", "softmax"))
    if isinstance(found, normalizers.SoftmaxN):
        return np.log(found.n)
    if isinstance(found, normalizers.Sink):
        logits = np.asarray(found.logits, np.float64)
        return logits[:, None, None] if logits.ndim == 1 else logits[..., None] if logits.ndim else logits
    return None


def _in_place(heads: int, of: int) -> Array:
    return np.repeat(np.arange(of), heads // max(of, 1))


def _heads_first(array: Array, options: dict[str, Any]) -> Array:
    return array.swapaxes(-3, -2) if options.get("layout") == "bshd" and array.ndim > 2 else array


class Predicted(NamedTuple):
    """The output of a draft in the axes of the call, and rows without keys (rows, in the same axes)."""

    output: Array
    empty: Seen


def computed(draft: Draft) -> Predicted:
    """The output of a draft."""
    with np.errstate(all="ignore"):
        score, seen = _scores(draft)
        weight = _weights(draft, score, seen)
        output = _output(draft, weight)
    hides = np.isneginf(draft.hidden) and draft.leak is None
    empty = np.broadcast_to(~seen.any(-1) if hides or not seen.shape[-1] else False, output.shape[:-1])
    if draft.zeros:
        output = np.zeros_like(output)
    if draft.options.get("layout") == "bshd" and output.ndim > 2:
        return Predicted(output.swapaxes(-3, -2), empty.swapaxes(-2, -1))
    return Predicted(output, empty)


def seen_of(draft: Draft, shape: tuple[int, ...], *, without: tuple[str, ...] = ()) -> Seen:
    """True where the query sees the key; `without` names options that are left out."""
    given = {name: x for name, x in draft.options.items() if name not in without}
    lengths = np.asarray(shape[-1] if given.get("key_lengths") is None else given["key_lengths"], np.int64)
    lengths = lengths[..., None, None, None] if lengths.ndim else lengths
    i, j = np.arange(shape[-2])[:, None], np.arange(shape[-1])
    offset = offset_of(given.get("causal"), lengths, shape[-2])
    if draft.offset is not None and given.get("causal") == "bottom_right":
        offset = draft.offset(lengths, shape[-2])
    at = Places(i, j, j - i - offset, lengths, *shape[-2:])
    seen = np.broadcast_to(draft.within(at) if "key_lengths" in given else at.j < at.lengths, shape)
    if given.get("is_causal") or given.get("causal") is not None:
        seen = seen & draft.causal(at)
    left, right = given.get("window") or (None, None)
    if left is not None:
        seen = seen & (at.distance >= -left)
    if right is not None:
        seen = seen & (at.distance <= right)
    if given.get("document_ids") is not None:
        seen = seen & same_document(given["document_ids"], shape, (j - at.distance)[..., 0])
    return seen & draft.lets if draft.lets is not None and "attn_mask" in given else seen


def _scores(draft: Draft) -> tuple[Array, Seen]:
    """Scores of every pair, and the keys that each row sees."""
    key = draft.key if draft.key_heads is None else draft.key.take(draft.key_heads, -3)
    product = np.einsum("...id,...jd->...ij", draft.query, key)
    lead = draft.value.shape[:-3] if draft.value.ndim > 3 else ()
    if len(lead) > product.ndim - 3 and product.ndim > 2:
        product = np.broadcast_to(product, (*lead, *product.shape[-3:]))
    options = draft.options
    t = distances(product.shape, causal=options.get("causal"), key_lengths=options.get("key_lengths"))
    if options.get("distance_scale") is not None:
        product = product * of_distance(options["distance_scale"], t)
    bias = 0 if options.get("distance_bias") is None else of_distance(options["distance_bias"], t)
    scale = np.asarray(draft.scale, np.float64)
    rows = scale[..., None] if scale.ndim else scale
    score = _capped(draft, product, rows, bias + (0 if draft.added is None else draft.added))
    seen = seen_of(draft, score.shape)
    return np.where(seen, score, draft.hidden if draft.leak is None else score + draft.leak), seen


def _capped(draft: Draft, product: Array, scale: Any, added: Any) -> Array:
    """Scores with the soft-cap at its stage."""
    cap = draft.options.get("softcap")
    score = product * scale
    if draft.narrow:
        score = np.where(np.abs(score) > 65504, np.inf, score)
    is_score = np.isfinite(score) | (np.isneginf(score) & draft.is_ieee)
    score = np.where(is_score, score, np.nan)
    if cap is None:
        return np.asarray(score + added)
    if draft.cap == "over the mask":
        return np.asarray(cap * np.tanh((score + added) / cap))
    if draft.cap == "before the scale":
        return np.asarray(cap * np.tanh(product / cap) * scale + added)
    divisor = 1 if draft.cap == "undivided" else cap
    return np.asarray(cap * np.tanh(score / divisor) + added)


def _weights(draft: Draft, score: Array, seen: Seen) -> Array:
    """Weights of every pair; a row without any is 0."""
    shown = seen if np.isneginf(draft.hidden) and draft.leak is None else np.ones_like(seen)
    top = np.where(shown, score, -np.inf).max(-1, initial=-np.inf, keepdims=True)
    if draft.sink is not None and draft.sink_is_shifted:
        top = np.maximum(top, draft.sink)
    top = np.where(np.isneginf(top), 0, top)
    power = np.where(shown, draft.base ** (score - top), draft.keeps)
    if draft.counts is not None:
        power = power * draft.counts
    total = power.sum(-1, keepdims=True)
    if draft.sink is not None:
        total = total + draft.base ** (draft.sink - (top if draft.sink_is_shifted else 0))
    return np.where(total == 0, 0, power / np.where(total == 0, 1, total))


def _output(draft: Draft, weight: Array) -> Array:
    value = draft.value if draft.value_heads is None else draft.value.take(draft.value_heads, -3)
    if np.isfinite(value).all():
        return np.asarray(weight @ value)
    terms = weight[..., None] * value[..., None, :, :]
    return np.asarray(np.where(weight[..., None] == 0, 0, terms).sum(-2))


def is_softmax(options: Mapping[str, Any]) -> bool:
    """Whether rows of the call have a softmax, with or without a sink."""
    of = (normalizers.Softmax, normalizers.Sink, normalizers.SoftmaxN)
    return isinstance(normalizers.get(options.get("normalizer", "softmax")), of)
