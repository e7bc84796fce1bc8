# SPDX-License-Identifier: BSD-3-Clause
"""Conventions of the log-sum-exp of engines: identified, and converted into each other."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import attnscale as at
import ml_dtypes
import numpy as np
import pytest
from attnscale import LSE_CONVENTIONS, LseConvention
from attnscale.exact import lse_conventions as module
from cases import random_inputs, same

LOGITS = np.array([0.0, 1.0, -2.0])
MASK = np.tri(24, 24, dtype=bool)
MASK[[3, 17]] = False  # two rows without keys
SINK = at.normalizers.Sink(LOGITS)


def heads() -> tuple[Any, Any]:
    query, key, _ = random_inputs(5, heads=3, n_queries=24, n_keys=24, dtype="float32")
    return query, key


def written(convention: LseConvention, normalizer: Any = "softmax") -> np.ndarray[Any, Any]:
    """Log-sum-exp that an engine of this convention returns for the heads, from their matrix of scores."""
    query, key = (x.astype(np.float64) for x in heads())
    scale = 1 / math.sqrt(query.shape[-1]) if convention.scaled else 1.0
    scores = np.where(MASK, scale * query @ key.swapaxes(-1, -2), -np.inf)
    top = scores.max(axis=-1)
    if normalizer != "softmax" and convention.sink:
        scores = np.concatenate([scores, np.broadcast_to(LOGITS[:, None, None], (3, 24, 1))], axis=-1)
    with np.errstate(all="ignore"):
        natural = np.log(np.exp(scores).sum(axis=-1)) - (top if convention.less_max else 0)
    found = natural / (math.log(2) if convention.base == "2" else 1) * (-1 if convention.negated else 1)
    holds_sink = normalizer != "softmax" and convention.sink
    if not holds_sink:
        assert convention.empty is not None
        found[..., ~MASK.any(axis=-1)] = convention.empty
    return found


EVERY = [
    LseConvention(base, scaled, sink, less_max, negated, empty)
    for base, scaled, sink, less_max, negated, empty in itertools.product(
        ("e", "2"), (True, False), (True, False), (False, True), (False, True), (-math.inf, 0.0)
    )
]

SCALED = [each for each in EVERY if each.scaled]


@pytest.mark.parametrize("convention", EVERY, ids=str)
def test_every_convention_is_told_from_its_numbers(convention: LseConvention) -> None:
    query, key = heads()
    found = at.identify_lse(query, key, written(convention, SINK), attn_mask=MASK, normalizer=SINK)
    # Rows without keys hold the logit of a sink that is counted, which leaves `empty` open.
    assert found.convention == replace(convention, empty=None if convention.sink else convention.empty)
    assert not found.also
    assert found.error.max() < 1e-5


@pytest.mark.parametrize("empty", [-math.inf, math.inf, 0.0, math.nan, -5e4])
def test_the_value_of_rows_without_keys_is_read(empty: float) -> None:
    query, key = heads()
    found = at.identify_lse(query, key, written(LseConvention(empty=empty)), attn_mask=MASK)
    assert found.convention is not None
    assert found.convention.empty is not None
    np.testing.assert_equal(found.convention.empty, empty)
    assert ("flash_attention_2" in found.engines) == (empty == math.inf)


def in_bfloat16(rows: Any) -> np.ndarray[Any, Any]:
    """Rounded to bfloat16, in float32."""
    return np.asarray(rows).astype(ml_dtypes.bfloat16).astype(np.float32)


@pytest.mark.parametrize("base", ["e", "2"])
@pytest.mark.parametrize("negated", [False, True])
@pytest.mark.parametrize("to", [in_bfloat16, lambda x: in_bfloat16(x).astype(ml_dtypes.bfloat16), np.float16])
def test_an_lse_of_16_bits_is_told(base: Any, negated: bool, to: Any) -> None:
    query, key = heads()
    convention = LseConvention(base, negated=negated)
    found = at.identify_lse(query, key, to(written(convention)), attn_mask=MASK)
    assert found.convention == convention
    assert found.error.max() < found.tolerance < 6e-3
    assert at.identify_lse(query, key, to(1.02 * written(convention)), attn_mask=MASK).convention is None


def test_an_lse_of_32_bits_may_be_no_further_than_the_tolerance() -> None:
    query, key = heads()
    rows = written(LseConvention()) * 1.003
    assert at.identify_lse(query, key, rows, attn_mask=MASK).convention is None


#: Values that engines write for rows without keys, by type.
LOWEST = {
    "jax": {"float64": -2.381976325057654e38, "float32": -2.381976325057654e38, "bfloat16": -2.3793181e38},
    "flashinfer": {"float64": -5e4, "float32": -5e4, "bfloat16": -49920.0, "float16": -49984.0},
}


@pytest.mark.parametrize(
    ("engine", "dtype"), [(engine, dtype) for engine, of in LOWEST.items() for dtype in of]
)
def test_a_number_for_no_keys_is_known_in_each_type(engine: str, dtype: str) -> None:
    query, key = heads()
    lowest = LOWEST[engine][dtype]
    base: Any = "2" if engine == "flashinfer" else "e"
    rows = written(LseConvention(base, empty=lowest)).astype(dtype)
    assert set(at.identify_lse(query, key, rows, attn_mask=MASK).engines) == {engine}
    nothing = np.full((3, 24), lowest).astype(dtype)
    assert np.isneginf(at.convert_lse(nothing, from_=engine).astype(np.float64)).all()
    states = [at.AttentionState(np.full((3, 24, 2), np.float32(7)), nothing)] * 2
    merged = at.merge_states(states, convention=engine)
    np.testing.assert_array_equal(merged.output, 0)
    assert np.isneginf(merged.lse.astype(np.float64)).all()


@pytest.mark.jax
def test_the_lowest_number_of_jax_is_that_of_jax() -> None:
    jax = pytest.importorskip("jax")
    for dtype, lowest in LOWEST["jax"].items():
        if dtype != "float64":
            one = jax.numpy.ones((1, 1, 1, 1), dtype)
            hidden = jax.numpy.zeros((1, 1, 1, 1), bool)
            _, lse = jax.nn.dot_product_attention(one, one, one, mask=hidden, return_residual=True)
            np.testing.assert_allclose(float(lse[0, 0, 0]), lowest, rtol=1e-7)


def test_an_lse_of_16_bits_says_its_type() -> None:
    query, key = heads()
    rows = written(LseConvention())
    for to, name in ((ml_dtypes.bfloat16, "bfloat16"), (np.float16, "float16")):
        found = at.identify_lse(query, key, rows.astype(to), attn_mask=MASK)
        assert found.rounded == name
        assert f"rows without keys -inf, rounded to {name} (attnscale" in str(found)
        # The lowest number of jax is beyond float16.
        assert ("jax" in found.engines) == (name == "float16")
    assert at.identify_lse(query, key, rows, attn_mask=MASK).rounded == ""


@pytest.mark.jax
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_the_lse_of_jax_is_known_in_16_bits(dtype: str) -> None:
    jax = pytest.importorskip("jax")
    query, key = (jax.numpy.asarray(x[None], dtype) for x in heads())
    q, k = (x.transpose(0, 2, 1, 3) for x in (query, key))
    _, lse = jax.nn.dot_product_attention(q, k, k, mask=MASK[None, None], return_residual=True)
    arrays = (np.asarray(x).astype(np.float32) for x in (query, key))
    found = at.identify_lse(*arrays, np.asarray(lse).astype(np.float32), attn_mask=MASK)
    assert (found.axes, found.rounded) == ("queries, heads", dtype)
    assert "jax" in found.engines


def scored() -> np.ndarray[Any, Any]:
    """Scores of the heads; -inf where hidden."""
    query, key = (x.astype(np.float64) for x in heads())
    return np.where(MASK, query @ key.swapaxes(-1, -2) / math.sqrt(query.shape[-1]), -np.inf)


@pytest.mark.parametrize("base", ["e", "2"])
@pytest.mark.parametrize("less_max", [False, True])
def test_hidden_keys_that_count_with_score_0_are_told(base: Any, less_max: bool) -> None:
    query, key = heads()
    scores = np.where(MASK, scored(), 0)
    rows = np.log(np.exp(scores).sum(-1)) - (scores.max(-1) if less_max else 0)
    found = at.identify_lse(query, key, rows / (math.log(2) if base == "2" else 1), attn_mask=MASK)
    assert found.convention == LseConvention(base, less_max=less_max, empty=None, hidden_zeros=True)
    assert not found.engines
    assert "hidden keys counted with score 0" in str(found)


SUMS = {
    "max and sum of exp(score - max)": lambda total, top: total * np.exp(-top),
    "max and ln sum of exp(score - max)": lambda total, top: np.log(total) - top,
    "max and log2 sum of exp(score - max)": lambda total, top: np.log2(total) - top / math.log(2),
    "max and sum of exp(score)": lambda total, _: total,
}


@pytest.mark.parametrize("parts", SUMS)
@pytest.mark.parametrize("base", ["e", "2"])
def test_a_max_and_a_sum_are_told(parts: str, base: Any) -> None:
    query, key = heads()
    scores = scored()
    with np.errstate(all="ignore"):
        top = scores.max(-1)
        total = SUMS[parts](np.exp(scores).sum(-1), top)
    pair = (top / (math.log(2) if base == "2" else 1), total)
    found = at.identify_lse(query, key, pair, attn_mask=MASK)
    assert (found.convention, found.parts) == (LseConvention(base, empty=None), parts)
    assert str(found).startswith(
        f"{'base 2' if base == '2' else 'natural log'}, scale inside, sinks counted, as max"
    )
    swapped = at.identify_lse(query, key, tuple(x.T for x in pair), attn_mask=MASK)
    assert (swapped.axes, swapped.parts) == ("queries, heads", parts)
    assert at.identify_lse(query, key, (pair[0], total + 0.1), attn_mask=MASK).convention is None


def test_a_sum_of_two_bases_is_told() -> None:
    query, key = heads()
    top = scored().max(-1)
    with np.errstate(all="ignore"):
        rest = written(LseConvention()) - top
    for rows, says in (
        (top / math.log(2) + rest, "max in base 2 plus ln of the sum"),
        (top + rest / math.log(2), "max plus log2 of the sum"),
    ):
        found = at.identify_lse(query, key, rows, attn_mask=MASK)
        assert (found.convention, found.parts) == (None, says)
        assert str(found).startswith(f"{says}; axes heads, queries; largest difference")
    assert at.identify_lse(query, key, rows + 0.1, attn_mask=MASK).parts == ""


def test_axes_may_be_swapped_and_one_may_follow() -> None:
    query, key = heads()
    rows = written(LseConvention())
    usual, swapped = "heads, queries", "queries, heads"
    for given, axes in ((rows, usual), (rows[..., None], usual), (rows.T, swapped)):
        found = at.identify_lse(query, key, given, attn_mask=MASK)
        assert (found.axes, found.convention) == (axes, LseConvention())
    square = at.identify_lse(query[:, :3], key, rows[:, :3].T, attn_mask=MASK[:3])
    assert square.axes == "queries, heads"


def test_heads_that_differ_are_named() -> None:
    query, key = heads()
    rows = written(LseConvention(), SINK)
    rows[1] = written(LseConvention(sink=False), SINK)[1]
    found = at.identify_lse(query, key, rows, attn_mask=MASK, normalizer=SINK)
    assert found.convention is None
    assert [each is not None and each.sink for each in found.per_head] == [True, False, True]
    assert "heads differ" in str(found)
    assert "head 1: natural log, scale inside, sinks left out" in str(found)


def test_rows_of_no_convention_have_a_nearest_one() -> None:
    query, key = heads()
    rows = written(LseConvention(base="2", empty=-5e4))
    rows[2, 20] += 0.5
    found = at.identify_lse(query, key, rows, attn_mask=MASK)
    assert found.convention is None
    assert [each is None for each in found.per_head] == [False, False, True]
    assert found.nearest.base == "2"
    assert "no known convention for head 2; nearest: base 2" in str(found)
    assert at.identify_lse(query, key, rows, attn_mask=MASK, tolerance=0.5).convention is not None


def test_conventions_that_the_rows_cannot_tell_apart_are_named() -> None:
    query, key = heads()
    ours = at.attention_statistics(query, key, scale=1.0, statistics="lse").lse
    found = at.identify_lse(query, key, ours, scale=1.0)
    assert found.convention is not None
    assert [each.scaled for each in found.also] == [False]
    assert "these rows do not tell it from: natural log, without the scale" in str(found)


@pytest.mark.parametrize("source", SCALED, ids=str)
def test_conversion_gives_the_rows_of_the_other_engine(source: LseConvention) -> None:
    query, key = (x.astype(np.float64) for x in heads())
    top = at.attention_statistics(query, key, attn_mask=MASK, statistics="max_score").max_score
    rows, seen = written(source, SINK), MASK.any(axis=-1)
    for target in SCALED:
        needs = {"max_score": top} if source.less_max or target.less_max else {}
        needs |= {"sink": LOGITS[:, None]} if source.sink != target.sink else {}
        found, wanted = at.convert_lse(rows, from_=source, to=target, **needs), written(target, SINK)
        np.testing.assert_allclose(found[..., seen], wanted[..., seen], atol=1e-12, err_msg=str(target))
        # Where the source counts a sink, a row without keys holds its logit, but has no largest score.
        if not source.sink and not (target.sink and target.less_max):
            np.testing.assert_allclose(found[..., ~seen], wanted[..., ~seen], atol=1e-12, err_msg=str(target))


def test_a_sink_of_minus_infinity_is_none() -> None:
    with_sink, without = LseConvention(empty=-5e4), LseConvention(sink=False, empty=math.inf)
    found = at.convert_lse([-5e4, 1.0], from_=with_sink, to=without, sink=-math.inf)
    assert found.tolist() == [math.inf, 1.0]
    assert at.convert_lse(found, from_=without, to=with_sink, sink=-math.inf).tolist() == [-5e4, 1.0]


def test_conversion_keeps_type_and_shape() -> None:
    rows = np.array([[0.5, math.inf]], np.float32)
    found = at.convert_lse(rows, from_="flash_attention_2", to="flashinfer")
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, [[0.5 / math.log(2), -5e4]], rtol=1e-6)


def test_states_of_an_engine_merge() -> None:
    query, key, value = random_inputs(6, n_keys=60, dtype="float64")
    whole = at.attention_statistics(query, key, value, statistics="lse")
    parts = [at.attention_state(query, key[:, a:b], value[:, a:b]) for a, b in ((0, 0), (0, 25), (25, 60))]
    for name in LSE_CONVENTIONS:
        rows = [at.convert_lse(part.lse, from_="attnscale", to=name) for part in parts]
        theirs = [at.AttentionState(p.output, lse) for p, lse in zip(parts, rows, strict=True)]
        if name == "torch_sdpa_cpu":  # its value for no keys is, without max_score, a sum of 1
            theirs = theirs[1:]
        merged = at.merge_states(theirs, convention=name)
        same(merged, whole, ("output", "lse"), atol=1e-12)
        assert merged.mean_score is None
        with pytest.raises(AttributeError, match="made without mean_score"):
            _ = merged.entropy
        assert "lse" in merged.table()
    wrong = at.merge_states([at.AttentionState(p.output, p.lse) for p in parts[1:]], convention="flashinfer")
    assert np.abs(wrong.output - whole.output).max() > 1e-3


def identified(lse: Any, **options: Any) -> Any:
    return at.identify_lse(*heads(), lse, **options)


def converted(**convention: Any) -> Any:
    return at.convert_lse([1.0], from_=LseConvention(**convention))


ROWS = np.zeros((3, 24))
WRONG: list[tuple[Any, type[Exception], str]] = [
    (lambda: identified(np.zeros((3, 5))), ValueError, "lse must have the shape of the rows"),
    (lambda: identified([["a"]]), TypeError, "lse must be numbers"),
    (lambda: identified(ROWS, tolerance=0), ValueError, "greater than 0, got 0"),
    (lambda: identified(ROWS, key_lengths=0), ValueError, "some row of query must see a key"),
    (lambda: identified(ROWS, normalizer="sparsemax"), ValueError, "normalizer must be 'softmax', SoftmaxN"),
    (lambda: at.convert_lse([1.0], from_="flashinfr"), ValueError, "did you mean 'flashinfer'"),
    (lambda: at.convert_lse([1.0], from_="jax", max_score=[True]), TypeError, "max_score must be numbers"),
    (lambda: at.convert_lse([1.0], from_=2), TypeError, "from_ must be an LseConvention"),  # type: ignore[arg-type]
    (lambda: converted(scaled=False), ValueError, "must agree in scaled"),
    (lambda: converted(hidden_zeros=True), ValueError, "must agree in hidden_zeros"),
    (lambda: converted(less_max=True), ValueError, "max_score must be given"),
    (lambda: converted(sink=False), ValueError, "sink must be given"),
    (lambda: converted(base="10"), ValueError, "base must be one of 'e', '2'"),
    (lambda: converted(sink="no"), TypeError, "sink must be True or False"),
    (lambda: converted(empty="inf"), TypeError, "empty must be a number or None"),
]


@pytest.mark.parametrize(("call", "error", "said"), WRONG, ids=[said for _, _, said in WRONG])
def test_what_is_refused(call: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        call()


def test_every_engine_has_a_source() -> None:
    assert all(len(known.source) > 10 for known in module._ENGINES.values())
