# SPDX-License-Identifier: BSD-3-Clause
"""A call of the kernels of Triton beside the core, in a process that interprets the kernels.

Triton decides when it is imported whether it interprets: the variable is set for the whole process. On a
machine with a GPU the same cases run there, compiled.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import attnscale as at
import torch
from attnscale.torch import _base, _functional, _triton

#: Larger calls, for a GPU alone.
LARGE: dict[str, Callable[[], None]] = {}
#: Cases by name. A generator begins anew for each.
CASES: dict[str, Callable[[], None]] = {}
EVERY_STATISTIC = (
    *("lse", "entropy", "max_score", "mean_score", "score_variance", "concentration", "n_visible", "argmax"),
    *("max_weight", "sink_weight", "support"),
)
_COUNTS = ("n_visible", "argmax", "support")
_UNLEARNT = (*_COUNTS, "sink_weight")
#: The folder of the kernels; its modules are attributes once they are loaded.
kernels = _triton
device = "cpu"
generator = torch.Generator()


def start(kind: str) -> None:
    """Prepare this process: on the CPU, Triton interprets the kernels, which then serve the operators."""
    global device
    device = kind
    if kind == "cpu":
        assert os.environ["TRITON_INTERPRET"] == "1"
        warnings.filterwarnings("ignore", category=RuntimeWarning)  # of NumPy, for NaN and infinity
        torch.set_num_threads(1)
        _interpret_faster()
    _functional._load_triton(kind)
    _base.device.TRITON_DEVICES.add(kind)


def _interpret_faster() -> None:
    """The interpreter prepares Triton's language again at each call of a function; once is enough."""
    import triton.language as tl
    from triton.runtime import interpreter

    prepared: list[Any] = []

    def call(self: Any, *arguments: Any, **options: Any) -> Any:
        if not prepared and tl.core in self.fn.__globals__.values():
            prepared.append(interpreter._patch_lang(self.fn))
        return self.rewrite()(*arguments, **options)

    interpreter.InterpretedFunction.__call__ = call


def case(check: Callable[[], None]) -> Callable[[], None]:
    CASES[check.__name__] = check
    return check


# ---- a call and its twin ------------------------------------------------------------------------


def draw(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Normal numbers that require grad."""
    return torch.randn(shape, generator=generator).to(device, dtype).requires_grad_()


def attend(
    query: Any, key: Any, value: Any, statistics: Sequence[str], **options: Any
) -> tuple[Any, dict[str, Any]]:
    """The output, None without a value, and statistics, by the kernels of Triton."""
    rows = at.torch.attention_statistics(
        query, key, value, statistics=statistics, backend="triton", **options
    )
    found = rows._asdict()
    return found["output"], {name: found[name] for name in statistics}


def core(query: Any, key: Any, value: Any, statistics: Sequence[str], **options: Any) -> dict[str, Any]:
    """Output and statistics of the kernels for the CPU, in float64."""
    tensors = (None if x is None else wide(x) for x in (query, key, value))
    options = {name: wide(x) if isinstance(x, torch.Tensor) else x for name, x in options.items()}
    if isinstance(options.get("normalizer"), at.torch.Sink):
        options["normalizer"] = at.torch.Sink(wide(options["normalizer"].logits))
    if isinstance(law := options.get("scale"), at.torch.Learned):
        parameters = {name: wide(x) for name, x in law.parameters.items()}
        options["scale"] = at.torch.Learned(law.spelling, **parameters)
    found = at.torch.attention_statistics(*tensors, statistics=tuple(statistics), backend="core", **options)
    return {name: x for name, x in found._asdict().items() if x is not None}


def wide(x: torch.Tensor) -> torch.Tensor:
    return x.cpu().double() if x.is_floating_point() else x.cpu()


def compare(
    tensors: Sequence[Any],
    statistics: Sequence[str] = ("lse", "entropy"),
    *,
    learnt: Sequence[torch.Tensor] = (),
    within: float = 3e-6,
    **options: Any,
) -> None:
    """Compare results to the core's, and gradients of their sum with weights of either sign."""
    query, key, value = tensors
    output, rows = attend(query, key, value, statistics, **options)
    found = rows if output is None else {"output": output, **rows}
    wanted = core(query, key, value, statistics, **options)
    assert found.keys() == wanted.keys()
    for name, want in wanted.items():
        agree(name, found[name], want, within)
        assert name == "output" or found[name].dtype == (torch.int64 if name in _COUNTS else torch.float32)
    leaves = [x for x in (*tensors, *learnt) if x is not None]
    weights = {name: torch.randn(x.shape, generator=generator).double() for name, x in wanted.items()}
    both = (torch.autograd.grad(_weighted(each, weights), leaves) for each in (found, wanted))
    for i, (ours, want) in enumerate(zip(*both, strict=True)):
        agree(f"gradient {i}", ours, want, 2 * within)


def _weighted(rows: dict[str, Any], weights: dict[str, Any]) -> Any:
    """A sum of everything that has a gradient and is finite."""
    terms = (
        (rows[name].cpu().double() * w).masked_fill(~rows[name].isfinite().cpu(), 0.0).sum()
        for name, w in weights.items()
        if name not in _UNLEARNT
    )
    return sum(terms)


def agree(name: str, found: Any, want: Any, within: float) -> None:
    """Equal where not finite, and else within a share of the largest number that is wanted."""
    found, want = found.detach().cpu().double(), want.detach().double()
    assert found.shape == want.shape, f"{name}: {tuple(found.shape)}, not {tuple(want.shape)}"
    finite = want.isfinite()
    assert torch.equal(finite, found.isfinite()), f"{name} is finite elsewhere"
    assert torch.equal(found[want.isinf()], want[want.isinf()]), f"{name} is infinite otherwise"
    scale = max(1.0, float(want[finite].abs().max())) if finite.any() else 1.0
    worst = float((found - want)[finite].abs().max()) / scale if finite.any() else 0.0
    assert worst <= within, f"{name} is {worst:.1e} of its largest number off, more than {within:.1e}"


def rows_of_heads(n_queries: int = 19, n_keys: int = 21, dim: int = 12, value_dim: int = 20) -> list[Any]:
    """Query, key and value of two heads that share one: two tiles of queries, and of keys."""
    return [draw(1, 2, n_queries, dim), draw(1, 1, n_keys, dim), draw(1, 1, n_keys, value_dim)]


grouped = partial(compare, enable_gqa=True)
