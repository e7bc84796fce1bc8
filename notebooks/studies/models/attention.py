# SPDX-License-Identifier: BSD-3-Clause
"""The attention of all models, computed as the field ``attention`` of a study says."""

from __future__ import annotations

from typing import Any

from attnscale._checks import choose
from attnscale.torch import attention_statistics
from torch import Tensor

#: The ``backend`` of :func:`attnscale.torch.attention` for each value of a study's field ``attention``.
#: "attnscale" is what this package has for the device; "torch" are plain operations of PyTorch on any device.
BACKENDS = {"attnscale": "auto", "torch": "torch"}
#: Types of the products in training.
DTYPES = ("float32", "bfloat16")


def check_implementation(attention: Any, dtype: Any = "float32") -> None:
    """Refuse values of the fields `attention` and `dtype` of a study that there are not."""
    choose("attention", attention, tuple(BACKENDS))
    choose("dtype", dtype, DTYPES)


def attend_rows(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    """Output and entropy of each row, in nats; options are those of :func:`attnscale.torch.attention`."""
    rows = attention_statistics(query, key, value, statistics=("entropy",), **options)
    return rows.output, rows.entropy
