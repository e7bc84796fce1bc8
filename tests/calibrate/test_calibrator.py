# SPDX-License-Identifier: BSD-3-Clause
"""LawCalibrator: results of calibrate, scored at lengths outside the fit."""

from __future__ import annotations

import pickle

import attnscale as at
import numpy as np
import pytest
from cases import random_inputs

LAWS = ["standard", "log_n", "annealed"]


@pytest.fixture(scope="module")
def data() -> at.datasets.HeadActivations:
    return at.datasets.minilm_qk()


@pytest.fixture(scope="module")
def fitted(data: at.datasets.HeadActivations) -> at.LawCalibrator:
    return at.LawCalibrator(n0=64, lengths=[64, 128, 256], laws=LAWS).fit(data.query, data.key)


def test_fit_is_calibrate(data: at.datasets.HeadActivations, fitted: at.LawCalibrator) -> None:
    found = at.calibrate(data.query, data.key, 64, [64, 128, 256], laws=LAWS)
    np.testing.assert_array_equal(fitted.calibration_.beta, found.beta)
    assert fitted.law_.spelling == next(iter(found.ranking)) == "log_n(base=64)"
    np.testing.assert_array_equal(fitted.amplitude_, found.amplitude[1])
    np.testing.assert_array_equal(fitted.target_, found.target)
    assert (fitted.n0_, fitted.lengths_.tolist(), fitted.head_dim_) == (64, [64, 128, 256], 32)


def test_predict_is_the_law_with_its_constants(fitted: at.LawCalibrator) -> None:
    beta = fitted.predict([128, 512])
    assert beta.shape == (18, 2)
    np.testing.assert_allclose(beta[:, 1] / beta[:, 0], np.log(512) / np.log(128), rtol=1e-12)
    np.testing.assert_allclose(beta[:, 0], fitted.calibration_.law_beta[1, :, 1], rtol=1e-12)


def test_score_is_what_the_notebook_does_by_hand(
    data: at.datasets.HeadActivations, fitted: at.LawCalibrator
) -> None:
    scale = fitted.predict([512]) / np.sqrt(32)
    entropy = at.attention_entropy(data.query, data.key, scale=scale).mean(-1, dtype=float)
    by_hand = np.sqrt(((entropy - fitted.target_) ** 2).mean())
    assert fitted.score(data.query, data.key) == pytest.approx(-by_hand, rel=1e-6)
    assert by_hand == pytest.approx(0.44, abs=6e-3)
    annealed = at.LawCalibrator(n0=64, lengths=[64, 128, 256], laws="annealed").fit(data.query, data.key)
    assert annealed.score(data.query, data.key) == pytest.approx(-0.26, abs=6e-3)
    # On the lengths of the fit it is the error that the calibration reports.
    seen = fitted.score(data.query, data.key, lengths=[64, 128, 256])
    errors = fitted.calibration_.entropy_error[1]
    assert -seen == pytest.approx(np.sqrt((errors**2).mean()), rel=1e-5)


@pytest.mark.parametrize("enable_gqa", [False, True])
def test_causal_rows_of_grouped_heads(enable_gqa: bool) -> None:
    q, k, _ = random_inputs(3, heads=4, kv_heads=2 if enable_gqa else 4, n_queries=256, n_keys=256)
    model = at.LawCalibrator(n0=32, lengths=[32, 64], laws="log_n", is_causal=True, enable_gqa=enable_gqa)
    model.fit(q, k)
    scale = np.sqrt(1 / 16) * model.amplitude_[:, None] * at.laws.LogN(32.0).multiplier(np.arange(1, 257), 16)
    rows = at.attention_entropy(q, k, scale=scale, is_causal=True, enable_gqa=enable_gqa)
    misses = [rows[:, n - n // 8 : n].mean(-1) - model.target_ for n in (128, 256)]
    expected = -np.sqrt(np.mean(np.square(misses)))
    assert model.score(q, k) == pytest.approx(expected, rel=1e-4)


def test_texts_share_the_constants_of_a_head() -> None:
    q, k, _ = random_inputs(4, batch=(5,), heads=3, n_queries=64, n_keys=64)
    q *= np.linspace(0.5, 2, 5, dtype=q.dtype)[:, None, None, None]  # texts that need different constants
    model = at.LawCalibrator(n0=16, lengths=[16, 32], laws="log_n").fit(q[:3], k[:3])
    found = model.calibration_
    np.testing.assert_array_equal(model.amplitude_, np.median(found.amplitude[0], axis=0))
    np.testing.assert_array_equal(model.target_, found.target.mean(0))
    misses = model.misses(q[3:], k[3:])  # two other texts
    assert misses.shape == (2, 3, 1)
    entropy = at.attention_entropy(q[3:], k[3:], scale=model.predict([64]) / np.sqrt(q.shape[-1])).mean(-1)
    np.testing.assert_allclose(misses[..., 0], entropy - model.target_, atol=1e-6)
    assert model.score(q[3:], k[3:]) == pytest.approx(-np.sqrt((misses**2).mean()), rel=1e-12)


def test_a_head_that_no_text_determines() -> None:
    q, k, _ = random_inputs(4, batch=(3,), heads=2, n_queries=64, n_keys=64)
    q[:, 1] = 0  # equal weights: no beta changes the entropy
    q[0, 0] = 0  # of the other head in one text
    model = at.LawCalibrator(n0=16, lengths=[16, 32], laws="log_n").fit(q, k)
    known = model.calibration_.amplitude[0, 1:, 0]
    np.testing.assert_array_equal(model.amplitude_, [np.median(known), np.nan])
    misses = model.misses(q, k)
    assert np.isnan(misses[:, 1]).all()
    assert model.score(q, k) == pytest.approx(-np.sqrt((misses[:, 0] ** 2).mean()), rel=1e-12)


def test_conventions_of_estimators(fitted: at.LawCalibrator) -> None:
    base = pytest.importorskip("sklearn.base")
    copied = base.clone(fitted)
    assert copied.get_params() == fitted.get_params()
    assert not hasattr(copied, "calibration_")
    assert copied.set_params(n0=32) is copied
    assert (copied.n0, fitted.n0) == (32, 64)
    assert repr(copied) == f"LawCalibrator(n0=32, lengths=[64, 128, 256], laws={LAWS!r})"
    assert repr(at.LawCalibrator()) == "LawCalibrator()"
    restored = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(restored.predict([512]), fitted.predict([512]))


def test_mistakes_are_explained(data: at.datasets.HeadActivations, fitted: at.LawCalibrator) -> None:
    with pytest.raises(ValueError, match=r"not fitted: call fit\(query, key\) first"):
        at.LawCalibrator().predict([64])
    with pytest.raises(ValueError, match=r"parameters must be among n0, lengths, .*; got 'n1'"):
        at.LawCalibrator().set_params(n1=3)
    with pytest.raises(ValueError, match="longer than the fit, at least 512 keys, got 300; or pass lengths"):
        fitted.score(data.query[:, :300], data.key[:, :300])
    with pytest.raises(ValueError, match=r"must have the heads of the fit, \(18,\), got \(17,\)"):
        fitted.score(data.query[:17], data.key[:17])
    flat = np.zeros((1, 64, 4))
    with pytest.raises(ValueError, match="no law can be fitted: "):
        at.LawCalibrator(n0=64, lengths=[32], laws="log_n").fit(flat, flat)
