# SPDX-License-Identifier: BSD-3-Clause
"""scale=: numbers, arrays, laws and names."""

from __future__ import annotations

from typing import Any

import attnscale as at
import numpy as np
import pytest
from cases import random_inputs

LAWS = (
    "standard",
    "unscaled",
    "log_n",
    "natural_log_n",
    "ssmax",
    at.laws.Constant(0.3),
    at.laws.Kappa(1.7),
    at.laws.LogNFromTraining(8),
    at.laws.LogN(base=64, floor=16),
    at.laws.QwenLogN(8),
    at.laws.GrokTemperature(3),
    at.laws.ASEntmax(1, 0.3, -1),
    at.laws.Llama4Temperature(0.5, 4),
    at.laws.MinistralTemperature(0.5, 4),
    at.laws.YaRN(4, channels="all"),
    at.laws.InfoScale(8),
    at.laws.Annealed(8),
    at.laws.PerHead([0.5, -2.0]),
    at.laws.SSMax(s=[0.3, 0.6], b=[0.0, 1.0]),
)


def test_the_default_is_one_over_sqrt_head_dim() -> None:
    q, k, v = random_inputs(2, head_dim=49)
    np.testing.assert_array_equal(at.attention(q, k, v), at.attention(q, k, v, scale=1 / 7))
    np.testing.assert_array_equal(at.attention(q, k, v), at.attention(q, k, v, scale="standard"))


def test_row_size_and_visible_keys_differ_under_a_window() -> None:
    q, k, v = random_inputs(10, n_queries=40, n_keys=40, dtype="float64")
    n = np.arange(1, 41)
    visible = np.log(np.minimum(n, 4)) / np.log(512) / 4
    for law, scale in (("natural_log_n", np.log(n) / 4), ("log_n", visible)):
        options = {"is_causal": True, "window": (3, None)}
        named, written = (at.attention(q, k, v, scale=x, **options) for x in (law, scale))
        np.testing.assert_allclose(named, written)


def test_position_counts_from_the_alignment() -> None:
    q, k, v = random_inputs(11, n_queries=5, n_keys=40, dtype="float64")
    law = at.laws.LogNFromTraining(8)
    written = np.log(np.arange(36, 41)) / np.log(8) / 4
    by_law, by_number = (at.attention(q, k, v, scale=x, causal="bottom_right") for x in (law, written))
    np.testing.assert_allclose(by_law, by_number)
    # Without an alignment the first query is at position 0.
    np.testing.assert_array_equal(at.attention(q, k, v, scale=law), at.attention(q, k, v))


def test_rows_without_keys_have_a_harmless_scale() -> None:
    q, k, v = random_inputs(12, n_queries=6, n_keys=4)
    for law in LAWS:
        rows = at.attention_statistics(q, k, v, scale=law, causal="bottom_right")
        np.testing.assert_array_equal(rows.output[:, :2], 0)
        np.testing.assert_array_equal(rows.entropy[:, :2], 0)


def test_a_law_that_is_undefined_somewhere_is_refused_there() -> None:
    @at.laws.register("root_log")
    def root_log(n: Any, head_dim: int, *, n0: float = 512) -> Any:
        """sqrt(1 + 2 ln(n / n0)) / sqrt(head_dim); n: keys the row may see."""
        with np.errstate(invalid="ignore"):
            return (1 + 2 * np.log(n / n0)) ** 0.5 / head_dim**0.5

    q, k, v = random_inputs(13, n_queries=60, n_keys=60)
    law = at.laws.get("root_log", n0=32)
    with pytest.raises(ValueError, match="law 'root_log' must return finite numbers, got nan at n = 1 "):
        at.attention_statistics(q, k, v, scale=law, is_causal=True)
    defined = np.arange(20, 61)  # from 32 exp(-1/2)
    rows = at.attention_statistics(q[:, 19:], k, v, scale=law, causal="bottom_right")
    want = at.attention_statistics(q[:, 19:], k, v, scale=law.scale(defined, 16), causal="bottom_right")
    np.testing.assert_array_equal(rows.output, want.output)
    assert np.isfinite(at.attention_entropy(q, np.repeat(k, 10, 1), scale="root_log")).all()


def test_the_text_of_a_law_is_read_once_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = random_inputs(9)
    read: list[Any] = []
    get = at.laws.get

    def counted(law: Any, **parameters: Any) -> at.laws.Law:
        read.extend([law] if isinstance(law, str) else [])
        return get(law, **parameters)

    monkeypatch.setattr(at.laws, "get", counted)
    for text in ("ssmax(s=0.4)", "adaptive_temperature"):
        for call in (
            lambda scale: at.attention(q, k, v, scale=scale, num_threads=1),
            lambda scale: at.attention_entropy(q, k, scale=scale, distance_bias=None, num_threads=1),
            lambda scale: at.attention_weights(q, k, scale=scale),
            lambda scale: at.attention_state(q, k, v, scale=scale),
            lambda scale: at.attention_gradients(q, k, v, grad_lse=1.0, scale=scale),
        ):
            read.clear()
            call(text)
            assert read == [text]
    read.clear()
    at.attention_gradients(q, k, v, grad_lse=1.0, scale="scale_invariant", distance_scale=np.ones(99))
    assert read == ["scale_invariant"]
    read.clear()
    at.variants.kattention_heads(q, k, v, scale="log_n")
    assert read == ["log_n"]


def test_the_total_n_must_be_known_before_keys_are_split() -> None:
    """A law of each part's own n gives wrong rows."""
    q, k, v = random_inputs(14, n_keys=100, dtype="float64")
    parts = [(k[:, i : i + 25], v[:, i : i + 25]) for i in range(0, 100, 25)]
    whole = at.attention(q, k, v, scale="log_n")
    law = at.laws.LogN()
    right = at.merge_states([at.attention_state(q, *part, scale=law.scale(100, 16)) for part in parts])
    wrong = at.merge_states([at.attention_state(q, *part, scale="log_n") for part in parts])
    np.testing.assert_allclose(right.output, whole, rtol=1e-12, atol=1e-13)
    assert np.abs(wrong.output - whole).max() > 1e-2
