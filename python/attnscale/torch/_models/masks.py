# SPDX-License-Identifier: BSD-3-Clause
"""Masks of transformers as patterns of a few numbers, so that no n x n array is made for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from transformers import masking_utils

from .._private import DisableTorchFunctionSubclass, tree_leaves, tree_map_only

#: Tensor properties that are asked for before a mask is used; a pattern has those of its full mask.
_HARMLESS = ("device", "requires_grad", "is_cuda", "layout", "ndim", "is_meta")
#: Functions of a mask of numbers: that add it, put it beside numbers that are added, or pad it with some.
_OF_NUMBERS = frozenset(
    (
        *("add", "add_", "__add__", "__radd__", "__iadd__", "sub", "__sub__", "mul", "__mul__", "__rmul__"),
        *("cat", "concat", "concatenate", "stack", "where", "pad"),
    )
)
_CASTS = {"float": torch.float32, "double": torch.float64, "half": torch.half, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class Pattern:
    """The keys that a query may see, by the index of the query, counted from the first one.

    Attributes
    ----------
    causal : bool
        Whether a query sees only keys up to its own.
    window : (int, int) or None
        How many keys to the left and to the right of its own a query sees; None: all.
    padding : tensor of bool, shape (batch, n_keys), or None
        False hides a key.
    """

    causal: bool
    window: tuple[int, int] | None
    padding: Any


class PatternMask(torch.Tensor):
    """A mask that is a :class:`Pattern`, or none, as long as a model only passes it on.

    A model that computes with its mask gets the full mask instead, boolean, or of the numbers that are added
    to scores where it does what is done with such: 0, and the smallest number where a key is hidden. Its type
    is that of numbers, for a model that brings others to it.
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
        """Do the operation on the full mask."""
        if getattr(func, "__self__", None) is not None and _property_name(func) in _HARMLESS:
            with DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        if getattr(func, "__self__", None) is not None and _property_name(func) == "dtype":
            return torch.float32
        given = (args, kwargs or {})
        numbers = _numbers(getattr(func, "__name__", ""), given)

        def whole(mask: PatternMask) -> torch.Tensor:
            full = mask.full()
            if numbers is None or full.dtype != torch.bool:
                return full
            return full.new_zeros((), dtype=numbers).masked_fill(~full, torch.finfo(numbers).min)

        plain = tree_map_only(PatternMask, whole, given)
        return func(*plain[0], **plain[1])


def _numbers(name: str, given: Any) -> torch.dtype | None:
    """The type of the numbers that a function takes a mask for; None: it takes a boolean one."""
    leaves = tree_leaves(given)
    types = [x.dtype for x in leaves if isinstance(x, torch.Tensor) and not isinstance(x, PatternMask)]
    types += [x for x in leaves if isinstance(x, torch.dtype)]
    floats = [each for each in types if each.is_floating_point]
    if name in ("to", "type", "type_as"):
        return floats[0] if floats else None
    if name in _OF_NUMBERS:
        return floats[0] if floats else torch.float32 if name == "pad" else None
    return _CASTS.get(name)


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
    """The mask interface of transformers: a pattern where the mask is one, else the full mask.

    The parameters are those of ``transformers.masking_utils.sdpa_mask``.
    """

    def full() -> torch.Tensor:
        mask = masking_utils.sdpa_mask(
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
        assert mask is not None
        return mask

    kind = _recognise(mask_function)
    aligned = int(q_offset) + q_length == kv_offset + kv_length
    if kind is None or (kind[0] and not aligned) or (kind[1] is not None and not aligned):
        return PatternMask.of(None, full, device)
    padding = masking_utils.prepare_padding_mask(attention_mask, kv_length, kv_offset)
    if padding is not None:
        padding = padding[:, kv_offset : kv_offset + kv_length]
        padding = None if bool(padding.all()) else padding
    return PatternMask.of(Pattern(*kind, padding), full, device)


def _recognise(function: Any) -> tuple[bool, tuple[int, int] | None] | None:
    """The pair (causal, window) of a mask function; None for a function of another kind."""
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
