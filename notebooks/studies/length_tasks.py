# SPDX-License-Identifier: BSD-3-Clause
"""T15, beyond language: tasks where only the number of tokens changes, trained and read under a law."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from attnscale._base.checks import choose, positive_int, shown
from attnscale.experiments import Claim, Criterion, Study, Training, Variable, difference
from numpy.typing import NDArray
from torch import Tensor

from .data.tasks import TASKS
from .models.attention import Trained
from .models.reader import Reader, answer_loss, answers

#: Law and normalizer of each variant; N is the training length.
_VARIANTS = {
    "standard": ("standard", "softmax"),
    "log_n": ("log_n(base=N)", "softmax"),
    "natural_log_n": ("natural_log_n", "softmax"),
    "entropy_invariant": ("entropy_invariant(n0=N)", "softmax"),
    "ssmax": ("ssmax", "softmax"),
    "sparsemax": ("standard", "sparsemax"),
    "entmax": ("standard", "entmax(alpha=1.5)"),
    "asentmax": ("asentmax", "entmax(alpha=1.5)"),
}
_AT_ONCE = 2**17  # most tokens read at once


@dataclass(frozen=True)
class LengthTasks(Trained, Study):
    """Where only the length changes, which law or normalizer keeps what was learned? (T15)

    One query reads a set of tokens. The answer is in one of them (needle), in the first (FIRST of Chiang &
    Cholak), or spread over all (majority, average). Models are trained with up to 16 tokens and read with up
    to 4096.

    Variables: accuracy, nll, effective_keys.

    Attributes
    ----------
    tasks : tuple of {"needle", "first", "majority", "average"}
    variants : tuple of str
        Laws and normalizers, in training and after it: "standard", "log_n", "natural_log_n",
        "entropy_invariant", "ssmax" (s learned per head), "sparsemax", "entmax" (alpha = 1.5), "asentmax".
    train_length, batch : int
        Largest length, and rows of a step; the rows of a step have one length, from 2 to ``train_length``.
    stages : tuple of int
        Numbers of steps after which a model is read; the last ends the training.
    width, heads : int
    learning_rate : float
    lengths : tuple of int
        Lengths at which a model is read.
    tests : int
        Rows that are read at each length.
    attention, device, dtype
        See ``Trained`` in models/attention.py.
    """

    claim = "T15"
    question = "where only the length changes, which law or normalizer keeps what was learned at 16 tokens?"

    tasks: tuple[str, ...] = tuple(TASKS)
    variants: tuple[str, ...] = tuple(_VARIANTS)
    train_length: int = 16
    batch: int = 64
    stages: tuple[int, ...] = (10, 100, 3000)
    width: int = 64
    heads: int = 2
    learning_rate: float = 3e-3
    lengths: tuple[int, ...] = (16, 64, 256, 1024, 4096)
    tests: int = 400

    def __post_init__(self) -> None:
        for name in ("train_length", "batch", "width", "heads", "tests"):
            positive_int(name, getattr(self, name))
        for name, known in (("tasks", tuple(TASKS)), ("variants", tuple(_VARIANTS))):
            for value in getattr(self, name):
                choose(name, value, known)
        if self.train_length < 2 or min(self.lengths) < 2:
            raise ValueError(
                f"lengths and train_length must be at least 2, got {shown(self.lengths)} and "
                f"{self.train_length}"
            )
        if list(self.stages) != sorted({*self.stages, 0} - {0}) or not self.stages:
            raise ValueError(f"stages must be growing positive integers, got {shown(self.stages)}")
        super().__post_init__()

    @classmethod
    def reduced(cls) -> LengthTasks:
        """A small run for tests, of some seconds."""
        return cls(
            tasks=("needle", "majority"),
            variants=("standard", "log_n"),
            stages=(10, 400),
            lengths=(16, 1024),
        )

    def cells(self) -> dict[str, tuple[Any, ...]]:
        """Axes of the models: the task, and the law or normalizer."""
        return {"task": self.tasks, "variant": self.variants}

    def variables(self) -> dict[str, Variable]:
        """Variables measured for each model after each stage of training, at each length."""
        table = {"step": self.stages, "n": self.lengths}
        return {
            "accuracy": Variable(table, "", "share of the rows that are answered rightly"),
            "nll": Variable(table, "nat", "negative log-likelihood of the answer"),
            "effective_keys": Variable(table, "", "mean of exp(entropy)"),
        }

    def measure(self, cell: dict[str, Any], seed: int, training: Training) -> dict[str, NDArray[np.float64]]:
        """Train one model, and read it at every length after every stage."""
        task = TASKS[cell["task"]]
        law, normalizer = _VARIANTS[cell["variant"]]
        with training.fork("weights"):
            model = Reader(
                *(task.features, task.labels),
                width=self.width,
                heads=self.heads,
                law=law.replace("N", str(self.train_length)),
                normalizer=normalizer,
                n0=self.train_length,
                implementation=self.attention,
            )
        model.to(training.device)
        batches = training.generator("batches")

        def loss(step: int) -> Tensor:
            n = int(torch.randint(2, self.train_length + 1, (1,), generator=batches))
            return answer_loss(model, task.draw(self.batch, n, batches))

        found, done = [], 0
        for stage in self.stages:
            schedule = "cosine" if stage == self.stages[-1] else "constant"
            options: dict[str, Any] = {"learning_rate": self.learning_rate, "schedule": schedule}
            training.fit(model, loss, steps=stage - done, name=f"to {stage}", **options)
            found.append([_test(self, cell, model, n, seed) for n in self.lengths])
            done = stage
        return dict(zip(self.variables(), np.moveaxis(np.array(found), -1, 0), strict=True))

    def criterion(self) -> Criterion:
        """Claims at 64 times the training length, after all steps: log n finds better, and counts worse."""
        place = {"step": self.stages[-1], "n": 64 * self.train_length}
        found, lost = ({"variant": pair} for pair in (("log_n", "standard"), ("standard", "log_n")))
        needle = difference("log n less 1/sqrt(d), needle", "accuracy", found, {"task": "needle", **place})
        counted = difference(
            "1/sqrt(d) less log n, majority", "accuracy", lost, {"task": "majority", **place}
        )
        return Criterion(
            (
                Claim("where one of many keys has the answer, log n finds it better", (needle,)),
                Claim("where all keys are counted, log n loses", (counted,)),
            )
        )


@torch.no_grad()
def _test(
    study: LengthTasks, cell: dict[str, Any], model: Reader, n: int, seed: int
) -> tuple[float, float, float]:
    """Accuracy, negative log-likelihood and effective keys, on rows that all models of a seed share."""
    generator = Training(seed).generator(f"test {n}")
    sums, count = np.zeros(3), 0
    while count < study.tests:
        batch = min(max(1, _AT_ONCE // n), study.tests - count)
        nll, right, entropy = answers(model, TASKS[cell["task"]].draw(batch, n, generator))
        sums += [float(right.sum()), float(nll.sum()), batch * float(entropy.exp().mean())]
        count += batch
    accuracy, nll_mean, keys = sums / count
    return accuracy, nll_mean, keys
