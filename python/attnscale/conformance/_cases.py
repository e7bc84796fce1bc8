# SPDX-License-Identifier: BSD-3-Clause
"""Calls of attention by name, with options as the functions of attnscale.reference take them.

The numbers of ``CASES`` are exact in bfloat16, and so in every other type: a call has the same answer for all
types of its arrays. Float64 arrays among the options, and laws and normalizers given as objects, are
differentiated; spelled ones are not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import combinations
from typing import Any

import numpy as np

from .. import laws, normalizers
from ._call import N_HEADS, Case, Sizes, draw

Options = dict[str, dict[str, Any]]


def _visible(s: Sizes) -> dict[str, Options]:
    """Options of visibility in groups; each is combined with every option of the other groups."""
    return {
        "causal": {
            "causal": {"is_causal": True},
            "bottom right": {"causal": "bottom_right"},
            "from 1": {"causal": 1},
            "from -2": {"causal": -2},
        },
        "window": {"window": {"window": (2, 1)}, "open window": {"window": (None, 0)}},
        "lengths": {
            "lengths": {"key_lengths": s.lengths},
            "lengths + 3": {"key_lengths": s.lengths * 7 // 4},
        },
        "documents": {"documents": {"document_ids": s.documents}, "batch ids": {"document_ids": s.of_batch}},
        "mask": {
            "mask": {"attn_mask": s.hidden},
            "mask of keys": {"attn_mask": np.arange(s.keys) % 3 > 0},
            "float mask": {"attn_mask": s.bias},
        },
    }


def _masks(s: Sizes) -> Options:
    return {
        "mask of queries": {"attn_mask": np.arange(s.queries)[:, None] != 2},
        "mask of one": {"attn_mask": np.array(True)},
        "mask of nothing": {"attn_mask": np.array(False)},
        "mask in steps": {"attn_mask": np.asfortranarray(s.hidden[..., ::-1, :])},
        "float mask of heads": {"attn_mask": s.draw(N_HEADS, 1, 1)},
        "float mask of keys": {"attn_mask": s.draw(s.keys).astype(np.float32), "is_causal": True},
        "float mask of one": {"attn_mask": np.array(0.5)},
        "float16 mask": {"attn_mask": s.draw(1, s.queries, s.keys).astype(np.float16)},
        "low float16": {"attn_mask": s.low(np.float16)},
        "low float32": {"attn_mask": s.low(np.float32), "scale": "log_n(base=3)"},
        "low float64": {"attn_mask": s.low(np.float64)},
        "open on both sides": {"window": (None, None)},
        "far window": {"window": (2**60, None), "causal": -3, "key_lengths": s.lengths},
        "beyond the keys": {"causal": 2**60},
        "beyond the keys, window": {
            "causal": s.keys + 2,
            "window": (5, None),
            "key_lengths": np.minimum(2 * s.lengths, s.keys),
        },
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


def _laws(s: Sizes) -> Options:
    rows: Options = {
        "all": {},
        "documents": {"document_ids": s.documents, "is_causal": True},
        "lengths": s.ending,
        "mask": {"attn_mask": s.hidden, "window": (3, 1)},
    }
    return {f"{law}: {name}": {"scale": law, **x} for law in LAWS for name, x in rows.items()}


def _scales(s: Sizes) -> Options:
    return {
        "number": {"scale": -0.5},
        "zero": {"scale": 0.0, "is_causal": True},
        "scales of heads": {"scale": np.array([[0.125], [0.25], [0.5], [1.0]]), "is_causal": True},
        "scales of rows": {"scale": s.draw(s.batch, N_HEADS, s.queries), "softcap": 2.0},
        "scales of queries": {"scale": s.draw(s.queries), "key_lengths": s.lengths},
        "scales of a batch": {"scale": s.draw(s.batch, 1, 1).astype(np.float32), "attn_mask": s.hidden},
        "scales that are integers": {"scale": np.array([[1], [-2], [0], [3]])},
        "scales in steps": {"scale": s.draw(N_HEADS, 2 * s.queries)[:, ::-2], "is_causal": True},
        "ssmax to learn": {"scale": laws.SSMax(s=(0.25, 0.5, 0.75, 1.0), b=-0.25), "is_causal": True},
        "laws of heads to learn": {"scale": laws.PerHead([0.5, 1.0, 1.5, 0.25]), "document_ids": s.documents},
        "training length to learn": {"scale": laws.LogNFromTraining(train_length=3.5), "is_causal": True},
        "factors to learn": {"scale": laws.get("[1, 2, 3, 4] * ssmax(s=0.25)"), "softcap": 3.0},
        "factor to learn": {"scale": 0.75 * laws.LogN(base=3.0), "attn_mask": s.hidden},
        "soft-cap": {"softcap": 2.0, "is_causal": True},
        "soft-cap and mask": {"softcap": 0.75, "attn_mask": s.bias},
        "l2": {"qk_norm": "l2", "scale": 4.0},
        "rms": {"qk_norm": "rms", "softcap": 2.0, "is_causal": True},
        "l2 and law": {"qk_norm": "l2", "scale": "ssmax(s=2)", "document_ids": s.of_batch, "is_causal": True},
    }


def _distances(s: Sizes) -> Options:
    """Tables of distances; one of 16 numbers also holds the distances of queries that are moved."""
    factors, added = np.abs(s.draw(N_HEADS, s.keys)) + 0.5, s.draw(s.keys)
    by_document: dict[str, Any] = {"document_ids": s.documents}
    return {
        "factors": {"distance_scale": factors},
        "biases": {"distance_bias": added, "is_causal": True},
        "biases of heads": {"distance_bias": s.draw(N_HEADS, s.keys), "softcap": 2.0},
        "both tables": {"distance_scale": factors, "distance_bias": added, "scale": 0.5},
        "tables from 3": {"distance_bias": s.draw(16), "causal": 3},
        "tables from -2": {"distance_scale": np.abs(s.draw(16)), "causal": -2, "window": (2, None)},
        "tables and lengths": {"distance_bias": s.draw(N_HEADS, 16), **s.ending},
        "tables and documents": {"distance_bias": added, "is_causal": True, **by_document},
        "tables and mask": {"distance_scale": factors, "attn_mask": s.bias},
        "tables, lengths and documents": {"distance_bias": s.draw(N_HEADS, 16), **by_document, **s.ending},
        "a table, a mask and a negative scale": {"distance_bias": added, "attn_mask": s.bias, "scale": -0.25},
        "table of a function": {"distance_bias": lambda t: -0.125 * np.abs(t) + 0.0625 * t, "causal": 2},
        "table and law": {"distance_bias": added, "scale": "scale_invariant", "is_causal": True},
        "table and l2": {"distance_scale": factors, "qk_norm": "l2", "scale": 3.0},
    }


NORMALIZERS = (
    *("softmax_n(n=2)", "sink(logits=[0.0, 1.0, 0.5, 2.0])", "sparsemax", "entmax(alpha=1.3)"),
    *("entmax(alpha=3)", "top_k(k=3)", "sigmoid", "sigmoid(bias=-1.0)", "relu", "relu(divide='sum')"),
    *("squared_relu", "softpick"),
)


def _normalizers(s: Sizes) -> Options:
    beside: Options = {
        "all": {},
        "mask": {"attn_mask": s.hidden},
        "lengths": {**s.ending, "softcap": 3.0},
        "law": {"scale": "log_n(base=3)", "document_ids": s.documents, "is_causal": True},
    }
    return {
        f"{each}: {name}": {"normalizer": each, **x} for each in NORMALIZERS for name, x in beside.items()
    }


def _to_learn(s: Sizes) -> Options:
    return {
        "sink to learn": {"normalizer": normalizers.Sink([0.0, 1.0, 0.5, 2.0]), "is_causal": True},
        "one sink to learn": {"normalizer": normalizers.Sink(0.5), "key_lengths": s.lengths},
        "bias to learn": {"normalizer": normalizers.Sigmoid(-0.5), "attn_mask": s.hidden},
        "alpha to learn": {"normalizer": normalizers.Entmax(1.5), "is_causal": True},
        "alpha 1.25 to learn": {"normalizer": normalizers.Entmax(1.25), "attn_mask": s.hidden},
        "alpha 3 to learn": {"normalizer": normalizers.Entmax(3.0)},
    }


def _everything(s: Sizes) -> Options:
    return {
        "everything": {
            "window": (5, None),
            "attn_mask": s.hidden,
            "document_ids": s.of_batch,
            "softcap": 3.0,
            "scale": "log_n(base=3)",
            "distance_bias": s.draw(N_HEADS, 16),
            "normalizer": "softmax_n(n=1)",
            **s.ending,
        }
    }


CAUSAL = {"causal": "bottom_right"}
LENGTHS = np.array([4, 0])
HIDDEN = Sizes().hidden
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


def all_cases(sizes: Callable[[], Sizes]) -> dict[str, Case]:
    """Every case by its name; each group has sizes of its own."""
    cases = {"plain": sizes().case({})}
    for table in (_masks, _scales, _distances, _to_learn, _everything, _pairs, _alone, _laws, _normalizers):
        s = sizes()
        cases |= {name: s.case(options) for name, options in table(s).items()}
    return cases | SHAPES


def _pairs(s: Sizes) -> Options:
    """Pairs of options of visibility."""
    return {
        f"{a} + {b}": one[a] | other[b]
        for one, other in combinations(_visible(s).values(), 2)
        for a in one
        for b in other
    }


def _alone(s: Sizes) -> Options:
    return {name: options for group in _visible(s).values() for name, options in group.items()}


#: Every call by name: options, shapes, and replaced numbers.
CASES: Mapping[str, Case] = all_cases(Sizes)
