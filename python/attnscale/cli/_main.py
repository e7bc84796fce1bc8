# SPDX-License-Identifier: BSD-3-Clause
"""Parser, table of commands, exit status, and the one line for any error."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from functools import partial
from importlib import import_module

from .._base.checks import InputError
from .._core import __version__
from ._options import Parser, in_option_words
from ._output import FoundError, OutputError, check_outputs, drop_output, emit
from ._program import program

#: Help of each command. The module of the same name has its DESCRIPTION, ``add_options(parser)`` and ``run``.
COMMANDS = {
    "demo": "entropy of real attention heads under four scale laws, with a figure",
    "entropy": "entropy of the queries and keys in a file, per head and law",
    "calibrate": "the scale that keeps the entropy of the heads in a file, and the best law",
    "laws": "the scale laws that have a name",
    "explain": "formula, meaning of n, source and users of a law",
    "theory": "exact expected entropy of random keys, and the scales that keep it",
    "mc": "Monte Carlo experiments, with the exact theory beside them",
    "sweep": "a function over a grid of parameters, from a TOML file",
    "train": "a study that trains models",
    "store": "merge stores that were written on several machines",
    "audit": "the scale of attention in each layer, from a model's config.json",
    "probe": "whether an engine applies the scaling that a config.json asks for",
    "compare": "the first layer in which the attention of two runs differs, and why",
    "conformance": "what another engine's attention does: slips by name, and answers to open questions",
    "diagnose": "entropy of a model's attention against length, by layer (needs torch and transformers)",
    "report": "one HTML page to look at: a map of heads, laws, random keys, a slider for the scale",
    "info": "version, SIMD level, threads, compiler, libraries",
}

_STATUSES = """\
exit status:
  0    done
  1    something could not be written: a file, or standard output, whose reader closed it
  2    bad input, in one line on standard error; --debug shows where it comes from
  3    audit, compare or probe read found what --strict looks for
  130  interrupted by Ctrl-C, with what was finished; 143 by SIGTERM
"""


_INTERRUPTED = 130


def build_parser() -> Parser:
    """Parser of the command line; that of a command is built when the command is named."""
    parser = Parser(
        prog=program(), description="Attention scale laws and attention entropy on the CPU.", epilog=_STATUSES
    )
    parser.add_argument("--version", action="version", version=f"attnscale {__version__}")
    commands = parser.add_commands("commands", "COMMAND")
    for name, text in COMMANDS.items():
        commands.offer(name, partial(_add_options, name), help=text)
    return parser


def _add_options(name: str, parser: Parser) -> None:
    command = import_module(f".{name}", __package__)
    parser.description = getattr(command, "DESCRIPTION", None)
    parser.set_defaults(run=command.run)
    command.add_options(parser)


def main(argv: Sequence[str] | None = None, parser: Parser | None = None) -> int:
    """Run one command.

    Parameters
    ----------
    argv : sequence of str, optional
        Arguments after the program's name; those of the process by default.
    parser : Parser, optional
        Another program's parser, whose options have a ``run``; :func:`build_parser` by default.

    Returns
    -------
    int
        Exit status: 0, or with one line on standard error 1 (something could not be written), 2 (bad input),
        3 (--strict found what it looks for) or 130 (Ctrl-C). If the reader of standard output closed
        it, 1 without a line.

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
    arguments = list(sys.argv[1:] if argv is None else argv)
    status, line = _run(arguments, parser or build_parser())
    if line and sys.stderr is not None:
        from .._base.text import visible

        what = "" if status == _INTERRUPTED else "error: "
        print(f"attnscale: {what}{visible(' '.join(line.split()))}", file=sys.stderr)
    return status


def _run(arguments: list[str], parser: Parser) -> tuple[int, str]:
    """Run the command line; returns the exit status and the line for standard error."""
    options = None
    try:
        options = parser.parse_args(arguments)
        check_outputs(options)
        answer = options.run(options)
        emit(options, answer)
    except (Exception, KeyboardInterrupt) as error:
        if "--debug" in arguments:
            import traceback

            traceback.print_exc()
        status, line = _ending(error, str(error) if options is None else in_option_words(error, options))
        if status == _INTERRUPTED and options is not None and hasattr(options, "store"):
            line += _goes_on(getattr(error, "store", options.store), arguments)
        return status, line
    if not answer.interrupted:
        return 0, ""
    line = "interrupted: this is what was finished"
    if hasattr(options, "store"):
        kept = "" if options.store is None else f"; {options.store} keeps it"
        line += f"{kept}{_goes_on(options.store, arguments)}"
    return _INTERRUPTED, line


def _goes_on(store: str | os.PathLike[str] | None, arguments: Sequence[str]) -> str:
    """The command that resumes after Ctrl-C from the store."""
    if store is None:
        return f"; with a store it can be resumed: {program()} {shlex.join([*arguments, '--store', 'DIR'])}"
    return f"; to resume: {program()} {shlex.join(arguments)}"


def _ending(error: BaseException, said: str) -> tuple[int, str]:
    """Exit status of a command that an error ended, and its line, with `said` as the error's text."""
    if isinstance(error, BrokenPipeError):  # `attnscale ... | head`
        drop_output()
        return 1, ""
    if isinstance(error, KeyboardInterrupt):
        return _INTERRUPTED, f"interrupted: {said}" if said else "interrupted"
    if isinstance(error, OutputError):
        return 1, said
    if isinstance(error, FoundError):
        return error.status, said
    if isinstance(error, MemoryError):
        what = said if said != "std::bad_alloc" else ""
        return 2, f"not enough memory{what and f': {what}'}"
    if isinstance(error, (InputError, OSError, ImportError, RuntimeError)):
        return 2, said
    # An unforeseen error may be a mistake of the package.
    name = "" if isinstance(error, (ValueError, TypeError)) else f"{type(error).__name__}: "
    return 2, f"{name}{said} (--debug shows where)"
