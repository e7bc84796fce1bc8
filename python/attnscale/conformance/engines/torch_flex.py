# SPDX-License-Identifier: BSD-3-Clause
"""flex_attention of PyTorch without compilation: a block mask hides, a score function adds and caps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ._engine import Engine, refuse
from ._torch import mask_to_torch, run, to_torch

Rule = Callable[[Any, Any, Any, Any], Any]


def _attend(
    query: Any,
    key: Any,
    value: Any,
    *,
    attn_mask: Any = None,
    softcap: float | None = None,
    scale: Any = None,
    enable_gqa: bool = False,
    **rest: Any,
) -> Any:
    import warnings

    import torch
    from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention

    hiding = ("is_causal", "causal", "window", "key_lengths", "document_ids")
    seen = {name: rest.pop(name) for name in hiding if name in rest}
    refuse(rest, query, key, value)
    if np.ndim(scale) or query.shape[0] != key.shape[0] or key.shape[:3] != value.shape[:3]:
        raise NotImplementedError("one scale, one batch, and as many heads of keys as of values")
    batch, heads, n_queries, _ = query.shape
    n_keys = key.shape[2]
    mask = mask_to_torch(attn_mask, query)
    if mask is not None:
        mask = mask.expand(batch, heads, n_queries, n_keys)
    hides = mask is not None and not mask.is_floating_point()
    rules = _rules(seen, batch, n_queries, n_keys) + ([_lookup(mask)] if hides else [])
    block = None
    if rules:
        block = create_block_mask(_all(rules), batch, heads, n_queries, n_keys, device="cpu")

    def score(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        s = s if softcap is None else softcap * (s / softcap).tanh()
        return s if mask is None or hides else s + mask[b, h, i, j]

    def call(q: Any, k: Any, v: Any) -> Any:
        options = {"scale": None if scale is None else float(scale), "enable_gqa": enable_gqa}
        output, aux = flex_attention(q, k, v, score, block, return_aux=AuxRequest(lse=True), **options)
        return {"output": output, "lse": aux.lse}

    with torch.compiler.set_stance("force_eager"), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "flex_attention called without torch.compile")
        return run(call, query, key, value, differentiated=())  # it refuses gradients on a CPU


def _rules(seen: dict[str, Any], batch: int, n_queries: int, n_keys: int) -> list[Rule]:
    """A function for each option that hides keys; query i stands at i + first[b] among the keys."""
    lengths = np.broadcast_to(n_keys if seen.get("key_lengths") is None else seen["key_lengths"], (batch,))
    causal, is_causal = seen.get("causal"), seen.get("is_causal")
    start = lengths - n_queries if causal == "bottom_right" else 0 if isinstance(causal, str) else causal or 0
    first, ends = to_torch(np.broadcast_to(start, (batch,))), to_torch(lengths)
    left, right = seen.get("window") or (None, None)
    rules: list[Rule] = []
    if is_causal or causal is not None:
        rules.append(lambda b, h, i, j: j <= i + first[b])
    if left is not None:
        rules.append(lambda b, h, i, j: j >= i + first[b] - left)
    if right is not None:
        rules.append(lambda b, h, i, j: j <= i + first[b] + right)
    if seen.get("key_lengths") is not None:
        rules.append(lambda b, h, i, j: j < ends[b])
    if seen.get("document_ids") is not None:
        if causal not in (None, "top_left", 0) or n_queries > n_keys:
            raise NotImplementedError("documents of texts that begin with their first key")
        ids = to_torch(np.broadcast_to(seen["document_ids"], (batch, n_keys)))
        rules.append(lambda b, h, i, j: ids[b, i] == ids[b, j])
    return rules


def _lookup(mask: Any) -> Rule:
    return lambda b, h, i, j: mask[b, h, i, j]


def _all(rules: list[Rule]) -> Rule:
    def rule(b: Any, h: Any, i: Any, j: Any) -> Any:
        seen = rules[0](b, h, i, j)
        for each in rules[1:]:
            seen = seen & each(b, h, i, j)
        return seen

    return rule


FLEX = Engine(
    name="torch-flex",
    call="torch.nn.attention.flex_attention.flex_attention",
    package="torch",
    run_with="2.13.0, 2.15.0",
    attend=_attend,
    uses="torch.nn.attention.flex_attention.AuxRequest",
    notes="Not compiled. What hides is a block mask of a function; float masks and the soft-cap are a score "
    "function, the cap first.",
)
