# SPDX-License-Identifier: BSD-3-Clause
"""Which convention an engine's log-sum-exp follows, and how it reads in another."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import attnscale as at
import numpy as np
import pytest
from attnscale.lse import _ENGINES, LSE_CONVENTIONS, LseConvention
from cases import random_inputs

LOGITS = np.array([0.0, 1.0, -2.0])
MASK = np.tri(24, 24, dtype=bool)
MASK[[3, 17]] = False  # two rows without keys
SINK = at.normalizers.Sink(LOGITS)


def heads() -> tuple[Any, Any]:
    query, key, _ = random_inputs(5, heads=3, n_queries=24, n_keys=24, dtype="float32")
    return query, key


def written(convention: LseConvention, normalizer: Any = "softmax") -> np.ndarray[Any, Any]:
    """What an engine of this convention returns for the heads, from their matrix of scores."""
    query, key = (x.astype(np.float64) for x in heads())
    scale = 1 / math.sqrt(query.shape[-1]) if convention.scaled else 1.0
    scores = np.where(MASK, scale * query @ key.swapaxes(-1, -2), -np.inf)
    top = scores.max(axis=-1)
    if normalizer != "softmax" and convention.sink:
        scores = np.concatenate([scores, np.broadcast_to(LOGITS[:, None, None], (3, 24, 1))], axis=-1)
    with np.errstate(all="ignore"):
        natural = np.log(np.exp(scores).sum(axis=-1))
        if convention.less_max:
            natural = natural - top
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
    # Rows without keys hold the logit of the sink, where it is counted, and say nothing of `empty`.
    assert found.convention == replace(convention, empty=None if convention.sink else convention.empty)
    assert not found.also
    assert found.error.max() < 1e-5


@pytest.mark.parametrize("empty", [-math.inf, math.inf, 0.0, math.nan, -5e4])
def test_what_rows_without_keys_hold_is_read(empty: float) -> None:
    query, key = heads()
    found = at.identify_lse(query, key, written(LseConvention(empty=empty)), attn_mask=MASK)
    assert found.convention is not None
    assert found.convention.empty is not None
    np.testing.assert_equal(found.convention.empty, empty)
    assert ("flash_attention_2" in found.engines) == (empty == math.inf)


def test_axes_may_be_swapped_and_one_may_follow() -> None:
    query, key = heads()
    rows = written(LseConvention())
    for given, axes in (
        (rows, "heads, queries"),
        (rows[..., None], "heads, queries"),
        (rows.T, "queries, heads"),
    ):
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


def test_what_no_convention_gives_has_the_nearest() -> None:
    query, key = heads()
    rows = written(LseConvention(base="2", empty=-5e4))
    rows[2, 20] += 0.5
    found = at.identify_lse(query, key, rows, attn_mask=MASK)
    assert found.convention is None
    assert [each is None for each in found.per_head] == [False, False, True]
    assert found.nearest.base == "2"
    assert "no known convention for head 2; nearest: base 2" in str(found)
    assert at.identify_lse(query, key, rows, attn_mask=MASK, tolerance=0.5).convention is not None


def test_what_rows_cannot_tell_is_said() -> None:
    query, key = heads()
    ours = at.attention_statistics(query, key, scale=1.0, statistics="lse").lse
    found = at.identify_lse(query, key, ours, scale=1.0)
    assert found.convention is not None
    assert [each.scaled for each in found.also] == [False]
    assert "these rows do not tell it from: natural log, without the scale" in str(found)


@pytest.mark.parametrize("source", SCALED, ids=str)
def test_conversion_is_what_the_other_engine_writes(source: LseConvention) -> None:
    query, key = (x.astype(np.float64) for x in heads())
    top = at.attention_statistics(query, key, attn_mask=MASK, statistics="max_score").max_score
    rows, seen = written(source, SINK), MASK.any(axis=-1)
    for target in SCALED:
        needs = {"max_score": top} if source.less_max or target.less_max else {}
        needs |= {"sink": LOGITS[:, None]} if source.sink != target.sink else {}
        found, wanted = at.convert_lse(rows, from_=source, to=target, **needs), written(target, SINK)
        np.testing.assert_allclose(found[..., seen], wanted[..., seen], atol=1e-12, err_msg=str(target))
        # Where the source counts a sink, a row without keys holds its logit; a largest score it has not.
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
        if name == "torch_sdpa_cpu":  # without max_score, what it writes for no keys is a sum of 1
            theirs = theirs[1:]
        merged = at.merge_states(theirs, convention=name)
        np.testing.assert_allclose(merged.output, whole.output, atol=1e-12)
        np.testing.assert_allclose(merged.lse, whole.lse, atol=1e-12)
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
    assert all(len(known.source) > 10 for known in _ENGINES.values())
