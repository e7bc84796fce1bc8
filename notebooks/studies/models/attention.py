# SPDX-License-Identifier: BSD-3-Clause
"""Attention of all models, by the implementation that a study chooses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from attnscale._base.checks import choose
from attnscale.torch import attention_statistics
from torch import Tensor

#: The ``backend`` of :func:`attnscale.torch.attention` for each value of a study's field ``attention``.
#: "attnscale" is this package's kernel for the device; "torch" are plain operations of PyTorch on any device.
BACKENDS = {"attnscale": "auto", "torch": "torch"}


@dataclass(frozen=True, kw_only=True)
class Computed:
    """Fields of a study for the computation of its models.

    Attributes
    ----------
    attention : {"attnscale", "torch"}
        Implementation of attention: this package, or plain operations of PyTorch.
    device : str
        The device of models.
    """

    attention: str = "attnscale"
    device: str = "cpu"

    def __post_init__(self) -> None:
        choose("attention", self.attention, tuple(BACKENDS))


@dataclass(frozen=True, kw_only=True)
class Trained(Computed):
    """Fields of a study for the training and computation of its models.

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
