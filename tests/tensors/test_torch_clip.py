# SPDX-License-Identifier: BSD-3-Clause
"""at.torch.qk_clip_: its effect on the scores of heads, and refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import attnscale as at  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("fixed_seed")]

HEADS, DIM, WIDTH, N = 4, 8, 16, 12


def projections(kv_heads: int, dtype: Any = torch.float64) -> tuple[Any, Any]:
    return tuple(torch.nn.Linear(WIDTH, heads * DIM, bias=False, dtype=dtype) for heads in (HEADS, kv_heads))


def largest(query: Any, key: Any, x: Any) -> Any:
    """The largest score of each head, by this package."""
    q, k = (layer(x).unflatten(-1, (-1, DIM)).transpose(0, 1) for layer in (query, key))
    rows = at.torch.attention_statistics(q, k, statistics="max_score", enable_gqa=True)
    return rows.max_score.amax(-1).detach()


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_scores_of_every_head_get_its_own_factor(kv_heads: int) -> None:
    query, key = projections(kv_heads)
    x = torch.randn(N, WIDTH, dtype=torch.float64)
    before = largest(query, key, x)
    threshold = float(before.sort().values[1])  # two heads are below it or at it
    factors = at.torch.qk_clip_(query.weight, key.weight, before, threshold)
    np.testing.assert_allclose(factors, (threshold / before).clamp(max=1), rtol=1e-12)
    np.testing.assert_allclose(largest(query, key, x), before.clamp(max=threshold), rtol=1e-12)


def test_a_head_with_its_own_keys_splits_its_factor_evenly() -> None:
    query, key = projections(HEADS)
    q, k = query.weight.detach().clone(), key.weight.detach().clone()
    at.torch.qk_clip_(query.weight, key.weight, torch.tensor([400.0, 100.0, -5.0, -torch.inf]), 100)
    for weight, before in ((query.weight, q), (key.weight, k)):
        scale = (weight / before).unflatten(0, (HEADS, DIM)).detach()
        np.testing.assert_allclose(scale.mean((1, 2)), [0.5, 1, 1, 1], rtol=1e-12)


def test_a_head_that_needs_no_clipping_keeps_its_queries_and_the_keys_that_it_shares() -> None:
    query, key = projections(2)
    q, k = query.weight.detach().clone(), key.weight.detach().clone()
    at.torch.qk_clip_(query.weight, key.weight, torch.tensor([400.0, 50.0, 200.0, 400.0]), 100)
    np.testing.assert_array_equal(query.weight[DIM : 2 * DIM].detach(), q[DIM : 2 * DIM])
    np.testing.assert_array_equal(key.weight[:DIM].detach(), k[:DIM])
    # The second group shares 1/2: its keys take the root of it, its queries the rest.
    np.testing.assert_allclose(key.weight[DIM:].detach() / k[DIM:], 0.5**0.5)
    np.testing.assert_allclose(query.weight[3 * DIM :].detach() / q[3 * DIM :], 0.25 / 0.5**0.5)
    assert (query.weight.abs() <= q.abs()).all()  # no weight grows
    assert query.weight.requires_grad
    assert query.weight.grad_fn is None


def test_parts_of_a_fused_weight_and_biases_are_changed_in_place() -> None:
    fused = torch.nn.Linear(WIDTH, 3 * HEADS * DIM)  # queries, keys, values
    before = [each.detach().clone() for each in (fused.weight, fused.bias)]
    size, score = HEADS * DIM, torch.full((HEADS,), 400.0)
    for each, own in zip((fused.weight, fused.bias), before, strict=True):
        at.torch.qk_clip_(each[:size], each[size : 2 * size], score, 100)
        np.testing.assert_allclose((each / own)[: 2 * size].detach(), 0.5, rtol=1e-6)
        np.testing.assert_array_equal(each[2 * size :].detach(), own[2 * size :])


def test_a_weight_in_bfloat16_is_multiplied_in_float32() -> None:
    weight = torch.randn(HEADS * DIM, WIDTH).bfloat16()
    query, key = weight.clone(), weight.clone()
    at.torch.qk_clip_(query, key, torch.full((HEADS,), 300.0), 100)
    want = (weight.float() * (1 / 3) ** 0.5).bfloat16()
    torch.testing.assert_close(query, want, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"threshold": 0}, ValueError, "threshold must be above 0, got 0"),
        ({"threshold": "100"}, TypeError, "threshold must be a number, got '100'"),
        ({"max_score": [1.0] * 4}, TypeError, "max_score must be a tensor, got"),
        (
            {"max_score": torch.ones(2, 4)},
            ValueError,
            r"max_score must have the shape \(heads,\), got \(2, 4\)",
        ),
        ({"max_score": torch.ones(5)}, ValueError, "query_weight must have a multiple of 5 rows"),
        ({"max_score": torch.tensor([torch.nan] * 4)}, ValueError, "max_score must be finite or -inf"),
        ({"max_score": torch.tensor([torch.inf] * 4)}, ValueError, "max_score must be finite or -inf"),
        ({"key_weight": torch.ones(12, 3)}, ValueError, "key_weight must have 8 rows, the head_dim of"),
        ({"key_weight": torch.ones(24, 3)}, ValueError, "whose number divides 4, got 24"),
        ({"key_weight": torch.ones(())}, ValueError, r"key_weight must have the shape .*, got \(\)"),
    ],
)
def test_bad_input_changes_nothing(change: dict[str, Any], error: type[Exception], message: str) -> None:
    weight = torch.randn(HEADS * DIM, WIDTH)
    given = {"query_weight": weight.clone(), "key_weight": weight.clone(), "threshold": 0.5}
    given |= {"max_score": torch.ones(HEADS)} | change
    with pytest.raises(error, match=message):
        at.torch.qk_clip_(**given)
    torch.testing.assert_close(given["query_weight"], weight, rtol=0, atol=0)
