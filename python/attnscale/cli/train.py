# SPDX-License-Identifier: BSD-3-Clause
"""``attnscale train``: train the models of a study, and resume where it stopped."""

from __future__ import annotations

import argparse
import ast
import dataclasses
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._base.checks import InputError, meant, shown
from .._base.text import counted, duration, to_text
from .._files.clone import studies_folder
from .._grid.errors import SweepError
from .._grid.part import still_missing
from .._grid.progress import MINUTE, announce_on_stderr, progress_line
from ._options import PART_HELP, Parser, add_option, add_outputs, add_unit
from ._output import Answer, Drawing, OutputError, bad_input, left_out
from ._program import program

if TYPE_CHECKING:
    from ..experiments import Study, TrainingResult, Verdict

_LISTED = """\
The times are those of the stored runs, which {name} train NAME --judge full shows; on a GPU in plain PyTorch.
{name} train NAME --list lists the models of one study."""

_OF_DTYPE = "type of the products in training; with bfloat16, weights and sums stay in float32"

DESCRIPTION = """\
Run a study: train its models, cells times seeds, and measure them. STUDY is a file of your own, FILE.py with
a class of attnscale.experiments.Study (FILE.py:CLASS of several), or the name of one in notebooks/studies.
The verdicts on the study's claims follow the table. --store keeps finished models and the state of
unfinished ones: the same command resumes, even after Ctrl-C or kill -9, and ends with the same numbers.
Several commands may share a store; --only chooses the models of each. --register writes the criterion
of a run before it.
"""


def add_options(parser: Parser) -> None:
    """Add the options of ``attnscale train``."""
    parser.add_argument("study", metavar="STUDY", nargs="?", help="FILE.py, or a name that --list shows")
    add_option(parser, "--seeds", help="models of each cell (default: 5, or those of --registration)")
    add_option(parser, "--store", help="keep finished models and checkpoints here")
    add_option(parser, "--only", help="models to train: AXIS=LABEL,AXIS=LABEL", metavar="MODELS")
    add_option(parser, "--part", metavar="K/N", help=PART_HELP)
    add_option(parser, "--set", default=[])
    add_option(parser, "--reduced", "--register", "--registration", "--judge", "--keep", "--device")
    add_option(parser, "--dtype", choices=("float32", "bfloat16"), help=_OF_DTYPE)
    add_option(parser, "--n-jobs", default=1, help="processes")
    add_option(parser, "--threads", default=1, help="threads of each process")
    add_option(parser, "--list")
    add_unit(parser)
    add_outputs(parser, json="print JSON: all arrays by model")


def run(options: argparse.Namespace) -> Answer:
    """Train the models of a study, and return the table."""
    _check_mode(options)
    _check_place(options.study)
    with bad_input("", ImportError):
        from .. import experiments
    with bad_input():
        if options.study is None:
            return _list_all(options)
        kind = experiments.find(options.study)
        if options.judge is not None:
            return _judge(options.judge, kind)
        study, seeds = _chosen(kind, options)
        options.seeds = options.seeds or seeds
        if options.list:
            return _list_models(options, study)
        if options.register is not None:
            return _register(options, study)
        _announce(study, options)
        ends = None
        try:
            with progress_line() as show:
                result = _train(study, options, show)
        except SweepError as error:
            if error.partial is None:
                raise
            result, ends = error.partial, error
    return _answer(options, result, ends)


def _answer(options: argparse.Namespace, result: TrainingResult, ends: Exception | None = None) -> Answer:
    """The table of a training, which an error may have ended; --keep that fails does not stop it."""
    if options.reduced:  # perhaps with other fields set
        result = dataclasses.replace(result, reduced=True)
    if options.keep is not None:
        try:
            result.save(options.keep)
        except OSError as error:
            ends = ends or OutputError(f"--keep {options.keep}: {error.strerror or error}")
    text = f"{result.table(unit=options.unit)}\n\n{result.verdict()}"
    drawing = _drawing(result)
    total = math.prod(map(len, result.axes.values()))
    missing = total - sum(each["models"] for each in result.provenance)
    return Answer(
        text,
        result.rows(),
        drawing=drawing,
        report=_report(result),
        remarks=[] if ends or result.interrupted else still_missing(options.part, missing, total),
        ends=ends,
        interrupted=result.interrupted,
    )


def _drawing(result: TrainingResult) -> Drawing:
    return Drawing(lambda figure: result.plot(ax=figure), panels=None)


#: Modes without training, and options without effect in them.
_MODES = {
    "list": ("part", "keep", "plot"),
    "register": ("only", "part", "registration", "keep", "plot", "csv"),
    "judge": ("set", "reduced", "only", "part", "registration", "store", "device", "dtype", "keep"),
}


def _check_mode(options: argparse.Namespace) -> None:
    """Refuse two modes at once, and training options that a mode would ignore."""
    modes = [f"--{name}" for name in _MODES if getattr(options, name)]
    if len(modes) > 1:
        raise InputError(f"{modes[0]} and {modes[1]} exclude each other")
    for mode in modes:
        left_out(options, mode, _MODES[mode[2:]])


def _check_place(study: str | None) -> None:
    """Refuse a study's name outside of a clone before torch is imported, which takes seconds."""
    if study is None or ".py" not in study:
        with bad_input():
            studies_folder()


def _train(study: Study, options: argparse.Namespace, show: Any) -> TrainingResult:
    finished = ""

    def count(done: int, total: int) -> None:
        nonlocal finished
        finished = f"{done} of {total} models; "
        show(finished)

    return study.run(
        options.seeds,
        store=options.store,
        only=options.only,
        part=options.part,
        registration=options.registration,
        n_jobs=options.n_jobs,
        num_threads=options.threads,
        progress=count,
        watch=lambda line: show(f"{finished}{line}"),
        announce=announce_on_stderr,
    )


def _chosen(kind: type[Study], options: argparse.Namespace) -> tuple[Study, int | list[int]]:
    """The full, reduced or registered study with the fields of --set, and its seeds."""
    base: Study
    seeds: int | list[int] = 5
    if options.reduced:
        base = kind.reduced()
    elif options.registration is not None:
        from ..experiments._registration import registered_design

        base, seeds = registered_design(options.registration, kind)
    else:
        base = kind()
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
    return dataclasses.replace(base, **changes), seeds


def _value(text: str, present: Any) -> Any:
    """The value of a field: a Python literal, else text, with commas for a tuple."""
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        value = tuple(part.strip() for part in text.split(",")) if isinstance(present, tuple) else text
    if not isinstance(present, tuple):
        return value
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def _list_all(options: argparse.Namespace) -> Answer:
    from .. import experiments

    if not options.list:
        raise InputError("STUDY must be a file, FILE.py, or a name that --list shows, got none")
    found = {name: experiments.find(name) for name in experiments.names()}
    rows = [(name, _sentence(each.question), _usual_time(each)) for name, each in found.items()]
    text = to_text(("study", "question", "a model took"), rows, width=100)
    report = {name: each.question for name, each in found.items()}
    flat = [{"study": name, "question": question} for name, question in report.items()]
    return Answer(f"{text}\n\n{_LISTED.format(name=program())}", flat, report=report)


def _announce(study: Study, options: argparse.Namespace) -> None:
    """Announce how long the models took in the stored run of the study, if more than a minute."""
    from .._grid.complete import choose_runner
    from ..experiments._run import choose, units

    choose_runner(options.n_jobs, None)  # refuses an invalid number of processes
    models = len(choose(units(study, options.seeds)[1], options.only))
    seconds, device = _seconds_a_model(type(study), "reduced" if options.reduced else "full")
    if not (options.set or options.registration) and models * seconds > MINUTE:
        of_one = f"in the stored run one took {duration(seconds)} ({device})"
        announce_on_stderr(f"{counted(models, 'model')} in all; {of_one}")


def _register(options: argparse.Namespace, study: Study) -> Answer:
    found = study.register(options.register, seeds=options.seeds)
    said = "publish or commit the file before the run, which takes it as --registration"
    text = f"{study.name} is registered in {options.register}; {said}\n\n{found}"
    return Answer(text, report={"file": str(options.register), "sha256": found})


def _judge(run: str, kind: type[Study]) -> Answer:
    """The verdict on a stored run, or on the result in a file."""
    from ..experiments import TrainingResult

    is_file = Path(run).is_file()
    result = kind.completed(TrainingResult.load(run)) if is_file else kind.stored(run)
    verdict = result.verdict()
    return Answer(str(verdict), verdict.rows(), drawing=_drawing(result), report=_judged(verdict))


def _judged(verdict: Verdict) -> dict[str, Any]:
    return {"registration": verdict.registration, "rate": verdict.rate, "contrasts": verdict.rows()}


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}"


def _usual_time(kind: type[Study]) -> str:
    """Training time of a model in the stored run; '-' without one."""
    seconds, device = _seconds_a_model(kind, "full")
    return f"{duration(seconds)} ({device})" if device else "-"


def _seconds_a_model(kind: type[Study], run: str) -> tuple[float, str]:
    """Seconds for a model, and the device; zero and empty without such a run."""
    try:
        records = kind.stored(run).provenance
    except ValueError:
        return 0.0, ""
    seconds = sum(each["seconds"] for each in records) / sum(each["models"] for each in records)
    return seconds, "1 thread" if records[0]["device"] == "cpu" else "GPU"


def _list_models(options: argparse.Namespace, study: Study) -> Answer:
    from ..experiments._run import choose, units

    cases = choose(units(study, options.seeds)[1], options.only)
    names = [",".join(f"{axis}={label}" for axis, label in case.parameters.items()) for case in cases]
    return Answer("\n".join(names), [dict(case.parameters) for case in cases], report=names)


def _report(result: TrainingResult) -> dict[str, Any]:
    arrays = {name: result.arrays[name].tolist() for name in result.variables}
    kept = ("experiment", "claim", "question", "refuted_if", "axes", "parameters", "facts", "provenance")
    own = {name: {"axes": dict(each.coords), "unit": each.unit} for name, each in result.variables.items()}
    found = {"variables": own, "arrays": arrays, "verdict": _judged(result.verdict())}
    return {**{name: getattr(result, name) for name in kept}, **found}
