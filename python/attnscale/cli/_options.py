# SPDX-License-Identifier: BSD-3-Clause
"""Options of all commands: each has one name, one kind of value and one meaning."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, cast

from .._base.checks import InputError, Refusal, meant, shown

LAW_HELP = "NAME, 'NAME(parameter=value)' or a number, which multiplies q . k"
#: Meaning of --part in commands that share work.
PART_HELP = "compute the K-th of N parts, counted from 1, into a store that the parts share"
#: Types of numbers of llama.cpp: in a GGUF file, and in a cache of keys and values.
_GGUF = ("f32", "f16", "bf16", "q8_0")
#: Sizes and positions are int64 in the core.
_MOST = 2**63 - 1


def whole(least: int, most: int | None = _MOST) -> Callable[[str], int]:
    """A reader of whole numbers between `least` and `most`, written 1024 or 1e3."""

    def read(text: str) -> int:
        try:
            number = int(text) if re.fullmatch(r"[+-]?\d{1,80}", text) else float(text)
            value = int(number)
        except (ValueError, OverflowError):  # text, NaN, infinity
            value, number = 0, 0.5
        if value != number:
            raise argparse.ArgumentTypeError(f"must be a whole number, as 1024 or 1e3, got {shown(text)}")
        if value < least:
            raise argparse.ArgumentTypeError(f"must be at least {least}, got {text}")
        if most is not None and value > most:
            raise argparse.ArgumentTypeError(f"must be less than 2^63, got {text}")
        return value

    return read


def real(text: str) -> float:
    """Read a number."""
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number, got {shown(text)}") from None


def written(text: str) -> Path:
    """Read the name of a file to write."""
    if text in ("", "-"):
        raise argparse.ArgumentTypeError(f"must be a file's name, got {shown(text)}")
    return Path(text)


def drawn(text: str) -> Path:
    """Read the name of a figure to write; .png by default."""
    path = written(text)
    return path if path.suffix else path.with_name(f"{path.name}.png")


def written_or_printed(text: str) -> str:
    """Read the name of a file to write; '-' is standard output."""
    return text if text == "-" else str(written(text))


def head_range(text: str) -> list[int]:
    """Read a head's number, or FIRST-LAST.

    Examples
    --------
    >>> head_range("3"), head_range("8-10")
    ([3], [8, 9, 10])
    """
    found = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", text)
    if found is None or int(found[2] or found[1]) < int(found[1]):
        raise argparse.ArgumentTypeError(f"must be a number from 0, or FIRST-LAST, got {shown(text)}")
    return [*range(int(found[1]), int(found[2] or found[1]) + 1)]


class Option(NamedTuple):
    """An option; `several`: one or more values; `kind` None: no value; `short`: another spelling."""

    flag: str
    meaning: str
    metavar: str = ""
    kind: Callable[[str], Any] | None = str
    several: bool = False
    choices: tuple[str, ...] | None = None
    short: str = ""


def _table(*options: Option) -> dict[str, Option]:
    return {option.flag: option for option in options}


#: All options of the commands; docs/reference/command-line.md shows them as a table.
OPTIONS: Mapping[str, Option] = _table(
    Option("--n", "numbers of keys", "N", whole(1), several=True),
    Option("--lengths", "the first N tokens, for each N", "N", whole(2), several=True),
    Option("--rows", "most rows measured at each length: a sample, with its error", "N", whole(32)),
    Option("--n0", "number of keys where beta is 1", "N", whole(2)),
    Option("--from", "instead: the laws of each head by the weights of this checkpoint", "CHECKPOINT", Path),
    Option("--laws", LAW_HELP, "LAW", several=True),
    Option("--beta", "multiples of 1/sqrt(head_dim)", "B", real, several=True),
    Option("--head-dim", "components of q and k", "D", whole(1)),
    Option("--train-length", "training length of the laws that have one", "N", whole(2)),
    Option("--model", "distribution of the scores", kind=str),
    Option("--correlation", "mean cosine of two keys of --model correlated", "C", real),
    Option("--cosine", "cosine of the needle with the query", "C", real),
    Option("--distribution", "distribution of the components", kind=str, several=True),
    Option("--mean", "mean of the components", "M", real),
    Option("--std", "standard deviation of the components", "S", real),
    Option("--normalizer", "NAME or 'NAME(parameter=value)'", "NAME", several=True),
    Option("--points", "number of points", "N", whole(2)),
    Option("--dim", "coordinates of a point", "D", whole(1)),
    Option("--k", "dimensions to project to", "K", whole(1)),
    Option("--kind", "of a model: self- or cross-attention; of mc: entries of the projection", several=True),
    Option("--eps", "tolerances for squared distances", "E", real, several=True),
    Option("--heads", "queries and keys of a model: a file as for entropy", "FILE", Path, several=True),
    Option("--query", "queries, a .npy or .pt file, with --key instead of FILE", "FILE", Path),
    Option("--key", "keys, a .npy or .pt file", "FILE", Path),
    Option("--layout", "order of the axes", choices=("bhsd", "bshd")),
    Option("--causal", "query i sees the keys 0 ... i", kind=None),
    Option("--demo", "the shipped heads in place of FILE", kind=None),
    Option("--export", "only write files for the other commands to this folder", "DIR", written),
    Option("--text", "texts in UTF-8", "FILE", Path, several=True),
    Option(
        "--spans",
        "parts of the text, from token START up to but not including STOP",
        "NAME=START:STOP",
        several=True,
    ),
    Option("--decoder-text", "text of a model's decoder, beside that of its encoder", "FILE", Path),
    Option("--images", "images for a model", "FOLDER", Path),
    Option(
        "--modules",
        "calls of attention by the names of their modules; * matches anything",
        "PATTERN",
        several=True,
    ),
    Option("--device", "device of models, as PyTorch names it: cpu (default), cuda, cuda:1, mps", "DEVICE"),
    Option("--dtype", "type of the model's numbers", choices=("float64", "float32", "float16", "bfloat16")),
    Option("--part", "one part: of a composite config, as encoder, or of the work, as 3/8", "PART"),
    Option("--head", "only these heads of the files, counted from 0", "H or H-H", head_range, several=True),
    Option("--layer", "only this layer, counted from 0", "L", whole(0)),
    Option("--at", "the multiplier of queries at these positions, from 0", "I", whole(0), several=True),
    Option("--against", "differences from another config", "FILE", Path),
    Option("--against-framework", "known differences of a framework"),
    Option("--measure", "load the model in the folder, run it, and compare what it multiplies", kind=None),
    Option("--strict", "exit status 3 if there are warnings or requested differences", kind=None),
    Option("--kinds", "questions to ask", "KIND", several=True),
    Option("--longest", "tokens of the longest prompt", "N", whole(1)),
    Option("--gguf", "write GGUF files too, of these types", several=True, choices=_GGUF),
    Option("--converter", "llama.cpp's convert_hf_to_gguf.py, to write the GGUF files with it", "FILE", Path),
    Option("--url", "address of a server with /v1/completions, or of llama.cpp's /completion", "URL"),
    Option("--transformers", "transformers, in this process", kind=None),
    Option("--llama-cpp", "llama.cpp, in this process, with this GGUF file", "FILE"),
    Option("--mlx", "mlx-lm, in this process", kind=None),
    Option("--timeout", "seconds to wait for an answer", "S", real),
    Option("--retries", "further tries after errors that may pass", "N", whole(0)),
    Option("--key-from", "environment variable that holds the server's key", "NAME"),
    Option("--attention", "implementation of attention, as transformers names it"),
    Option("--cache", "type of cached keys and values", choices=_GGUF),
    Option("--flash", "flash attention", kind=None),
    Option("--quantity", "columns of the table", several=True),
    Option("--samples", "samples for each row of the table", "N", whole(1)),
    Option("--target-error", "instead: until the standard error is E", "E", real),
    Option("--max-samples", "largest number of samples with --target-error", "N", whole(1)),
    Option("--seed", "seed of the random numbers; without it they differ each time", "S", whole(0, None)),
    Option("--threads", "threads; the default is shown by attnscale info", "N", whole(1)),
    Option("--seeds", "models of each cell", "N", whole(1)),
    Option("--set", "a field of the experiment's config", "NAME=VALUE", several=True),
    Option("--reduced", "the small version that tests run", kind=None),
    Option("--register", "write design, criterion and their hash, without training", "FILE", written),
    Option("--registration", "train the design and seeds of a file; the result has its hash", "FILE", Path),
    Option("--judge", "verdict of a stored run, such as full, or of a file of --keep", "RUN"),
    Option("--store", "keep finished cases here, and resume from them", "DIR", written),
    Option("--to", "the store that receives all cases, new or of the same work", "DIR", written),
    Option("--n-jobs", "processes, instead of the file's", "N", whole(-_MOST)),
    Option("--only", "these cases", "CASE", several=True),
    Option("--plan", "print what a folder will take, in time and memory, and stop", kind=None),
    Option("--list", "print the studies, or the models of STUDY, and stop", kind=None),
    Option("--keep", "write the result to a file, for --judge", "FILE", written),
    Option("--with-heads", "include the heads, for the page or the reader of the file", kind=None),
    Option("--per-head", "a row for every head instead of every layer", kind=None),
    Option(
        "--budget",
        "a row for every head, with its share of a cache: bits of a number, tokens to keep",
        "WHAT=NUMBER",
        several=True,
    ),
    Option("--unit", "of entropies in the table and the figure", choices=("nats", "bits")),
    Option("--output", "the page, an HTML file", "FILE", written, short="-o"),
    Option("--json", "print JSON", kind=None),
    Option("--html", "write a page, an HTML file", "FILE", written),
    Option("--csv", "write the rows as CSV, to standard output for '-'", "FILE", written_or_printed),
    Option("--plot", "save a figure: .png, .pdf, .svg", "FILE", drawn),
    Option("--debug", "show the traceback of an error", kind=None),
)

#: The library's names of options, where they differ.
_PARAMETERS = {
    "num_threads": "--threads",
    "rng": "--seed",
    "law": "--laws",
    "lengths": "--n",
    "heads": "--head",
    "framework": "--against-framework",
    "file": "--llama-cpp",
}

#: Names of options in other programs and commands.
_SAID_AS = {
    "--lengths": ("--n",),
    "--length": ("--n", "--lengths"),
    "--n": ("--lengths",),
    "--scale": ("--laws",),
    "--scales": ("--laws",),
    "--resume": ("--store",),
    "--heads": ("--head",),
}


class _Help(argparse.RawDescriptionHelpFormatter):
    """Help with the default of each option that has one."""

    def _get_help_string(self, action: argparse.Action) -> str:
        text, default = action.help or "", action.default
        if action.nargs == 0 or default is None or default is argparse.SUPPRESS or "default:" in text:
            return text
        listed = " ".join(map(str, default)) if isinstance(default, (list, tuple)) else str(default)
        return f"{text} (default: {listed})" if listed else text


class _Parsers(Mapping[str, "Parser"]):
    """The parser of each command, built when it is first asked for."""

    def __init__(self) -> None:
        self.builders: dict[str, Callable[[], Parser]] = {}

    def __getitem__(self, name: str) -> Parser:
        return self.builders[name]()

    def __iter__(self) -> Iterator[str]:
        return iter(self.builders)

    def __len__(self) -> int:
        return len(self.builders)


class Commands(argparse._SubParsersAction):  # type: ignore[type-arg]  # generic for type checkers only
    """Commands of a parser, each with a help line and a function that adds its options."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self._parsers = _Parsers()
        self._name_parser_map = self.choices = self._parsers  # type: ignore[assignment]

    def offer(self, name: str, add: Callable[[Parser], object], *, help: str, alias: str = "") -> None:
        """Offer a command; `add` gives its parser a description, options and defaults."""

        @cache
        def build() -> Parser:
            parser = Parser(prog=f"{self._prog_prefix} {name}")
            add(parser)
            return parser

        aliases = (alias,) if alias else ()
        self._choices_actions.append(self._ChoicesPseudoAction(name, aliases, help))
        self._parsers.builders |= dict.fromkeys((name, *aliases), build)


class Parser(argparse.ArgumentParser):
    """A parser that reports a mistake in one line; the parsers of its commands are of the same class."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"formatter_class": _Help, "allow_abbrev": False, **options})
        add_option(self, "--debug", default=argparse.SUPPRESS)

    def add_commands(self, title: str, metavar: str) -> Commands:
        """Commands of this parser, under a title of its help."""
        options: dict[str, Any] = {"title": title, "metavar": metavar, "required": True, "action": Commands}
        found: Any = self.add_subparsers(**options)
        return cast(Commands, found)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse as argparse does, but a command itself refuses unknown options, since it can suggest one.

        Without further words, a program or a command with several commands prints its help.
        """
        if args is not None and not [*args] and self._subparsers is not None:
            self.print_help()
            self.exit()
        found, rest = super().parse_known_args(args, namespace)
        if rest and self._subparsers is None:
            flag = rest[0].partition("=")[0]
            self.error(f"unrecognized arguments: {' '.join(rest)}{self._meant(flag)}")
        return found, rest

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        """A value as the option reads it; its error follows the option's name."""
        try:
            return super()._get_value(action, arg_string)
        except argparse.ArgumentError as error:
            raise InputError(f"{error.argument_name} {error.message}") from None

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Refuse a value outside the choices, which the error lists."""
        if action.choices is not None and value not in action.choices:
            every = list(action.choices)
            # Only the first of two spellings, max_cosine and max-cosine, is listed.
            known = [name for name in every if "-" not in name or name.replace("-", "_") not in every]
            rule = f"{argparse.ArgumentError(action, '').argument_name} must be one of"
            listed = ", ".join(map(repr, known))
            raise InputError(f"{meant(value, known)}{rule} {listed}, got {shown(value)}")

    def error(self, message: str) -> NoReturn:
        """Raise a mistake for :func:`attnscale.cli.main` to print."""
        raise InputError(f"{message} (see {self.prog} --help)")

    def _meant(self, flag: str) -> str:
        """A suggestion for an option that the command does not have."""
        known = [name for name in self._option_string_actions if name.startswith("--")]
        near = [name for name in _SAID_AS.get(flag, ()) if name in known]
        if not near and flag in OPTIONS:
            return f": this command has no {flag}"
        if not near:
            from difflib import get_close_matches

            near = get_close_matches(flag, known, 1)
        return f": did you mean {near[0]}?" if near else ""


def add_option(parser: Any, *flags: str, **changes: Any) -> None:
    """Add options of the vocabulary; `changes` go to ``add_argument``, such as default, required, help."""
    for option in (OPTIONS[flag] for flag in flags):
        choices = changes.get("choices", option.choices)
        given: dict[str, Any] = {"help": option.meaning}
        if option.kind is None:
            given["action"] = "store_true"
        else:
            given |= {"type": option.kind, "choices": choices}
            given |= {"nargs": "+"} if option.several else {}
            # Choices replace the value's name, or stand in the help if it would show them twice.
            if option.several or not choices:
                given["metavar"] = option.metavar or "NAME"
        given |= changes
        if option.several and choices:
            given["help"] += f"; one or more of {', '.join(choices)}"
        parser.add_argument(*filter(None, (option.short, option.flag)), **given)


def add_outputs(parser: Any, *, csv: bool = True, plot: bool = True, json: str = "print JSON") -> None:
    """Add ``--json``, ``--csv FILE`` where there are rows, and ``--plot FILE`` where there is a figure."""
    add_option(parser, "--json", help=json)
    if csv:
        add_option(parser, "--csv")
    if plot:
        add_option(parser, "--plot")


def add_unit(parser: Any) -> None:
    """Add ``--unit`` for entropies in table and figure; machine-readable output is always in nats."""
    add_option(parser, "--unit", default="nats")


def in_option_words(error: BaseException, options: argparse.Namespace) -> str:
    """The message of an error with option names in place of the arguments that they set.

    Examples
    --------
    >>> from attnscale._base.checks import refusal
    >>> error = refusal(ValueError, "num_threads", "must be at least 1, got 0")
    >>> in_option_words(error, argparse.Namespace(threads=0))
    '--threads must be at least 1, got 0'
    """

    def flag(name: str) -> str:
        is_points = name == "n" and hasattr(options, "points")  # the n of a projection
        usual = "--points" if is_points else _PARAMETERS.get(name, "")
        for found in (usual, f"--{name.replace('_', '-')}"):
            if found in OPTIONS and getattr(options, found[2:].replace("-", "_"), None) is not None:
                return found
        return name

    refused: Refusal | None = getattr(error, "refusal", None)
    return str(error) if refused is None else refused.text(flag)
