# SPDX-License-Identifier: BSD-3-Clause
"""One attention call on arrays, in the core's form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

import numpy as np

from .._core import CoreCall
from . import measures
from .arrays import ARRAY, FLOAT32, FLOAT64, LAYOUTS, Inputs, make_output, read_inputs
from .distance import PRODUCTS
from .lost_rows import warn_of_lost_rows
from .named import AxesOfRows, read_named
from .options import DEFAULTS
from .plan import Plan
from .weights import normalize_rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..normalizers import Normalizer

_BHSD, _BSHD = LAYOUTS
_Result = TypeVar("_Result")


class Call(Plan):
    """A plan with its arrays, which the core attends, and which count and measure the rows for its law."""

    __slots__ = ("core", "given", "inputs")

    mask: NDArray[np.bool_] | NDArray[np.floating] | None
    scale: float | NDArray[np.float64]
    given: Inputs  # the caller's arrays, with the axes of the core
    inputs: Inputs  # after qk_norm
    core: CoreCall

    def __init__(
        self, query: Any, key: Any, value: Any = None, options: Mapping[str, Any] = DEFAULTS
    ) -> None:
        names = None
        layout, dims = options.get("layout", _BHSD), options.get("dims")
        if not (
            dims is None
            and (layout is _BHSD or layout is _BSHD)
            and type(query) is type(key) is ARRAY
            and (value is None or type(value) is ARRAY)
        ):
            names, (query, key, value), layout = read_named(query, key, value, layout, dims)
        self.given = inputs = read_inputs(
            query, key, value, layout, enable_gqa=options.get("enable_gqa", False)
        )
        super().__init__(inputs.extents, options, layout, names)
        qk_norm = options.get("qk_norm")
        self.inputs = inputs if qk_norm is None else normalize_rows(inputs, qk_norm)

    def read(self) -> Self:
        """The call with all of its options read."""
        self.see()
        self.score()
        return self

    def score(self) -> None:
        """Read how a dot product becomes a score. A law asks the call, then at the standard scale."""
        self.form_scores()
        self.core = self.core_of(self.intervals.begin, self.intervals.end)
        self.scale_rows(self)

    def core_of(self, begin: NDArray[np.int64] | None, end: NDArray[np.int64] | None) -> CoreCall:
        """The core's call, where row r sees at most the keys begin[r] ... end[r] - 1."""
        query, key, _, extents = self.inputs
        dtype = extents.dtype
        form = None if self.form is PRODUCTS else self.form
        wide = dtype is not FLOAT32 and dtype == FLOAT64  # `is` settles most calls, and `==` is slow
        return CoreCall(query, key, self.mask, begin, end, form, wide, self.threads)

    # ---- numbers that laws count and measure; see laws.MEANINGS_OF_N ----

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
