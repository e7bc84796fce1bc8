# SPDX-License-Identifier: BSD-3-Clause
"""Cases that time the training of a model, through this package's attention and through PyTorch's."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from ._models import study_step
from ._process_cases import resident, run_python
from ._rows import Row, Target, Unit, skipped
from ._session import OURS, Session
from ._timing import Estimate

__all__ = ["hybrid_steps", "print_hybrid_step", "training_step"]


def training_step(session: Session, name: str, *, target: Target) -> list[Row]:
    """A step of AdamW of the model of experiment T15 on 32 rows of 64 tokens: PyTorch's time over ours."""
    what = "training step of the model of T15 faster than torch, 3 x 128, 32 x 64"
    if session.torch is None:
        return [skipped(name, what, Unit.RATIO, "torch is not installed", target)]
    measured = session.measure({OURS: study_step("attnscale"), "torch": study_step("torch")})
    return [measured.row(name, what, Unit.RATIO, lambda m: m.speedup("torch"), target)]


def hybrid_steps(session: Session, name: str) -> list[Row]:
    """A step of experiment T27's model on one text of 1024 tokens, by heads: time, and memory per process."""
    if session.torch is None or not Path("/proc/self/status").exists():
        why = "torch is not installed" if session.torch is None else "needs /proc"
        return [skipped(name, "training step of the model of T27, 1 x 1024", Unit.MILLISECONDS, why)]
    from studies.hybrids import Hybrids

    rows = []
    for variant in Hybrids().variants:
        script = f"from attnscale_bench._model_cases import print_hybrid_step; print_hybrid_step({variant!r})"
        seconds, grown = json.loads(run_python(session.threads, "-c", script))
        what = f"training step of the model of T27, 1 x 1024, {variant}"
        note = f"memory grows by {grown / 1e6:.1f} MB"
        key = f"{name}_{variant.replace(' + ', '_').replace(' ', '_')}"
        rows.append(Row(key, what, Unit.MILLISECONDS, Estimate(seconds, 0.0), seconds=seconds, note=note))
    return rows


def print_hybrid_step(variant: str, n: int = 1024, steps: int = 9) -> None:
    """Print [seconds, bytes]: the fastest of some steps, and the growth of this process at its peak."""
    from dataclasses import replace

    import torch
    from studies.hybrids import Hybrids, language_model
    from studies.models.transformer import token_loss

    study = replace(Hybrids(), n=n)
    torch.manual_seed(0)
    model = language_model(study, variant, study.vocabulary)
    optimizer = torch.optim.AdamW(model.parameters(), lr=study.learning_rate)
    texts = torch.randint(study.vocabulary, (1, n + 1))

    def step(tokens: Any) -> float:
        start = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        token_loss(model(tokens[:, :-1]), tokens[:, 1:]).backward()
        optimizer.step()
        return time.perf_counter() - start

    step(texts[:, :33])  # the first step includes imports, threads and AdamW's state
    before = resident("VmRSS")
    seconds = min(step(texts) for _ in range(steps))
    print(json.dumps([seconds, resident("VmHWM") - before]))
