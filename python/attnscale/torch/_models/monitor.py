# SPDX-License-Identifier: BSD-3-Clause
"""Monitoring of a model's attention during training, by hand or by a trainer."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..._base.checks import boolean, choose, number, positive_int, shown, warn
from ..._base.statistics import statistic_names
from ..._base.tabled import Labelled, Sheet, Tabled
from ..._base.text import by_reason, counted, to_csv
from ..._files.whole import write_whole
from .by_name import layer_numbers
from .calls import SeenCall
from .naming import named_modules
from .record import why_nothing
from .tally import Alarm, Limits, Tally, told
from .watch import Watch

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Monitor(Tabled):
    """Statistics of a few rows of every head of a model, at some of the steps of its training.

    Parameters
    ----------
    model : torch.nn.Module
        Any model that :func:`record` can watch. It computes as before, with its own attention: the rows are
        computed once more, in addition.
    every : int, default 100
        Steps 0, every, 2 every, ... are recorded.
    statistics : str or sequence of str, default ("entropy", "max_score")
        Names of fields of :class:`attnscale.AttentionStatistics` that have a mean over rows. Statistics that
        a limit needs are added.
    rows : int or None, default 16
        Number of queries of each head measured in each forward pass: evenly spread over the first text of
        the batch, without its padding, including the last query. None: all queries of all texts, for the
        largest score of all.
    min_entropy : float or None, default 0.001
        A head raises an alarm if the mean entropy of its rows is below this, in nats: such a row gives one
        key 99.99 % of its weight. Sharp heads that work have been seen down to 0.003. None: no limit.
    max_score : float or None, default 100
        A head raises an alarm if it has a score above this. None: no limit.
    on_alarm : callable, optional
        Called with a list of :class:`Alarm`, one for each head that passed a limit in the step, instead of a
        warning. An error that it raises ends the training.

    Attributes
    ----------
    steps : list of int
        The recorded steps.
    modules : list of str
        The layers, as in the model's ``named_modules()``; a module that is called again in a pass has "#" and
        the number of the call after its name.
    alarms : list of Alarm
        All alarms. A head raises another only after it came back within the limit.
    unmeasured : dict of str to str
        Modules with attention that could not be measured, with the reason, of all recorded steps. The others
        are recorded.

    Raises
    ------
    TypeError
        If the model is not a module, or an argument has another type.
    ValueError
        If a statistic is unknown or has no mean over rows, or a number is out of range; at the end of a
        step, if nothing was recorded in it, with the reason: the model did not run, or in another thread; it
        has no attention; or none could be measured.

    Notes
    -----
    Rows of padding and rows that see no key do not count. Over the rows and forward passes of a step,
    ``max_score`` is the largest and the other statistics are means. A layer's sink is one more outcome in
    its entropy.

    A monitor sees what :func:`record` sees. A step belongs to the thread that opens it, and to those in which
    PyTorch runs replicas of the model for it: passes of other threads are not recorded, so open the step in
    the thread that trains. The table names what is ``unmeasured``.

    Under gradient checkpointing, recomputed attention is not recorded again. In training on several machines
    each of them records its own batches.

    Examples
    --------
    >>> import attnscale as at, torch
    >>> from transformers import GPT2Config, GPT2LMHeadModel
    >>> model = GPT2LMHeadModel(GPT2Config(n_embd=32, n_head=2, n_layer=3, vocab_size=50))
    >>> monitor = at.torch.Monitor(model, every=10)
    >>> tokens = torch.arange(40)[None]
    >>> for _ in range(21):
    ...     with monitor.step():
    ...         loss = model(input_ids=tokens, labels=tokens).loss
    ...     # loss.backward(), and the step of the optimizer
    >>> monitor.steps, monitor["entropy"].shape  # (steps, layers, heads)
    ([0, 10, 20], (3, 3, 2))
    """

    def __init__(
        self,
        model: torch.nn.Module,
        *,
        every: int = 100,
        statistics: str | Iterable[str] = ("entropy", "max_score"),
        rows: int | None = 16,
        min_entropy: float | None = 0.001,
        max_score: float | None = 100.0,
        on_alarm: Callable[[list[Alarm]], object] | None = None,
    ) -> None:
        if not isinstance(model, torch.nn.Module):
            raise TypeError(f"model must be a torch.nn.Module, got {shown(model)}")
        self.every = positive_int("every", every)
        self.rows = None if rows is None else positive_int("rows", rows)
        least = None if min_entropy is None else _limit("min_entropy", min_entropy)
        self._limits = Limits(least, None if max_score is None else _limit("max_score", max_score))
        self.statistics = tuple(dict.fromkeys((*statistic_names(statistics), *self._limits.given)))
        if "argmax" in self.statistics:
            raise ValueError("statistics must have a mean over rows, got 'argmax', which is an index")
        if not (on_alarm is None or callable(on_alarm)):
            raise TypeError(f"on_alarm must be callable, got {shown(on_alarm)}")
        self.on_alarm = on_alarm
        self.steps: list[int] = []
        self.modules: list[str] = []
        self.alarms: list[Alarm] = []
        self._model, self._watch = model, Watch(model, self._see, self._begin_pass, self._lose)
        self.unmeasured: dict[str, str] = {}
        self._lost: dict[str, str] = {}  # reasons by module, in this step
        self._tally = Tally()
        self._recorded: list[dict[str, dict[str, NDArray[np.float64]]]] = []
        self._is_recording, self._trained, self._counts = False, False, True
        self._has_validated = False  # whether a pass without a gradient was left out
        self._next = 0

    def step(self, number: int | None = None) -> AbstractContextManager[None]:
        """One step of training, as a ``with`` block around its forward passes.

        Parameters
        ----------
        number : int, optional
            Number of the step, counted from 0; default: that of the last block plus 1.
        """
        now = self._next if number is None else number
        self._next = now + 1
        return _Step(self, now) if now % self.every == 0 else nullcontext()

    def begin(self, *, trained: bool = False) -> None:
        """Record the forward passes from now on, for a callback, which has no ``with`` block.

        With ``trained=True`` only passes with a gradient: others between them are of a validation.
        """
        self.cancel()
        self._trained = trained
        self._watch.open()
        self._is_recording = True

    def cancel(self) -> None:
        """Stop recording, and forget the records of this step."""
        self._watch.close()
        self._is_recording, self._tally, self._lost = False, Tally(), {}
        self._has_validated = False

    @property
    def is_recording(self) -> bool:
        return self._is_recording

    def end(self, number: int) -> None:
        """Keep the records as the step of this number, and raise alarms for heads that passed a limit."""
        # On closing, the watch names weights that multiplied nothing.
        self._watch.close()
        found = self._tally.result()
        why = "" if found else self._why_nothing()
        self.cancel()
        if not found:
            name = type(self._model).__name__
            raise ValueError(f"no attention of {name} was recorded in step {number}: {why}")
        known = {name: place for place, name in enumerate(named_modules(self._model))}
        self.modules = sorted({*self.modules, *found}, key=lambda name: _place_in(known, name))
        self.steps.append(number)
        self._recorded.append(found)
        alarms = self._limits.check(number, found)
        self.alarms += alarms
        if alarms and self.on_alarm is None:
            warn(told(alarms))
        elif alarms and self.on_alarm is not None:
            self.on_alarm(alarms)

    @property
    def layers(self) -> tuple[int, ...]:
        """A number for each of ``modules``: one in its name that tells all apart, or else 0, 1, 2, ..."""
        return layer_numbers(self.modules)

    def _why_nothing(self) -> str:
        if self._lost:
            return f"it was seen, and none could be measured: {'; '.join(by_reason(self._lost))}"
        if self._tally.has_calls:
            return "none of its rows counts: all are padding, or see no key"
        if self._has_validated:
            return "no pass had a gradient, and passes of a validation are not recorded"
        return why_nothing(self._watch, "step")

    def _lose(self, module: str, why: str) -> None:
        """Keep the reason why attention of a module could not be measured."""
        if self._counts:
            self._lost.setdefault(module, why)
            self.unmeasured.setdefault(module, why)

    def _begin_pass(self) -> None:
        """Begin a pass; while passes of training are recorded, one without a gradient is of a validation."""
        self._counts = torch.is_grad_enabled() or not self._trained
        self._has_validated |= not self._counts

    def _see(self, call: SeenCall) -> None:
        if not call.has_known_axes:
            self._lose(str(call.place), "texts and heads cannot be told apart, so no row belongs to a head")
        elif self._counts:
            some = call.some(self.rows)
            rows = some.statistics((*self.statistics, "n_visible"))
            self._tally.add(str(call.place), rows, self.statistics, some.real)

    def attach(self, trainer: Any, *, by: str = "layer") -> Any:
        """Let a Trainer of transformers or of Lightning record and log its steps.

        Parameters
        ----------
        trainer : transformers.Trainer or lightning.pytorch.Trainer
            A step is one of its optimizer; with accumulated gradients it has several forward passes. The
            values go to the trainer's loggers, with the number of the step.
        by : {"layer", "head"}, default "layer"
            As for :meth:`scalars`.

        Returns
        -------
        object
            The callback, added to the trainer.
        """
        choose("by", by, ("layer", "head"))
        homes = [each.__module__ for each in type(trainer).__mro__]
        if any(home.startswith("transformers.") for home in homes) and hasattr(trainer, "add_callback"):
            callback = _of_transformers(self, trainer, by)
            trainer.add_callback(callback)
            return callback
        for package in ("lightning.pytorch", "pytorch_lightning"):
            if any(home.startswith(f"{package}.") for home in homes) and hasattr(trainer, "callbacks"):
                callback = _of_lightning(self, package, by)
                trainer.callbacks.append(callback)
                return callback
        raise TypeError(f"trainer must be a Trainer of transformers or of Lightning, got {shown(trainer)}")

    def scalars(self, *, by: str = "layer") -> dict[str, float]:
        """The last recorded step for loggers: a number for each name.

        Parameters
        ----------
        by : {"layer", "head"}, default "layer"
            "layer": ``attention/max_score/layer_3`` is the largest of the heads; the entropy has ``entropy``,
            the mean, and ``entropy_min``, that of the sharpest head; other statistics have the mean.
            "head": ``attention/entropy/layer_3/head_0`` for every head.
        """
        choose("by", by, ("layer", "head"))
        found: dict[str, float] = {}
        last = self._last()
        for layer, module in zip(self.layers, self.modules, strict=True):
            for name, values in last.get(module, {}).items():
                if by == "head":
                    place = f"attention/{name}/layer_{layer}/head_"
                    found |= {f"{place}{head}": value for head, value in enumerate(values.tolist())}
                    continue
                whole = {"max_score": np.max, "min_score": np.min}.get(name, np.mean)
                found[f"attention/{name}/layer_{layer}"] = float(whole(values))
                if name == "entropy":
                    found[f"attention/entropy_min/layer_{layer}"] = float(values.min())
        return found

    def save(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write all records as CSV: one line for each step, layer and head.

        Raises
        ------
        FileExistsError
            If the file exists and ``overwrite`` is False.
        """
        target = Path(path)
        if target.exists() and not boolean("overwrite", overwrite):
            raise FileExistsError(f"{target} is there already; overwrite=True replaces it")
        self._last()
        write_whole(target, to_csv(list(self._lines())).encode())
        return target

    def _lines(self) -> Iterator[dict[str, Any]]:
        for step, found in zip(self.steps, self._recorded, strict=True):
            for layer, module in zip(self.layers, self.modules, strict=True):
                arrays = found.get(module, {})
                for head in range(len(next(iter(arrays.values()), ()))):
                    place = {"step": step, "layer": layer, "module": module, "head": head}
                    yield place | {name: float(values[head]) for name, values in arrays.items()}

    def __len__(self) -> int:
        return len(self.steps)

    def __getitem__(self, name: str) -> NDArray[np.float64]:
        """A statistic of all recorded steps, shape (steps, layers, heads)."""
        if name not in self.statistics:
            raise KeyError(f"{name!r} was not recorded; there is {', '.join(self.statistics)}")
        self._last()
        arrays = [[step.get(module, {}).get(name) for module in self.modules] for step in self._recorded]
        shapes = {() if each is None else each.shape for row in arrays for each in row}
        if len(shapes) > 1:
            raise ValueError(f"layers differ in shape ({sorted(shapes)}); save(path) has them one by one")
        return np.array(arrays)

    def _last(self) -> dict[str, dict[str, NDArray[np.float64]]]:
        if not self._recorded:
            raise ValueError("nothing was recorded yet: no step of training was a multiple of every")
        return self._recorded[-1]

    def _variables(self) -> dict[str, Labelled]:
        axes = ("step", "layer", "head")
        found = {name: Labelled(axes, self[name], "nat" * (name == "entropy")) for name in self.statistics}
        return found | {"module": Labelled(("layer",), self.modules)}

    def _coordinates(self) -> dict[str, Any]:
        return {"step": self.steps, "layer": list(self.layers)}

    def _sheet(self, nats: float, unit: str) -> Sheet:
        lost = tuple(f"  seen, not measured: {each}" for each in by_reason(self.unmeasured))
        if not self._recorded:
            return Sheet("Monitor: nothing was recorded yet", notes=lost)
        alarms = f"; {counted(len(self.alarms), 'alarm')}" if self.alarms else ""
        title = f"Monitor: {counted(len(self), 'step')} recorded, every {self.every}{alarms}; the last one"
        sizes = {name: nats if name == "entropy" else 1.0 for name in self.statistics}
        rows = [
            (str(layer), module, str(head), *(f"{arrays[name][head] / sizes[name]:.4g}" for name in sizes))
            for layer, module in zip(self.layers, self.modules, strict=True)
            if (arrays := self._last().get(module))
            for head in range(len(arrays[self.statistics[0]]))
        ]
        names = (f"{name} ({unit})" if name == "entropy" else name for name in self.statistics)
        return Sheet(title, ("layer", "module", "head", *names), rows, lost)


class _Step:
    """A step that is recorded. A class, so that a warning has no frame of another package (contextlib)."""

    def __init__(self, monitor: Monitor, number: int) -> None:
        self._monitor, self._number = monitor, number

    def __enter__(self) -> None:
        self._monitor.begin()

    def __exit__(self, kind: Any, *error: object) -> None:
        if kind is None:
            self._monitor.end(self._number)
        else:
            self._monitor.cancel()


def _place_in(known: Mapping[str, int], name: str) -> tuple[int, int]:
    """Place of a call's module in the model, and the number of the call."""
    module, _, number = name.partition("#")
    return known.get(module, len(known)), int(number or 0)


def _limit(name: str, value: float) -> float:
    limit = number(name, value)
    if limit < 0:
        raise ValueError(f"{name} must be at least 0, got {limit}")
    return limit


def _of_transformers(monitor: Monitor, trainer: Any, by: str) -> Any:
    from transformers import TrainerCallback

    class MonitorCallback(TrainerCallback):
        """Records the steps, which the trainer counts from 0, and logs before the weights change."""

        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step % monitor.every == 0:
                monitor.begin(trained=True)

        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if monitor.is_recording:
                monitor.end(state.global_step)
                trainer.log(monitor.scalars(by=by))

        def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            monitor.cancel()

    return MonitorCallback()


def _of_lightning(monitor: Monitor, package: str, by: str) -> Any:
    base: Any = importlib.import_module(package).Callback

    class MonitorCallback(base):
        """Records the steps, which the trainer counts from 0, and logs before the weights change."""

        def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
            # Several batches are one step if gradients are accumulated.
            if trainer.global_step % monitor.every == 0 and not monitor.is_recording:
                monitor.begin(trained=True)

        def on_before_optimizer_step(self, trainer: Any, *_: Any) -> None:
            if monitor.is_recording:
                monitor.end(trainer.global_step)
                for logger in trainer.loggers:
                    logger.log_metrics(monitor.scalars(by=by), step=trainer.global_step)

        def on_exception(self, *_: Any) -> None:
            monitor.cancel()

        def on_train_end(self, *_: Any) -> None:
            monitor.cancel()

    return MonitorCallback()
