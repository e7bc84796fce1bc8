# SPDX-License-Identifier: BSD-3-Clause
"""``attnscale probe``: a checkpoint whose answers say what an engine multiplies the score by."""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path

from .. import probe
from .._grid.progress import watched
from ..probe._checkpoint import DTYPES
from ..probe._questions import KINDS
from ._options import OPTIONS, Parser, add_option, add_outputs
from ._output import Answer, Drawing, FoundError, bad_input, check_folder, table_of

_WRITE = """\
Write small checkpoints for the engine that serves a model: the keys of its config, one checkpoint for each
kind of layer, and weights made such that log-probabilities reveal what multiplies q . k. Then serve one of
them, or use an engine in this process, and ask it: attnscale probe ask.
CONFIG is a config.json or the directory that holds it.
"""
_ASK = """\
Ask an engine the prompts of a probe, and append its answers to a file. After an interruption the same command
asks the missing ones. DIR is the folder of probe write, all of whose checkpoints are asked in turn, or the
folder of one checkpoint; a server has loaded one. Nothing but the prompts, K and the model's name is sent; a
key is read from the environment variable OPENAI_API_KEY. Without this package: python DIR/ask.py.
"""
_READ = """\
Compare the answers of an engine with the config: scale, rotary angles, temperature, soft-cap, window, sink.
"""


def add_options(parser: Parser) -> None:
    """Add the options of ``attnscale probe``."""
    steps = parser.add_commands("steps", "STEP")
    steps.offer("write", _add_write, help="checkpoints and prompts, from a config.json")
    steps.offer("ask", _add_ask, help="the prompts to an engine, whose answers go to a file")
    steps.offer("read", _add_read, help="the answers, beside what the config asks for")


def _add_write(parser: Parser) -> None:
    parser.description = _WRITE
    parser.set_defaults(step=_write)
    parser.add_argument("config", type=Path, metavar="CONFIG")
    add_option(parser, "--output", metavar="DIR", help="the folder of the probe", required=True)
    add_option(parser, "--kinds", choices=KINDS)
    add_option(parser, "--layer", "--longest", "--gguf", "--converter")
    add_option(parser, "--dtype", choices=DTYPES, help="type that the config names (default: float32)")
    add_outputs(parser, csv=False, plot=False)


def _add_ask(parser: Parser) -> None:
    parser.description = _ASK
    parser.set_defaults(step=_ask)
    parser.add_argument("folder", type=Path, metavar="DIR")
    engine = parser.add_mutually_exclusive_group(required=True)
    add_option(engine, "--url", "--transformers", "--llama-cpp", "--mlx")
    add_option(parser, "--output", help="the file of answers, JSON lines", required=True)
    add_option(parser, "--model", help="name of the server's model (default: the first that it lists)")
    add_option(parser, "--k", help="log-probabilities of an answer (default: 5, or the most it gives)")
    for flag, default in (("--timeout", "120"), ("--retries", "3"), ("--key-from", "OPENAI_API_KEY")):
        add_option(parser, flag, help=f"{OPTIONS[flag].meaning} (default: {default})")
    add_option(parser, "--dtype", help="type of the engine's numbers (default: float32)")
    add_option(parser, "--attention", help=f"{OPTIONS['--attention'].meaning} (default: the model's own)")
    add_option(parser, "--cache", help=f"{OPTIONS['--cache'].meaning} of llama.cpp (default: f32)")
    add_option(parser, "--flash", default=None)
    add_outputs(parser, csv=False, plot=False)


def _add_read(parser: Parser) -> None:
    parser.description = _READ
    parser.set_defaults(step=_read)
    parser.add_argument("answers", type=Path, metavar="ANSWERS")
    add_option(parser, "--strict", help="exit status 3 if an answer is wrong")
    add_outputs(parser)


def run(options: argparse.Namespace) -> Answer:
    """Take the step that is named."""
    found: Answer = options.step(options)
    return found


def _write(options: argparse.Namespace) -> Answer:
    """Write the probe, and say how to go on."""
    folder = options.output
    check_folder(f"--output {folder}", folder)
    names = ("kinds", "layer", "longest", "dtype", "gguf", "converter")
    given = {name: value for name in names if (value := getattr(options, name)) is not None}
    with bad_input():
        probe.write(options.config, folder, **given)
    text = f"{folder}: written. Serve one of its checkpoints, then: attnscale probe ask {folder} --url URL"
    return Answer(text, report={"folder": str(folder)})


def _ask(options: argparse.Namespace) -> Answer:
    """Ask, and say how to go on."""
    engine = "transformers" if options.transformers else "mlx" if options.mlx else None
    engine = engine if options.llama_cpp is None else "llama_cpp"
    names = ("model", "k", "timeout", "retries", "key_from", "dtype", "attention", "cache", "flash")
    given = {name: getattr(options, name) for name in names}
    slow_start = watched(first_counts=False)  # the engine is loaded before its first answer
    with bad_input(), slow_start as watch, warnings.catch_warnings(record=True) as remarks:
        warnings.simplefilter("always")
        probe.ask(
            options.folder,
            options.output,
            url=options.url,
            engine=engine,
            file=options.llama_cpp,
            progress=watch,
            **given,
        )
    out = options.output
    said = [str(each.message) for each in remarks if each.category is UserWarning]
    return Answer(
        f"{out}: written. Then: attnscale probe read {out}", report={"answers": str(out)}, remarks=said
    )


def _read(options: argparse.Namespace) -> Answer:
    """Read answers and print what they say."""
    with bad_input(str(options.answers)):
        found = probe.read(options.answers)
    table, notes = table_of(found)
    said = "an answer is wrong" if found.wrong else "" if found.told else "the answers tell nothing"
    ends = FoundError(f"{said} (--strict)") if options.strict and said else None
    return Answer(
        "\n".join([table, *notes]),
        found.rows(),
        report=found.to_dict(),
        drawing=Drawing(lambda figure: found.plot(figure=figure), panels=None),
        ends=ends,
    )
