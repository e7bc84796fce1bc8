# SPDX-License-Identifier: BSD-3-Clause
"""attention_spans, against sums over the matrix of weights."""

from __future__ import annotations

from typing import Any

import attnscale as at
import numpy as np
import pytest
from attnscale import reference
from cases import random_inputs

LENGTHS = [10, 0, 21, 2]
IDS = np.arange(33) % 5 - 1  # a fifth of the keys is in no span
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "window": {"is_causal": True, "window": (9, 3)},
    "lengths and a law": {"causal": "bottom_right", "key_lengths": np.array([30, 0]), "scale": "log_n"},
    "mask": {"attn_mask": np.arange(33) % 3 > 0, "softcap": 2.0},
    "sink": {"normalizer": at.normalizers.Sink([0.5, 1.0])},
    "entmax": {"normalizer": at.normalizers.Entmax(1.5), "distance_bias": -0.125 * np.arange(33)},
}


def sums(p: Any, of_keys: Any) -> Any:
    """Sum the columns of each of four spans."""
    return np.stack([p[..., of_keys == span].sum(-1) for span in range(4)], axis=-1)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
@pytest.mark.parametrize("name", OPTIONS)
def test_spans_are_sums_of_weights(name: str, dtype: str) -> None:
    q, k, _ = random_inputs(3, batch=(2,), dtype=dtype)
    p = at.attention_weights(q.astype(np.float64), k.astype(np.float64), **OPTIONS[name])
    for found, of_keys in (
        (at.attention_spans(q, k, LENGTHS, **OPTIONS[name]), np.repeat(np.arange(4), LENGTHS)),
        (at.attention_spans(q, k, ids=IDS, **OPTIONS[name]), IDS),
    ):
        assert found.dtype == (np.float64 if dtype == "float64" else np.float32)
        assert found.shape == (2, 2, 17, 4)
        np.testing.assert_allclose(found, sums(p, of_keys), atol=1e-12 if dtype == "float64" else 2e-6)


def test_the_reference_has_the_same_sums() -> None:
    q, k, _ = random_inputs(3, dtype="float64")
    for spans in ({"lengths": LENGTHS}, {"ids": IDS}):
        both = (each.attention_spans(q, k, is_causal=True, **spans) for each in (at, reference))
        np.testing.assert_allclose(*both, atol=1e-12)


def test_rows_lead_whatever_the_layout() -> None:
    q, k, _ = random_inputs(4, heads=4, kv_heads=2)
    found = at.attention_spans(q, k, LENGTHS, enable_gqa=True)
    swapped = (x.swapaxes(0, 1) for x in (q, k))
    other = at.attention_spans(*swapped, LENGTHS, enable_gqa=True, layout="bshd")
    np.testing.assert_array_equal(found, other)


def test_axes_with_names_have_one_for_the_spans() -> None:
    xr = pytest.importorskip("xarray")
    q, k, _ = random_inputs(5)
    named = at.attention_spans(*(xr.DataArray(x, dims=("head", "token", "dim")) for x in (q, k)), LENGTHS)
    assert named.dims == ("head", "token", "span")
    np.testing.assert_array_equal(named, at.attention_spans(q, k, LENGTHS))


def test_a_nan_reaches_the_rows_that_see_it() -> None:
    q, k, _ = random_inputs(6, n_queries=33)
    k[:, 20] = np.nan
    found = at.attention_spans(q, k, LENGTHS, is_causal=True)
    assert np.isnan(found[:, 20:]).all()
    assert np.isfinite(found[:, :20]).all()


@pytest.mark.torch
def test_spans_of_tensors_have_gradients() -> None:
    torch = pytest.importorskip("torch")
    q, k, _ = random_inputs(8, dtype="float64")
    tensors = [torch.from_numpy(x).requires_grad_() for x in (q, k)]
    for layout in ("bhsd", "bshd"):
        given = tensors if layout == "bhsd" else [x.swapaxes(0, 1) for x in tensors]
        found = at.torch.attention_spans(*given, ids=torch.from_numpy(IDS), is_causal=True, layout=layout)
        np.testing.assert_array_equal(found.detach(), at.attention_spans(q, k, ids=IDS, is_causal=True))
    assert torch.autograd.gradcheck(lambda *x: at.torch.attention_spans(*x, LENGTHS, scale=0.5), tensors)
    half = at.torch.attention_spans(*(x.bfloat16() for x in tensors), LENGTHS)
    assert half.dtype == torch.float32
    np.testing.assert_allclose(half.detach().sum(-1), 1, atol=1e-6)


WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({}, ValueError, "one of lengths and ids must be given, got none"),
    ({"lengths": LENGTHS, "ids": IDS}, ValueError, "one of lengths and ids must be given, got both"),
    ({"lengths": [10, 20]}, ValueError, r"add up to n_keys = 33, got \[10, 20\]"),
    ({"lengths": [40, -7]}, ValueError, "add up to n_keys = 33"),
    ({"lengths": [33.0]}, TypeError, "lengths must be integers, got float64"),
    ({"ids": IDS[1:]}, ValueError, r"one number for each of 33 keys, got shape \(32,\)"),
    ({"ids": IDS > 0}, TypeError, "ids must be integers, got bool"),
]


@pytest.mark.parametrize(("given", "error", "said"), WRONG, ids=[said for _, _, said in WRONG])
def test_what_is_refused(given: dict[str, Any], error: type[Exception], said: str) -> None:
    q, k, _ = random_inputs(7)
    with pytest.raises(error, match=said):
        at.attention_spans(q, k, **given)
