# SPDX-License-Identifier: BSD-3-Clause
"""Reports of a sample of the rows, and the error that they say."""

from __future__ import annotations

import re
from typing import Any

import attnscale as at
import numpy as np
import pytest

N, ROWS = 512, 64


@pytest.fixture(scope="module", params=[False, True])
def sampled(request: pytest.FixtureRequest) -> tuple[np.ndarray, np.ndarray, bool, at.Report]:
    causal = bool(request.param)
    data = at.datasets.causal_qk() if causal else at.datasets.minilm_qk()
    q, k = data.query[:4, :N].astype(np.float32), data.key[:4, :N].astype(np.float32)
    found = at.report(q, k, lengths=[32, N], laws=["log_n"], rows=ROWS // 2, is_causal=causal)
    return q, k, causal, found


def chosen_of(first: int, stop: int, number: int) -> np.ndarray:
    """A row of each equal stretch, at places that the golden ratio spreads."""
    ends = first + np.arange(number + 1) * (stop - first) // number
    place = np.modf(0.5 + np.arange(number) * (np.sqrt(5) - 1) / 2)[0]
    return np.floor(ends[:-1] + place * np.diff(ends)).astype(int)


def test_entropies_are_means_over_the_sample(sampled: Any) -> None:
    q, k, causal, found = sampled
    rows = at.attention_entropy(q, k, is_causal=causal).astype(np.float64)
    chosen = chosen_of(N - N // 8 if causal else 0, N, ROWS // 2)
    np.testing.assert_allclose(found.entropy[:, 1, 0], rows[:, chosen].mean(1), atol=2e-6)
    law = at.attention_entropy(q, k, is_causal=causal, scale="log_n(base=32)").astype(np.float64)
    np.testing.assert_allclose(found.entropy[:, 1, 1], law[:, chosen].mean(1), atol=2e-6)
    np.testing.assert_allclose(found.uniform_entropy[:, 1], np.log(chosen + 1 if causal else N).mean())
    assert found.histogram[:, 1].sum(-1).tolist() == [ROWS // 2] * 4
    short = at.attention_entropy(q[:, :32], k[:, :32], is_causal=causal)[:, 28 if causal else 0 :]
    np.testing.assert_allclose(found.entropy[:, 0, 0], short.mean(1), atol=2e-6)


def test_the_text_and_the_weight_of_keys_come_from_a_sample_of_all(sampled: Any) -> None:
    q, k, causal, found = sampled
    chosen = chosen_of(0, N, ROWS // 2)
    weights = at.attention_weights(q, k, is_causal=causal)[:, chosen].astype(np.float64)
    share = weights.mean(1)
    np.testing.assert_allclose(found.received[:, 1], share.max(1), atol=1e-6)
    np.testing.assert_array_equal(found.received_by[:, 1], share.argmax(1))
    rows = at.attention_entropy(q, k, is_causal=causal)[:, chosen].astype(np.float64)
    expected = rows.reshape(4, 16, -1).mean(-1)
    np.testing.assert_allclose(found.by_position[:, 1], expected, atol=2e-6)


def test_the_error_is_that_of_neighbours_and_0_for_all_rows(sampled: Any) -> None:
    q, k, causal, found = sampled
    first = N - N // 8 if causal else 0
    rows = at.attention_entropy(q, k, is_causal=causal)[:, chosen_of(first, N, ROWS // 2)].astype(np.float64)
    variance = (np.diff(rows, axis=1) ** 2).mean(1) / 2
    left = 1 - (ROWS // 2) / (N - first)
    np.testing.assert_allclose(found.entropy_error[:, 1], np.sqrt(variance / (ROWS // 2) * left), rtol=1e-4)
    np.testing.assert_array_equal(found.entropy_error[:, 0], 0)
    said = re.search(r"at most 32 rows .* an entropy at most ([\d.]+) nat", found.about["rows"])
    assert said
    assert float(said[1]) * 0.9 <= found.entropy_error.max() <= float(said[1])
    assert found.about["rows"] in str(found)
    assert found.to_dict()["entropy_error"][0][0] == 0


@pytest.mark.parametrize("is_causal", [False, True])
def test_nine_of_ten_entropies_are_within_two_errors(is_causal: bool) -> None:
    data = at.datasets.causal_qk() if is_causal else at.datasets.minilm_qk()
    q, k = data.query.astype(np.float32), data.key.astype(np.float32)
    within = []
    for n in (q.shape[1] - 64, q.shape[1] - 32, q.shape[1]):
        options: dict[str, Any] = {"lengths": [n], "laws": [], "is_causal": is_causal}
        every, some = (at.report(q, k, rows=rows, **options) for rows in (None, 64))
        within.append(np.abs(some.entropy - every.entropy)[..., 0] <= 2 * some.entropy_error)
    assert np.mean(within) >= 0.85


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("period", [2, 4, 8])
def test_the_error_holds_for_heads_that_repeat_themselves(is_causal: bool, period: int) -> None:
    rng = np.random.default_rng(period)
    q, k = rng.standard_normal((2, 4, 1024, 16)).astype(np.float32)
    q[:, ::period] *= 8
    counted = slice(1024 - 128 if is_causal else 0, None)
    entropy = at.attention_entropy(q, k, is_causal=is_causal)[:, counted].mean(-1)
    found = at.report(q, k, lengths=[1024], laws=[], rows=64, is_causal=is_causal)
    assert (np.abs(found.entropy[:, 0, 0] - entropy) <= 3 * found.entropy_error[:, 0]).all()


def test_as_many_rows_as_there_are_change_nothing(sampled: Any) -> None:
    q, k, causal, _ = sampled
    options: dict[str, Any] = {"lengths": [64, 128], "laws": ["log_n"], "is_causal": causal}
    every, most = (at.report(q, k, rows=rows, **options).to_dict() for rows in (None, 128))
    for each in (every, most):
        del each["provenance"]
    assert every == most
    assert "rows" not in every["about"]


@pytest.mark.parametrize(
    ("rows", "kind", "message"),
    [
        (31, ValueError, "rows must be at least 32, got 31"),
        (0, ValueError, "rows must be "),
        (64.5, TypeError, "rows must be "),
        ("64", TypeError, "rows must be "),
    ],
)
def test_a_sample_that_tells_nothing_is_refused(sampled: Any, rows: Any, kind: Any, message: str) -> None:
    with pytest.raises(kind, match=message):
        at.report(*sampled[:2], laws=["log_n"], rows=rows)
