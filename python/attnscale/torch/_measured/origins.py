# SPDX-License-Identifier: BSD-3-Clause
"""Origin of the channels of queries and keys: which output of a module each one is, and times how much.

No name is read. At position 0 a rotation leaves every channel where it is, so that a channel of a query is
one feature of a projection, or of a norm behind it, times a factor. Over all tokens the two are proportional,
which no other feature is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .passes import Output

#: Cosine above which a feature is looked at closely.
_NEAR = 0.99
#: Largest relative residual of a channel from its feature, beside twice the type's rounding.
_LARGEST = 1e-4
#: Elements of a table of cosines.
_CHUNK = 1 << 23


@dataclass(frozen=True)
class Origin:
    """The features that the channels of a head come from.

    Attributes
    ----------
    outputs : tuple of (str, int)
        For each channel the module, and which of its outputs since the last call of attention.
    features : ndarray of int, shape (channels,)
    factors : ndarray, shape (channels,)
        What each feature is multiplied by.
    """

    outputs: tuple[tuple[str, int], ...]
    features: NDArray[np.int64]
    factors: NDArray[np.float64]

    def values(self, kept: Sequence[Output]) -> Tensor | None:
        """The features in another pass, times their factors, shape (tokens, channels)."""
        by_name = _by_name(kept)
        if any(each not in by_name for each in self.outputs):
            return None
        columns = [
            by_name[output][:, feature].double()
            for output, feature in zip(self.outputs, self.features.tolist(), strict=True)
        ]
        return torch.stack(columns, 1) * torch.from_numpy(self.factors).to(columns[0].device)


def _by_name(kept: Sequence[Output]) -> dict[tuple[str, int], Tensor]:
    """Outputs by module and number."""
    found: dict[tuple[str, int], Tensor] = {}
    count: dict[str, int] = {}
    for module, values in kept:
        number = count.get(module, 0)
        count[module] = number + 1
        found[module, number] = values
    return found


def origin_of(channels: Tensor, kept: Sequence[Output], rounding: float) -> Origin | None:
    """The origin of channels, shape (tokens, channels); None if some come from no feature.

    A feature that is proportional in several modules, as behind a wrapper, is that of the first one, unless
    a later one is much nearer.
    """
    named = list(_by_name(kept).items())
    n_channels = channels.shape[1]
    near: list[list[tuple[float, int, int, float]]] = [[] for _ in range(n_channels)]
    for place, (_, values) in enumerate(named):
        for channel, feature, factor, residual in _fits(channels, values):
            if residual <= max(_LARGEST, 4 * rounding):
                near[channel].append((residual, place, feature, factor))
    chosen = []
    for found in near:
        if not found:
            return None
        limit = max(2 * min(found)[0], rounding)
        chosen.append(next(each for each in found if each[0] <= limit))
    return Origin(
        tuple(named[place][0] for _, place, _, _ in chosen),
        np.array([feature for _, _, feature, _ in chosen], np.int64),
        np.array([factor for *_, factor in chosen], np.float64),
    )


def _fits(channels: Tensor, values: Tensor) -> list[tuple[int, int, float, float]]:
    """Channels and features that are nearly proportional: with their factor and the relative residual.

    The residual is relative to the channel's own variation over the tokens, if that is small.
    """
    channel, feature = _candidates(channels, values)
    y, x = channels[:, channel].double(), values[:, feature].double()
    factor = (x * y).sum(0) / (x * x).sum(0)
    size = torch.minimum(y.norm(dim=0), 8 * (y - y.mean(0)).norm(dim=0))
    residual = (y - factor * x).norm(dim=0) / size
    columns = (channel.tolist(), feature.tolist(), factor.tolist(), residual.tolist())
    return list(zip(*columns, strict=True))


def _candidates(channels: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Numbers of channels and of features with a large cosine, with and without their means."""
    wanted = [_unit(channels), _unit(channels - channels.mean(0))]
    found = []
    width = max(1, _CHUNK // channels.shape[1])
    for start in range(0, values.shape[1], width):
        part = values[:, start : start + width]
        near = [one.mT @ _unit(x) for one, x in zip(wanted, (part, part - part.mean(0)), strict=True)]
        found.append(torch.nonzero((torch.minimum(*(each.abs() for each in near))) > _NEAR))
        found[-1][:, 1] += start
    channel, feature = torch.cat(found).unbind(1)
    return channel, feature


def _unit(x: Tensor) -> Tensor:
    return torch.nn.functional.normalize(x.float(), dim=0)
