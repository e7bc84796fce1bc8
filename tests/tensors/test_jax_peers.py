# SPDX-License-Identifier: BSD-3-Clause
"""Attention on arrays of JAX against jax.nn.dot_product_attention, over the cases of JAX's own tests of it.

Left out of them: implementations for other devices, lengths of queries, float16, which JAX's does not take on
the CPU, and rows without keys, which are 0 here.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import attnscale as at
import numpy as np
import pytest

jax = pytest.importorskip("jax")
jnp = jax.numpy

pytestmark = pytest.mark.jax

N, HEADS, D = 64, 4, 32
ours = partial(at.jax.attention, layout="bshd")
theirs = jax.nn.dot_product_attention


def draw(seed: int, *shape: int, dtype: Any) -> Any:
    return np.random.default_rng(seed).standard_normal(shape, np.float32).astype(dtype)


def close(found: Any, wanted: Any, tolerance: float) -> None:
    for each, exact in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        assert each.dtype == exact.dtype
        wide = np.asarray(exact, np.float32)
        np.testing.assert_allclose(np.asarray(each, np.float32), wide, rtol=tolerance, atol=tolerance)


def with_gradients(call: Any, *arrays: Any) -> Any:
    """The output, and its gradients for a random gradient of the output."""

    @jax.jit
    def run(grad: Any, *arrays: Any) -> Any:
        output, pull_back = jax.vjp(call, *arrays)
        return output, pull_back(grad)

    return run(draw(9, *arrays[0].shape, dtype=arrays[0].dtype), *arrays)


@pytest.mark.parametrize(
    ("dtype", "group", "is_vmapped"),
    [(np.float32, 1, False), (np.float32, 2, True), (jnp.bfloat16, 4, False), (jnp.bfloat16, 1, True)],
)
def test_grouped_heads_and_their_gradients(dtype: Any, group: int, is_vmapped: bool) -> None:
    q = draw(0, 2, N, HEADS, D, dtype=dtype)
    k, v = (draw(i, 2, N, HEADS // group, D, dtype=dtype) for i in (1, 2))
    call = partial(ours, enable_gqa=True)
    found = with_gradients(jax.vmap(call) if is_vmapped else call, q, k, v)
    close(found, with_gradients(theirs, q, k, v), 2e-5 if dtype == np.float32 else 0.02)


def test_the_log_sum_exp_and_its_gradient() -> None:
    """Theirs drops the gradient: ours is compared with that of the sum written out."""
    q, k, v = (draw(i, 2, N, HEADS, D, dtype=np.float32) for i in range(3))
    call = lambda q, k: at.jax.attention_statistics(q, k, statistics="lse", layout="bshd").lse  # noqa: E731
    _, lse = jax.jit(partial(theirs, return_residual=True))(q, k, v)
    np.testing.assert_allclose(jax.jit(call)(q, k), np.asarray(lse).swapaxes(1, 2), rtol=1e-6)

    def written_out(q: Any, k: Any) -> Any:
        return jax.scipy.special.logsumexp(jnp.einsum("bihd,bjhd->bhij", q, k) / np.sqrt(D), axis=-1)

    weights = draw(4, 2, HEADS, N, dtype=np.float32)
    found, wanted = (
        jax.jit(jax.grad(lambda q, k, each=each: (weights * each(q, k)).sum(), (0, 1)))(q, k)
        for each in (call, written_out)
    )
    close(found, wanted, 2e-6)


LENGTHS = np.array([N // 4, N // 2], np.int32)
TRIANGLE = np.tri(N, dtype=bool)[None, None]
#: Options of JAX's function, and of ours.
MASKS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "causal": ({"is_causal": True}, {"is_causal": True}),
    "padding": ({"key_value_seq_lengths": LENGTHS}, {"key_lengths": LENGTHS}),
    "custom": ({"mask": TRIANGLE}, {"attn_mask": TRIANGLE}),
    "causal padding": (
        {"is_causal": True, "key_value_seq_lengths": LENGTHS},
        {"is_causal": True, "key_lengths": LENGTHS},
    ),
    "custom padding": (
        {"mask": TRIANGLE, "key_value_seq_lengths": LENGTHS},
        {"attn_mask": TRIANGLE, "key_lengths": LENGTHS},
    ),
    "causal sliding window": (
        {"is_causal": True, "local_window_size": (3, 2)},
        {"is_causal": True, "window": (3, 2)},
    ),
    "sliding window": ({"local_window_size": (3, 0)}, {"window": (3, 0)}),
    "wide window": ({"local_window_size": (2 * N, 2 * N)}, {"window": (2 * N, 2 * N)}),
}


@pytest.mark.parametrize("name", MASKS)
def test_masks(name: str) -> None:
    arrays = [draw(i, 2, N, HEADS, D, dtype=np.float32) for i in range(3)]
    of_theirs, of_ours = MASKS[name]
    wanted = with_gradients(partial(theirs, **of_theirs), *arrays)
    close(with_gradients(partial(ours, **of_ours), *arrays), wanted, 5e-5)


@pytest.mark.parametrize(("batch", "is_causal"), [(1, True), (2, False)])
def test_a_bias_and_its_gradient(batch: int, is_causal: bool) -> None:
    arrays = [draw(i, 2, 32, HEADS, D, dtype=np.float32) for i in range(3)]
    bias = draw(3, batch, HEADS, 32, 32, dtype=np.float32)
    wanted = with_gradients(lambda q, k, v, b: theirs(q, k, v, bias=b, is_causal=is_causal), *arrays, bias)
    call = lambda q, k, v, b: ours(q, k, v, attn_mask=b, is_causal=is_causal)  # noqa: E731
    close(with_gradients(call, *arrays, bias), wanted, 5e-5)


def test_a_bias_of_each_sample() -> None:
    arrays = [draw(i, 3, 2, 16, HEADS, D, dtype=np.float32) for i in range(3)]
    bias = draw(3, 3, 1, HEADS, 16, 16, dtype=np.float32)
    call = jax.vmap(lambda q, k, v, b: ours(q, k, v, attn_mask=b))
    peer = jax.vmap(lambda q, k, v, b: theirs(q, k, v, bias=b))
    close(with_gradients(call, *arrays, bias), with_gradients(peer, *arrays, bias), 5e-5)
