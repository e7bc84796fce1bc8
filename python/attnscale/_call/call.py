# SPDX-License-Identifier: BSD-3-Clause
"""One attention call: every option checked, in the form that the core takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .. import _core
from .._checks import choose, number, shown, thread_count
from .arrays import FLOAT64, LAYOUTS, make_output, read_inputs
from .data import CallData
from .distance import law_of_distance, read_tables, refuse_row_measures
from .form import PRODUCTS, ScoreForm
from .names import NamedAxes, is_pattern
from .rows import EVERY_KEY, read_intervals, read_mask
from .scale import read_scale
from .weights import normalize_rows

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ..normalizers import Normalizer

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
        dims: Any = None,
    ) -> None:
        if dims is not None:
            raise NamedAxes("dims")
        self.layout = layout if layout is LAYOUTS[0] else _read_layout(layout)
        self.given = inputs = read_inputs(query, key, value, layout, enable_gqa=enable_gqa)
        self.inputs = inputs if qk_norm is None else normalize_rows(inputs, qk_norm)
        self.head_dim = inputs.query.shape[-1] or 1
        self.threads = 0 if num_threads is None else read_num_threads(num_threads)
        self.intervals = EVERY_KEY
        self.mask = None

    def see(
        self,
        attn_mask: Any = None,
        is_causal: Any = False,
        causal: Any = None,
        window: Any = None,
        key_lengths: Any = None,
        document_ids: Any = None,
    ) -> None:
        """Which keys each query may see."""
        if not (
            is_causal is False
            and causal is None
            and window is None
            and key_lengths is None
            and document_ids is None
        ):
            self.intervals = read_intervals(self.inputs, is_causal, causal, window, key_lengths, document_ids)
        if attn_mask is not None:
            self.mask = read_mask(attn_mask, self.inputs)

    def score(
        self,
        scale: Any = None,
        softcap: Any = None,
        distance_scale: Any = None,
        distance_bias: Any = None,
    ) -> None:
        """What makes a score of a dot product."""
        self.form, left = PRODUCTS, scale
        if not (scale is None and softcap is None and distance_scale is None and distance_bias is None):
            self.form, left = _read_form(self, scale, softcap, distance_scale, distance_bias)
        begin, end, _, _ = self.intervals
        self.core = self.core_of(begin, end)
        self.scale, self.counts = read_scale(left, self)

    def core_of(self, begin: NDArray[np.int64] | None, end: NDArray[np.int64] | None) -> _core.Call:
        """The core's call, of which row r sees the keys begin[r] ... end[r] - 1 at most."""
        query, key, _, dtype, _ = self.inputs
        form = None if self.form is PRODUCTS else self.form
        return _core.Call(query, key, self.mask, begin, end, form, dtype == FLOAT64, self.threads)

    def attend(
        self, normalizer: Normalizer | None, statistics: tuple[str, ...], out: Any = None
    ) -> tuple[NDArray[Any] | None, dict[str, NDArray[Any]]]:
        """The output if there is a value, and those statistics by name; None: softmax."""
        rule = None if normalizer is None else normalizer._rule(self)
        value = self.inputs.value
        output = view = None
        if value is not None:
            output, view = make_output(self.inputs, self.layout, out)
        rows = self.core.attend(value, view, statistics, self.scale, rule)
        return output, dict(zip(statistics, rows, strict=True)) if statistics else {}


def _read_layout(layout: Any) -> str:
    try:
        return choose("layout", layout, LAYOUTS)
    except ValueError:
        if is_pattern(layout):
            raise NamedAxes(f"layout={layout!r} names the axes") from None
        raise


def _read_form(
    call: CallData, scale: Any, softcap: Any, distance_scale: Any, distance_bias: Any
) -> tuple[ScoreForm, Any]:
    """The form, and what is left of the scale: a law of the distance is part of the form."""
    cap = 0.0 if softcap is None else _read_softcap(softcap)
    law = None if scale is None else law_of_distance(scale)
    if law is None and distance_scale is None and distance_bias is None:
        return ScoreForm(cap) if cap else PRODUCTS, scale
    factor, offset = read_tables(distance_scale, distance_bias, law, call)
    if factor is not None or offset is not None:
        refuse_row_measures(scale)
    return ScoreForm(cap, factor, offset), scale if law is None else None


def _read_softcap(softcap: Any) -> float:
    cap = number("softcap", softcap)
    if cap <= 0:
        raise ValueError(f"softcap must be greater than 0, or None for no soft-cap, got {shown(softcap)}")
    return cap


def read_num_threads(num_threads: Any) -> int:
    """0 for None, which the core takes for its default."""
    return 0 if num_threads is None else thread_count("num_threads", num_threads)
