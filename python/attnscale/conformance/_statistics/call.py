# SPDX-License-Identifier: BSD-3-Clause
"""A case whose statistics are judged: its rows, scores by stage, and errors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ... import reference
from ...exact.lse import read_numbers
from .._draft import sink_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

Kind = Literal["right", "wrong"]


@dataclass(frozen=True)
class StatisticOutcome:
    """Result of an engine for one statistic of one case.

    Attributes
    ----------
    name : str
        Such as "lse" or "gradients".
    kind : {"right", "wrong"}
        A convention that :func:`attnscale.identify_lse` knows, the entropy in any unit, and scores of any
        stage are right.
    difference : float
        The largest error, over 1 + abs(truth), infinite where only one is a number; NaN if nothing was
        compared.
    says : str
        The convention, unit or stage of what is right, or the name of what is wrong.
    """

    name: str
    kind: Kind
    difference: float
    says: str


@dataclass(frozen=True)
class Judged:
    """A call in float64 with all that its statistics are judged by."""

    arrays: list[Any]  # query, key and value
    query: Any
    key: Any  # with the batch axes of the value
    options: dict[str, Any]
    allowed: float

    @property
    def has_sink(self) -> bool:
        """Whether the softmax of the call has a sink."""
        return sink_of(self.options) is not None

    @cached_property
    def rows(self) -> Any:
        """Statistics and weights of the reference."""
        with np.errstate(all="ignore"):
            return reference.attention_statistics(self.query, self.key, **self.options)

    @cached_property
    def parts(self) -> Any:
        """Product, factor, scale, bias and visible keys of each pair."""
        return reference.score_parts(self.query, self.key, **self._of_scores)

    @property
    def _of_scores(self) -> dict[str, Any]:
        return {name: each for name, each in self.options.items() if name != "normalizer"}

    @property
    def seen(self) -> NDArray[np.bool_]:
        """True where the query sees the key."""
        return np.broadcast_to(self.parts.seen, self.rows.p.shape)

    @cached_property
    def stages(self) -> dict[str, NDArray[np.float64]]:
        """Scores by their stage, without the mask that hides keys; the last is that of the softmax."""
        parts, cap = self.parts, self.options.get("softcap")
        scaled = parts.product * parts.factor * parts.scale
        capped = scaled if cap is None else cap * np.tanh(scaled / cap)
        bias = parts.bias + self._float_mask
        found = {
            "query . key": parts.product,
            "scaled": scaled,
            "scaled, bias added": scaled + bias,
            "bias added, soft-capped": scaled + bias if cap is None else cap * np.tanh((scaled + bias) / cap),
            "soft-capped": capped,
            "soft-capped, bias added": capped + bias,
        }
        return {stage: np.broadcast_to(each, self.rows.p.shape) for stage, each in found.items()}

    @property
    def _float_mask(self) -> Any:
        """A float mask where it does not hide; 0 elsewhere."""
        mask = self.options.get("attn_mask")
        if mask is None or np.asarray(mask).dtype == bool:
            return 0.0
        mask = np.asarray(mask)
        lowest = np.finfo(mask.dtype).min / 2
        return np.where(mask > lowest, mask, 0).astype(np.float64)


def judged_call(options: Mapping[str, Any], arrays: list[Any], allowed: float) -> Judged:
    """The call of a case, whose rows have the batch axes of the value too."""
    query, key, value = arrays
    if key.ndim > 2 and value is not None:
        batch = np.broadcast_shapes(key.shape[:-3], value.shape[:-3])
        key = np.broadcast_to(key, (*batch, *key.shape[-3:]))
    return Judged(arrays, query, key, dict(options), allowed)


def difference(found: Any, truth: Any) -> float:
    """The largest error over 1 + abs(truth); infinite where only one is a number, or infinities differ."""
    found, truth = np.asarray(found, np.float64), np.asarray(truth, np.float64)
    with np.errstate(invalid="ignore"):
        error = np.abs(found - truth) / (1 + np.abs(truth))
    same = (found == truth) | (np.isnan(found) & np.isnan(truth))
    error = np.where(same, 0, np.where(np.isnan(error), math.inf, error))
    return float(error.max(initial=0))


def rows_of(name: str, given: Any, call: Judged) -> NDArray[np.float64]:
    """An array of rows, (..., heads, n_queries); queries may come first, and an axis of 1 last."""
    array, shape = read_numbers(name, given).astype(np.float64), call.rows.n_visible.shape
    if array.ndim == len(shape) + 1 and array.shape[-1] == 1:
        array = array[..., 0]
    if array.shape == shape:
        return array
    if len(shape) > 1 and array.shape == (*shape[:-2], *shape[:-3:-1]):
        return array.swapaxes(-1, -2)
    raise ValueError(f"{name} must have the shape of the rows, {shape}, got {array.shape}")
