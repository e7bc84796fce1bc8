# SPDX-License-Identifier: BSD-3-Clause
"""Whether the multipliers of a plan are numbers that a score can be multiplied with."""

from __future__ import annotations

import numpy as np

from .._config.source import ConfigError
from .layer import LayerPlan

#: Positions at which a multiplier is looked at: the first ones, and far behind any training length.
_POSITIONS = np.array([0, 1, 4096, 2**20, 2**31 - 1])


def impossible(layers: tuple[LayerPlan, ...]) -> tuple[str, ...]:
    """A warning for each set of keys that gives a negative multiplier; one that is not finite is refused."""
    found: dict[str, None] = {}
    seen = set()
    for layer in layers:
        alike = (layer.base, layer.terms, layer.head_dim, layer.rotated)
        if layer.refusal is None and alike not in seen:
            seen.add(alike)
            keys = "; ".join(term.key for term in (layer.base, *layer.terms))
            value = _worst(layer)
            if value is not None and not np.isfinite(value):
                raise ConfigError(f"{keys}: the multiplier is {value:g}, which is no number for a score")
            if value is not None:
                found[f"{keys}: the multiplier is {value:g}, which no score can be multiplied with"] = None
    return tuple(found)


def _worst(layer: LayerPlan) -> float | None:
    """A multiplier of the layer that is negative or not finite; None if there is none."""
    with np.errstate(all="ignore"):
        for channels in layer.channel_kinds:
            values = layer.multipliers(_POSITIONS, channels) * layer.capped_multipliers(_POSITIONS)
            for wrong in (~np.isfinite(values), values < 0):
                if wrong.any():
                    return float(values[wrong][0])
    return None
