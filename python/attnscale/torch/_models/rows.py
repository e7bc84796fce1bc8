# SPDX-License-Identifier: BSD-3-Clause
"""What the modules that run say of a call of attention: its kind, its real rows, where each text begins."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

__all__ = ["Context", "Running", "context_of"]

#: Names of parameters that are no rows of a sequence: masks, positions and what is added to scores.
_NO_ROWS = re.compile(r"mask|pos|bias|rotary|rel_|relative|alibi|cos|sin|freq|temb|time|length|scale")
_CUMULATED = re.compile(r"cu_seq_?len")
#: Parameters of a padding mask of PyTorch's own modules, where True is padding.
_PADDED = ("tgt_key_padding_mask", "src_key_padding_mask", "key_padding_mask")


class Running(NamedTuple):
    """A module that runs, its name in the model, None in no one's, and what it was called with."""

    module: torch.nn.Module
    name: str | None
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def given(self) -> dict[str, Any]:
        """The arguments by name; a parameter that was not given is not there."""
        names = _parameters(type(self.module).forward)
        return dict(zip(names, self.args, strict=False)) | dict(self.kwargs)


class Context(NamedTuple):
    """The kind, "self" or "cross", and the fields `real` and `documents` of a :class:`Call`."""

    kind: str
    real: Tensor | None
    documents: Tensor | None


class _Extent(NamedTuple):
    batch: int
    n_queries: int
    n_keys: int


@lru_cache(maxsize=1024)
def _parameters(forward: Callable[..., Any]) -> tuple[str, ...]:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return tuple(p.name for p in inspect.signature(forward).parameters.values() if p.kind in kinds)[1:]


def context_of(
    stack: Sequence[Running], rows: tuple[int, int, int], query: Tensor | None, key: Tensor | None
) -> Context:
    """What is known of a call from the modules around it.

    Parameters
    ----------
    stack : sequence of Running
        The outermost module first.
    rows : (int, int, int)
        The numbers of texts, queries and keys.
    query, key : Tensor or None
        Those of the call.
    """
    extent = _Extent(*rows)
    memory, inside = _memory_of(stack, extent, {_storage(x) for x in (query, key) if x is not None})
    kind = "self" if memory is None else "cross"
    around = stack[:inside]
    mask = _padding(around, extent, memory)
    real = None if mask is None else mask[:, -extent.n_queries :]
    if real is not None and bool(real.all()):
        real = None
    documents = _documents(around, extent, mask) if kind == "self" else None
    return Context(kind, real, documents)


def _storage(x: Tensor) -> int:
    """Whose memory a tensor has, a number that views share; also on devices without addresses."""
    return x.untyped_storage()._cdata


def _memory_of(stack: Sequence[Running], extent: _Extent, projected: set[int]) -> tuple[Tensor | None, int]:
    """What a call attends to besides its own rows, and how many modules are around the one that says so.

    A module says so whose input has the rows of the queries and is not yet projected: where it has a second
    input with the rows of the keys, its attention is to that. A module of self-attention is one of those.
    """
    for place in range(len(stack) - 1, -1, -1):
        inputs = {
            name: x
            for name, x in stack[place].given().items()
            if isinstance(x, Tensor)
            and x.is_floating_point()
            and x.ndim in (2, 3)
            and not _NO_ROWS.search(name)
        }
        if not inputs or any(_storage(x) in projected for x in inputs.values()):
            continue
        first, *others = inputs.values()
        if extent.n_queries not in first.shape[:-1]:
            continue
        for x in others:
            if x is not first and x.ndim == first.ndim and extent.n_keys in x.shape[:-1]:
                return x, place
        return None, len(stack)
    return None, len(stack)


def _masks(stack: Sequence[Running], memory: Tensor | None) -> Iterator[tuple[dict[str, Any], Any]]:
    """The arguments of each module that has a padding mask, from the inside, and the mask, True for texts."""
    for running in reversed(stack):
        given = running.given()
        # The one mask of a module that attends to something else is that of what it attends to.
        of_memory = memory is not None and any(x is memory for x in given.values())
        has_another = any("encoder" in name and "mask" in name for name in given)
        if "attention_mask" in given and (has_another or not of_memory):
            # At the top of an encoder and a decoder the plain name is that of the encoder's mask.
            yield given, given["attention_mask"]
        for name in _PADDED:
            if name in given:
                mask = given[name]
                yield given, mask if mask is None else ~mask if mask.dtype == torch.bool else mask == 0
                break


def _padding(stack: Sequence[Running], extent: _Extent, memory: Tensor | None) -> Tensor | None:
    """Which keys of each text are real, (batch, n_keys or n_queries), by the innermost mask; None: all."""
    for given, mask in _masks(stack, memory):
        if mask is None or "decoder_attention_mask" in given:
            return None
        if not isinstance(mask, Tensor) or mask.ndim != 2:
            continue
        if mask.shape in ((extent.batch, extent.n_queries), (extent.batch, extent.n_keys)):
            return mask > 0
    return None


def _documents(stack: Sequence[Running], extent: _Extent, mask: Tensor | None) -> Tensor | None:
    """Which text each key is of: from positions that begin again, from lengths, or from padding in front."""
    if extent.n_queries != extent.n_keys:
        return None
    n = extent.n_keys
    for running in reversed(stack):
        for name, x in running.given().items():
            if not isinstance(x, Tensor) or x.is_floating_point():
                continue
            if name == "position_ids" and x.ndim == 2 and x.shape[-1] == n and mask is None:
                begins = x[:, 1:] != x[:, :-1] + 1
                if bool(begins.any()):
                    ids = torch.nn.functional.pad(begins.long().cumsum(-1), (1, 0))
                    return ids.expand(extent.batch, n)
            if _CUMULATED.match(name) and x.ndim == 1 and extent.batch == 1 and int(x[-1]) == n:
                places = torch.arange(n, device=x.device)
                return torch.searchsorted(x[1:].long().contiguous(), places, right=True)[None]
    if mask is not None and not bool(mask[:, 0].all()):
        return (mask.long().cumsum(-1) > 0).long()
    return None
