# SPDX-License-Identifier: BSD-3-Clause
"""Cells of the family tables: largest number of keys that a query of a layer sees, with its key.

In the code of transformers a causal window of w keys ends with the query's own, one on both sides has w
keys on each, and a chunk is the part of the text with the query (masking_utils.py).
"""

from __future__ import annotations

from .._keys import check_size
from .family import ALL_KEYS, Layer, Window
from .kinds import check_list

_SLIDING = frozenset({"sliding_attention", "hybrid_sliding"})
_COMPRESSED = frozenset({"compressed_sparse_attention", "heavily_compressed_attention"})


def by_kind(layer: Layer) -> Window:
    """The window of a layer, if its kind has one or its model type gives it to all layers."""
    keys = layer.keys
    if layer.kind == "chunked_attention":
        return causal(layer, "attention_chunk_size", "chunks of the text")
    if layer.kind in _SLIDING:
        return both_sides(layer) if keys.code.looks_both_ways or keys.part == "encoder" else causal(layer)
    if layer.kind in _COMPRESSED:
        return causal(layer, what="and behind them keys that stand for several")
    everywhere = keys.code.slides_everywhere and keys.flag("use_sliding_window", default=True)
    return causal(layer) if everywhere else ALL_KEYS


def causal(layer: Layer, name: str = "sliding_window", what: str = "") -> Window:
    """A causal window of `name` keys, of which the last is the query's own; null is no window."""
    if not layer.keys.get(name):
        return ALL_KEYS
    origin = layer.keys.origin(name)
    return Window(layer.keys.size(name), f"{origin}, {what}" if what else origin)


def both_sides(layer: Layer) -> Window:
    """A window of sliding_window keys on each side of the query, and its own, in any layer."""
    keys = layer.keys
    if keys.get("sliding_window") is None:
        return ALL_KEYS
    return Window(2 * keys.size("sliding_window") + 1, f"{keys.origin('sliding_window')} on both sides")


def embedding_gemma(layer: Layer) -> Window:
    """Gemma 3: the window lies around the query if it reads texts for embeddings."""
    keys = layer.keys
    if layer.kind != "sliding_attention" or not keys.flag("use_bidirectional_attention"):
        return by_kind(layer)
    reach = keys.size("sliding_window") // 2
    return Window(2 * reach + 1, f"{keys.origin('sliding_window')}, half of it on each side")


def modernbert(layer: Layer) -> Window:
    """ModernBERT: local_attention is the sum of both sides; the decoder has one of them."""
    if layer.kind != "sliding_attention":
        return ALL_KEYS
    name = "local_attention"
    reach = layer.keys.size(name, default=128) // 2
    origin = f"{name} = {layer.keys.get(name, 128)}, half of it"
    if layer.keys.kind == "modernbert-decoder":
        return Window(reach, f"{origin} before the query")
    return Window(2 * reach + 1, f"{origin} on each side")


def neomme(layer: Layer) -> Window:
    """NeoMME: without per_layer_config every second sliding layer has the long window of the code."""
    keys = layer.keys
    if layer.kind == "sliding_attention" and not keys.has("per_layer_config"):
        earlier = layer.kinds[: layer.number].count("sliding_attention")
        if earlier % 2:
            return Window(2 * 1024 + 1, "1024 on both sides, a constant of the code")
    return by_kind(layer)


def local(layer: Layer) -> Window:
    """GPT-Neo: window_size keys in its local layers."""
    return causal(layer, "window_size") if layer.kind == "sliding_attention" else ALL_KEYS


def longformer(layer: Layer) -> Window:
    """Longformer: attention_window is one number, or one per layer; global tokens see all keys."""
    given = layer.keys.get("attention_window", 512)
    if isinstance(given, (list, tuple)):
        given = check_list("attention_window", given)[layer.number]
    reach = check_size("attention_window", given) // 2
    return Window(2 * reach + 1, f"attention_window = {given}, half of it on each side, and global tokens")
