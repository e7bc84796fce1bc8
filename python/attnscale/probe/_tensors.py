# SPDX-License-Identifier: BSD-3-Clause
"""Tensors of a probe checkpoint, under the names of its family.

All layers are zero but one, of which one head speaks. Zeros are arrays of 16 bits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import _layout as lay
from ._families import Family
from ._feed_forward import feed_forward
from ._head import Columns, Head
from ._shrink import LATENT

Tensors = dict[str, NDArray[Any]]

#: Amplitude of the residual stream, and of the largest logit.
AMPLITUDE, LOGIT = 64.0, 8.0
#: Logit of the sinks.
SINK = 1.5


@dataclass(frozen=True)
class Norms:
    """Amplitudes before and behind the norms of a checkpoint.

    Attributes
    ----------
    table : float
        Entry of the matrix of words.
    stream : float
        Coordinate of a word in the residual stream.
    weight : float
        Weight of the norm before attention.
    normed : float
        Coordinate of a word behind it.
    """

    table: float
    stream: float
    weight: float
    normed: float


def norms_of(small: dict[str, Any], family: Family) -> Norms:
    """Amplitudes of powers of two wherever the family allows it."""
    factor = family.embedding(small)
    table = _power(AMPLITUDE / factor)
    stream = table * factor
    if not family.before:
        return Norms(table, stream, 1.0, stream)
    root = math.sqrt(small["hidden_size"] / (2 if family.centred else 1))
    weight = _power(1 / root)
    return Norms(table, stream, weight, root * weight)


def sixteen_bits(number: float) -> float:
    """The nearest number with 8 significant bits."""
    unit = 2.0 ** (math.floor(math.log2(abs(number))) - 7)
    return round(number / unit) * unit


def output_weight(small: dict[str, Any], family: Family, norms: Norms) -> float:
    """Entry of the output projection: a weight of 1 becomes the amplitude of a word, if no norm follows."""
    if family.after:
        return AMPLITUDE
    return sixteen_bits(norms.stream / (_value(family, norms) * family.residual(small)))


def weight_of_one(small: dict[str, Any], family: Family, norms: Norms) -> float | None:
    """Amplitude of a weight of 1 in units of that of a word, or None where a norm follows."""
    if family.after:
        return None
    weight = output_weight(small, family, norms)
    return weight * _value(family, norms) * family.residual(small) / norms.stream


def _value(family: Family, norms: Norms) -> float:
    """Amplitude of the value of a word."""
    return lay.FULL / lay.UNIT * (1.0 if family.latent else norms.normed)


def tensors_of(
    small: dict[str, Any],
    family: Family,
    head: Head,
    spoken: Columns,
    layer: int,
    gains: tuple[float, float],
) -> Tensors:
    """All tensors; `gains` are the weights of the norms of q and k."""
    norms = norms_of(small, family)
    hidden = small["hidden_size"]
    out: Tensors = {"model.embed_tokens.weight": _words(hidden, norms.table, family.centred)}
    if not small["tie_word_embeddings"]:
        out["lm_head.weight"] = out["model.embed_tokens.weight"]
    largest = norms.table * math.sqrt(hidden * (2 if family.centred else 1)) * family.logits(small)
    shift = 1.0 if family.plus_one else 0.0
    out["model.norm.weight"] = _full(hidden, LOGIT / largest - shift)
    for number in range(small["num_hidden_layers"]):
        at = f"model.layers.{number}."
        if family.before:
            out[f"{at}{family.before}.weight"] = _full(hidden, norms.weight - shift)
        if family.after:
            out[f"{at}{family.after}.weight"] = _full(
                hidden, _power(norms.stream / math.sqrt(hidden)) - shift
            )
        for name in family.others:
            out[f"{at}{name}.weight"] = _full(hidden, 1.0 - shift)
        part = _latent if family.latent else _attention
        for name, tensor in part(small, family, head, spoken if number == layer else None, norms).items():
            out[f"{at}self_attn.{name}"] = tensor
        out |= {f"{at}self_attn.{name}": x for name, x in _small_parts(small, family, head, gains).items()}
        out |= {f"{at}{name}": x for name, x in feed_forward(small, family, number).items()}
    return out


def _attention(
    small: dict[str, Any], family: Family, head: Head, spoken: Columns | None, norms: Norms
) -> Tensors:
    heads, groups, hidden = small["num_attention_heads"], small["num_key_value_heads"], small["hidden_size"]
    rows = {"q": heads * head.width, "k": groups * head.width, "v": groups * head.value_width}
    out = {name: _zeros(count, hidden) for name, count in rows.items()}
    if spoken is not None:
        for name, columns in zip("qkv", spoken, strict=True):
            out[name] = _placed((rows[name], hidden), columns)
    bias = _biased(small, family)
    found = {f"{name}_proj.weight": tensor for name, tensor in out.items()}
    if family.fused:
        found = {"qkv_proj.weight": np.concatenate(list(out.values()))}
    found |= {f"{name}_proj.bias": _zeros(rows.get(name, hidden)) for name in "qkvo" if name in bias}
    return found | {"o_proj.weight": _output(small, family, head, heads * head.value_width, spoken, norms)}


def _latent(
    small: dict[str, Any], family: Family, head: Head, spoken: Columns | None, norms: Norms
) -> Tensors:
    """Attention whose queries and keys pass through a latent: one coordinate a word that needs its own."""
    heads, hidden = small["num_attention_heads"], small["hidden_size"]
    still = head.first_rotated
    both = still + head.value_width
    tall = small.get("q_lora_rank") is not None
    out: Tensors = {"kv_a_layernorm.weight": _full(LATENT, 1 / math.sqrt(LATENT))}
    if tall:
        out["q_a_layernorm.weight"] = _full(LATENT, 1 / math.sqrt(LATENT))
    shapes = {
        "q_a_proj": (LATENT, hidden),
        "q_b_proj": (heads * head.width, LATENT),
        "q_proj": (heads * head.width, hidden),
        "kv_a_proj_with_mqa": (LATENT + head.rotated, hidden),
        "kv_b_proj": (heads * both, LATENT),
    }
    parts: Tensors = {}
    if spoken is not None:
        parts["q_proj"] = spoken.query
        parts["q_a_proj"], parts["q_b_proj"] = _split(spoken.query)
        down, parts["kv_b_proj"] = _split(np.concatenate([spoken.key[:still], spoken.value]))
        parts["kv_a_proj_with_mqa"] = np.concatenate([down, spoken.key[still:]])
    for name in ("q_a_proj", "q_b_proj") if tall else ("q_proj",):
        out[f"{name}.weight"] = _placed(shapes[name], parts.get(name))
    for name in ("kv_a_proj_with_mqa", "kv_b_proj"):
        out[f"{name}.weight"] = _placed(shapes[name], parts.get(name))
    if small.get("attention_bias"):
        out |= {"kv_a_proj_with_mqa.bias": _zeros(LATENT + head.rotated), "o_proj.bias": _zeros(hidden)}
        if tall:
            out["q_a_proj.bias"] = _zeros(LATENT)
    return out | {"o_proj.weight": _output(small, family, head, heads * head.value_width, spoken, norms)}


def _split(columns: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Two factors of columns: words that have equal ones share a coordinate of the latent.

    Words of the first blocks of the vocabulary have coordinates of the first half of the latent, so that
    unequal amplitudes of a channel lie in different blocks of 32.
    """
    down, up = np.zeros((LATENT, columns.shape[1])), np.zeros((columns.shape[0], LATENT))
    places: dict[bytes, int] = {}
    free = {False: list(range(LATENT // 2)), True: list(range(LATENT // 2, LATENT))}
    for token in np.flatnonzero(columns.any(axis=0)).tolist():
        name = columns[:, token].tobytes()
        if name not in places:
            places[name] = free[token >= lay.KEY].pop(0)
            up[:, places[name]] = columns[:, token]
        down[places[name], token] = AMPLITUDE
    return down, up


def _output(
    small: dict[str, Any], family: Family, head: Head, columns: int, spoken: Columns | None, norms: Norms
) -> NDArray[Any]:
    hidden = small["hidden_size"]
    if spoken is None:
        return _zeros(hidden, columns)
    weight, out = output_weight(small, family, norms), np.zeros((hidden, columns), np.float32)
    marks = [mark for token in range(lay.VOCABULARY) if (mark := lay.class_of(token)) is not None]
    places = [(lay.READ + mark, mark) for mark in marks] + [(lay.REST, head.value_width - 1)]
    for row, column in places:
        out[row, column] = weight
        if family.centred:
            out[row + lay.VOCABULARY, column] = -weight
    return out


def _small_parts(small: dict[str, Any], family: Family, head: Head, gains: tuple[float, float]) -> Tensors:
    """Norms of q and k, and sinks."""
    out: Tensors = {}
    shift = 1.0 if family.plus_one else 0.0
    if family.qk_norm in ("head", "all"):
        counts = (small["num_attention_heads"], small["num_key_value_heads"])
        for name, count, gain in zip("qk", counts, gains, strict=True):
            size = head.width * (count if family.qk_norm == "all" else 1)
            out[f"{name}_norm.weight"] = _full(size, gain - shift)
    if family.sinks:
        out["sinks"] = _full(small["num_attention_heads"], SINK)
    return out


def _biased(small: dict[str, Any], family: Family) -> str:
    given = small.get("attention_bias")
    return family.optional_bias if (family.bias_is_set if given is None else given) else family.biased


def _words(hidden: int, table: float, centred: bool) -> NDArray[np.float32]:
    out = np.zeros((lay.VOCABULARY, hidden), np.float32)
    where = np.arange(lay.VOCABULARY)
    out[where, where] = table
    if centred:
        out[where, where + lay.VOCABULARY] = -table
    return out


def _placed(shape: tuple[int, int], part: NDArray[np.float64] | None) -> NDArray[Any]:
    if part is None:
        return _zeros(*shape)
    out = np.zeros(shape, np.float32)
    out[: part.shape[0], : part.shape[1]] = part
    return out


def _full(size: int, value: float) -> NDArray[np.float32]:
    return np.full(size, value, np.float32)


def _zeros(*shape: int) -> NDArray[np.float16]:
    return np.zeros(shape, np.float16)


def _power(number: float) -> float:
    return float(2.0 ** round(math.log2(number)))
