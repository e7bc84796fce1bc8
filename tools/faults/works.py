# SPDX-License-Identifier: BSD-3-Clause
"""Commands that write a store, in processes that may be disturbed, and what their stores hold."""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import attnscale as at
import attnscale.__main__ as program
import attnscale.cli.mc  # before the fork
import attnscale.cli.store
import attnscale.cli.sweep
from attnscale._grid import merge, store

from . import line

GRID = {"n": list(range(4, 64)), "law": ["standard", "log_n"]}
FILE = 'function = "tools.faults.line:entropy"\nrng = 3\n[grid]\n' + "".join(
    f"{k} = {v}\n" for k, v in GRID.items()
)
LENGTHS = [str(2**power) for power in range(3, 12)]

#: The arrays of each stored case, by the name of its file.
Stored = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Work:
    """A command that writes a store; it runs in a process of its own."""

    name: str
    run: Callable[[Path, Path], int]  # of a folder with the inputs and the store; returns the exit status

    def begin(self, inputs: Path, folder: Path, log: Path) -> int:
        """The number of a process that runs the command, and that exits with its status."""
        process = os.fork()
        if process:
            return process
        status = 99
        try:
            os.setpgid(0, 0)
            signal.signal(signal.SIGINT, signal.default_int_handler)  # which a background job ignores
            with log.open("w") as stream:
                os.dup2(stream.fileno(), 2)
            with open(os.devnull, "w") as nowhere:
                os.dup2(nowhere.fileno(), 1)
            sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
            status = self.run(inputs, folder)
            sys.stderr.flush()
        except BaseException:
            traceback.print_exc()  # after the run, if the status is not 99
        finally:
            os._exit(status)

    def finish(self, inputs: Path, folder: Path, log: Path) -> int:
        """The exit status of an undisturbed run."""
        return ended(self.begin(inputs, folder, log))


def ended(process: int) -> int:
    """The exit status of a process; one that does not end is killed, and so are workers that it leaves."""
    last = time.monotonic() + 30
    while os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        if time.monotonic() > last:
            os.killpg(process, signal.SIGKILL)
        time.sleep(0.002)
    with suppress(ProcessLookupError):
        os.killpg(process, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def answer_term() -> None:
    """Answer SIGTERM as the program does: as Ctrl-C."""
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))


def command(*arguments: str) -> int:
    """The exit status of the program with these arguments, as a shell sees it."""
    sys.argv = ["attnscale", *arguments]
    return program.run()


def sweep(inputs: Path, folder: Path) -> int:
    """A sweep of 120 cases, one after the other."""
    return command("sweep", str(inputs / "lengths.toml"), "--store", str(folder))


def pool(inputs: Path, folder: Path) -> int:
    """A sweep of 120 cases in a pool of two processes.

    SIGTERM is not answered: the workers would inherit that, and the pool ends them by SIGTERM. The pool is
    not shut down: that would wait for ever if an idle worker was killed.
    """
    executor = ProcessPoolExecutor(2, get_context("fork"))
    try:
        at.sweep(line.entropy, GRID, store=folder, rng=3, executor=executor, progress=False)
    except at.SweepError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def mc(inputs: Path, folder: Path) -> int:
    """An experiment of nine cases, which are kept while they run, too."""
    from attnscale.montecarlo import _run

    _run._KEEP_SECONDS, _run._PIECE = 0.005, 1e6
    options = ["--samples", "4096", "--seed", "1", "--store", str(folder)]
    return command("mc", "max_cosine", "--n", *LENGTHS, "--head-dim", "16", *options)


def merging(inputs: Path, folder: Path) -> int:
    """A merge of two stores of 60 cases."""
    return command("store", "merge", str(inputs / "a"), str(inputs / "b"), "--to", str(folder))


def train(inputs: Path, folder: Path) -> int:
    """A study of four models, whose state is kept after each step."""
    answer_term()
    try:
        result = line.study()().run(2, store=folder, checkpoint_seconds=0.0, progress=False)
    except at.SweepError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 143
    return 143 if result.interrupted else 0


WORKS = {
    each.name: each
    for each in (
        Work("sweep", sweep),
        Work("pool", pool),
        Work("mc", mc),
        Work("merge", merging),
        Work("train", train),
    )
}


def make_inputs(folder: Path) -> None:
    """The files that the commands read: a sweep, and two halves of its store."""
    (folder / "lengths.toml").write_text(FILE)
    for part, name in enumerate("ab", 1):
        at.sweep(line.entropy, GRID, store=folder / name, rng=3, part=(part, 2), progress=False)


def stored(folder: Path) -> tuple[Stored, list[str]]:
    """The stored cases of a folder, and the names of damaged files."""
    found, damaged = {}, []
    for path in sorted((folder / "cases").glob("*.npz")):
        fields = store.from_bytes(path.read_bytes(), path.stem)
        if fields is None:
            damaged.append(path.name)
        else:
            found[path.name] = merge._content(fields)
    return found, damaged
