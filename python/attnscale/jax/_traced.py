# SPDX-License-Identifier: BSD-3-Clause
"""Calls whose arrays have no numbers yet: checked by shapes and types, with the rules of arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from .._call.call import Call
from .._checks import as_array

if TYPE_CHECKING:
    from numpy.typing import NDArray


def is_traced(x: Any) -> bool:
    """Whether an option is an array without numbers that Python can read."""
    return isinstance(x, jax.core.Tracer)


def stand_in(x: Any, filler: float = 0) -> NDArray[Any]:
    """An array of NumPy of the shape and type of `x`, which takes no memory."""
    return np.broadcast_to(np.full((), filler, x.dtype), x.shape)


def known(name: str, x: Any, filler: float = 0) -> Any:
    """An option as the rules of arrays take it: with its numbers, or in place of those that are traced."""
    if is_traced(x):
        return stand_in(x, filler)
    return as_array(name, x) if isinstance(x, jax.Array) else x


class TracedCall(Call):
    """A call of stand-ins, which has what shapes alone say, and refuses to count what is not known."""

    __slots__ = ("asking", "of_core", "traced")

    traced: tuple[str, ...]  # options whose numbers are not known
    asking: str  # what counts keys just now
    of_core: bool  # whether the core counts them again when the program runs

    def visible_keys(self) -> NDArray[np.int64]:
        self._need("attn_mask", "key_lengths", "document_ids")
        return super().visible_keys()

    def row_sizes(self) -> NDArray[np.int64]:
        self._need("key_lengths", "document_ids")
        return super().row_sizes()

    def positions(self) -> NDArray[np.int64]:
        self._need("key_lengths", "document_ids")
        return super().positions()

    def row_entropies(self) -> NDArray[np.float64]:
        raise self._no_scores()

    def row_gaps(self) -> NDArray[np.float64]:
        raise self._no_scores()

    def row_spreads(self) -> NDArray[np.float64]:
        raise self._no_scores()

    def _need(self, *names: str) -> None:
        for name in names:
            if name in self.traced and not self.of_core:
                raise ValueError(
                    f"{self.asking} counts the keys of a row, which takes the numbers of {name}, a traced "
                    "array here (jit, vmap, grad); pass numbers, or the scale as an array"
                )

    def _no_scores(self) -> ValueError:
        return ValueError(
            f"{self.asking} measures the scores of each row, which attnscale.jax does not; "
            "attnscale.attention does, or pass the scale as an array"
        )
