# SPDX-License-Identifier: BSD-3-Clause
"""Facts about a call of attention from the running modules: kind, real rows, beginning of each text."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

#: Names of parameters that are not rows of a sequence: masks, positions, terms of scores, caches.
_NO_ROWS = re.compile(
    r"mask|(^|_)pos|position|bias|rotary|alibi|freq|temb|time|length|scal|size|residual|object_queries|point|past|cache"
    r"|(^|_)(rel|relative|cos|sin|sine|mems|emb|embed)(_|$)"
)
_QUERIES = re.compile(r"(^|_)(q|query|queries)(_|$)")
_KEYS = re.compile(r"(^|_)(k|keys?)(_|$)")
_VALUES = re.compile(r"(^|_)(v|values?)(_|$)")
_CUMULATED = re.compile(r"cu_seq_?len")
#: Names of padding masks. In those of PyTorch's modules True is padding, in the others a text.
_OF_PYTORCH = ("tgt_key_padding_mask", "src_key_padding_mask", "key_padding_mask")
_MASKS = (*_OF_PYTORCH, "attention_mask")
#: Beginnings of the names of parameters for the sequence that a decoder also attends to.
_OF_MEMORY = ("encoder_", "memory")
#: A float mask that is added to scores hides keys at or below this.
_HIDDEN = -1e3


class Running(NamedTuple):
    """A running module, its name in the model, and its arguments."""

    module: torch.nn.Module
    name: str | None
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def given(self) -> dict[str, Any]:
        """Arguments by name in the order of the parameters, with defaults for those not given."""
        names, defaults = _parameters(type(self.module).forward)
        given = {**defaults, **dict(zip(names, self.args, strict=False)), **self.kwargs}
        return {name: given[name] for name in (*names, *given) if name in given}


class Context(NamedTuple):
    """The kind, "self" or "cross", and the fields `real`, `documents` and `is_cut` of a :class:`Call`."""

    kind: str
    real: Tensor | None
    documents: Tensor | None
    is_cut: bool


class _Extent(NamedTuple):
    batch: int
    n_queries: int
    n_keys: int

    def lengths(self, x: Tensor) -> set[int]:
        """Possible row counts of a sequence, (rows, width), (batch, rows, width) or (rows, batch, width)."""
        if x.ndim == 2:
            return {x.shape[0]}
        first, second = x.shape[:2]
        return {second} if first == self.batch else {first} if second == self.batch else {first, second}


@lru_cache(maxsize=1024)
def _parameters(forward: Callable[..., Any]) -> tuple[tuple[str, ...], dict[str, Any]]:
    try:
        found = [*inspect.signature(forward).parameters.values()][1:]
    except (TypeError, ValueError):  # compiled code has no signature
        return (), {}
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = tuple(each.name for each in found if each.kind in kinds)
    return names, {each.name: each.default for each in found if each.default is not each.empty}


def context_of(
    stack: Sequence[Running],
    rows: tuple[int, int, int],
    is_projected: Callable[[Tensor], bool],
    seen: Callable[[], Tensor | None],
) -> Context:
    """The context of a call from the modules around it; the `stack` has the outermost first.

    `rows` are the numbers of texts, queries and keys; `is_projected` tells queries and keys from their
    inputs. If no module was given a mask of these rows, keys that no row of a text may see are padding:
    `seen` returns True at visible keys, (batch, n_keys), or None.
    """
    extent = _Extent(*rows)
    given = [running.given() for running in stack]
    place = _place_of_memory(given, extent, is_projected)
    if place is None:
        mask = _padding(given, extent, is_cross=False)
        if mask is None and extent.n_queries == extent.n_keys:
            mask = seen()
        documents = _documents(given, extent, mask)
    else:  # the module's own mask belongs to the keys, which are of another text
        mask, documents = _padding(given[:place], extent, is_cross=True), None
    real = None if mask is None else mask[:, -extent.n_queries :].expand(extent.batch, -1)
    if real is not None and bool(real.all()):
        real = None
    if place is not None:
        return Context("cross", real, documents, is_cut=False)
    return Context("self", real, documents, _is_cut(given, extent))


# ---- the kind --------------------------------------------------------------------------------------


def _place_of_memory(
    given: Sequence[dict[str, Any]], extent: _Extent, is_projected: Callable[[Tensor], bool]
) -> int | None:
    """Place of the module that was given the sequence attended to, unless that is its own rows.

    The innermost module whose input has the rows of the queries and is not yet projected decides: if it has a
    second input with the rows of the keys, its attention is to that.
    """
    for place in range(len(given) - 1, -1, -1):
        inputs = _sequences(given[place])
        if not inputs or any(map(is_projected, inputs)):
            continue
        if extent.n_queries in extent.lengths(inputs[0]):
            return place if _has_memory(inputs, extent) else None
    return None


def _sequences(given: Mapping[str, Any]) -> list[Tensor]:
    """Arguments that are rows of vectors, queries first; values beside keys are left out."""
    found = {
        name: x
        for name, x in given.items()
        if isinstance(x, Tensor) and not x.is_nested and x.is_floating_point() and x.ndim in (2, 3)
        if not _NO_ROWS.search(name)
    }
    if any(_KEYS.search(name) for name in found):
        found = {name: x for name, x in found.items() if _KEYS.search(name) or not _VALUES.search(name)}
    first = next((name for name in found if _QUERIES.search(name)), None)
    return [] if not found else [found.pop(first or next(iter(found))), *found.values()]


def _has_memory(inputs: Sequence[Tensor], extent: _Extent) -> bool:
    """Whether a second sequence has the rows of the keys, or the keys' rows beyond the queries'."""
    first, *others = inputs

    def is_memory(x: Tensor) -> bool:
        is_beside = x.shape[0] == extent.batch and x.shape[1] == extent.n_keys - extent.n_queries > 0
        return (is_beside or extent.n_keys in extent.lengths(x)) and not _is_same(x, first)

    return any(x.ndim == first.ndim and is_memory(x) for x in others)


def _is_same(x: Tensor, y: Tensor) -> bool:
    """Whether two inputs are equal, as when positions were added twice."""
    if x is y or x.shape != y.shape:
        return x is y
    return x.device == y.device and x.device.type != "meta" and torch.equal(x, y)


# ---- the rows of padding ---------------------------------------------------------------------------


def _padding(given: Sequence[dict[str, Any]], extent: _Extent, is_cross: bool) -> Tensor | None:
    """Real places of each text, with the queries at the end, by the innermost mask; None: all."""
    is_decoder = is_cross
    is_open = False  # whether modules that also attend to another sequence were given no mask of their own
    for arguments in reversed(given):
        inputs = _sequences(arguments)
        crosses = is_cross and bool(inputs) and _has_memory(inputs, extent)
        name = _name_of_mask(arguments, is_decoder)
        is_decoder |= any(each.startswith(_OF_MEMORY) for each in arguments)
        if (is_open and not crosses) or (name is None and _is_map(arguments, extent)):
            return None
        of_masks = [each for each in arguments if "mask" in each]
        if name is None or (crosses and len(of_masks) == 1):  # the only mask is the memory's
            continue
        mask = arguments[name]
        if mask is not None:
            is_open = False
            if _fits(mask, arguments, extent):
                return _texts(name, mask)
        elif crosses:
            is_open = True
        elif not any(isinstance(arguments[x], Tensor) for x in of_masks if not x.startswith(_OF_MEMORY)):
            return None
    return None


def _name_of_mask(arguments: Mapping[str, Any], is_decoder: bool) -> str | None:
    if is_decoder and "decoder_attention_mask" in arguments:  # the plain name is the encoder's
        return "decoder_attention_mask"
    return next((each for each in _MASKS if each in arguments), None)


def _is_map(arguments: Mapping[str, Any], extent: _Extent) -> bool:
    """Whether a module was given only an image or a sound, for which a mask of texts means nothing."""
    tensors = [x for x in arguments.values() if isinstance(x, Tensor)]
    is_text = any(x.ndim < 4 or extent.n_queries in x.shape[1:] for x in tensors)
    return bool(tensors) and not is_text


def _fits(mask: Any, arguments: Mapping[str, Any], extent: _Extent) -> bool:
    """Whether a mask has a number for each query, after those of a cache if there is one."""
    if not isinstance(mask, Tensor) or mask.ndim != 2 or mask.shape[0] not in (1, extent.batch):
        return False
    if mask.shape[1] == extent.n_queries:
        return True
    if not extent.n_queries < min(mask.shape[1], extent.n_keys):
        return False
    words = (x for name, x in arguments.items() if isinstance(x, Tensor) and name.endswith("input_ids"))
    lengths = {x.shape[-1] for x in words} or set().union(*map(extent.lengths, _sequences(arguments)[:1]))
    return extent.n_queries in lengths


def _texts(name: str, mask: Tensor) -> Tensor:
    if mask.is_floating_point() and (name in _OF_PYTORCH or not bool((mask > 0).any() & (mask >= 0).all())):
        return mask > _HIDDEN
    return mask == 0 if name in _OF_PYTORCH else mask > 0


def _is_cut(given: Sequence[dict[str, Any]], extent: _Extent) -> bool:
    """Whether a cache has lost the first keys: queries have positions beyond the number of keys."""
    if extent.n_queries >= extent.n_keys:
        return False
    for arguments in reversed(given):
        x = arguments.get("position_ids")
        if isinstance(x, Tensor) and x.ndim == 2 and x.shape[1] == extent.n_queries:
            return int(x.max()) >= extent.n_keys
    return False


# ---- texts -----------------------------------------------------------------------------------------


def _documents(given: Sequence[dict[str, Any]], extent: _Extent, mask: Tensor | None) -> Tensor | None:
    """The text of each key; None: one text from its beginning, as far as is known."""
    packed = _packed(given, extent, mask is not None) if extent.n_queries == extent.n_keys else None
    if packed is not None or mask is None or mask.shape[1] > extent.n_keys or bool(mask.all()):
        return packed
    # Padding before and after a text counts as another text, and so does the empty part of a cache.
    mask = torch.nn.functional.pad(mask, (0, extent.n_keys - mask.shape[1]))
    begun = mask.cumsum(-1) > 0
    ended = mask.flip(-1).cumsum(-1).flip(-1) == 0
    return (begun.long() + ended).expand(extent.batch, -1)


def _packed(given: Sequence[dict[str, Any]], extent: _Extent, has_mask: bool) -> Tensor | None:
    """Texts in one row, by lengths, numbers or, without a mask, positions that begin again."""
    n, has_positions = extent.n_keys, has_mask
    for arguments in reversed(given):
        for name, x in arguments.items():
            if not isinstance(x, Tensor) or x.is_floating_point():
                continue
            if _CUMULATED.match(name) and x.ndim == 1 and extent.batch == 1 and int(x[-1]) == n:
                places = torch.arange(n, device=x.device)
                return torch.searchsorted(x[1:].long().contiguous(), places, right=True)[None]
            if x.ndim != 2 or x.shape[1] != n or x.shape[0] not in (1, extent.batch):
                continue
            if name == "seq_idx":
                return x.long().expand(extent.batch, n)
            if name == "position_ids" and not has_positions:
                has_positions = True
                begins = x[:, 1:] != x[:, :-1] + 1
                if bool(begins.any()):
                    ids = torch.nn.functional.pad(begins.long().cumsum(-1), (1, 0))
                    return ids.expand(extent.batch, n)
    return None
