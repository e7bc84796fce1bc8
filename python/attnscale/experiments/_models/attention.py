# SPDX-License-Identifier: BSD-3-Clause
"""The attention of all models, computed as the field ``attention`` of a config says."""

from __future__ import annotations

from typing import Any, cast

from torch import Tensor

from ..._checks import choose, shown
from ...torch import attention_statistics

__all__ = ["BACKENDS", "attend_rows", "check_implementation"]

#: The ``backend`` of :func:`attnscale.torch.attention` for each value of a config's field ``attention``.
#: "torch" runs on any device.
BACKENDS = {"attnscale": "core", "torch": "torch"}


def check_implementation(attention: Any, device: Any) -> None:
    """Refuse the fields `attention` and `device` of a config where no backend computes their combination."""
    choose("attention", attention, tuple(BACKENDS))
    if attention == "attnscale" and str(device) != "cpu":
        raise ValueError(f"device must be 'cpu' with attention='attnscale', got {shown(device)}")


def attend_rows(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    """Output and entropy of each row, in nats; options are those of :func:`attnscale.torch.attention`."""
    rows = attention_statistics(query, key, value, statistics=("entropy",), **options)
    return cast("tuple[Tensor, Tensor]", (rows.output, rows.entropy))
