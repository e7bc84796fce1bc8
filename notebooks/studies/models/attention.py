# SPDX-License-Identifier: BSD-3-Clause
"""The attention of all models, computed as the field ``attention`` of a study says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from attnscale._base.checks import choose
from attnscale.torch import attention_statistics
from torch import Tensor

#: The ``backend`` of :func:`attnscale.torch.attention` for each value of a study's field ``attention``.
#: "attnscale" is what this package has for the device; "torch" are plain operations of PyTorch on any device.
BACKENDS = {"attnscale": "auto", "torch": "torch"}


@dataclass(frozen=True, kw_only=True)
class Computed:
    """The fields of a study that say how its models are computed.

    Attributes
    ----------
    attention : {"attnscale", "torch"}
        What computes attention: this package, or plain operations of PyTorch.
    device : str
        The device of models.
    """

    attention: str = "attnscale"
    device: str = "cpu"

    def __post_init__(self) -> None:
        choose("attention", self.attention, tuple(BACKENDS))


@dataclass(frozen=True, kw_only=True)
class Trained(Computed):
    """The fields of a study that say how its models are trained and computed.

    Attributes
    ----------
    dtype : {"float32", "bfloat16"}
        Type of the products in training; weights, sums and measurements are in float32.
    """

    dtype: str = "float32"

    def __post_init__(self) -> None:
        super().__post_init__()
        choose("dtype", self.dtype, ("float32", "bfloat16"))


def attend_rows(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    """Output and entropy of each row, in nats; options are those of :func:`attnscale.torch.attention`."""
    rows = attention_statistics(query, key, value, statistics=("entropy",), **options)
    return rows.output, rows.entropy
