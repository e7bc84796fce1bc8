# SPDX-License-Identifier: BSD-3-Clause
"""The smallest study: fits of a line, in two cells."""

from dataclasses import dataclass

import torch
from attnscale.experiments import Claim, Criterion, Study, Variable, _run, _train, _training, difference

#: Sizes of the smallest model of text.
TINY_TEXT = {"layers": 1, "width": 8, "heads": 2, "vocabulary": 300, "steps": 4, "batch": 2, "masked": 2}
TINY_TEXT |= {"train_length": 8, "lengths": (8, 16, 32), "clip": 6, "most_bytes": 200_000}
#: Parts of the frame that tests call.
units, Loop, Checkpoints = _run.units, _train.Loop, _training.Checkpoints


@dataclass(frozen=True)
class Tiny(Study):
    """A line of three features."""

    claim = "T0"
    question = "does a line fit?"

    steps: int = 12
    die_at: int = -1  # the step before which the process is killed

    @classmethod
    def reduced(cls):
        return cls(steps=4)

    def cells(self):
        return {"slope": (1.0, -2.0)}

    def variables(self):
        return {
            "last": Variable({}, "", "loss of the last step"),
            "loss": Variable({"step": tuple(range(self.steps))}, "nat"),
            "weight": Variable({"feature": (0, 1, 2)}),
        }

    def measure(self, cell, seed, training):
        with training.fork("weights"):
            model = torch.nn.Linear(3, 1)

        def loss(step):
            x = torch.randn(8, 3, generator=training.generator("data"))
            return (model(x) - cell["slope"] * x.sum(-1, keepdim=True)).square().mean()

        observe = {"observe": lambda step: {"norm": model.weight.norm()}}
        history = training.fit(model, loss, steps=self.steps, learning_rate=0.1, **observe)
        after = training.fit(model, loss, steps=3, learning_rate=0.01, name="after")
        training.note(rows=8)
        return {"loss": history.loss, "weight": model.weight.detach()[0], "last": after.loss[-1]}

    def criterion(self):
        flat = difference("-2 less 1", "last", {"slope": (-2.0, 1.0)}, {})
        return Criterion((Claim("a flat line fits sooner", (flat,)),))
