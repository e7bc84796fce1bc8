# SPDX-License-Identifier: BSD-3-Clause
"""Statistics of rows, gathered over the forward passes of a step into one number for each head."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Statistics of which the extreme counts, not the mean, and what combines them.
EXTREMES = {"max_score": torch.maximum, "min_score": torch.minimum}
#: What rows that do not count have instead of the extreme.
_NONE = {"max_score": -torch.inf, "min_score": torch.inf}
_EXTREME_OF = {"max_score": torch.amax, "min_score": torch.amin}


class Tally:
    """Sums and extremes over the rows of each head, by layer; a row without keys does not count."""

    def __init__(self) -> None:
        self._found: dict[str, dict[str, torch.Tensor]] = {}
        self._counts: dict[str, torch.Tensor] = {}

    def add(
        self,
        layer: str,
        rows: Mapping[str, torch.Tensor],
        statistics: Iterable[str],
        real: torch.Tensor | None = None,
    ) -> None:
        """Add the rows of one call: tensors of the shape (batch, heads, rows), with their n_visible.

        Rows that are not `real`, shape (batch, rows), do not count.
        """
        seen = rows["n_visible"] > 0
        if real is not None:
            seen &= real[:, None]
        before = self._found.get(layer)
        count = seen.sum(dim=(0, 2))
        self._counts[layer] = count if before is None else self._counts[layer] + count
        found = {}
        for name in statistics:
            values = rows[name].double()
            if name in EXTREMES:
                now = _EXTREME_OF[name](torch.where(seen, values, _NONE[name]), dim=(0, 2))
                found[name] = now if before is None else EXTREMES[name](before[name], now)
            else:
                now = torch.where(seen, values, 0.0).sum(dim=(0, 2))
                found[name] = now if before is None else before[name] + now
        self._found[layer] = found

    def result(self) -> dict[str, dict[str, NDArray[np.float64]]]:
        """The statistics of each head, by layer and name, of the layers that have rows which count."""
        return {
            layer: self._of_layer(layer, found)
            for layer, found in self._found.items()
            if bool(self._counts[layer].any())
        }

    def _of_layer(self, layer: str, found: Mapping[str, torch.Tensor]) -> dict[str, Any]:
        count = self._counts[layer].double()
        return {
            name: (values if name in EXTREMES else values / count).cpu().numpy()
            for name, values in found.items()
        }
