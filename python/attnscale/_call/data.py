# SPDX-License-Identifier: BSD-3-Clause
"""A call as far as it is read: its arrays, intervals and scores, and what its rows count."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from . import measures
from .arrays import Inputs
from .rows import Intervals

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .. import _core
    from .form import ScoreForm

__all__ = ["CallData"]


class CallData:
    """What readers of options may ask of a call. Arrays of rows broadcast to (..., heads, n_queries)."""

    __slots__ = (
        "core",
        "counts",
        "form",
        "given",
        "head_dim",
        "inputs",
        "intervals",
        "layout",
        "mask",
        "scale",
        "threads",
    )

    given: Inputs  # as the caller gave them
    inputs: Inputs  # after qk_norm
    layout: str
    threads: int  # 0: the core's default
    head_dim: int  # at least 1
    intervals: Intervals
    mask: NDArray[np.bool_] | NDArray[np.floating] | None
    form: ScoreForm
    scale: float | NDArray[np.float64]
    counts: NDArray[np.float64] | None  # n of each row, where the scale is a law of the row
    core: _core.Call

    @property
    def row_shape(self) -> tuple[int, ...]:
        """(..., heads, n_queries)."""
        return (*self.inputs.leading, self.inputs.query.shape[-2])

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
        return measures.row_gaps(self.inputs, self.intervals, self.mask, self.form)

    def row_spreads(self) -> NDArray[np.float64]:
        """Standard deviation of the scores that each row sees, at the standard scale."""
        return measures.row_spreads(self.inputs, self.intervals, self.mask, self.form)
