# SPDX-License-Identifier: BSD-3-Clause
"""One attention call: every option checked, in the core's form."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

import numpy as np

from .._base.checks import number, shown, thread_count
from .._core import CoreCall, Intervals
from . import measures
from .arrays import ARRAY, FLOAT32, FLOAT64, LAYOUTS, Inputs, make_output, read_inputs
from .distance import PRODUCTS, ScoreForm, read_tables
from .homes import Home
from .lost_rows import warn_of_lost_rows
from .named import AxesOfRows, Names, read_named
from .options import AXES, DEFAULTS
from .rows import read_intervals, read_mask
from .scale import law_counts, law_scale, read_law, read_scale
from .weights import normalize_rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..laws import Law
    from ..normalizers import Normalizer

_BHSD, _BSHD = LAYOUTS
_Result = TypeVar("_Result")


class Call:
    """Arrays, the visible keys of each query, and the scores, made in this order.

    The options are the caller's. Arrays of rows broadcast to (..., heads, n_queries).
    """

    __slots__ = (
        "core",
        "counts",
        "form",
        "given",
        "head_dim",
        "inputs",
        "intervals",
        "law",
        "layout",
        "mask",
        "names",
        "options",
        "scale",
        "threads",
    )

    options: Mapping[str, Any]
    names: Names | Home | None  # of the caller's axes, or the home of results; None: axes by order, ndarrays
    given: Inputs  # the caller's arrays, with the axes of the core
    inputs: Inputs  # after qk_norm
    layout: str  # of the arrays and the output; "bhsd" if axes have names, which order them
    threads: int  # 0: the core's default
    head_dim: int  # at least 1
    intervals: Intervals
    mask: NDArray[np.bool_] | NDArray[np.floating] | None
    form: ScoreForm
    law: Law | None  # given as the scale
    scale: float | NDArray[np.float64]
    counts: NDArray[np.float64] | None  # n of each row, where the scale is a law of the row
    core: CoreCall

    def __init__(
        self, query: Any, key: Any, value: Any = None, options: Mapping[str, Any] = DEFAULTS
    ) -> None:
        self.options, self.names = options, None
        layout, dims = options.get("layout", _BHSD), options.get("dims")
        if not (
            dims is None
            and (layout is _BHSD or layout is _BSHD)
            and type(query) is type(key) is ARRAY
            and (value is None or type(value) is ARRAY)
        ):
            self.names, (query, key, value), layout = read_named(query, key, value, layout, dims)
        self.layout = layout
        enable_gqa, qk_norm = options.get("enable_gqa", False), options.get("qk_norm")
        self.given = inputs = read_inputs(query, key, value, layout, enable_gqa=enable_gqa)
        self.inputs = inputs if qk_norm is None else normalize_rows(inputs, qk_norm)
        self.head_dim = inputs.query.shape[-1] or 1
        self.threads = read_num_threads(options.get("num_threads"))
        self.mask = None

    def read(self) -> Self:
        """The call with all of its options read."""
        self.see()
        self.score()
        return self

    def _placed(self, name: str) -> Any:
        """An option with its axes, named or not, in the order of the core; None if it is not given."""
        option = self.options.get(name)
        if option is None or self.names is None:
            return option
        return self.names.place_option(name, option, AXES[name])

    def see(self) -> None:
        """Find the visible keys of each query."""
        given = self.options.get
        lengths, documents = self._placed("key_lengths"), self._placed("document_ids")
        order = given("is_causal", False), given("causal"), given("window")
        self.intervals = read_intervals(self.inputs, *order, lengths, documents)
        attn_mask = self._placed("attn_mask")
        if attn_mask is not None:
            self.mask = read_mask(attn_mask, self.inputs)

    def score(self) -> None:
        """Read how a dot product becomes a score. A law asks the call, then at the standard scale."""
        given = self.options.get
        scale, softcap = given("scale"), given("softcap")
        tables = given("distance_scale"), given("distance_bias")
        self.law = law = None if scale is None else read_law(scale)
        of_distance = law is not None and law.meaning.is_distance
        self.form = PRODUCTS if softcap is None else ScoreForm(_read_softcap(softcap))
        if of_distance or not (tables[0] is tables[1] is None):
            found = read_tables(tables, law, self.inputs, self.intervals, self.head_dim)
            self.form = ScoreForm(self.form.softcap, *found)
        self.core = self.core_of(self.intervals.begin, self.intervals.end)
        self.scale, self.counts = 1.0 / math.sqrt(self.head_dim), None
        if law is None and scale is not None:
            self.scale = read_scale(self._placed("scale"), self.inputs)
        elif law is not None and not of_distance:  # a law of the distance is part of the form
            counts = law_counts(law, self)
            self.scale, self.counts = law_scale(law, counts, self.head_dim, self.inputs), counts

    def core_of(self, begin: NDArray[np.int64] | None, end: NDArray[np.int64] | None) -> CoreCall:
        """The core's call, where row r sees at most the keys begin[r] ... end[r] - 1."""
        query, key, _, dtype, _ = self.inputs
        form = None if self.form is PRODUCTS else self.form
        wide = dtype is not FLOAT32 and dtype == FLOAT64  # `is` settles most calls, and `==` is slow
        return CoreCall(query, key, self.mask, begin, end, form, wide, self.threads)

    # ---- numbers that laws count and measure; see laws.MEANINGS_OF_N ----

    @property
    def row_shape(self) -> tuple[int, ...]:
        """(..., heads, n_queries)."""
        return self.inputs.row_shape

    def positions(self) -> NDArray[np.int64]:
        """Index of each query's key, by its alignment, within its document."""
        return self.intervals.positions()

    def row_sizes(self) -> NDArray[np.int64]:
        """Keys of the query's document up to the last that causal, window and key_lengths allow.

        A causal row i counts i + 1 (+ offset) regardless of a mask and the window's left side.
        """
        return self.intervals.row_sizes()

    def visible_keys(self) -> NDArray[np.int64]:
        """Number of keys that each query may see: counted under a mask, else the length of its interval."""
        return self.intervals.visible_keys() if self.mask is None else self.core.count()

    def row_entropies(self) -> NDArray[np.float64]:
        """Entropy of each row at the standard scale, in nats."""
        (entropy,) = self.core.attend(None, None, ("entropy",), self.head_dim**-0.5, None)
        return entropy.astype(np.float64)

    def row_gaps(self) -> NDArray[np.float64]:
        """Critical inverse temperature of each row's gaps at the standard scale."""
        return measures.row_gaps(self.inputs, self.intervals, self.mask, self.form)

    def row_spreads(self) -> NDArray[np.float64]:
        """Standard deviation of the visible scores of each row at the standard scale."""
        return measures.row_spreads(self.inputs, self.intervals, self.mask, self.form)

    # ---- results of the core ----

    def attend(
        self,
        normalizer: Normalizer | None,
        statistics: tuple[str, ...],
        out: Any = None,
        order: Literal["query", "rows"] = "query",
        rests: Mapping[str, str] | None = None,
    ) -> tuple[NDArray[Any] | None, dict[str, NDArray[Any]]]:
        """The output if there is a value, and these statistics by name; no normalizer is the softmax.

        The output's named axes are in the order of the query's axes or of the rows'. `rests` names the
        rounded-off parts of statistics to return as well.
        """
        rule = None if normalizer is None else normalizer._rule(self)
        value, names = self.inputs.value, self.names
        output = view = None
        if value is not None:
            given = out if names is None else names.place_out(out)
            output, view = make_output(self.inputs, value.shape[-1], self.layout, given)
        rows = self.core.attend(value, view, statistics, self.scale, rule, rests is not None)
        if rests is not None:
            statistics, rows = _with_rests(statistics, rows, rests, self.inputs.dtype)
        if self.core.has_lost_rows:
            self._warn_of_lost_rows()
        if names is None:
            return output, dict(zip(statistics, rows, strict=True)) if statistics else {}
        if output is not None:
            output = names.label_output(output, out, order)
            output = output if out is not None else names.bring(output)
        return output, {name: self.rows(each, name) for name, each in zip(statistics, rows, strict=True)}

    def check_rows(self, found: NDArray[Any]) -> None:
        """Warn where results of the core are NaN and no number of the call explains it."""
        if np.isnan(found).any():
            self._warn_of_lost_rows()

    def _warn_of_lost_rows(self) -> None:
        if self.law is not None and not np.isfinite(self.scale).all():
            return  # the law has no scale for these rows, as its documentation says
        warn_of_lost_rows(*self.given[:3], self.mask)

    def rows(
        self, values: NDArray[Any], name: str, axes: AxesOfRows = (..., "queries"), **labels: Any
    ) -> NDArray[Any]:
        """A result with the names of these axes, in the caller's library; `labels` are those of new axes."""
        if self.names is None:
            return values
        found: NDArray[Any] = self.names.bring(self.names.label_rows(values, name, axes, labels))
        return found

    def bring(self, values: Any) -> Any:
        """A result, or a dict of results, as arrays of the caller's library; None unchanged."""
        if self.names is None or values is None:
            return values
        if isinstance(values, dict):
            return {name: self.names.bring(each) for name, each in values.items()}
        return self.names.bring(values)

    def label(self, result: _Result, axes: Mapping[str, AxesOfRows], **labels: Any) -> _Result:
        """A dataclass of results whose fields have these axes, with labels if the call has them."""
        names = self.names
        if names is None:
            return result
        found = {name: getattr(result, name) for name in axes}
        changes = {name: names.label_rows(found[name], name, own, labels) for name, own in axes.items()}
        return replace(result, **changes)  # type: ignore[type-var]


def _with_rests(
    statistics: tuple[str, ...], rows: tuple[NDArray[Any], ...], rests: Mapping[str, str], dtype: Any
) -> tuple[tuple[str, ...], tuple[NDArray[Any], ...]]:
    """Rows of float64 in the type of the arithmetic, and the part that rounding removed from each."""
    if dtype == FLOAT64:
        return statistics, rows
    found = [split_rows(each, FLOAT32) for each in rows]
    names = (*statistics, *(rests[name] for name in statistics))
    return names, (*(narrow for narrow, _ in found), *(rest for _, rest in found))


def split_rows(wide: NDArray[np.float64], dtype: Any) -> tuple[NDArray[Any], NDArray[np.float64]]:
    """Numbers in a smaller type, and the part that rounding removed; 0 where they are not finite."""
    with np.errstate(over="ignore", invalid="ignore"):
        narrow = wide.astype(dtype)
        return narrow, np.where(np.isfinite(narrow), wide - narrow, 0)


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
