# SPDX-License-Identifier: BSD-3-Clause
"""The plan of an attention call: all that its shapes, types and options say, without its arrays."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .._base.checks import choose, number, shown, thread_count
from .._core import Intervals
from .arrays import LAYOUTS, Extents, Unread, read_extents
from .distance import PRODUCTS, ScoreForm, read_tables
from .options import AXES
from .rows import read_intervals, read_mask
from .scale import law_counts, law_scale, read_law, read_scale

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from .._base.rows import CallRows
    from ..laws import Law
    from .homes import Home
    from .named import Names

_BHSD = LAYOUTS[0]


class Plan:
    """The checked options of a call, the visible keys of each query, and the scores, read in this order.

    The options are the caller's; an array that has no numbers yet is :class:`Unread`, and so is what would
    hold them. Arrays of rows broadcast to (..., heads, n_queries).
    """

    __slots__ = (
        "counts",
        "extents",
        "form",
        "head_dim",
        "intervals",
        "law",
        "layout",
        "mask",
        "names",
        "options",
        "scale",
        "threads",
    )

    extents: Extents
    options: Mapping[str, Any]
    layout: str  # of the arrays and the output; "bhsd" if axes have names, which order them
    names: Names | Home | None  # of the caller's axes, or the home of results; None: axes by order, ndarrays
    threads: int  # 0: the core's default
    head_dim: int  # at least 1
    intervals: Intervals
    mask: NDArray[Any] | Unread | None
    form: ScoreForm
    law: Law | None  # given as the scale
    scale: float | NDArray[np.float64] | Unread
    counts: NDArray[np.float64] | None  # n of each row, where the scale is a law of the row

    def __init__(
        self,
        extents: Extents,
        options: Mapping[str, Any],
        layout: str = _BHSD,
        names: Names | Home | None = None,
    ) -> None:
        self.extents, self.options, self.layout, self.names = extents, options, layout, names
        qk_norm = options.get("qk_norm")
        if qk_norm is not None:
            choose("qk_norm", qk_norm, ("l2", "rms"))
        self.head_dim = extents.head_dim or 1
        num_threads = options.get("num_threads")
        self.threads = 0 if num_threads is None else read_num_threads(num_threads)
        self.mask = None

    @classmethod
    def of(cls, query: Unread, key: Unread, value: Unread | None, options: Mapping[str, Any]) -> Plan:
        """The plan of arrays of these shapes and types, with its visible keys; scores are not read."""
        layout = choose("layout", options.get("layout", _BHSD), LAYOUTS)
        extents = read_extents(query, key, value, layout, enable_gqa=options.get("enable_gqa", False))
        plan = cls(extents, options, layout)
        plan.see()
        return plan

    def _placed(self, name: str, default: Any = None) -> Any:
        """An option with its axes, named or not, in the order of the core."""
        option = self.options.get(name, default)
        if option is None or self.names is None or name not in AXES:
            return option
        return self.names.place_option(name, option, AXES[name])

    def see(self) -> None:
        """Find the visible keys of each query."""
        given = self.options.get if self.names is None else self._placed
        lengths, documents = given("key_lengths"), given("document_ids")
        order = given("is_causal", False), given("causal"), given("window")
        self.intervals = read_intervals(self.extents, *order, lengths, documents)
        attn_mask = given("attn_mask")
        if attn_mask is not None:
            self.mask = read_mask(attn_mask, self.extents)

    def form_scores(self) -> None:
        """Read how a dot product becomes a score, apart from the scale of each row."""
        given = self.options.get
        scale, softcap = given("scale"), given("softcap")
        tables = given("distance_scale"), given("distance_bias")
        self.law = law = None if scale is None else read_law(scale)
        of_distance = law is not None and law.meaning.is_distance
        self.form = PRODUCTS if softcap is None else ScoreForm(_read_softcap(softcap))
        if of_distance or not (tables[0] is tables[1] is None):
            found = read_tables(tables, law, self.extents, self.intervals, self.head_dim)
            self.form = ScoreForm(self.form.softcap, *found)

    def scale_rows(self, rows: CallRows) -> None:
        """Read the scale; `rows` counts the keys of each row, or measures it, for a law."""
        law, self.counts = self.law, None
        if law is None and self.options.get("scale") is not None:
            self.scale = read_scale(self._placed("scale"), self.extents)
        elif law is None or law.meaning.is_distance:  # a law of the distance is part of the form
            self.scale = 1.0 / math.sqrt(self.head_dim)
        else:
            self.counts = counts = law_counts(law, rows)
            self.scale = law_scale(law, counts, self.head_dim, self.extents)

    # ---- numbers of rows that need no scores; see laws.MEANINGS_OF_N ----

    @property
    def row_shape(self) -> tuple[int, ...]:
        """(..., heads, n_queries)."""
        return self.extents.row_shape

    def positions(self) -> NDArray[np.int64]:
        """Index of each query's key, by its alignment, within its document."""
        return self.intervals.positions()

    def row_sizes(self) -> NDArray[np.int64]:
        """Keys of the query's document up to the last that causal, window and key_lengths allow.

        A causal row i counts i + 1 (+ offset) regardless of a mask and the window's left side.
        """
        return self.intervals.row_sizes()


def _read_softcap(softcap: Any) -> float:
    cap = number("softcap", softcap)
    if cap <= 0:
        raise ValueError(f"softcap must be greater than 0, or None for no soft-cap, got {shown(softcap)}")
    if not 1e-37 <= cap <= 1e37:
        raise ValueError(
            "softcap must be between 1e-37 and 1e37, where float32 holds it and its inverse, "
            f"got {shown(softcap)}"
        )
    return cap


def read_num_threads(num_threads: Any) -> int:
    """Number of threads; 0, the core's default, for None."""
    return 0 if num_threads is None else thread_count("num_threads", num_threads)
