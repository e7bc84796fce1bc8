# SPDX-License-Identifier: BSD-3-Clause
"""The smallest study, and the smallest function of a sweep."""

from dataclasses import dataclass
from typing import Any

import attnscale as at


def entropy(n: int, law: str, rng: Any) -> Any:
    """Entropies of random heads."""
    query, key = rng.standard_normal((2, 3, n, 8))
    return at.attention_entropy(query, key, scale=law)


def study() -> Any:
    """The class of a study, made where PyTorch is wanted."""
    import torch
    from attnscale.experiments import Claim, Criterion, Study, Variable, difference

    @dataclass(frozen=True)
    class Line(Study):
        """Fits of a line with three features."""

        claim = "F0"
        question = "does a line fit?"
        steps: int = 40

        @classmethod
        def reduced(cls) -> Any:
            return cls()

        def cells(self) -> Any:
            return {"slope": (1.0, -2.0)}

        def variables(self) -> Any:
            return {"loss": Variable({"step": tuple(range(self.steps))}, "nat"), "last": Variable({})}

        def measure(self, cell: Any, seed: Any, training: Any) -> Any:
            with training.fork("weights"):
                model = torch.nn.Linear(3, 1)

            def loss(step: int) -> Any:
                x = torch.randn(8, 3, generator=training.generator("data"))
                return (model(x) - cell["slope"] * x.sum(-1, keepdim=True)).square().mean()

            first = training.fit(model, loss, steps=self.steps, learning_rate=0.1)
            after = training.fit(model, loss, steps=10, learning_rate=0.01, name="after")
            return {"loss": first.loss, "last": after.loss[-1]}

        def criterion(self) -> Any:
            flat = difference("-2 less 1", "last", {"slope": (-2.0, 1.0)}, {})
            return Criterion((Claim("a flat line fits sooner", (flat,)),))

    return Line
