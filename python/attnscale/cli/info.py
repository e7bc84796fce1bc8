# SPDX-License-Identifier: BSD-3-Clause
"""``attnscale info``: the versions, the SIMD level and the threads of this installation."""

from __future__ import annotations

import argparse
from typing import Any

from .._base.runtime import show_config
from ._options import Parser, add_outputs
from ._output import Answer


def add_options(parser: Parser) -> None:
    """Add the options of ``attnscale info``."""
    add_outputs(parser, csv=False, plot=False)


def run(options: argparse.Namespace) -> Answer:
    """Print the configuration."""
    config = show_config()
    width = max(map(len, config))
    lines = [f"{name:{width}}  {_listed(value)}" for name, value in config.items()]
    return Answer("\n".join(lines), report=config)


def _listed(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
