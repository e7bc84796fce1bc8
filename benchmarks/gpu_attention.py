# SPDX-License-Identifier: BSD-3-Clause
r"""Time of the Triton kernels on a GPU, beside PyTorch's attention, flex_attention and attention by hand.

python benchmarks/gpu_attention.py --n 512 2048 8192 --dim 64 128 --json

Forward: the output alone, and the output with lse and entropy. Backward: from the gradient of the output, and
from the gradients of output and entropy. Candidates take turns, and a time is the median over the rounds. Not
yet run on a GPU.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

_BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}
_BY_HAND = 8192  # longest rows with the matrix of weights in memory
Candidate = Callable[[], Any]


def main(argv: Sequence[str] | None = None) -> int:
    """Time every length, width and mask, and print a line for each."""
    options = _parser().parse_args(argv)
    if not torch.cuda.is_available():
        print("error: no GPU: torch.cuda.is_available() is False", file=sys.stderr)
        return 2
    for n in options.n:
        for dim in options.dim:
            for causal in (False, True):
                shape = (max(1, options.tokens // n), options.heads, n, dim)
                for backward in (False, True):
                    times = _median_times(
                        _candidates(shape, causal=causal, backward=backward), options.rounds
                    )
                    _print(times, shape, causal=causal, backward=backward, as_json=options.json)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--n", type=int, nargs="+", default=[512, 1024, 2048, 4096, 8192, 16384, 32768])
    parser.add_argument("--dim", type=int, nargs="+", default=[64, 128], help="numbers of a row")
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=32768, help="rows of a batch in all")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    return parser


def _candidates(shape: tuple[int, ...], *, causal: bool, backward: bool) -> dict[str, Candidate]:
    """Calls to time, by name: a forward pass, or a backward pass after its forward pass."""
    generator = torch.Generator("cuda").manual_seed(0)
    query, key, value = (
        torch.randn(shape, generator=generator, device="cuda", dtype=torch.bfloat16).requires_grad_(backward)
        for _ in range(3)
    )
    tensors = (query, key, value)
    forward: dict[str, Candidate] = {
        "ours": partial(_ours, *tensors, (), causal=causal),
        "ours with entropy": partial(_ours, *tensors, ("lse", "entropy"), causal=causal),
        "flex": partial(_flex(shape[-2], causal=causal), *tensors),
    }
    for name, backend in _BACKENDS.items():
        forward[f"sdpa {name}"] = partial(_sdpa, *tensors, backend=backend, causal=causal)
    if shape[-2] <= _BY_HAND:
        forward["by hand with entropy"] = partial(_by_hand, *tensors, causal=causal)
    usable = {name: call for name, call in forward.items() if _runs(name, call)}
    return {name: _backward_of(call, tensors) if backward else call for name, call in usable.items()}


def _runs(name: str, call: Candidate) -> bool:
    """Whether a candidate runs here; a backend without a kernel for the call does not."""
    try:
        call()
        torch.cuda.synchronize()
    except RuntimeError as error:
        if name.startswith("ours"):
            raise
        print(f"{name}: not timed: {str(error).splitlines()[0]}", file=sys.stderr)
        return False
    return True


def _ours(
    query: Any, key: Any, value: Any, names: tuple[str, ...], *, causal: bool
) -> tuple[torch.Tensor, ...]:
    from attnscale._base.statistics import NAMES
    from attnscale.torch._base.arguments import read_call
    from attnscale.torch._ops import run
    from attnscale.torch._triton import _operator

    _operator.register("cuda")
    call = read_call(query, key, value, {"is_causal": causal})
    kept = ("lse", *names) if query.requires_grad else names
    output, *rows = run(*call, kept)
    return output, *(row for name, row in zip(NAMES, rows, strict=True) if name in names and name != "lse")


def _sdpa(query: Any, key: Any, value: Any, *, backend: Any, causal: bool) -> Any:
    with sdpa_kernel(backend):
        return scaled_dot_product_attention(query, key, value, is_causal=causal)


def _flex(n: int, *, causal: bool) -> Callable[..., Any]:
    compiled = torch.compile(flex_attention)
    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, n, n) if causal else None
    return partial(compiled, block_mask=mask)


def _by_hand(query: Any, key: Any, value: Any, *, causal: bool) -> tuple[torch.Tensor, ...]:
    """Output and entropy from the matrix of weights."""
    scores = query.float() @ key.float().mT * query.shape[-1] ** -0.5
    if causal:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(hidden, -torch.inf)
    weights = scores.softmax(-1)
    return (weights.to(value.dtype) @ value), torch.special.entr(weights).sum(-1)


def _backward_of(call: Candidate, tensors: tuple[Any, ...]) -> Candidate:
    """The backward pass from ones for all results of the forward pass."""
    found = call()
    outputs = [x for x in (found if isinstance(found, tuple) else (found,)) if x.requires_grad]
    ones = [torch.ones_like(x) for x in outputs]
    return lambda: torch.autograd.grad(outputs, tensors, ones, retain_graph=True)


def _median_times(candidates: dict[str, Candidate], rounds: int) -> dict[str, float]:
    """Milliseconds of each candidate, medians over rounds in which they take turns."""
    for call in candidates.values():
        for _ in range(3):
            call()
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(rounds):
        for name, call in candidates.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            call()
            end.record()
            end.synchronize()
            times[name].append(start.elapsed_time(end))
    return {name: statistics.median(each) for name, each in times.items()}


def _print(
    times: dict[str, float], shape: tuple[int, ...], *, causal: bool, backward: bool, as_json: bool
) -> None:
    batch, heads, n, dim = shape
    products = (5 if backward else 2) * 2 * batch * heads * n * n * dim * (0.5 if causal else 1.0)
    case = {"pass": "backward" if backward else "forward", "n": n, "dim": dim, "causal": causal}
    device = torch.cuda.get_device_name()
    if as_json:
        print(json.dumps({"device": device, **case, "milliseconds": times}), flush=True)
        return
    best = min((ms for name, ms in times.items() if name.startswith("sdpa")), default=None)
    print(f"{device}: {', '.join(f'{name} {value}' for name, value in case.items())}")
    for name, ms in times.items():
        share = f"{best / ms:6.2f} of the best sdpa" if best else ""
        print(f"  {name:22} {ms:9.3f} ms {products / ms / 1e9:8.1f} TFLOP/s {share}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
