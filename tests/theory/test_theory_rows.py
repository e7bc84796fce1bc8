# SPDX-License-Identifier: BSD-3-Clause
"""Rows that are not white: a head's own cumulants, covariances, bounded scores, the gap at the top."""

from __future__ import annotations

import attnscale as at
import numpy as np
import pytest
from attnscale import laws, reference, theory


@pytest.fixture(scope="module")
def heads():
    """Queries and keys of 18 real heads, and their scores at the standard scale."""
    data = at.datasets.minilm_qk()
    query, key = data.query.astype(float), data.key.astype(float)
    return query, key, query @ key.swapaxes(-1, -2) / np.sqrt(query.shape[-1])


@pytest.mark.parametrize("cumulants", [[0.7], [1.0, 0.4], [2.0, -0.3, 0.1], [1.0, -0.9]])
@pytest.mark.parametrize("n", [60, 512, 3000])
def test_cumulant_beta_is_its_twin(cumulants, n):
    found = theory.cumulant_beta(n, n0=512, cumulants=cumulants, on_infeasible="nan")
    assert found == pytest.approx(
        reference.cumulant_beta(n, n0=512, cumulants=cumulants), abs=1e-3, nan_ok=True
    )


def test_cumulant_beta_of_normal_scores_is_annealed_beta():
    n = np.array([512, 4096, 2**20])
    np.testing.assert_allclose(
        theory.cumulant_beta(n, n0=512, cumulants=[1.0]), theory.annealed_beta(n), rtol=1e-12
    )
    by_head = theory.cumulant_beta(4096, n0=512, cumulants=[[4.0], [0.5]])
    np.testing.assert_allclose(by_head, np.sqrt(1 + 2 * np.log(8) / np.array([4, 0.5])), rtol=1e-12)
    law = laws.Annealed(variance=[4, 0.5])
    np.testing.assert_allclose(by_head, law.multiplier(4096, 64)[:, 0], rtol=1e-12)


def drift(heads, beta):
    """Root mean square over heads: how far the entropy of 512 tokens under beta is from that of 64."""
    query, key, _ = heads
    scale = np.broadcast_to(beta, 18)[:, None] / np.sqrt(query.shape[-1])
    kept = at.attention_entropy(query, key, scale=scale).mean(-1)
    return np.sqrt(((kept - at.attention_entropy(query[:, :64], key[:, :64]).mean(-1)) ** 2).mean())


def test_a_head_predicts_its_own_law(heads):
    """The head's variance does better than log_n and annealed from 64 to 512 tokens, without a fit."""
    own = theory.cumulant_beta(512, n0=64, cumulants=theory.score_cumulants(heads[2][:, :64, :64]).mean(1))
    others = [law.multiplier(512, 32) for law in (laws.Annealed(64), laws.LogN(64), laws.Standard())]
    found = [drift(heads, beta) for beta in (own, *others)]
    np.testing.assert_allclose(found, [0.458, 0.736, 0.872, 1.86], atol=5e-3)


def test_more_cumulants_are_worse_on_short_rows(heads):
    """64 scores of a row say little of the third moment, and the series has to reach twice as far."""
    third = theory.score_cumulants(heads[2][:, :64, :64], order=3).mean(1)
    assert drift(heads, theory.cumulant_beta(512, n0=64, cumulants=third)) == pytest.approx(0.708, abs=6e-3)


def test_score_spectrum_is_its_twin(heads):
    query, key, scores = heads
    found = theory.score_spectrum(query, key)
    for h in (0, 7):
        np.testing.assert_allclose(found[h], reference.score_spectrum(query[h], key[h]), rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(found.sum(-1), scores.var(-1).mean(-1), rtol=1e-9)


@pytest.mark.parametrize("spectrum", [[1.0], [1 / 16] * 16, [3.0, 0.5, 0.1], [20.0, 1.0, 1.0, 0.0]])
def test_spectrum_entropy_is_its_twin(spectrum):
    found = theory.spectrum_entropy(200, spectrum=spectrum)
    twin = reference.spectrum_entropy(200, spectrum=np.array(spectrum), rng=np.random.default_rng(1))
    assert found == pytest.approx(twin, abs=0.12 if spectrum[0] > 5 else 0.06)


def test_one_direction_is_a_mean_over_one_normal():
    g, w = np.polynomial.hermite_e.hermegauss(200)
    expected = w @ theory.expected_entropy(512, np.abs(g) * 2, model="gaussian") / w.sum()
    assert theory.spectrum_entropy(512, spectrum=[4.0, 0.0]) == pytest.approx(expected, abs=2e-3)
    assert theory.spectrum_entropy(512, spectrum=[4.0], beta=0) == pytest.approx(np.log(512), abs=1e-5)


def test_many_equal_directions_are_the_gaussian_model():
    white = np.full(4096, 1 / 4096)
    expected = theory.expected_entropy(512, [1, 2], model="gaussian")
    np.testing.assert_allclose(theory.spectrum_entropy(512, spectrum=white, beta=[1, 2]), expected, atol=2e-3)


def test_keys_that_share_a_direction():
    """montecarlo's correlated keys: the shared part drops out of a row, 1 - c of the variance stays."""
    result = at.montecarlo.entropy_vs_length(
        [256], law="standard", model="correlated", correlation=0.6, head_dim=16, samples=4000, rng=2
    )
    expected = theory.spectrum_entropy(256, spectrum=[0.4 / 16] * 16)
    assert abs(result.value[0] - expected) < 4.5 * result.standard_error[0] + 1e-3


def test_the_spectrum_explains_real_heads(heads):
    query, key, _ = heads
    measured = at.attention_entropy(query, key).mean(-1)
    found = theory.spectrum_entropy(512, spectrum=theory.score_spectrum(query, key))
    independent = theory.expected_entropy(512, 1, head_dim=32)
    missed = [np.sqrt(((guess - measured) ** 2).mean()) for guess in (found, independent)]
    np.testing.assert_allclose(missed, [0.417, 2.099], atol=2e-3)


@pytest.mark.parametrize("weight", [0.0, 1e-9, 0.3, 0.999, 1.0])
def test_sinks_are_their_twins(weight):
    rest = np.array([0.5, 0.3, 0.2, 0.0])
    found = theory.sink_entropy(weight, -(rest[:3] * np.log(rest[:3])).sum())
    assert found == pytest.approx(reference.sink_entropy(weight, rest), rel=1e-12, abs=1e-15)
    moved = theory.sink_weight(weight, n=[2, 9, 5000], n0=9)
    twins = [reference.sink_weight(weight, n=n, n0=9) for n in (2, 9, 5000)]
    np.testing.assert_allclose(moved, twins, rtol=1e-12)
    assert moved[1] == pytest.approx(weight, rel=1e-12)


def test_the_entropy_of_rows_is_that_of_the_first_key_and_of_the_others(heads):
    query, key, _ = heads
    first = at.attention_weights(query, key)[..., 0]
    others = at.attention_entropy(query, key[:, 1:])
    np.testing.assert_allclose(
        theory.sink_entropy(first, others), at.attention_entropy(query, key), rtol=0, atol=2e-5
    )


def test_a_key_that_keeps_its_score_among_more_of_the_same():
    scores = np.random.default_rng(0).standard_normal(255)
    row = np.exp([3.0, *scores])
    longer = np.exp([3.0, *np.tile(scores, 4)])
    found = theory.sink_weight(row[0] / row.sum(), n=1021, n0=256)
    assert found == pytest.approx(longer[0] / longer.sum(), rel=1e-12)


def test_no_row_is_below_the_least_entropy():
    rng = np.random.default_rng(3)
    n, spread = 40, 5.0
    ends = spread * (rng.random((3000, n)) < rng.random((3000, 1)))
    scores = np.concatenate([ends, spread * rng.random((3000, n)), spread * rng.beta(0.1, 0.3, (3000, n))])
    entropy = at.attention_entropy(np.ones((len(scores), 1, 1)), scores[..., None], scale=1.0)
    least = theory.least_entropy(n, spread)
    assert least - 1e-9 <= entropy.min() < least + 0.02
    assert least > theory.entropy_lower_bound(n, spread)
    # Its continuous form: ln n + ln r + 1 - r.
    r = spread / np.expm1(spread)
    assert 0 <= least - (np.log(n) + np.log(r) + 1 - r) < 0.02


def test_what_a_softcap_promises():
    """50, as in Gemma 2: nothing. By the variance bound a cap has to be below sqrt(2 ln n)."""
    assert theory.least_entropy(512, 100) < 1e-38
    assert theory.critical_beta(512) == pytest.approx(3.532, abs=5e-4)
    assert theory.entropy_lower_bound(512, 2 * 3.533) == 0 < theory.entropy_lower_bound(512, 2 * 3.53)
    caps = theory.softcap_for_entropy([512, 131072], entropy=1.0)
    np.testing.assert_allclose(caps, [4.18, 7.23], atol=5e-3)
    assert caps[0] == pytest.approx(reference.softcap_for_entropy(512, entropy=1.0), abs=0.011)
    np.testing.assert_allclose(theory.least_entropy([512, 131072], 2 * caps), 1, atol=1e-9)
    assert np.isnan(theory.softcap_for_entropy(512, entropy=7, on_infeasible="nan"))


def test_entropy_falls_by_half_the_variance_where_many_keys_share_the_weight():
    def slope(beta):
        low, high = theory.expected_entropy(512, np.sqrt(beta**2 + np.array([-1e-3, 1e-3])), model="gaussian")
        return (high - low) / 2e-3

    np.testing.assert_allclose(
        [slope(b) for b in (0.3, 1, 2, 3)], [-0.499, -0.492, -0.389, -0.195], atol=5e-4
    )


def test_critical_scale_has_no_mean():
    """level times P(Lambda > level) tends to a constant, and real rows follow it."""
    far = np.array([1e2, 1e3, 1e4])
    tail = far * theory.critical_scale_tail(512, far)
    np.testing.assert_allclose(tail, tail[-1], rtol=0.03)
    assert tail[-1] == pytest.approx(1e4 * reference.critical_scale_tail(512, 1e4), rel=2e-3)
    scores = np.random.default_rng(4).standard_normal((20_000, 512))
    found = laws.CriticalScale.measure(scores)
    for level in (10, 40):
        expected = theory.critical_scale_tail(512, level)
        seen = (found > level).mean()
        assert abs(seen - expected) < 4.5 * np.sqrt(expected / 20_000) + 0.02 * expected
