# SPDX-License-Identifier: BSD-3-Clause
"""Attention with every matrix written out, columns of its weights, and the divergence of its rows."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .. import laws
from ._normalizers import weigh, with_length

Array = NDArray[Any]
_MASKS = ("is_causal", "causal", "attn_mask", "window", "key_lengths", "document_ids")


def dot_products(query: Array, key: Array, *, enable_gqa: bool = False, layout: str = "bhsd") -> Array:
    """query . key of every pair, (..., heads, n_queries, n_keys)."""
    q, k = _heads_first(query, layout), _heads_first(key, layout)
    with np.errstate(invalid="ignore", over="ignore"):
        products: Array = np.einsum("...id,...jd->...ij", q, _repeat_heads(k, q, enable_gqa=enable_gqa))
    return products


def visible(
    shape: tuple[int, ...],
    *,
    is_causal: bool = False,
    causal: str | int | None = None,
    attn_mask: Array | None = None,
    window: tuple[int | None, int | None] | None = None,
    key_lengths: Any = None,
    document_ids: Any = None,
) -> NDArray[np.bool_]:
    """True where the query may see the key, shape (..., heads, n_queries, n_keys)."""
    i, j = np.arange(shape[-2])[:, None], np.arange(shape[-1])
    lengths = np.asarray(shape[-1] if key_lengths is None else key_lengths, np.int64)
    if lengths.ndim:
        lengths = lengths[..., None, None, None]
    left, right = window or (None, None)
    distance = j - i - offset_of(causal, lengths, shape[-2])
    seen: NDArray[np.bool_] = np.broadcast_to(j < lengths, shape)
    if is_causal or causal is not None:
        seen = seen & (distance <= 0)
    if document_ids is not None:
        seen = seen & same_document(document_ids, shape, (j - distance)[..., 0])
    if left is not None:
        seen = seen & (distance >= -left)
    if right is not None:
        seen = seen & (distance <= right)
    return seen if attn_mask is None else seen & _mask_lets(attn_mask)


def offset_of(causal: str | int | None, lengths: Any, n_queries: int) -> Any:
    """The offset by which query i is aligned with key i + offset."""
    if isinstance(causal, int):
        return causal
    return lengths - n_queries if causal == "bottom_right" else 0


def same_document(document_ids: Any, shape: tuple[int, ...], position: Array) -> NDArray[np.bool_]:
    """True where the key at the query's position is in the document of the key."""
    ids = np.broadcast_to(document_ids, (*shape[:-3], shape[-1]))
    ids = ids[..., None, :] if len(shape) > 2 else ids
    position = np.broadcast_to(position, (*ids.shape[:-1], shape[-2]))
    own = np.take_along_axis(ids, np.clip(position, 0, None), -1)
    same: NDArray[np.bool_] = (own[..., None] == ids[..., None, :]) & (position >= 0)[..., None]
    return same


def n_of_law(law: laws.Law, seen: NDArray[np.bool_], score: Array | None = None, **masks: Any) -> Array:
    """The n of the law in each row; `score`, at the standard scale, is for laws that measure n on it."""
    n: Array = np.maximum(law.meaning.of(_CallRows(seen, score, masks)), law.meaning.least)
    return n


class _CallRows(NamedTuple):
    """Facts about a call that a meaning of n may need."""

    seen: NDArray[np.bool_]
    score: Array | None  # at the standard scale
    masks: dict[str, Any]

    @property
    def row_shape(self) -> tuple[int, ...]:
        return self.seen.shape[:-1]

    def visible_keys(self) -> Array:
        count: Array = self.seen.sum(-1)
        return count

    def row_sizes(self) -> Array:
        right = (self.masks.get("window") or (None, None))[1]
        masks = {**self.masks, "attn_mask": None, "window": (None, right)}
        size: Array = visible(self.seen.shape, **masks).sum(-1)
        return size

    def positions(self) -> Array:
        n_queries, n_keys = self.seen.shape[-2:]
        lengths = self.masks.get("key_lengths")
        lengths = np.asarray(n_keys if lengths is None else lengths, np.int64)
        lengths = lengths[..., None, None] if lengths.ndim else lengths
        position: Array = np.arange(n_queries) + offset_of(self.masks.get("causal"), lengths, n_queries)
        ids = self.masks.get("document_ids")
        if ids is None:
            return position
        first: Array = same_document(ids, self.seen.shape, position).argmax(-1)
        return position - first

    def row_entropies(self) -> Array:
        assert self.score is not None
        p = _softmax_rows(self.score, self.seen).p
        entropy: Array = -(p * np.log(np.where(p > 0, p, 1))).sum(-1) + 0.0
        return entropy

    def row_gaps(self) -> Array:
        assert self.score is not None
        top = self.score.max(-1, initial=-np.inf, keepdims=True)
        with np.errstate(invalid="ignore", divide="ignore"):
            gap = np.sort(np.where(self.seen, top - self.score, np.inf), axis=-1)
            rates: Array = np.log(np.arange(1, gap.shape[-1] + 1)) / gap
        highest: Array = rates[..., 1:].max(-1, initial=0)
        return highest

    def row_spreads(self) -> Array:
        assert self.score is not None
        seen = np.where(self.seen, self.score, 0)
        count = np.maximum(self.seen.sum(-1), 1)
        spread: Array = np.sqrt(
            (np.where(self.seen, seen - (seen.sum(-1) / count)[..., None], 0) ** 2).sum(-1) / count
        )
        return spread


def distances(shape: tuple[int, ...], **options: Any) -> Array:
    """Position of each query minus that of each key, shape (..., n_queries, n_keys)."""
    lengths = np.asarray(
        shape[-1] if options.get("key_lengths") is None else options["key_lengths"], np.int64
    )
    lengths = lengths[..., None, None, None] if lengths.ndim else lengths
    offset = offset_of(options.get("causal"), lengths, shape[-2])
    signed: Array = np.arange(shape[-2])[:, None] + offset - np.arange(shape[-1])
    return signed


def of_distance(table: Any, t: Array) -> Array:
    """A table, indexed by the distance, or a function of the signed one, at every pair."""
    if callable(table):
        flat = np.asarray(table(t.ravel()))
        return flat.reshape(*flat.shape[:-1], *t.shape)
    table = np.asarray(table)[..., None, :]
    lead = np.broadcast_shapes(table.shape[:-2], t.shape[:-2])
    rows = np.broadcast_to(table, (*lead, t.shape[-2], table.shape[-1]))
    return np.take_along_axis(rows, np.broadcast_to(np.abs(t), (*lead, *t.shape[-2:])), -1)


def scores(query: Array, key: Array, *, softcap: float | None = None, **options: Any) -> tuple[Array, Any]:
    """(score, visible) of every pair: scale, soft-cap, bias, mask, in this order."""
    parts = score_parts(query, key, softcap=softcap, **options)
    scaled = parts.product * parts.factor * parts.scale
    return _scores(scaled, parts.seen, softcap, options, parts.bias), parts.seen


def score_parts(
    query: Array,
    key: Array,
    *,
    scale: Any = None,
    softcap: float | None = None,
    enable_gqa: bool = False,
    layout: str = "bhsd",
    distance_scale: Any = None,
    distance_bias: Any = None,
    qk_norm: str | None = None,
    **masks: Any,
) -> SimpleNamespace:
    """Parts of a score: product, factor (of the pair), scale (of the row), bias; and visible keys."""
    if qk_norm is not None:
        query, key = (with_length(rows, qk_norm) for rows in (query, key))
    product = dot_products(query, key, enable_gqa=enable_gqa, layout=layout)
    seen = visible(product.shape, **masks)
    t = distances(product.shape, **masks)
    factor: Any = 1 if distance_scale is None else of_distance(distance_scale, t)
    bias = 0 if distance_bias is None else of_distance(distance_bias, t)
    head_dim, first = query.shape[-1], None
    if isinstance(scale, (str, laws.Law)):
        law = laws.get(scale)
        if law.meaning.is_distance:
            bias = bias + getattr(law, "bias", np.zeros_like)(np.abs(t))
            factor, scale = factor * law.scale(np.abs(t), head_dim), 1.0
        elif law.meaning.measures_the_row:
            first = _scores(product * factor / np.sqrt(max(head_dim, 1)), seen, softcap, masks, bias)
    scale = _row_scale(scale, head_dim, seen, masks, first)
    return SimpleNamespace(product=product, factor=factor, scale=scale, bias=bias, seen=seen)


def _scores(
    score: Array, seen: NDArray[np.bool_], softcap: float | None, masks: dict[str, Any], bias: Any
) -> Array:
    """Scaled products after soft-cap, bias and mask."""
    with np.errstate(invalid="ignore", over="ignore"):
        score = np.where(np.isfinite(score), score, np.nan)
        if softcap is not None:
            score = softcap * np.tanh(score / softcap)
        score = score + bias
        if masks.get("attn_mask") is not None and masks["attn_mask"].dtype != bool:
            score = score + masks["attn_mask"].astype(np.float64)
    return np.where(seen, score, -np.inf)


def attention_statistics(
    query: Array, key: Array, value: Array | None = None, *, normalizer: Any = "softmax", **options: Any
) -> SimpleNamespace:
    """Every field of attnscale.AttentionStatistics, in float64."""
    s, seen = scores(query, key, **options)
    rows = weigh(_softmax_rows(s, seen), s, seen, normalizer)
    p, w = rows.p, rows.sink_weight
    # Terms of hidden keys are 0, whatever their scores.
    finite = np.where(seen, s, 0)
    rows.mean_score = (p * finite).sum(-1) + w * rows.sink_score
    rows.entropy = -(p * np.log(np.where(p > 0, p, 1))).sum(-1) - w * np.log(np.where(w > 0, w, 1)) + 0.0
    variance = (p * (finite - rows.mean_score[..., None]) ** 2).sum(-1)
    rows.score_variance = variance + w * (rows.sink_score - rows.mean_score) ** 2
    rows.concentration, rows.renyi2 = _squares(p, w)
    rows.max_weight, rows.n_visible = p.max(-1, initial=0), seen.sum(-1)
    rows.argmax = s.argmax(-1) if s.shape[-1] else np.full(s.shape[:-1], -1)
    rows.argmax = np.where(rows.n_visible == 0, -1, rows.argmax)
    rows.output = None if value is None else _weighted_values(p, seen, value, query, **options)
    return rows


def attention(query: Array, key: Array, value: Array, **options: Any) -> Array:
    """softmax(score) value."""
    output: Array = attention_statistics(query, key, value, **options).output
    return output


def attention_weights(query: Array, key: Array, **options: Any) -> Array:
    """p of every pair, (..., heads, n_queries, n_keys)."""
    weights: Array = attention_statistics(query, key, **options).p
    return weights


def attention_entropy(query: Array, key: Array, **options: Any) -> Array:
    """-sum p ln p of every row."""
    entropy: Array = attention_statistics(query, key, **options).entropy
    return entropy


def entropy_curve(
    query: Array, key: Array, scales: Array, *, normalizer: Any = "softmax", **options: Any
) -> SimpleNamespace:
    """entropy and lse at each scale, mean and variance of query . key under the weights."""
    form = {name: options[name] for name in ("enable_gqa", "layout") if name in options}
    x, curve = dot_products(query, key, **form), []
    for scale in scales:
        seen = scores(query, key, scale=float(scale), **options)[1]
        rows = attention_statistics(query, key, scale=float(scale), normalizer=normalizer, **options)
        p, xs = rows.p, np.where(seen, x, 0)
        mean = (p * xs).sum(-1)
        variance = (p * (xs - mean[..., None]) ** 2).sum(-1) + rows.sink_weight * mean**2
        curve.append([rows.entropy, rows.lse, mean, variance])
    stacked = np.moveaxis(np.array(curve), 0, -1)  # (4, ..., n_scales)
    return SimpleNamespace(**dict(zip(("entropy", "lse", "mean", "variance"), stacked, strict=True)))


def attention_state(query: Array, key: Array, value: Array, **options: Any) -> SimpleNamespace:
    """output, lse and mean_score, the input of merge_states."""
    return attention_statistics(query, key, value, **options)


def merge_states(states: list[Any]) -> SimpleNamespace:
    """Weighted means of the outputs and mean scores, with weights exp(lse)."""
    lse = np.logaddexp.reduce([state.lse.astype(np.float64) for state in states])
    empty = [np.isneginf(state.lse) for state in states]  # such rows may hold anything
    with np.errstate(invalid="ignore"):
        shares = [np.where(none, 0, np.exp(x.lse - lse)) for none, x in zip(empty, states, strict=True)]
    outputs = [np.where(none[..., None], 0, state.output) for none, state in zip(empty, states, strict=True)]
    means = [np.where(none, 0, state.mean_score) for none, state in zip(empty, states, strict=True)]
    output = sum(w[..., None] * each for w, each in zip(shares, outputs, strict=True))
    mean_score = sum(w * each for w, each in zip(shares, means, strict=True))
    entropy = np.where(np.isneginf(lse), 0, lse - mean_score)
    return SimpleNamespace(output=output, lse=lse, mean_score=mean_score, entropy=entropy)


def _squares(p: Array, w: Array) -> tuple[Array, Array]:
    """Sum of squared weights of keys and sink, and -ln of it; 0 for a row without weights."""
    total: Array = (p * p).sum(-1) + w * w
    return total, -np.log(np.where(total == 0, 1, total)) + 0.0


def _softmax_rows(s: Array, seen: NDArray[np.bool_]) -> SimpleNamespace:
    """p, lse, max_score and min_score. A row that sees a score that is not finite is NaN throughout."""
    broken: NDArray[np.bool_] = np.any(seen & ~np.isfinite(s), axis=-1)
    top = np.where(broken, np.nan, s.max(-1, initial=-np.inf))
    empty = np.isneginf(top)
    with np.errstate(invalid="ignore"):
        e = np.where(seen, np.exp(s - np.where(empty, 0, top)[..., None]), 0)
    total = e.sum(-1)
    p = np.where(broken[..., None], np.nan, e / np.where(empty, 1, total)[..., None])
    with np.errstate(divide="ignore"):
        least = np.where(seen, s, np.inf).min(-1, initial=np.inf)
        return SimpleNamespace(p=p, lse=np.log(total) + top, max_score=top, min_score=least)


def _weighted_values(
    p: Array,
    seen: NDArray[np.bool_],
    value: Array,
    query: Array,
    *,
    enable_gqa: bool = False,
    layout: str = "bhsd",
    **_: Any,
) -> Array:
    v = _repeat_heads(_heads_first(value, layout), _heads_first(query, layout), enable_gqa=enable_gqa)
    with np.errstate(invalid="ignore"):
        products = p[..., None] * v[..., None, :, :]
    output: Array = np.where(seen[..., None], products, 0).sum(-2)
    return _heads_first(output, layout)


def _heads_first(array: Array, layout: str) -> Array:
    wide: Array = array.astype(np.float64)
    return wide.swapaxes(-3, -2) if layout == "bshd" and wide.ndim > 2 else wide


def _repeat_heads(array: Array, query: Array, *, enable_gqa: bool) -> Array:
    if not enable_gqa or array.ndim < 3:
        return array
    return array.repeat(query.shape[-3] // max(array.shape[-3], 1), axis=-3)


def _mask_lets(attn_mask: Array) -> NDArray[np.bool_]:
    if attn_mask.dtype == bool:
        return attn_mask
    lowest = np.nextafter(*(attn_mask.dtype.type(x) for x in (-np.inf, 0)))
    return ~(attn_mask.astype(np.float64) <= float(lowest) / 2)


def _row_scale(
    scale: Any, head_dim: int, seen: NDArray[np.bool_], masks: dict[str, Any], first: Array | None = None
) -> Any:
    """The scale of every row; `first` has scores at the standard scale, for laws that measure them."""
    if scale is None:
        return 1 / np.sqrt(max(head_dim, 1))
    if isinstance(scale, (str, laws.Law)):
        law = laws.get(scale)
        scale = law.scale(n_of_law(law, seen, first, **masks), max(head_dim, 1))
    return np.asarray(scale, np.float64)[..., None] if np.ndim(scale) else scale


def attention_received(
    query: Array, key: Array, *, reduce: str = "sum", normalizer: Any = "softmax", **options: Any
) -> Array:
    """Sum, mean over the queries that see the key, or maximum of each column of weights."""
    p, seen = (
        attention_weights(query, key, normalizer=normalizer, **options),
        scores(query, key, **options)[1],
    )
    if reduce == "max":
        return np.asarray(p.max(-2, initial=0))
    count = np.maximum(np.broadcast_to(seen, p.shape).sum(-2), 1) if reduce == "mean" else 1
    return np.asarray(p.sum(-2) / count)


def attention_spans(
    query: Array, key: Array, lengths: Any = None, *, ids: Any = None, **options: Any
) -> Array:
    """Sums of the weights of the keys of each span, (..., n_queries, n_spans)."""
    p = attention_weights(query, key, **options)
    of_keys = np.repeat(np.arange(len(lengths)), lengths) if ids is None else np.asarray(ids)
    spans = range(of_keys.max(initial=-1) + 1 if ids is not None else len(lengths))
    return np.stack([p[..., of_keys == span].sum(-1) for span in spans], axis=-1)


def attention_divergence(
    query: Array,
    key: Array,
    other_query: Array,
    other_key: Array,
    *,
    scale: Any = None,
    other_scale: Any = None,
    softcap: float | None = None,
    other_softcap: float | None = None,
    attn_mask: Any = None,
    other_attn_mask: Any = None,
    **masks: Any,
) -> Array:
    """sum p (ln p - ln p') of every row."""
    own = {"scale": scale, "softcap": softcap, "attn_mask": attn_mask, **masks}
    their_mask = attn_mask if other_attn_mask is None else other_attn_mask
    theirs = {"scale": other_scale, "softcap": other_softcap, "attn_mask": their_mask, **masks}
    (s, seen), (t, shown) = scores(query, key, **own), scores(other_query, other_key, **theirs)
    rows, others = (
        attention_statistics(query, key, **own),
        attention_statistics(other_query, other_key, **theirs),
    )
    with np.errstate(invalid="ignore"):
        terms = rows.p * ((s - rows.lse[..., None]) - (t - others.lse[..., None]))
    found = np.where(seen & shown, terms, 0).sum(-1)
    return np.where((seen & ~shown).any(-1), np.inf, found)


def attention_mass(
    query: Array, key: Array, selected: Any, *, block_size: int | None = None, **options: Any
) -> Array:
    """Sums of the weights of the keys, or of the keys of the blocks, that each row selects."""
    p, index = attention_weights(query, key, **options), np.asarray(selected)
    if index.ndim < p.ndim:
        index = index[None] if index.ndim == 1 else index[..., None, :, :]
    unit_of_key = np.arange(p.shape[-1]) // (block_size or 1)
    chosen = (index[..., None] == unit_of_key).any(-2)
    return np.asarray((p * chosen).sum(-1))


def top_keys(query: Array, key: Array, k: int, *, normalizer: Any = "softmax", **options: Any) -> Any:
    """Index and weight of the k keys of each row with the largest scores, in order."""
    p = attention_weights(query, key, normalizer=normalizer, **options)
    score, seen = scores(query, key, **options)
    seen = np.broadcast_to(seen & ~np.isnan(p), p.shape)
    order = np.argsort(-np.where(seen, score, -np.inf), axis=-1, kind="stable")[..., :k]
    index, weight = (
        np.take_along_axis(x, order, -1) for x in (np.where(seen, np.arange(p.shape[-1]), -1), p)
    )
    width = [(0, 0)] * (p.ndim - 1) + [(0, k - order.shape[-1])]
    return SimpleNamespace(index=np.pad(index, width, constant_values=-1), weight=np.pad(weight, width))


def head_kinds(query: Array, key: Array, tokens: Any = None, **options: Any) -> SimpleNamespace:
    """Weights of the previous, own and first key and of keys after the same token; mean distance."""
    masks = {name: x for name, x in options.items() if name in _MASKS}
    p = attention_weights(query, key, **options)
    seen, t = visible(p.shape, **masks), distances(p.shape, **masks)
    own, ids = np.minimum(t[..., 0], p.shape[-1] - 1), masks.get("document_ids")
    same = np.ones(p.shape, bool) if ids is None else same_document(ids, p.shape, own)
    found = {"previous": (t == 1) & same, "itself": t == 0, "first": np.cumsum(same, -1) * same == 1}
    if tokens is not None:
        before = same_document(tokens, p.shape, own) & same & (t > 0) & (t[..., :1] < p.shape[-1])
        found["induction"] = np.roll(before, 1, -1) & (np.arange(p.shape[-1]) > 0)
    kinds = {name: np.where((m & seen).any(-1), (p * m).sum(-1), np.nan) for name, m in found.items()}
    distance = np.where(seen.any(-1), (p * np.abs(t)).sum(-1) / p.sum(-1), np.nan)
    return SimpleNamespace(**{"induction": None} | kinds, distance=distance)
