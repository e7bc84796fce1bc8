# SPDX-License-Identifier: BSD-3-Clause
"""The attention function and the masks for transformers.

Masks are patterns of a few numbers, so that no n x n array is made for them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from transformers import __version__ as _version

from ..._base.versions import too_old

# Before 5.4 functions of masks have other arguments.
if _reason := too_old("attnscale.torch.register", "transformers", _version, "5.4"):
    raise ImportError(_reason)

from transformers import AttentionInterface, AttentionMaskInterface, masking_utils

from .._base.learned import Sink
from .._base.private import DisableTorchFunctionSubclass, tree_leaves, tree_map_only
from .._base.tensors import shows
from .._functional import attention
from ..nn._dropout import Dropout, attend_with_dropout
from ..nn._inputs import hidden_by

#: Tensor properties that are read before a mask is used; a pattern has those of its full mask.
_HARMLESS = ("device", "requires_grad", "is_cuda", "layout", "ndim", "is_meta")
#: Functions that use a mask as booleans, True where a key is visible; all others use numbers.
_LOGICAL = frozenset(
    (
        *("__invert__", "__and__", "__rand__", "__or__", "__ror__", "__xor__", "logical_not", "logical_and"),
        *("logical_or", "bitwise_not", "bitwise_and", "bitwise_or", "scaled_dot_product_attention"),
    )
)
_CASTS = {"float": torch.float32, "double": torch.float64, "half": torch.half, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class Pattern:
    """The keys that a query may see, by the index of the query, counted from the first one."""

    causal: bool  # whether a query sees only keys up to its own
    window: tuple[int, int] | None  # keys to the left and right of its own that a query sees; None: all
    padding: Any  # bool, (batch, n_keys), False hides a key; or None


class PatternMask(torch.Tensor):
    """A mask that holds a :class:`Pattern`, or none, as long as a model only passes it on.

    A model that computes with its mask gets the full mask, as transformers would make for its eager
    attention: numbers that are added to scores, 0, and the smallest number where a key is hidden. Only logic,
    ``~mask``, gets a boolean one, True where a key is visible. Its dtype is that of numbers, for models that
    read it.
    """

    pattern: Pattern | None
    full: Callable[[], torch.Tensor]

    @staticmethod
    def of(pattern: Pattern | None, full: Callable[[], torch.Tensor], device: Any) -> PatternMask:
        """A mask of the pattern; `full` makes the boolean mask, (batch, 1, n_queries, n_keys)."""
        ones = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=device)
        mask: PatternMask = ones.as_subclass(PatternMask)
        mask.pattern = pattern
        mask.full = full
        return mask

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__self__", None) is not None and _property_name(func) in _HARMLESS:
            with DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        if getattr(func, "__self__", None) is not None and _property_name(func) == "dtype":
            return torch.float32
        args, kwargs = cls.plain(func, args, kwargs or {})
        return func(*args, **kwargs)

    @staticmethod
    def plain(func: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """The arguments of a function with full masks in place of patterns."""
        name = getattr(func, "__name__", "")
        is_logical = name in _LOGICAL or (name == "where" and isinstance(args[0], PatternMask))
        leaves = tree_leaves((args, kwargs))
        types = [x.dtype for x in leaves if isinstance(x, torch.Tensor) and not isinstance(x, PatternMask)]
        types += [x for x in leaves if isinstance(x, torch.dtype)]
        floats = (each for each in types if each.is_floating_point)
        numbers = _CASTS.get(name) or next(floats, torch.float32)

        def whole(mask: PatternMask) -> torch.Tensor:
            full = mask.full()
            if is_logical:
                return full
            return full.new_zeros((), dtype=numbers).masked_fill(~full, torch.finfo(numbers).min)

        found: tuple[Any, Any] = tree_map_only(PatternMask, whole, (args, kwargs))
        return found


def _property_name(func: Any) -> str:
    return str(getattr(func.__self__, "__name__", ""))


def make_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: Any = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] = masking_utils.causal_mask_function,
    attention_mask: Any = None,
    device: Any = "cpu",
    **options: Any,
) -> torch.Tensor:
    """A mask like ``transformers.masking_utils.sdpa_mask``, as a pattern if it is one."""
    q_offset = int(q_offset)  # a static cache has it as a tensor, and increases it before the mask is made
    full = partial(
        masking_utils.sdpa_mask,
        batch_size=batch_size,
        q_length=q_length,
        kv_length=kv_length,
        q_offset=q_offset,
        kv_offset=kv_offset,
        mask_function=mask_function,
        attention_mask=attention_mask,
        device=device,
        **{**options, "allow_is_causal_skip": False, "allow_is_bidirectional_skip": False},
    )
    kind = _recognise(mask_function)
    aligned = q_offset + q_length == kv_offset + kv_length
    if kind is None or (kind[0] and not aligned) or (kind[1] is not None and not aligned):
        return PatternMask.of(None, full, device)
    padding = masking_utils.prepare_padding_mask(attention_mask, kv_length, kv_offset)
    if padding is not None:
        padding = padding[:, kv_offset : kv_offset + kv_length]
        padding = None if bool(padding.all()) else padding
    return PatternMask.of(Pattern(*kind, padding), full, device)


def _recognise(function: Any) -> tuple[bool, tuple[int, int] | None] | None:
    """The pair (causal, window) of a mask function; None for other functions."""
    if function is masking_utils.causal_mask_function:
        return True, None
    if function is masking_utils.bidirectional_mask_function:
        return False, None
    parts = _closure(function).get("mask_functions")
    if not isinstance(parts, tuple) or len(parts) != 2:
        return None
    overlay, whole = parts
    width = _closure(overlay).get("sliding_window")
    name = getattr(overlay, "__qualname__", "")
    if not isinstance(width, int):
        return None
    if name.startswith("sliding_window_overlay.") and whole is masking_utils.causal_mask_function:
        return True, (width - 1, 0)
    if (
        name.startswith("sliding_window_bidirectional_overlay.")
        and whole is masking_utils.bidirectional_mask_function
    ):
        return False, (width, width)
    return None


def _closure(function: Any) -> dict[str, Any]:
    code, cells = getattr(function, "__code__", None), getattr(function, "__closure__", None)
    if code is None or not cells:
        return {}
    return {name: cell.cell_contents for name, cell in zip(code.co_freevars, cells, strict=True)}


#: The name under which :func:`register` puts the attention into transformers.
NAME = "attnscale"

#: Arguments that models pass along and that do not affect the weights of attention.
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
    arrays of one byte per query and key. A model may be on any device and of any float type, and can be
    trained: the gradient is that of :func:`attnscale.torch.attention`. Dropout of the weights in training is
    that of :class:`attnscale.torch.nn.MultiheadAttention`: each call takes a seed from PyTorch's generator,
    and the backward pass draws the same mask again.

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
    **given: Any,
) -> tuple[torch.Tensor, None]:
    """Compute the attention of one layer; transformers calls this function.

    Arrays are (batch, heads, n, dim), the mask comes from the mask interface or the model, and options are
    those of :func:`call_options`. The output is (batch, n_queries, heads, value_dim); the whole matrix of
    weights is never in memory.
    """
    options = call_options(module, query, key, attention_mask, **given)
    if not dropout:
        swapped = (x.transpose(1, 2) for x in (query, key, value))
        return attention(*swapped, layout="bshd", **options), None
    rows = attend_with_dropout(query, key, value, dropout=Dropout.draw(dropout), statistics=(), **options)
    return rows.output.transpose(1, 2), None


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
    """Options of attention for a call of a transformers layer; unknown ones that may matter are refused."""
    for name, given in kwargs.items():
        if name not in _IRRELEVANT and given is not None and given is not False:
            raise NotImplementedError(
                f"{type(module).__name__} passes {name}=, which attnscale does not know and cannot ignore"
            )
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


def _masks(
    query: torch.Tensor, key: torch.Tensor, mask: torch.Tensor | None, window: int | None, *, causal: bool
) -> dict[str, Any]:
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
    # Without a mask, query i is aligned with key i, as in the sdpa path of transformers.
    return {"is_causal": True, **({} if window is None else {"window": (window - 1, 0)})}


def _with_bias(bias: torch.Tensor, mask: Any, key: torch.Tensor) -> Any:
    """The bias joined with the mask: -inf where the mask hides a key."""
    values = bias[..., : key.shape[2]]
    if mask is None:
        return values
    return hidden_by(values if mask.dtype == torch.bool else values + mask, shows(mask))


def _sink(module: Any, given: torch.Tensor | None) -> Sink | None:
    """The layer's sink: one logit per head, (heads,), or per row, (batch, heads, n_queries, 1)."""
    sink = getattr(module, "sinks", None) if given is None else given
    if not isinstance(sink, torch.Tensor):
        return None
    # A logit of -inf switches the sink off: the lowest finite number has no weight either.
    logits = sink.double().clamp(min=torch.finfo(torch.float32).min)
    return Sink(logits if logits.ndim == 1 else logits[..., 0])
