# SPDX-License-Identifier: BSD-3-Clause
"""Questions to engines: our own answers, and planted engines whose answer is known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attnscale as at
import numpy as np
import pytest

Attend = Callable[..., Any]
ask = at.conformance.ask


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_our_own_answers_surprise_nobody(dtype: str) -> None:
    pytest.importorskip("ml_dtypes")
    found = ask(at.attention, dtype=dtype)
    assert {name: each.says for name, each in found.items() if each.surprising} == {}
    assert found["no_keys_boolean"].says == "0"
    assert found["nan_value_mask"].says == "stays"


def test_all_statistics_are_read() -> None:
    def attend(*arrays: Any, **options: Any) -> Any:
        rows = at.attention_statistics(*arrays, statistics=("lse", "max_score", "entropy"), **options)
        return {name: getattr(rows, name) for name in ("output", "lse", "max_score", "entropy")}

    names = ["lse_holds", "lse_no_keys", "max_holds", "entropy_holds"]
    says = [each.says for each in ask(attend, names=names).values()]
    assert says == ["natural, scaled", "-inf", "scaled", "nats"]


def changed(**changes: Callable[[dict[str, Any]], Any]) -> Attend:
    """Our attention behind a change of options that are given."""

    def attend(*arrays: Any, **options: Any) -> Any:
        for name, change in changes.items():
            if options.get(name) is not None:
                options |= change(options)
        return at.attention(*arrays, **options)

    return attend


def in_empty_rows(number: float | None) -> Attend:
    """Our attention with a number in rows without keys; None for the mean of values."""

    def attend(query: Any, key: Any, value: Any, **options: Any) -> Any:
        rows = at.attention_statistics(query, key, value, statistics="n_visible", **options)
        assert rows.output is not None
        mean = value.mean(axis=-2, keepdims=True) + 0 * rows.output
        return np.where((rows.n_visible == 0)[..., None], mean if number is None else number, rows.output)

    return attend


def of_numbers(weigh: Callable[[Any, dict[str, Any]], Any]) -> Attend:
    """Attention in NumPy with other weights of the scaled scores."""

    def attend(query: Any, key: Any, value: Any, **options: Any) -> Any:
        scale = options.get("scale") or query.shape[-1] ** -0.5
        return weigh(query @ key.swapaxes(-1, -2) * scale, options) @ value

    return attend


def softmax(scores: Any) -> Any:
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def capped_behind_the_mask(scores: Any, options: dict[str, Any]) -> Any:
    scores = np.where(options.get("attn_mask", True), scores, -np.inf)
    cap = options.get("softcap")
    return softmax(cap * np.tanh(scores / cap) if cap else scores)


def tiled(query: Any, key: Any, value: Any, **options: Any) -> Any:
    key, value = (np.tile(x, (1, query.shape[1] // x.shape[1], 1, 1)) for x in (key, value))
    return at.attention(query, key, value)


def added(*arrays: Any, attn_mask: Any = None, **options: Any) -> Any:
    mask = None if attn_mask is None else np.asarray(attn_mask).astype(arrays[0].dtype)
    return at.attention(*arrays, attn_mask=mask, **options)


def swallows(*arrays: Any, **options: Any) -> Any:
    return at.attention(*map(np.nan_to_num, arrays), **options)


def spreads(*arrays: Any, **options: Any) -> Any:
    found = at.attention(*arrays, **options)
    return found + 0 * found.sum()


def remembers() -> Attend:
    calls: list[int] = []

    def attend(*arrays: Any, **options: Any) -> Any:
        calls.append(1)
        return at.attention(*arrays, **options) + len(calls)

    return attend


def leaking(query: Any, key: Any, value: Any, *, attn_mask: Any = None, **options: Any) -> Any:
    """Attention whose boolean mask adds -10000."""
    low = np.float64(-10000.0)
    mask = None if attn_mask is None else np.where(attn_mask, 0, low).astype(query.dtype)
    return at.attention(query, key, value, attn_mask=mask, **options)


def in_base_2(*arrays: Any, **options: Any) -> Any:
    rows = at.attention_statistics(*arrays, statistics="lse", **options)
    return rows.output, rows.lse / np.log(2)


def by_value_sum(*arrays: Any, **options: Any) -> Any:
    return at.attention(*arrays, **options) / 2


def writes(query: Any, key: Any, value: Any, **options: Any) -> Any:
    found = at.attention(query, key, value, **options)
    query *= 2
    return found


PLANTED: list[tuple[str, Attend, str]] = [
    ("no_keys_boolean", in_empty_rows(np.nan), "NaN"),
    ("no_keys_infinite", in_empty_rows(None), "mean"),
    ("no_keys_float16", in_empty_rows(7.0), "other numbers"),
    ("no_keys_ten_thousand", in_empty_rows(None), "unmasked"),
    ("emptied_jointly", in_empty_rows(None), "mean"),
    ("beside_no_keys", spreads, "right"),
    ("hidden_by_mask", leaking, "seen"),
    ("hidden_by_length", changed(key_lengths=lambda _: {"key_lengths": None}), "seen"),
    ("mask_of_booleans", changed(attn_mask=lambda x: {"attn_mask": ~x["attn_mask"]}), "True hides"),
    ("mask_of_booleans", added, "added"),
    ("mask_of_integers", added, "added"),
    ("mask_of_integers", changed(attn_mask=lambda _: {"attn_mask": None}), "not read"),
    ("mask_of_floats", changed(attn_mask=lambda x: {"attn_mask": x["attn_mask"] > 0}), "as boolean"),
    ("soft_cap", changed(softcap=lambda _: {"softcap": None}), "not read"),
    ("cap_and_mask", of_numbers(capped_behind_the_mask), "mask, then cap"),
    (
        "causal_fewer",
        changed(is_causal=lambda _: {"is_causal": False, "causal": "bottom_right"}),
        "last keys",
    ),
    ("causal_more", changed(is_causal=lambda _: {"is_causal": False}), "not read"),
    (
        "causal_more",
        changed(is_causal=lambda _: {"is_causal": False, "causal": 2}),
        "offset abs(keys - queries)",
    ),
    ("mask_and_causal", changed(is_causal=lambda _: {"is_causal": False}), "causal dropped"),
    ("window", changed(window=lambda _: {"window": (3, 1)}), "keys i - 3 to i + 1"),
    ("shared_heads", tiled, "0, 1, 0, 1"),
    ("value_heads", tiled, "key heads 0, 1, 0, 1"),
    ("scale_zero", of_numbers(lambda scores, _: softmax(scores)), "default"),
    ("scale_negative", changed(scale=lambda x: {"scale": abs(x["scale"])}), "sign lost"),
    ("sum_float16", by_value_sum, "0.5"),
    ("nan_key_mask", swallows, "stays, swallowed"),
    ("nan_value_causal", spreads, "reaches"),
    ("second_call", remembers(), "differs"),
    ("row_alone", remembers(), "differs, wrong alone"),
    ("inputs_after", writes, "changed"),
    ("lse_holds", in_base_2, "base 2, scaled"),
    ("sink_holds", changed(normalizer=lambda _: {"normalizer": "softmax"}), "not read"),
]


@pytest.mark.parametrize(("name", "attend", "says"), PLANTED)
def test_a_planted_engine_is_told(name: str, attend: Attend, says: str) -> None:
    assert ask(attend, names=[name])[name].says == says


def test_a_surprise_has_its_reason() -> None:
    found = ask(in_empty_rows(np.nan), names=["no_keys_boolean", "mask_of_floats"])
    assert (found["no_keys_boolean"].surprising, found["no_keys_boolean"].why) == (True, "no key, no output")
    assert (found["mask_of_floats"].surprising, found["mask_of_floats"].why) == (False, "")


def test_refusals_and_errors_are_answers() -> None:
    def attend(*arrays: Any, **options: Any) -> Any:
        if "scale" in options:
            raise NotImplementedError("one scale")
        raise RuntimeError("no kernel at 0x7f2a in /opt/lib/kernel.so\n  for /tmp/tmpd3xth2p1")

    found = ask(attend, names=["scale_zero", "row_alone"])
    assert found["scale_zero"].says == "refused: one scale"
    assert found["row_alone"].says == "error: RuntimeError: no kernel at 0x... in kernel.so for tmp"
    assert not found["row_alone"].surprising


def test_an_output_of_another_shape_is_an_error() -> None:
    found = ask(lambda *arrays, **_: arrays[1][..., :1], names=["second_call"])["second_call"]
    assert found.says.startswith("error: RuntimeError: the output has shape (1, 1, 8, 1) in place of")


def test_answers_do_not_depend_on_chance() -> None:
    assert ask(at.attention) == ask(at.attention)


def test_bad_input_is_refused() -> None:
    with pytest.raises(TypeError, match="engine must be a function or the name of an engine, got 3"):
        ask(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="did you mean 'float32'"):
        ask(at.attention, dtype="flaot32")
    with pytest.raises(ValueError, match="did you mean 'row_alone'"):
        ask(at.attention, names=["row_alnoe"])
    with pytest.raises(ValueError, match="engine must be"):
        ask("no engine")
