# SPDX-License-Identifier: BSD-3-Clause
"""The function ``measure``: numbers of every layer of a loaded model, by running it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..._base.checks import refusal
from ..._base.text import by_reason
from .._base.tensors import array, shows
from .._models.by_name import layer_numbers, towers_of
from .._models.calls import SeenCall
from .._models.record import check_watched
from .._plain.scores import Visible
from ..nn._inputs import hidden_by, visible_by_place
from .origins import Origin, origin_of
from .passes import TOKENS, Output, SinksRead, Text, run, unwrapped
from .turns import Turned, turned

_Array = NDArray[np.float64]
#: Smallest relative growth of a query that counts.
_LEAST_GROWTH = 1e-4


@dataclass(frozen=True, eq=False)
class LayerFacts:
    """Numbers of a layer, by the names of :class:`attnscale.audit.MeasuredLayer`."""

    index: int
    module: str
    tower: str
    way: str
    sink: bool | None
    reason: str = ""
    scale: float = math.nan
    factors: _Array = field(default_factory=lambda: np.empty(0))
    by_head: tuple[float, ...] = ()
    rounding: float = 0.0
    softcap: float | None = None
    sees: int = 0
    tokens: int = TOKENS
    is_causal: bool = False
    bias: bool = False
    query: Mapping[int, Turned] = field(default_factory=dict)
    key: Mapping[int, Turned] = field(default_factory=dict)
    features: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    notes: tuple[str, ...] = ()


@dataclass
class _Side:
    """Queries, or keys, of the chosen heads of a call: their origin, and their channels by position."""

    origins: list[Origin] = field(default_factory=list)
    turns: dict[int, Turned] = field(default_factory=dict)


@dataclass
class _Seen:
    """Facts of one call of attention, gathered over passes."""

    call: str
    way: str = ""
    rounding: float = 0.0
    head_dim: int = 0
    scale: float = 0.0
    softcap: float | None = None
    sees: int = 0
    is_causal: bool = False
    sink: bool | None = False
    bias: bool = False
    query: _Side = field(default_factory=_Side)
    key: _Side = field(default_factory=_Side)
    reason: str = ""
    notes: list[str] = field(default_factory=list)


def measured(model: Any, positions: Sequence[int]) -> Measurement:
    """Facts of a model at positions, if it has attention that can be seen."""
    model = unwrapped(model)
    check_watched(model)
    if any(each.is_meta for each in model.parameters()):
        raise refusal(NotImplementedError, "model", "must hold its weights, got some on the device meta")
    found = Measurement(model)
    found.run(positions)
    if not found.calls and not found.lost:
        raise ValueError(f"no attention of {type(model).__name__} was seen: none is a softmax over its keys")
    return found


class Measurement:
    """Facts of all calls of self-attention of a model, over passes at several positions."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model, self._text = model, Text(model)
        self._seen: dict[str, _Seen] = {}
        self.lost: dict[str, str] = {}
        self.passes, self.tokens = 0, TOKENS
        self.name = type(model).__name__

    @property
    def calls(self) -> int:
        """Number of calls of self-attention in a pass."""
        return len(self._seen)

    @property
    def remarks(self) -> list[str]:
        """Attention that was seen and could not be read."""
        return [f"not measured: {each}" for each in by_reason(self.lost)]

    def run(self, positions: Sequence[int]) -> None:
        """Run the model once with positions in order, at position 0, and at each of `positions`."""
        with SinksRead(self._model) as sinks:
            self._run(self._in_order, None)
        for each in self._seen.values():
            if not each.sink and any(name.startswith(f"{each.call}.") for name in sinks.names):
                each.sink = None
                each.notes.append("sinks are read outside of the softmax, and were not measured")
        if self._text.takes_positions:
            self._run(self._at_start, 0)
            for position in positions:
                try:
                    self._run(partial(self._at, position), position)
                except (IndexError, RuntimeError, ValueError) as error:  # beyond a table of positions
                    if not isinstance(error, IndexError) and "index" not in str(error).lower():
                        raise
                    self._note_all(f"position {position} is beyond the model's table of positions")
        else:
            self._run(self._at_start, None)

    def run_behind(self, positions: Sequence[int]) -> None:
        """Run the model behind a cache that counts as many tokens as a position, if it takes one.

        Some models take positions of a temperature from the length of the cache, and not from the positions
        handed in.
        """
        for position in positions:
            try:
                arguments = self._text.after(position)
            except LookupError:
                return
            self.passes += 1
            run(self._model, arguments, partial(self._behind, position))

    def _run(self, show: Any, position: int | None) -> None:
        self.passes += 1
        lost = run(self._model, self._text.arguments(position), show)
        for module, why in lost.items():
            self.lost.setdefault(module, why)

    def _note_all(self, note: str) -> None:
        for each in self._seen.values():
            each.notes.append(note)

    # ---- one call

    def _in_order(self, call: SeenCall, kept: list[Output]) -> None:
        name = str(call.place)
        found = self._seen[name] = _Seen(name, call.way)
        found.sink = call.has_sink
        if call.product is None:
            found.reason = "its scores are more than one product of queries and keys"
            return
        query, key, options = call.product
        if query.shape[2] != TOKENS or key.shape[2] != TOKENS:
            found.reason = f"it has {query.shape[2]} queries and {key.shape[2]} keys for {TOKENS} tokens"
            return
        found.rounding = float(torch.finfo(query.dtype).eps)
        if not (bool(query.isfinite().all()) and bool(key.isfinite().all())):
            found.reason = f"its queries or keys are not finite in {_named(query.dtype)}"
            return
        found.head_dim = query.shape[-1]
        scale = options.get("scale")
        if not isinstance(scale, (int, float)):
            found.reason = f"its scale is the law {scale}"
            return
        found.scale, found.softcap = float(scale), options.get("softcap")
        found.sees, found.is_causal, found.bias = _mask(query, key, options)
        largest = _largest(query, key)
        if call.way == "softmax" and largest > torch.finfo(query.dtype).max:
            found.notes.append(f"scores before the scale exceed the largest number of {_named(query.dtype)}")

    def _at_start(self, call: SeenCall, kept: list[Output]) -> None:
        for found, x, side in self._sides(call):
            for head in _heads(x, call, side is found.query):
                origin = origin_of(x[0, head], kept, found.rounding)
                if origin is None:
                    what = "queries" if side is found.query else "keys"
                    found.reason = found.reason or f"its {what} are not the output of a module times factors"
                    break
                side.origins.append(origin)

    def _at(self, position: int, call: SeenCall, kept: list[Output]) -> None:
        for found, x, side in self._sides(call):
            if found.reason:
                continue
            if not bool(x.isfinite().all()):
                found.notes.append(f"queries or keys are not finite at position {position}")
                continue
            heads = _heads(x, call, side is found.query)
            if len(heads) != len(side.origins):
                found.notes.append(f"at position {position} its queries and keys have other heads")
                return
            samples = []
            for head, origin in zip(heads, side.origins, strict=True):
                before = origin.values(kept)
                if before is None:
                    found.notes.append(f"at position {position} other modules make its queries and keys")
                    return
                samples.append((np.asarray(array(before)), np.asarray(array(x[0, head].double()))))
            start, end = (np.concatenate(each) for each in zip(*samples, strict=True))
            known = [each.partners for each in side.turns.values()]
            partners = np.max(known, axis=0) if known else None
            side.turns[position] = turned(start, end, found.rounding, partners)

    def _behind(self, position: int, call: SeenCall, kept: list[Output]) -> None:
        """Note the growth of the first token's query where the handed positions had none."""
        sides = self._sides(call)
        if not sides or position not in sides[0][2].turns:
            return
        found, query, side = sides[0]
        sizes = []
        for head, origin in zip(_heads(query, call, True), side.origins, strict=True):
            if (before := origin.values(kept)) is None:
                return
            sizes.append((float(before[0].norm()), float(query[0, head, 0].double().norm())))
        growth = math.sqrt(sum(end**2 for _, end in sizes) / sum(start**2 for start, _ in sizes))
        turns = side.turns[position]
        if abs(growth - 1) > max(_LEAST_GROWTH, found.rounding) > abs(float(np.median(turns.growth)) - 1):
            side.turns[position] = turns._replace(growth=turns.growth * growth)
            found.notes.append("the temperature follows the length of the cache, not the positions handed in")

    def _sides(self, call: SeenCall) -> list[tuple[_Seen, Tensor, _Side]]:
        """The queries and the keys of a call, if it can be measured."""
        found = self._seen.get(str(call.place))
        if found is None or found.reason or call.product is None:
            return []
        if not self._is_alike(found, call):
            return []
        return [(found, call.product.query, found.query), (found, call.product.key, found.key)]

    @staticmethod
    def _is_alike(found: _Seen, call: SeenCall) -> bool:
        assert call.product is not None
        shape = (call.product.query.shape[2], call.product.key.shape[2], call.product.query.shape[3])
        return shape == (TOKENS, TOKENS, found.head_dim)

    # ---- the layers

    def layers(self) -> list[LayerFacts]:
        """The layers in the order of their calls, those of each tower by number."""
        names = list(self._seen)
        towers = towers_of(names)
        found = []
        for tower in dict.fromkeys(towers.values()):
            own = [name for name in names if towers[name] == tower]
            for number, name in zip(layer_numbers(own), own, strict=True):
                found.append(_layer(number, tower, self._seen[name]))
        return found


def _named(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _heads(x: Tensor, call: SeenCall, is_query: bool) -> list[int]:
    """The first and the last head, or the key heads that they attend to."""
    there = x.shape[1]
    if is_query or there == len(call.key_of):
        return sorted({0, there - 1})
    return sorted({call.key_of[0], call.key_of[-1]})


def _largest(query: Tensor, key: Tensor) -> float:
    """The largest product of a query and a key of the first head."""
    return float((query[0, 0].double() @ key[0, 0].double().mT).abs().max())


def _mask(query: Tensor, key: Tensor, options: Mapping[str, Any]) -> tuple[int, bool, bool]:
    """The most keys that a row sees, whether none sees a later key, and whether a bias is added."""
    begin, end, _, n_keys = visible_by_place(query, key, options)
    mask = options.get("attn_mask")
    hides = hidden_by(mask, Visible(begin, end, None, n_keys).of_rows(0, query.shape[2]))
    if hides is None:
        return n_keys, False, False
    seen = shows(hides)
    seen = seen[(None,) * (4 - seen.ndim)][0, 0].expand(query.shape[2], n_keys)
    is_causal = not bool(seen.triu(1).any())
    added = mask is not None and mask.dtype != torch.bool and bool(mask.where(shows(mask), 0).any())
    return int(seen.sum(-1).max()), is_causal, added


def _layer(number: int, tower: str, seen: _Seen) -> LayerFacts:
    """The numbers of a layer from what its passes showed."""
    start = LayerFacts(number, seen.call, tower, seen.way, seen.sink)
    sides = (seen.query, seen.key)
    if seen.reason or not all(side.origins for side in sides):
        return replace(start, reason=seen.reason or "it was called otherwise in another pass")
    heads = range(len(seen.query.origins))
    factors = [_product(seen, head) for head in heads]
    return replace(
        start,
        scale=seen.scale,
        factors=factors[0],
        by_head=tuple(float(np.median(each)) for each in factors),
        rounding=seen.rounding,
        softcap=None if seen.softcap is None else float(seen.softcap),
        sees=seen.sees,
        is_causal=seen.is_causal,
        bias=seen.bias,
        query=seen.query.turns,
        key=seen.key.turns,
        features=seen.query.origins[0].features,
        notes=tuple(dict.fromkeys(seen.notes)),
    )


def _product(seen: _Seen, head: int) -> _Array:
    """Everything that multiplies each channel of a chosen head."""
    keys = seen.key.origins
    key = keys[min(head, len(keys) - 1)]
    return seen.scale * seen.query.origins[head].factors * key.factors
