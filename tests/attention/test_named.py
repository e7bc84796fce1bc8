# SPDX-License-Identifier: BSD-3-Clause
"""Axes with names: DataArrays of xarray in any order, patterns of layout, labels on the way out."""

# ruff: noqa: E501  # a case is one line: call and message

from __future__ import annotations

import re
from typing import Any

import attnscale as at
import numpy as np
import pytest
from cases import STATISTICS, random_inputs

xarray = pytest.importorskip("xarray")

Q, K, V = random_inputs(1, batch=(2,), heads=3, n_queries=5, n_keys=7, head_dim=4, value_dim=6)
TOKENS = ["a", "b", "c", "d", "e"]
NAMES = {
    "query": ("batch", "head", "query", "d"),
    "key": ("batch", "head", "key", "d"),
    "value": ("batch", "head", "key", "v"),
}
DIMS = {"channels": ("d", "v")}
LABELS: dict[str, dict[str, Any]] = {
    "query": {"head": [3, 5, 8], "query": TOKENS, "word": ("query", list("vwxyz")), "layer": 4},
    "key": {"head": [3, 5, 8], "key": np.arange(7) * 10},
    "value": {"v": list("ABCDEF")},
}


def arrays(order: tuple[int, ...] = (0, 1, 2, 3)) -> list[Any]:
    made = [
        xarray.DataArray(x, dims=NAMES[name], coords=LABELS[name])
        for name, x in (("query", Q), ("key", K), ("value", V))
    ]
    return [x.transpose(*(x.dims[i] for i in order)) for x in made]


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (2, 0, 3, 1), (3, 2, 1, 0)])
def test_names_say_which_axis_is_which(order: tuple[int, ...]) -> None:
    q, k, v = arrays(order)
    found = at.attention(q, k, v, is_causal=True, dims=DIMS)
    wanted = ["batch", "head", "query", "v"]
    assert found.dims == tuple(wanted[i] for i in order)  # as the query, with the value's channels
    truth = at.attention(Q, K, V, is_causal=True)
    np.testing.assert_array_equal(found.transpose(*wanted).values, truth)
    assert found["query"].values.tolist() == TOKENS
    assert found["word"].values.tolist() == list("vwxyz")
    assert found["v"].values.tolist() == list("ABCDEF")
    assert found["head"].values.tolist() == [3, 5, 8]
    assert found["layer"] == 4
    assert "key" not in found.coords
    entropy = at.attention_entropy(q, k)
    assert entropy.dims == ("batch", "head", "query")
    assert entropy.attrs == {"units": "nat"}
    np.testing.assert_array_equal(entropy.values, at.attention_entropy(Q, K))
    assert entropy.sel(head=5, query="c").shape == (2,)


def test_rows_of_statistics_are_labelled_and_so_is_their_dataset() -> None:
    q, k, v = arrays((1, 2, 0, 3))
    rows = at.attention_statistics(q, k, v, statistics=STATISTICS, dims=DIMS)
    truth = at.attention_statistics(Q, K, V, statistics=STATISTICS)
    for name in STATISTICS:
        seen = getattr(rows, name)
        assert seen.dims == ("batch", "head", "query")
        np.testing.assert_array_equal(seen.values, getattr(truth, name))
    assert rows.output.dims == ("head", "query", "batch", "v")
    assert rows.effective_keys.sel(query="b").dims == ("batch", "head")
    data = rows.to_xarray(unit="bits")
    assert data["query"].values.tolist() == TOKENS
    np.testing.assert_allclose(data["entropy"].values, truth.entropy / np.log(2), rtol=1e-6)
    frame = rows.to_pandas()
    assert set(frame["query"]) == set(TOKENS)
    assert repr(rows).startswith("AttentionStatistics: rows (2, 3, 5)")


def test_weights_curves_solutions_and_states() -> None:
    q, k, v = arrays((2, 3, 1, 0))
    weights = at.attention_weights(q, k)
    assert weights.dims == ("batch", "head", "query", "key")
    assert weights["key"].values.tolist() == [0, 10, 20, 30, 40, 50, 60]
    np.testing.assert_array_equal(weights.values, at.attention_weights(Q, K))
    curve = at.entropy_curve(q, k, [0.1, 0.2])
    assert curve.entropy.dims == ("batch", "head", "query", "scale")
    np.testing.assert_array_equal(curve.entropy.sel(scale=0.2), at.entropy_curve(Q, K, [0.2]).entropy[..., 0])
    assert curve.to_xarray().sel(query="a").sizes == {"batch": 2, "head": 3, "scale": 2}
    for per, dims in (("row", ("batch", "head", "query")), ("head", ("batch", "head"))):
        solution = at.solve_scale(q, k, 1.0, per=per)  # type: ignore[arg-type]
        assert solution.scale.dims == dims
        np.testing.assert_array_equal(solution.scale, at.solve_scale(Q, K, 1.0, per=per).scale)  # type: ignore[arg-type]
    assert at.solve_scale(q, k, 1.0, per="all").scale.shape == ()
    state = at.attention_state(q, k, v, dims=DIMS)
    assert state.output.dims == ("batch", "head", "query", "v")
    np.testing.assert_array_equal(state.entropy, at.attention_state(Q, K, V).entropy)
    merged = at.merge_states([state, at.attention_state(q, k, v, scale=0.1, dims=DIMS)])
    plain = at.merge_states([at.attention_state(Q, K, V), at.attention_state(Q, K, V, scale=0.1)])
    np.testing.assert_allclose(merged.output, plain.output)


def test_a_calibration_is_labelled_by_heads_lengths_and_laws() -> None:
    _, k, _ = arrays((2, 3, 1, 0))
    plain = at.calibrate(K, K, 3, [3, 7], laws=["standard", "log_n"])
    found = at.calibrate(k, k, 3, [3, 7], laws=["standard", "log_n"])
    axes = dict.fromkeys(("target", "equal_scores", "determined", "best"), "")
    axes |= dict.fromkeys(("beta", "standard_entropy", "median_entropy"), "n")
    axes |= dict.fromkeys(("amplitude", "beta_error", "entropy_error"), "law")
    axes |= {"law_beta": "law n", "law_entropy": "law n"}
    for name, own in axes.items():
        seen = getattr(found, name)
        law, n = (("law",) if "law" in own else ()), (("n",) if "n" in own.split() else ())
        assert seen.dims == (*law, "batch", "head", *n)
        assert seen.name == name
        np.testing.assert_array_equal(seen.values, getattr(plain, name))
        assert ("units" in seen.attrs) == (name == "target" or "entropy" in name)
    assert found.beta.sel(head=5, n=7).dims == ("batch",)
    assert found.entropy_error.sel(law="log_n(base=3)").shape == (2, 3)
    assert "key" not in found.beta.coords
    for name in ("fitted_law", "median_law", "median_error", "ranking", "recommendation"):
        assert getattr(found, name) == getattr(plain, name), name
    assert found.to_xarray().sel(head=8, law="log_n(base=3)", n=3).sizes == {"batch": 2}
    assert set(found.to_pandas()["head"]) == {3, 5, 8}
    rows = [line.split("  ")[1] for line in str(found).splitlines()[2:8]]
    assert rows == ["0, 3", "0, 5", "0, 8", "1, 3", "1, 5", "1, 8"]  # the labels, not the places


def test_a_calibration_whose_sequence_has_the_name_of_its_lengths() -> None:
    labels = {"head": [3, 5, 8], "n": np.arange(7) * 10, "word": ("n", list("abcdefg"))}
    k = xarray.DataArray(K, dims=("batch", "head", "n", "d"), coords=labels)
    found = at.calibrate(k, k, 3, [3, 7])
    assert found.beta["n"].values.tolist() == [3, 7]
    assert set(found.beta.coords) == {"head", "n"}
    one = at.calibrate(k.isel(head=0), k.isel(head=0), 3, [3, 7])  # no heads: no axis of one in the result
    assert one.beta.dims == ("batch", "n")
    np.testing.assert_array_equal(one.beta, at.calibrate(K[:, :1], K[:, :1], 3, [3, 7]).beta[:, 0])
    plain = at.calibrate(K[:, 0], K[:, 0], 3, [3, 7], layout="b n d")
    assert type(plain.beta) is np.ndarray
    np.testing.assert_array_equal(plain.beta, one.beta)


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (2, 3, 1, 0)])
def test_the_calibrator_takes_names_and_patterns(order: tuple[int, ...]) -> None:
    _, k, _ = arrays(order)
    options: dict[str, Any] = {"n0": 2, "lengths": [2, 3], "laws": ["standard", "log_n"]}
    truth = at.LawCalibrator(**options).fit(K, K)
    named = at.LawCalibrator(**options).fit(k, k)
    layout = " ".join("bhnd"[i] for i in order)
    plain = at.LawCalibrator(**options, layout=layout).fit(k.values, k.values)
    for model, keys in ((named, k), (plain, k.values)):
        assert model.head_dim_ == 4
        np.testing.assert_array_equal(model.predict([5, 6]), truth.predict([5, 6]))
        assert model.score(keys, keys, [6, 7]) == truth.score(K, K, [6, 7])
    assert named.calibration_.beta.dims == ("batch", "head", "n")


def test_one_name_for_queries_and_keys() -> None:
    axes: dict[str, Any] = {"dims": ("batch", "head", "token", "d"), "coords": {"token": TOKENS}}
    q, k = (xarray.DataArray(x[..., :5, :], **axes) for x in (Q, K))
    weights = at.attention_weights(q, k, is_causal=True)
    assert weights.dims == ("batch", "head", "token", "key_token")
    assert weights["key_token"].values.tolist() == TOKENS
    padding = xarray.DataArray([[True] * 3 + [False] * 2, [True] * 5], dims=("batch", "token"))
    seen = at.attention_weights(q, k, attn_mask=padding)
    wanted = at.attention_weights(Q, K[..., :5, :], attn_mask=padding.values[:, None, None, :])
    np.testing.assert_array_equal(seen, wanted)


def test_options_with_names() -> None:
    q, k, _ = arrays((2, 0, 3, 1))
    scale = xarray.DataArray([0.1, 0.2, 0.3], dims="head")
    mask = xarray.DataArray(np.random.default_rng(2).random((7, 2)) < 0.7, dims=("key", "batch"))
    lengths = xarray.DataArray([3, 7], dims="batch")
    plain = {"scale": scale.values[:, None], "attn_mask": mask.values.T[:, None, None], "key_lengths": [3, 7]}
    found = at.attention_entropy(q, k, scale=scale, attn_mask=mask, key_lengths=lengths)
    np.testing.assert_array_equal(found, at.attention_entropy(Q, K, **plain))
    target = xarray.DataArray([1.0, 1.1, 1.2], dims="head")
    solved = at.solve_scale(q, k, target, per="head").scale
    np.testing.assert_array_equal(solved, at.solve_scale(Q, K, target.values, per="head").scale)
    with pytest.raises(ValueError, match="scale must have axes among batch head query, got key"):
        at.attention_entropy(q, k, scale=xarray.DataArray(np.ones(7), dims="key"))


def test_batch_axes_go_together_by_their_name() -> None:
    q = xarray.DataArray(Q, dims=("sample", "head", "query", "d"))
    k = xarray.DataArray(K[0].swapaxes(0, 1), dims=("key", "head", "d"))  # one text for all samples
    np.testing.assert_array_equal(at.attention_entropy(q, k), at.attention_entropy(Q, K[:1]))
    layers = xarray.DataArray(np.stack([K, K]), dims=("layer", "sample", "head", "key", "d"))
    entropy = at.attention_entropy(q, layers)
    assert entropy.dims == ("sample", "layer", "head", "query")
    np.testing.assert_array_equal(entropy.isel(layer=1), at.attention_entropy(Q, K))
    one = at.attention_entropy(q.isel(head=0), k.isel(head=0))  # no heads: no axis of one in the result
    assert one.dims == ("sample", "query")
    np.testing.assert_array_equal(one, at.attention_entropy(Q[:, 0], K[0, 0]))
    flat = at.attention(q[0, 0], k.isel(head=0), k.isel(head=0))
    assert flat.dims == ("query", "d")


def test_grouped_heads() -> None:
    q, k, _ = random_inputs(3, heads=4, kv_heads=2)
    a, b = (xarray.DataArray(x, dims=("head", "n", "d"), coords={"head": range(len(x))}) for x in (q, k))
    found = at.attention_entropy(a, b, enable_gqa=True)
    np.testing.assert_array_equal(found, at.attention_entropy(q, k, enable_gqa=True))


@pytest.mark.parametrize(
    "layout", ["b h n d", "b n h d", "n b d h", "d h n b", "... n h d", "batch head seq dim"]
)
def test_a_pattern_names_the_axes_of_plain_arrays(layout: str) -> None:
    where = {"b": 0, "...": 0, "batch": 0, "h": 1, "head": 1, "n": 2, "seq": 2, "d": 3, "dim": 3}
    order = [where[name] for name in layout.split()]
    q, k, v = (x.transpose(order) for x in (Q, K, V))
    found = at.attention(q, k, v, layout=layout, is_causal=True)
    assert type(found) is np.ndarray
    truth = at.attention(Q, K, V, is_causal=True)
    np.testing.assert_array_equal(found, truth.transpose(order))
    out = np.empty_like(found)
    assert at.attention(q, k, v, layout=layout, is_causal=True, out=out) is out
    np.testing.assert_array_equal(out, found)
    rows = at.attention_statistics(q, k, v, layout=layout)
    np.testing.assert_array_equal(rows.entropy, at.attention_entropy(Q, K))  # statistics keep their order
    np.testing.assert_array_equal(rows.output, at.attention(Q, K, V).transpose(order))
    np.testing.assert_array_equal(at.attention_weights(q, k, layout=layout), at.attention_weights(Q, K))
    heads = at.variants.kattention_heads(q, k, v, layout=layout)
    np.testing.assert_array_equal(heads, at.variants.kattention_heads(Q, K, V).transpose(order))


def test_patterns_without_heads_and_with_names_of_their_own() -> None:
    found = at.attention(Q[:, 0], K[:, 0], V[:, 0], layout="b n d")
    np.testing.assert_array_equal(found, at.attention(Q[:, :1], K[:, :1], V[:, :1])[:, 0])
    entropy = at.attention_entropy(Q[0, 0].T, K[0, 0].T, layout="d n")
    np.testing.assert_array_equal(entropy, at.attention_entropy(Q[0, 0], K[0, 0]))
    swapped = [x.transpose(0, 2, 1, 3) for x in (Q, K)]
    entropy = at.attention_entropy(*swapped, layout="b j i d", dims={"heads": "i", "sequence": "j"})
    np.testing.assert_array_equal(entropy, at.attention_entropy(Q, K))


def test_mistakes_are_explained() -> None:
    q, k, _ = arrays()
    shifted = k.assign_coords(head=[3, 5, 9])
    # fmt: off
    mistakes = (
        (lambda: at.attention(q, k, V), "the axes of query, key and value must all have names, or none; value is ndarray"),
        (lambda: at.attention_entropy(q.rename(d="x"), k), "query has the axes batch head query x, of which none is known to be the channels; dims={'channels': NAME} says which one is"),
        (lambda: at.attention_entropy(q.rename(batch="time"), k), "query has the axes time head query d, of which time and query could be the sequence"),
        (lambda: at.attention_entropy(q, shifted), "query and key must have the same labels along head, got [3, 5, 8] and [3, 5, 9]; key.reindex_like(query)"),
        (lambda: at.attention_entropy(q, k.rename(head="kv_head")), "the axis of heads must have one name, got head and kv_head"),
        (lambda: at.attention_entropy(q, k, layout="bshd"), "layout is for arrays without names; query has the axes batch head query d, got layout='bshd'"),
        (lambda: at.attention_entropy(q, k, dims="b h n d"), "dims must be a mapping from 'heads', 'sequence', 'channels' to names of axes, got 'b h n d'"),
        (lambda: at.attention_entropy(Q, K, dims={"heads": "x"}), "the axes of query, key and value must all have names, or none; query is ndarray"),
        (lambda: at.attention_entropy(Q, K, layout="bshd", dims={"heads": "x"}), "dims is for axes with names: a DataArray, or layout='b n h d'; got layout='bshd'"),
        (lambda: at.attention_entropy(Q, K, layout="b n (h d)"), "layout must be 'bhsd', 'bshd', or different names of axes between spaces"),
        (lambda: at.attention_entropy(Q, K, layout="b h n"), "query must have the axes of layout='b h n', got 4 axes"),
        (lambda: at.attention_entropy(Q, K, layout="bnhd"), "did you mean 'bshd'? layout must be one of 'bhsd', 'bshd', got 'bnhd'"),
    )
    # fmt: on
    for call, message in mistakes:
        with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
            call()
    with pytest.raises(TypeError, match=r"^out must be a NumPy array, got int$"):
        at.attention(Q, K, V, layout="b h n d", out=3)  # type: ignore[arg-type]


def test_calls_without_names_read_the_values() -> None:
    q, k, v = arrays()
    for function in (at.variants.linear_attention, at.variants.kattention_heads):
        np.testing.assert_array_equal(function(q, k, v), function(Q, K, V))
