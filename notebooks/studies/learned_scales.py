# SPDX-License-Identifier: BSD-3-Clause
"""T5: effects of a learned scale, one for all heads or one for each."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from attnscale._base.checks import choose
from attnscale.experiments import (
    Cells,
    Claim,
    Contrast,
    Criterion,
    History,
    Study,
    Training,
    Variable,
    difference,
)

from .data.scale_tasks import OUTPUTS, Recall, ScaleTask, Tagging
from .models.attention import Trained
from .models.scaled_heads import SCALES, Heads

_TASKS = ("recall", "tagging")


class _Kind(NamedTuple):
    """Treatment of the scale in a model."""

    scale: str  # one of SCALES
    qk_norm: bool = False
    has_decay: bool = False
    cosine: int | None = None  # factor of the cosine for a fixed scale; by default sqrt(head_dim)
    grows: bool = False  # with ln n, from its value at the training length


_MODELS = {
    **{scale: _Kind(scale) for scale in SCALES},
    **{f"{scale}-norm": _Kind(scale, qk_norm=True) for scale in ("fixed", "one", "per_head")},
    **{f"{scale}-decay": _Kind(scale, has_decay=True) for scale in ("fixed", "one", "per_head")},
}
#: The models of the run "norm" beside those with a learned scale.
_SWEEP = {f"{cosine}-norm": _Kind("fixed", qk_norm=True, cosine=cosine) for cosine in (4, 8, 16, 32, 64)}
_GROWING = {"per_head_ln_n-norm": _Kind("per_head", qk_norm=True, grows=True)}
_KNOWN = {**_MODELS, **_SWEEP, **_GROWING}
_FIRST = 100  # steps whose gradient norms are stored
_POINTS = 40  # points of a stored curve


@dataclass(frozen=True)
class LearnedScales(Trained, Study):
    """Effects of a learned scale: claim T5.

    Two tasks, each with a sharp and a broad half: *recall*, where half of the answer is the value of the one
    key that matches and half the average of all values, and *tagging* of names in Python source, where some
    tags depend on one neighbour and some on distant brackets. The model is one layer of attention; its scale
    is fixed at 1/sqrt(head_dim), learned as one number, or learned for each head; queries and keys are
    normalised or not. The unscaled models have scale 1, with the usual initial weights or with those of T5.
    ``LearnedScales.normalised()`` compares learned scales with fixed factors of 4 to 64 on normalised queries
    and keys.

    Attributes
    ----------
    tasks, models : tuple of str
        Tasks, and treatments of the scale: fixed, learned as one number, or learned for each head; unscaled,
        or with the initial weights of T5 in place of the scale. "-norm" divides queries and keys by their
        root mean square, "-decay" has weight decay. "4-norm" to "64-norm" multiply the cosine by that number;
        the learned scales of "per_head_ln_n-norm" grow with ln n.
    weight_decay : float
        Weight decay of AdamW for "-decay"; scales never decay.
    heads, head_dim : int
    n, n_long : int
        Keys in training, and in the test on longer texts.
    steps, tuning_steps : int
        Steps of training, and of tuning only the scales afterwards.
    batch, test : int
        Sequences of a step, and of the test.
    learning_rate : float
    attention, device, dtype
        See ``Trained`` in models/attention.py.
    """

    claim = "T5"
    question = "Does a scale that is learned, for all heads or for each, change what a model learns?"

    tasks: tuple[str, ...] = _TASKS
    models: tuple[str, ...] = tuple(_MODELS)
    weight_decay: float = 1.0
    heads: int = 2
    head_dim: int = 16
    n: int = 32
    n_long: int = 128
    steps: int = 1500
    tuning_steps: int = 200
    batch: int = 32
    test: int = 2000
    learning_rate: float = 0.01

    def __post_init__(self) -> None:
        for name, known in (("tasks", _TASKS), ("models", tuple(_KNOWN))):
            for each in getattr(self, name):
                choose(name, each, known)
        for name in ("heads", "head_dim", "n", "n_long", "tuning_steps", "batch", "test"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.steps < _FIRST:
            raise ValueError(f"steps must be at least {_FIRST}, got {self.steps}")
        super().__post_init__()

    @classmethod
    def normalised(cls) -> Self:
        """The run "norm": normalised rows, five fixed factors and learned scales."""
        return cls(tasks=("recall",), models=(*_SWEEP, "one-norm", "per_head-norm", *_GROWING))

    @classmethod
    def reduced(cls) -> Self:
        """A small run: recall only, four models, with fewer and smaller keys."""
        return cls(
            tasks=("recall",),
            models=("fixed", "per_head", "fixed-norm", "per_head-norm"),
            head_dim=8,
            n=16,
            n_long=64,
            steps=500,
            tuning_steps=20,
            learning_rate=0.02,
        )

    def cells(self) -> Cells:
        """Axes of the models."""
        return {"task": self.tasks, "model": self.models}

    def variables(self) -> Mapping[str, Variable]:
        """Variables measured for each model."""
        length, output = {"n": (self.n, self.n_long)}, {"output": OUTPUTS}
        head = {"head": tuple(range(self.heads))}
        middle = (np.arange(_POINTS) + 0.5) * self.steps / _POINTS
        return {
            "error": Variable(
                length | output, "", "mean squared error (recall), error rate (tagging), at each n"
            ),
            "tuned_error": Variable(
                length | output, "", "the same after tuning the heads' scales alone at that n"
            ),
            "scale": Variable(
                head, "", "multiplies q . k, or with qk_norm their cosine; sharpest head first"
            ),
            "keys": Variable(head, "", "effective keys e^H, mean over rows"),
            "spread": Variable(head, "", "standard deviation of the scores of a row"),
            "product": Variable(head, "", "norm of W_q^T W_k"),
            "tuned_scale": Variable(length | head, "", "scales after the tuning, largest first"),
            "loss": Variable({"step": tuple(middle.tolist())}, "", "loss of training"),
            "gradient_norm": Variable({"first_step": tuple(range(_FIRST))}, "", "norm of the gradient"),
        }

    def measure(self, cell: dict[str, Any], seed: int, training: Training) -> dict[str, Any]:
        """Train one model, test it, tune its scales alone at both lengths, and test it again."""
        bench = _ScaledModel(self, cell, training)
        kind = _KNOWN[cell["model"]]
        decayed = {"params": bench.weights, "weight_decay": self.weight_decay if kind.has_decay else 0.0}
        is_learned = kind.scale in ("one", "per_head")
        free = {"params": [bench.heads.factor] if is_learned else [], "weight_decay": 0.0}
        history = bench.fit(self.n, [decayed, free], self.steps, "fit")
        found: dict[str, Any] = {"error": bench.errors(), **bench.of_heads()}
        trained, tuned = bench.heads.factor.detach().clone(), []
        for n in (self.n, self.n_long):
            bench.heads.factor = torch.nn.Parameter(trained)
            factors = {"params": [bench.heads.free()], "weight_decay": 0.0}
            bench.fit(n, [factors], self.tuning_steps, f"tune-{n}")
            tuned.append((bench.test(n), bench.heads.scales(n).sort(descending=True).values.cpu()))
        found["tuned_error"], found["tuned_scale"] = (torch.stack(part) for part in zip(*tuned, strict=True))
        edges = np.linspace(0, self.steps, _POINTS + 1).astype(int)
        found["loss"] = [history.loss[a:b].mean() for a, b in pairwise(edges)]
        found["gradient_norm"] = history.gradient_norm[:_FIRST]
        return {name: np.asarray(found[name]) for name in self.variables()}

    def criterion(self) -> Criterion:
        """Claims on recall, sharp output, no decay: a scale per head gains with normalised rows only.

        With fixed factors, learned scales are compared with each of them.
        """
        if set(_SWEEP) <= set(self.models):
            return _swept(self)
        place = {"task": "recall", "output": "sharp", "n": self.n}
        plain, normed = ({"model": pair} for pair in (("per_head", "fixed"), ("fixed-norm", "per_head-norm")))
        nothing = difference("one a head less fixed, no norm", "error", plain, place, least=-_GAIN)
        gain = difference("fixed less one a head, normalised", "error", normed, place)
        return Criterion(
            (
                Claim("a learned scale for each head adds nothing to the projections", (nothing,)),
                Claim("where queries and keys are normalised, it lowers the error", (gain,)),
            )
        )


class _ScaledModel:
    """One model with its task: training, tests, and measurements of its heads."""

    def __init__(self, study: LearnedScales, cell: dict[str, Any], training: Training) -> None:
        self.study, self.training = study, training
        dim = study.head_dim
        kind = _KNOWN[cell["model"]]
        self.task: ScaleTask = Recall(dim, study.n) if cell["task"] == "recall" else Tagging(2 * dim)
        training.note(**getattr(self.task, "facts", {}))
        with training.fork("weights"):
            self.model = self.task.model(
                heads=study.heads,
                head_dim=dim,
                scale=kind.scale,
                qk_norm=kind.qk_norm,
                start=None if kind.cosine is None else kind.cosine / math.sqrt(dim),
                law=f"log_n(base={study.n})" if kind.grows else "standard",
                implementation=study.attention,
            ).to(training.device)
        self.heads: Heads = self.model.heads
        self.weights = [each for each in self.model.parameters() if each is not self.heads.factor]

    def fit(self, n: int, groups: list[dict[str, Any]], steps: int, name: str) -> History:
        """Train the groups of parameters on n keys."""
        generator = self.training.generator(name)

        def loss(step: int) -> torch.Tensor:
            inputs, targets = self._batch(n, self.study.batch, generator)
            return self.task.loss(self.model(inputs), targets)

        return self.training.fit(
            self.model,
            loss,
            steps=steps,
            learning_rate=self.study.learning_rate,
            warmup=steps // 20,
            parameters=[group for group in groups if group["params"]],
            name=name,
        )

    @torch.no_grad()
    def test(self, n: int) -> torch.Tensor:
        """Sharp and broad error on n keys, (2,), on data that are the same for all models."""
        inputs, targets = self._batch(n, self.study.test, torch.Generator().manual_seed(n), held_out=True)
        return self.task.errors(self.model(inputs), targets).cpu()

    def errors(self) -> torch.Tensor:
        """Sharp and broad errors at both lengths, (2, 2)."""
        return torch.stack([self.test(n) for n in (self.study.n, self.study.n_long)])

    @torch.no_grad()
    def of_heads(self) -> dict[str, torch.Tensor]:
        """Measurements of each head at the training length, the sharpest head first."""
        inputs, _ = self._batch(self.study.n, 200, torch.Generator().manual_seed(0), held_out=True)
        read = self.model.read(inputs)
        self.heads.watched = True
        self.heads(*read)
        self.heads.watched = False
        assert self.heads.entropy is not None
        keys = self.heads.entropy.exp().mean((0, 2))
        found = {
            "keys": keys,
            "scale": self.heads.scales(self.study.n),
            "spread": self.heads.spread(*read),
            "product": self.heads.products,
        }
        return {name: values[keys.argsort()].cpu() for name, values in found.items()}

    def _batch(self, n: int, size: int, generator: torch.Generator, *, held_out: bool = False) -> Any:
        inputs, targets = self.task.batch(n, size, generator, held_out=held_out)
        device = self.training.device
        moved = inputs.to(device) if isinstance(inputs, torch.Tensor) else tuple(x.to(device) for x in inputs)
        return moved, targets.to(device)


_GAIN = 0.005  # in the error, which is 1 for the answer 0; a smaller gain counts as none


def _swept(study: LearnedScales) -> Criterion:
    """Claims on normalised rows, both outputs: a scale per head against each fixed factor, and s ln n."""
    near, far = study.n, study.n_long

    def less(one: str, other: str, n: int, name: str) -> Contrast:
        """Error of one model less that of another, mean over both outputs."""
        signs = ((0.5, one), (-0.5, other))
        terms = tuple(
            (weight, {"task": "recall", "model": model, "output": output, "n": n})
            for weight, model in signs
            for output in OUTPUTS
        )
        return Contrast(f"{name}, {n} keys", "error", terms, _GAIN)

    fixed = {
        n: tuple(
            less(model, "per_head-norm", n, f"fixed {kind.cosine} less one a head")
            for model, kind in _SWEEP.items()
        )
        for n in (near, far)
    }
    grown = less("per_head-norm", "per_head_ln_n-norm", far, "one a head less one a head times ln n")
    gain = f"a learned scale for each head gains {_GAIN} of the error over every fixed factor"
    return Criterion(
        (
            Claim(f"where queries and keys are normalised, {gain}", fixed[near]),
            Claim(f"among {far} keys, after training among {near}, {gain}", fixed[far]),
            Claim(f"among {far} keys s ln n gains {_GAIN} over s", (grown,)),
        )
    )
