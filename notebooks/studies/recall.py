# SPDX-License-Identifier: BSD-3-Clause
"""T27: recall of one of P pairs, by heads with a state of head_dim rows or by dot products."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from attnscale._base.checks import positive_int, shown
from attnscale.experiments import Claim, Criterion, Study, Training, Variable, difference
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from .models.attention import Trained
from .models.families import check_variant, effective_keys, mix_heads


@dataclass(frozen=True)
class Recall(Trained, Study):
    """How many pairs do heads of linear time recall, and is one head of dot products enough? (T27)

    One layer reads P pairs of a key and a value and names the value of one key. Its heads are dot-product,
    efficient, linear, or of two kinds.

    Variables: accuracy, nll, effective_keys.

    Attributes
    ----------
    variants : tuple of str
        Families of the heads, such as "dot + 3 efficient": dot, sparse, efficient, linear.
    pairs : tuple of int
        Numbers of pairs P, at most ``symbols``.
    head_dim : int
        Components of queries and keys.
    symbols : int
        Number of possible keys, and of possible values.
    width, batch, steps, tests : int
    learning_rate : float
    attention, device, dtype
        See ``Trained`` in models/attention.py.
    """

    claim = "T27"
    question = "how many pairs does efficient attention recall, and is one head of dot products enough?"

    variants: tuple[str, ...] = (
        "2 dot",
        "2 efficient",
        "dot + efficient",
        "2 linear",
        "4 efficient",
        "dot + 3 efficient",
    )
    pairs: tuple[int, ...] = (4, 8, 16, 32, 64)
    head_dim: int = 8
    symbols: int = 64
    width: int = 64
    batch: int = 64
    steps: int = 1500
    tests: int = 2000
    learning_rate: float = 3e-3

    def __post_init__(self) -> None:
        for name in ("head_dim", "symbols", "width", "batch", "steps", "tests"):
            positive_int(name, getattr(self, name))
        for variant in self.variants:
            heads = check_variant("variants", variant)
            if self.width % len(heads):
                raise ValueError(f"width must be a multiple of the heads, got {self.width} and {variant!r}")
        if not all(2 <= pairs <= self.symbols for pairs in self.pairs):
            raise ValueError(f"pairs must be between 2 and symbols={self.symbols}, got {shown(self.pairs)}")
        super().__post_init__()

    @classmethod
    def reduced(cls) -> Recall:
        """A small run for tests, of some seconds."""
        return cls(variants=("2 dot", "2 efficient", "dot + efficient"), pairs=(32,), steps=600)

    def cells(self) -> dict[str, tuple[Any, ...]]:
        """Axes of the models: families of the heads, and number of pairs."""
        return {"variant": self.variants, "pairs": self.pairs}

    def variables(self) -> dict[str, Variable]:
        """Variables measured for each model."""
        return {
            "accuracy": Variable({}, "", "share of the values that are recalled"),
            "nll": Variable({}, "nat", "negative log-likelihood of the value"),
            "effective_keys": Variable({}, "", "mean of exp(entropy), of the sharpest head of each row"),
        }

    def measure(self, cell: dict[str, Any], seed: int, training: Training) -> dict[str, NDArray[np.float64]]:
        """Train one model and test it on new pairs."""
        families = check_variant("variants", cell["variant"])
        with training.fork("weights"):
            model = _Recall(self, families)
        model.to(training.device)
        generator = training.generator("batches")

        def loss(step: int) -> Tensor:
            drawn = _draw(self, cell["pairs"], self.batch, generator)
            *given, label = (each.to(training.device) for each in drawn)
            return functional.cross_entropy(model(*given), label)

        training.fit(model, loss, steps=self.steps, learning_rate=self.learning_rate)
        drawn = _draw(self, cell["pairs"], self.tests, training.generator("test"))
        *given, label = (each.to(training.device) for each in drawn)
        with torch.no_grad():
            logits = model(*given)
            right = (logits.argmax(-1) == label).double().mean()
            nll = functional.cross_entropy(logits, label)
            found = (right, nll, model.sharpest(*given).mean())
        return {name: np.asarray(float(each)) for name, each in zip(self.variables(), found, strict=True)}

    def criterion(self) -> Criterion:
        """Claims at P = 4 head_dim pairs, in nats, which do not saturate where all answers are right."""
        place = {"pairs": 4 * self.head_dim}
        fewer = difference("2 efficient less 2 dot", "nll", {"variant": ("2 efficient", "2 dot")}, place)
        kinds = {"variant": ("2 dot", "dot + efficient")}
        enough = difference("2 dot less dot + efficient", "nll", kinds, place, least=-_ALLOWED)
        return Criterion(
            (
                Claim("efficient heads do not recall 4 d_k pairs as heads of dot products do", (fewer,)),
                Claim("one head of dot products beside an efficient one is enough", (enough,)),
            )
        )


class _Recall(torch.nn.Module):
    """A model whose tokens are pairs, sums of the embeddings of key and value; the query is a key."""

    def __init__(self, study: Recall, families: tuple[str, ...]) -> None:
        super().__init__()
        self.families, self.implementation = families, study.attention
        heads, width = len(families), study.width
        self.keys, self.values = (torch.nn.Embedding(study.symbols, width) for _ in range(2))
        self.query = torch.nn.Linear(width, heads * study.head_dim)
        self.key = torch.nn.Linear(width, heads * study.head_dim)
        self.value = torch.nn.Linear(width, width)
        self.answer = torch.nn.Linear(width, study.symbols)

    def forward(self, asked: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Logits of the value, (batch, symbols), of the query key `asked`, (batch,), among (batch, pairs)."""
        pairs = self.keys(keys) + self.values(values)
        query, key = self.rows(asked, pairs)
        value = _split(self.value(pairs), len(self.families))
        read = mix_heads(query, key, value, self.families, implementation=self.implementation)
        logits: Tensor = self.answer(read.transpose(1, 2).flatten(1))
        return logits

    def rows(self, asked: Tensor, pairs: Tensor) -> tuple[Tensor, Tensor]:
        """Queries and keys of all heads, for the query keys and the pairs."""
        heads = len(self.families)
        return _split(self.query(self.keys(asked)[:, None]), heads), _split(self.key(pairs), heads)

    def sharpest(self, asked: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Effective keys of the sharpest head, (batch,)."""
        query, key = self.rows(asked, self.keys(keys) + self.values(values))
        return effective_keys(query, key, self.families, causal=False).amin((1, 2))


def _split(x: Tensor, heads: int) -> Tensor:
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def _draw(
    study: Recall, pairs: int, batch: int, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The query key, keys and values of the pairs, and the answer."""
    keys = torch.rand(batch, study.symbols, generator=generator).argsort(-1)[:, :pairs]
    values = torch.randint(study.symbols, (batch, pairs), generator=generator)
    every, chosen = torch.arange(batch), torch.randint(pairs, (batch,), generator=generator)
    return keys[every, chosen], keys, values, values[every, chosen]


_ALLOWED = 0.02  # nats that a hybrid may lose against dot products
