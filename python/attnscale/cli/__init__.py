# SPDX-License-Identifier: BSD-3-Clause
"""The command ``attnscale``."""

from ._main import build_parser, main

__all__ = ["build_parser", "main"]
