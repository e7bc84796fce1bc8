# SPDX-License-Identifier: BSD-3-Clause
"""T17: where a context is averaged, a scale that grows with its size makes the answer worse."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from attnscale import laws
from attnscale._base.checks import choose, positive_int, shown
from attnscale.experiments import Claim, Contrast, Criterion, Study, Training, Variable, difference
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from .data.graph_data import CLASSES, FEATURES, Questions, class_means, questions
from .models.attention import Trained
from .models.reader import Reader

_TASKS = ("context", "graph", "needle")
_OWN = ("seen", "masked")
#: Kinds of training: at one length, where all fixed laws are equal, or at several lengths under a law.
_TRAINED = ("one length", "standard", "log_n", "ssmax", "ssmax_b")
_FIXED = _TRAINED[:3]
_LAWS = ("standard", "log_n", "annealed", "2 log_n")
#: Ways to assign the weights of a row to its tokens.
_WEIGHTS = ("as they are", "shuffled", "equal")
_AT_ONCE = 2**17  # tokens that are read at once, at most


@dataclass(frozen=True)
class Context(Trained, Study):
    """Does a scale that grows with log n harm where a context has to be averaged? (T17)

    One layer of attention finds a node's class from noisy features of itself and of sampled neighbours, or of
    the neighbours in a graph (stochastic block model). In the mirror task one token of the context has the
    answer. Models are trained at 32 tokens and read at up to 1024 under four laws. In
    ``Context.many_lengths()`` they are also trained at up to 1024 tokens, and read with their weights
    shuffled and equal.

    Variables: accuracy, nll, effective_keys; by_weights and own_factor where ``apart``.

    Attributes
    ----------
    tasks : tuple of {"context", "graph", "needle"}
    own_key : tuple of {"seen", "masked"}
        Whether a node reads itself too.
    trained : tuple of {"one length", "standard", "log_n", "ssmax", "ssmax_b"}
        Training at ``train_length`` alone, or at several lengths under a law; "ssmax" is s ln n and "ssmax_b"
        s ln n + b, both learned.
    train_length, batch, steps : int
        Tokens of a context (mean degree of a graph), contexts of a step, steps. Fixed laws are 1 at this
        length.
    train_lengths : tuple of int
        The several lengths, used equally often; if empty, all from a quarter of ``train_length`` up to it.
    width : int
        Width of the one head.
    learning_rate : float
    lengths : tuple of int
        Lengths at which a model is read.
    tests : int
        Least number of contexts that are read at each length.
    laws : tuple of {"own", "standard", "log_n", "annealed", "2 log_n"}
        Laws under which every model is read; "own" is the law of its training.
    apart : bool
        Whether to read with shuffled and equal weights too, which separates the tilt of the average from its
        variance. Not possible for graphs, where each query sees other tokens.
    attention, device, dtype
        See ``Trained`` in models/attention.py.
    """

    claim = "T17"
    question = "does a scale that grows with log n harm where a context is to be averaged?"

    tasks: tuple[str, ...] = _TASKS
    own_key: tuple[str, ...] = _OWN
    trained: tuple[str, ...] = _FIXED
    train_length: int = 32
    batch: int = 64
    steps: int = 3000
    width: int = 32
    learning_rate: float = 3e-3
    lengths: tuple[int, ...] = (32, 64, 128, 256, 512, 1024)
    tests: int = 2000
    train_lengths: tuple[int, ...] = ()
    laws: tuple[str, ...] = _LAWS
    apart: bool = False

    def __post_init__(self) -> None:
        for name in ("train_length", "batch", "steps", "width", "tests"):
            positive_int(name, getattr(self, name))
        known_of = {"tasks": _TASKS, "own_key": _OWN, "trained": _TRAINED, "laws": ("own", *_LAWS)}
        for name, known in known_of.items():
            for value in getattr(self, name):
                choose(name, value, known)
        if self.train_length < 8 or min(self.lengths) < self.train_length:
            raise ValueError(
                f"lengths must be at least train_length, and that at least 8, got {shown(self.lengths)} "
                f"and {self.train_length}"
            )
        if min((8, *self.train_lengths)) < 8:
            raise ValueError(f"train_lengths must be at least 8, got {shown(self.train_lengths)}")
        if self.apart and "graph" in self.tasks:
            raise ValueError(f"apart must be False where tasks has 'graph', got True and {shown(self.tasks)}")
        super().__post_init__()

    @classmethod
    def many_lengths(cls) -> Context:
        """The run "lengths": training at 32 to 1024 tokens, with tilt and variance separated."""
        lengths = (32, 64, 128, 256, 512, 1024)
        return cls(
            tasks=("context",),
            own_key=("seen",),
            trained=_TRAINED,
            batch=32,
            steps=1500,
            tests=800,
            train_lengths=lengths,
            lengths=lengths,
            laws=("own", "log_n", "annealed"),
            apart=True,
        )

    @classmethod
    def reduced(cls) -> Context:
        """A small run for tests, of some seconds."""
        return cls(
            tasks=("context",),
            own_key=("seen",),
            trained=("one length",),
            steps=400,
            lengths=(32, 256),
            tests=1000,
        )

    def cells(self) -> dict[str, tuple[Any, ...]]:
        """Axes of the models: the task, whether a node reads itself, lengths and law in training."""
        return {"task": self.tasks, "own_key": self.own_key, "trained": self.trained}

    def variables(self) -> dict[str, Variable]:
        """Variables measured for each model at each length under each law, on the same contexts."""
        table = {"law": self.laws, "n": self.lengths}
        usual = {
            "accuracy": Variable(table, "", "share of the nodes whose class is found"),
            "nll": Variable(table, "nat", "negative log-likelihood of the class"),
            "effective_keys": Variable(table, "", "mean of exp(entropy)"),
        }
        if not self.apart:
            return usual
        return {
            **usual,
            "by_weights": Variable(
                {"weights": _WEIGHTS, **table},
                "",
                "accuracy with the weights of a row dealt so to its tokens",
            ),
            "own_factor": Variable(
                {"n": self.lengths}, "", "what the model's own law multiplies 1/sqrt(d) by"
            ),
        }

    def measure(self, cell: dict[str, Any], seed: int, training: Training) -> dict[str, NDArray[np.float64]]:
        """Train one model, and read it at every length under every law."""
        means = class_means(training.generator("classes"))
        features = FEATURES + (CLASSES if cell["task"] == "needle" else 0)
        law, n0 = cell["trained"], self.train_length
        with training.fork("weights"):
            model = Reader(
                *(features, CLASSES),
                width=self.width,
                heads=1,
                law=law if law in ("ssmax", "ssmax_b") else _law(law.replace("one length", "standard"), n0),
                n0=n0,
                implementation=self.attention,
            )
        model.to(training.device)
        batches = training.generator("batches")

        def loss(step: int) -> Tensor:
            n = n0 if law == "one length" else _length(self, batches)
            read = questions(cell, n, self.batch, means, batches, training.device)
            logits = model(read.query, read.tokens, mask=read.mask)[0]
            return functional.cross_entropy(logits.flatten(0, 1), read.label.flatten())

        training.fit(model, loss, steps=self.steps, learning_rate=self.learning_rate)
        read = [_test(self, cell, model, n, means, training) for n in self.lengths]
        found = {name: np.stack([each[name] for each in read], axis=-1) for name in read[0]}
        if self.apart:
            found["own_factor"] = _factors(self, model)
        return found

    def criterion(self) -> Criterion:
        """Claims: standard scale less log n, from 8 times the training length on, for each own key.

        With ``apart``, also models trained under each law at several lengths, and tilt against variance.
        """
        if self.apart:
            return _apart(self)
        laws = {"law": ("standard", "log_n")}
        place = {"task": "context", "trained": "one length"}
        contrasts = tuple(
            difference(
                f"1/sqrt(d) less log n at {n}, own key {own_key}",
                "accuracy",
                laws,
                {"own_key": own_key, "n": n, **place},
            )
            for own_key in self.own_key
            for n in self.lengths
            if n >= 8 * self.train_length
        )
        return Criterion((Claim("where a context is averaged, log n makes the answer worse", contrasts),))


def _length(study: Context, batches: torch.Generator) -> int:
    """The length of the next batch of a training at several lengths."""
    if study.train_lengths:
        return study.train_lengths[int(torch.randint(len(study.train_lengths), (1,), generator=batches))]
    n = study.train_length
    return int(torch.randint(n // 4, n + 1, (1,), generator=batches))


@torch.no_grad()
def _test(
    study: Context,
    cell: dict[str, Any],
    model: Reader,
    n: int,
    means: Tensor,
    training: Training,
) -> dict[str, NDArray[np.float64]]:
    """Accuracy, negative log-likelihood and effective keys under every law, and accuracy by weights."""
    generator, orders = training.generator(f"test {n}"), training.generator(f"order {n}")
    names = ["accuracy", "nll", "effective_keys"]
    sums, dealt = np.zeros((3, len(study.laws))), np.zeros((3, len(study.laws)))
    count = 0
    while count < study.tests:
        batch = min(max(1, _AT_ONCE // n), study.tests - count)
        read = questions(cell, n, batch, means, generator, training.device)
        for i, name in enumerate(study.laws):
            logits, entropy = _logits(model, read, _law(name, study.train_length))
            nll = functional.cross_entropy(logits.flatten(0, 1), read.label.flatten(), reduction="sum")
            sums[:, i] += [_right(logits, read), float(nll), float(entropy.exp().sum())]
        if study.apart:
            order = torch.rand(read.tokens.shape[:2], generator=orders).argsort(-1).to(training.device)
            for i, name in enumerate(study.laws):
                dealt[1, i] += _right(_logits(model, read, _law(name, study.train_length), order)[0], read)
            dealt[2] += _right(_logits(model, read, 0.0)[0], read)
        count += read.label.numel()
    found = dict(zip(names, sums / count, strict=True))
    return {**found, "by_weights": np.stack((sums[0], *dealt[1:])) / count} if study.apart else found


def _factors(study: Context, model: Reader) -> NDArray[np.float64]:
    """Multiple of 1/sqrt(d) by the model's law at every length."""
    learned = model.learned()
    law = laws.get(model.law) if learned is None else learned.current()
    return np.asarray(law.multiplier(study.lengths, study.width), np.float64).reshape(-1)


def _logits(model: Reader, read: Questions, law: Any, order: Tensor | None = None) -> tuple[Tensor, Any]:
    """Logits and entropies under a law, None for the model's own."""
    found: tuple[Tensor, Any] = model(read.query, read.tokens, mask=read.mask, law=law, order=order)
    return found


def _right(logits: Tensor, read: Questions) -> float:
    """Number of nodes whose class is named correctly."""
    return float((logits.argmax(-1) == read.label).sum())


def _law(name: str, n0: int) -> laws.Law | None:
    """The law of this name, 1 at n0 ("2 log_n" is 2 there); None for the model's own."""
    if name == "own":
        return None
    if name == "2 log_n":
        return 2 * laws.LogN(base=n0)
    known = {"standard": {}, "log_n": {"base": n0}, "annealed": {"n0": n0}}
    return laws.get(name, **known[name])


_HARM = 0.01  # accuracy; a smaller loss counts as none
_NAMED = 0.94  # share of the classes


def _apart(study: Context) -> Criterion:
    """Claims at the longest context: laws in training, laws put in afterwards, and the reason of the cost."""
    ends = study.lengths[0], study.lengths[-1]
    place = {"task": study.tasks[0], "own_key": study.own_key[0]}
    own = {"law": "own", "n": ends[1], **place}
    harms = tuple(
        difference(f"1/sqrt(d) less {law}", "accuracy", {"trained": ("standard", law)}, own, least=_HARM)
        for law in ("log_n", "ssmax")
    )
    less_likely = difference("log_n less 1/sqrt(d)", "nll", {"trained": ("log_n", "standard")}, own)
    after = {"trained": "standard", "n": ends[1], **place}
    worse = difference("own law less log n, same weights", "accuracy", {"law": ("own", "log_n")}, after)
    free = {"trained": "ssmax_b", **place}
    falls = difference(f"factor at {ends[0]} less that at {ends[1]}", "own_factor", {"n": ends}, free)
    return Criterion(
        (
            Claim(f"trained at all lengths and under it, log n costs {_HARM} of the accuracy", harms),
            Claim("trained at all lengths and under it, log n makes the answer less likely", (less_likely,)),
            Claim("put on a model trained at all lengths without it, log n makes the answer worse", (worse,)),
            *_tilt(study, {"n": ends[1], **place}),
            Claim("a learned factor s ln n + b falls with n", (falls,)),
        )
    )


def _tilt(study: Context, place: dict[str, Any]) -> tuple[Claim, Claim]:
    """Claims on laws put in after training: tilt less variance, and accuracy of shuffled weights."""
    tilts, named = [], []
    for trained, law in (("one length", "log_n"), ("one length", "annealed"), ("standard", "log_n")):
        at = {"trained": trained, "law": law, **place}
        where = "all lengths" if trained == "standard" else study.train_length
        name = f"{law.replace('_', ' ')}, trained at {where}"
        weights = zip((2.0, -1.0, -1.0), ("shuffled", "as they are", "equal"), strict=True)
        terms = tuple((weight, {"weights": dealt, **at}) for weight, dealt in weights)
        tilts.append(Contrast(f"tilt less variance, {name}", "by_weights", terms))
        if trained == "one length":  # otherwise all classes are named
            shuffled = ((1.0, {"weights": "shuffled", **at}),)
            named.append(Contrast(f"shuffled, {name}", "by_weights", shuffled, _NAMED))
    return (
        Claim("the tilt costs more than the variance", tuple(tilts)),
        Claim(f"shuffled, the weights name {_NAMED} or more of the classes", tuple(named)),
    )
