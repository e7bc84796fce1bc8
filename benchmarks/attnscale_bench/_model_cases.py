# SPDX-License-Identifier: BSD-3-Clause
"""Cases that time a model that trains, through this package's attention and through PyTorch's."""

from __future__ import annotations

from typing import Any

from ._rows import Row, Target, Unit, skipped
from ._session import OURS, Session
from ._timing import Action

__all__ = ["training_step"]


def training_step(session: Session, name: str, *, target: Target) -> list[Row]:
    """A step of AdamW of the model of T15 on 32 rows of 64 tokens: PyTorch's time over ours."""
    what = "training step of the model of T15 faster than torch, 3 x 128, 32 x 64"
    if session.torch is None:
        return [skipped(name, what, Unit.RATIO, "torch is not installed", target)]
    measured = session.measure({OURS: _step("attnscale"), "torch": _step("torch")})
    return [measured.row(name, what, Unit.RATIO, lambda m: m.speedup("torch"), target, flops=0.0)]


def _step(implementation: str) -> Action:
    """The same weights, batches and masks for both."""
    import torch
    from attnscale.experiments import LengthGeneralizationConfig
    from attnscale.experiments._masked import masked_loss
    from attnscale.experiments._transformer import Mixing, Transformer

    config = LengthGeneralizationConfig()
    generator = torch.Generator().manual_seed(0)
    stream: Any = torch.randint(2, config.vocabulary, (100_000,), generator=generator)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        mix = Mixing(implementation=implementation)
        model = Transformer(config.vocabulary, config.layers, config.width, config.heads, mix)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.learning_rate)

    def step() -> object:
        optimizer.zero_grad(set_to_none=True)
        masked_loss(model, stream, config.batch, config.train_length, config.masked, generator).backward()
        return optimizer.step()

    return step
