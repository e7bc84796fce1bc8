# SPDX-License-Identifier: BSD-3-Clause
"""Training loop of all experiments: AdamW with a schedule, from the first step or a checkpoint."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .._base.checks import choose

_LOOK = 50  # steps between checks that the loss is finite: a check waits for the device


def ends_of_parts(steps: int, most: int) -> tuple[int, ...]:
    """The ends of the parts of a training, as steps: at most `most` parts, as even as possible.

    Examples
    --------
    >>> ends_of_parts(7, 3)
    (3, 5, 7)
    """
    return tuple(int(part[-1]) + 1 for part in np.array_split(np.arange(steps), min(most, steps)))


class History(NamedTuple):
    """The losses, gradients and observations of one training.

    Attributes
    ----------
    loss, gradient_norm : ndarray of float64, shape (steps,)
        Loss and norm of each step, the norm before clipping; NaN from the first non-finite loss onwards.
    observed_steps : ndarray of int64
        Steps before which ``observe`` was called.
    observed : dict of str to ndarray
        Results of ``observe`` before these steps.
    diverged : bool
        Whether a loss was not finite; the training then ended.
    """

    loss: NDArray[np.float64]
    gradient_norm: NDArray[np.float64]
    observed_steps: NDArray[np.int64]
    observed: dict[str, NDArray[np.float64]]
    diverged: bool

    def mean_losses(self, most: int) -> NDArray[np.float64]:
        """The mean loss of each part of the training; see :func:`ends_of_parts`."""
        parts = np.split(self.loss, ends_of_parts(len(self.loss), most)[:-1])
        return np.array([part.mean() for part in parts])


@dataclass(frozen=True)
class Schedule:
    """The factor of the learning rate: up to 1 over ``warmup`` steps, then according to ``kind``.

    Examples
    --------
    >>> schedule = Schedule("linear", warmup=2, steps=6)
    >>> [round(schedule.factor(step), 2) for step in range(6)]
    [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]
    """

    kind: str
    warmup: int
    steps: int

    def __post_init__(self) -> None:
        choose("schedule", self.kind, ("constant", "linear", "cosine"))

    def factor(self, step: int) -> float:
        """The factor at a step, counted from 0."""
        if step < self.warmup:
            return (step + 1) / self.warmup
        gone = (step - self.warmup) / max(1, self.steps - self.warmup)
        if self.kind == "linear":
            return 1 - gone
        return 0.5 * (1 + math.cos(math.pi * gone)) if self.kind == "cosine" else 1.0


class Loop:
    """The state of one training, step by step.

    ``loss(step)`` is the loss of a step's batch, a tensor with a gradient. `groups` are parameters for AdamW,
    perhaps with their own learning rates, `adam` its other options. `clip` is the largest norm of the
    gradient, or None. ``observe(step)`` returns numbers by name, before every `observe_every` steps and after
    the last.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        loss: Callable[[int], Tensor],
        groups: Iterable[Any],
        schedule: Schedule,
        clip: float | None,
        observe: Callable[[int], Mapping[str, Any]] | None,
        observe_every: int,
        adam: dict[str, Any],
    ) -> None:
        self.model, self.loss = model, loss
        self.schedule, self.clip = schedule, clip
        self.observe, self.observe_every = observe, observe_every
        self.optimizer = torch.optim.AdamW(list(groups), **adam)
        self._rates = [group["lr"] for group in self.optimizer.param_groups]
        device = next(iter(self.optimizer.param_groups[0]["params"])).device
        # On the device, because reading a number waits for it.
        self.losses = torch.full((schedule.steps,), math.nan, dtype=torch.float64, device=device)
        self.norms = self.losses.clone()
        self.seen: list[dict[str, float]] = []
        self.step = 0
        self.diverged = False

    @property
    def done(self) -> bool:
        """Whether the training is over: all steps done, or diverged."""
        return self.diverged or self.step >= self.schedule.steps

    def advance(self) -> None:
        """Do one step of the training."""
        self._look()
        factor = self.schedule.factor(self.step)
        for group, rate in zip(self.optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate * factor
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.loss(self.step)
        loss.backward()
        parameters = [each for group in self.optimizer.param_groups for each in group["params"]]
        most = math.inf if self.clip is None else self.clip
        self.norms[self.step] = torch.nn.utils.clip_grad_norm_(parameters, most)
        self.losses[self.step] = loss.detach()
        self.optimizer.step()
        if self.step % _LOOK == _LOOK - 1 or self.step == self.schedule.steps - 1:
            recent = self.losses[max(0, self.step - _LOOK + 1) : self.step + 1]
            self.diverged = not bool(torch.isfinite(recent).all())
        self.step += 1
        if self.done:
            self._look(last=True)

    def _look(self, last: bool = False) -> None:
        if self.observe is None or not (last or self.step % self.observe_every == 0):
            return
        with torch.no_grad():
            found = {name: float(value) for name, value in self.observe(self.step).items()}
        self.seen.append({"step": float(self.step), **found})

    def state(self) -> dict[str, Any]:
        """All that the next steps depend on, except the random generators."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "losses": self.losses,
            "norms": self.norms,
            "seen": self.seen,
            "step": self.step,
            "diverged": self.diverged,
        }

    def load(self, state: dict[str, Any]) -> None:
        """Load a state, from which the training continues."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.losses.copy_(state["losses"])
        self.norms.copy_(state["norms"])
        self.seen, self.step, self.diverged = list(state["seen"]), state["step"], state["diverged"]

    def history(self) -> History:
        """The history of the steps so far."""
        loss = self.losses.cpu().numpy().copy()
        norm = self.norms.cpu().numpy().copy()
        if self.diverged:
            first = int(np.flatnonzero(~np.isfinite(loss))[0])
            loss[first:], norm[first:] = np.nan, np.nan
        names = [name for name in (self.seen[0] if self.seen else {}) if name != "step"]
        steps = np.array([int(each["step"]) for each in self.seen], np.int64)
        found = {name: np.array([each[name] for each in self.seen]) for name in names}
        return History(loss, norm, steps, found, self.diverged)
