# SPDX-License-Identifier: BSD-3-Clause
"""Calls of attention as data: shapes, and options as the functions of attnscale.reference take them.

All numbers are exact in bfloat16, and so in every other type: a call has the same answer for all types of
its arrays. Float64 arrays among the options, and laws and normalizers given as objects, are
differentiated; spelled ones are not.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from .. import laws, normalizers

Shape = tuple[int, ...]


class Case(NamedTuple):
    """A call: options, shapes of query, key and value (or None), and replaced numbers."""

    options: Mapping[str, Any] = MappingProxyType({})
    query: Shape = (2, 4, 7, 6)
    key: Shape = (2, 4, 9, 6)
    value: Shape | None = (2, 4, 9, 5)
    #: Array, index and number of each replacement.
    edits: tuple[tuple[str, Any, float], ...] = ()

    def arrays(self) -> list[Any]:
        """Query, key and value in float64."""
        shapes = {"query": self.query, "key": self.key, "value": self.value}
        drawn: dict[str, Any] = {
            name: None if shape is None else draw(*shape) for name, shape in shapes.items()
        }
        for name, place, number in self.edits:
            drawn[name][place] = number
        return list(drawn.values())


def draw(*shape: int, seed: int = 1) -> Any:
    """Normal numbers with eight significant bits, different for each shape."""
    rng = np.random.default_rng([seed, *shape])
    bits = rng.standard_normal(shape, np.float32).view(np.uint32) & np.uint32(0xFFFF0000)
    return bits.view(np.float32).astype(np.float64)


N_QUERIES, N_KEYS = 7, 9
HIDDEN = np.random.default_rng(26).random((2, 1, N_QUERIES, N_KEYS)) > 0.3
HIDDEN[0, 0, 3] = False  # a query without keys
LENGTHS = np.array([4, 0])
#: The key lengths 4 and 7 end inside documents.
DOCUMENTS = np.array([0, 0, 0, 1, 1, 2, 2, 2, 2])
OF_BATCH = np.array([[5, 5, 1, 1, 1, 1, 3, 3, 3], [0, 1, 1, 1, 1, 1, 1, 2, 2]])
BIAS = np.where(HIDDEN, draw(2, 4, N_QUERIES, N_KEYS), -np.inf)


def low(dtype: Any) -> Any:
    """A mask that hides by the lowest number of its type."""
    return np.where(HIDDEN, dtype(0.5), np.finfo(dtype).min)


#: Options of visibility in groups; each is combined with every option of the other groups.
VISIBLE: dict[str, dict[str, dict[str, Any]]] = {
    "causal": {
        "causal": {"is_causal": True},
        "bottom right": {"causal": "bottom_right"},
        "from 1": {"causal": 1},
        "from -2": {"causal": -2},
    },
    "window": {"window": {"window": (2, 1)}, "open window": {"window": (None, 0)}},
    "lengths": {"lengths": {"key_lengths": LENGTHS}, "lengths 7": {"key_lengths": LENGTHS * 7 // 4}},
    "documents": {"documents": {"document_ids": DOCUMENTS}, "batch ids": {"document_ids": OF_BATCH}},
    "mask": {
        "mask": {"attn_mask": HIDDEN},
        "mask of keys": {"attn_mask": np.arange(N_KEYS) % 3 > 0},
        "float mask": {"attn_mask": BIAS},
    },
}
MASKS = {
    "mask of queries": {"attn_mask": np.arange(N_QUERIES)[:, None] != 2},
    "mask of one": {"attn_mask": np.array(True)},
    "mask of nothing": {"attn_mask": np.array(False)},
    "mask in steps": {"attn_mask": np.asfortranarray(HIDDEN[..., ::-1, :])},
    "float mask of heads": {"attn_mask": draw(4, 1, 1)},
    "float mask of keys": {"attn_mask": draw(N_KEYS).astype(np.float32), "is_causal": True},
    "float mask of one": {"attn_mask": np.array(0.5)},
    "float16 mask": {"attn_mask": draw(1, N_QUERIES, N_KEYS).astype(np.float16)},
    "low float16": {"attn_mask": low(np.float16)},
    "low float32": {"attn_mask": low(np.float32), "scale": "log_n(base=3)"},
    "low float64": {"attn_mask": low(np.float64)},
    "open on both sides": {"window": (None, None)},
    "far window": {"window": (2**60, None), "causal": -3, "key_lengths": LENGTHS},
    "beyond the keys": {"causal": 2**60},
    "beyond the keys, window": {"causal": 11, "window": (5, None), "key_lengths": LENGTHS * 2},
    "one length": {"key_lengths": 5},
    "no keys by length": {"key_lengths": 0, "causal": "bottom_right"},
}

#: Laws for each meaning of n, and without one.
LAWS = (
    *("unscaled", "log_n(base=3)", "entropy_invariant", "annealed", "natural_log_n", "ssmax(s=0.43)"),
    *("llama4_temperature(floor=2)", "ministral_temperature(length=3)", "beam_temperature", "lssa"),
    *("scale_invariant", "adaptive_temperature", "critical_scale", "norm_softmax"),
    "per_head(values=(1, 2, 0.5, 0.1))",
)
#: Options that determine each row's n.
ROWS: dict[str, dict[str, Any]] = {
    "all": {},
    "documents": {"document_ids": DOCUMENTS, "is_causal": True},
    "lengths": {"key_lengths": LENGTHS + 4, "causal": "bottom_right"},
    "mask": {"attn_mask": HIDDEN, "window": (3, 1)},
}
SCALES: dict[str, dict[str, Any]] = {
    "number": {"scale": -0.5},
    "zero": {"scale": 0.0, "is_causal": True},
    "scales of heads": {"scale": np.array([[0.125], [0.25], [0.5], [1.0]]), "is_causal": True},
    "scales of rows": {"scale": draw(2, 4, N_QUERIES), "softcap": 2.0},
    "scales of queries": {"scale": draw(N_QUERIES), "key_lengths": LENGTHS},
    "scales of a batch": {"scale": draw(2, 1, 1).astype(np.float32), "attn_mask": HIDDEN},
    "scales that are integers": {"scale": np.array([[1], [-2], [0], [3]])},
    "scales in steps": {"scale": draw(4, 2 * N_QUERIES)[:, ::-2], "is_causal": True},
    "ssmax to learn": {"scale": laws.SSMax(s=(0.25, 0.5, 0.75, 1.0), b=-0.25), "is_causal": True},
    "laws of heads to learn": {"scale": laws.PerHead([0.5, 1.0, 1.5, 0.25]), "document_ids": DOCUMENTS},
    "training length to learn": {"scale": laws.LogNFromTraining(train_length=3.5), "is_causal": True},
    "factors to learn": {"scale": laws.get("[1, 2, 3, 4] * ssmax(s=0.25)"), "softcap": 3.0},
    "factor to learn": {"scale": 0.75 * laws.LogN(base=3.0), "attn_mask": HIDDEN},
    "soft-cap": {"softcap": 2.0, "is_causal": True},
    "soft-cap and mask": {"softcap": 0.75, "attn_mask": BIAS},
    "l2": {"qk_norm": "l2", "scale": 4.0},
    "rms": {"qk_norm": "rms", "softcap": 2.0, "is_causal": True},
    "l2 and law": {"qk_norm": "l2", "scale": "ssmax(s=2)", "document_ids": OF_BATCH, "is_causal": True},
}
#: Keys end before the last one, and the last query sees the last of them.
ENDING: dict[str, Any] = {"key_lengths": LENGTHS + 4, "causal": "bottom_right"}
FACTORS, ADDED = np.abs(draw(4, N_KEYS)) + 0.5, draw(N_KEYS)
DISTANCES: dict[str, dict[str, Any]] = {
    "factors": {"distance_scale": FACTORS},
    "biases": {"distance_bias": ADDED, "is_causal": True},
    "biases of heads": {"distance_bias": draw(4, N_KEYS), "softcap": 2.0},
    "both tables": {"distance_scale": FACTORS, "distance_bias": ADDED, "scale": 0.5},
    "tables from 3": {"distance_bias": draw(16), "causal": 3},
    "tables from -2": {"distance_scale": np.abs(draw(16)), "causal": -2, "window": (2, None)},
    "tables and lengths": {"distance_bias": draw(4, 16), **ENDING},
    "tables and documents": {"distance_bias": ADDED, "document_ids": DOCUMENTS, "is_causal": True},
    "tables and mask": {"distance_scale": FACTORS, "attn_mask": BIAS},
    "tables, lengths and documents": {"distance_bias": draw(4, 16), "document_ids": DOCUMENTS, **ENDING},
    "a table, a mask and a negative scale": {"distance_bias": ADDED, "attn_mask": BIAS, "scale": -0.25},
    "table of a function": {"distance_bias": lambda t: -0.125 * np.abs(t) + 0.0625 * t, "causal": 2},
    "table and law": {"distance_bias": ADDED, "scale": "scale_invariant", "is_causal": True},
    "table and l2": {"distance_scale": FACTORS, "qk_norm": "l2", "scale": 3.0},
}
NORMALIZERS = (
    *("softmax_n(n=2)", "sink(logits=[0.0, 1.0, 0.5, 2.0])", "sparsemax", "entmax(alpha=1.3)"),
    *("entmax(alpha=3)", "top_k(k=3)", "sigmoid", "sigmoid(bias=-1.0)", "relu", "relu(divide='sum')"),
    *("squared_relu", "softpick"),
)
BESIDE: dict[str, dict[str, Any]] = {
    "all": {},
    "mask": {"attn_mask": HIDDEN},
    "lengths": {**ENDING, "softcap": 3.0},
    "law": {"scale": "log_n(base=3)", "document_ids": DOCUMENTS, "is_causal": True},
}
TO_LEARN: dict[str, dict[str, Any]] = {
    "sink to learn": {"normalizer": normalizers.Sink([0.0, 1.0, 0.5, 2.0]), "is_causal": True},
    "one sink to learn": {"normalizer": normalizers.Sink(0.5), "key_lengths": LENGTHS},
    "bias to learn": {"normalizer": normalizers.Sigmoid(-0.5), "attn_mask": HIDDEN},
    "alpha to learn": {"normalizer": normalizers.Entmax(1.5), "is_causal": True},
    "alpha 1.25 to learn": {"normalizer": normalizers.Entmax(1.25), "attn_mask": HIDDEN},
    "alpha 3 to learn": {"normalizer": normalizers.Entmax(3.0)},
}
EVERYTHING: dict[str, Any] = {
    "causal": "bottom_right",
    "window": (5, None),
    "attn_mask": HIDDEN,
    "key_lengths": LENGTHS + 4,
    "document_ids": OF_BATCH,
    "softcap": 3.0,
    "scale": "log_n(base=3)",
    "distance_bias": draw(4, 16),
    "normalizer": "softmax_n(n=1)",
}

CAUSAL = {"causal": "bottom_right"}
SHAPES: dict[str, Case] = {
    "two axes": Case({"is_causal": True}, (5, 4), (6, 4), (6, 3)),
    "two axes and a sink": Case({"normalizer": "softmax_1"}, (5, 4), (6, 4), (6, 3)),
    "three axes": Case(CAUSAL, (3, 5, 4), (3, 6, 4), (3, 6, 3)),
    "one query": Case({}, (2, 3, 1, 4), (2, 3, 6, 4), (2, 3, 6, 3)),
    "bshd": Case({"layout": "bshd", "is_causal": True}, (2, 5, 4, 8), (2, 6, 4, 8), (2, 6, 4, 3)),
    "bshd of two axes": Case({"layout": "bshd", **CAUSAL}, (5, 4), (6, 4), (6, 3)),
    "bshd and lengths": Case(
        {"layout": "bshd", "key_lengths": LENGTHS}, (2, 5, 4, 8), (2, 6, 4, 8), (2, 6, 4, 3)
    ),
    "bshd, one key head": Case({"layout": "bshd"}, (2, 5, 4, 8), (2, 6, 1, 8), (1, 6, 1, 3)),
    "grouped": Case({"enable_gqa": True}, (2, 4, 5, 8), (2, 2, 6, 8), (2, 2, 6, 3)),
    "grouped otherwise": Case({"enable_gqa": True, **CAUSAL}, (2, 6, 5, 8), (2, 3, 6, 8), (2, 1, 6, 3)),
    "grouped and masked": Case(
        {"enable_gqa": True, "attn_mask": draw(4, 5, 6), "key_lengths": LENGTHS},
        *((2, 4, 5, 8), (2, 2, 6, 8), (2, 2, 6, 3)),
    ),
    "grouped bshd": Case(
        {"enable_gqa": True, "layout": "bshd", "scale": draw(4, 1)},
        *((2, 5, 4, 8), (2, 6, 2, 8), (2, 6, 2, 3)),
    ),
    "shared query": Case({}, (1, 1, 6, 8), (2, 4, 6, 8), (2, 4, 6, 8)),
    "shared keys": Case(CAUSAL, (2, 4, 5, 8), (1, 1, 6, 8), (6, 3)),
    "batch of the query": Case({"is_causal": True}, (2, 3, 5, 4), (3, 6, 4), (6, 3)),
    "batch of the value": Case({}, (4, 5, 8), (4, 6, 8), (3, 1, 4, 6, 3)),
    "two batch axes": Case(
        {"key_lengths": np.array([[1], [3]])}, (2, 3, 2, 5, 4), (2, 1, 2, 4, 4), (3, 2, 4, 3)
    ),
    "no value": Case({"is_causal": True}, value=None),
    "no value, entmax": Case({"normalizer": "entmax(alpha=1.5)"}, value=None),
    "documents of a batch": Case(
        {"document_ids": np.array([[0, 0, 1, 1], [2, 1, 1, 3]]), "is_causal": True},
        *((3, 1, 2, 4, 4), (2, 2, 4, 4), (2, 2, 4, 3)),
    ),
    "documents, bshd, grouped": Case(
        {
            "document_ids": np.array([0, 0, 1, 1, 1, 2]),
            "layout": "bshd",
            "enable_gqa": True,
            "scale": draw(2, 1, 5),
        },
        *((2, 5, 4, 8), (2, 6, 2, 8), (2, 6, 2, 3)),
    ),
    "documents of no batch": Case(
        {"document_ids": np.array([0, 1, 1]), "key_lengths": 2}, (0, 2, 3, 4), (0, 2, 3, 4), (0, 2, 3, 4)
    ),
    "no keys, tables": Case({"distance_bias": np.ones(9)}, (3, 5, 4), (3, 0, 4), (3, 0, 3)),
    "a law and two axes": Case({"scale": "ssmax(s=0.43)", "is_causal": True}, (5, 4), (6, 4), (6, 3)),
    "a table and two axes": Case(
        {"distance_bias": draw(16), "key_lengths": 4, **CAUSAL}, (5, 4), (6, 4), (6, 3)
    ),
    "no queries": Case(CAUSAL, (2, 3, 0, 4), (2, 3, 6, 4), (2, 3, 6, 3)),
    "no keys": Case(CAUSAL, (2, 3, 5, 4), (2, 3, 0, 4), (2, 3, 0, 3)),
    "no keys but a sink": Case({"normalizer": "softmax_n(n=2)"}, (2, 3, 5, 4), (2, 3, 0, 4), (2, 3, 0, 3)),
    "no heads": Case({}, (2, 0, 5, 4), (2, 0, 6, 4), (2, 0, 6, 3)),
    "no batch": Case({"is_causal": True}, (0, 3, 5, 4), (0, 3, 6, 4), (0, 3, 6, 3)),
    "no channels": Case({}, (3, 5, 0), (3, 6, 0), (3, 6, 3)),
    "no channels of the value": Case({}, (3, 5, 4), (3, 6, 4), (3, 6, 0)),
    "tiles": Case({"is_causal": True, "window": (40, None)}, (2, 67, 16), (2, 67, 16), (2, 67, 16)),
    "a hidden NaN": Case(
        {"key_lengths": np.array([5, 4])},
        edits=(("key", np.s_[..., 5, 1], np.nan), ("value", np.s_[..., 6:, :], np.inf)),
    ),
    "a NaN in a key": Case({"is_causal": True}, edits=(("key", np.s_[:, :, 3, 1], np.nan),)),
    "an infinity in a key": Case({"is_causal": True}, edits=(("key", np.s_[:, 1, 3, 1], np.inf),)),
    "a NaN in a query": Case({"attn_mask": HIDDEN}, edits=(("query", np.s_[:, :, 2, 1], np.nan),)),
    "an infinity in a value": Case({"is_causal": True}, edits=(("value", np.s_[:, :, 3, 1], np.inf),)),
    "a row of zeros": Case(
        {"qk_norm": "rms"}, edits=(("query", np.s_[..., 2, :], 0), ("key", np.s_[..., 4, :], 0))
    ),
}


def _all() -> dict[str, Case]:
    """Every case by its name."""
    cases = {"plain": Case()}
    options = [MASKS, SCALES, DISTANCES, TO_LEARN, {"everything": EVERYTHING}]
    for one, other in combinations(VISIBLE.values(), 2):
        options.append({f"{a} + {b}": one[a] | other[b] for a in one for b in other})
    options += VISIBLE.values()
    options += ({f"{law}: {name}": {"scale": law, **x} for name, x in ROWS.items()} for law in LAWS)
    options += (
        {f"{each}: {name}": {"normalizer": each, **x} for name, x in BESIDE.items()} for each in NORMALIZERS
    )
    for group in options:
        cases |= {name: Case(x) for name, x in group.items()}
    return cases | SHAPES


#: Every call by name: options, shapes, and replaced numbers.
CASES = _all()
