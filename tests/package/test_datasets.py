# SPDX-License-Identifier: BSD-3-Clause
"""The shipped activations: shapes, integrity, and the numbers that the documentation quotes."""

from __future__ import annotations

import dataclasses
from importlib.resources import files

import attnscale as at
import numpy as np
import pytest


@pytest.fixture(scope="module")
def data():
    return at.datasets.minilm_qk()


def test_shapes_and_types(data):
    assert data.query.shape == data.key.shape == (18, 512, 32)
    assert data.query.dtype == data.key.dtype == np.float16
    assert data.layers.tolist() == [0] * 6 + [2] * 6 + [5] * 6
    assert data.heads.tolist() == [0, 1, 2, 3, 4, 5] * 3


def test_tokens_are_english(data):
    assert len(data.tokens) == data.token_ids.size == 512
    assert (data.tokens[0], data.tokens[-1]) == ("[CLS]", "[SEP]")
    assert " ".join(data.tokens[6:16]) == "program a python program is constructed from code blocks ."
    assert sum(token.isalpha() for token in data.tokens) > 350


def test_activations_are_finite_and_all_different(data):
    heads = np.concatenate([data.query, data.key]).astype(np.float64)
    assert np.isfinite(heads).all()
    assert len({head.tobytes() for head in heads}) == 36
    # Components of a trained projection are neither noise nor zeros.
    assert (heads.std(axis=(1, 2)) > 0.1).all()


def test_nothing_can_be_changed(data):
    for array in (data.query, data.key, data.layers, data.heads, data.token_ids):
        assert not array.flags.writeable
    with pytest.raises(dataclasses.FrozenInstanceError):
        data.query = None


def test_provenance_and_licences(data):
    assert data.provenance["model_license"] == "Apache-2.0"
    assert data.provenance["text_license"] == "PSF-2.0"
    assert len(data.provenance["weights_sha256"]) == 64
    licences = files("attnscale") / "data" / "licenses"
    assert "Apache License" in (licences / "Apache-2.0.txt").read_text(encoding="utf-8")
    assert "PYTHON SOFTWARE FOUNDATION" in (licences / "PSF-2.0.txt").read_text(encoding="utf-8")


def test_size_of_the_file():
    size = len((files("attnscale") / "data" / "minilm_qk.npz").read_bytes())
    assert size <= 1_500_000


@pytest.mark.parametrize(
    ("law", "expected"),
    [
        ("standard", [2.576, 3.073, 3.660, 4.300]),
        ("log_n", [3.176, 3.524, 3.913, 4.300]),
        ("natural_log_n", [0.632, 0.605, 0.597, 0.561]),
    ],
)
def test_mean_entropies_of_the_demo(data, law, expected):
    """The table that the README prints, from the kernel and from the NumPy twin."""
    for n, mean in zip((64, 128, 256, 512), expected, strict=True):
        query, key = data.query[:, :n], data.key[:, :n]
        assert at.attention_entropy(query, key, scale=law).mean(dtype=np.float64) == pytest.approx(
            mean, abs=6e-4
        )
        scale = at.laws.get(law).scale(n, 32)
        scores = scale * np.einsum("hqd,hkd->hqk", query, key, dtype=np.float64)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        logs = np.log(weights, out=np.zeros_like(weights), where=weights > 0)
        assert -(weights * logs).sum(axis=-1).mean() == pytest.approx(mean, abs=6e-4)


@pytest.fixture(scope="module")
def causal():
    return at.datasets.causal_qk()


def test_causal_shapes_and_types(causal):
    assert causal.query.shape == causal.key.shape == (8, 2048, 32)
    assert causal.query.dtype == causal.key.dtype == np.float16
    assert causal.layers.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert causal.heads.tolist() == [0, 1] * 4
    np.testing.assert_array_equal(causal.key[::2], causal.key[1::2])
    assert len({head.tobytes() for head in (*causal.query, *causal.key[::2])}) == 12
    assert np.isfinite(np.concatenate([causal.query, causal.key])).all()
    for array in (causal.query, causal.key, causal.layers, causal.heads, causal.token_ids):
        assert not array.flags.writeable


def test_causal_text_and_provenance(causal):
    text = "".join(causal.tokens)
    assert len(causal.tokens) == causal.token_ids.size == 2048
    assert text.startswith('"""\nBasic statistics module.')
    assert "def mean(data):" in text or "def _sum(data):" in text
    assert (causal.provenance["model_license"], causal.provenance["text_license"]) == (
        "BSD-3-Clause",
        "PSF-2.0",
    )
    assert float(causal.provenance["loss"].split()[0]) < 0.65 * np.log(2048)
    assert len((files("attnscale") / "data" / "causal_qk.npz").read_bytes()) <= 1_500_000


def test_causal_heads_are_trained(causal):
    """Far from equal weights, and unlike each other."""
    entropy = at.attention_entropy(causal.query, causal.key, is_causal=True).mean(-1, dtype=float)
    equal = np.log(np.arange(1, 2049)).mean()
    assert entropy.min() < 0.7 * equal
    assert np.ptp(entropy) > 0.5
