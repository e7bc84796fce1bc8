# SPDX-License-Identifier: BSD-3-Clause
"""T17: where a context is averaged, a scale that grows with its size makes the answer worse."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from ... import laws
from ..._checks import choose, positive_int, shown
from .._data.graph_data import CLASSES, FEATURES, class_means, graph, mirror
from .._data.graph_data import context as sampled
from .._frame.criterion import Claim, Criterion, difference
from .._frame.experiment import Experiment, Variable
from .._frame.result import TrainingResult
from .._frame.run import run
from .._frame.training import Training
from .._models.attention import check_implementation
from .._models.reader import Reader

if TYPE_CHECKING:
    from typing import Unpack

    from .._frame.run import RunOptions

__all__ = ["EXPERIMENT", "ContextConfig", "context"]

_TASKS = ("context", "graph", "needle")
_OWN = ("seen", "masked")
#: Trainings. At one length all laws are the same; the others have lengths from a quarter of it up to it.
_TRAINED = ("one length", "standard", "log_n")
_LAWS = ("standard", "log_n", "annealed", "2 log_n")
_DENSITY = 0.25  # share of the nodes that are neighbours, at every size of a graph
_AT_ONCE = 2**17  # tokens that are read at once, at most


@dataclass(frozen=True)
class ContextConfig:
    """All that defines the experiment but the seeds.

    Attributes
    ----------
    tasks : tuple of {"context", "graph", "needle"}
    own_key : tuple of {"seen", "masked"}
        Whether a node reads itself too.
    trained : tuple of {"one length", "standard", "log_n"}
        Training at ``train_length`` alone, or at lengths from a quarter of it up to it under one of two laws.
    train_length, batch, steps : int
        Tokens of a context (mean degree of a graph), contexts of a step, steps.
    width : int
        Width of the one head.
    learning_rate : float
    lengths : tuple of int
        Lengths at which a model is read.
    tests : int
        Contexts that are read at each length, at least.
    attention : {"attnscale", "torch"}
    device : str
    dtype : {"float32", "bfloat16"}
        Type of the products in training; weights, sums and measurements are in float32.
    """

    tasks: tuple[str, ...] = _TASKS
    own_key: tuple[str, ...] = _OWN
    trained: tuple[str, ...] = _TRAINED
    train_length: int = 32
    batch: int = 64
    steps: int = 3000
    width: int = 32
    learning_rate: float = 3e-3
    lengths: tuple[int, ...] = (32, 64, 128, 256, 512, 1024)
    tests: int = 2000
    attention: str = "attnscale"
    device: str = "cpu"
    dtype: str = "float32"

    def __post_init__(self) -> None:
        for name in ("train_length", "batch", "steps", "width", "tests"):
            positive_int(name, getattr(self, name))
        for name, known in (("tasks", _TASKS), ("own_key", _OWN), ("trained", _TRAINED)):
            for value in getattr(self, name):
                choose(name, value, known)
        if self.train_length < 8 or min(self.lengths) < self.train_length:
            raise ValueError(
                f"lengths must be at least train_length, and that at least 8, got {shown(self.lengths)} "
                f"and {self.train_length}"
            )
        check_implementation(self.attention, self.dtype)

    @classmethod
    def reduced(cls) -> ContextConfig:
        """The config of the cells that tests run again, in some seconds."""
        return cls(
            tasks=("context",),
            own_key=("seen",),
            trained=("one length",),
            steps=400,
            lengths=(32, 256),
            tests=1000,
        )


def cells(config: ContextConfig) -> dict[str, tuple[Any, ...]]:
    """Axes of the models: the task, whether a node reads itself, lengths and law of the training."""
    return {"task": config.tasks, "own_key": config.own_key, "trained": config.trained}


def variables(config: ContextConfig) -> dict[str, Variable]:
    """The variables that are measured of each model at each length under each law, on the same contexts."""
    table = {"law": _LAWS, "n": config.lengths}
    return {
        "accuracy": Variable(table, "", "share of the nodes whose class is found"),
        "nll": Variable(table, "nat", "negative log-likelihood of the class"),
        "effective_keys": Variable(table, "", "mean of exp(entropy)"),
    }


class _Read(NamedTuple):
    """Inputs of the model and the right labels."""

    query: Tensor
    tokens: Tensor
    mask: Tensor | None
    label: Tensor  # (batch, queries)


def measure(
    config: ContextConfig, cell: dict[str, Any], seed: int, training: Training
) -> dict[str, NDArray[np.float64]]:
    """Train one model, and read it at every length under every law."""
    means = class_means(training.generator("classes"))
    features = FEATURES + (CLASSES if cell["task"] == "needle" else 0)
    law = _law("log_n" if cell["trained"] == "log_n" else "standard", config.train_length)
    with training.fork("weights"):
        model = Reader(
            *(features, CLASSES),
            width=config.width,
            heads=1,
            law=law,
            implementation=config.attention,
        )
    model.to(training.device)
    batches = training.generator("batches")

    def loss(step: int) -> Tensor:
        n = config.train_length
        if cell["trained"] != "one length":
            n = int(torch.randint(n // 4, n + 1, (1,), generator=batches))
        read = _draw(cell, n, config.batch, means, batches, training.device)
        logits = model(read.query, read.tokens, mask=read.mask)[0]
        return functional.cross_entropy(logits.flatten(0, 1), read.label.flatten())

    training.fit(model, loss, steps=config.steps, learning_rate=config.learning_rate)
    found = np.stack([_test(config, cell, model, n, means, training) for n in config.lengths], axis=-1)
    return dict(zip(variables(config), found, strict=True))


def _draw(
    cell: dict[str, Any], n: int, batch: int, means: Tensor, generator: torch.Generator, device: Any
) -> _Read:
    """Contexts of n tokens, or one graph of n neighbours on average; both count a node that reads itself."""
    seen = cell["own_key"] == "seen"
    if cell["task"] == "graph":
        drawn = graph(int(n / _DENSITY), n - seen, means, generator)
        mask = (
            drawn.neighbours | torch.eye(len(drawn.neighbours), dtype=torch.bool)
            if seen
            else drawn.neighbours
        )
        parts: tuple[Tensor, ...] = (drawn.nodes, drawn.nodes, mask, drawn.label)
        return _Read(*(each.to(device) for each in parts))
    draw = mirror if cell["task"] == "needle" else sampled
    rows = draw(batch, n if seen else n + 1, means, generator)
    tokens = rows.tokens if seen else rows.tokens[:, 1:]
    parts = (rows.query[:, None], tokens.contiguous(), rows.label[:, None])
    query, tokens, label = (each.to(device) for each in parts)
    return _Read(query, tokens, None, label)


@torch.no_grad()
def _test(
    config: ContextConfig,
    cell: dict[str, Any],
    model: Reader,
    n: int,
    means: Tensor,
    training: Training,
) -> NDArray[np.float64]:
    """Accuracy, negative log-likelihood and effective keys under every law, (3, laws)."""
    generator = training.generator(f"test {n}")
    sums, count = np.zeros((3, len(_LAWS))), 0
    while count < config.tests:
        batch = min(max(1, _AT_ONCE // n), config.tests - count)
        read = _draw(cell, n, batch, means, generator, training.device)
        for i, name in enumerate(_LAWS):
            logits, entropy = model(
                read.query, read.tokens, mask=read.mask, law=_law(name, config.train_length)
            )
            right = (logits.argmax(-1) == read.label).double().sum()
            nll = functional.cross_entropy(logits.flatten(0, 1), read.label.flatten(), reduction="sum")
            sums[:, i] += [float(right), float(nll), float(entropy.exp().sum())]
        count += read.label.numel()
    return sums / count


def _law(name: str, n0: int) -> laws.Law:
    """The law of this name, which is 1 at n0, except that "2 log_n" is 2 there."""
    if name == "2 log_n":
        return 2 * laws.LogN(base=n0)
    known = {"standard": {}, "log_n": {"base": n0}, "annealed": {"n0": n0}}
    return laws.get(name, **known[name])


def criterion(config: ContextConfig) -> Criterion:
    """The standard scale less log n, at every length from 8 times the training on, for each own key."""
    laws = {"law": ("standard", "log_n")}
    place = {"task": "context", "trained": "one length"}
    contrasts = tuple(
        difference(
            f"1/sqrt(d) less log n at {n}, own key {own_key}",
            "accuracy",
            laws,
            {"own_key": own_key, "n": n, **place},
        )
        for own_key in config.own_key
        for n in config.lengths
        if n >= 8 * config.train_length
    )
    return Criterion((Claim("where a context is averaged, log n makes the answer worse", contrasts),))


EXPERIMENT = Experiment(
    name="context",
    claim="T17",
    question="does a scale that grows with log n harm where a context is to be averaged?",
    criterion=criterion,
    config=ContextConfig,
    cells=cells,
    measure=measure,
    variables=variables,
)


def context(
    config: ContextConfig | None = None, *, seeds: Any = 5, **options: Unpack[RunOptions]
) -> TrainingResult:
    """Does a scale that grows with log n harm where a context is to be averaged? (T17)

    A node's class is to be found from noisy features of itself and of sampled neighbours, or of the
    neighbours in a graph (stochastic block model), by one layer of attention. The mirror task has the answer
    in one token of the context. Models are trained at 32 tokens and read at up to 1024 under four laws.

    Parameters
    ----------
    config : ContextConfig, optional
        The full run by default.
    seeds : int or sequence of int
        How many models of each cell, or their seeds, which draw classes, weights and data.
    **options
        See :class:`RunOptions`.

    Returns
    -------
    TrainingResult
        Variables: accuracy, nll, effective_keys.

    Examples
    --------
    >>> import attnscale as at
    >>> config = at.experiments.ContextConfig.reduced()
    >>> result = at.experiments.context(config, seeds=1)  # doctest: +SKIP
    """
    return run(EXPERIMENT, config, seeds, options)
