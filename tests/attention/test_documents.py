# SPDX-License-Identifier: BSD-3-Clause
"""document_ids=: each packed document has the results of its own call."""

from __future__ import annotations

import attnscale as at
import numpy as np
import pytest
from attnscale import reference
from cases import STATISTICS, random_inputs, same

IDS = np.repeat([3, 1, 7, 2], [9, 1, 17, 6])  # 33 keys


def test_each_document_is_a_call_of_its_own() -> None:
    q, k, v = random_inputs(2, batch=(2,), n_queries=33, heads=3, dtype="float64")
    options = {"statistics": STATISTICS, "is_causal": True, "scale": "ssmax"}
    whole = at.attention_statistics(q, k, v, document_ids=IDS, **options)
    for document in (3, 1, 7, 2):
        cut = np.flatnonzero(document == IDS)
        alone = at.attention_statistics(*(x[:, :, cut] for x in (q, k, v)), **options)
        for name in (*STATISTICS, "output"):
            first = cut[0] if name == "argmax" else 0
            found, wanted = getattr(whole, name)[:, :, cut], getattr(alone, name) + first
            # Tiles of keys begin elsewhere: sums are rounded in another order.
            np.testing.assert_allclose(found, wanted, rtol=1e-13, atol=1e-14)


def test_decoding_goes_on_with_the_last_document() -> None:
    q, k, v = random_inputs(4, n_queries=33, dtype="float64")
    options = {"document_ids": IDS, "scale": "ssmax", "causal": "bottom_right"}
    whole = at.attention(q, k, v, **options)
    for n_queries in (1, 6, 7, 20, 33):
        last = at.attention(q[:, -n_queries:], k, v, **options)
        np.testing.assert_allclose(last, whole[:, -n_queries:], rtol=1e-12)


def test_states_and_curves() -> None:
    q, k, v = random_inputs(11, n_queries=33, dtype="float64")
    options = {"document_ids": IDS, "is_causal": True}
    state = at.attention_state(q, k, v, scale="log_n", **options)
    entropy = reference.attention_entropy(q, k, scale="log_n", **options)
    np.testing.assert_allclose(state.entropy, entropy, atol=1e-12)
    curve = at.entropy_curve(q, k, [0.0, 0.1, 0.3], **options)
    twin = reference.entropy_curve(q, k, [0.0, 0.1, 0.3], **options)
    same(curve, twin, ("entropy", "lse", "mean", "variance"), atol=1e-11)


def test_a_table_need_not_reach_beyond_the_longest_document() -> None:
    q, k, v = random_inputs(15, n_queries=33, dtype="float64")
    bias = -0.3 * np.arange(33)
    options = {"document_ids": IDS, "is_causal": True}
    whole = at.attention(q, k, v, distance_bias=bias, **options)
    np.testing.assert_array_equal(at.attention(q, k, v, distance_bias=bias[:17], **options), whole)
    with pytest.raises(ValueError, match=r"distance 0 \.\.\. 16 on its last axis, got shape \(16,\)"):
        at.attention(q, k, v, distance_bias=bias[:16], **options)
