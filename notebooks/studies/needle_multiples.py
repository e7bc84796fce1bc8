# SPDX-License-Identifier: BSD-3-Clause
"""T15, the shape of the law: which multiple of the trained scale finds a needle best, at each length?"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from attnscale._base.checks import positive_int, shown
from attnscale.experiments import Criterion, Study, Training, Variable
from numpy.typing import NDArray
from torch import Tensor

from .data.tasks import TASKS
from .models.attention import Trained
from .models.multiples import at_length, check_multiples, labels, shape_claims
from .models.reader import Reader, answer_loss, answers

_TASK = TASKS["needle"]
_AT_ONCE = 2**17  # most tokens read at once


@dataclass(frozen=True)
class NeedleMultiples(Trained, Study):
    """Which multiple of the trained scale finds one key best at each length? (T15)

    The needle of :func:`length_tasks`, trained under 1/sqrt(d) with up to 16 tokens, is read with up to 4096
    under a grid of multiples of its scale, and under the multiples of log n and of two roots of a logarithm.

    Variables: nll, accuracy. :func:`best_multiples` finds the best multiple at each length.

    Attributes
    ----------
    train_length, batch, steps : int
        Largest length, rows of a step, and steps; the rows of a step have one length, from 2 to
        ``train_length``.
    width, heads : int
    learning_rate : float
    lengths : tuple of int
        Lengths at which a model is read: ``train_length``, and longer ones.
    tests : int
        Rows that are read at each length, the same under all multiples.
    multiples : tuple of float
        Increasing multiples of the trained scale, including 1.
    constants : tuple of float
        The multiple to compare with log n at all lengths: one of ``multiples``.
    attention, device, dtype
        See ``Trained`` in models/attention.py.
    """

    claim = "T15"
    question = "which multiple of the trained scale finds a key best at each length, and is that log n?"

    train_length: int = 16
    batch: int = 64
    steps: int = 3000
    width: int = 64
    heads: int = 2
    learning_rate: float = 3e-3
    lengths: tuple[int, ...] = (16, 64, 256, 1024, 4096)
    tests: int = 800
    multiples: tuple[float, ...] = (0.5, 0.65, 0.8, 1.0, 1.3, 1.6, 2.0, 2.5, 3.2, 4.0, 5.0, 6.5)
    constants: tuple[float, ...] = (1.6,)

    def __post_init__(self) -> None:
        for name in ("train_length", "batch", "steps", "width", "heads", "tests"):
            positive_int(name, getattr(self, name))
        if self.train_length < 2 or self.lengths[:1] != (self.train_length,) or len(self.lengths) < 2:
            raise ValueError(
                f"lengths must begin with train_length={self.train_length} of at least 2 and go on, "
                f"got {shown(self.lengths)}"
            )
        check_multiples(self.multiples, self.constants)
        super().__post_init__()

    @classmethod
    def reduced(cls) -> NeedleMultiples:
        """A small run for tests, of some seconds."""
        return cls(steps=400, lengths=(16, 64, 256), tests=200)

    def cells(self) -> dict[str, tuple[Any, ...]]:
        """One cell: the scale in training."""
        return {"trained": ("standard",)}

    def variables(self) -> dict[str, Variable]:
        """Variables measured for each model, by multiple and length."""
        table = {"multiple": labels(self.multiples), "n": self.lengths}
        return {
            "nll": Variable(table, "nat", "negative log-likelihood of the answer"),
            "accuracy": Variable(table, "", "share of the rows that are answered rightly"),
        }

    def measure(self, cell: dict[str, Any], seed: int, training: Training) -> dict[str, NDArray[np.float64]]:
        """Train one model, and read it at every length under every multiple of its scale."""
        with training.fork("weights"):
            model = Reader(
                *(_TASK.features, _TASK.labels),
                width=self.width,
                heads=self.heads,
                law=cell["trained"],
                implementation=self.attention,
            )
        model.to(training.device)
        batches = training.generator("batches")

        def loss(step: int) -> Tensor:
            n = int(torch.randint(2, self.train_length + 1, (1,), generator=batches))
            return answer_loss(model, _TASK.draw(self.batch, n, batches))

        training.fit(model, loss, steps=self.steps, learning_rate=self.learning_rate)
        found = np.stack([_read(self, model, n, seed) for n in self.lengths], 1)
        return {"nll": found[..., 0], "accuracy": found[..., 1]}

    def criterion(self) -> Criterion:
        """Claims: log n has a lower loss than the trained scale, a constant, and roots of logarithms."""
        return Criterion(shape_claims(self.lengths, self.constants[0], {"trained": "standard"}, "needle"))


@torch.no_grad()
def _read(study: NeedleMultiples, model: Reader, n: int, seed: int) -> NDArray[np.float64]:
    """Negative log-likelihood and accuracy under each multiple, (multiples, 2), all on the same rows."""
    generator = Training(seed).generator(f"test {n}")
    standard = 1 / math.sqrt(study.width // study.heads)
    betas = at_length(study.multiples, n, study.train_length)
    sums, count = np.zeros((len(betas), 2)), 0
    while count < study.tests:
        batch = min(max(1, _AT_ONCE // n), study.tests - count)
        drawn = _TASK.draw(batch, n, generator)
        found = {beta: answers(model, drawn, law=beta * standard)[:2] for beta in set(betas)}
        sums += [[float(each.sum()) for each in found[beta]] for beta in betas]
        count += batch
    return sums / count
