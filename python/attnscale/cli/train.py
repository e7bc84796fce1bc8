# SPDX-License-Identifier: BSD-3-Clause
"""``attnscale train``: an experiment that trains models, and goes on where it stopped."""

from __future__ import annotations

import argparse
import ast
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._checks import meant, shown
from .._grid.progress import MINUTE, announce_on_stderr, progress_line
from .._io import InputError
from .._tables.text import counted, duration, to_text
from ._figure import Drawing
from ._options import add_option, add_outputs, add_unit
from ._output import Answer, bad_input, left_out

if TYPE_CHECKING:
    from ..experiments import Experiment, TrainingResult, Verdict

_LISTED = """\
The time is that of the run that is shipped: attnscale.experiments.stored(NAME) has its numbers.
attnscale train NAME --list lists the models of one experiment."""

_OF_DTYPE = "type of the products in training; bfloat16: weights and sums stay in float32"

_DESCRIPTION = """\
Run an experiment of attnscale.experiments: train its models, cells times seeds, and measure them.
Below the table stand the verdicts on the experiment's claims. With --store the models that are finished
and the state of those that are not are kept: the same command goes on, after Ctrl-C or kill -9 too, and
ends with the same numbers. Several commands may share a store; --only chooses the models that one of
them trains. --register writes what a run will be judged by, before the run.
"""


def add(commands: Any) -> None:
    """Add the parser of ``attnscale train``."""
    parser = commands.add_parser(
        "train",
        help="an experiment that trains models",
        description=_DESCRIPTION,
    )
    parser.add_argument("experiment", metavar="EXPERIMENT", nargs="?", help="its name; --list shows all")
    add_option(parser, "--seeds", default=5)
    add_option(parser, "--store", help="keep finished models and checkpoints here")
    add_option(parser, "--only", help="models to train: AXIS=LABEL,AXIS=LABEL", metavar="MODELS")
    add_option(parser, "--set", default=[])
    add_option(parser, "--reduced")
    add_option(parser, "--register")
    add_option(parser, "--registration")
    add_option(parser, "--judge")
    add_option(parser, "--keep", help="write the result to a file, for --judge")
    add_option(parser, "--device")
    add_option(parser, "--dtype", choices=("float32", "bfloat16"), help=_OF_DTYPE)
    add_option(parser, "--n-jobs", default=1, help="processes")
    add_option(parser, "--threads", default=1, help="threads of each process")
    add_option(parser, "--list", help="print the experiments, or the models of EXPERIMENT, and leave")
    add_unit(parser)
    add_outputs(parser, json="print JSON: all arrays by model")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> Answer:
    """Train the models of an experiment, and return the table."""
    with bad_input("", ImportError):
        from .. import experiments
    _check_mode(options)
    if options.experiment is None:
        return _list_all(options)
    with bad_input():
        experiment = experiments.experiment(options.experiment)
        config = _config(experiment, options)
        if options.list:
            return _list_models(options, experiment, config)
        if options.register is not None:
            return _register(options, experiment, config)
        if options.judge is not None:
            return _judge(options.judge, experiment)
        _announce(experiment, config, options)
        with progress_line() as show:
            result = _train(experiment, config, options, show)
    if options.reduced:  # also with other fields set, which is no test cell to the letter
        result = dataclasses.replace(result, reduced=True)
    if options.keep is not None:
        result.save(options.keep)
    text = f"{result.table(unit=options.unit)}\n\n{result.verdict()}"
    return Answer(text, result.rows(), _report(result), _drawing(result), interrupted=result.interrupted)


def _drawing(result: TrainingResult) -> Drawing:
    return Drawing(lambda figure: result.plot(ax=figure), panels=None)


#: What is asked for instead of a training, and what would be silently without effect beside it.
_MODES = {
    "list": ("keep", "plot"),
    "register": ("only", "registration", "keep", "plot", "csv"),
    "judge": ("set", "reduced", "only", "registration", "store", "device", "dtype", "keep"),
}


def _check_mode(options: argparse.Namespace) -> None:
    """Refuse two modes at once, and options of a training that a mode would drop."""
    modes = [f"--{name}" for name in _MODES if getattr(options, name)]
    if len(modes) > 1:
        raise InputError(f"{modes[0]} and {modes[1]} exclude each other")
    for mode in modes:
        left_out(options, mode, _MODES[mode[2:]])


def _train(experiment: Experiment, config: Any, options: argparse.Namespace, show: Any) -> TrainingResult:
    from ..experiments._frame.run import run as train

    finished = ""

    def count(done: int, total: int) -> None:
        nonlocal finished
        finished = f"{done} of {total} models; "
        show(finished)

    return train(
        experiment,
        config,
        options.seeds,
        {
            "store": options.store,
            "only": options.only,
            "registration": options.registration,
            "n_jobs": options.n_jobs,
            "num_threads": options.threads,
            "progress": count,
            "watch": lambda line: show(f"{finished}{line}"),
            "announce": announce_on_stderr,
        },
    )


def _config(experiment: Experiment, options: argparse.Namespace) -> Any:
    """The full run's config, or the reduced one, with the fields that --set names."""
    base = experiment.config.reduced() if options.reduced else experiment.config()
    known = {each.name: getattr(base, each.name) for each in dataclasses.fields(base)}
    changes = {}
    for text in options.set:
        name, equals, value = text.partition("=")
        if not equals or name not in known:
            raise InputError(
                f"{meant(name, [*known])}--set must be NAME=VALUE with a field of {type(base).__name__} "
                f"({', '.join(known)}), got {shown(text)}"
            )
        changes[name] = _value(value, known[name])
    for name in ("device", "dtype"):
        if (given := getattr(options, name)) is not None:
            if name not in known:
                raise InputError(f"--{name} must be left out: {type(base).__name__} has no field {name}")
            if name in changes:
                raise InputError(f"--{name} and --set {name}=... say the same; give one of them")
            changes[name] = given
    return dataclasses.replace(base, **changes)


def _value(text: str, present: Any) -> Any:
    """The value of a field: a Python literal, or else text, with commas where a tuple is set."""
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        value = tuple(part.strip() for part in text.split(",")) if isinstance(present, tuple) else text
    return (value,) if isinstance(present, tuple) and not isinstance(value, tuple) else value


def _list_all(options: argparse.Namespace) -> Answer:
    from .. import experiments

    if not options.list:
        raise InputError(f"EXPERIMENT must be one of {', '.join(experiments.names())}, got none")
    found = {name: experiments.experiment(name) for name in experiments.names()}
    rows = [(name, _sentence(each.question), _usual_time(name)) for name, each in found.items()]
    text = to_text(("experiment", "question", "a model takes"), rows)
    report = {name: each.question for name, each in found.items()}
    flat = [{"experiment": name, "question": question} for name, question in report.items()]
    return Answer(f"{text}\n\n{_LISTED}", flat, report)


def _announce(experiment: Experiment, config: Any, options: argparse.Namespace) -> None:
    """Say how long the models took in the shipped run of the same config, if that is more than a minute."""
    from .._grid.runners import choose_runner
    from ..experiments._frame.run import choose, units

    choose_runner(options.n_jobs, None)  # refuses a number of processes that is none
    models = len(choose(units(experiment, config, options.seeds)[1], options.only))
    seconds, device = _seconds_a_model(experiment.name, "reduced" if options.reduced else "full")
    if not options.set and models * seconds > MINUTE:
        of_one = f"in the run that is shipped one took {duration(seconds)} ({device})"
        announce_on_stderr(f"{counted(models, 'model')} in all; {of_one}")


def _register(options: argparse.Namespace, experiment: Experiment, config: Any) -> Answer:
    from ..experiments import register

    found = register(experiment, options.register, config, seeds=options.seeds)
    said = "publish or commit the file before the run, which takes it as --registration"
    text = f"{experiment.name} is registered in {options.register}; {said}\n\n{found}"
    return Answer(text, report={"file": str(options.register), "sha256": found})


def _judge(run: str, experiment: Experiment) -> Answer:
    """The verdict of a shipped run, or of the result in a file."""
    from ..experiments import TrainingResult, stored
    from ..experiments._frame.result import completed

    if Path(run).is_file():
        result = TrainingResult.load(run)
        if result.experiment != experiment.name:
            raise InputError(f"--judge must be a result of {experiment.name}, got one of {result.experiment}")
        result = completed(result, experiment)
    else:
        result = stored(experiment.name, run)
    verdict = result.verdict()
    return Answer(str(verdict), verdict.rows(), _judged(verdict), _drawing(result))


def _judged(verdict: Verdict) -> dict[str, Any]:
    return {"registration": verdict.registration, "rate": verdict.rate, "contrasts": verdict.rows()}


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}"


def _usual_time(name: str, run: str = "full") -> str:
    """How long the training of a model took in the run that is shipped; '-' where none is."""
    seconds, device = _seconds_a_model(name, run)
    return f"{duration(seconds)} ({device})" if device else "-"


def _seconds_a_model(name: str, run: str) -> tuple[float, str]:
    """Seconds for a model, and on what; zero and nothing where no such run is shipped."""
    from .. import experiments

    try:
        records = experiments.stored(name, run).provenance
    except ValueError:
        return 0.0, ""
    seconds = sum(each["seconds"] for each in records) / sum(each["models"] for each in records)
    return seconds, "1 thread" if records[0]["device"] == "cpu" else "GPU"


def _list_models(options: argparse.Namespace, experiment: Experiment, config: Any) -> Answer:
    from ..experiments._frame.run import choose, units

    cases = choose(units(experiment, config, options.seeds)[1], options.only)
    names = [",".join(f"{axis}={label}" for axis, label in case.parameters.items()) for case in cases]
    return Answer("\n".join(names), [dict(case.parameters) for case in cases], names)


def _report(result: TrainingResult) -> dict[str, Any]:
    arrays = {name: result.arrays[name].tolist() for name in result.variables}
    kept = ("experiment", "claim", "question", "refuted_if", "axes", "parameters", "facts", "provenance")
    own = {name: {"axes": dict(each.coords), "unit": each.unit} for name, each in result.variables.items()}
    found = {"variables": own, "arrays": arrays, "verdict": _judged(result.verdict())}
    return {**{name: getattr(result, name) for name in kept}, **found}
