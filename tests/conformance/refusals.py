# SPDX-License-Identifier: BSD-3-Clause
"""Calls that every front end refuses, as data: a bad value for one argument of a right call.

refusals.json has the error that each front end gives, as "type: message", and null where one takes the call:
under "torch" for both of its ways, under "all" for every front end that is not named. Messages are promises.
`python -m tests.conformance.pins --write` writes the file, and a difference is to be read first.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import attnscale as at
import numpy as np

Q, K, V = (np.ones((2, 4, n, 8), np.float32) for n in (5, 7, 7))


def _options(name: str, /, **given: Any) -> dict[str, dict[str, Any]]:
    """Bad values of one option, by a name for each."""
    return {f"{name}: {word.replace('_', ' ')}": {name: x} for word, x in given.items()}


BAD: dict[str, dict[str, Any]] = {
    **_options("query", none=None, integers=Q.astype(int), complex=Q.astype(complex)),
    **_options("query", one_axis=Q[0, 0, 0], heads=np.repeat(Q, 2, 1)),
    **_options("query", list=[[1, 2]], text="text", batch=np.concatenate([Q, Q[:1]])),
    **_options("key", none=None, bool=K > 0, dim=K[..., :3], batch=np.concatenate([K, K[:1]]), few=K[:, :3]),
    **_options("value", integers=V.astype(int), keys=V[..., :3, :], heads=V[:, :3]),
    "groups: fewer keys": {"key": K[:, :2], "value": V[:, :2]},
    "groups: no multiple": {"key": K[:, :3], "value": V[:, :3], "enable_gqa": True},
    "groups: no value heads": {"value": V[:, :0], "enable_gqa": True},
    "groups: fewer queries": {"query": Q[:, :2], "enable_gqa": True},
    **_options("enable_gqa", number=0, text="no"),
    **_options("is_causal", text="yes", number=1, array=np.ones((2, 3))),
    **_options("causal", text="lower", bool=True, real=1.0, large=2**70, array=np.ones(2)),
    "causal: twice": {"is_causal": True, "causal": "bottom_right"},
    "causal: twice by number": {"is_causal": True, "causal": 3},
    **_options("window", number=3, three=(1, 2, 3), negative=(-1, 0), real=(1, 0.5)),
    **_options("layout", text="bsdh", none=None, number=3, list=["bhsd"]),
    **_options("normalizer", name="softmin", number=3, parameter="entmax(alpha=0.5)"),
    **_options("normalizer", heads=at.normalizers.Sink([1, 2, 3])),
    **_options("normalizer", missing="top_k", k="top_k(k=0)", unread="softmax_n(n=-1)"),
    **_options("normalizer", word="relu(divide='m')"),
    **_options("softcap", zero=0.0, infinite=np.inf, tiny=1e-40, large=1e39, text="50", bool=True),
    **_options("softcap", negative=-1),
    **_options("qk_norm", name="l1", number=2, bool=True),
    **_options("num_threads", zero=0, real=1.5, bool=True, many=2**31),
    **_options("attn_mask", integers=np.ones((5, 7), int), complex=np.ones((5, 7), complex)),
    **_options("attn_mask", empty=np.ones((0, 7), bool)),
    **_options("attn_mask", turned=np.ones((7, 5), bool), wide=np.ones((3, 2, 4, 5, 7), bool)),
    **_options("attn_mask", of_keys=np.ones((2, 7), bool), float_of_queries=np.ones((4, 5), np.float32)),
    **_options("key_lengths", large=8, negative=np.array([3, -1]), floats=np.array([1.0, 2.0])),
    **_options("key_lengths", three=np.array([1, 2, 3]), bools=np.array([True, True]), real=2.5),
    **_options("document_ids", runs=np.array([0, 1, 0, 0, 1, 1, 1]), floats=np.ones(7), few=np.array([0, 1])),
    **_options("document_ids", batch=np.zeros((3, 7), int), bools=np.zeros(7, bool)),
    "document_ids: queries beyond": {"document_ids": np.zeros(7, int), "causal": 5},
    "document_ids: more queries": {"query": np.ones((2, 4, 9, 8), "f4"), "document_ids": np.zeros(7, int)},
    **_options("scale", nan=np.nan, infinite=-np.inf, bool=True, complex=1j, kind=object),
    **_options("scale", missing="kappa", number="log_n(base=-1)", heads=at.laws.PerHead([1, 2, 3])),
    **_options("scale", array=np.array([0.1, 0.2, 0.3, 0.4, np.nan]), shape=np.ones(4)),
    **_options("scale", wide=np.ones((2, 4, 5, 1))),
    **_options("distance_bias", few=np.ones(3), nan=np.full(7, np.nan), heads=np.ones((3, 7)), number=1.0),
    **_options("distance_scale", few=np.ones(3), infinite=np.full(7, np.inf)),
    "distance_bias: lengths": {"distance_bias": np.ones(3), "is_causal": True},
    "distance_bias: far": {"distance_bias": np.ones(7), "causal": 5},
    "distance_bias: a function": {"distance_bias": np.negative},
    "measured law": {"scale": "critical_scale"},
    "measured law with a table": {"scale": "critical_scale", "distance_bias": np.ones(7)},
    **_options("statistics", name=("lse", "entrpy"), output="output", number=3, nested=[["lse"]]),
    "statistics: of no softmax": {"normalizer": "sparsemax", "statistics": ("lse",)},
    "statistics: of a sigmoid": {"normalizer": "sigmoid(bias=0.0)", "statistics": ("entropy",)},
}


def _on_tensors(backend: str) -> Callable[..., Any]:
    import torch

    def call(**given: Any) -> Any:
        turned = {name: torch.from_numpy(x) if isinstance(x, np.ndarray) else x for name, x in given.items()}
        return at.torch.attention_statistics(**turned, backend=backend)

    return call


def _on_jax(**given: Any) -> Any:
    return at.jax.attention_statistics(**given)


def _front_ends() -> dict[str, Callable[..., Any]]:
    found: dict[str, Callable[..., Any]] = {"NumPy": at.attention_statistics}
    if find_spec("torch"):
        found["torch, kernels"], found["torch, operations"] = _on_tensors("core"), _on_tensors("torch")
    if find_spec("jax"):
        found["JAX"] = _on_jax
    return found


FRONT_ENDS = _front_ends()
_TABLE = Path(__file__).with_name("refusals.json")


def refusal(front_end: str, name: str) -> str | None:
    """Error of a front end, or None if it takes the call."""
    try:
        FRONT_ENDS[front_end](**{"query": Q, "key": K, "value": V, **BAD[name]})
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def wanted(front_end: str, name: str) -> str | None:
    """Error of the call in the table."""
    told = json.loads(_TABLE.read_text(encoding="utf-8"))[name]
    found: str | None = told[next(x for x in (front_end, front_end.partition(",")[0], "all") if x in told)]
    return found


def write() -> None:
    """Write the table from the errors of the front ends."""
    table = {}
    for name in BAD:
        said = {each: refusal(each, name) for each in FRONT_ENDS}
        if said["torch, kernels"] == said["torch, operations"]:
            said["torch"] = said.pop("torch, kernels")
            del said["torch, operations"]
        common = said["NumPy"]
        others = {each: x for each, x in said.items() if x != common}
        table[name] = {"all": common, **others}
    lines = (f"{json.dumps(name)}: {json.dumps(said, ensure_ascii=False)}" for name, said in table.items())
    _TABLE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
