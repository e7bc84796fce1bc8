# SPDX-License-Identifier: BSD-3-Clause
"""Quantities that are called the entropy: each is named from its numbers."""

from __future__ import annotations

import math
from typing import Any

import attnscale as at
import numpy as np
import pytest
from attnscale.exact.entropy_quantities import departures
from cases import random_inputs

LN2, LN3, LN4 = math.log(2), math.log(3), math.log(4)
#: One row of scores ln 2, 0, 0 under scale 1/2, and a fourth key that is hidden.
QUERY = np.array([[[2.0, 0, 0, 0]]])
KEY = np.zeros((1, 4, 4))
KEY[0, :, 0] = [LN2, 0, 0, 5]
ROW: dict[str, Any] = {"attn_mask": np.array([True, True, True, False])}
SINK = at.normalizers.Sink(1.0)


def softmax(scores: Any) -> Any:
    weights = np.exp(np.asarray(scores) - np.max(scores))
    return weights / weights.sum()


def entropy(weights: Any) -> float:
    weights = np.asarray(weights, float)
    return float(-sum(p * math.log(p) for p in weights.ravel() if p > 0))


P = softmax([LN2, 0, 0])
TRUTH = entropy(P)
WITH_SINK = softmax([LN2, 0, 0, 1])

#: Number of the row, options, and the name of the quantity.
ONE_ROW: list[tuple[float, dict[str, Any], str]] = [
    (TRUTH, {}, "nats"),
    (1.5, {}, "bits"),
    (TRUTH / LN3, {}, "over ln of the number of visible keys"),
    (TRUTH / LN4, {}, "over ln of the number of all keys"),
    (TRUTH / math.log(7), {}, "over ln of 7"),
    (TRUTH / math.log(4096), {}, "over ln of 4096"),
    (-float(P @ np.log(P + 0.01)), {}, "nats, eps inside the logarithm, ln(p + eps), eps = 0.01"),
    (TRUTH, {"normalizer": SINK}, "nats, the sink is missing"),
    (entropy(WITH_SINK[:3]), {"normalizer": SINK}, "nats, the sink's term is left out"),
    (entropy(softmax([LN2, 0, 0, 0])), {}, "nats, hidden keys count with score 0"),
    (LN2 / 2, {}, "nats, of the weights after dropout of 0.5"),
    (entropy(softmax([LN2 * LN2, 0, 0])), {}, "nats, exponential in base 2"),
    (entropy(softmax([2 * LN2, 0, 0])), {}, "nats, the scale is not applied"),
    (entropy(softmax([LN2 / 2, 0, 0])), {}, "nats, the scale is applied twice"),
    (entropy(softmax([LN2, 0, 0, 5])), {}, "nats, attn_mask is not read"),
    (math.nan, {}, "nats, 0 ln 0 is NaN"),
    (entropy(softmax([LN2, 0, 0, 0])[:3]), {}, "nats, a sink of logit 0 counts, without its term"),
    (-1.5, {}, "bits, negated"),
    (math.exp(TRUTH), {}, "effective keys"),
    (TRUTH / math.log(10), {}, "base 10"),
]


@pytest.mark.parametrize(("number", "options", "name"), ONE_ROW, ids=[name for _, _, name in ONE_ROW])
def test_a_quantity_is_told_from_one_row(number: float, options: dict[str, Any], name: str) -> None:
    found = at.identify_entropy(QUERY, KEY, [[number]], **ROW, **options)
    assert str(found.quantity) == name
    assert found.error.max() < 1e-9
    assert str(found).startswith(f"{name}; largest difference")


def test_the_numbers_of_the_row_are_those_meant() -> None:
    numbers = [number for number, _, _ in ONE_ROW[:4] + ONE_ROW[6:13]]
    wanted = [1.0397, 1.5, 0.9464, 0.75, 1.0102, 1.0397, 0.9278, 1.3322, 0.3466, 1.0708, 0.8676]
    np.testing.assert_allclose(numbers, wanted, atol=5e-5)


#: Places of an eps, each with the terms of a row.
PLACES = {
    "eps inside the logarithm, ln(p + eps)": lambda p, e: p * np.log(p + e),
    "eps inside the logarithm, ln(max(p, eps))": lambda p, e: p * np.log(np.maximum(p, e)),
    "eps added to the weights, (p + eps) ln(p + eps)": lambda p, e: (p + e) * np.log(p + e),
    "weights not below eps, max(p, eps) ln(max(p, eps))": (
        lambda p, e: np.maximum(p, e) * np.log(np.maximum(p, e))
    ),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("eps", [1e-5, 1e-4, 1e-2])
def test_an_eps_is_found_with_its_place(place: str, eps: float) -> None:
    key = np.zeros((1, 4097, 1))
    key[0, 4096] = 4  # above 1e-2, the others below 1e-3
    weights = softmax(key[0, :, 0])
    number = -PLACES[place](weights, eps).sum()
    found = at.identify_entropy(np.ones((1, 1, 1)), key, [[number]])
    if "max(p, eps)" in place and eps < weights.min():
        assert found.quantity == at.EntropyQuantity()
    else:
        assert found.quantity == at.EntropyQuantity(slip=place, eps=eps)


def test_the_eps_of_thousands_of_equal_keys_is_found() -> None:
    found = at.identify_entropy(np.ones((1, 1, 1)), np.zeros((1, 4096, 1)), [[8.277638]])
    assert found.quantity is not None
    assert (found.quantity.eps, found.quantity.is_entropy) == (1e-5, False)


def test_packed_texts_that_see_each_other_are_named() -> None:
    query, key = np.random.default_rng(3).standard_normal((2, 1, 6, 4))
    documents = [0, 0, 0, 1, 1, 1]
    found = at.identify_entropy(query, key, at.attention_entropy(query, key), document_ids=documents)
    assert str(found.quantity) == "nats, document_ids is not read"
    equal = at.identify_entropy(query, 0 * key, np.full((1, 6), math.log(6)), document_ids=documents)
    assert "document_ids is not read" in str(equal)


#: Rows (1, 0, 0), (0, 1/2, 1/2) and (1/2, 1/4, 1/4) of one head.
THREE: dict[str, Any] = {"attn_mask": np.array([[1, 0, 0], [0, 1, 1], [1, 1, 1]], bool)}
OF_THREE = np.array([[1, 0, 0], [0, 0.5, 0.5], P])
ENTROPIES = np.array([entropy(row) for row in OF_THREE])
MEANS: list[tuple[float, str]] = [
    (ENTROPIES.mean(), "nats, mean over queries"),
    (ENTROPIES.mean() / LN2, "bits, mean over queries"),
    (entropy(OF_THREE.mean(0)), "nats, mean row over queries"),
    (ENTROPIES[1:].mean(), "nats, mean over queries of the rows of more than one key"),
    ((1 + TRUTH / LN3) / 3, "over ln of the number of visible keys, mean over queries"),
    (ENTROPIES.mean() / LN3, "over ln of the number of all keys, mean over queries"),
]


@pytest.mark.parametrize(("number", "name"), MEANS, ids=[name for _, name in MEANS])
def test_a_mean_is_told_from_one_number(number: float, name: str) -> None:
    query = np.repeat(QUERY, 3, axis=1)
    found = at.identify_entropy(query, KEY[:, :3], [number], **THREE)
    assert str(found.quantity) == name
    assert found.axes == "heads"
    assert found.quantity is not None
    assert found.quantity.is_entropy == (
        name.split(" over queries")[-1] == "" and "mean row" not in name and "all keys" not in name
    )


def heads(**types: Any) -> tuple[Any, Any]:
    query, key, _ = random_inputs(5, heads=3, n_queries=12, n_keys=12, dtype="float32", **types)
    return query, key


def test_one_number_a_head_a_query_or_in_all() -> None:
    query, key = (x[None] for x in heads())
    rows = at.attention_entropy(query, key, is_causal=True).astype(np.float64)
    for given, axes, name in (
        (rows.mean(-1), "heads", "mean over queries"),
        (rows.mean((0, 2)), "heads", "mean over batch and queries"),
        (rows.mean(1), "queries", "mean over heads"),
        (rows.mean(), "", "mean over batch and heads and queries"),
        (rows, "heads, queries", "each"),
        (rows.swapaxes(1, 2), "queries, heads", "each"),
        (rows[..., None], "heads, queries", "each"),
    ):
        found = at.identify_entropy(query, key, given, is_causal=True)
        assert found.quantity is not None
        assert found.quantity.is_entropy
        assert (found.axes, found.quantity.rows) == (axes, name)
    weights = at.attention_weights(query, key, is_causal=True).astype(np.float64)
    mean = np.array([entropy(row) for row in weights[0].mean(0)])[None]
    found = at.identify_entropy(query, key, mean, is_causal=True)
    assert found.quantity == at.EntropyQuantity(rows="mean row over heads")


@pytest.mark.parametrize(
    "options",
    [
        {"window": (2, 1)},
        {"softcap": 0.5},
        {"key_lengths": 7},
        {"is_causal": True},
        {"scale": 0.1},
        {"qk_norm": "l2"},
        {"normalizer": "softmax_n(n=3)"},
    ],
    ids=str,
)
def test_an_option_that_is_not_read_is_named(options: dict[str, Any]) -> None:
    query, key = heads()
    found = at.identify_entropy(query, key, at.attention_entropy(query, key), **options)
    assert found.quantity is not None
    name = {"is_causal": "the causal mask is not read", "normalizer": "the sink is missing"}
    (option,) = options
    assert found.quantity.slip == name.get(option, f"{option} is not read")
    plain = at.identify_entropy(query, key, at.attention_entropy(query, key, **options), **options)
    assert plain.quantity == at.EntropyQuantity()


def test_weights_that_are_given_show_dropout() -> None:
    query, key = heads()
    weights = at.attention_weights(query, key).astype(np.float64)
    dropped = weights * (np.random.default_rng(0).random(weights.shape) > 0.3) / 0.7
    rows = -(dropped * np.log(np.where(dropped > 0, dropped, 1))).sum(-1)
    found = at.identify_entropy(query, key, rows, weights=dropped)
    assert str(found.quantity) == "nats, of the weights after dropout of 0.3"
    assert (
        at.identify_entropy(query, key, rows).quantity is None
    )  # rows of 12 keys: chance would explain them
    short = at.identify_entropy(
        query[:, :4], key[:, :4], at.attention_entropy(query[:, :4], key[:, :4]) + 0.1
    )
    assert short.quantity is None
    halved = at.identify_entropy(
        query, key, -(weights / 2 * np.log(weights / 2)).sum(-1), weights=weights / 2
    )
    assert str(halved.quantity) == "nats, of the given weights, whose rows sum to 0.5 to 0.5"
    own = at.identify_entropy(query, key, at.attention_entropy(query, key), weights=weights)
    assert own.quantity == at.EntropyQuantity()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_an_entropy_of_16_bits_is_told(dtype: str) -> None:
    query, key = heads()
    rows = (at.attention_entropy(query, key) / LN2).astype(_type(dtype))
    found = at.identify_entropy(query, key, rows)
    assert found.quantity == at.EntropyQuantity(unit="bits")
    assert found.error.max() < found.tolerance < 6e-3
    assert (
        at.identify_entropy(query, key, (1.02 * rows.astype(np.float64)).astype(rows.dtype)).quantity is None
    )


def _type(name: str) -> Any:
    import ml_dtypes

    return ml_dtypes.bfloat16 if name == "bfloat16" else np.dtype(name)


def test_what_rows_without_keys_hold_is_read() -> None:
    query, key = heads()
    mask = np.tri(12, dtype=bool)
    mask[[2, 5]] = False
    rows = at.attention_entropy(query, key, attn_mask=mask)
    assert (rows[:, 2] == 0).all()
    found = at.identify_entropy(query, key, rows, attn_mask=mask)
    assert found.quantity == at.EntropyQuantity(empty=0.0)
    rows[:, [2, 5]] = math.log(12)
    found = at.identify_entropy(query, key, rows, attn_mask=mask)
    assert "rows without keys 2.484906" in str(found.quantity)
    assert found.quantity is not None
    assert found.quantity.is_entropy


def test_heads_that_differ_and_unknown_numbers_are_named() -> None:
    query, key = heads()
    rows = at.attention_entropy(query, key)
    rows[1] /= LN2
    found = at.identify_entropy(query, key, rows)
    assert found.quantity is None
    assert "heads differ; " in str(found)
    assert "head 1: bits" in str(found)
    rows[1] += 0.3
    found = at.identify_entropy(query, key, rows)
    assert [each is None for each in found.per_head] == [False, True, False]
    assert "no known quantity for head 1; nearest: " in str(found)


def test_the_simplest_of_several_is_named_first() -> None:
    query, key = heads()
    found = at.identify_entropy(query, key, at.attention_entropy(query, key, scale=1.0), scale=1.0)
    assert found.quantity == at.EntropyQuantity()
    assert "not told from: nats, the scale is not applied" in str(found)
    assert departures(at.EntropyQuantity(unit="bits", slip="x")) == 2


def test_a_sink_that_is_counted_beside_the_call_is_named() -> None:
    query, key = heads()
    rows = at.attention_entropy(query, key, normalizer="softmax_1")
    assert str(at.identify_entropy(query, key, rows).quantity) == "nats, a sink of logit 0 counts"


def test_rows_of_weights_other_than_a_softmax() -> None:
    query, key = heads()
    for normalizer in ("sparsemax", "entmax(alpha=1.5)", "top_k(k=3)"):
        rows = at.attention_entropy(query, key, normalizer=normalizer)
        assert at.identify_entropy(query, key, rows, normalizer=normalizer).quantity == at.EntropyQuantity()
        plain = at.identify_entropy(query, key, at.attention_entropy(query, key), normalizer=normalizer)
        assert str(plain.quantity) == "nats, the weights are those of a softmax"


def test_named_axes_and_other_layouts() -> None:
    xarray = pytest.importorskip("xarray")
    query, key = heads()
    bits = at.attention_entropy(query, key, is_causal=True) / LN2
    named = [xarray.DataArray(x.transpose(2, 0, 1), dims=("dim", "head", "token")) for x in (query, key)]
    found = at.identify_entropy(*named, bits, is_causal=True)
    assert found.quantity == at.EntropyQuantity(unit="bits")
    swapped = (x.transpose(1, 0, 2) for x in (query, key))
    found = at.identify_entropy(*swapped, bits, is_causal=True, layout="bshd")
    assert found.quantity == at.EntropyQuantity(unit="bits")


def test_a_single_head_of_two_axes() -> None:
    query, key = heads()
    rows = at.attention_entropy(query[0], key[0])
    assert at.identify_entropy(query[0], key[0], rows).quantity == at.EntropyQuantity()
    mean = at.identify_entropy(query[0], key[0], rows.mean())
    assert mean.quantity == at.EntropyQuantity(rows="mean over queries")


WRONG: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
    (np.zeros((3, 5)), {}, ValueError, "entropy must have the shape of the rows"),
    ([["a"]], {}, TypeError, "entropy must be numbers"),
    (np.zeros((3, 12)), {"tolerance": 0}, ValueError, "tolerance must be greater than 0, got 0"),
    (np.zeros((3, 12)), {"key_lengths": 0}, ValueError, "some row of query must see a key"),
    (np.zeros((3, 12)), {"normalizer": "sigmoid"}, ValueError, "rows of Sigmoid"),
    (np.zeros((3, 12)), {"weights": np.zeros((3, 12, 4))}, ValueError, "weights must broadcast to"),
]


@pytest.mark.parametrize(("given", "options", "error", "said"), WRONG, ids=[said for *_, said in WRONG])
def test_what_is_refused(given: Any, options: dict[str, Any], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        at.identify_entropy(*heads(), given, **options)


def test_an_unknown_unit_is_refused() -> None:
    with pytest.raises(ValueError, match="unit must be one of 'nats', 'bits'"):
        at.EntropyQuantity(unit="nat")  # type: ignore[arg-type]


def test_rows_of_zeros_are_not_dropout() -> None:
    query, key = random_inputs(2, n_queries=6, n_keys=9)[:2]
    zeros = np.zeros(query.shape[:-1])
    assert at.identify_entropy(query, key, zeros, is_causal=True).quantity is None


def test_the_tolerance_told_is_that_of_the_nearest_quantity() -> None:
    """A single number that is near a quantity with one departure, and not near enough."""
    query, key = random_inputs(2, n_queries=6, n_keys=9)[:2]
    mean = at.attention_entropy(query, key, is_causal=True, scale=1.0).mean()
    found = at.identify_entropy(query, key, float(mean) + 5e-4, is_causal=True)
    assert found.quantity is None
    assert found.error.max() > found.tolerance == 2e-4
