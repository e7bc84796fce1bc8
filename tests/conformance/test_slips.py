# SPDX-License-Identifier: BSD-3-Clause
"""Planted slips are named by at.conformance, single, in pairs, and where engines of others have slipped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attnscale as at
import numpy as np
import pytest

from .slipping import PAIRS, SINGLE, Slipping

Attend = Callable[..., Any]
SEED = 3


def ours(*arrays: Any, **options: Any) -> Any:
    return at.attention(*arrays, **options)


def test_the_engine_without_a_slip_is_right() -> None:
    report = at.conformance.check(Slipping(), seed=SEED)
    assert not report.wrong
    assert not report.errors
    assert len(report.right) > 150


@pytest.mark.parametrize("slip", SINGLE)
def test_a_single_slip_has_its_name(slip: str) -> None:
    report = at.conformance.check(Slipping(slip), seed=SEED)
    assert report.slips == (SINGLE[slip],)
    assert all(each.why for each in report.wrong.values()), report


@pytest.mark.parametrize("dropped", ["attn_mask", "the causal mask"])
def test_an_option_that_is_not_read_beside_another_has_its_name(dropped: str) -> None:
    def attend(query: Any, key: Any, value: Any, **options: Any) -> Any:
        if "attn_mask" in options and {*options} & {"is_causal", "causal"}:
            names = ("attn_mask",) if dropped == "attn_mask" else ("is_causal", "causal")
            options = {name: x for name, x in options.items() if name not in names}
        return ours(query, key, value, **options)

    other = "a causal mask" if dropped == "attn_mask" else "attn_mask"
    cases = {
        name: case
        for name, case in at.conformance.draw_cases(SEED).items()
        if not {*case.options} & {"distance_bias", "distance_scale"}
    }
    report = at.conformance.check(attend, seed=SEED, cases=cases)
    assert report.slips == (f"{dropped} is not read beside {other}",)


@pytest.mark.parametrize(("slips", "empty", "names"), PAIRS)
def test_two_slips_are_named_as_two(slips: tuple[str, ...], empty: Any, names: tuple[str, ...]) -> None:
    report = at.conformance.check(Slipping(*slips, empty=empty), seed=SEED)
    assert set(report.slips) == set(names)
    assert all(each.why for each in report.wrong.values()), report


def test_a_slip_that_is_not_known_is_not_named() -> None:
    def attend(query: Any, key: Any, value: Any, **options: Any) -> Any:
        return ours(query, key, value, **options) * np.linspace(1, 1.2, value.shape[-1])

    report = at.conformance.check(attend, seed=SEED)
    assert len(report.wrong) > 150
    assert not report.slips
    assert report.wrong["causal"].why == ""
    assert "not explained, up to 0.2: " in str(report)


def unread_lengths(query: Any, key: Any, value: Any, **options: Any) -> Any:
    """A causal mask that ends at the last key, whatever the lengths."""
    if options.get("causal") == "bottom_right":
        options["causal"] = key.shape[-2] - query.shape[-2]
    return ours(query, key, value, **options)


def other_offset(*arrays: Any, **options: Any) -> Any:
    if isinstance(options.get("causal"), int):
        options["causal"] *= -1
    return ours(*arrays, **options)


def longer_window(*arrays: Any, **options: Any) -> Any:
    left, right = options.pop("window", (None, None))
    return ours(*arrays, window=(None if left is None else left + 2, right), **options)


def first_96_keys(query: Any, key: Any, value: Any, **options: Any) -> Any:
    if key.shape[-2] > 96 and {*options} <= {"is_causal"}:
        key, value = key[..., :96, :], value[..., :96, :]
    return ours(query, key, value, **options)


@pytest.mark.parametrize("attend", [unread_lengths, other_offset, longer_window, first_96_keys])
def test_a_slip_beside_a_known_one_has_no_name(attend: Attend) -> None:
    """Known slips give some of these answers, as does a call with the answer 0 or 1 throughout."""
    cases = at.conformance.draw_cases(5)
    served = {name: case for name, case in cases.items() if not {*case.options} & {"layout", "distance_bias"}}
    report = at.conformance.check(attend, seed=5, cases=served)
    assert len(report.wrong) > 2
    assert not report.slips, report


def test_three_slips_are_named_without_a_fourth() -> None:
    report = at.conformance.check(Slipping("scale 1", "no sink", "left + 1"), seed=5)
    assert {*report.slips} <= {
        *("the scale is not applied", "the sink is missing", "the window is 1 key longer on the left"),
        "numbers beside a NaN or an infinity are wrong",
    }
    assert len(report.slips) > 2


# ---- calls in which engines of others have slipped --------------------------------------------------


def keys_twice(query: Any, key: Any, value: Any, **options: Any) -> Any:
    """Keys from 128 on count twice."""
    if key.ndim != 4 or key.shape[-2] <= 128 or options:
        return ours(query, key, value, **options)
    return ours(query, *(np.concatenate([x, x[..., 128:, :]], -2) for x in (key, value)))


def last_block_lost(query: Any, key: Any, value: Any, **options: Any) -> Any:
    n = key.shape[-2]
    if options or n <= 64 or n % 64 == 0:
        return ours(query, key, value, **options)
    return ours(query, *(x[..., : n - n % 64, :] for x in (key, value)))


def nan_at_scale_0(query: Any, *arrays: Any, **options: Any) -> Any:
    output = ours(query, *arrays, **options)
    is_bad = (
        options.get("is_causal") and np.ndim(options.get("scale", 1)) == 0 and options.get("scale", 1) <= 0
    )
    return output * np.nan if is_bad else output


def joint_mean(query: Any, key: Any, value: Any, **options: Any) -> Any:
    """Rows that two options empty together hold the mean."""
    rows = at.attention_statistics(query, key, value, statistics="n_visible", **options)
    masked = "attn_mask" in options and (options.get("is_causal") or "causal" in options)
    alone = (
        masked
        and at.attention_statistics(
            query,
            key,
            statistics="n_visible",
            **{name: x for name, x in options.items() if "causal" not in name},
        ).n_visible.all()
    )
    if alone and "layout" not in options:
        mean = np.broadcast_to(np.asarray(value).mean(-2, keepdims=True), rows.output.shape)  # type: ignore[union-attr]
        return np.where((rows.n_visible == 0)[..., None], mean, rows.output)
    return rows.output


def beside_empty(query: Any, key: Any, value: Any, **options: Any) -> Any:
    """Heads with a row without keys are filled with what stood there."""
    rows = at.attention_statistics(query, key, value, statistics="n_visible", **options)
    has_empty = (rows.n_visible == 0).any() and not (rows.n_visible == 0).all()
    return rows.output * 1.5 if has_empty else rows.output  # type: ignore[operator]


def swallowed(query: Any, key: Any, value: Any, **options: Any) -> Any:
    return np.nan_to_num(ours(query, key, value, **options), nan=0.25)


def of_another_sign(query: Any, key: Any, value: Any, **options: Any) -> Any:
    output = ours(query, key, value, **options)
    return np.where(np.isinf(output), -output, output)


def padded_mask(*arrays: Any, **options: Any) -> Any:
    mask = options.get("attn_mask")
    if mask is not None and np.shape(mask)[-1:] == (1,) and mask.dtype == bool:
        n = arrays[1].shape[-2]
        options["attn_mask"] = np.pad(mask, [(0, 0)] * (mask.ndim - 1) + [(0, n - 1)])
    return ours(*arrays, **options)


def leaking(*arrays: Any, **options: Any) -> Any:
    """A boolean mask adds -10000."""
    mask = options.get("attn_mask")
    if mask is not None and mask.dtype == bool:
        options["attn_mask"] = np.where(mask, 0, np.float32(-1e4))
    return ours(*arrays, **options)


def kept(query: Any, key: Any, value: Any, **options: Any) -> Any:
    """A causal mask leaves exp(-20) of the largest weight."""
    if set(options) != {"is_causal"} or query.ndim != 4:
        return ours(query, key, value, **options)
    batch = np.broadcast_shapes(query.shape[:2], key.shape[:2], value.shape[:2] if value.ndim == 4 else ())
    q, k = (np.broadcast_to(x, (*batch, *x.shape[-2:])).astype(np.float64) for x in (query, key))
    s = np.einsum("...id,...jd->...ij", q, k) / np.sqrt(q.shape[-1])
    seen = np.tri(*s.shape[-2:], dtype=bool)
    with np.errstate(invalid="ignore", over="ignore"):
        top = np.where(seen, s, -np.inf).max(-1, keepdims=True)
        weight = np.where(seen, np.exp(s - top), np.exp(-20.0))
        return (weight / weight.sum(-1, keepdims=True)) @ value.astype(np.float64)


def mask_lost(*arrays: Any, **options: Any) -> Any:
    if options.get("is_causal") or "causal" in options:
        options.pop("attn_mask", None)
    return ours(*arrays, **options)


def causal_lost(*arrays: Any, **options: Any) -> Any:
    if "attn_mask" in options:
        options = {name: x for name, x in options.items() if "causal" not in name}
    return ours(*arrays, **options)


ENGINES: dict[str, tuple[Attend, str]] = {
    "mask beside causal": (mask_lost, "attn_mask is not read beside a causal mask"),
    "causal beside mask": (causal_lost, "the causal mask is not read beside attn_mask"),
    "keys twice": (keys_twice, "keys from 128 on count twice"),
    "last block": (last_block_lost, "an incomplete last block of 64 keys is lost"),
    "scale 0": (nan_at_scale_0, "NaN at scale 0, causal"),
    "scale below 0": (nan_at_scale_0, "NaN at a scale below 0, causal"),
    "jointly": (joint_mean, "rows without keys by options together hold the mean of values, not 0"),
    "beside": (beside_empty, "rows beside a row without keys are wrong"),
    "swallowed": (swallowed, "a NaN or an infinity is swallowed"),
    "sign": (of_another_sign, "an infinity of another sign, or in place of NaN"),
    "padded": (padded_mask, "attn_mask of one column is padded, not repeated"),
    "leaks": (leaking, "a boolean attn_mask adds -10000: hidden keys leak"),
    "kept": (kept, "hidden keys keep exp(-20)"),
}


@pytest.mark.parametrize("name", ENGINES)
def test_slips_of_other_engines_have_names(name: str) -> None:
    attend, says = ENGINES[name]
    report = at.conformance.check(attend, seed=SEED)
    assert any(says in each.slips for each in report.wrong.values()), report


def test_scores_that_overflow_float16_are_named() -> None:
    def attend(query: Any, key: Any, value: Any, **options: Any) -> Any:
        if options or query.ndim != 4:
            raise NotImplementedError
        with np.errstate(over="ignore", invalid="ignore"):
            score = (query @ key.swapaxes(-1, -2) * np.float16(query.shape[-1] ** -0.5)).astype(np.float16)
            weight = np.exp((score - score.max(-1, keepdims=True)).astype(np.float64))
            return (weight / weight.sum(-1, keepdims=True)) @ value.astype(np.float64)

    report = at.conformance.check(attend, dtype="float16", seed=SEED)
    assert report.wrong["large scores"].slips == ("scores overflow float16",)


def test_sums_of_16_bits_that_stop_are_named() -> None:
    def attend(query: Any, key: Any, value: Any, **options: Any) -> Any:
        if options or query.shape[-2] != 1 or query.ndim != 4:
            raise NotImplementedError
        score = (
            np.einsum("...id,...jd->...ij", *(x.astype(np.float64) for x in (query, key)))
            * query.shape[-1] ** -0.5
        )
        weight = np.exp(score - score.max(-1, keepdims=True)).astype(np.float16)
        total = np.add.accumulate(weight, -1, dtype=np.float16)[..., -1:].astype(np.float64)
        return weight.astype(np.float64) @ value.astype(np.float64) / total

    report = at.conformance.check(attend, dtype="float16", seed=SEED)
    assert report.wrong["4096 equal keys"].slips == ("the weights of a row sum to 2, not 1",)


SIZES: dict[str, Callable[..., bool]] = {
    "queries from 200 on": lambda query, key: query.shape[-2] > 200,
    "keys from 5000 on": lambda query, key: key.shape[-2] > 5000,
    "texts from the fourth on": lambda query, key: query.ndim == 4 and query.shape[0] > 3,
    "heads from the seventh on": lambda query, key: query.ndim > 2 and query.shape[-3] > 6,
    "channels from 65 on": lambda query, key: query.shape[-1] > 64,
    "channels from 129 on": lambda query, key: query.shape[-1] > 128,
}


@pytest.mark.parametrize("size", SIZES)
def test_a_slip_of_large_arrays_is_seen(size: str) -> None:
    def attend(query: Any, key: Any, value: Any, **options: Any) -> Any:
        return ours(query, key, value, **options) * (1.01 if SIZES[size](query, key) else 1)

    drawn = at.conformance.draw_cases(SEED)
    cases = {name: case for name, case in drawn.items() if {*case.options} <= {"enable_gqa"}}
    assert at.conformance.check(attend, seed=SEED, cases=cases).wrong


@pytest.mark.parametrize("bounds", [(-100, 1e9), (-1e9, 88), (-1e9, 50)])
def test_an_engine_that_clips_scores_is_wrong(bounds: tuple[float, float]) -> None:
    def attend(query: Any, key: Any, value: Any, **options: Any) -> Any:
        if options or query.ndim != 4 or not np.isfinite(query).all() or not np.isfinite(key).all():
            raise NotImplementedError
        wide = [x.astype(np.float64) for x in (query, key, value)]
        score = np.clip(wide[0] @ wide[1].swapaxes(-1, -2) / np.sqrt(max(query.shape[-1], 1)), *bounds)
        weight = np.exp(score - score.max(-1, initial=-1e9, keepdims=True))
        return weight @ wide[2] / weight.sum(-1, keepdims=True)

    assert [*at.conformance.check(attend, seed=SEED).wrong] == ["scores of 120 and -120"]


@pytest.mark.parametrize("narrow", ["bfloat16", "float16"])
def test_an_engine_of_narrower_numbers_is_named(narrow: str) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    kind = ml_dtypes.bfloat16 if narrow == "bfloat16" else np.float16

    def attend(query: Any, key: Any, value: Any, **options: Any) -> Any:
        return ours(query, key, value, **options).astype(kind).astype(np.float32)

    report = at.conformance.check(attend, seed=SEED)
    assert f"errors as of {narrow}" in report.slips


HELD = {"mixed": "0 and NaN, mixed", np.nan: "NaN", 0.25: "numbers", np.inf: "infinities"}


@pytest.mark.parametrize("number", HELD)
def test_rows_without_keys_are_named(number: Any) -> None:
    def attend(*arrays: Any, **options: Any) -> Any:
        rows = at.attention_statistics(*arrays, statistics="n_visible", **options)
        assert rows.output is not None
        empty = rows.n_visible == 0
        if options.get("layout") == "bshd" and rows.output.ndim > 2:
            empty = empty.swapaxes(-1, -2)
        if number != "mixed":
            rows.output[empty] = number
        elif empty.any():
            rows.output[empty] = np.where(np.arange(empty.sum())[:, None] % 2, np.nan, 0)
        return rows.output

    report = at.conformance.check(attend, seed=SEED)
    assert f"hold {HELD[number]}, not 0" in report.wrong["mask of nothing"].why
    assert report.right["plain"].difference < 1e-6


def test_rows_without_keys_are_told_apart_by_the_mask() -> None:
    def attend(query: Any, key: Any, value: Any, **options: Any) -> Any:
        rows = at.attention_statistics(query, key, value, statistics="n_visible", **options)
        mask = options.get("attn_mask")
        if mask is None or "layout" in options:
            return rows.output
        held = np.nan if np.isneginf(mask).any() else np.asarray(value).mean(-2, keepdims=True)
        return np.where((rows.n_visible == 0)[..., None], held, rows.output)

    report = at.conformance.check(attend, seed=SEED)
    assert "by a boolean mask hold the mean of values" in report.wrong["mask"].why
    assert "by a mask of -inf hold NaN" in report.wrong["float mask"].why


def test_the_lowest_number_of_another_type_is_counted_apart() -> None:
    def attend(*arrays: Any, **options: Any) -> Any:
        mask = options.get("attn_mask")
        if mask is not None and mask.dtype == np.float16:
            options["attn_mask"] = mask.astype(np.float32)
        return ours(*arrays, **options)

    report = at.conformance.check(attend, seed=SEED)
    assert report.slips == ("the lowest float16 of a mask is a number after the cast",)
    assert [*report.wrong] == ["low float16"]
