# SPDX-License-Identifier: BSD-3-Clause
"""Normalizers as values: names, representations, refusals, sinks, and normalised queries and keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attnscale as at
import numpy as np
import pytest
from attnscale import normalizers as N
from attnscale import reference
from attnscale.normalizers import *  # noqa: F403  # for eval(repr(...))
from cases import random_inputs
from test_normalizers import EVERY

Q, K, V = random_inputs(1)


@pytest.mark.parametrize("normalizer", EVERY, ids=repr)
def test_representations_evaluate_to_equals(normalizer: N.Normalizer) -> None:
    same = eval(repr(normalizer))
    assert same == normalizer
    assert hash(same) == hash(normalizer)
    assert normalizer != N.TopK(999)


def test_equal_normalizers() -> None:
    np.testing.assert_array_equal(at.attention(Q, K, V, normalizer=N.Softmax()), at.attention(Q, K, V))
    assert N.Sink([1, 2]) == N.Sink(np.array([1.0, 2.0], np.float32))
    assert N.SoftmaxN(1) != N.Sink(0.0)


VALUES: list[tuple[Callable[[], Any], str]] = [
    (lambda: N.Entmax(1), "alpha must be greater than 1, got 1; alpha = 1 is softmax: use Softmax"),
    (lambda: N.Entmax(0.5), "alpha must be greater than 1, got 0.5; Softmax() is alpha = 1"),
    (lambda: N.Entmax(np.inf), "alpha must be finite, got inf"),
    (lambda: N.TopK(0), "k must be at least 1, got 0"),
    (lambda: N.SoftmaxN(0), "n must be greater than 0 (Softmax() is n = 0), got 0"),
    (lambda: N.Sink([np.nan]), "logits must be finite"),
    (lambda: N.Sigmoid(np.inf), "bias must be finite, got inf"),
    (lambda: N.Softpick(-1), "eps must be at least 0, got -1"),
    (lambda: N.ReLU("mean"), "divide must be one of 'n', 'sum', got 'mean'"),
    (lambda: N.get("max"), "normalizer must be one of 'softmax', 'softmax_n', 'sink'"),
    (lambda: N.get("entmx"), "did you mean 'entmax'? normalizer must be one of"),
    (lambda: N.get("softmax_2"), "did you mean 'softmax_"),
    (lambda: N.get("top_k(k=8, k=9)"), "normalizer 'top_k' must have each parameter once, got 'k' twice"),
    (lambda: N.get("top_k(8)"), "a normalizer is written NAME or NAME(parameter=value, ...), got 'top_k(8)'"),
    (
        lambda: at.attention(Q, K, V, normalizer=N.Sink(np.zeros((2, 2)))),
        "logits must broadcast to (..., heads, n_queries)",
    ),
    (
        lambda: at.attention_entropy(Q, K, normalizer="sigmoid"),
        "rows of Sigmoid(bias=None) have the statistics max_score, n_visible, argmax, max_weight, support, "
        "min_score; got 'entropy'",
    ),
    (
        lambda: at.entropy_curve(Q, K, [1], normalizer="relu"),
        "must be 'softmax', SoftmaxN or Sink for entropy_curve, got 'relu'; attention_statistics(",
    ),
    (lambda: at.attention_state(Q, K, V, normalizer=N.TopK(2)), "'softmax' for attention_state"),
    (lambda: at.solve_scale(Q, K, 1.0, normalizer="sparsemax"), "'softmax' for solve_scale"),
]
KINDS: list[tuple[Callable[[], Any], str]] = [
    (lambda: N.Entmax("2"), "alpha must be a number, got '2'"),  # type: ignore[arg-type]
    (lambda: N.TopK(2.5), "k must be an integer, got 2.5"),  # type: ignore[arg-type]
    (lambda: N.Sink("a"), "logits must be numbers, got 'a'"),
    (lambda: N.get("sink"), "normalizer 'sink' needs logits: 'sink(logits=...)'"),
    (lambda: N.get("top_k"), "normalizer 'top_k' needs k: 'top_k(k=...)'"),
    (lambda: N.get("entmax(beta=2)"), "normalizer 'entmax' has no parameter 'beta'; its parameters: alpha"),
    (lambda: N.get("softmax(n=2)"), "normalizer 'softmax' has no parameter 'n'; its parameters: none"),
    (
        lambda: N.get("top_k(k=8)", k=9),
        "parameters stand in the name or beside it, got 'top_k(k=8)' and ['k']",
    ),
    (lambda: N.get(N.TopK(8), k=9), "parameters go with a normalizer's name, got TopK(k=8) and ['k']"),
    (lambda: N.get(3), "normalizer must be a name or one of attnscale.normalizers, got 3"),
]


@pytest.mark.parametrize(
    ("call", "message", "error"),
    [*((*each, ValueError) for each in VALUES), *((*each, TypeError) for each in KINDS)],
)
def test_refusals(call: Callable[[], Any], message: str, error: type[Exception]) -> None:
    with pytest.raises(error) as caught:
        call()
    assert message in str(caught.value)


def test_the_usual_statistics_are_those_that_the_rows_have() -> None:
    rows = at.attention_statistics(Q, K, V, normalizer="sparsemax")
    assert not hasattr(rows, "lse")
    assert hasattr(rows, "entropy")
    assert at.attention_statistics(Q, K, V, normalizer="relu").output is not None


@pytest.mark.parametrize("n_queries", [3, 30])
@pytest.mark.parametrize("scale", [1e-15, 1.0, 1e12])
@pytest.mark.parametrize("normalizer", [N.ReLU("sum"), N.SquaredReLU("sum")], ids=repr)
def test_entropy_of_weights_over_their_sum(normalizer: N.Normalizer, scale: float, n_queries: int) -> None:
    """The size of the scores does not matter; a row without a positive score has no weights."""
    q, k, _ = random_inputs(5, n_queries=n_queries, n_keys=300, dtype="float32")
    q[0, 1], k[0, :, 0] = 0, 1 + np.abs(k[0, :, 0])
    q[0, 1, 0] = -1  # every score of this row is negative
    names = ("entropy", "concentration", "support", "max_weight")
    rows = at.attention_statistics(q, k, scale=scale, normalizer=normalizer, statistics=names)
    truth = at.reference.attention_statistics(q, k, scale=scale, normalizer=normalizer)
    for name in names:
        atol = 3e-5 if name == "entropy" else 1e-6
        np.testing.assert_allclose(getattr(rows, name), getattr(truth, name), rtol=0, atol=atol)
        assert getattr(rows, name)[0, 1] == 0
    assert (rows.entropy <= np.log(np.maximum(rows.support, 1)) + 1e-5).all()


def test_which_weights_have_an_entropy() -> None:
    assert "entropy" in N.ReLU("sum").statistics
    assert "entropy" not in N.ReLU("n").statistics  # also after an instance that has one
    assert "support" in N.Softpick().statistics


@pytest.mark.parametrize("n_keys", [33, 20_000])  # 20,000 keys of few queries are split
def test_a_sink_is_one_more_outcome(n_keys: int) -> None:
    q, k, v = random_inputs(2, n_queries=3, n_keys=n_keys, dtype="float64")
    plain = at.attention_statistics(q, k, v)
    names = ("lse", "entropy", "mean_score", "sink_weight", "max_weight")
    for logit in (-1000.0, 0.0, 5.0, 1000.0):
        rows = at.attention_statistics(q, k, v, normalizer=N.Sink(logit), statistics=names)
        lse = np.logaddexp(plain.lse, logit)
        np.testing.assert_allclose(rows.lse, lse, rtol=1e-14)
        np.testing.assert_allclose(rows.sink_weight, np.exp(logit - lse), atol=1e-13)
        np.testing.assert_allclose(rows.output, plain.output * np.exp(plain.lse - lse)[..., None], atol=1e-14)
        np.testing.assert_allclose(rows.entropy, rows.lse - rows.mean_score, atol=1e-11)


@pytest.mark.parametrize("shape", [(2, 3, 5), (3, 5), (1, 5), (2, 1, 1)])
def test_a_sink_of_each_row(shape: tuple[int, ...]) -> None:
    """Row by row the call has the numbers of a sink of one logit, and the gradient of that row's logit."""
    rng = np.random.default_rng(3)
    q, k, v = (rng.standard_normal((2, 3, n, 4)) for n in (5, 7, 7))
    logits = rng.standard_normal(shape)
    sink, of_rows = N.Sink(logits), np.broadcast_to(logits, (2, 3, 5))
    found = at.attention_statistics(q, k, v, normalizer=sink, statistics=N.Sink.statistics)
    weights = at.attention_weights(q, k, normalizer=sink)
    gradient = at.attention_gradients(q, k, v, v[..., :5, :], normalizer=sink).sink
    wanted = np.zeros((2, 3, 5))
    for at_row in np.ndindex(2, 3, 5):
        own = {"normalizer": N.Sink(of_rows[at_row])}
        heads, one = at_row[:2], (q[at_row][None, None], k[at_row[:2]][None], v[at_row[:2]][None])
        alone = at.attention_statistics(*one, statistics=N.Sink.statistics, **own)
        for name in ("output", "lse", "entropy", "sink_weight", "concentration"):
            np.testing.assert_allclose(getattr(found, name)[at_row], getattr(alone, name)[0, 0], rtol=1e-12)
        np.testing.assert_allclose(weights[at_row], at.attention_weights(*one[:2], **own)[0, 0], rtol=1e-12)
        grad = v[heads][at_row[2]][None, None]
        wanted[at_row] = at.attention_gradients(*one, grad, **own).sink
    axes = tuple(i for i, n in enumerate((1,) * (3 - len(shape)) + shape) if n == 1)
    assert np.shape(gradient) == shape
    np.testing.assert_allclose(gradient, wanted.sum(axes, keepdims=True).reshape(shape), rtol=1e-10)


def test_sinks_of_rows_are_compared_by_their_numbers() -> None:
    logits = np.arange(6.0).reshape(2, 3)
    sink = N.Sink(logits)
    logits[0, 0] = 9
    assert sink == N.Sink(np.arange(6).reshape(2, 3)) != N.Sink(logits)
    assert hash(sink) == hash(N.Sink(np.arange(6).reshape(2, 3)))
    assert N.get(sink.spelling) == sink


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("normalizer", [N.SoftmaxN(2.0), N.Sink(-3.0), N.Sink([4.0, -1.0])], ids=repr)
def test_entropy_curve_with_a_sink(normalizer: N.Normalizer, dtype: str) -> None:
    q, k, _ = random_inputs(6, batch=(3,), n_queries=20, n_keys=33, dtype=dtype)
    k[0, 0, 3, 2] = np.nan
    scales = np.array([-1.0, 0.0, 0.1, 0.3, 3.0])
    ids = np.repeat([0, 1, 2], [10, 3, 20])
    for options in ({"causal": "bottom_right", "key_lengths": [0, 9, 33]}, {"document_ids": ids}):
        curve = at.entropy_curve(q, k, scales, normalizer=normalizer, **options)
        with np.errstate(invalid="ignore"):
            truth = at.reference.entropy_curve(q, k, scales, normalizer=normalizer, **options)
        for name in ("entropy", "lse", "mean", "variance"):
            limit = 1e-12 if dtype == "float64" else 3e-6
            found, wanted = getattr(curve, name), getattr(truth, name)
            assert found.dtype == dtype
            np.testing.assert_allclose(found, wanted, rtol=100 * limit, atol=10 * limit)
        one = at.attention_entropy(q, k, scale=0.3, normalizer=normalizer, **options)
        np.testing.assert_allclose(curve.entropy[..., 3], one, rtol=0, atol=1e-5)


def test_slope_of_the_curve_with_a_sink() -> None:
    """d lse / d scale is the mean, the sink's dot product being 0."""
    q, k, _ = random_inputs(7, n_queries=5, n_keys=40, dtype="float64")
    curve = at.entropy_curve(q, k, [0.3 - 1e-4, 0.3, 0.3 + 1e-4], normalizer=N.Sink(1.0))
    slope = (curve.lse[..., 2] - curve.lse[..., 0]) / 2e-4
    np.testing.assert_allclose(slope, curve.mean[..., 1], rtol=0, atol=1e-5)


@pytest.mark.parametrize("n_queries", [2, 40])
def test_a_row_without_keys_is_all_sink(n_queries: int) -> None:
    q, k, v = random_inputs(3, n_queries=n_queries)
    rows = at.attention_statistics(
        q, k, v, normalizer=N.Sink(1.5), key_lengths=0, statistics=N.Sink.statistics
    )
    assert not rows.output.any()
    for name, wanted in {
        "sink_weight": 1, "entropy": 0, "lse": 1.5, "mean_score": 1.5, "max_score": -np.inf, "max_weight": 0,
        "concentration": 1, "argmax": -1, "support": 0, "renyi2": 0, "min_score": np.inf,
    }.items():  # fmt: skip
        assert (getattr(rows, name) == np.float32(wanted)).all(), name


def test_a_sink_is_a_state_of_its_own() -> None:
    parts = [at.attention_state(Q, K[:, cut], V[:, cut]) for cut in (slice(9), slice(9, None))]
    logit = np.full_like(parts[0].lse, 1.5)
    merged = at.merge_states([*parts, at.AttentionState(np.zeros_like(parts[0].output), logit, logit)])
    whole = at.attention_statistics(Q, K, V, normalizer=N.Sink(1.5))
    np.testing.assert_allclose(merged.output, whole.output, atol=1e-6)
    np.testing.assert_allclose(merged.lse, whole.lse, atol=1e-6)
    np.testing.assert_allclose(merged.entropy, whole.entropy, atol=2e-6)


def test_softmax_reports_no_sink_and_full_support() -> None:
    rows = at.attention_statistics(Q, K, is_causal=True, statistics=("sink_weight", "support", "n_visible"))
    assert not rows.sink_weight.any()
    np.testing.assert_array_equal(rows.support, rows.n_visible)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_qk_norm(dtype: str) -> None:
    q, k, v = random_inputs(4, dtype=dtype, head_dim=12)
    q[0, 2] = 0
    for kind, length in (("l2", 1.0), ("rms", np.sqrt(12))):
        unit = [
            x.astype(np.float64)
            * (length / np.maximum(np.linalg.norm(x.astype(np.float64), axis=-1), 1e-30))[..., None]
            for x in (q, k)
        ]
        wanted = at.attention(*unit, v.astype(np.float64), scale=0.7)
        got = at.attention(q, k, v, qk_norm=kind, scale=0.7)
        assert got.dtype == dtype
        np.testing.assert_allclose(got, wanted, atol=4 * float(np.finfo(dtype).eps))
        np.testing.assert_allclose(
            at.entropy_curve(q, k, [0.7], qk_norm=kind).entropy[..., 0],
            at.attention_entropy(*unit, scale=0.7),
            atol=2e-6,
        )
        state = at.attention_state(q, k, v, qk_norm=kind, scale=0.7)
        np.testing.assert_array_equal(state.output, got)


def test_qk_norm_of_huge_and_tiny_rows() -> None:
    for size in (1e-300, 1e300):
        got = at.attention(Q.astype(np.float64) * size, K, V, qk_norm="l2", scale=3.0)
        wanted = at.attention(Q.astype(np.float64), K, V, qk_norm="l2", scale=3.0)
        np.testing.assert_allclose(got, wanted, rtol=1e-12)


def test_twins_have_at_most_15_lines() -> None:
    import inspect

    module = inspect.getmodule(reference.weigh)
    own = inspect.getmembers(
        module, lambda each: inspect.isfunction(each) and each.__module__ == module.__name__
    )
    for name, function in own:
        if name == "weigh" or name.startswith("_"):
            continue  # weigh dispatches to the others
        body = inspect.getsource(function).split('"""')[2].strip().splitlines()
        assert len(body) <= 15, name


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_differential_attention(layout: str) -> None:
    (q1, k1, v), (q2, k2, _) = (random_inputs(seed, dtype="float64") for seed in (5, 6))
    lam = np.array([0.3, -1.5])
    for options in ({}, {"is_causal": True, "scale": "log_n"}, {"normalizer": "sparsemax"}):
        p1, p2 = (
            reference.attention(q, k, np.broadcast_to(np.eye(33), (2, 33, 33)), **options)
            for q, k in ((q1, k1), (q2, k2))
        )
        wanted = (p1 - lam[:, None, None] * p2) @ v
        arrays = [x if layout == "bhsd" else x.swapaxes(0, 1) for x in (q1, k1, q2, k2, v)]
        got = at.variants.differential_attention(*arrays, lam=lam[:, None], layout=layout, **options)
        np.testing.assert_allclose(got if layout == "bhsd" else got.swapaxes(0, 1), wanted, atol=1e-12)
    half = [x.astype(np.float16) for x in (q1, k1, q2, k2, v)]
    assert at.variants.differential_attention(*half, lam=0.5).dtype == np.float16


def test_differential_attention_refuses() -> None:
    call = at.variants.differential_attention
    with pytest.raises(ValueError, match=r"lam must broadcast to .* = \(2, 17\), got shape \(3,\)"):
        call(Q, K, Q, K, V, lam=np.ones(3))
    with pytest.raises(ValueError, match="both maps must have the same heads and queries"):
        call(Q, K, Q[:, :5], K, V, lam=1)
    with pytest.raises(TypeError, match="has no out"):
        call(Q, K, Q, K, V, lam=1, out=V)
    with pytest.raises(TypeError, match="lam must be a number"):
        call(Q, K, Q, K, V, lam="a")


SPELLINGS = {
    "softmax": N.Softmax(),
    "softmax_n": N.SoftmaxN(1),
    "softmax_1": N.SoftmaxN(1),
    "softmax_n(n=2.5)": N.SoftmaxN(2.5),
    "sink(logits=[0.1, -0.2])": N.Sink([0.1, -0.2]),
    "sigmoid(bias=-3)": N.Sigmoid(-3),
    "relu(divide='sum')": N.ReLU("sum"),
    "squared_relu": N.SquaredReLU(),
    "softpick(eps=0)": N.Softpick(0),
    "entmax": N.Entmax(1.5),
    "entmax15": N.Entmax(1.5),
    " entmax( alpha = 1.2 ) ": N.Entmax(1.2),
    "sparsemax": N.Sparsemax(),
    "top_k(k=3)": N.TopK(3),
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_normalizer_is_written_as_a_name_with_parameters(spelling: str) -> None:
    assert N.get(spelling) == SPELLINGS[spelling]
    np.testing.assert_array_equal(
        at.attention(Q, K, V, normalizer=spelling), at.attention(Q, K, V, normalizer=SPELLINGS[spelling])
    )


def test_get_takes_the_name_of_every_normalizer() -> None:
    classes = {each for each in map(vars(N).get, N.__all__) if isinstance(each, type)} - {N.Normalizer}
    assert {each.name for each in classes} == set(N.names())
    needed = {"sink": {"logits": 0.5}, "top_k": {"k": 2}}
    for each in classes:
        assert type(N.get(each.name, **needed.get(each.name, {}))) is each
