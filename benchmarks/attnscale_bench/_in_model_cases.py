# SPDX-License-Identifier: BSD-3-Clause
"""Cases of calls between operators of other libraries, whose threads then wait awake on the same cores."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec

import attnscale as at
import numpy as np

from ._machine import MemoryRead
from ._models import jax_gpt_step, torch_gpt
from ._peers import Torch, limit_threads
from ._process_cases import run_python
from ._rows import Row, Target, Unit, skipped
from ._session import OURS, Measured, Session, random_heads
from ._timing import Action, Estimate, Samples, estimate

__all__ = [
    "behind_ratio",
    "decode_behind_operator",
    "gpt_inference",
    "gpt_steps",
    "gpt_steps_in_jax",
    "numpy_behind_product",
    "print_measured",
    "steps_behind_operator",
]

OPERATOR = "operator"
#: Candidates that do not run behind the operator.
ALONE = ("alone", "read")
_NO_TORCH = "torch is not installed"


def steps_behind_operator(session: Session, name: str, *, targets: dict[int, Target]) -> list[Row]:
    """Forward and backward behind an operator of PyTorch: the time with its attention over ours."""
    rows = []
    for n, target in targets.items():
        what = f"forward and backward behind an operator faster than torch, 8 x {n} x 64"
        if session.torch is None:
            rows.append(skipped(f"{name}_{n}", what, Unit.RATIO, _NO_TORCH, target))
            continue
        torch, tensors = session.torch, session.torch.tensors(*random_heads(8, n, 64))
        calls = {OURS: torch.step(at.torch.attention, tensors), "torch": torch.step(torch.fused, tensors)}
        measured = session.measure(_behind(_sum_of_tensors(torch), calls))
        rows.append(measured.row(f"{name}_{n}", what, Unit.RATIO, _speedup_behind, target))
    return rows


def decode_behind_operator(session: Session, name: str, *, targets: tuple[Target, Target]) -> list[Row]:
    """Decoding behind an operator of PyTorch: share of the read bandwidth, and PyTorch's time over ours."""
    keys = 65536
    what = f"decode behind an operator, 8 x (1, {keys}) x 64, of read bandwidth"
    against = "  faster than torch"
    if session.torch is None:
        return [
            skipped(name, what, Unit.SHARE, _NO_TORCH, targets[0]),
            skipped(f"{name}_torch", against, Unit.RATIO, _NO_TORCH, targets[1]),
        ]
    rng = np.random.default_rng(0)
    key_value = rng.standard_normal((2, 8, keys, 64), np.float32)
    tensors = session.torch.tensors(rng.standard_normal((8, 1, 64), np.float32), *key_value)
    calls: dict[str, Action] = {
        OURS: lambda: at.torch.attention(*tensors),
        "torch": partial(session.torch.fused, *tensors),
    }
    candidates = _behind(_sum_of_tensors(session.torch), calls)
    measured = session.measure({**candidates, "read": MemoryRead(key_value, session.threads)})
    share = partial(behind_ratio, "read", OURS)
    return [
        measured.row(name, what, Unit.SHARE, share, targets[0]),
        measured.row(f"{name}_torch", against, Unit.RATIO, _speedup_behind, targets[1]),
    ]


def _sum_of_tensors(torch: Torch) -> Action:
    """An operator long enough for PyTorch to share among its threads."""
    big = torch.module.ones(2**18)
    return lambda: big + big


def _behind(operator: Action, calls: Mapping[str, Action]) -> dict[str, Action]:
    """The calls, each behind the operator, and the operator alone."""

    def both(call: Action) -> object:
        operator()
        return call()

    return {**{who: partial(both, call) for who, call in calls.items()}, OPERATOR: operator}


def behind_ratio(over: str, under: str, measured: Measured) -> Estimate:
    """Time of one candidate over that of another, round by round, less the operator's where it ran."""
    wall = measured.samples.wall
    operator = wall[OPERATOR]

    def calls(who: str) -> list[float]:
        if who in ALONE:
            return wall[who]
        return [both - before for both, before in zip(wall[who], operator, strict=True)]

    return estimate([a / b for a, b in zip(calls(over), calls(under), strict=True)])


def _speedup_behind(measured: Measured) -> Estimate:
    return behind_ratio("torch", OURS, measured)


def gpt_steps(session: Session, name: str, *, targets: dict[tuple[int, int], Target]) -> list[Row]:
    """A training step of a small GPT in PyTorch: the time with its attention over ours."""
    return [_gpt(session, name, "training step", 0, size, target) for size, target in targets.items()]


def gpt_inference(session: Session, name: str, *, targets: dict[tuple[int, int], Target]) -> list[Row]:
    """All logits of a small GPT in PyTorch without gradients: the time with its attention over ours."""
    return [_gpt(session, name, "inference", 1, size, target) for size, target in targets.items()]


def _gpt(session: Session, name: str, what: str, part: int, size: tuple[int, int], target: Target) -> Row:
    batch, n = size
    name, what = f"{name}_{batch}_{n}", f"{what} of a small GPT faster than torch, {batch} x {n}"
    if session.torch is None:
        return skipped(name, what, Unit.RATIO, _NO_TORCH, target)
    attends = {OURS: at.torch.attention, "torch": session.torch.fused}
    calls = {
        who: torch_gpt(session.torch.module, partial(attend, is_causal=True), batch, n)[part]
        for who, attend in attends.items()
    }
    return session.measure(calls).row(name, what, Unit.RATIO, lambda m: m.speedup("torch"), target)


# ---- in a process without PyTorch ---------------------------------------------------------------

# Once attnscale has seen a tensor, all calls of the process run on PyTorch's threads.


def gpt_steps_in_jax(session: Session, name: str, *, targets: dict[tuple[int, int], Target]) -> list[Row]:
    """A compiled training step of the small GPT in JAX: the time with its attention over ours."""
    rows = []
    for (batch, n), target in targets.items():
        row, what = f"{name}_{batch}_{n}", f"training step of a small GPT faster than JAX, {batch} x {n}"
        if find_spec("jax") is None:
            rows.append(skipped(row, what, Unit.RATIO, "JAX is not installed", target))
            continue
        measured = _measured_apart(session, _gpt_in_jax, batch, n)
        rows.append(measured.row(row, what, Unit.RATIO, lambda m: m.speedup("jax"), target))
    return rows


def _gpt_in_jax(batch: int, n: int) -> dict[str, Action]:
    import attnscale.jax
    import jax

    ours = partial(attnscale.jax.attention, is_causal=True, layout="bshd")
    theirs = partial(jax.nn.dot_product_attention, is_causal=True)
    return {OURS: jax_gpt_step(ours, batch, n), "jax": jax_gpt_step(theirs, batch, n)}


def numpy_behind_product(session: Session, name: str) -> list[Row]:
    """Attention of arrays behind a product of matrices in NumPy, over the call alone."""
    what = "forward behind a product in NumPy over the call alone, 8 x 512 x 64"
    measured = _measured_apart(session, _numpy_product)
    return [measured.row(name, what, Unit.RATIO, partial(behind_ratio, OURS, "alone"))]


def _numpy_product() -> dict[str, Action]:
    rng = np.random.default_rng(1)
    x, w = (rng.standard_normal((rows, 512), np.float32) for rows in (1024, 512))
    alone = partial(at.attention, *random_heads(8, 512, 64))
    return {**_behind(lambda: x @ w, {OURS: alone}), "alone": alone}


def _measured_apart(
    session: Session, candidates: Callable[..., dict[str, Action]], *arguments: int
) -> Measured:
    """Samples of candidates of this module, taken in a process of their own."""
    call = f"cases.{candidates.__name__}{arguments}"
    settings = f"{session.threads}, {session.rounds}, {session.quick}"
    script = f"from {__package__} import _in_model_cases as cases; cases.print_measured({call}, {settings})"
    wall, cpu, peak = json.loads(run_python(session.threads, "-c", script))
    return Measured(Samples(wall, cpu), peak, session.threads)


def print_measured(candidates: Mapping[str, Action], threads: int, rounds: int, quick: bool) -> None:
    """Print [seconds by candidate, CPU seconds by candidate, operations of the peak]."""
    with limit_threads(threads, None):
        measured = Session(threads, rounds, quick=quick).measure(candidates)
    print(json.dumps([measured.samples.wall, measured.samples.cpu, measured.peak_flops]))
