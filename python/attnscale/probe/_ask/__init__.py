# SPDX-License-Identifier: BSD-3-Clause
"""Asking an engine the prompts of a probe."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from ..._base.checks import InputError, choose, number, positive_int, refusal, shown, warn
from ..._base.hints import check_options
from ..._base.text import counted
from ..._grid.progress import Progress, check_progress, reporter
from . import http, llama_cpp, mlx, transformers
from .answers import Answers
from .engine import Engine, RefusedError
from .folder import Checkpoint, Prompt, read_folder

__all__ = ["ENGINES", "SCRIPT", "ask"]

#: Program that asks with Python's standard library alone; each probe has a copy, ask.py.
SCRIPT = Path(__file__).with_name("script.py")
#: Engines that are asked in this process.
ENGINES = ("transformers", "llama_cpp", "mlx")

#: Options of each engine; "url" is a server.
_OPTIONS = {
    "url": ("model", "k", "timeout", "retries", "key_from", "sleep"),
    "transformers": ("dtype", "attention"),
    "llama_cpp": ("cache", "flash"),
    "mlx": ("dtype",),
}
_DTYPES = ("float64", "float32", "bfloat16", "float16")
_Open = Callable[[Checkpoint], AbstractContextManager[Engine]]


def ask(
    folder: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    url: str | None = None,
    engine: str | None = None,
    file: str | os.PathLike[str] | None = None,
    progress: Progress = False,
    **options: Any,
) -> Path:
    """Ask an engine the prompts of a probe, and append its answers to a file.

    Give the address of a server or the name of an engine in this process. Answers are written one by one;
    after an interruption the same call asks those that are missing.

    Parameters
    ----------
    folder : path
        A probe, all of whose checkpoints are asked in turn, or the folder of one checkpoint. A server has
        loaded one, so with `url` the probe must have one.
    out : path
        File of answers, JSON lines. It is created, or what it lacks is appended.
    url : str, optional
        Address of a server with OpenAI's ``/v1/completions``, or of llama.cpp's ``/completion``. Nothing but
        the prompts, the number of log-probabilities, the model's name and fixed settings are sent.
    engine : {"transformers", "llama_cpp", "mlx"}, optional
        Engine that loads the checkpoint in this process.
    file : path, optional
        For "llama_cpp": the GGUF file, or the name of a file that each checkpoint has, as ``"f32.gguf"``.
    progress : bool or function, default: False
        A bar on a terminal, or a function of the numbers of answers that are there and of all.
    **options
        For a server `model` (default: the first that it lists), `k`, the number of log-probabilities
        (default: 5, or the most that it gives), `timeout` of a request in seconds (default: 120), `retries`
        after errors that may pass (default: 3), and `key_from`, the environment variable that holds a key
        (default: ``OPENAI_API_KEY``). For "transformers" `dtype` (default: "float32") and `attention`, its
        implementation (default: the model's own); for "mlx" `dtype`; for "llama_cpp" `cache`, the type of the
        keys and values (default: "f32"), and `flash` (default: False).

    Returns
    -------
    Path
        The file of answers.

    Raises
    ------
    InputError
        The folder is no probe, the file has answers of another one, the engine did not load the checkpoint,
        or the server cannot be reached or gives no log-probabilities.
    """
    check_progress(progress)
    if (url is None) == (engine is None):
        seen = "none" if url is None else "both"
        raise refusal(InputError, ("url", "engine"), f"must be one of the two, got {seen}")
    chosen = "url" if engine is None else choose("engine", engine, ENGINES)
    given = _check(chosen, {name: value for name, value in options.items() if value is not None})
    for name, value in (("folder", folder), ("out", out)):
        if not isinstance(value, (str, os.PathLike)):
            raise refusal(TypeError, name, f"must be a path, got {shown(value)}")
    if url is not None and not isinstance(url, str):
        raise refusal(TypeError, "url", f"must be a text, got {shown(url)}")
    checkpoints = read_folder(Path(folder))
    opener: _Open
    if url is not None:
        opener = _served(url, checkpoints, given)
    elif chosen == "llama_cpp":
        opener = _filed(file, checkpoints, given)
    else:
        load = transformers.loaded if chosen == "transformers" else mlx.loaded
        opener = lambda checkpoint: load(checkpoint.path, **given)  # noqa: E731
    if file is not None and chosen != "llama_cpp":
        raise refusal(InputError, "file", f"must be left out with {chosen}: it has no effect there")
    return _ask_all(checkpoints, opener, Path(out), progress)


def _check(chosen: str, given: dict[str, Any]) -> dict[str, Any]:
    """The options of the chosen engine, checked; others are refused."""
    check_options("ask", given, {name for names in _OPTIONS.values() for name in names})
    for name, value in given.items():
        if name not in _OPTIONS[chosen]:
            raise refusal(InputError, name, f"must be left out with {chosen}: it has no effect there")
        if name == "k":
            positive_int(name, value)
        elif name == "dtype":
            choose(name, value, _DTYPES)
        elif name == "timeout" and not number(name, value) > 0:
            raise refusal(InputError, name, f"must be more than 0, got {shown(value)}")
        elif name == "retries" and (not isinstance(value, int) or value < 0):
            raise refusal(InputError, name, f"must be an integer of at least 0, got {shown(value)}")
    return given


def _served(url: str, checkpoints: tuple[Checkpoint, ...], given: dict[str, Any]) -> _Open:
    if len(checkpoints) > 1:
        names = ", ".join(each.name for each in checkpoints)
        rule = f"must be the checkpoint that the server has loaded, one of {names}, got a probe of all"
        raise refusal(InputError, "folder", rule)
    return lambda checkpoint: http.serving(url, **given)


def _filed(
    file: str | os.PathLike[str] | None, checkpoints: tuple[Checkpoint, ...], given: dict[str, Any]
) -> _Open:
    """The opener of a GGUF file, by its path, or by its name in the folder of each checkpoint."""
    if file is None:
        raise refusal(InputError, "file", "must be a GGUF file for llama_cpp, got none")
    path = Path(file)
    own = {each.name: each.path / path for each in checkpoints}
    if path.is_file() and len(checkpoints) == 1:
        own = {checkpoints[0].name: path}
    for name, each in own.items():
        if not each.is_file():
            said = f"must be a file, or the name of one that each checkpoint has; {name} has no {path}"
            raise refusal(InputError, "file", said)
    return lambda checkpoint: llama_cpp.loaded(own[checkpoint.name], checkpoint.longest, **given)


def _ask_all(checkpoints: tuple[Checkpoint, ...], opener: _Open, out: Path, progress: Progress) -> Path:
    total, done = sum(len(each.prompts) for each in checkpoints), 0
    refused: list[str] = []
    with Answers(out) as answers, reporter(progress, "prompt", total) as report:
        for checkpoint in checkpoints:
            answers.check(checkpoint)
        try:
            for checkpoint in checkpoints:
                with opener(checkpoint) as engine:
                    there = answers.begin(checkpoint, engine.name)
                    missing = [each for each in checkpoint.prompts if each.name not in there]
                    if found := len(checkpoint.prompts) - len(missing):
                        done += found
                        report(done)
                    for prompt in missing:
                        refused += _ask_one(engine, answers, checkpoint, prompt)
                        done += 1
                        report(done)
        except KeyboardInterrupt:
            said = f"{out} has {done} of {counted(total, 'answer')}; asking again adds the others"
            raise KeyboardInterrupt(said) from None
    if refused:
        warn(f"{counted(len(refused), 'prompt')} of {total} refused, as {refused[0]}")
    return out


def _ask_one(engine: Engine, answers: Answers, checkpoint: Checkpoint, prompt: Prompt) -> list[str]:
    """Append an answer, or a refusal, which is returned; if the first prompt is refused, it is an error."""
    try:
        answers.add(checkpoint, prompt.name, engine.answer(prompt))
    except RefusedError as error:
        if prompt is checkpoint.prompts[0]:
            raise
        answers.refuse(checkpoint, prompt.name, str(error))
        return [f"{prompt.name!r} of {counted(len(prompt.ids), 'token')}: {error}"]
    return []
