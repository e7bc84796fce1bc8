# SPDX-License-Identifier: BSD-3-Clause
"""One vocabulary of options: the parsers, the help and the page of the documentation agree on it."""

from __future__ import annotations

import argparse
import inspect
import json
import re
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from attnscale._base import checks
from attnscale.cli import _options, _output, build_parser, main
from attnscale.cli.mc import parameters
from attnscale.montecarlo import _experiment, _run
from pages import with_lists

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "command-line.md"


def commands(
    parser: argparse.ArgumentParser, name: str = ""
) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """All commands with their parsers; experiments of mc as "mc NAME"."""
    below = [each for each in parser._actions if isinstance(each, argparse._SubParsersAction)]
    if not below:
        yield name, parser
    for action in below:
        for each, inner in action.choices.items():
            if "-" not in each:  # the other spelling of an experiment
                yield from commands(inner, f"{name} {each}".strip())


COMMANDS = dict(commands(build_parser()))


def options_of(command: str) -> dict[str, argparse.Action]:
    """Options by their long spelling; the short one of an option comes before it."""
    return {
        action.option_strings[-1]: action for action in COMMANDS[command]._actions if action.option_strings
    }


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_is_one_of_the_vocabulary(command: str) -> None:
    for flag, action in options_of(command).items():
        if flag == "--help":
            continue
        option = _options.OPTIONS[flag]
        assert list(action.option_strings) == [*filter(None, [option.short]), option.flag]
        assert action.type is option.kind if option.kind else action.nargs == 0
        assert (
            action.nargs == "+"
            if option.several
            else action.nargs in (None, 0) or flag in ("--head-dim", "--k")
        )
        assert action.help


def test_every_word_of_the_vocabulary_has_a_command() -> None:
    found = {flag for command in COMMANDS for flag in options_of(command)}
    assert found - {"--help"} == {*_options.OPTIONS}


def test_every_command_prints_json_and_what_has_rows_csv() -> None:
    assert [command for command in COMMANDS if "--json" not in options_of(command)] == []
    without = {command for command in COMMANDS if "--csv" not in options_of(command)}
    assert without == {"explain", "info", "store merge", "probe write", "probe ask"}
    without = {command for command in COMMANDS if "--plot" not in options_of(command)}
    assert without == {
        *("explain", "info", "audit", "report", "store merge", "probe write", "probe ask", "conformance"),
    }


def test_the_page_has_the_table() -> None:
    rows = re.findall(r"^\| `(--[^`]*)` \| (.*) \| (.*) \|$", with_lists(PAGE), re.MULTILINE)
    assert [form.split()[0] for form, _, _ in rows] == list(_options.OPTIONS)
    for form, _, where in rows:
        option = _options.OPTIONS[form.split()[0]]
        value = option.metavar or ("" if option.kind is None else "NAME")
        assert form == f"{option.flag} {value}{' ...' if option.several else ''}".strip()
        users = {command.split()[0] for command in COMMANDS if option.flag in options_of(command)}
        listed = set(re.findall(r"\w+", where)) if where != "all" else {each.split()[0] for each in COMMANDS}
        assert listed == users, option.flag


@pytest.mark.parametrize("arguments", [[], ["mc"], ["store"], ["probe"]])
def test_a_program_alone_shows_what_there_is(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    captured = capsys.readouterr()
    assert (left.value.code, captured.err) == (0, "")
    depth = len(arguments)
    under = {each.split()[depth] for each in COMMANDS if each.split()[:depth] == arguments}
    assert set(re.findall(r"^    (\w+)", captured.out, re.MULTILINE)) >= under
    with pytest.raises(SystemExit):
        main([*arguments, "--help"])
    assert capsys.readouterr().out == captured.out


def test_an_option_says_what_it_is_in_its_command() -> None:
    helps = {each: options_of(each)["--kind"].help for each in COMMANDS if "--kind" in options_of(each)}
    of_mc = helps.pop("mc jl_distortion")
    assert of_mc is not None
    assert of_mc.startswith("entries of the projection (default: gaussian); one or more of ")
    assert set(helps) == {"diagnose", "report"}
    assert all("attention" in (each or "") and "projection" not in (each or "") for each in helps.values())


@pytest.mark.parametrize(
    ("text", "value"), [("1024", 1024), ("1e3", 1000), ("1e+3", 1000), ("2.0", 2), ("+7", 7)]
)
def test_whole_numbers_are_written_as_people_do(text: str, value: int) -> None:
    assert _options.whole(1)(text) == value
    assert isinstance(_options.whole(1)(text), int)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1.5", "must be a whole number, as 1024 or 1e3, got '1.5'"),
        ("many", "must be a whole number"),
        ("", "must be a whole number"),
        ("nan", "must be a whole number"),
        ("1e400", "must be a whole number"),
        ("0", "must be at least 1, got 0"),
        ("-1e3", "must be at least 1, got -1e3"),
        ("9223372036854775808", r"must be less than 2\^63"),
        ("99999999999999999999999", r"must be less than 2\^63"),
    ],
)
def test_other_numbers_are_refused(text: str, message: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=message):
        _options.whole(1)(text)


def test_a_number_is_one() -> None:
    assert _options.real("-1e-3") == -0.001
    with pytest.raises(argparse.ArgumentTypeError, match="must be a number, got 'x'"):
        _options.real("x")


Run = Callable[..., str]


def test_a_seed_that_was_printed_is_read_again(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["mc", "max_cosine", "--n", "8", "--samples", "3"]
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    seed = printed.splitlines()[0].rpartition("seed ")[2]
    assert int(seed) > 2**63
    assert main([*arguments, "--seed", seed]) == 0
    assert capsys.readouterr().out == printed


COUNTED = [
    *(("entropy x.npz", "--n"), ("calibrate --demo", "--n"), ("calibrate --demo", "--n0"), ("laws", "--n")),
    *(("laws", "--train-length"), ("theory", "--n"), ("theory --n 8", "--n0"), ("audit c.json", "--at")),
    *(("diagnose m --text t", "--n"), ("mc max_cosine", "--n"), ("mc max_cosine --n 8", "--samples")),
    *(("mc max_cosine --n 8", "--threads"), ("mc max_cosine --n 8", "--seed")),
]


@pytest.mark.parametrize(("command", "flag"), COUNTED)
def test_a_count_that_is_none_is_refused_in_the_words_of_the_option(
    fail: Run, command: str, flag: str
) -> None:
    for value in ("-1", "1.5", *(["1e23"] if flag != "--seed" else [])):
        error = fail(*command.split(), f"{flag}={value}")
        assert error.startswith(f"attnscale: error: {flag} must be ")


def test_arguments_of_the_library_are_called_as_the_options() -> None:
    options = argparse.Namespace(
        n_jobs=None, threads=0, seed=1, head_dim=[8], n=[8], target_error=1.0, samples=2, k=[1]
    )
    for names, expected in {
        "num_threads": "--threads must be 3",
        "rng": "--seed must be 3",
        ("samples", "target_error"): "--samples and --target-error must be 3",
        "head_dim": "--head-dim must be 3",
        "n_jobs": "n_jobs must be 3",  # it came from elsewhere, as a file
        "n0": "n0 must be 3",  # the command has no such option
    }.items():
        error = checks.refusal(ValueError, names, "must be 3", before="did you mean 'n'? ")
        for told, where in ((error, ""), (_output.as_input(error, "a.toml"), "a.toml: ")):
            assert _options.in_option_words(told, options) == f"{where}did you mean 'n'? {expected}"
    assert _options.in_option_words(ValueError("n must be 3"), options) == "n must be 3"


@pytest.mark.parametrize("declared", _experiment.DECLARATIONS.values(), ids=_experiment.DECLARATIONS)
def test_the_help_of_an_experiment_says_what_it_declares(declared: _experiment.Declaration) -> None:
    given = options_of(f"mc {declared.name}")
    text = " ".join(COMMANDS[f"mc {declared.name}"].format_help().split())
    for parameter in parameters(declared):
        assert not given[parameter.flag].required
        if parameter.default:
            assert f"(default: {parameter.default})" in text
    assert f"samples for each row of the table (default: {declared.samples})" in text
    assert f"(default: {_run._DEFAULTS['max_samples']})" in text
    for choice in [*declared.quantities, *chain(*declared.choices.values())]:
        assert choice in text


@pytest.mark.parametrize("declared", _experiment.DECLARATIONS.values(), ids=_experiment.DECLARATIONS)
def test_the_defaults_in_words_are_those_of_the_experiment(declared: _experiment.Declaration) -> None:
    """A default that is None in the signature gives the run of its words in the declaration."""
    small: dict[str, Any] = {"n": 8, "head_dim": 8, "k": 4}
    signature = inspect.signature(declared.function).parameters
    given = {
        name: value
        for name, value in small.items()
        if name in signature and signature[name].default is not None
    }
    words = {
        name: text.split() for name, text in declared.defaults.items() if signature[name].default is None
    }
    said = {name: tuple(text) if name == "law" else tuple(map(int, text)) for name, text in words.items()}
    said = {name: each[0] if len(each) == 1 else each for name, each in said.items()}
    usual, spelled = (declared.function(**given, **more, samples=1, rng=0) for more in ({}, said))
    assert usual.parameters == spelled.parameters
    assert tuple(usual.estimates) == tuple(declared.quantities)


def test_the_help_lists_choices_and_statuses() -> None:
    for name, flag, choice in (
        ("dot_product_variance", "--distribution", "truncated_normal"),
        ("jl_distortion", "--kind", "sparse"),
    ):
        assert choice in str(options_of(f"mc {name}")[flag].help)
    text = build_parser().format_help()
    for status in ("0    done", "1    ", "2    ", "3    ", "130  "):
        assert f"\n  {status}" in text
    assert "sparsity (sparsity)" not in text


def test_options_are_written_whole(capsys: pytest.CaptureFixture[str]) -> None:
    """--seed is no short form of --seeds, of which it would be the number."""
    assert main(["train", "needle", "--seeds", "3", "--seed", "1"]) == 2
    assert "unrecognized arguments: --seed 1" in capsys.readouterr().err


def test_a_terminal_does_not_obey_a_config(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "config.json"
    content = {"model_type": "gpt\x1b[2J\x07", "hidden_size": 64, "num_attention_heads": 4}
    content |= {"num_hidden_layers": 2}
    config.write_text(json.dumps(content), encoding="utf-8")
    main(["audit", str(config)])
    captured = capsys.readouterr()
    assert "gpt" in captured.out + captured.err
    assert not {"\x1b", "\x07"} & {*captured.out, *captured.err}
