# SPDX-License-Identifier: BSD-3-Clause
"""One step of a monitor: a number for each head, and the heads beyond a limit."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Reduction over the rows of a head, reduction of two calls, and the value of a row that does not count.
_SUMS = (torch.sum, torch.add, 0.0)
#: Statistics reduced by max or min instead of the mean.
_EXTREMES = {
    "max_score": (torch.amax, torch.maximum, -torch.inf),
    "min_score": (torch.amin, torch.minimum, torch.inf),
}
_COUNT = ""  # name of the number of rows that count


class Tally:
    """Sums and extremes over the rows of each head, by layer; rows without keys do not count."""

    def __init__(self) -> None:
        self._found: dict[str, dict[str, torch.Tensor]] = {}
        #: Whether a call was added, with or without rows that count.
        self.has_calls = False

    def add(
        self,
        layer: str,
        rows: Mapping[str, torch.Tensor],
        statistics: Iterable[str],
        real: torch.Tensor | None = None,
    ) -> None:
        """Add the rows of one call, (batch, heads, rows), with n_visible; only `real` ones, (batch, rows)."""
        seen = rows["n_visible"] > 0
        self.has_calls = True
        if not seen.numel():  # a text of only padding, which has no largest score
            return
        if real is not None:
            seen &= real[:, None]
        found = {_COUNT: seen.sum(dim=(0, 2))}
        for name in statistics:
            of_rows, _, none = _EXTREMES.get(name, _SUMS)
            found[name] = of_rows(torch.where(seen, rows[name].double(), none), dim=(0, 2))
        if layer in self._found:
            before = self._found[layer]
            found = {name: _EXTREMES.get(name, _SUMS)[1](before[name], x) for name, x in found.items()}
        self._found[layer] = found

    def result(self) -> dict[str, dict[str, NDArray[np.float64]]]:
        """Statistics of each head, by layer and name, for layers with rows that count."""
        return {
            layer: {
                name: (x if name in _EXTREMES else x / found[_COUNT].double()).cpu().numpy()
                for name, x in found.items()
                if name != _COUNT
            }
            for layer, found in self._found.items()
            if bool(found[_COUNT].any())
        }


_MOST = 3  # alarms spelled out in a warning


@dataclass(frozen=True)
class Alarm:
    """One head that passed a limit of a :class:`Monitor`.

    Attributes
    ----------
    step : int
        The step of the alarm.
    module : str
        The layer's attention, named as in the model's ``named_modules()``.
    head : int
        The head, from 0.
    statistic : {"entropy", "max_score"}
        The mean entropy of the recorded rows, in nats, or their largest score.
    value : float
        The value that passed the limit. NaN or an infinity is an alarm, too.
    limit : float
        The limit.
    """

    step: int
    module: str
    head: int
    statistic: str
    value: float
    limit: float

    def __str__(self) -> str:
        name, side = {"entropy": ("entropy", "below"), "max_score": ("largest score", "above")}[
            self.statistic
        ]
        how = f"{self.value:.3g}, {side} {self.limit:g}" if math.isfinite(self.value) else "no finite number"
        return f"step {self.step}: the {name} of {self.module}, head {self.head}, is {how}"


class Limits:
    """The limits of a monitor; a head raises another alarm only after it came back within a limit."""

    def __init__(self, least_entropy: float | None, most_score: float | None) -> None:
        given = {"entropy": least_entropy, "max_score": most_score}
        self.given = {name: limit for name, limit in given.items() if limit is not None}
        self._beyond: set[tuple[str, int, str]] = set()

    def check(self, step: int, seen: Mapping[str, Mapping[str, Any]]) -> list[Alarm]:
        """Alarms of heads that passed a limit since the last step; `seen` has an array for each layer."""
        found = []
        for module, statistics in seen.items():
            for name, limit in self.given.items():
                for head, value in enumerate(statistics[name].tolist()):
                    place = (module, head, name)
                    inside = value >= limit if name == "entropy" else value <= limit
                    if inside and math.isfinite(value):
                        self._beyond.discard(place)
                    elif place not in self._beyond:
                        self._beyond.add(place)
                        found.append(Alarm(step, module, head, name, value, limit))
        return found


def told(alarms: Iterable[Alarm]) -> str:
    texts = [str(each) for each in alarms]
    more = f"; and {len(texts) - _MOST} more" if len(texts) > _MOST else ""
    return f"{'; '.join(texts[:_MOST])}{more}"
