# SPDX-License-Identifier: BSD-3-Clause
"""Parser, table of commands and exit status."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from .._core import __version__
from .._io import InputError
from . import audit, bench, calibrate, demo, diagnose, entropy, info, laws, mc, sweep, theory
from ._output import refuse_two_outputs

#: Every command is a module with ``add(commands)``, which adds its parser and sets ``run``.
COMMANDS = (demo, entropy, calibrate, laws, theory, mc, sweep, audit, diagnose, info, bench)


def build_parser() -> argparse.ArgumentParser:
    """Parser of the command line with all commands."""
    parser = argparse.ArgumentParser(
        prog="attnscale",
        description="Attention scale laws and attention entropy on the CPU.",
        epilog="exit status: 0 done, 1 output was cut off, 2 bad input",
    )
    parser.add_argument("--version", action="version", version=f"attnscale {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.add(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Parameters
    ----------
    argv : sequence of str, optional
        Arguments after the program's name; those of the process by default.

    Returns
    -------
    int
        Exit status: 0, or 2 after one line on standard error about bad input, or 1 if the reader
        of standard output went away.

    Examples
    --------
    >>> main(["explain", "unscaled"])
    unscaled: Unscaled()
      scale    1
      n        not used: the scale is the same at every length
      source   TENER, Yan et al. 2019, arXiv 1911.04474
      used by  TENER, T5 (whose initialisation carries the factor)
    0
    """
    options = build_parser().parse_args(argv)
    try:
        refuse_two_outputs(options)
        options.run(options)
        sys.stdout.flush()
    except BrokenPipeError:  # `attnscale ... | head`
        return 1
    except (InputError, OSError) as error:
        print(f"attnscale: error: {error}", file=sys.stderr)
        return 2
    return 0
