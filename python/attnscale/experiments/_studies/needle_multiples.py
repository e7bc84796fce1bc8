# SPDX-License-Identifier: BSD-3-Clause
"""T15, the shape of the law: which multiple of the trained scale finds a needle best, at each length?"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..._checks import positive_int, shown
from .._data.tasks import TASKS
from .._frame.criterion import Criterion
from .._frame.experiment import Experiment, Variable
from .._frame.result import TrainingResult
from .._frame.run import run
from .._frame.training import Training
from .._models.attention import check_implementation
from .._models.multiples import at_length, check_multiples, labels, shape_claims
from .._models.reader import Reader, answer_loss, answers

if TYPE_CHECKING:
    from typing import Unpack

    from .._frame.run import RunOptions

__all__ = ["EXPERIMENT", "NeedleMultiplesConfig", "needle_multiples"]

_TASK = TASKS["needle"]
_AT_ONCE = 2**17  # tokens that are read at once, at most


@dataclass(frozen=True)
class NeedleMultiplesConfig:
    """All that defines the experiment but the seeds.

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
        Multiples of the trained scale, growing, 1 among them.
    constants : tuple of float
        The multiple that log n is compared with at all lengths: one of ``multiples``.
    attention : {"attnscale", "torch"}
    device : str
    dtype : {"float32", "bfloat16"}
        Type of the products in training; weights, sums and measurements are in float32.
    """

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
    attention: str = "attnscale"
    device: str = "cpu"
    dtype: str = "float32"

    def __post_init__(self) -> None:
        for name in ("train_length", "batch", "steps", "width", "heads", "tests"):
            positive_int(name, getattr(self, name))
        if self.train_length < 2 or self.lengths[:1] != (self.train_length,) or len(self.lengths) < 2:
            raise ValueError(
                f"lengths must begin with train_length={self.train_length} of at least 2 and go on, "
                f"got {shown(self.lengths)}"
            )
        check_multiples(self.multiples, self.constants)
        check_implementation(self.attention, self.dtype)

    @classmethod
    def reduced(cls) -> NeedleMultiplesConfig:
        """The config of the cell that tests run again, in some seconds."""
        return cls(steps=400, lengths=(16, 64, 256), tests=200)


def cells(config: NeedleMultiplesConfig) -> dict[str, tuple[Any, ...]]:
    """One cell: the scale of the training."""
    return {"trained": ("standard",)}


def variables(config: NeedleMultiplesConfig) -> dict[str, Variable]:
    """The variables that are measured of each model, by multiple and length."""
    table = {"multiple": labels(config.multiples), "n": config.lengths}
    return {
        "nll": Variable(table, "nat", "negative log-likelihood of the answer"),
        "accuracy": Variable(table, "", "share of the rows that are answered rightly"),
    }


def measure(
    config: NeedleMultiplesConfig, cell: dict[str, Any], seed: int, training: Training
) -> dict[str, NDArray[np.float64]]:
    """Train one model, and read it at every length under every multiple of its scale."""
    with training.fork("weights"):
        model = Reader(
            *(_TASK.features, _TASK.labels),
            width=config.width,
            heads=config.heads,
            law=cell["trained"],
            implementation=config.attention,
        )
    model.to(training.device)
    batches = training.generator("batches")

    def loss(step: int) -> Tensor:
        n = int(torch.randint(2, config.train_length + 1, (1,), generator=batches))
        return answer_loss(model, _TASK.draw(config.batch, n, batches))

    training.fit(model, loss, steps=config.steps, learning_rate=config.learning_rate)
    found = np.stack([_read(config, model, n, seed) for n in config.lengths], 1)
    return {"nll": found[..., 0], "accuracy": found[..., 1]}


@torch.no_grad()
def _read(config: NeedleMultiplesConfig, model: Reader, n: int, seed: int) -> NDArray[np.float64]:
    """Negative log-likelihood and accuracy under each multiple, (multiples, 2), all on the same rows."""
    generator = Training(seed).generator(f"test {n}")
    standard = 1 / math.sqrt(config.width // config.heads)
    betas = at_length(config.multiples, n, config.train_length)
    sums, count = np.zeros((len(betas), 2)), 0
    while count < config.tests:
        batch = min(max(1, _AT_ONCE // n), config.tests - count)
        drawn = _TASK.draw(batch, n, generator)
        found = {beta: answers(model, drawn, law=beta * standard)[:2] for beta in set(betas)}
        sums += [[float(each.sum()) for each in found[beta]] for beta in betas]
        count += batch
    return sums / count


def criterion(config: NeedleMultiplesConfig) -> Criterion:
    """The loss under log n is below that of the trained scale, of a constant, and of roots of logarithms."""
    return Criterion(shape_claims(config.lengths, config.constants[0], {"trained": "standard"}, "needle"))


EXPERIMENT = Experiment(
    name="needle_multiples",
    claim="T15",
    question="which multiple of the trained scale finds a key best at each length, and is that log n?",
    criterion=criterion,
    config=NeedleMultiplesConfig,
    cells=cells,
    measure=measure,
    variables=variables,
)


def needle_multiples(
    config: NeedleMultiplesConfig | None = None, *, seeds: Any = 8, **options: Unpack[RunOptions]
) -> TrainingResult:
    """Which multiple of the trained scale finds one key best at each length? (T15)

    The needle of :func:`length_tasks`, trained under 1/sqrt(d) with up to 16 tokens, is read with up to 4096
    under a grid of multiples of its scale, and under the multiples of log n and of two roots of a logarithm.

    Parameters
    ----------
    config : NeedleMultiplesConfig, optional
        The full run by default.
    seeds : int or sequence of int
        How many models, or their seeds, which draw weights and data.
    **options
        See :class:`RunOptions`.

    Returns
    -------
    TrainingResult
        Variables: nll, accuracy. :func:`best_multiples` finds the best multiple at each length.

    Examples
    --------
    >>> import attnscale as at
    >>> config = at.experiments.NeedleMultiplesConfig.reduced()
    >>> result = at.experiments.needle_multiples(config, seeds=1)  # doctest: +SKIP
    """
    return run(EXPERIMENT, config, seeds, options)
