# SPDX-License-Identifier: BSD-3-Clause
"""One attention call: every option checked, in the form that the core takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .. import _core
from .._checks import choose, number, shown, thread_count
from .._names import NamedAxes, is_pattern
from .arrays import LAYOUTS, make_output, read_inputs
from .data import CallData
from .distance import law_of_distance, read_tables, refuse_row_measures
from .rows import EVERY_KEY, read_intervals, read_mask
from .scale import read_scale
from .weights import normalize_rows, read_rule

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Call", "read_num_threads"]


class Call(CallData):
    """Arrays, then the keys that each query sees, then the scores: made in this order, then asked.

    ``see`` and ``score`` take the options as the caller of the public function gave them.
    """

    __slots__ = ()

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
        try:
            self.layout = choose("layout", layout, LAYOUTS)
        except ValueError:
            if is_pattern(layout):
                raise NamedAxes(f"layout={layout!r} names the axes") from None
            raise
        inputs = read_inputs(query, key, value, enable_gqa, layout)
        self.inputs = inputs if qk_norm is None else normalize_rows(inputs, qk_norm)
        self.head_dim = max(inputs.query.shape[-1], 1)
        self.threads = read_num_threads(num_threads)
        self.intervals, self.mask = EVERY_KEY, None

    def see(self, attn_mask: Any = None, *intervals: Any) -> None:
        """Which keys each query may see: by a mask, and by `read_intervals`, in its order."""
        self.intervals = read_intervals(self.inputs, *intervals)
        self.mask = read_mask(attn_mask, self.inputs)

    def score(
        self,
        scale: Any = None,
        softcap: Any = None,
        distance_scale: Any = None,
        distance_bias: Any = None,
    ) -> None:
        """What makes a score of a dot product."""
        self.softcap = read_softcap(softcap)
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
    return 0 if num_threads is None else thread_count("num_threads", num_threads)
