# SPDX-License-Identifier: BSD-3-Clause
"""Modules behind at.torch.record that tests look into, and calls that a watch sees."""

from __future__ import annotations

from typing import Any

import torch
from attnscale.torch._models import by_name, calls, fast_path, interface, readings, rows, tally, watch

Watch = watch.Watch

__all__ = ["Watch", "by_name", "calls", "fast_path", "interface", "readings", "rows", "tally", "watched"]


def watched(model: torch.nn.Module, *inputs: Any, **options: Any) -> tuple[list[Any], Any]:
    """Calls of attention in a forward pass without gradients, and the output of the model."""
    seen: list[Any] = []
    with torch.no_grad(), Watch(model, seen.append):
        output = model(*inputs, **options)
    return seen, output
