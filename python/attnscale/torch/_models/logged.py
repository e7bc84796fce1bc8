# SPDX-License-Identifier: BSD-3-Clause
"""What a log keeps of one call of attention, in the memory of the CPU."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .by_name import ByName
from .heads import kept_rows, on_host

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..._calibrate.fit import Length
    from ...laws import Law
    from .calls import Call


class Logged(NamedTuple):
    """One call in the memory of the CPU."""

    kind: str
    way: str
    key_heads: int
    n_keys: int
    has_sink: bool
    real: NDArray[np.bool_]  # which rows are of a text, shape (batch, queries)
    arrays: ByName[NDArray[Any]]  # by statistic, shape (batch, heads, queries)
    kept: Length | None  # queries and keys

    @property
    def heads(self) -> int:
        return int(next(iter(self.arrays.values())).shape[1])


def measured(call: Call, statistics: Iterable[str], laws: Mapping[str, Law], *, keep_heads: bool) -> Logged:
    """Measure one call, also under laws, and copy its queries and keys where they are kept."""
    found = {name: np.asarray(on_host(rows)) for name, rows in call.statistics(statistics).items()}
    for name, law in laws.items():
        found[f"entropy under {name}"] = np.asarray(on_host(call.entropy_under(law)))
    batch, _, n_queries = call.rows_shape
    real = np.ones((batch, n_queries), bool) if call.real is None else np.array(on_host(call.real), bool)
    kept = kept_rows(call) if keep_heads else None
    form = call.kind, call.way, call.key_heads, call.n_keys, call.has_sink
    return Logged(*form, real, ByName(found), kept)


def mean_of_texts(rows: NDArray[Any], real: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Mean of each head, shape (heads,), over the rows (batch, heads, queries) that are of texts."""
    chosen = np.moveaxis(rows, 1, -1)[real].astype(np.float64)
    return chosen.mean(axis=0) if len(chosen) else np.full(rows.shape[1], np.nan)
