# SPDX-License-Identifier: BSD-3-Clause
"""Known slips of engines, each as the call that it computes in place of another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from .. import normalizers
from ..exact.forward import attention_statistics
from ._cases import Case


class Slip(NamedTuple):
    """A slip in words, and the output of its call."""

    says: str
    output: Any


#: Options that an engine may accept and ignore.
_IGNORED = ("scale", "attn_mask", "window", "key_lengths", "document_ids", "softcap", "distance_bias")


def slips(case: Case, arrays: list[Any]) -> Iterator[Slip]:
    """The known slips that apply to the call, without those that cannot be computed."""
    for says, options, changed in _other_calls(dict(case.options), arrays):
        try:
            yield Slip(says, attention_statistics(*changed, statistics="lse", **options).output)
        except (TypeError, ValueError):
            continue


def _other_calls(
    options: dict[str, Any], arrays: list[Any]
) -> Iterator[tuple[str, dict[str, Any], list[Any]]]:
    if "qk_norm" not in options:
        yield "the scale is not applied", {**options, "scale": 1.0}, arrays
        width = arrays[0].shape[-1]
        if width and options.get("scale") is None:
            yield "the scale is applied twice", {**options, "scale": 1 / width}, arrays
    for name in _IGNORED:
        if options.get(name) is not None:
            yield f"{name} is not read", _without(options, name), arrays
    if options.get("normalizer", "softmax") != "softmax":
        yield "the sink is missing", _without(options, "normalizer"), arrays
    yield from ((says, changed, arrays) for says, changed in _other_masks(options))
    if options.get("enable_gqa"):
        yield "key heads repeat as a whole, not each in its place", options, _tiled(options, arrays)


def _other_masks(options: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Calls with another mask of positions, or with a boolean mask inverted."""
    is_causal, causal = options.get("is_causal", False), options.get("causal")
    if is_causal or causal is not None:
        rest = _without(options, "is_causal", "causal")
        yield "the causal mask is not read", rest
        yield "the causal mask is aligned at the last keys", {**rest, "causal": "bottom_right"}
        yield "the causal mask is aligned at the first keys", {**rest, "is_causal": True}
    window = options.get("window")
    if window is not None:
        for moved in _near_windows(*window):
            if moved != tuple(window):
                yield f"the window is {moved} in place of {window}", {**options, "window": moved}
    mask = options.get("attn_mask")
    if mask is not None and np.asarray(mask).dtype == np.bool_:
        yield "True in attn_mask hides a key", {**options, "attn_mask": ~np.asarray(mask)}


def _near_windows(left: int | None, right: int | None) -> Iterator[tuple[int | None, int | None]]:
    """Windows that are off by one on one side or both; an open side stays open."""
    for by_left, by_right in ((1, 1), (-1, -1), (1, 0), (0, 1), (-1, 0), (0, -1)):
        moved = (None if left is None else left + by_left, None if right is None else right + by_right)
        if all(side is None or side >= 0 for side in moved):
            yield moved


def _without(options: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name not in names}


def _tiled(options: dict[str, Any], arrays: list[Any]) -> list[Any]:
    """Key and value heads in the order 0, 1, 0, 1 in place of 0, 0, 1, 1."""
    axis = -2 if options.get("layout") == "bshd" else -3
    heads = arrays[0].shape[axis]
    return [arrays[0], *(np.concatenate([x] * (heads // x.shape[axis]), axis) for x in arrays[1:])]


def has_sink(options: Mapping[str, Any]) -> bool:
    """Whether the softmax of the call has a sink."""
    found = normalizers.get(options.get("normalizer", "softmax"))
    return isinstance(found, (normalizers.Sink, normalizers.SoftmaxN))
