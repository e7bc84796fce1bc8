# SPDX-License-Identifier: BSD-3-Clause
"""The way from a result to its figure: results have a method `plot`, and no import of the code that draws."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any


def drawn_by(name: str) -> Callable[..., Any]:
    """A function of :mod:`attnscale.plot`, loaded when a figure is wanted: it needs matplotlib.

    The name of a function that is no public one has its module before it, as in "_training.training".
    """
    module, _, function = f"attnscale.plot.{name}".rpartition(".")
    found: Callable[..., Any] = getattr(import_module(module), function)
    return found
