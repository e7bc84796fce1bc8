# SPDX-License-Identifier: BSD-3-Clause
"""One attention call: every option checked, in the form that the core takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .. import _core
from .._checks import choose, number, positive_int, shown
from . import measures
from .arrays import LAYOUTS, Inputs, make_output, read_inputs
from .distance import law_of_distance, read_tables, refuse_row_measures
from .rows import EVERY_KEY, Intervals, read_intervals, read_mask
from .scale import read_scale
from .weights import normalize_rows, read_rule

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Call", "read_num_threads"]


class Call:
    """Arrays, then the keys that each query sees, then the scores: made in this order, then asked.

    ``see`` and ``score`` take the options as the caller of the public function gave them. What has one
    number a row broadcasts to (..., heads, n_queries).
    """

    __slots__ = ("core", "head_dim", "inputs", "intervals", "layout", "mask", "scale", "softcap", "threads")

    inputs: Inputs
    layout: str
    threads: int  # 0: the core's default
    head_dim: int
    intervals: Intervals
    mask: NDArray[Any] | None
    softcap: float  # 0.0: none
    scale: float | NDArray[np.float64]
    core: _core.Call

    def __init__(
        self,
        query: Any,
        key: Any,
        value: Any = None,
        enable_gqa: Any = False,
        qk_norm: Any = None,
        layout: Any = "bhsd",
        num_threads: Any = None,
    ) -> None:
        self.layout = choose("layout", layout, LAYOUTS)
        inputs = read_inputs(query, key, value, enable_gqa, layout)
        self.inputs = inputs if qk_norm is None else normalize_rows(inputs, qk_norm)
        self.head_dim = max(inputs.query.shape[-1], 1)
        self.threads = read_num_threads(num_threads)
        self.intervals, self.mask = EVERY_KEY, None

    def see(
        self,
        is_causal: Any = False,
        causal: Any = None,
        attn_mask: Any = None,
        window: Any = None,
        key_lengths: Any = None,
        document_ids: Any = None,
    ) -> None:
        """Which keys each query may see."""
        self.intervals = read_intervals(self.inputs, is_causal, causal, window, key_lengths, document_ids)
        self.mask = read_mask(attn_mask, self.inputs)

    def score(
        self,
        scale: Any = None,
        softcap: Any = None,
        distance_scale: Any = None,
        distance_bias: Any = None,
        *,
        head_dim: int | None = None,
    ) -> None:
        """What makes a score of a dot product. `head_dim`: that of the scale, if it is not the arrays'."""
        self.softcap = read_softcap(softcap)
        if head_dim is not None:
            self.head_dim = max(head_dim, 1)
        law = law_of_distance(scale)
        factor, bias = read_tables(distance_scale, distance_bias, law, self)
        if factor is not None or bias is not None:
            refuse_row_measures(scale)
        query, key, _, _, _ = self.inputs
        begin, end, _, _ = self.intervals
        self.core = _core.Call(
            *(query, key, self.mask, begin, end, factor, bias),
            *(self.inputs.dtype == np.float64, self.softcap, self.threads),
        )
        self.scale = read_scale(None if law is not None else scale, self)

    @property
    def row_shape(self) -> tuple[int, ...]:
        """(..., heads, n_queries)."""
        return (*self.inputs.leading, self.inputs.query.shape[-2])

    def attend(
        self, normalizer: Any, statistics: tuple[str, ...], out: Any = None
    ) -> tuple[NDArray[Any] | None, dict[str, NDArray[Any]]]:
        """The output if there is a value, and those statistics by name."""
        rule = read_rule(normalizer, self)
        value = self.inputs.value
        output = view = None
        if value is not None:
            output, view = make_output(self.inputs, self.layout, out)
        rows = self.core.attend(value, view, statistics, self.scale, rule)
        return output, dict(zip(statistics, rows, strict=True))

    # ---- what laws count and measure; see laws.MEANINGS_OF_N ----

    def positions(self) -> NDArray[np.int64]:
        """Index of the key that each query is aligned with, counted from its document's first."""
        aligned = self.intervals.aligned(self.inputs.query.shape[-2])
        origin = self.intervals.origin
        return aligned if origin is None else aligned - origin

    def row_sizes(self) -> NDArray[np.int64]:
        """Keys of the query's document up to the last one that causal, window and key_lengths allow.

        A causal row i counts i + 1 (+ offset) whatever the window's left side or a mask hide.
        """
        _, end, _, origin = self.intervals
        last = np.array([self.inputs.key.shape[-2]]) if end is None else end
        return last if origin is None else np.maximum(last - origin, 0)

    def visible_keys(self) -> NDArray[np.int64]:
        """Keys that each query may see: counted where there is a mask, else the length of its interval."""
        if self.mask is not None:
            return self.core.count()
        begin, end, _, _ = self.intervals
        if begin is None:
            return self.row_sizes()
        counts: NDArray[np.int64] = np.maximum((self.inputs.key.shape[-2] if end is None else end) - begin, 0)
        return counts

    def row_entropies(self) -> NDArray[np.float64]:
        """Entropy of each row at the standard scale, in nats."""
        (entropy,) = self.core.attend(None, None, ("entropy",), self.head_dim**-0.5, None)
        return entropy.astype(np.float64)

    def row_gaps(self) -> NDArray[np.float64]:
        """Critical inverse temperature of each row's gaps at the standard scale."""
        return measures.row_gaps(self)


def read_softcap(softcap: Any) -> float:
    """0.0 for None, which the core takes for no soft-cap."""
    if softcap is None:
        return 0.0
    cap = number("softcap", softcap)
    if cap <= 0:
        raise ValueError(f"softcap must be greater than 0, or None for no soft-cap, got {shown(softcap)}")
    return cap


def read_num_threads(num_threads: Any) -> int:
    """0 for None, which the core takes for its default."""
    return 0 if num_threads is None else positive_int("num_threads", num_threads)
