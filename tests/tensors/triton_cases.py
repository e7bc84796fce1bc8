# SPDX-License-Identifier: BSD-3-Clause
"""Cases of the kernels of Triton, which agree with the core: options, types, what is not finite."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import attnscale as at
import torch
import triton_calls as calls
from triton_calls import (
    CASES,
    EVERY_STATISTIC,
    LARGE,
    agree,
    attend,
    case,
    compare,
    core,
    draw,
    grouped,
    rows_of_heads,
    start,
    wide,
)

__all__ = ["CASES", "LARGE", "run", "start"]


def run(name: str) -> None:
    """Run a case; an AssertionError says what differs."""
    cases = CASES | LARGE
    if name not in cases:
        raise KeyError(f"no such case: {name}")
    calls.generator.manual_seed(0)
    cases[name]()


# ---- options ------------------------------------------------------------------------------------


def hides_a_row() -> Any:
    """A mask under which a query sees no key."""
    mask = torch.rand(19, 21, generator=calls.generator) > 0.4
    mask[3] = False
    return mask.to(calls.device)


def biases() -> dict[str, Any]:
    """A float mask with entries of -inf."""
    mask = draw(1, 19, 21)
    with torch.no_grad():
        mask[:, 2] = mask[..., 4] = -torch.inf
    return learns(attn_mask=mask)


def scales() -> dict[str, Any]:
    """Scales of rows of either sign."""
    scale = draw(2, 19)
    with torch.no_grad():
        scale[0, 2] = 0.0
    return learns(scale=scale)


def learns(**options: Any) -> dict[str, Any]:
    """Options that are tensors, which are learned."""
    return {**options, "learnt": list(options.values())}


def in_type(dtype: Any) -> list[Any]:
    """Query, key and value of a type."""
    return [x.detach().to(dtype).requires_grad_() for x in rows_of_heads()]


def a_learned_law() -> None:
    s, b = draw(2), draw()
    law = at.torch.Learned("ssmax", s=s, b=b)
    grouped(rows_of_heads(17, 17), ("entropy",), within=5e-6, is_causal=True, scale=law, learnt=[s, b])


def a_learned_sink() -> None:
    logits = draw(2)
    tensors = [draw(2, 2, 5, 12), draw(2, 2, 19, 12), draw(2, 2, 19, 20)]
    every = tuple(name for name in EVERY_STATISTIC if name not in ("max_weight", "max_score"))
    options = {"normalizer": at.torch.Sink(logits), "key_lengths": torch.tensor([18, 0])}
    compare(tensors, every, learnt=[logits], **options)


CASES |= {
    "every statistic": lambda: grouped(rows_of_heads(), EVERY_STATISTIC),
    "causal in the other layout": lambda: grouped(
        [draw(1, 20, 2, 12), draw(1, 20, 1, 12), draw(1, 20, 1, 20)], is_causal=True, layout="bshd"
    ),
    "aligned at the bottom right": lambda: grouped(
        rows_of_heads(n_keys=35), causal="bottom_right", window=(17, None)
    ),
    "full tiles between partial ones": lambda: grouped(
        rows_of_heads(17, 70), causal="bottom_right", window=(45, None)
    ),
    "an offset that leaves rows without keys": lambda: grouped(rows_of_heads(), EVERY_STATISTIC, causal=-3),
    "key lengths of which one is 0": lambda: compare(
        [draw(2, 2, 5, 12), draw(2, 2, 35, 12), draw(2, 2, 35, 20)],
        window=(3, 20),
        key_lengths=torch.tensor([0, 33]),
    ),
    "packed documents": lambda: grouped(
        rows_of_heads(35, 35), document_ids=torch.arange(35).floor_divide(9), is_causal=True
    ),
    "a boolean mask that hides a row": lambda: grouped(
        rows_of_heads(), EVERY_STATISTIC, attn_mask=hides_a_row()
    ),
    "a float mask and a softcap": lambda: grouped(rows_of_heads(), softcap=1.5, **biases()),
    "biases of keys": lambda: compare(
        [draw(2, 2, 19, 12), draw(2, 2, 21, 12), draw(2, 2, 21, 20)],
        is_causal=True,
        **learns(attn_mask=draw(2, 1, 1, 21)),
    ),
    "biases of a head for all of the batch": lambda: compare(
        [draw(2, 2, 17, 6), draw(2, 2, 5, 6), draw(2, 2, 5, 6)],
        ("entropy",),
        **learns(attn_mask=draw(2, 17, 5)),
    ),
    "scales of rows of either sign": lambda: grouped(rows_of_heads(), EVERY_STATISTIC, causal=4, **scales()),
    "a law of the row": lambda: grouped(rows_of_heads(), scale="log_n(base=3)", is_causal=True),
    "a learned law": a_learned_law,
    "a learned sink": a_learned_sink,
    "a sink of a fixed score": lambda: compare(
        [draw(19, 6), draw(5, 6), draw(5, 6)], EVERY_STATISTIC, normalizer="softmax_n(n=3)"
    ),
    "no value": lambda: grouped([*rows_of_heads()[:2], None], EVERY_STATISTIC, is_causal=True),
    "axes that broadcast": lambda: compare(
        [draw(2, 1, 2, 3, 6), draw(3, 1, 5, 6), draw(1, 2, 5, 6)], window=(2, 1)
    ),
    "nothing but the output": lambda: grouped(rows_of_heads(), (), is_causal=True),
    "bfloat16": lambda: grouped(in_type(torch.bfloat16), within=8e-3, is_causal=True),
    "float16": lambda: grouped(in_type(torch.float16), within=1e-3),
}


@case
def masks_that_hide_by_low_numbers() -> None:
    """A float mask hides by half of the smallest number of its type, as by -inf, and not by a large one."""
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        lowest = torch.finfo(dtype).min
        hidden = torch.rand(19, 21, generator=calls.generator) > 0.6
        hidden[3] = hidden[:, 4] = True
        bias = torch.randn(19, 21, generator=calls.generator).to(dtype)
        tensors = rows_of_heads()
        with torch.no_grad():
            tensors[1][:, :, 4] = tensors[2][:, :, 4] = torch.nan
        results = []
        for low in (lowest, lowest / 2, -torch.inf):
            mask = bias.masked_fill(hidden, low).to(calls.device).requires_grad_()
            output, rows = attend(*tensors, EVERY_STATISTIC, attn_mask=mask, enable_gqa=True)
            leaves = torch.autograd.grad(output.sum() + rows["entropy"].sum(), [*tensors, mask])
            assert (leaves[-1][hidden.to(calls.device)] == 0).all()
            results.append([output, *rows.values(), *leaves])
        for found, again, want in zip(*results, strict=True):
            torch.testing.assert_close(found, want, rtol=0, atol=0)
            torch.testing.assert_close(again, want, rtol=0, atol=0)
        large = torch.full((19, 21), lowest / 2.01, dtype=dtype, device=calls.device)
        _, rows = attend(*rows_of_heads(), ("n_visible", "max_weight"), attn_mask=large, enable_gqa=True)
        assert (rows["n_visible"] == 21).all()
        assert (rows["max_weight"] > 0).all()


# ---- types and large numbers --------------------------------------------------------------------


@case
def statistics_of_bfloat16_are_those_of_its_numbers() -> None:
    query, key, _ = (x.detach().bfloat16() for x in rows_of_heads())
    _, rows = attend(query, key, None, ("lse", "entropy", "score_variance"), enable_gqa=True)
    wanted = core(query, key, None, ("lse", "entropy", "score_variance"), enable_gqa=True)
    for name, want in wanted.items():
        agree(name, rows[name], want, 3e-6)


@case
def large_scores() -> None:
    for scale in (300.0, 3e7, 1e12):
        query, key, value = (x.detach() for x in rows_of_heads())
        _, rows = attend(query, key, value, ("entropy", "max_score", "argmax"), scale=scale, enable_gqa=True)
        wanted = core(query, key, value, ("entropy", "max_score", "argmax"), scale=scale, enable_gqa=True)
        agree("max_score", rows["max_score"], wanted["max_score"], 1e-6)
        agree("argmax", rows["argmax"], wanted["argmax"], 0)
        agree("entropy", rows["entropy"], wanted["entropy"], 2e-4 if scale < 1e3 else 1e-2)


@case
def small_scores_under_a_softcap() -> None:
    tensors = [x.detach() for x in rows_of_heads()]
    _, rows = attend(*tensors, ("max_score",), scale=1e-4, softcap=50.0, enable_gqa=True)
    wanted = core(*tensors, ("max_score",), scale=1e-4, softcap=50.0, enable_gqa=True)
    agree("max_score", rows["max_score"], wanted["max_score"], 1e-8)


@case
def tiles_whose_sums_are_lost_one_by_one() -> None:
    query, key = torch.zeros(1, 4), torch.zeros(16 * 41, 4)
    query[0, 0] = 1.0
    key[16:, 0] = -24.1 * 0.6931  # 16 weights of 2^-24.1 are less than half of the last bit of 16
    _, rows = attend(query.to(calls.device), key.to(calls.device), None, ("lse", "entropy"), scale=1.0)
    wanted = core(query, key, None, ("lse", "entropy"), scale=1.0)
    for name, want in wanted.items():
        agree(name, rows[name], want, 4e-7)


# ---- what is not finite -------------------------------------------------------------------------


def _reached(field: int, at: int, number: float, **options: Any) -> None:
    """A number that is not finite reaches the rows that see it, in results and gradients, and no other."""
    statistics = ("lse", "entropy", "concentration")
    tensors = rows_of_heads(24, 24)
    with torch.no_grad():
        tensors[field][0, 0, at, 3] = number
    output, rows = attend(*tensors, statistics, enable_gqa=True, **options)
    wanted = core(*tensors, statistics, enable_gqa=True, **options)
    for name in statistics:
        assert torch.equal(rows[name].isnan().cpu(), wanted[name].isnan()), name
    broken = ~wanted["output"].isfinite().all(-1)
    assert broken.any()
    assert not broken.all()
    assert torch.equal(~output.isfinite().all(-1).cpu(), broken)
    # The gradients of the rows that are whole are those of the core, and finite.
    weight = torch.randn(output.shape, generator=calls.generator)
    found = torch.autograd.grad((output.cpu() * weight)[~broken].sum(), tensors[:2])
    want = torch.autograd.grad((wanted["output"] * weight)[~broken].sum(), tensors[:2])
    agree("gradient of the query", found[0].cpu()[~broken], want[0].cpu()[~broken], 1e-5)
    if field == 0:  # keys that the broken query does not see
        agree("gradient of the key", found[1][..., at + 1 :, :], want[1][..., at + 1 :, :], 1e-5)


@case
def a_nan_among_the_keys() -> None:
    _reached(1, 20, torch.nan, is_causal=True)


@case
def an_infinity_among_the_keys() -> None:
    _reached(1, 20, -torch.inf, is_causal=True)


@case
def a_nan_among_the_queries() -> None:
    _reached(0, 20, torch.nan, is_causal=True)


@case
def an_infinity_among_the_values() -> None:
    _reached(2, 20, torch.inf, window=(9, 9))


@case
def an_infinity_where_nothing_but_the_output_is_asked_for() -> None:
    query, key, value = (x.detach() for x in rows_of_heads(24, 24))
    query = query.abs()
    key[0, 0, 20, 3] = -torch.inf  # all of its scores are -inf, and would have no weight
    output, _ = attend(query, key, value, (), enable_gqa=True, is_causal=True)
    # The operator always adds lse; the kernel alone need not.
    at = torch.arange(24, device=calls.device)
    scale = torch.tensor(0.3, device=calls.device)
    problem = calls.kernels._problem.Problem(query, key, value, scale, at * 0, at + 1)
    alone, _ = calls.kernels._forward.forward(problem, ())
    for found in (output, alone):
        assert torch.equal(found.isnan().all(-1)[0, 0].cpu(), torch.arange(24) >= 20)


# ---- every width and type, for a GPU ------------------------------------------------------------


def _of_width(dim: int, dtype: torch.dtype, within: float, **options: Any) -> None:
    shapes = ((2, 4, 517, dim), (2, 2, 700, dim), (2, 2, 700, dim))
    grouped([draw(*shape, dtype=dtype) for shape in shapes], within=within, **options)


for _dim in (16, 40, 64, 80, 128, 192, 256):
    for _dtype, _within in ((torch.float32, 1e-5), (torch.float16, 2e-3), (torch.bfloat16, 1.6e-2)):
        for _options in ({}, {"causal": "bottom_right"}, {"window": (200, 30), "softcap": 20.0}):
            _name = f"rows of {_dim} in {_dtype}, {_options or 'all keys'}"
            LARGE[_name] = partial(_of_width, _dim, _dtype, _within, **_options)


# ---- the way to the kernels ---------------------------------------------------------------------


@case
def documents_by_their_ends() -> None:
    """Packed rows as in variable-length attention: query and key documents of different lengths."""
    ends_q, ends_k = torch.tensor([0, 3, 3, 19]), torch.tensor([0, 2, 5, 21])
    query, key, value = (x.detach() for x in rows_of_heads())
    at = torch.arange(19, device=calls.device)
    begin, end = 5 * (at >= 3), at + 3 * (at >= 3)  # the last query of a document sees its last key
    scale = torch.tensor(0.3, device=calls.device)
    problem = calls.kernels._problem.Problem(query, key, value, scale, begin, end)
    output, rows = calls.kernels._forward.forward(problem, ("lse", "entropy"))
    assert output is not None
    gradients = {"output": torch.ones_like(output), "entropy": torch.ones_like(rows["entropy"])}
    found = calls.kernels._backward.backward(problem, output, rows, gradients, ["query", "key", "value"])
    for i in range(3):
        q, k = slice(ends_q[i], ends_q[i + 1]), slice(ends_k[i], ends_k[i + 1])
        parts = [wide(x[..., each, :]).requires_grad_() for x, each in ((query, q), (key, k), (value, k))]
        want = core(*parts, ("entropy",), scale=0.3, causal="bottom_right", enable_gqa=True)
        agree("output", output[..., q, :], want["output"], 3e-6)
        agree("entropy", rows["entropy"][..., q], want["entropy"], 3e-6)
        grads = torch.autograd.grad(want["output"].sum() + want["entropy"].sum(), parts)
        for name, each, gradient in zip(("query", "key", "value"), (q, k, k), grads, strict=True):
            agree(name, found[name][..., each, :], gradient, 1e-5)


@case
def the_fastest_configuration_is_kept() -> None:
    from triton.runtime.autotuner import Autotuner

    launch, forward = calls.kernels._launch, calls.kernels._forward
    timed: list[int] = []

    def bench(call: Callable[[], None], quantiles: Any) -> list[float]:
        call()
        timed.append(len(timed))
        return [1.0 / len(timed)] * 3  # the last is the fastest

    choices = (launch.Configuration(16, 16, 1, 1), launch.Configuration(32, 16, 1, 1))
    before = Autotuner.do_bench, launch.INTERPRETED, forward.configurations
    Autotuner.do_bench, launch.INTERPRETED = property(lambda _: bench), False
    forward.configurations = lambda *_: choices
    try:
        tensors = [x.detach() for x in rows_of_heads()]
        for _ in range(2):
            output, _ = attend(*tensors, ("lse",), enable_gqa=True)
        best = launch.tuned(forward.attend_rows, choices).best_config
    finally:
        Autotuner.do_bench, launch.INTERPRETED, forward.configurations = before
    assert len(timed) == 2  # not again at the second call
    assert best.kwargs == {"BLOCK_M": 32, "BLOCK_N": 16}
    agree("output", output, core(*tensors, (), enable_gqa=True)["output"], 3e-6)
