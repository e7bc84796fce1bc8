# SPDX-License-Identifier: BSD-3-Clause
"""Attention functions of Transformers, with the masks that the library makes for them."""

from __future__ import annotations

import warnings
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np

from ._calls import sink_logits
from ._engine import Engine, mask_of_axes, refuse
from ._torch import mask_to_torch, run, to_torch


def _attend(query: Any, key: Any, value: Any, *, kind: str, **options: Any) -> Any:
    """Results of an implementation; what Transformers would compile runs as it is."""
    if kind != "flex_attention":
        return _call(kind, query, key, value, **options)
    import torch

    with torch.compiler.set_stance("force_eager"), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of how Transformers calls PyTorch
        warnings.filterwarnings("ignore", "flex_attention called without torch.compile")
        return _call(kind, query, key, value, **options)


def _call(
    kind: str,
    query: Any,
    key: Any,
    value: Any,
    *,
    attn_mask: Any = None,
    scale: Any = None,
    softcap: float | None = None,
    enable_gqa: bool = False,
    normalizer: Any = None,
    **rest: Any,
) -> Any:
    import torch

    hiding = ("is_causal", "causal", "window", "key_lengths", "document_ids")
    seen = {name: rest.pop(name) for name in hiding if name in rest}
    seen = {name: given for name, given in seen.items() if given is not None and given is not False}
    refuse(rest, query, key, value)
    heads, kv_heads = query.shape[1], key.shape[1]
    if len({x.shape[0] for x in (query, key, value)}) > 1 or kv_heads != value.shape[1] or np.ndim(scale):
        raise NotImplementedError("one scale, one batch, and as many heads of keys as of values")
    if attn_mask is not None and seen:
        raise NotImplementedError("a mask is the only one")
    if kv_heads != heads and not enable_gqa:
        raise NotImplementedError("fewer heads of keys only when they are shared")
    mask = _mask(kind, seen, query, key) if seen else None
    if attn_mask is not None:
        mask = mask_to_torch(mask_of_axes(attn_mask, 4), query)
        mask = mask.expand(query.shape[0], -1, query.shape[2], key.shape[2])
    options = {"scaling": query.shape[3] ** -0.5 if scale is None else float(scale)}
    module = SimpleNamespace(num_key_value_groups=heads // max(kv_heads, 1), training=False)
    module.is_causal = "is_causal" in seen or "causal" in seen
    sinks = sink_logits(normalizer, heads)
    if sinks is not None:
        module.sinks = torch.tensor(sinks, dtype=to_torch(query[:0]).dtype)
    if softcap is not None:
        options["softcap"] = float(softcap)
    function = _function(kind, softcap is not None, sinks is not None)

    def call(*arrays: Any) -> Any:
        output, weights = function(module, *arrays, mask, **options)
        found = {"output": output.transpose(1, 2)}
        return found if weights is None else found | {"weights": weights}

    differentiated = () if kind == "flex_attention" else ("output",)  # it refuses gradients on a CPU
    return run(call, query, key, value, differentiated=differentiated)


def _function(kind: str, caps: bool, has_sink: bool) -> Any:
    """The function of an implementation; eager ones are the models' own."""
    if kind != "eager":
        if has_sink or (caps and kind == "sdpa"):
            raise NotImplementedError("no sink, and a soft-cap only where it is not SDPA")
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

        return ALL_ATTENTION_FUNCTIONS[kind]
    if caps and has_sink:
        raise NotImplementedError("no soft-cap with a sink")
    from transformers.models.gemma2 import modeling_gemma2
    from transformers.models.gpt_oss import modeling_gpt_oss
    from transformers.models.llama import modeling_llama

    model = modeling_gpt_oss if has_sink else modeling_gemma2 if caps else modeling_llama
    return model.eager_attention_forward


def _mask(kind: str, seen: dict[str, Any], query: Any, key: Any) -> Any:
    """The mask that the library makes for an implementation."""
    from transformers import masking_utils as masks

    batch, n_queries, n_keys = query.shape[0], query.shape[2], key.shape[2]
    causal, lengths = seen.get("causal"), seen.get("key_lengths")
    if causal == "bottom_right" and lengths is not None:
        raise NotImplementedError("queries begin at one place in all texts")
    start = n_keys - n_queries if causal == "bottom_right" else 0 if isinstance(causal, str) else causal or 0
    if start < 0 or (start and start + n_queries > n_keys):
        raise NotImplementedError("queries that are among the keys")
    is_causal = "is_causal" in seen or causal is not None
    function = _pattern(masks, is_causal, seen.get("window"))
    if "document_ids" in seen:
        if n_queries != n_keys or start:
            raise NotImplementedError("packed texts with a query for each key")
        ids = to_torch(np.broadcast_to(seen["document_ids"], (batch, n_keys)))
        function = masks.and_masks(function, masks.packed_sequence_mask_function(ids))
    padding = None
    if lengths is not None:
        padding = to_torch(np.arange(n_keys) < np.broadcast_to(lengths, (batch,))[:, None])
    make = masks.ALL_MASK_ATTENTION_FUNCTIONS[kind]
    return make(
        batch_size=batch,
        q_length=n_queries,
        kv_length=n_keys,
        q_offset=start,
        mask_function=function,
        attention_mask=padding,
        dtype=to_torch(query[:0]).dtype,
        allow_is_causal_skip=is_causal and len(seen) == 1,
        allow_is_bidirectional_skip=False,
    )


def _pattern(masks: Any, is_causal: bool, window: Any) -> Any:
    """The library's function of positions for a causal mask or a window, or both."""
    if window is None:
        return masks.causal_mask_function if is_causal else masks.bidirectional_mask_function
    left, right = window
    if left is not None and (right == 0 or (is_causal and (right is None or right >= 0))):
        return masks.sliding_window_causal_mask_function(left + 1)
    if left is not None and left == right and not is_causal:
        return masks.sliding_window_bidirectional_mask_function(left)
    raise NotImplementedError("windows that are causal, or as long to both sides")


_CALLS = {
    "eager": "eager_attention_forward of llama, of gemma2 with a soft-cap, of gpt_oss with a sink",
    "sdpa": "transformers.modeling_utils.ALL_ATTENTION_FUNCTIONS['sdpa']",
    "flex_attention": "transformers.modeling_utils.ALL_ATTENTION_FUNCTIONS['flex_attention']",
}
_NOTES = (
    "A mask is handed over as it is. Causal masks, windows, lengths and packed texts are "
    "masks that the library makes; queries after the first key are those behind a cache. Nothing is compiled."
)


def _engine(kind: str) -> Engine:
    return Engine(
        name=f"transformers-{kind.partition('_')[0]}",
        call=_CALLS[kind],
        package="transformers",
        run_with="5.24.0",
        attend=partial(_attend, kind=kind),
        notes=_NOTES,
    )


EAGER = _engine("eager")
SDPA = _engine("sdpa")
FLEX = _engine("flex_attention")
