# SPDX-License-Identifier: BSD-3-Clause
"""Rows of a call of attention that are kept for a comparison of two runs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..._files.recording import KeptRows
from .._base.learned import Sink
from .._base.private import tree_leaves
from .._base.tensors import array, shows
from ..nn._inputs import hidden_by, visible_by_place
from .calls import SeenCall
from .readings import Product

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .rows import Running

ROWS = 16  # of the first text


class _Choice(NamedTuple):
    """The kept rows of a call: places in a text of the batch."""

    text: int
    places: Tensor
    batch: int
    n_queries: int

    @classmethod
    def of(cls, call: SeenCall) -> _Choice | None:
        """Rows of the first text; None if no row can be measured without the others."""
        text, places = call.text_rows()
        if not (call.has_rows_apart and call.has_known_axes and len(places)):
            return None
        return cls(text, _spread(places), call.rows_shape[0], call.rows_shape[2])

    def rows(self, tensors: list[Any]) -> NDArray[np.float32] | None:
        """Rows of the first tensor that has one for every query of the pass."""
        for x in tensors:
            if not isinstance(x, Tensor) or x.is_nested or not x.is_floating_point():
                continue
            if x.ndim == 3 and self.batch in x.shape[:2]:
                x = x[self.text] if x.shape[0] == self.batch else x[:, self.text]
            if x.ndim == 2 and x.shape[0] == self.n_queries:
                return _floats(x[self.places.to(x.device)])
        return None


def _kept(call: SeenCall, choice: _Choice) -> KeptRows:
    """The chosen rows of a call, and the keys at their places."""
    places, part = choice.places, call.at(choice.text, choice.places)
    n_keys, n_queries = call.n_keys, call.rows_shape[2]
    if call.kind == "self":
        positions = key_places = places + (n_keys - n_queries)
    else:
        positions, key_places = places, _spread(torch.arange(n_keys, device=places.device))
    shape = (part.rows_shape[1], len(places), n_keys)
    seen = _seen(part.measured, shape)
    numbers = torch.arange(n_keys, device=seen.device)
    product = part.product or part.measured
    return KeptRows(
        module=str(call.place),
        kind=call.kind,
        dtype=str(product.query.dtype).removeprefix("torch."),
        layer=0,  # the log knows
        n_keys=n_keys,
        positions=_counts(positions),
        key_positions=_counts(key_places),
        visible=_counts(seen.sum(-1)),
        first=_counts(torch.where(seen.any(-1), torch.where(seen, numbers, n_keys).amin(-1), -1)),
        last=_counts(torch.where(seen, numbers, -1).amax(-1)),
        seen=np.array(array(seen[..., key_places].cpu()), np.bool_),
        lse=_floats(part.statistics(("lse",))["lse"][0]),
        sink=_sink(product),
        **_scores(part, key_places, seen),
    )


def _spread(places: Tensor) -> Tensor:
    """At most ROWS of the places, evenly spread, with the first and the last one."""
    if len(places) <= ROWS:
        return places
    return places[torch.linspace(0, len(places) - 1, ROWS).round().long().to(places.device)]


def _counts(x: Tensor) -> NDArray[np.int64]:
    found: NDArray[np.int64] = np.array(array(x.cpu()), np.int64)
    return found


def _floats(x: Tensor) -> NDArray[np.float32]:
    found: NDArray[np.float32] = np.array(array(x.detach().float().cpu()), np.float32)
    return found


def _four(mask: Tensor) -> Tensor:
    return mask[(None,) * (4 - mask.ndim)]


def _seen(measured: Product, shape: tuple[int, ...]) -> Tensor:
    """True where a row sees a key, (heads, rows, n_keys)."""
    query, key, options = measured
    seen = visible_by_place(query, key, options).of_rows(0, shape[1])
    mask = options.get("attn_mask")
    seen = hidden_by(seen, None if mask is None else shows(mask))
    if seen is None:
        return torch.ones(shape, dtype=torch.bool, device=query.device)
    return _four(seen)[0].expand(shape)


def _sink(product: Product) -> NDArray[np.float32] | None:
    sink = product.options.get("normalizer")
    if not isinstance(sink, Sink):
        return None
    logits = sink.logits if sink.logits.ndim < 3 else sink.logits[0]
    return _floats(logits.expand(product.query.shape[1]) if logits.ndim == 0 else logits)


def _scores(part: SeenCall, places: Tensor, seen: Tensor) -> dict[str, Any]:
    """Queries, keys and options of the kept pairs, or their scores if these are not one product."""
    heads = seen.shape[0]
    mask = (part.product or part.measured).options.get("attn_mask")
    bias = None
    if mask is not None and mask.dtype != torch.bool:
        added = torch.where(seen, _four(mask)[0].float(), 0.0)[..., places]
        bias = _floats(added) if bool((added != 0).any()) else None
    if part.product is None:
        hidden = ~seen[..., places]
        scores = torch.zeros(hidden.shape, device=hidden.device) if bias is None else torch.from_numpy(bias)
        scores = _floats(scores.masked_fill(hidden.to(scores.device), torch.nan))
        return {"scores": scores, "key_of": np.arange(heads)}
    query, key, options = part.product
    scale, softcap = options["scale"], options.get("softcap")
    there, names = key.shape[1], sorted({*part.key_of})
    stored = [part.key_of.index(name) * there // heads for name in names]
    return {
        "query": _floats(query[0]),
        "key": _floats(key[0][stored][:, places]),
        "key_of": np.array([names.index(each) for each in part.key_of], np.int64),
        "scale": float(scale),
        "softcap": None if softcap is None else float(softcap),
        "bias": bias,
    }


class LastPass:
    """Rows of the last pass of a model; those of a module's input and output come when the module ends."""

    def __init__(self) -> None:
        self.rows: dict[str, KeptRows] = {}
        self._waiting: dict[str, list[tuple[str, _Choice]]] = {}  # by module

    def begin(self) -> None:
        self.rows.clear()
        self._waiting.clear()

    def add(self, call: SeenCall) -> None:
        choice = _Choice.of(call)
        if choice is not None:
            self.rows[str(call.place)] = _kept(call, choice)
            self._waiting.setdefault(call.place.module, []).append((str(call.place), choice))

    def end(self, running: Running, out: Any) -> None:
        """Keep rows of the input and the output of a module that called attention."""
        for name, choice in self._waiting.pop(running.name or "", []):
            ends: dict[str, Any] = {
                "input": choice.rows([*running.given().values()]),
                "output": choice.rows(tree_leaves(out)),
            }
            self.rows[name] = replace(self.rows[name], **ends)
