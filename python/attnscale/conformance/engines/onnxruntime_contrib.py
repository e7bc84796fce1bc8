# SPDX-License-Identifier: BSD-3-Clause
"""MultiHeadAttention and GroupQueryAttention, operators of ONNX Runtime's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ._calls import added_mask, heads_agree, one_number, sink_logits, swap_heads
from ._engine import Engine, refuse
from .onnx_attention import REQUIREMENTS_OF_RUNTIME, one_node, runtime

_DOMAIN = "com.microsoft"
#: The lowest number that the operator adds where a key is hidden, in place of its default, -10000.
_HIDDEN = -3.4e38


def _run(
    operator: str,
    slots: str,
    outputs: tuple[str, ...],
    attributes: Mapping[str, Any],
    inputs: Mapping[str, Any],
) -> list[Any]:
    names = tuple(name if name in inputs else "" for name in slots.split())
    return list(
        one_node(runtime, operator, names, outputs, attributes, inputs, _DOMAIN).run(None, dict(inputs))
    )


def _texts(arrays: tuple[Any, ...], enable_gqa: bool) -> dict[str, Any]:
    """Arrays (batch, n, heads * dim), and checks that the operators do not make."""
    heads_agree(arrays, enable_gqa)
    if not all(x.size for x in arrays):
        raise NotImplementedError("no arrays without numbers")
    return {
        name: np.ascontiguousarray(x).reshape(*x.shape[:2], -1)
        for name, x in zip("qkv", swap_heads(arrays), strict=True)
    }


def _multi_head(
    query: Any,
    key: Any,
    value: Any,
    *,
    is_causal: bool = False,
    attn_mask: Any = None,
    scale: Any = None,
    key_lengths: Any = None,
    **rest: Any,
) -> Any:
    refuse(rest, query, key, value)
    inputs = _texts((query, key, value), False)
    attributes = {"num_heads": query.shape[1], "unidirectional": int(is_causal), "mask_filter_value": _HIDDEN}
    factor = one_number(scale)
    if factor is not None:
        attributes["scale"] = factor
    if attn_mask is not None:
        inputs["bias"] = np.ascontiguousarray(added_mask(attn_mask, query, key, query.dtype))
    if key_lengths is not None:
        inputs["lengths"] = np.broadcast_to(key_lengths, len(query)).astype(np.int32)
    slots = "q k v _ lengths bias"
    output, scores = _run("MultiHeadAttention", slots, ("y", "", "", "scores"), attributes, inputs)
    return {"output": _heads(output, query), "scores": scores}


def _group_query(
    query: Any,
    key: Any,
    value: Any,
    *,
    is_causal: bool = False,
    causal: Any = None,
    attn_mask: Any = None,
    scale: Any = None,
    softcap: Any = None,
    window: Any = None,
    normalizer: Any = None,
    enable_gqa: bool = False,
    **rest: Any,
) -> Any:
    refuse(rest, query, key, value)
    inputs = _prompt_and_cache(query, key, value, is_causal, causal, enable_gqa)
    attributes = {"num_heads": query.shape[1], "kv_num_heads": key.shape[1]}
    numbers = {"scale": one_number(scale), "softcap": softcap}
    attributes |= {name: float(x) for name, x in numbers.items() if x is not None}
    if window is not None and window[0] is not None:
        attributes["local_window_size"] = int(window[0])
    if attn_mask is not None:
        inputs["bias"] = np.ascontiguousarray(added_mask(attn_mask, query, key, query.dtype))
    sinks = sink_logits(normalizer, query.shape[1], query.dtype)
    if sinks is not None:
        inputs["sinks"] = sinks
    slots = "q k v past_k past_v lengths total _ _ _ bias sinks"
    found = [
        _run("GroupQueryAttention", slots, ("y", "k1", "v1", "qk"), attributes | {"qk_output": of}, inputs)
        for of in (1, 2)
    ]
    return {"output": _heads(found[0][0], query), "scores": found[0][3], "weights": found[1][3]}


def _prompt_and_cache(
    query: Any, key: Any, value: Any, is_causal: bool, causal: Any, enable_gqa: bool
) -> dict[str, Any]:
    """The operator's arrays: keys before those of the queries are its cache, since it is always causal."""
    n_keys, past = key.shape[2], key.shape[2] - query.shape[2]
    is_served = causal or (is_causal and not past) or (query.shape[2] == 1 and not is_causal)
    if causal not in (None, "bottom_right") or past < 0 or not is_served:
        raise NotImplementedError("always causal to the last key, no fewer keys than queries")
    inputs = _texts((query, key[:, :, past:], value[:, :, past:]), enable_gqa)
    if past:
        inputs |= {"past_k": np.ascontiguousarray(key[:, :, :past])}
        inputs |= {"past_v": np.ascontiguousarray(value[:, :, :past])}
    lengths = np.full(len(query), n_keys - 1, np.int32)
    return inputs | {"lengths": lengths, "total": np.array([n_keys], np.int32)}


def _heads(output: Any, query: Any) -> Any:
    """The output as an array (batch, heads, n, dim)."""
    batch, heads, n, _ = query.shape
    return output.reshape(batch, n, heads, -1).swapaxes(1, 2)


ONNXRUNTIME_MHA = Engine(
    name="onnxruntime-mha",
    call="com.microsoft.MultiHeadAttention",
    package="onnxruntime",
    run_with="1.32.0",
    attend=_multi_head,
    requirements=REQUIREMENTS_OF_RUNTIME,
    notes="Arrays are (batch, n, heads * dim), masks full; mask_filter_value is -3.4e38, by default -10000.",
)

ONNXRUNTIME_GQA = Engine(
    name="onnxruntime-gqa",
    call="com.microsoft.GroupQueryAttention",
    package="onnxruntime",
    run_with="1.32.0",
    attend=_group_query,
    requirements=REQUIREMENTS_OF_RUNTIME,
    notes="Run for scores and for weights; the first keys are a cache. local_window_size is the left end.",
)
