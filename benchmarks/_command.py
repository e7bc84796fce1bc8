# SPDX-License-Identifier: BSD-3-Clause
"""`attnscale bench` with the cases of one question."""

from __future__ import annotations

import sys

from attnscale.cli import main


def run(*cases: str) -> None:
    """Measure these cases, with the options of the command line."""
    sys.exit(main(["bench", *sys.argv[1:], "--only", *cases]))
