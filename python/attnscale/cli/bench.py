# SPDX-License-Identifier: BSD-3-Clause
"""``attnscale bench``: how fast it is here, beside targets, PyTorch and NumPy."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from .._io import InputError
from ._progress import progress_line

_DESCRIPTION = """\
Measure this machine's multiply-add peak and read bandwidth, and every speed that attnscale
promises as a share of them or as a ratio within the same run. A row that misses its target
is marked; the exit status is 0 all the same.
"""

# Of the options that go with --variants.
_LENGTHS = (1024, 4096, 16384, 65536, 262144)
_DEFAULTS = {"heads": 1, "head_dim": 64, "limit": 20.0}


def add(commands: Any) -> None:
    """Add the command's parser."""
    parser = commands.add_parser(
        "bench",
        help="how fast it is on this machine, beside targets, PyTorch and NumPy",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="fewer rounds, and no case that takes long")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these cases; --list shows their names")
    parser.add_argument("--list", action="store_true", help="print the names of the cases and leave")
    parser.add_argument("--threads", type=int, metavar="N", help="default: as attnscale info shows")
    parser.add_argument("--repeat", type=int, metavar="R", help="rounds (default: 9, or 3 with --quick)")
    variants = parser.add_argument_group("variants against n, each in a process of its own")
    variants.add_argument("--variants", nargs="*", metavar="NAME", help="all variants, or these")
    variants.add_argument(
        "--n", nargs="+", type=int, metavar="N", help=f"lengths (default: {' '.join(map(str, _LENGTHS))})"
    )
    variants.add_argument("--heads", type=int, metavar="H", help="default: 1")
    variants.add_argument("--head-dim", type=int, metavar="D", help="default: 64")
    variants.add_argument("--limit", type=float, metavar="S", help="longest call in seconds (default: 20)")
    variants.add_argument("--plot", type=Path, metavar="FILE", help="save a figure of time and memory")
    parser.add_argument("--json", action="store_true", help="print JSON, every sample included")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Measure and print."""
    from .. import bench  # not needed by the other commands

    if options.list:
        print(*bench.CASES, sep="\n")
        return
    if options.variants is not None:
        from . import _bench_variants

        for name, value in ("n", _LENGTHS), *_DEFAULTS.items():
            setattr(options, name, value if getattr(options, name) is None else getattr(options, name))
        _bench_variants.run(options)
        return
    for name in ("n", *_DEFAULTS, "plot"):
        if getattr(options, name) is not None:
            raise InputError(f"--{name.replace('_', '-')} goes with --variants")
    try:
        with progress_line() as progress:
            report = bench.run(
                options.only,
                quick=options.quick,
                threads=options.threads,
                rounds=options.repeat,
                progress=progress,
            )
    except ValueError as error:
        raise InputError(str(error)) from None
    print(report.to_json() if options.json else report.to_text())
