# SPDX-License-Identifier: BSD-3-Clause
"""How many keys have a weight, against written-out rows."""

from __future__ import annotations

import attnscale as at
import numpy as np
import pytest
from attnscale import montecarlo as mc
from attnscale import reference
from attnscale.reference._normalizers import entmax, sparsemax


def support_of(scores, normalizer):
    seen = np.ones(scores.shape, bool)
    p = sparsemax(scores, seen) if normalizer == "sparsemax" else entmax(scores, seen, 1.5)
    return (p > 1e-12).sum(-1), -(p * np.log(np.where(p > 0, p, 1))).sum(-1)


@pytest.mark.parametrize("model", ["sphere", "gaussian"])
@pytest.mark.parametrize("normalizer", ["sparsemax", "entmax15"])
def test_rows_are_those_of_written_out_keys(model, normalizer):
    options = {"law": 1.3 / 4, "normalizer": normalizer, "head_dim": 16, "model": model}
    result = mc.sparsity(50, **options, samples=4000, rng=1)
    scores = 1.3 * reference.random_scores(model, 50, 16, 4000, np.random.default_rng(2))
    for name, values in zip(("support", "entropy"), support_of(scores, normalizer), strict=True):
        error = np.hypot(result[name].standard_error, values.std(ddof=1) / np.sqrt(4000))
        assert abs(result[name].value - values.mean()) < 5 * error


def test_all_normalizers_see_the_same_rows():
    """Two names of one normalizer; and a softmax uses every key."""
    rules = ["sparsemax", at.normalizers.Entmax(2.0), "softmax", at.normalizers.TopK(3)]
    result = mc.sparsity(20, normalizer=rules, samples=30, rng=0)
    assert result.axes["normalizer"] == ("sparsemax", "Entmax(alpha=2.0)", "softmax", "TopK(k=3)")
    assert result.value[0] == result.value[1]
    assert result.value[2:].tolist() == [20, 3]
    alone = mc.sparsity(20, normalizer="softmax", samples=30, rng=0)
    assert alone["entropy"].value == result["entropy"].value[2]
    assert result["max_weight"].value[0] > result["max_weight"].value[2]


def test_each_law_has_its_own_scale():
    """A law gives the same numbers alone and beside others."""
    laws = ["unscaled", "standard", 0.0]
    result = mc.sparsity(20, law=laws, samples=30, rng=0)
    for law, value in zip(laws, result.value, strict=True):
        assert mc.sparsity(20, law=law, samples=30, rng=0).value == value
    assert result.value[0] < result.value[1] < result.value[2] == 20


def test_one_key():
    result = mc.sparsity(1, law=["standard", "unscaled"], samples=5, rng=0)
    np.testing.assert_array_equal(result.value, 1)
    np.testing.assert_array_equal(result["max_weight"].value, 1)


def test_mistakes_are_explained():
    with pytest.raises(ValueError, match="model must be one of 'gaussian', 'sphere', got 'correlated'"):
        mc.sparsity(8, model="correlated")
    with pytest.raises(ValueError, match=r"normalizer must give its rows .*Sigmoid.* has no"):
        mc.sparsity(8, normalizer="sigmoid")
    with pytest.raises(ValueError, match="normalizer must be one of"):
        mc.sparsity(8, normalizer="entmin")
    with pytest.raises(TypeError, match="normalizer must be a name or one of"):
        mc.sparsity(8, normalizer=2.0)
    with pytest.raises(ValueError, match="normalizer must have distinct values"):
        mc.sparsity(8, normalizer=["sparsemax", at.normalizers.Sparsemax()])
