# SPDX-License-Identifier: BSD-3-Clause
"""What a search for scales asks of the core, with or without packed documents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .. import _core
from .arrays import Inputs
from .documents import Packed, Part, attend_documents, solve_documents
from .rows import Visibility

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Rows"]

_N_VISIBLE = 64  # a bit of the core's request for statistics


class Rows(NamedTuple):
    """The rows of a call, and how to compute with them."""

    inputs: Inputs
    visible: Visibility
    threads: int
    documents: list[Part] | None

    @property
    def shape(self) -> tuple[int, ...]:
        """(..., heads, n_queries)."""
        return (*self.inputs.leading, self.inputs.query.shape[-2])

    def solve(self, target: NDArray[np.float64], tolerance: float) -> tuple[NDArray[Any], ...]:
        """Scale, entropy, lowest, highest, converged, feasible and iterations of each row."""
        q, k = self.inputs.query, self.inputs.key
        if self.documents is None:
            return _core.solve(q, k, target, tolerance, *self.visible, self.threads)
        return solve_documents(self.documents, self._packed(None), target, tolerance)

    def statistics(self, scale: NDArray[np.float64], bits: int) -> tuple[NDArray[Any] | None, ...]:
        """Statistics at scales that broadcast to the rows, as the core returns them."""
        q, k = self.inputs.query, self.inputs.key
        if self.documents is None:
            nothing = None, None, None  # tables, normalizer
            return _core.attend(q, k, None, None, bits, scale, *self.visible, 0.0, self.threads, *nothing)
        return attend_documents(self.documents, self._packed(scale), None, bits)

    def see_keys(self) -> NDArray[np.bool_]:
        """True for rows that see a key."""
        if self.documents is None:
            n_queries, n_keys = self.inputs.query.shape[-2], self.inputs.key.shape[-2]
            counts = _core.count_visible(n_queries, n_keys, *self.visible, self.threads)
        else:
            counts = self.statistics(np.array(0.0), _N_VISIBLE)[6]  # type: ignore[assignment]
        return np.broadcast_to(counts > 0, self.shape)

    def _packed(self, scale: NDArray[np.float64] | None) -> Packed:
        return Packed(self.inputs, self.visible, scale, 0.0, self.threads)
