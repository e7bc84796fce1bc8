# SPDX-License-Identifier: BSD-3-Clause
"""Sums over many keys in plain operations of PyTorch, in float32, against NumPy and PyTorch in float64."""

from __future__ import annotations

from typing import Any

import attnscale as at
import numpy as np
import pytest

torch = pytest.importorskip("torch")

from attnscale.torch._plain.sums import log_softmax, softmax, softmax_entropy, weighted_sum  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("default")]

N = 2**17
NAMES = ("entropy", "lse", "mean_score", "max_weight", "concentration")


def heads(spread: float) -> tuple[Any, Any, Any]:
    """Two queries with many keys, whose scores are within a few times the spread of each other."""
    rng = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(1, n, 16, generator=rng) for n in (2, N, N))
    return query * spread, key, value * 0.1 + 1


def in_float64(query: Any, key: Any, value: Any, n: float = 0.0) -> dict[str, Any]:
    """Output and statistics in NumPy, with a sink of the score ln `n`."""
    q, k, v = (x.double().numpy() for x in (query, key, value))
    scores = q @ k.swapaxes(-1, -2) / 4
    total = np.exp(scores).sum(-1) + n
    p, own = np.exp(scores) / total[..., None], n / total
    rest, of_sink = (own * np.log(own), own * np.log(n)) if n else (0.0, 0.0)
    return {
        "output": p @ v,
        "entropy": -(p * np.log(p)).sum(-1) - rest,
        "lse": np.log(total),
        "mean_score": (p * scores).sum(-1) + of_sink,
        "max_weight": p.max(-1),
        "concentration": (p * p).sum(-1) + own**2,
    }


@pytest.mark.parametrize("spread", [0.0, 1e-3, 0.1, 1.0])
@pytest.mark.parametrize("normalizer", ["softmax", "softmax_n(n=2.0)"])
@pytest.mark.parametrize("hidden", [False, True])
def test_long_rows_keep_their_digits(spread: float, normalizer: str, hidden: bool) -> None:
    given = heads(spread)
    n_keys = N - 3 if hidden else N
    want = in_float64(given[0], *(x[:, :n_keys] for x in given[1:]), n=2.0 if "2" in normalizer else 0.0)
    options: dict[str, Any] = {"normalizer": normalizer, "key_lengths": torch.tensor(n_keys)}
    if not hidden:
        del options["key_lengths"]
    rows = at.torch.attention_statistics(*given, statistics=NAMES, backend="torch", **options)
    alone = at.torch.attention(*given, backend="torch", **options)
    for name, found in (("output", alone), ("output", rows.output), ("entropy", rows.entropy)):
        np.testing.assert_allclose(found.numpy(), want[name], rtol=0, atol=2e-6, err_msg=name)
    for name in ("lse", "mean_score"):
        np.testing.assert_allclose(getattr(rows, name).numpy(), want[name], rtol=0, atol=2e-6, err_msg=name)
    for name in ("max_weight", "concentration"):
        np.testing.assert_allclose(getattr(rows, name).numpy(), want[name], rtol=2e-6, err_msg=name)


def test_gradients_of_long_rows_keep_their_digits() -> None:
    def gradients(*given: Any) -> list[Any]:
        given = tuple(x.clone().requires_grad_() for x in given)
        query, key, value = given
        if query.dtype == torch.float64:
            weights = (query @ key.mT / 4).softmax(-1)
            loss = (weights @ value).square().sum() + torch.special.entr(weights).sum()
        else:
            rows = at.torch.attention_statistics(*given, statistics="entropy", backend="torch")
            loss = rows.output.square().sum() + rows.entropy.sum()
        return [x.double() for x in torch.autograd.grad(loss, given)]

    narrow = heads(1.0)
    for found, want in zip(gradients(*narrow), gradients(*(x.double() for x in narrow)), strict=True):
        assert (found - want).abs().max() < 2e-5 * want.abs().max()


def test_the_divergence_of_long_rows_keeps_its_digits() -> None:
    rng = torch.Generator().manual_seed(6)
    query, key = (torch.randn(1, n, 4, generator=rng) for n in (2, 2**20))
    query, other = 1e-3 * query, (query, key)
    scores = [q.double() @ k.double().mT / 2 for q, k in ((query, key), other)]
    log_p, log_other = scores[0].log_softmax(-1), (2 * torch.tanh(scores[1] / 2)).log_softmax(-1)
    want = (log_p.exp() * (log_p - log_other)).sum(-1)
    found = at.torch.attention_divergence(query, key, *other, other_softcap=2.0, backend="torch")
    torch.testing.assert_close(found.double(), want, rtol=0, atol=2e-6)


def test_the_weights_agree_with_pytorch() -> None:
    rng = torch.Generator().manual_seed(1)
    scores = torch.randn(3, 4, 50, generator=rng, dtype=torch.float64)
    scores[..., 40:] = -torch.inf
    scores[1, 2, 5] = torch.nan
    weights = softmax(scores)
    torch.testing.assert_close(weights, scores.softmax(-1), equal_nan=True)
    torch.testing.assert_close(log_softmax(scores), scores.log_softmax(-1), equal_nan=True)
    entropy = torch.special.entr(weights).sum(-1)
    torch.testing.assert_close(softmax_entropy(scores, weights), entropy, equal_nan=True)
    assert softmax(scores[..., :0]).shape == log_softmax(scores[..., :0]).shape == (3, 4, 0)


def test_the_weights_have_derivatives_of_any_order_and_in_every_mode() -> None:
    rng = torch.Generator().manual_seed(2)
    scores = torch.randn(2, 5, generator=rng, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(softmax, (scores,))
    assert torch.autograd.gradgradcheck(softmax, (scores,))
    assert torch.autograd.gradcheck(lambda x: softmax_entropy(x, softmax(x)), (scores,))
    assert torch.autograd.gradgradcheck(lambda x: softmax_entropy(x, softmax(x)), (scores,))
    fixed = scores.detach()
    tangent = torch.randn(2, 5, generator=rng, dtype=torch.float64)
    for of in (softmax, log_softmax):
        plain = torch.softmax if of is softmax else torch.log_softmax
        for transform in (
            lambda f: torch.func.jvp(f, (fixed,), (tangent,))[1],
            lambda f: torch.func.vmap(f)(fixed),
            lambda f: torch.func.vmap(torch.func.jacrev(f))(fixed),
            lambda f: torch.func.grad(lambda x: (f(x) * tangent).sum())(fixed),
        ):
            torch.testing.assert_close(transform(of), transform(lambda x, plain=plain: plain(x, -1)))


def test_parts_of_the_keys_are_all_of_them() -> None:
    rng = torch.Generator().manual_seed(3)
    for n_keys in (0, 1, 2048, 2049, 5000, 70001):
        weights = torch.rand(2, 1, 3, n_keys, generator=rng, dtype=torch.float64)
        value = torch.randn(2, n_keys, 4, generator=rng, dtype=torch.float64)
        torch.testing.assert_close(weighted_sum(weights, value), weights @ value)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("statistics", [(), ("entropy",)])
def test_a_value_that_is_not_finite_leaves_the_gradient_of_values_alone(bad: float, statistics: Any) -> None:
    """Only row 5 sees it, which is not in the loss; the gradient of values does not read values."""
    rng = torch.Generator().manual_seed(4)
    query, key, value = torch.randn(3, 2, 6, 4, generator=rng)
    weights = (query @ key.mT / 2).masked_fill(~torch.ones(6, 6).tril().bool(), -torch.inf).softmax(-1)
    share = torch.rand(2, 6, 4, generator=rng)
    value[0, 5, 1] = bad
    value.requires_grad_()
    for rows in (slice(5), slice(6)):
        found = at.torch.attention_statistics(
            query, key, value, is_causal=True, statistics=statistics, backend="torch"
        )
        loss = (found.output * share)[:, rows].sum()
        (gradient,) = torch.autograd.grad(loss, value)
        torch.testing.assert_close(gradient, weights[:, rows].mT @ share[:, rows])
    (gradient,) = torch.autograd.grad(
        (at.torch.attention(query, key, value, is_causal=True, backend="torch") * share)[:, :5].sum(), value
    )
    assert (gradient[:, 5] == 0).all()
    torch.testing.assert_close(gradient, weights[:, :5].mT @ share[:, :5])


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("name", ["query", "key"])
def test_rows_of_nan_have_the_gradients_of_the_kernels(bad: float, name: str) -> None:
    """Row 5 sees it, and NaN is in the gradient of what it sees, the query or key itself among that."""
    rng = torch.Generator().manual_seed(5)
    given = dict(zip(("query", "key", "value"), torch.randn(3, 2, 6, 4, generator=rng), strict=True))
    given[name][0, 5, 1] = bad
    found = []
    for backend in ("torch", "core"):
        leaves = [x.clone().requires_grad_() for x in given.values()]
        output = at.torch.attention(*leaves, is_causal=True, backend=backend)
        found.append(torch.autograd.grad(output.square().sum(), leaves))
    for plain, exact in zip(*found, strict=True):
        torch.testing.assert_close(plain, exact, equal_nan=True)
    assert found[0][0][0, 5].isnan().all()
    assert found[0][1][0, 5].isnan().all()
    assert found[0][0][1].isfinite().all()
