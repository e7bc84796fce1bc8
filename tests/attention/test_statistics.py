# SPDX-License-Identifier: BSD-3-Clause
"""Statistics: names, form, and identities between them."""

from __future__ import annotations

import dataclasses
import itertools
import pickle

import attnscale as at
import numpy as np
import pytest
from cases import STATISTICS, case, random_inputs, same


@pytest.mark.parametrize("wanted", [*((name,) for name in STATISTICS), (), STATISTICS, STATISTICS[::-2]])
@pytest.mark.parametrize("with_value", [False, True])
def test_fields_asked_for_come_back_and_no_other(wanted: tuple[str, ...], with_value: bool) -> None:
    q, k, v = random_inputs(1)
    full = at.attention_statistics(q, k, v, statistics=STATISTICS)
    rows = at.attention_statistics(q, k, v if with_value else None, statistics=wanted)
    assert (rows.output is not None) == with_value
    for name in STATISTICS:
        if name in wanted:
            np.testing.assert_allclose(getattr(rows, name), getattr(full, name), rtol=1e-5, atol=1e-6)
        else:
            assert not hasattr(rows, name), name


def test_pairs_of_statistics_agree_with_all_of_them() -> None:
    q, k, _ = random_inputs(2, n_queries=40, n_keys=90)
    full = at.attention_statistics(q, k, statistics=STATISTICS, is_causal=True)
    for pair in itertools.combinations(STATISTICS, 2):
        rows = at.attention_statistics(q, k, statistics=pair, is_causal=True)
        with case(pair):
            same(rows, full, pair, rtol=1e-5, atol=1e-5)


def test_names_may_be_any_iterable_or_one_name() -> None:
    q, k, _ = random_inputs(3)
    for wanted in (["lse", "entropy"], {"lse": 0, "entropy": 0}, iter(("lse",)), ("lse", "lse"), "lse"):
        rows = at.attention_statistics(q, k, statistics=wanted)
        assert rows.lse is not None


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("n_queries", "n_keys"), [(60, 200), (2, 5000)])  # in tiles, and split keys
def test_concentration_is_the_sum_of_squared_weights(n_queries: int, n_keys: int, dtype: str) -> None:
    q, k, _ = random_inputs(9, n_queries=n_queries, n_keys=n_keys, dtype=dtype, spread=2.0)
    k *= np.linspace(0.1, 1, n_keys, dtype=dtype)[:, None]  # the largest score so far grows along the row
    for sign in (1, -1):
        rows = at.attention_statistics(q, k, scale=sign * 0.5, statistics=("concentration",))
        scores = sign * 0.5 * (q.astype(np.float64) @ k.astype(np.float64).swapaxes(-1, -2))
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        wanted = (weights**2).sum(-1)
        np.testing.assert_allclose(rows.concentration, wanted, rtol=5e-5 if dtype == "float32" else 1e-12)
        assert (wanted < 0.9).any()  # not only rows of one key


def test_entropy_falls_at_the_rate_of_the_variance() -> None:
    """T4, T6: d entropy / d ln(scale) = -score_variance."""
    q, k, _ = random_inputs(5, dtype="float64")
    h = 1e-5
    up, down = (at.attention_entropy(q, k, scale=0.25 * np.exp(e)) for e in (h, -h))
    variance = at.attention_statistics(q, k, scale=0.25, statistics=("score_variance",)).score_variance
    np.testing.assert_allclose((up - down) / (2 * h), -variance, rtol=1e-6, atol=1e-8)


def test_uniform_rows() -> None:
    q, k, _ = random_inputs(6, n_queries=100, n_keys=100)
    rows = at.attention_statistics(q * 0, k, statistics=STATISTICS, is_causal=True)
    n = np.arange(1, 101)
    np.testing.assert_allclose(rows.entropy[0], np.log(n), rtol=3e-7, atol=1e-7)
    np.testing.assert_allclose(rows.concentration[0], 1 / n, rtol=1e-6)
    np.testing.assert_allclose(rows.max_weight[0], 1 / n, rtol=1e-6)
    np.testing.assert_array_equal(rows.n_visible[0], n)
    np.testing.assert_array_equal(rows.argmax, 0)
    np.testing.assert_array_equal(rows.max_score, 0)
    np.testing.assert_allclose(rows.score_variance, 0, atol=1e-12)


@pytest.mark.parametrize("shift", [-80.0, 0.0, 300.0])
def test_one_dominant_key(shift: float) -> None:
    """An entropy near 0 loses no digits to cancellation."""
    scores = np.full((1, 50), shift)
    scores[0, 31] += 12
    rows = at.attention_statistics(np.ones((1, 1)), scores.T, scale=1, statistics=STATISTICS)
    p = np.exp(-12) / (1 + 49 * np.exp(-12))
    want = -(49 * p * np.log(p) + (1 - 49 * p) * np.log1p(-49 * p))
    np.testing.assert_allclose(rows.entropy, want, rtol=1e-10)
    assert rows.argmax == 31
    single = at.attention_entropy(np.ones((1, 1), np.float32), scores.T.astype(np.float32), scale=1)
    np.testing.assert_allclose(single, want, atol=2e-6)


def test_the_first_of_equal_keys_is_the_argmax() -> None:
    q = np.ones((3, 1), np.float32)
    for n in (1, 5, 16, 17, 64, 200, 1000):
        for places in ([n - 1], [n // 2, n - 1], [0, n - 1]):
            k = np.zeros((n, 1), np.float32)
            k[places] = 1
            other = next((j for j in range(n) if j not in places), 0)
            for scale, want in ((1, places[0]), (-1, other)):
                rows = at.attention_statistics(q, k, scale=scale, statistics="argmax")
                np.testing.assert_array_equal(rows.argmax, want)


def test_results_are_frozen_and_print_shapes() -> None:
    q, k, v = random_inputs(7)
    rows = at.attention_statistics(q, k, v, statistics=("entropy", "argmax"))
    with pytest.raises(dataclasses.FrozenInstanceError):
        rows.entropy = None  # type: ignore[misc]
    assert repr(rows).startswith("AttentionStatistics: rows (2, 17), output (2, 17, 16) of float32\n")
    assert rows != at.attention_statistics(q, k, v)


def test_statistics_survive_pickle() -> None:
    q, k, _ = random_inputs(8)
    rows = at.attention_statistics(q, k)
    copy = pickle.loads(pickle.dumps(rows))
    np.testing.assert_array_equal(copy.entropy, rows.entropy)
    assert copy.output is None


def test_the_core_lists_the_same_statistics() -> None:
    fields = [each.name for each in dataclasses.fields(at.AttentionStatistics) if each.name != "output"]
    with pytest.raises(ValueError, match=f"must be among {', '.join(fields)}; got 'none'"):
        at.attention_statistics(np.ones((1, 1)), np.ones((1, 1)), statistics="none")


@pytest.mark.parametrize(("dtype", "bound"), [("float32", 2e-6), ("float64", 1e-12)])
@pytest.mark.parametrize("size", [1, 1000])
def test_equal_weights_have_the_entropy_of_their_number_to_rounding(
    dtype: str, bound: float, size: float
) -> None:
    """One key has entropy 0 and n equal keys ln n, at small and large scores, within the promised bound."""
    rng = np.random.default_rng(8)
    for head_dim in (4, 64):
        q, k = (size**0.5 * rng.standard_normal((2, 100, head_dim))).astype(dtype)
        first = at.attention_entropy(q, k, is_causal=True)[0]
        assert abs(first) <= bound
        for n in (1, 2, 17, 1000):
            entropy = at.attention_entropy(q, np.repeat(k[:1], n, axis=0))
            np.testing.assert_allclose(entropy, np.log(n), rtol=0, atol=bound)
