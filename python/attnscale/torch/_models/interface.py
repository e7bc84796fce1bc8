# SPDX-License-Identifier: BSD-3-Clause
"""The attention function that transformers calls."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface

from .._functional import attention
from .._learned import Sink
from .._tensors import shows
from ..nn._dropout import Dropout, attend_with_dropout
from ..nn._masks import hidden_by
from .masks import PatternMask, make_mask

#: The name under which :func:`register` puts the attention into transformers.
NAME = "attnscale"

#: Arguments that models pass along and that say nothing about the weights of attention.
_IRRELEVANT = frozenset(
    (
        *("position_ids", "cache_position", "use_cache", "output_attentions", "output_hidden_states"),
        *("return_dict", "token_type_ids", "num_items_in_batch", "deterministic", "layer_idx", "training"),
        *("past_key_values", "input_ids", "output_router_logits", "logits_to_keep", "sliding_window"),
        *("max_length_q", "max_length_k", "position_embeddings", "shared_kv_states", "mm_token_type_ids"),
    )
)


def register() -> str:
    """Put this package's attention into transformers under the name "attnscale".

    Returns
    -------
    str
        The name, for ``attn_implementation=`` and ``model.set_attn_implementation``.

    Notes
    -----
    Causal and bidirectional masks, sliding windows and padding cost O(n) memory; other masks are
    arrays of one byte for each query and key. A model may be on any device and of any float type, and can be
    trained: the gradient is that of :func:`attnscale.torch.attention`. Dropout of the weights, which models
    ask for in training, is that of :class:`attnscale.torch.nn.MultiheadAttention`: each call takes a seed
    from PyTorch's generator, and the backward pass draws the same mask again.

    Examples
    --------
    >>> import torch
    >>> from transformers import GPT2Config, GPT2Model
    >>> model = GPT2Model(GPT2Config(n_embd=32, n_head=2, n_layer=1, vocab_size=50)).eval()
    >>> model.set_attn_implementation(register())
    >>> with torch.no_grad():
    ...     model(torch.arange(20)[None]).last_hidden_state.shape
    torch.Size([1, 20, 32])
    """
    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, make_mask)
    return NAME


def attend(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **given: Any,
) -> tuple[torch.Tensor, None]:
    """Compute the attention of one layer; transformers calls this function.

    Parameters
    ----------
    module : torch.nn.Module
        The layer.
    query : tensor, shape (batch, heads, n_queries, head_dim)
    key, value : tensor, shape (batch, kv_heads, n_keys, dim)
    attention_mask : tensor or None
        The mask, made by the mask interface or by the model itself.
    dropout, scaling, is_causal
        Options as transformers passes them.
    **given
        More of them, as :func:`call_options` takes them.

    Returns
    -------
    output : tensor, shape (batch, n_queries, heads, value_dim)
    weights : None
        The whole matrix of weights is never in memory.
    """
    options = call_options(module, query, key, attention_mask, scaling=scaling, is_causal=is_causal, **given)
    return _output(query, key, value, dropout, options), None


def call_options(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float | None = None,
    is_causal: bool | None = None,
    softcap: float | None = None,
    position_bias: torch.Tensor | None = None,
    s_aux: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    **kwargs: Any,
) -> dict[str, Any]:
    """The options of :func:`attnscale.torch.attention_statistics` for a call of a layer of transformers.

    The parameters are named as transformers passes them; what is not known and may change the result is
    refused.
    """
    _check_known(module, kwargs)
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    options = _masks(query, key, attention_mask, kwargs.get("sliding_window"), causal=bool(causal))
    if position_bias is not None:
        options["attn_mask"] = _with_bias(position_bias, options.get("attn_mask"), key)
    options["scale"] = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
    options["softcap"] = softcap
    options["enable_gqa"] = query.shape[1] != key.shape[1]
    sink = _sink(module, s_aux if s_aux is not None else sinks)
    if sink is not None:
        options["normalizer"] = sink
    return options


def _output(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, p: float, options: dict[str, Any]
) -> torch.Tensor:
    """The output, (batch, n_queries, heads, value_dim), with dropout of the share p."""
    if not p:
        swapped = (x.transpose(1, 2) for x in (query, key, value))
        return attention(*swapped, layout="bshd", **options)
    rows = attend_with_dropout(query, key, value, dropout=Dropout.draw(p), statistics=(), **options)
    return rows.output.transpose(1, 2)


def _check_known(module: Any, kwargs: dict[str, Any]) -> None:
    """Refuse arguments that are not known and might change the weights."""
    for name, given in kwargs.items():
        if name not in _IRRELEVANT and given is not None and given is not False:
            raise NotImplementedError(
                f"{type(module).__name__} passes {name}=, which attnscale does not know and may not ignore"
            )


def _masks(
    query: torch.Tensor, key: torch.Tensor, mask: torch.Tensor | None, window: int | None, *, causal: bool
) -> dict[str, Any]:
    """Options of attention that say which keys each query may see."""
    if isinstance(mask, PatternMask) and mask.pattern is None:
        mask = mask.full()
    if isinstance(mask, PatternMask):
        pattern = mask.pattern
        assert pattern is not None
        options: dict[str, Any] = {}
        if pattern.causal:
            options["causal"] = "bottom_right"
        if pattern.window is not None:
            options["window"] = pattern.window
        if pattern.padding is not None:
            options["attn_mask"] = pattern.padding[:, None, None]
        return options
    if mask is not None:
        return {"attn_mask": mask[..., : key.shape[2]]}
    if window is not None and key.shape[2] > window and (not causal or query.shape[2] == 1):
        raise NotImplementedError("a sliding window without a mask is only known for causal queries")
    if not causal or query.shape[2] == 1:
        return {}
    # As in the sdpa path of transformers: without a mask, query i is aligned with key i.
    return {"is_causal": True, **({} if window is None else {"window": (window - 1, 0)})}


def _with_bias(bias: torch.Tensor, mask: Any, key: torch.Tensor) -> Any:
    """The bias joined with the mask: -inf where the mask hides a key."""
    values = bias[..., : key.shape[2]]
    if mask is None:
        return values
    return hidden_by(values if mask.dtype == torch.bool else values + mask, shows(mask))


def _sink(module: Any, given: torch.Tensor | None) -> Sink | None:
    """The layer's sink: one logit for each head, (heads,), or each row, (batch, heads, n_queries, 1)."""
    sink = getattr(module, "sinks", None) if given is None else given
    if not isinstance(sink, torch.Tensor):
        return None
    # A logit of -inf switches the sink off: the lowest finite number has no weight either.
    logits = sink.double().clamp(min=torch.finfo(torch.float32).min)
    return Sink(logits if logits.ndim == 1 else logits[..., 0])
