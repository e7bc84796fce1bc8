# SPDX-License-Identifier: BSD-3-Clause
"""Data that a log keeps of one call of attention, and the rows of a report."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from ... import normalizers
from ..._report.make import Group
from ...calibration.fit import Length
from .._base.learned import Sink
from .._base.tensors import array, shows
from .by_name import ByName, LoggedCall
from .calls import SeenCall

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ...laws import Law


class Logged(NamedTuple):
    """One call in the memory of the CPU."""

    kind: str
    way: str
    key_of: tuple[int, ...]  # the key head of each head
    n_keys: int
    has_sink: bool
    has_known_axes: bool  # whether batch and heads are told apart
    hides_by_sum: bool  # whether a finite number added to scores hides keys
    real: NDArray[np.bool_]  # True for rows of a text, shape (batch, queries)
    arrays: ByName[NDArray[Any]]  # by statistic, shape (batch, heads, queries)
    kept: Length | None  # queries and keys

    @property
    def heads(self) -> int:
        return int(next(iter(self.arrays.values())).shape[1])

    def called(self, tower: str) -> LoggedCall:
        axes = "batch, heads, queries" if self.has_known_axes else "unknown"
        return LoggedCall(self.kind, self.way, self.heads, len({*self.key_of}), tower, self.key_of, axes)


def measured(
    call: SeenCall, statistics: Iterable[str], laws: Mapping[str, Law], *, keep_heads: bool
) -> Logged:
    """Measure one call, also under laws, and copy its queries and keys if they are kept."""
    found = {name: np.asarray(on_host(rows)) for name, rows in call.statistics(statistics).items()}
    for name, law in laws.items():
        found[f"entropy under {name}"] = np.asarray(on_host(call.entropy_under(law)))
    batch, _, n_queries = call.rows_shape
    real = np.ones((batch, n_queries), bool) if call.real is None else np.array(on_host(call.real), bool)
    kept = kept_rows(call) if keep_heads else None
    form = (
        call.kind,
        call.way,
        call.key_of,
        call.n_keys,
        call.has_sink,
        call.has_known_axes,
        call.hides_by_sum,
    )
    return Logged(*form, real, ByName(found), kept)


def mean_of_texts(rows: NDArray[Any], real: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Mean per head, shape (heads,), over the rows (batch, heads, queries) that are of texts."""
    chosen = np.moveaxis(rows, 1, -1)[real].astype(np.float64)
    return chosen.mean(axis=0) if len(chosen) else np.full(rows.shape[1], np.nan)


def on_host(option: Any) -> Any:
    """A tensor as a NumPy array, copied if it is on a device; other options unchanged."""
    if isinstance(option, Sink):
        return normalizers.Sink._of_one_call(logits=array(option.logits.detach().cpu()))
    return array(option.detach().cpu()) if isinstance(option, torch.Tensor) else option


def kept_rows(call: SeenCall) -> Length:
    """A CPU copy of the keys and of the queries, rescaled for 1/sqrt(head_dim), of a text without padding."""
    query, key, given = call.known("keep_heads keeps")
    options = dict(given)
    if len(query) == 1:
        query, key = _without_padding(call, query, key, options)
    own = options["scale"] * math.sqrt(query.shape[-1])
    names = ("attn_mask", "window", "softcap", "normalizer")
    known = {name: on_host(options[name]) for name in names if options.get(name) is not None}
    form = {
        "causal": "bottom_right" if "causal" in options else None,
        "enable_gqa": query.shape[1] != key.shape[1],
        "num_threads": None,
    }
    rows = np.multiply(on_host(query), own, dtype=np.float32), np.array(on_host(key), np.float32)
    return Length(*rows, form | known)


def _without_padding(
    call: SeenCall, query: torch.Tensor, key: torch.Tensor, options: dict[str, Any]
) -> tuple[torch.Tensor, torch.Tensor]:
    """The real rows of a single text, and the keys that these are or that some row sees; options follow."""
    mask, device = options.get("attn_mask"), query.device
    real = torch.ones(query.shape[2], dtype=torch.bool) if call.real is None else call.real[0]
    seen = torch.ones(key.shape[2], dtype=torch.bool)
    if call.kind == "self" and len(real) == len(seen):
        seen = real
    elif mask is not None and mask.shape[-1] == len(seen):
        seen = shows(mask).reshape(-1, len(seen)).any(0)
    rows, columns = (each.nonzero()[:, 0].to(device) for each in (real, seen))
    texts = call.documents if call.documents is None else call.documents[:, columns].unique()
    is_cut_inside = len(rows) > 0 and int(rows[-1] - rows[0]) >= len(rows)
    if (texts is not None and len(texts) > 1) or (is_cut_inside and options.get("window") is not None):
        raise NotImplementedError(
            f"keep_heads keeps one text without gaps, got several in a row of {call.place}"
        )
    if mask is not None:
        options["attn_mask"] = (mask[..., rows, :] if mask.shape[-2] > 1 else mask)[..., columns]
    sink = options.get("normalizer")
    if isinstance(sink, Sink) and sink.logits.ndim == 3:
        options["normalizer"] = Sink(sink.logits[..., rows])
    return query[:, :, rows], key[:, :, columns]


def groups_of(
    passes: Sequence[Mapping[str, Length | None]], calls: Mapping[str, LoggedCall], numbers: Sequence[int]
) -> list[Group]:
    """The heads of each call with their rows at every length: one per pass, the later of two equal ones.

    The length of a pass is the number of keys of its first call for which that number changes between the
    passes. A module that never sees more than one key is left out. Towers and kinds of attention are groups
    of the page, which shows the `numbers` of the calls of the last pass.
    """
    found = [
        {name: whole_text(name, rows, calls) for name, rows in each.items() if rows is not None}
        for each in passes
    ]
    if any(list(each) != list(calls) for each in found):
        raise ValueError("a report needs passes through the same layers")
    sizes = {name: [each[name].key.shape[-2] for each in found] for name in calls}
    shown = {name: number for name, number in zip(calls, numbers, strict=True) if max(sizes[name]) > 1}
    if not shown:
        raise ValueError("a report needs passes over more than one token")
    leading = next((name for name in shown if len(set(sizes[name])) > 1), next(iter(shown)))
    by_length = dict(sorted(zip(sizes[leading], found, strict=True), key=lambda each: each[0]))
    names = _group_names({name: calls[name] for name in shown}, by_length)
    order = [*dict.fromkeys(names.values())]
    return [
        Group(
            {n: each[name] for n, each in by_length.items()},
            [(shown[name], head) for head in range(calls[name].heads)],
            *(name, names[name]),
        )
        for name in sorted(shown, key=lambda name: order.index(names[name]))
    ]


def _group_names(
    calls: Mapping[str, LoggedCall], by_length: Mapping[int, Mapping[str, Length]]
) -> dict[str, str]:
    """Name of the group of each module on the page; "" if there is only one."""

    def parts(name: str, each: LoggedCall) -> Iterator[str]:
        if len({one.tower for one in calls.values()}) > 1:
            yield each.tower
        if len({one.kind for one in calls.values()}) > 1:
            yield f"{each.kind}-attention"
        keys = [rows[name].key.shape[-2] for rows in by_length.values()]
        if keys != list(by_length):
            yield f"{min(keys)} keys" if len(set(keys)) == 1 else f"{min(keys)} to {max(keys)} keys"

    return {name: ", ".join(parts(name, each)) for name, each in calls.items()}


def whole_text(name: str, rows: Length, calls: Mapping[str, LoggedCall]) -> Length:
    """The rows without the batch axis; refuses a pass that is not one whole text."""
    batch, n_queries, n_keys = rows.query.shape[0], rows.query.shape[-2], rows.key.shape[-2]
    if batch != 1:
        raise ValueError(
            f"a report or head_kinds needs passes with one text, got a batch of {batch} in {name}"
        )
    is_other = name in calls and calls[name].kind == "cross" and rows.options["causal"] is None
    if n_queries != n_keys and not is_other:
        raise ValueError(
            "a report or head_kinds needs passes over whole texts, with as many queries as keys, "
            f"got {n_queries} and {n_keys} in {name}"
        )
    if np.ndim(getattr(rows.options.get("normalizer"), "logits", 0.0)) > 1:
        raise ValueError(
            f"a report or head_kinds needs one sink for each head, got one for each row in {name}"
        )
    options = dict(rows.options)
    mask = options.get("attn_mask")
    if mask is not None and mask.ndim == 4:
        options["attn_mask"] = mask[0]
    return Length(rows.query[0], rows.key[0], options)
