# SPDX-License-Identifier: BSD-3-Clause
"""Mass of selected keys, strongest keys and kinds of heads, against the written-out matrix."""

from __future__ import annotations

import tracemalloc
from typing import Any

import attnscale as at
import numpy as np
import pytest
from attnscale import reference
from cases import FLOAT_TYPES, case, mask_cases, random_inputs, remembering, rows_are_lost

from tools.fuzz import build, check_attend, draw

NORMALIZERS = (
    *("softmax_1", "sink(logits=[0.5, 1])", "sigmoid", "sigmoid(bias=-1)", "softpick", "sparsemax", "relu"),
    *("entmax(alpha=1.5)", "top_k(k=3)", "squared_relu(divide='sum')"),
)


def options_of(n_queries: int, n_keys: int) -> dict[str, dict[str, Any]]:
    """Options of calls of the shape (2, 2, n, d), one set for each option."""
    logits = np.linspace(-1, 2, 4 * n_queries).reshape(2, 2, n_queries)
    tables = {
        "tables": {"distance_scale": 1 + 0.1 * np.arange(150), "distance_bias": lambda t: np.sin(0.3 * t)},
        "law of the distance": {"scale": "scale_invariant", "is_causal": True},
        "documents": {"document_ids": np.arange(n_keys) // 20, "causal": "bottom_right", "scale": "log_n"},
        "one scale a row": {"scale": np.linspace(-1, 1, 4 * n_queries).reshape(2, 2, n_queries)},
        "rows of one length": {"qk_norm": "rms"},
        "a sink of each row": {"normalizer": at.normalizers.Sink(logits)},
    }
    rules = {name: {"normalizer": name, "causal": "bottom_right"} for name in NORMALIZERS}
    return mask_cases(2, 2, n_queries, n_keys) | tables | rules


def selections(n_queries: int, n_keys: int) -> dict[str, tuple[Any, int | None]]:
    """Indices of every shape, with repeated keys and places without a key, and the block size."""
    rng = np.random.default_rng(3)
    return {
        "every row": (rng.integers(-3, n_keys, (2, 2, n_queries, 9)), None),
        "for all heads": (rng.integers(-3, n_keys, (2, n_queries, 9)), None),
        "for all batches": (rng.integers(-3, n_keys, (n_queries, 9)), None),
        "a cache": (rng.integers(0, n_keys, (2, 1, 9)), None),
        "a cache of each head": (rng.integers(0, n_keys, (1, 2, 1, 9)), None),
        "one set": (rng.integers(0, n_keys, 9), None),
        "blocks": (rng.integers(-1, -(-n_keys // 8), (2, n_queries, 3)), 8),
        "a set of blocks": ([0, -1, (n_keys - 1) // 8], 8),
        "no key": (np.zeros((n_queries, 0), int), None),
    }


def check(q: Any, k: Any, selected: Any, size: int | None, most: int, tokens: Any, **options: Any) -> None:
    """Compare mass, strongest keys and kinds of heads with the twin in float64."""
    wide = [x.astype(np.float64) for x in (q, k)]
    dtype, atol = (np.float64, 1e-12) if q.dtype == np.float64 else (np.float32, 1e-5)
    with remembering(), np.errstate(all="ignore"):
        p = reference.attention_weights(*wide, **options)
        mass = reference.attention_mass(*wide, selected, block_size=size, **options)
        top = reference.top_keys(*wide, most, **options)
        kinds = reference.head_kinds(*wide, tokens, **options) if p.shape[-1] else None
    found = at.attention_mass(q, k, selected, block_size=size, **options)
    assert found.dtype == dtype
    np.testing.assert_allclose(found, mass, atol=atol)
    index, weight = at.top_keys(q, k, most, **options)
    assert (index.dtype, weight.dtype) == (np.int64, dtype)
    np.testing.assert_allclose(weight, top.weight, atol=atol)
    np.testing.assert_array_equal(index < 0, top.index < 0)
    if kinds is None:
        return
    # Keys whose scores are equal to rounding may change places; their weights are compared.
    there = np.where(index < 0, top.weight, np.take_along_axis(p, np.maximum(index, 0), -1))
    np.testing.assert_allclose(weight, there, atol=atol)
    for name, rows in at.head_kinds(q, k, tokens, **options)._asdict().items():
        unit = p.shape[-1] if name == "distance" else 1
        assert rows.dtype == dtype
        np.testing.assert_allclose(rows, getattr(kinds, name), atol=atol * unit, err_msg=name)


@pytest.mark.parametrize("dtype", FLOAT_TYPES)
@pytest.mark.parametrize("n_queries", [1, 33])
def test_every_option(n_queries: int, dtype: str) -> None:
    q, k, _ = random_inputs(1, batch=(2,), n_queries=n_queries, n_keys=75, dtype=dtype)
    tokens = np.random.default_rng(1).integers(0, 6, (2, 75))
    chosen = list(selections(n_queries, 75).values())
    for i, (name, options) in enumerate(options_of(n_queries, 75).items()):
        with case(name):
            check(q, k, *chosen[i % len(chosen)], 5, tokens, **options)


@pytest.mark.parametrize("name", selections(17, 33))
def test_every_shape_of_a_selection(name: str) -> None:
    selected, size = selections(17, 33)[name]
    q, k, _ = random_inputs(2, batch=(2,), dtype="float64")
    found = at.attention_mass(q, k, selected, block_size=size, is_causal=True)
    wanted = reference.attention_mass(q, k, selected, block_size=size, is_causal=True)
    np.testing.assert_allclose(found, wanted, atol=1e-12)
    # In a row that sees one key, the mass is 1 if the selection has the key, else 0.
    only = (np.arange(33) == j for j in range(33))
    has = [at.attention_mass(q, k, selected, block_size=size, attn_mask=mask) for mask in only]
    top = at.top_keys(q, k, 6, is_causal=True)
    hits = np.take_along_axis(np.stack(has, -1), np.maximum(top.index, 0), -1) * (top.index >= 0)
    recall = hits.sum(-1) / np.minimum(np.arange(1, 18), 6)
    np.testing.assert_allclose(top.recall(selected, block_size=size), recall, atol=1e-12)


def test_random_calls() -> None:
    for index in range(300):
        spec = check_attend.draw(draw.Draw(11, index))
        for each in spec["arrays"].values():
            each.update(profile="normal", dtype="float64")
        spec["options"].get("attn_mask", {})["profile"] = "normal"
        rng = draw.generator(11, index)
        q, k = (build.make(spec["arrays"][name], rng) for name in "qk")
        options = build.options(spec, rng)
        form = {name: options[name] for name in ("enable_gqa", "layout") if name in options}
        lead, n_keys = reference.dot_products(q, k, **form).shape[:-1], spec["shape"]["nk"]
        selected = rng.integers(-2, max(n_keys, 1), (*lead, 4)) if n_keys else np.full((*lead, 4), -1)
        with case(index, spec["shape"], options):
            check(q, k, selected, None, spec["shape"]["dv"] + 1, rng.integers(0, 4, n_keys), **options)


def test_several_blocks_of_rows() -> None:
    q, k, _ = random_inputs(3, n_queries=1100, n_keys=4000, head_dim=4, heads=3, kv_heads=1)
    p = at.attention_weights(q, k, enable_gqa=True, causal="bottom_right")
    selected = np.random.default_rng(0).integers(0, 4000, (1100, 20))
    chosen = np.zeros((1100, 4000), bool)
    np.put_along_axis(chosen, selected, True, -1)
    found = at.attention_mass(q, k, selected, enable_gqa=True, causal="bottom_right")
    np.testing.assert_allclose(found, (p * chosen).sum(-1), atol=1e-6)
    index, weight = at.top_keys(q, k, 3, enable_gqa=True, causal="bottom_right")
    np.testing.assert_allclose(weight, -np.sort(-p, -1)[..., :3], rtol=1e-4)
    np.testing.assert_array_equal(np.take_along_axis(p, index, -1).argmax(-1), 0)


def test_mass_is_a_difference_of_two_lse_and_the_strongest_keys_keep_the_most() -> None:
    q, k, _ = random_inputs(4, dtype="float64")
    index, weight = at.top_keys(q, k, 8, window=(9, 9))
    mask = np.zeros((2, 17, 34), bool)
    np.put_along_axis(mask, index, True, -1)
    options = {"window": (9, 9), "statistics": "lse"}
    whole = at.attention_statistics(q, k, **options).lse
    part = at.attention_statistics(q, k, attn_mask=mask[..., :33], **options).lse
    mass = at.attention_mass(q, k, index, window=(9, 9))
    np.testing.assert_allclose(mass, np.exp(part - whole), rtol=1e-12)
    np.testing.assert_allclose(mass, weight.sum(-1), rtol=1e-12)


def test_of_equal_scores_the_lower_key() -> None:
    q, k = np.zeros((2, 1, 4, 8))
    index, weight = at.top_keys(q, np.zeros((1, 300, 8)), 3)
    np.testing.assert_array_equal(index, np.broadcast_to([0, 1, 2], (1, 4, 3)))
    np.testing.assert_allclose(weight, 1 / 300)
    # 1, 1, 3, 3, 2, 2, 2: two of the last three do not fit.
    k = np.array([1, 1, 3, 3, 2, 2, 2.0])[None, :, None]
    three, nine = (at.top_keys(np.ones((1, 1, 1)), k, n, scale=1.0).index.tolist() for n in (3, 9))
    assert (three, nine) == ([[[2, 3, 4]]], [[[2, 3, 4, 5, 6, 0, 1, -1, -1]]])


@pytest.mark.parametrize(("n_queries", "k"), [(1, 8), (1, 5000), (20, 64)])
def test_the_strongest_of_many_keys(n_queries: int, k: int) -> None:
    rng = np.random.default_rng(9)  # whole numbers: scores are exact, and many are equal
    q, keys = (rng.integers(-3, 4, (1, n, 8)).astype(np.float32) for n in (n_queries, 60_000))
    score = q.astype(np.float64) @ keys.swapaxes(-1, -2)
    index, weight = at.top_keys(q, keys, k)
    np.testing.assert_array_equal(index, np.argsort(-score, -1, kind="stable")[..., :k])
    np.testing.assert_array_equal(index, at.top_keys(q, keys, k, num_threads=1).index)
    wanted = np.take_along_axis(at.attention_weights(q, keys), index, -1)
    np.testing.assert_allclose(weight, wanted, rtol=1e-5)


def test_memory_does_not_grow_with_the_keys() -> None:
    keys = np.broadcast_to(np.ones((1, 1, 16), np.float32), (1, 2**21, 16))
    q = np.ones((1, 2, 16), np.float32)
    tracemalloc.start()
    try:
        index, weight = at.top_keys(q, keys, 5)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()
    np.testing.assert_array_equal(index, np.broadcast_to(np.arange(5), (1, 2, 5)))
    np.testing.assert_allclose(weight, 2.0**-21, rtol=1e-6)


@rows_are_lost
def test_a_nan_reaches_the_rows_that_see_it() -> None:
    q, k, _ = random_inputs(6, n_queries=33)
    for bad in (np.nan, np.inf):
        k[:, 20] = bad
        for normalizer in ("softmax", "softmax_1", "sigmoid", "entmax15"):
            options: dict[str, Any] = {"is_causal": True, "normalizer": normalizer}
            index, weight = at.top_keys(q, k, 4, **options)
            kinds = at.head_kinds(q, k, **options)
            for found in (at.attention_mass(q, k, [1, 20], **options), weight, kinds.itself, kinds.distance):
                assert np.isnan(found[:, 20:]).all()
                assert np.isfinite(found[:, :20]).all()
            assert (index[:, 20:] == -1).all()
            assert (index[:, :20, 0] >= 0).all()


def test_empty_calls() -> None:
    for n_queries, n_keys in ((0, 5), (3, 0), (0, 0)):
        q, k, _ = random_inputs(7, n_queries=n_queries, n_keys=n_keys)
        assert (at.attention_mass(q, k, [-1]) == 0).all()
        index, weight = at.top_keys(q, k, 2)
        assert index.shape == weight.shape == (2, n_queries, 2)
        assert at.top_keys(q, k, 2).recall([-1]).tolist() == np.zeros((2, n_queries)).tolist()
        if n_keys == 0:
            assert (index == -1).all()
            assert (weight == 0).all()
        for x in at.head_kinds(q, k, np.zeros(n_keys, int)):
            assert x.shape == (2, n_queries)
            assert np.isnan(x).sum() == (0 if n_keys else x.size)


def test_layouts_names_and_other_libraries() -> None:
    xr = pytest.importorskip("xarray")
    q, k, _ = random_inputs(8, heads=4, kv_heads=2)
    tokens = np.arange(33) % 7
    plain = at.top_keys(q, k, 3, enable_gqa=True)
    kinds = at.head_kinds(q, k, tokens, enable_gqa=True)
    swapped = [x.swapaxes(0, 1) for x in (q, k)]
    named = [xr.DataArray(x, dims=("head", "token", "dim")) for x in (q, k)]
    for given, more in ((swapped, {"layout": "bshd"}), (named, {})):
        top = at.top_keys(*given, 3, enable_gqa=True, **more)
        np.testing.assert_array_equal(top.index, plain.index)
        np.testing.assert_array_equal(top.recall([0, 1]), plain.recall([0, 1]))
        found = at.head_kinds(*given, tokens, enable_gqa=True, **more)
        for one, other in zip(found, kinds, strict=True):
            np.testing.assert_array_equal(one, other)
        mass = at.attention_mass(*given, plain.index, enable_gqa=True, **more)
        np.testing.assert_allclose(mass, plain.weight.sum(-1), rtol=1e-6)
    assert top.weight.dims == ("head", "token", "rank")
    assert mass.dims == found.previous.dims == ("head", "token")
    of_keys = xr.DataArray(tokens, dims="token")
    np.testing.assert_array_equal(at.head_kinds(*named, of_keys, enable_gqa=True).induction, kinds.induction)


def test_heads_of_one_kind() -> None:
    """Heads built to read the previous key, the query's own, the first, or the one after the last match."""
    place = np.eye(40)  # key j is a unit vector of its own
    tokens = np.random.default_rng(0).permutation(20)[np.arange(40) % 20]  # the text comes twice
    queries = {
        "previous": np.roll(place, 1, axis=0),
        "itself": place,
        "first": np.broadcast_to(place[:1], place.shape),
        "induction": np.roll(place, 19, axis=0),
    }
    for name, q in queries.items():
        kinds = at.head_kinds(60 * q, place, tokens, scale=1.0, is_causal=True).per_head()
        assert float(getattr(kinds, name)) > 0.999, name
        others = [float(getattr(kinds, other)) for other in queries if other != name]
        assert max(others) < 0.3, name


def test_means_per_head_leave_out_rows_without_such_a_key() -> None:
    q, k = np.zeros((2, 3, 4, 8))
    kinds = at.head_kinds(q, k, [1, 2, 3, 4], is_causal=True)
    means = kinds.per_head()
    np.testing.assert_allclose(means.previous, np.full(3, (1 / 2 + 1 / 3 + 1 / 4) / 3))
    np.testing.assert_allclose(means.itself, np.full(3, (1 + 1 / 2 + 1 / 3 + 1 / 4) / 4))
    assert np.isnan(means.induction).all()
    assert at.head_kinds(q, k).induction is at.head_kinds(q, k).per_head().induction is None


WRONG: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
    ([0.5], {}, TypeError, "selected must be integers, got float64"),
    ([True], {}, TypeError, r"selected must be indices of keys, got a mask of bool: np.nonzero\(mask\)\[0\]"),
    ([[1, 2], [3]], {}, TypeError, "selected cannot .* got list: its rows have different lengths"),
    (3, {}, ValueError, "selected must have an axis of indices, got a number"),
    ([33], {}, ValueError, "selected must be indices of 33 keys, got 33"),
    ([5], {"block_size": 8}, ValueError, "selected must be indices of 5 blocks of 8 keys, got 5"),
    ([0], {"block_size": 0}, ValueError, "block_size must be at least 1, got 0"),
    (np.zeros((16, 2), int), {}, ValueError, r"\(\.\.\., n_queries, k\) = \(17, 2\), got shape \(16, 2\)"),
    (
        np.zeros((3, 17, 2), int),
        {},
        ValueError,
        r"heads, n_queries, k\) = \(2, 17, 2\), got shape \(3, 17, 2\)",
    ),
]


@pytest.mark.parametrize(("selected", "more", "error", "said"), WRONG, ids=[said for *_, said in WRONG])
def test_what_is_refused(selected: Any, more: dict[str, Any], error: type[Exception], said: str) -> None:
    q, k, _ = random_inputs(7)
    with pytest.raises(error, match=said):
        at.attention_mass(q, k, selected, **more)


def test_what_else_is_refused() -> None:
    q, k, _ = random_inputs(7)
    top, kinds, recall = at.top_keys, at.head_kinds, at.top_keys(q, k, 3).recall
    wrong: list[tuple[Any, type[Exception], str]] = [
        (lambda: top(q, k, 0), ValueError, "k must be at least 1, got 0"),
        (lambda: top(q, k, "3"), TypeError, "k must be an integer, got '3'"),  # type: ignore[arg-type]
        (lambda: kinds(q, k, np.zeros(33)), TypeError, "tokens must be integers, got float64"),
        (
            lambda: kinds(q, k, np.zeros(32, int)),
            ValueError,
            r"\(\.\.\., n_keys\) = \(33,\), got shape \(32,\)",
        ),
        (
            lambda: recall(np.zeros((5, 5, 5), int)),
            ValueError,
            r"selected must broadcast to \(\.\.\., heads, n_q",
        ),
    ]
    for call, error, said in wrong:
        with pytest.raises(error, match=said):
            call()
    assert recall([10**12]).max() == 0  # a key that is not there is none of the strongest
