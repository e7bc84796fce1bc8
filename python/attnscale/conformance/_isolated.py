# SPDX-License-Identifier: BSD-3-Clause
"""Work with an engine in a process of its own, which a call may end without ending the rest.

The process tells each step before it begins. If it ends, that step is lost, and another process does the
work again without it.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from threading import Timer
from typing import Any, NamedTuple

from .._base.checks import shown

#: Seconds in which a step must end; a first call may import and compile.
SECONDS = 120
#: Most processes for one engine, and most that end at their first step; other steps are then not asked.
_MOST, _MOST_AT_ONCE = 64, 4
#: Seconds in which an ended process is reaped.
_REAPED = 10

#: Work of steps: ``work(*given, begin=, lost=)`` calls `begin` with the name of each step before it, and
#: leaves out those in `lost`, a mapping of names to reasons.
Work = Callable[..., Any]


def isolated(work: Work, steps: tuple[str, ...], *given: Any) -> Any:
    """The result of ``work(*given, begin=, lost=)`` in another process, whatever ends that process."""
    lost: dict[str, str] = {}
    at_once = 0
    for _ in range(_MOST):
        tried = _run(_packed((work, given, lost)))
        if tried.is_done:
            return tried.result
        lost[tried.steps[-1]] = tried.why
        at_once += len(tried.steps) == 1
        if at_once == _MOST_AT_ONCE:
            break
    rest = f"not asked: {len(lost)} calls ended their processes before"
    return _run(_packed((work, given, dict.fromkeys(steps, rest) | lost))).result


class _Tried(NamedTuple):
    """Result of a process, or the steps that it began and why it ended in the last of them."""

    steps: list[str]
    is_done: bool = False
    result: Any = None
    why: str = ""


def _run(payload: bytes) -> _Tried:
    steps: list[str] = []
    with _process() as process:
        assert process.stdin is not None
        try:
            process.stdin.write(payload)
            process.stdin.flush()  # it stays open: its end tells the process that this one is gone
            for kind, content in _messages(process):
                if kind == "done":
                    return _Tried(steps, True, content)
                if kind == "raised":
                    raise _not_sent(str(content)) if isinstance(content, UnreadError) else content
                steps.append(content)
            why = f"the process ended, {_end(process)}"
        except _TooLongError:
            why = f"no answer in {SECONDS} s"
        except BrokenPipeError:
            why = f"the process ended, {_end(process)}"
        finally:
            process.kill()
            with suppress(BrokenPipeError):
                process.stdin.close()
    if not steps:
        raise RuntimeError(f"the process of the engine failed before a call of it: {why}")
    return _Tried(steps, why=why)


class UnreadError(Exception):
    """Work that the other process could not read."""


class _TooLongError(Exception):
    """A step that did not end in time."""


def _process() -> subprocess.Popen[bytes]:
    path = os.pathsep.join(x for x in sys.path if x)
    return subprocess.Popen(
        [sys.executable, "-m", f"{__package__}._worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": path},
    )


def _messages(process: subprocess.Popen[bytes]) -> Iterator[tuple[str, Any]]:
    """Messages of a process until it ends; _TooLongError if one takes too long."""
    late = []
    assert process.stdout is not None

    def end() -> None:
        late.append(True)
        process.kill()

    while True:
        timer = Timer(SECONDS, end)
        timer.start()
        try:
            message = pickle.load(process.stdout)
        except (EOFError, pickle.UnpicklingError):
            if late:
                raise _TooLongError from None
            return
        finally:
            timer.cancel()
        yield message


def _end(process: subprocess.Popen[bytes]) -> str:
    code = process.wait(_REAPED)
    return f"by {signal.Signals(-code).name}" if code < 0 else f"with status {code}"


def _packed(message: Any) -> bytes:
    """A message as bytes, by cloudpickle where it is installed: it takes functions of notebooks, too."""
    way = _cloudpickle() or pickle
    try:
        packed: bytes = way.dumps(message)
    except Exception as error:  # pickle, and what objects raise
        raise _not_sent(error) from None
    return packed


def _cloudpickle() -> Any:
    """The module, or None where it is not installed."""
    try:
        import cloudpickle
    except ImportError:
        return None
    return cloudpickle


def _not_sent(why: Exception | str) -> TypeError:
    hint = "" if _cloudpickle() else ": pip install cloudpickle, which takes functions of notebooks, too"
    return TypeError(f"engine must be a function that can be sent to another process, got {shown(why)}{hint}")


def untold(step: str) -> None:
    """Do nothing, where the work is done in this process."""


#: Steps lost before, where the work is done in this process.
NOTHING: Mapping[str, str] = {}
