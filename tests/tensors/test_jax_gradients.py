# SPDX-License-Identifier: BSD-3-Clause
"""Gradients of attention on arrays of JAX: those of attention_gradients, and of differences."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attnscale as at
import numpy as np
import pytest

jax = pytest.importorskip("jax")
jnp = jax.numpy

pytestmark = pytest.mark.jax

N, M, D = 9, 11, 8
RNG = np.random.default_rng(1)


def draw(*shape: int, dtype: Any = np.float32) -> Any:
    return RNG.standard_normal(shape).astype(dtype)


QKV = draw(2, 2, N, D), draw(2, 2, M, D), draw(2, 2, M, 5)
GRAD = draw(2, 2, N, 5)


def test_statistics_outside_the_loss_have_gradient_zero() -> None:
    def loss(v: Any, scale: Any) -> Any:
        return at.jax.attention_statistics(*QKV[:2], v, scale=scale).entropy.sum()

    found = jax.grad(loss)(QKV[2], 0.5)
    assert found.shape == QKV[2].shape
    assert not np.asarray(found).any()
    rows = lambda q: at.jax.attention_statistics(q, QKV[1], statistics="n_visible").n_visible  # noqa: E731
    _, pull_back = jax.vjp(rows, QKV[0])
    assert not np.asarray(pull_back(np.zeros((2, 2, N), jax.dtypes.float0))[0]).any()


def test_queries_without_keys_give_and_get_nothing() -> None:
    q = np.where(np.arange(N)[:, None] == 0, np.nan, QKV[0])
    mask = np.arange(N)[:, None] > 0
    loss = lambda q, s: at.jax.attention(q, *QKV[1:], scale=s, attn_mask=mask).sum()  # noqa: E731
    found, slope = jax.grad(loss, (0, 1))(q, np.float32(0.3))
    assert not np.asarray(found)[:, :, 0].any()
    assert np.isfinite(slope)


# ---- transformed --------------------------------------------------------------------------------


@pytest.mark.parametrize("in_axes", [(0, 0, 0), (0, None, None), (None, 0, None), (None, None, 0)], ids=str)
def test_gradients_of_samples(in_axes: tuple[Any, ...]) -> None:
    samples = [draw(3, *x.shape) if axis is not None else x for x, axis in zip(QKV, in_axes, strict=True)]
    loss = lambda *x: (GRAD * at.jax.attention(*x, causal="bottom_right")).sum()  # noqa: E731
    each = jax.jit(jax.vmap(jax.grad(loss, (0, 1, 2)), in_axes=in_axes))(*samples)
    of_sum = jax.jit(jax.grad(lambda *x: jax.vmap(loss, in_axes=in_axes)(*x).sum(), (0, 1, 2)))(*samples)
    gradient = jax.jit(jax.grad(loss, (0, 1, 2)))
    for i in range(3):
        single = [x if axis is None else x[i] for x, axis in zip(samples, in_axes, strict=True)]
        wanted = gradient(*single)
        for found, exact in zip(each, wanted, strict=True):
            np.testing.assert_array_equal(found[i], exact)
    for axis, found, parts in zip(in_axes, of_sum, each, strict=True):
        exact = parts if axis is not None else parts.sum(0)
        np.testing.assert_allclose(found, exact, rtol=1e-5, atol=1e-5)


def test_gradients_of_samples_of_options() -> None:
    scales, masks = draw(3, 2, 1), draw(3, N, M)
    loss = lambda s, m: (GRAD * at.jax.attention(*QKV, scale=s, attn_mask=m)).sum()  # noqa: E731
    gradient = jax.jit(jax.grad(loss, (0, 1)))
    found = jax.jit(jax.vmap(gradient))(scales, masks)
    for i in range(3):
        for each, exact in zip(found, gradient(scales[i], masks[i]), strict=True):
            np.testing.assert_array_equal(each[i], exact)


def test_a_jacobian_of_the_entropy() -> None:
    q, k = QKV[0][0, 0], QKV[1][0, 0]
    found = jax.jit(jax.jacrev(lambda q: at.jax.attention_entropy(q, k)))(q)
    rows = np.arange(N)
    wanted = at.attention_gradients(q, k, None, grad_entropy=1.0).query
    np.testing.assert_allclose(found[rows, rows], wanted, rtol=1e-5, atol=1e-6)
    others = ~np.eye(N, dtype=bool)
    assert not np.asarray(found)[others].any()


def test_a_checkpointed_loop_over_layers() -> None:
    @jax.checkpoint
    def layer(x: Any, _: Any) -> Any:
        return x + at.jax.attention(x, x, x, is_causal=True), at.jax.attention_entropy(x, x).mean()

    def loss(x: Any) -> Any:
        x, entropies = jax.lax.scan(layer, x, None, length=3)
        return (x**2).sum() + entropies.sum()

    def unrolled(x: Any) -> Any:
        total = 0.0
        for _ in range(3):
            x, entropy = layer(x, None)
            total += entropy
        return (x**2).sum() + total

    x = QKV[0][0]
    np.testing.assert_allclose(
        jax.jit(jax.grad(loss))(x), jax.jit(jax.grad(unrolled))(x), rtol=1e-5, atol=1e-5
    )


# ---- of any arguments, in any order -------------------------------------------------------------

LEARNT = {"query": (2, 5, 3), "key": (2, 6, 3), "value": (2, 6, 4), "scale": (2, 1), "attn_mask": (5, 6)}
LEARNT |= {"distance_scale": (6,), "distance_bias": (2, 6), "logits": (2,)}
#: Sets of differentiated arguments, in a random order in which they come back.
SETS = [
    tuple(int(i) for i in np.flatnonzero(chosen)) or (0,)
    for chosen in np.random.default_rng(41).random((3, len(LEARNT))) < 0.35
]
ORDER = [*range(len(SETS)), *(int(i) for i in np.random.default_rng(42).integers(len(SETS), size=5))]
DISTANCES = np.abs(np.arange(5)[:, None] - np.arange(6))


def ours(*arrays: Any) -> Any:
    """A number from the output and four statistics of one call, which depends on all arrays."""
    q, k, v, scale, mask, factors, bias, logits = arrays
    names = ("lse", "entropy", "concentration", "score_variance")
    options: dict[str, Any] = {"attn_mask": mask, "distance_scale": factors, "distance_bias": bias}
    options |= {"scale": scale, "softcap": 3.0, "normalizer": at.jax.Sink(logits)}
    found = at.jax.attention_statistics(q, k, v, statistics=names, **options)
    return sum((each**2).sum() for each in (found.output, *(getattr(found, name) for name in names)))


def written_out(*arrays: Any) -> Any:
    """The number of `ours` in operations of JAX, from the definition: the sink is a key of value 0."""
    q, k, v, scale, mask, factors, bias, logits = arrays
    capped = 3.0 * jnp.tanh(scale[..., None] * factors[DISTANCES] * (q @ k.swapaxes(-1, -2)) / 3.0)
    sink = jnp.broadcast_to(logits[:, None, None], (2, 5, 1))
    scores = jnp.concatenate([capped + bias[:, DISTANCES] + mask, sink], -1)
    lse = jax.scipy.special.logsumexp(scores, -1)
    weights = jnp.exp(scores - lse[..., None])
    mean = (weights * scores).sum(-1)
    variance = (weights * (scores - mean[..., None]) ** 2).sum(-1)
    rows = weights[..., :-1] @ v, lse, lse - mean, (weights**2).sum(-1), variance
    return sum((each**2).sum() for each in rows)


def over_samples(call: Any) -> Any:
    """Two samples of each argument: itself and its half."""
    return jax.jit(lambda *x: jax.vmap(call)(*(jnp.stack([each, each / 2]) for each in x)).sum())


def in_a_loop(call: Any) -> Any:
    """The call twice in one compiled loop, the second time of halved arguments."""

    def loop(*x: Any) -> Any:
        step = lambda total, f: (total + call(*(each * f for each in x)), None)  # noqa: E731
        return jax.lax.scan(step, 0.0, jnp.array([1.0, 0.5]))[0]

    return jax.jit(loop)


WAYS: dict[str, Any] = {
    "eager": lambda call: call,
    "compiled": lambda call: jax.jit(lambda *x: call(*x)),
    "checkpointed": jax.checkpoint,
    "of samples": over_samples,
    "in a loop": in_a_loop,
}


@pytest.fixture
def x64() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


@pytest.fixture
def learnt(x64: None) -> list[Any]:
    rng = np.random.default_rng(40)
    return [jnp.asarray(rng.standard_normal(shape)) for shape in LEARNT.values()]


def check(found: Any, chosen: tuple[int, ...], exact: Any) -> None:
    for i, each in zip(chosen, found, strict=True):
        np.testing.assert_allclose(each, exact[i], rtol=1e-9, atol=1e-11, err_msg=list(LEARNT)[i])


@pytest.mark.parametrize("name", WAYS)
def test_gradients_of_any_arguments_in_any_order(name: str, learnt: list[Any]) -> None:
    """Earlier derivatives, in this program or in another, change no gradient."""
    call = WAYS[name](ours)
    exact = jax.jit(jax.grad(WAYS[name](written_out), tuple(range(len(LEARNT)))))(*learnt)
    for i in ORDER:
        check(jax.grad(call, SETS[i])(*learnt), SETS[i], exact)
    program = jax.jit(lambda *x: [jax.grad(call, SETS[i])(*x) for i in ORDER[:5]])
    for i, found in zip(ORDER[:5], program(*learnt), strict=True):
        check(found, SETS[i], exact)


@pytest.mark.parametrize("name", ["eager", "compiled"])
def test_passes_that_are_pulled_back_later(name: str, learnt: list[Any]) -> None:
    """Forward passes of several sets come first; each is pulled back twice, in another order."""
    call = WAYS[name](ours)
    exact = jax.jit(jax.grad(written_out, tuple(range(len(LEARNT)))))(*learnt)

    def of(chosen: tuple[int, ...]) -> Any:
        return jax.vjp(
            lambda *some: call(*(some[chosen.index(i)] if i in chosen else x for i, x in enumerate(learnt))),
            *(learnt[i] for i in chosen),
        )[1]

    passes = [of(SETS[i]) for i in ORDER]
    for i in [*np.random.default_rng(43).permutation(len(ORDER)), *range(len(ORDER))]:
        check(passes[i](jnp.ones(())), SETS[ORDER[i]], exact)


def test_jacobians_of_any_arguments_in_any_order(x64: None) -> None:
    q, k = (jnp.asarray(draw(4, 3, dtype=np.float64)) for _ in range(2))

    @jax.jit
    def exact(q: Any, k: Any) -> Any:
        weights = jax.nn.softmax(q @ k.T / np.sqrt(3), -1)
        return -(weights * jnp.log(weights)).sum(-1)

    wanted = jax.jacrev(exact, (0, 1))(q, k)
    for chosen in ((0,), (1,), (0,), (0, 1), (1,)):
        for i, found in zip(chosen, jax.jacrev(at.jax.attention_entropy, chosen)(q, k), strict=True):
            np.testing.assert_allclose(found, wanted[i], rtol=1e-9, atol=1e-12)
