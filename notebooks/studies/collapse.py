# SPDX-License-Identifier: BSD-3-Clause
"""Beyond the articles: rows collapse under too large learning rates, without a guard and with three."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Self

import numpy as np
import torch
from attnscale._base.checks import choose
from attnscale.experiments import Cells, Claim, Criterion, History, Study, Training, Variable, difference
from attnscale.torch import attention
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from .data.tags import tagged
from .models.attention import BACKENDS, Trained, attend_rows
from .models.spectral import reparametrise
from .models.transformer import Transformer, rotate, token_loss

_GUARDS = ("none", "qk_norm", "sigma_reparam", "entropy_floor")
_POINTS = 20  # points of a stored curve
_SHARP = 0.1  # a row has collapsed if its entropy is below this share of ln n


@dataclass(frozen=True)
class Collapse(Trained, Study):
    """Collapse of entropy under large learning rates, without a guard and with three of them.

    A causal transformer learns the next token of Python source, with a constant, too large learning rate and
    no warm-up. Its queries and keys are left alone or normalised; or its weights are reparametrised by their
    spectral norm; or the loss penalises rows whose entropy is below a floor.

    Attributes
    ----------
    guards : tuple of str
        Guards of the entropy: nothing, normalised queries and keys, weights reparametrised by their spectral
        norm, or a term of the loss.
    learning_rates : tuple of float
        Constant learning rates, without warm-up or gradient clipping.
    layers, width, heads, n : int
        Sizes of the model, and tokens of its texts.
    steps, batch, test : int
        Steps, sequences a step, and sequences of the test.
    floor : float
        Rows below this share of the entropy of equal weights are penalised.
    floor_weight : float
        Weight of the penalty, per nat, in the loss.
    attention, device, dtype
        See ``Trained`` in models/attention.py.
    """

    claim = "collapse"
    question = (
        "Do rows of attention collapse when the learning rate is too large, and does holding them help?"
    )

    guards: tuple[str, ...] = _GUARDS
    learning_rates: tuple[float, ...] = (0.003, 0.01, 0.03, 0.1)
    layers: int = 3
    width: int = 64
    heads: int = 4
    n: int = 64
    steps: int = 400
    batch: int = 16
    test: int = 64
    floor: float = 0.3
    floor_weight: float = 1.0

    def __post_init__(self) -> None:
        for each in self.guards:
            choose("guards", each, _GUARDS)
        for name in ("layers", "width", "heads", "n", "batch", "test"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.steps < _POINTS or self.steps % _POINTS:
            raise ValueError(f"steps must be a multiple of {_POINTS}, got {self.steps}")
        if self.width % (2 * self.heads):
            raise ValueError(f"width must be a multiple of 2 * heads = {2 * self.heads}, got {self.width}")
        if not 0 <= self.floor < 1:
            raise ValueError(f"floor must be at least 0 and below 1, got {self.floor}")
        super().__post_init__()

    @classmethod
    def reduced(cls) -> Self:
        """A small run: two guards, one learning rate, a smaller model."""
        return cls(
            guards=("none", "entropy_floor"), learning_rates=(0.03,), layers=2, width=32, steps=100, test=16
        )

    def cells(self) -> Cells:
        """Axes of the models."""
        return {"guard": self.guards, "learning_rate": self.learning_rates}

    def variables(self) -> Mapping[str, Variable]:
        """Variables measured for each model."""
        every = self.steps // _POINTS
        seen = {"step": tuple(range(0, self.steps + 1, every))}
        layer = {"layer": tuple(range(self.layers))}
        text = {"text": tuple(range(self.test))}
        middle = {"middle": tuple(every * (i + 0.5) for i in range(_POINTS))}
        return {
            "test_loss": Variable(
                {}, "nat", "cross-entropy of new text at the end; NaN where it is not finite"
            ),
            "diverged": Variable(
                {}, "", "1 if the loss was not finite, or ends no better than the tokens' shares"
            ),
            "entropy": Variable(seen | layer, "nat", "mean entropy of the rows, on new text"),
            "collapsed": Variable(
                seen | layer, "", f"share of rows below {_SHARP:g} of an even row's entropy"
            ),
            "loss": Variable(middle, "nat", "loss of training, with its penalty"),
            "test_loss_by_text": Variable(text, "nat", "test_loss of each text"),
            "text_file": Variable(
                text, "", "place of the module that the text begins in, among test_modules"
            ),
        }

    def measure(self, cell: dict[str, Any], seed: int, training: Training) -> dict[str, Any]:
        """Train one model and observe its rows during training."""
        bench = _GuardedModel(self, cell["guard"], training)
        history = training.fit(
            bench.model,
            bench.loss,
            steps=self.steps,
            learning_rate=cell["learning_rate"],
            schedule="constant",
            clip=None,
            observe=bench.look,
            observe_every=self.steps // _POINTS,
        )
        seen = {name: _padded(values) for name, values in history.observed.items()}
        last = float(seen["test_loss"][-1])
        is_lost = history.diverged or not last < bench.of_shares()
        by_layer = {
            name: np.stack([seen[f"{name}_{layer}"] for layer in range(self.layers)], axis=-1)
            for name in ("entropy", "collapsed")
        }
        lost = np.full(self.test, np.nan)
        return {
            "diverged": float(is_lost),
            "test_loss": last,
            **by_layer,
            "loss": _curve(self, history),
            "test_loss_by_text": bench.by_text() if np.isfinite(last) else lost,
            "text_file": bench.probe_files.astype(np.float64),
        }

    def criterion(self) -> Criterion:
        """The floor lowers the loss on new text at one learning rate or more."""
        guards = {"guard": ("none", "entropy_floor")}
        contrasts = tuple(
            difference(f"nothing less entropy floor, rate {r:g}", "test_loss", guards, {"learning_rate": r})
            for r in self.learning_rates
        )
        return Criterion((Claim("an entropy floor lowers the loss", contrasts, needs="any"),))


class _GuardedModel:
    """A model with one guard, its loss, and observations of its rows."""

    def __init__(self, study: Collapse, guard: str, training: Training) -> None:
        self.study, self.guard, self.training = study, guard, training
        parts = [tagged(False), tagged(True)]
        training.note(**parts[0].facts, **parts[1].facts)
        self.data = [torch.from_numpy(part.tokens) for part in parts]
        with training.fork("weights"):
            self.model = Transformer(
                *(parts[0].vocabulary, study.layers, study.width, study.heads),
                mix=self._mix,
                qk_norm=guard == "qk_norm",
            ).to(training.device)
            if guard == "sigma_reparam":
                reparametrise(self.model.blocks)
        self.entropies: list[Tensor] = []
        self.watched = guard == "entropy_floor"
        even = torch.arange(1, study.n + 1, dtype=torch.float32).log()
        self.even = even.to(training.device)
        probe = torch.Generator().manual_seed(0)  # the same texts for every model
        starts = self._starts(1, study.test, probe)
        self.probe = self._texts(1, starts)
        self.probe_files = parts[1].files[starts[:, 0].numpy()]

    def _mix(self, query: Tensor, key: Tensor, value: Tensor, layer: int) -> Tensor:
        options: dict[str, Any] = {"is_causal": True, "backend": BACKENDS[self.study.attention]}
        query, key = rotate(query), rotate(key)
        if not self.watched:
            return attention(query, key, value, **options)
        output, entropy = attend_rows(query, key, value, **options)
        self.entropies.append(entropy)
        return output

    def _starts(self, held_out: int, size: int, generator: torch.Generator) -> Tensor:
        return torch.randint(self.data[held_out].numel() - self.study.n - 1, (size, 1), generator=generator)

    def _texts(self, held_out: int, starts: Tensor) -> Tensor:
        """Texts of n + 1 tokens: one more than the model reads, as the last is only a target."""
        return self.data[held_out][starts + torch.arange(self.study.n + 1)].to(self.training.device)

    def loss(self, step: int) -> Tensor:
        """The loss on the next batch."""
        self.entropies.clear()
        tokens = self._texts(0, self._starts(0, self.study.batch, self.training.generator("text")))
        loss = token_loss(self.model(tokens[:, :-1]), tokens[:, 1:])
        return loss if self.guard != "entropy_floor" else loss + self.study.floor_weight * self.penalty()

    def penalty(self) -> Tensor:
        """Mean shortfall of the entropies of the last call below the floor, in nats."""
        below = [(self.study.floor * self.even - entropy).relu().mean() for entropy in self.entropies]
        return torch.stack(below).mean()

    @torch.no_grad()
    def look(self, step: int = 0) -> dict[str, float]:
        """Loss on new text, and mean entropy and share of collapsed rows of each layer."""
        self.entropies.clear()
        before, self.watched = self.watched, True
        self.model.eval()
        loss = token_loss(self.model(self.probe[:, :-1]), self.probe[:, 1:])
        self.model.train()
        self.watched = before
        found = {"test_loss": float(loss)}
        for layer, entropy in enumerate(self.entropies):
            # The first row has one key and cannot collapse.
            sharp = (entropy < _SHARP * self.even)[..., 1:].double().mean()
            found |= {f"entropy_{layer}": float(entropy.mean()), f"collapsed_{layer}": float(sharp)}
        return found

    @torch.no_grad()
    def by_text(self) -> NDArray[np.float64]:
        """The loss on each text of the test."""
        self.entropies.clear()
        self.model.eval()
        logits, targets = self.model(self.probe[:, :-1]), self.probe[:, 1:]
        self.model.train()
        losses = functional.cross_entropy(logits.transpose(1, 2), targets, reduction="none")
        return np.asarray(losses.double().mean(1).cpu().numpy())

    def of_shares(self) -> float:
        """Loss on new text of a model that knows only the frequencies of tokens."""
        counts = torch.bincount(self.data[0], minlength=int(self.data[1].max()) + 1).double() + 1
        shares = (counts / counts.sum()).log()
        return -float(shares[self.probe[:, 1:].cpu()].mean())


def _padded(values: Any) -> Any:
    """Values of all points of a curve, NaN after the end of training."""
    return np.concatenate((values, np.full(_POINTS + 1 - len(values), np.nan)))


def _curve(study: Collapse, history: History) -> list[float]:
    edges = np.linspace(0, study.steps, _POINTS + 1).astype(int)
    return [float(history.loss[a:b].mean()) for a, b in pairwise(edges)]
