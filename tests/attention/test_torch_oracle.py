# SPDX-License-Identifier: BSD-3-Clause
"""PyTorch's scaled_dot_product_attention, and its math path, as further oracles."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attnscale as at
import numpy as np
import pytest
from cases import case, random_inputs

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402
from torch.nn.functional import scaled_dot_product_attention  # noqa: E402


@pytest.fixture(params=["default", "math"])
def sdpa(request: pytest.FixtureRequest) -> Iterator[Any]:
    """scaled_dot_product_attention of NumPy arrays, by the fused and by the plain kernel."""

    def call(*arrays: Any, attn_mask: Any = None, **options: Any) -> Any:
        tensors = [torch.from_numpy(np.ascontiguousarray(x)) for x in arrays]
        mask = None if attn_mask is None else torch.from_numpy(attn_mask)
        return scaled_dot_product_attention(*tensors, attn_mask=mask, **options).numpy()

    if request.param == "default":
        yield call
    else:
        with sdpa_kernel(SDPBackend.MATH):
            yield call


NEAR = {"float64": {"rtol": 1e-12, "atol": 1e-13}, "float32": {"rtol": 2e-5, "atol": 2e-6}}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(1, 1), (17, 33), (128, 128), (267, 1030), (5, 600)])
def test_same_output(sdpa: Any, dtype: str, shape: tuple[int, int]) -> None:
    q, k, v = random_inputs(1, batch=(2,), heads=3, n_queries=shape[0], n_keys=shape[1], dtype=dtype)
    for options in ({}, {"is_causal": True}, {"scale": 0.3}, {"scale": -1.0}):
        with case(options):
            ours = at.attention(q, k, v, **options)
            np.testing.assert_allclose(ours, sdpa(q, k, v, **options), **NEAR[dtype])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_same_masks(sdpa: Any, dtype: str) -> None:
    q, k, v = random_inputs(2, batch=(2,), heads=3, n_queries=40, n_keys=70, dtype=dtype)
    rng = np.random.default_rng(2)
    boolean = rng.random((2, 1, 40, 70)) < 0.5
    boolean[..., 0] = True
    bias = np.where(boolean, rng.standard_normal(boolean.shape), -np.inf).astype(dtype)
    for mask in (boolean, bias, boolean[0, 0], bias[:, :, :1]):
        np.testing.assert_allclose(
            at.attention(q, k, v, attn_mask=mask), sdpa(q, k, v, attn_mask=mask), **NEAR[dtype]
        )


def test_same_grouped_queries(sdpa: Any) -> None:
    q, k, v = random_inputs(3, batch=(2,), heads=6, kv_heads=2, dtype="float64")
    np.testing.assert_allclose(
        at.attention(q, k, v, enable_gqa=True), sdpa(q, k, v, enable_gqa=True), **NEAR["float64"]
    )


def test_fully_masked_rows_are_zero_in_both(sdpa: Any) -> None:
    q, k, v = random_inputs(4, batch=(1,))
    mask = np.ones((17, 33), bool)
    mask[4:9] = False
    np.testing.assert_array_equal(at.attention(q, k, v, attn_mask=mask)[:, :, 4:9], 0)
    np.testing.assert_allclose(
        at.attention(q, k, v, attn_mask=mask), sdpa(q, k, v, attn_mask=mask), **NEAR["float32"]
    )


def test_lse_and_entropy_by_hand() -> None:
    q, k, _ = random_inputs(5, batch=(2,), n_keys=300, dtype="float64")
    scores = torch.from_numpy(q) @ torch.from_numpy(k).mT / 4
    rows = at.attention_statistics(q, k)
    np.testing.assert_allclose(rows.lse, scores.logsumexp(-1).numpy(), rtol=1e-13)
    entropy = torch.distributions.Categorical(logits=scores).entropy().numpy()
    np.testing.assert_allclose(rows.entropy, entropy, rtol=1e-12)


def test_tensors_are_read_in_place_and_written_by_out() -> None:
    q, k, v = (torch.from_numpy(x) for x in random_inputs(6))
    seen = at.attention(q, k, v, attn_mask=torch.ones(33, dtype=torch.bool), scale=torch.tensor(0.25))
    np.testing.assert_allclose(seen, scaled_dot_product_attention(q, k, v).numpy(), **NEAR["float32"])
    out = torch.zeros(2, 17, 16)
    at.attention(q.mT.contiguous().mT, k, v, out=out.numpy())
    np.testing.assert_allclose(out.numpy(), seen, **NEAR["float32"])


def test_a_tensor_that_needs_a_gradient_is_refused() -> None:
    q, k, v = (torch.from_numpy(x) for x in random_inputs(7))
    with pytest.raises(TypeError, match=r"query requires grad, and an array has none; use query\.detach\(\)"):
        at.attention(q.requires_grad_(), k, v)
