# SPDX-License-Identifier: BSD-3-Clause
"""Tools with which a measurement trains its model: seeds, device, checkpoints, the common loop."""

from __future__ import annotations

import hashlib
import io
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .._base.checks import shown, warn
from .._files.whole import write_whole
from .._grid.files import locked
from .._grid.progress import Watch
from ..torch._base.device import dtype_named
from ._train import History, Loop, Schedule

# ---- files in a store: the state of each training, and shared data ---------------------------------


class Checkpoints:
    """States of the trainings of one unit, one file each; a file is replaced as a whole.

    Without a `directory` nothing is kept. File names begin with `unit`. A state is due after `seconds`.
    """

    def __init__(self, directory: Path | None, unit: str = "", seconds: float = 30.0) -> None:
        self._directory = directory
        self._unit = unit
        self._seconds = seconds
        self._last = time.monotonic()

    @property
    def due(self) -> bool:
        """Whether it is time to write a state."""
        return self._directory is not None and time.monotonic() - self._last >= self._seconds

    def read(self, name: str) -> dict[str, Any] | None:
        """The state of the training `name`; None if there is none, or the file was cut."""
        if self._directory is None or not self._path(name).exists():
            return None
        try:
            state: dict[str, Any] = torch.load(self._path(name), map_location="cpu", weights_only=True)
        except (EOFError, RuntimeError) as error:  # of a file that is not whole
            warn(f"{self._path(name)} is damaged, and this training begins anew ({type(error).__name__})")
            return None
        return state

    def write(self, name: str, state: dict[str, Any]) -> None:
        """Write the state of the training `name`; it is on disk on return, or a warning says why not."""
        if self._directory is None:
            return
        buffer = io.BytesIO()
        torch.save(state, buffer)
        self._last = time.monotonic()
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            write_whole(self._path(name), buffer.getvalue())
        except OSError as error:  # a full disk: the training goes on, and its result may find room
            why = error.strerror or str(error)
            warn(f"{self._directory} cannot keep the state of a training, which goes on ({why})")

    def clear(self) -> None:
        """Delete the states of a finished unit."""
        if self._directory is not None and self._directory.exists():
            for path in self._directory.glob(f"{self._unit}-*"):
                path.unlink()

    def cached(self, name: str, make: Callable[[], Mapping[str, NDArray[Any]]]) -> dict[str, NDArray[Any]]:
        """Arrays shared by all units of the store: one unit makes them while others wait."""
        if self._directory is None:
            return dict(make())
        path = self._directory / f"{name}.npz"
        with locked(self._directory / f"{name}.lock", wait=True):
            if path.exists():
                with suppress(Exception), np.load(path, allow_pickle=False) as kept:  # else it is damaged
                    return dict(kept)
            made = dict(make())
            buffer = io.BytesIO()
            np.savez(buffer, **made)  # type: ignore[arg-type]
            with suppress(OSError):  # a full disk: each unit makes them
                write_whole(path, buffer.getvalue())
            return made

    def _path(self, name: str) -> Path:
        assert self._directory is not None
        return self._directory / f"{self._unit}-{name}.pt"


# ---- Ctrl-C between two steps, so that the last state can be kept --------------------------------


@contextmanager
def ctrl_c_between_steps() -> Iterator[list[int]]:
    """A list that Ctrl-C fills instead of ending the running step; the block ends at its next check.

    KeyboardInterrupt is raised after the block. A second Ctrl-C raises at once. Nothing changes if the signal
    is not Python's to handle: in another thread, or with a handler of the caller's.
    """
    asked: list[int] = []
    usual = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or usual is not signal.default_int_handler:
        yield asked
        return

    def ask(number: int, frame: Any) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)

    signal.signal(signal.SIGINT, ask)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, usual)
    if asked:
        raise KeyboardInterrupt


# ---- the training --------------------------------------------------------------------------------


_BETWEEN_LINES = 0.2  # seconds between two lines of progress


def seed_of(seed: int, purpose: str) -> int:
    """A seed for PyTorch's generators for a purpose, derived from the unit's seed.

    Examples
    --------
    >>> seed_of(0, "weights") == seed_of(0, "weights") != seed_of(1, "weights")
    True
    """
    digest = hashlib.sha256(f"{seed} {purpose}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


class Training:
    """Tools to train the models of one unit, a cell and a seed.

    Parameters
    ----------
    seed : int
        Seed of the unit, from which all randomness derives.
    device : str, default "cpu"
        Device of models and batches.
    dtype : {"float32", "bfloat16"}
        Type of the products in training, by ``torch.autocast``; weights and sums stay in float32.
    checkpoints : Checkpoints, optional
        Storage of states; none by default.
    watch : callable, optional
        ``watch(steps)`` gives the progress reporter of a training of so many steps.

    Attributes
    ----------
    facts : dict
        Facts from :meth:`note` about the data and their splits.

    Examples
    --------
    >>> training = Training(seed=0)
    >>> with training.fork("weights"):
    ...     model = torch.nn.Linear(2, 1)
    >>> x = torch.randn(64, 2, generator=training.generator("data"))
    >>> def loss(step):
    ...     return (model(x) - 1).square().mean()
    >>> history = training.fit(model, loss, steps=20, learning_rate=0.1)
    >>> bool(history.loss[-1] < history.loss[0])
    True
    """

    def __init__(
        self,
        seed: int,
        device: str = "cpu",
        dtype: str = "float32",
        checkpoints: Checkpoints | None = None,
        watch: Callable[[int], Watch] | None = None,
    ) -> None:
        self.seed = seed
        self.device = torch.device(device)
        self.dtype = dtype_named(dtype)
        self.facts: dict[str, Any] = {}
        self._checkpoints = Checkpoints(None) if checkpoints is None else checkpoints
        self._watch = watch
        self._generators: dict[str, torch.Generator] = {}
        self._fits: set[str] = set()

    def generator(self, purpose: str) -> torch.Generator:
        """The CPU generator for a purpose: always the same object, kept by checkpoints."""
        if purpose not in self._generators:
            found = torch.Generator()
            found.manual_seed(seed_of(self.seed, purpose))
            self._generators[purpose] = found
        return self._generators[purpose]

    @contextmanager
    def fork(self, purpose: str) -> Iterator[None]:
        """Seed PyTorch's own generator, from which modules draw weights, within a block."""
        with torch.random.fork_rng(devices=[]):
            torch.random.default_generator.manual_seed(seed_of(self.seed, purpose))
            yield

    def note(self, **facts: Any) -> None:
        """Add facts to the result, as JSON types: sizes, hashes and splits of the data."""
        self.facts |= facts

    def cached(self, name: str, make: Callable[[], Mapping[str, NDArray[Any]]]) -> dict[str, NDArray[Any]]:
        """The arrays of ``make()``, which depend on the study alone: made once for all units of a store."""
        return self._checkpoints.cached(name, make)

    def fit(
        self,
        model: torch.nn.Module,
        loss: Callable[[int], Tensor],
        *,
        steps: int,
        learning_rate: float = 1e-3,
        weight_decay: float = 0.01,
        betas: tuple[float, float] = (0.9, 0.95),
        schedule: str = "cosine",
        warmup: int = 0,
        clip: float | None = 1.0,
        parameters: Iterable[Any] | None = None,
        observe: Callable[[int], Mapping[str, Any]] | None = None,
        observe_every: int = 100,
        name: str = "fit",
    ) -> History:
        """Train a model by AdamW; after an interruption, from the last checkpoint, with the same bits.

        Parameters
        ----------
        model : torch.nn.Module
            The model, on :attr:`device` already.
        loss : callable
            ``loss(step)`` is the loss of that step's batch. Its random numbers come from :meth:`generator` or
            the step.
        steps : int
        learning_rate, weight_decay, betas
            As for ``torch.optim.AdamW``.
        schedule : {"cosine", "linear", "constant"}
            The learning rate after the warm-up: down to 0, or constant.
        warmup : int
            Steps of linear growth of the learning rate.
        clip : float or None
            Largest norm of the gradient; None for no clipping.
        parameters : iterable, optional
            Parameters to train, as for AdamW; groups may have their own learning rates. By default all
            parameters of the model.
        observe, observe_every
            ``observe(step)`` gives numbers by name, before every ``observe_every`` steps and after the last.
        name : str
            Name of this training, if a unit has several.

        Returns
        -------
        History
        """
        if name in self._fits:
            raise ValueError(f"name must differ for each training of a unit, got {shown(name)} twice")
        self._fits.add(name)
        groups = model.parameters() if parameters is None else parameters
        adam = {"lr": learning_rate, "weight_decay": weight_decay, "betas": betas}
        chosen = Schedule(schedule, warmup, steps)
        loop = Loop(model, self._narrow(loss), groups, chosen, clip, observe, observe_every, adam)
        if (stored := self._checkpoints.read(name)) is not None:
            self._resume(loop, stored)
        if not loop.done:
            self._run(loop, name)
        return loop.history()

    def _narrow(self, loss: Callable[[int], Tensor]) -> Callable[[int], Tensor]:
        """The loss with its products in the type of the training."""
        if self.dtype == torch.float32:
            return loss

        def narrowed(step: int) -> Tensor:
            with torch.autocast(self.device.type, self.dtype):
                return loss(step)

        return narrowed

    def _run(self, loop: Loop, name: str) -> None:
        line, first, steps = 0.0, loop.step, loop.schedule.steps
        tell = None if self._watch is None else self._watch(steps)
        with ctrl_c_between_steps() as asked:
            while not loop.done and not asked:
                loop.advance()
                if self._checkpoints.due:
                    self._keep(loop, name)
                if tell is not None and time.monotonic() - line >= _BETWEEN_LINES:
                    line = time.monotonic()
                    loss = float(loop.losses[loop.step - 1])
                    where = f"{name}, step {loop.step} of {steps}, loss {loss:.4f}"
                    tell(loop.step - first, steps - first, where)
            self._keep(loop, name)

    def _keep(self, loop: Loop, name: str) -> None:
        generators = {purpose: each.get_state() for purpose, each in self._generators.items()}
        self._checkpoints.write(name, {**loop.state(), "generators": generators})

    def _resume(self, loop: Loop, stored: dict[str, Any]) -> None:
        for purpose, state in stored.pop("generators").items():
            self.generator(purpose).set_state(state)
        loop.load(stored)
