# SPDX-License-Identifier: BSD-3-Clause
"""Mass of a selection, strongest keys and kinds of heads on tensors: the values on arrays, with gradients."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import attnscale as at
import numpy as np
import pytest
from cases import case, mask_cases, random_inputs, rows_are_lost

torch = pytest.importorskip("torch")

from other_device import full_masks, there  # noqa: E402, F401

from tests.conformance.backends import in_blocks  # noqa: E402

pytestmark = pytest.mark.torch

N, M = 9, 14
TOKENS = np.random.default_rng(4).integers(0, 4, (2, M))
RULES = (
    "softmax_1",
    "sink(logits=[0.5, 1])",
    "sigmoid",
    "softpick",
    "entmax(alpha=1.5)",
    "top_k(k=3)",
    "relu",
)
MORE: dict[str, dict[str, Any]] = {
    "law": {"scale": "log_n", "is_causal": True},
    "documents": {"document_ids": np.arange(M) // 5, "causal": "bottom_right", "qk_norm": "l2"},
    "tables": {"distance_scale": 1 + 0.1 * np.arange(40), "distance_bias": -0.2 * np.arange(40)},
} | {name: {"normalizer": name, "causal": 3} for name in RULES}


def selection() -> Any:
    """Nine keys of each row, some of them none or twice, for all heads."""
    return np.random.default_rng(3).integers(-3, M, (2, N, 9))


def tensors(options: dict[str, Any]) -> dict[str, Any]:
    return {
        name: torch.from_numpy(x.copy()) if isinstance(x, np.ndarray) else x for name, x in options.items()
    }


@pytest.mark.parametrize("around", [nullcontext, in_blocks], ids=["a block", "blocks"])
def test_values_are_those_on_arrays(around: Any) -> None:
    for dtype in ("float64", "float32", "bfloat16"):
        q, k, _ = random_inputs(1, batch=(2,), n_queries=N, n_keys=M, dtype="float64")
        q, k = (torch.from_numpy(x).to(getattr(torch, dtype)) for x in (q, k))
        close = {"rtol": 0, "atol": 1e-12 if dtype == "float64" else 2e-6}
        for name, options in (mask_cases(2, 2, N, M) | MORE).items():
            with case(name, dtype), around():
                mass = at.torch.attention_mass(q, k, selection(), **tensors(options))
                top = at.torch.top_keys(q, k, 4, **tensors(options))
                wanted = at.top_keys(q.double(), k.double(), 4, **options)
                assert mass.dtype == top.weight.dtype == (q.dtype if dtype == "float64" else torch.float32)
                arrays = at.attention_mass(q.double(), k.double(), selection(), **options)
                torch.testing.assert_close(mass, arrays.to(mass.dtype), **close)
                torch.testing.assert_close(top.weight, wanted.weight.to(mass.dtype), **close)
                assert torch.equal(top.index, wanted.index)
                kinds = at.torch.head_kinds(q, k, torch.from_numpy(TOKENS), **tensors(options))
                on_arrays = at.head_kinds(q.double(), k.double(), TOKENS, **options)
                for rows, numbers in zip(kinds, on_arrays, strict=True):
                    assert rows.dtype == mass.dtype
                    unit = {"rtol": 2e-6, "atol": close["atol"]} if rows is kinds.distance else close
                    torch.testing.assert_close(rows, numbers.to(rows.dtype), equal_nan=True, **unit)
                assert at.torch.head_kinds(q, k, **tensors(options)).induction is None


@pytest.mark.parametrize("around", [nullcontext, in_blocks], ids=["a block", "blocks"])
def test_gradients_of_queries_keys_scales_masks_and_sinks(around: Any) -> None:
    arrays = random_inputs(2, n_queries=N, n_keys=M, head_dim=3, dtype="float64")
    q, k, _ = map(torch.from_numpy, arrays)
    rng = torch.Generator().manual_seed(0)
    scale, sink = (torch.rand(2, *more, dtype=torch.float64, generator=rng) for more in ((1,), ()))
    mask = torch.rand(N, M, dtype=torch.float64, generator=rng)

    def mass(q: Any, k: Any, scale: Any, mask: Any, sink: Any) -> Any:
        given = {"scale": scale, "attn_mask": mask, "normalizer": at.torch.Sink(sink), "causal": 3}
        top = at.torch.top_keys(q, k, 3, **given)
        return at.torch.attention_mass(q, k, selection()[0], **given), top.weight

    def kinds(q: Any, k: Any, scale: Any, mask: Any, sink: Any) -> Any:
        given = {"scale": scale, "attn_mask": mask, "normalizer": at.torch.Sink(sink), "causal": 3}
        rows = at.torch.head_kinds(q, k, TOKENS[0], **given)
        assert not torch.isnan(rows.distance).any()
        return *(x.nan_to_num() for x in rows), *rows.per_head()

    fast = around is in_blocks  # blocks add up the same derivatives: a projection of each shows a wrong sum
    with around():
        leaves = [x.requires_grad_() for x in (q, k, scale, mask, sink)]
        assert torch.autograd.gradcheck(mass, leaves, fast_mode=fast)
        assert torch.autograd.gradcheck(kinds, leaves, fast_mode=fast)


def test_every_shape_of_a_selection() -> None:
    q, k, _ = (
        torch.from_numpy(x) for x in random_inputs(3, batch=(2,), n_queries=N, n_keys=M, dtype="float64")
    )
    heads = np.stack([selection(), selection()[:, ::-1]], axis=1)
    for selected, size in (
        (heads, None),
        (heads[:, :, :1], None),
        ([0, 5, 5, -1], None),
        (selection() // 4, 4),
    ):
        found = at.torch.attention_mass(q, k, selected, block_size=size)
        wanted = at.attention_mass(q, k, selected, block_size=size)
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)
        top = at.torch.top_keys(q, k, 5)
        recall = at.top_keys(q.numpy(), k.numpy(), 5).recall(selected, block_size=size)
        np.testing.assert_array_equal(top.recall(torch.as_tensor(selected), block_size=size), recall)


def test_of_equal_scores_the_lower_key_and_places_without_a_key() -> None:
    q, k = torch.ones(1, 2, 1), torch.tensor([1, 1, 3, 3, 2, 2, 2.0])[None, :, None]
    index, weight = at.torch.top_keys(q, k, 3, scale=1.0, causal=5)
    assert index.tolist() == [[[2, 3, 4], [2, 3, 4]]]
    index, weight = at.torch.top_keys(q, k, 8, scale=1.0, causal=1)
    assert index.tolist() == [[[0, 1] + [-1] * 6, [2, 0, 1] + [-1] * 5]]
    assert (weight[index < 0] == 0).all()
    assert at.torch.top_keys(q, k[:, :0], 2).index.tolist() == [[[-1, -1], [-1, -1]]]
    assert at.torch.attention_mass(q, k[:, :0], [-1]).tolist() == [[0, 0]]


def test_rows_without_a_key_of_a_kind_have_no_gradient() -> None:
    """The first row has no previous key, and the second sees nothing at all."""
    q, k = torch.ones(2, 1, 4, 2).requires_grad_()
    mask = torch.tensor([[1], [0], [1], [1]], dtype=torch.bool)
    kinds = at.torch.head_kinds(q, k, [3, 3, 3, 3], is_causal=True, attn_mask=mask)
    nan = torch.nan
    torch.testing.assert_close(kinds.previous, torch.tensor([[nan, nan, 1 / 3, 1 / 4]]), equal_nan=True)
    torch.testing.assert_close(kinds.distance, torch.tensor([[0, nan, 1, 1.5]]), equal_nan=True)
    torch.testing.assert_close(kinds.per_head().previous, torch.tensor([7 / 24]))
    gradients = torch.autograd.grad([x.sum() for x in kinds.per_head()], (q, k))
    assert all(torch.isfinite(x).all() for x in gradients)
    none = at.torch.head_kinds(q, k[:, :0], torch.zeros(0, dtype=torch.int64))
    assert all(torch.isnan(x).all() and x.shape == (1, 4) for x in none)


@rows_are_lost
def test_a_nan_reaches_the_rows_that_see_it() -> None:
    q, k = torch.zeros(1, 4, 2), torch.zeros(1, 4, 2)
    k[0, 2] = torch.nan
    mass, (index, weight) = (
        f(q, k, x, is_causal=True) for f, x in ((at.torch.attention_mass, [0]), (at.torch.top_keys, 2))
    )
    assert torch.isnan(mass[0, 2:]).all()
    assert torch.isnan(weight[0, 2:]).all()
    assert index.tolist() == [[[0, -1], [0, 1], [-1, -1], [-1, -1]]]
    assert torch.equal(mass[0, :2], torch.tensor([1, 0.5]))
    kinds = at.torch.head_kinds(q, k, [0, 0, 0, 0], is_causal=True)
    assert all(torch.isnan(x[0, 2:]).all() and not torch.isnan(x[0, 1]) for x in kinds)


def test_what_is_refused() -> None:
    q, k = torch.zeros(1, 4, 2), torch.zeros(1, 4, 2)
    with pytest.raises(ValueError, match="selected must be indices of 4 keys, got 4"):
        at.torch.attention_mass(q, k, torch.tensor([4]))
    with pytest.raises(TypeError, match="unexpected keyword argument 'num_threads'"):
        at.torch.attention_mass(q, k, [0], num_threads=1)
    with pytest.raises(ValueError, match="backend must be one of"):
        at.torch.top_keys(q, k, 1, backend="triton")
    with pytest.raises(ValueError, match="k must be at least 1"):
        at.torch.top_keys(q, k, 0)
    with pytest.raises(TypeError, match="tokens must be integers, got float32"):
        at.torch.head_kinds(q, k, torch.zeros(4))


@pytest.mark.filterwarnings("default")
@pytest.mark.usefixtures("full_masks")
def test_on_another_device() -> None:
    q, k, _ = map(torch.from_numpy, random_inputs(5, batch=(2,), n_queries=N, n_keys=M))
    tied = k.clone()
    tied[:, :, 1:] = k[:, :, :1]
    found = []
    for place in (lambda x: x, there):
        leaf = place(q).requires_grad_()
        mass = at.torch.attention_mass(leaf, place(k), place(torch.from_numpy(selection())), causal=3)
        (gradient,) = torch.autograd.grad(mass.square().sum(), leaf)
        top, equal = (at.torch.top_keys(leaf.detach(), place(x), 4, causal=3) for x in (k, tied))
        recall = top.recall(place(torch.from_numpy(selection())))
        kinds = at.torch.head_kinds(leaf.detach(), place(k), place(torch.from_numpy(TOKENS)))
        results = mass.detach(), gradient, top.index, top.weight, equal.index, recall, *kinds
        assert {x.device for x in results} == {leaf.device}
        found.append([x.cpu() for x in results])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, equal_nan=True)
