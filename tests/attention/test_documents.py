# SPDX-License-Identifier: BSD-3-Clause
"""document_ids=: packed documents are as if each had its own call."""

from __future__ import annotations

from typing import Any

import attnscale as at
import numpy as np
import pytest
from attnscale import laws, reference
from cases import STATISTICS, case, check, mask_cases, random_inputs, remembering

pytestmark = pytest.mark.levels

IDS = np.repeat([3, 1, 7, 2], [9, 1, 17, 6])  # 33 keys
LAWS = (None, "log_n", "ssmax", laws.MinistralTemperature(0.5, 4), laws.QwenLogN(4), laws.ASEntmax(1, 0.3, 1))


@pytest.mark.parametrize("law", LAWS, ids=repr)
@pytest.mark.parametrize("n_queries", [33, 12])
def test_under_every_mask(law: Any, n_queries: int) -> None:
    inputs = random_inputs(1, batch=(2,), n_queries=n_queries)
    packs = (IDS, np.stack([IDS, np.sort(IDS)]))
    with remembering():
        for name, options in mask_cases(2, 2, n_queries, 33).items():
            if options.get("causal") == 3 and n_queries > 30:
                continue  # the last queries have no key; see test_more_queries_than_keys
            for ids in packs:
                with case(name, f"document_ids of {ids.ndim} axes"):
                    check(*inputs, **{**options, "scale": law, "document_ids": ids})


def test_each_document_is_a_call_of_its_own() -> None:
    q, k, v = random_inputs(2, batch=(2,), n_queries=33, heads=3, dtype="float64")
    whole = at.attention_statistics(
        q, k, v, statistics=STATISTICS, document_ids=IDS, is_causal=True, scale="ssmax"
    )
    for document in (3, 1, 7, 2):
        cut = np.flatnonzero(document == IDS)
        alone = at.attention_statistics(
            *(x[:, :, cut] for x in (q, k, v)), statistics=STATISTICS, is_causal=True, scale="ssmax"
        )
        for name in (*STATISTICS, "output"):
            first = cut[0] if name == "argmax" else 0
            # Tiles of keys begin elsewhere: sums are rounded in another order.
            np.testing.assert_allclose(
                getattr(whole, name)[:, :, cut], getattr(alone, name) + first, rtol=1e-13, atol=1e-14
            )


def test_the_n_of_a_law_is_the_documents() -> None:
    """A count over the pack would give the last document n = 33 instead of 6."""
    q, k, v = random_inputs(3, n_queries=33, dtype="float64")
    packed = at.attention(q, k, v, scale="log_n", document_ids=IDS)[:, -6:]
    law = laws.LogN()
    right = at.attention(q[:, -6:], k[:, -6:], v[:, -6:], scale=law.scale(6, 16))
    wrong = at.attention(q[:, -6:], k[:, -6:], v[:, -6:], scale=law.scale(33, 16))
    np.testing.assert_allclose(packed, right, rtol=1e-12)
    assert np.abs(packed - wrong).max() > 0.01


def test_decoding_goes_on_with_the_last_document() -> None:
    q, k, v = random_inputs(4, n_queries=33, dtype="float64")
    options = {"document_ids": IDS, "scale": "ssmax", "causal": "bottom_right"}
    whole = at.attention(q, k, v, **options)
    for n_queries in (1, 6, 7, 20, 33):
        last = at.attention(q[:, -n_queries:], k, v, **options)
        np.testing.assert_allclose(last, whole[:, -n_queries:], rtol=1e-12)


@pytest.mark.parametrize("options", [{}, {"enable_gqa": True}, {"layout": "bshd"}], ids=str)
def test_scale_arrays_groups_layouts_and_out(options: dict[str, Any]) -> None:
    heads = 4
    q, k, v = random_inputs(
        5, batch=(2,), heads=heads, kv_heads=2 if "enable_gqa" in options else None, n_queries=33
    )
    if "layout" in options:
        q, k, v = (np.ascontiguousarray(x.swapaxes(-3, -2)) for x in (q, k, v))
    ids = np.stack([IDS, IDS[::-1]])
    for shape in ((), (1,), (33,), (heads, 1), (2, 1, 33), (2, heads, 33)):
        scale = np.random.default_rng(6).uniform(0.1, 0.4, shape)
        check(q, k, v, scale=scale, document_ids=ids, is_causal=True, **options)
    out = np.empty_like(q)
    assert at.attention(q, k, v, out=out, document_ids=ids, **options) is out
    np.testing.assert_array_equal(out, at.attention(q, k, v, document_ids=ids, **options))


def test_states_and_curves() -> None:
    q, k, v = random_inputs(11, n_queries=33, dtype="float64")
    options = {"document_ids": IDS, "is_causal": True}
    state = at.attention_state(q, k, v, scale="log_n", **options)
    np.testing.assert_allclose(
        state.entropy, reference.attention_entropy(q, k, scale="log_n", **options), atol=1e-12
    )
    curve = at.entropy_curve(q, k, [0.0, 0.1, 0.3], **options)
    twin = reference.entropy_curve(q, k, [0.0, 0.1, 0.3], **options)
    for name in ("entropy", "lse", "mean", "variance"):
        np.testing.assert_allclose(getattr(curve, name), getattr(twin, name), atol=1e-11)


def test_a_table_need_not_reach_beyond_the_longest_document() -> None:
    q, k, v = random_inputs(15, n_queries=33, dtype="float64")
    bias = -0.3 * np.arange(33)
    options = {"document_ids": IDS, "is_causal": True}
    whole = at.attention(q, k, v, distance_bias=bias, **options)
    np.testing.assert_array_equal(at.attention(q, k, v, distance_bias=bias[:17], **options), whole)
    with pytest.raises(ValueError, match=r"distance 0 \.\.\. 16 on its last axis, got shape \(16,\)"):
        at.attention(q, k, v, distance_bias=bias[:16], **options)
