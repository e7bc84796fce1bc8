# SPDX-License-Identifier: BSD-3-Clause
"""Attention on arrays of JAX has the numbers of attention on arrays, however the call is transformed."""

from __future__ import annotations

from typing import Any

import attnscale as at
import numpy as np
import pytest

jax = pytest.importorskip("jax")
jnp = jax.numpy

pytestmark = pytest.mark.jax

NAMES = at.jax.AttentionStatistics._fields[1:]

N, M, D = 13, 17, 8
RNG = np.random.default_rng(0)


def draw(*shape: int, dtype: Any = np.float32) -> Any:
    return RNG.standard_normal(shape).astype(dtype)


QKV = draw(2, 3, N, D), draw(2, 3, M, D), draw(2, 3, M, 5)
SINK = np.array([0.5, -1.0, 2.0])
LENGTHS = np.array([4, M])


def same(found: Any, wanted: Any) -> None:
    """Check equality to the bit: both run the same kernels."""
    for name in ("output", *NAMES):
        rows = getattr(found, name)
        if rows is None:
            assert not hasattr(wanted, name)
        else:
            assert isinstance(rows, jax.Array)
            np.testing.assert_array_equal(np.asarray(rows), getattr(wanted, name), err_msg=name)


@pytest.mark.parametrize("wide", [False, True])
def test_masks_hide_by_low_numbers_of_the_type_that_jax_gives_them(wide: bool) -> None:
    """Without 64 bits an array of float64 is one of float32, also where a law counts keys."""
    hidden = RNG.random((N, M)) < 0.3
    hidden[2] = True
    with jax.enable_x64(wide):
        rows = []
        for low in (*(np.finfo(x).min for x in (np.float64, np.float32)), -np.inf):
            mask = np.where(hidden, float(low), 0.25)
            with np.errstate(over="ignore"):
                traced = jnp.asarray(mask)
            options: dict[str, Any] = {"attn_mask": mask, "scale": "log_n", "statistics": NAMES}
            rows.append(at.jax.attention_statistics(*QKV, **options))
            gradient = jax.grad(lambda m: at.jax.attention(*QKV, attn_mask=m).sum())(traced)
            assert (low == np.finfo(np.float32).min and wide) or (np.asarray(gradient)[hidden] == 0).all()
        same(rows[0], rows[2])
        if wide:
            assert (rows[1].n_visible == M).all()
        else:
            same(rows[1], rows[2])


def test_a_function_of_the_distance_may_return_a_traced_table() -> None:
    def call(slope: Any) -> Any:
        return at.jax.attention(*QKV, distance_bias=lambda t: -slope * jnp.abs(t), is_causal=True)

    table = -np.float32(0.25) * np.arange(M, dtype=np.float32)
    wanted = at.attention(*QKV, distance_bias=table, is_causal=True)
    np.testing.assert_array_equal(jax.jit(call)(np.float32(0.25)), wanted)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_types_come_back(dtype: str) -> None:
    with jax.enable_x64(dtype == "float64"):
        q, k, v = (jnp.asarray(x, dtype) for x in QKV)
        found = at.jax.attention_statistics(q, k, v, statistics=NAMES, is_causal=True)
        assert found.output.dtype == dtype
        assert found.lse.dtype == ("float64" if dtype == "float64" else "float32")
        assert found.argmax.dtype == ("int64" if dtype == "float64" else "int32")
        wanted = at.attention_statistics(*map(np.asarray, (q, k, v)), statistics=NAMES, is_causal=True)
    same(found, wanted)


def test_mixed_types_are_widened() -> None:
    q, k, v = (jnp.asarray(x, t) for x, t in zip(QKV, ("float16", "bfloat16", "float16"), strict=True))
    found = at.jax.attention(q, k, v)
    assert found.dtype == jnp.float32
    np.testing.assert_array_equal(found, at.attention(*map(np.asarray, (q, k, v))))


def test_entropy_alone() -> None:
    found = at.jax.attention_entropy(*QKV[:2], scale="log_n", is_causal=True)
    np.testing.assert_array_equal(found, at.attention_entropy(*QKV[:2], scale="log_n", is_causal=True))


def test_statistics_are_a_pytree() -> None:
    found = at.jax.attention_statistics(*QKV, statistics="entropy")
    assert len(jax.tree.leaves(found)) == 2
    assert jax.tree.map(lambda x: 2 * x, found).entropy.shape == (2, 3, N)


# ---- vmap ---------------------------------------------------------------------------------------

IN_AXES = [(0, 0, 0), (0, None, None), (None, 0, None), (None, None, 0), (2, 0, 1), (0, -1, 0)]


@pytest.mark.parametrize("in_axes", IN_AXES, ids=str)
@pytest.mark.parametrize("options", [{}, {"is_causal": True, "scale": "log_n"}, {"key_lengths": LENGTHS}])
def test_samples_have_the_numbers_of_single_calls(in_axes: tuple[Any, ...], options: Any) -> None:
    samples = [draw(4, *x.shape) if axis is not None else x for x, axis in zip(QKV, in_axes, strict=True)]
    moved = [x if a is None else np.moveaxis(x, 0, a) for x, a in zip(samples, in_axes, strict=True)]
    call = jax.vmap(lambda *x: at.jax.attention_statistics(*x, **options), in_axes=in_axes)
    found = jax.jit(call)(*moved)
    for i in range(4):
        single = (x if axis is None else x[i] for x, axis in zip(samples, in_axes, strict=True))
        same(jax.tree.map(lambda x, i=i: x[i], found), at.attention_statistics(*single, **options))


SAMPLED = {
    "attn_mask": RNG.random((4, N, M)) < 0.5,
    "scale": draw(4, 3, 1),
    "key_lengths": RNG.integers(0, M + 1, (4, 2)),
    "document_ids": np.sort(RNG.integers(0, 4, (4, M)), axis=-1),
    "distance_bias": draw(4, 3, M),
    "distance_scale": draw(4, M),
}


@pytest.mark.parametrize("name", SAMPLED)
def test_options_of_each_sample(name: str) -> None:
    given = SAMPLED[name]
    found = jax.jit(jax.vmap(lambda x: at.jax.attention(*QKV, **{name: x})))(given)
    for i in range(4):
        np.testing.assert_array_equal(found[i], at.attention(*QKV, **{name: given[i]}))


def test_two_axes_of_samples_and_samples_of_sinks() -> None:
    q, logits = draw(2, 4, 3, N, D), draw(4, 3)
    k, v = (x[0] for x in QKV[1:])
    call = lambda q, s: at.jax.attention(q, k, v, normalizer=at.jax.Sink(s))  # noqa: E731
    found = jax.vmap(jax.vmap(call), in_axes=(0, None))(q, logits)
    for i in range(4):
        wanted = at.attention(q[:, i], k, v, normalizer=at.normalizers.Sink(logits[i]))
        np.testing.assert_array_equal(found[:, i], wanted)


@pytest.mark.parametrize("dtype", [np.int32, np.int8])
@pytest.mark.parametrize("table", ["distance_bias", "distance_scale"])
@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_tables_within_documents_have_the_entries_that_traced_lengths_may_show(
    table: str, layout: str, dtype: Any
) -> None:
    q, k, v = (draw(1, 2, n, 4) for n in (150, 200, 200))
    q, k, v = (q, k, v) if layout == "bhsd" else (np.swapaxes(x, 1, 2) for x in (q, k, v))
    options = {"document_ids": np.arange(200) // 90, "layout": layout, table: draw(90)}
    call = jax.jit(lambda lengths: at.jax.attention(q, k, v, key_lengths=lengths, **options))
    for n in (127, 1, 0):
        wanted = at.attention(q, k, v, key_lengths=n, **options)
        np.testing.assert_array_equal(call(dtype(n)), wanted)


@pytest.mark.parametrize("shape", [(3, N), (2, 3, N), (2, 1, 1)])
def test_a_sink_of_each_row(shape: tuple[int, ...]) -> None:
    logits = draw(*shape)
    attend = lambda s: at.jax.attention(*QKV, normalizer=at.jax.Sink(s))  # noqa: E731
    normalizer = at.normalizers.Sink(logits)
    np.testing.assert_array_equal(jax.jit(attend)(logits), at.attention(*QKV, normalizer=normalizer))
    gradient = jax.grad(lambda s: attend(s).sum())(logits)
    ones = np.ones_like(at.attention(*QKV))
    wanted = at.attention_gradients(*QKV, ones, normalizer=normalizer).sink
    np.testing.assert_allclose(gradient, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("law", ["log_n", "ssmax(s=0.43)", "llama4_temperature(floor=2)"])
@pytest.mark.parametrize(
    ("option", "given"),
    [
        ("attn_mask", np.tri(6, 9, 3, dtype=bool)),
        ("key_lengths", np.array([7, 4])),
        ("document_ids", np.array([1, 1, 1, 2, 2, 2, 2, 3, 3])),
    ],
)
def test_laws_count_keys_of_traced_options_when_the_program_runs(law: str, option: str, given: Any) -> None:
    rng = np.random.default_rng(5)
    q, k, v = (rng.standard_normal((2, 3, n, 8), np.float32) for n in (6, 9, 9))
    want = at.attention_statistics(q, k, v, scale=law, is_causal=True, **{option: given})
    rows = jax.jit(lambda x: at.jax.attention_statistics(q, k, v, scale=law, is_causal=True, **{option: x}))(
        given
    )
    np.testing.assert_array_equal(rows.output, want.output)
    np.testing.assert_array_equal(rows.entropy, want.entropy)
    gradients = at.attention_gradients(
        q, k, v, np.ones_like(want.output), scale=law, is_causal=True, **{option: given}
    )
    loss = lambda q, x: at.jax.attention(q, k, v, scale=law, is_causal=True, **{option: x}).sum()  # noqa: E731
    np.testing.assert_array_equal(jax.jit(jax.grad(loss))(q, given), gradients.query)
