# SPDX-License-Identifier: BSD-3-Clause
"""Calls for other engines: sizes and numbers drawn by a seed, and calls where engines have slipped."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from zlib import crc32

import numpy as np

from ..laws import Law
from ._call import N_HEADS, Case, Shape, Sizes
from ._cases import all_cases
from ._draft import is_softmax


def draw_cases(seed: int) -> dict[str, Case]:
    """Calls that an engine can be asked, of sizes drawn by the seed, in an order drawn by it.

    Each has a value, a softmax with or without a sink, and no law, since engines take a scale as a number or
    one number a row.
    """
    rng = np.random.default_rng([seed, 11])

    def sizes() -> Sizes:
        queries = int(rng.integers(5, 9))
        keys = queries + int(rng.integers(1, 4)) if queries > 6 else queries + int(rng.integers(3, 5))
        batch, channels = int(rng.integers(2, 4)), int(rng.integers(2, 6)) * 2
        return Sizes(batch, queries, keys, channels, channels - 1, int(rng.integers(2, 2**31)))

    cases = {name: case for name, case in all_cases(sizes).items() if _is_for_engines(case)}
    cases |= _even(sizes()) | _more_shapes() | _set_numbers(sizes()) | _not_numbers(sizes()) | _long()
    names = list(cases)
    return {names[i]: cases[names[i]] for i in rng.permutation(len(names))}


def _is_for_engines(case: Case) -> bool:
    options = case.options
    spelled = isinstance(options.get("scale"), (str, Law))
    return (
        case.value is not None
        and is_softmax(options)
        and not spelled
        and not callable(options.get("distance_bias"))
    )


def numbers(seed: int, name: str, turn: int, dtype: np.dtype[Any]) -> Callable[..., Any]:
    """A drawing of arrays for a case, all bits of the type used, another one at each turn."""
    rng = np.random.default_rng([seed, crc32(name.encode()), turn])

    def draw(*shape: int, seed: int) -> Any:
        return rng.standard_normal(shape).astype(dtype).astype(np.float64)

    return draw


def _even(s: Sizes) -> dict[str, Case]:
    """Calls of the widths and lengths for which engines have a fast kernel."""
    shape = (s.batch, N_HEADS, s.keys, 8)
    hidden = np.random.default_rng(s.seed).random((s.batch, N_HEADS, s.keys, s.keys)) > 0.3
    hidden[..., 0] = True
    bias = np.where(hidden, s.draw(*hidden.shape), -np.inf)
    empty, empty_bias = hidden.copy(), bias.copy()
    empty[0, :, 3], empty_bias[0, :, 3] = False, -np.inf
    options: Mapping[str, Mapping[str, Any]] = {
        "even": {},
        "even, causal": {"is_causal": True},
        "even, mask": {"attn_mask": hidden},
        "even, float mask": {"attn_mask": bias},
        "even, rows without keys": {"attn_mask": empty},
        "even, rows without keys by -inf": {"attn_mask": empty_bias},
        "even, causal + mask": {"is_causal": True, "attn_mask": hidden},
        "even, scale": {"scale": 0.75},
        "even, scale in an array": {"scale": np.array(0.75)},
        "even, scale 0": {"scale": 0.0},
        "even, scale 0, causal": {"scale": 0.0, "is_causal": True},
        "even, scale below 0": {"scale": -0.5},
        "even, scale below 0, causal": {"scale": -0.5, "is_causal": True},
        "even, soft-cap": {"softcap": 1.5},
        "even, soft-cap, scale, float mask": {"softcap": 0.75, "scale": 0.75, "attn_mask": bias},
        "even, float mask and scale": {"scale": 0.25, "attn_mask": bias},
        "even, window": {"window": (3, 0)},
        "even, window (3, 1)": {"window": (3, 1)},
        "even, window (2, 2)": {"window": (2, 2)},
        "even, window and causal": {"window": (3, 0), "is_causal": True},
        "even, sink": {"normalizer": f"sink(logits={[0.5, 1.0, -1.0, 2.0]})"},
        "even, sink and scale": {"normalizer": f"sink(logits={[2.5, 1.0, -1.0, 2.0]})", "scale": 0.75},
        "even, lengths": {"key_lengths": s.lengths + 1},
    }
    cases = {name: Case(x, shape, shape, shape) for name, x in options.items()}
    more = (s.batch, N_HEADS, s.keys + 2, 8)
    cases["even widths"] = Case({}, shape, more, more)
    cases["even widths, causal"] = Case({"is_causal": True}, shape, more, more)
    return cases | _even_not_numbers(shape)


def _even_not_numbers(shape: Shape) -> dict[str, Case]:
    cases, keys = {}, shape[-2]
    for array in ("key", "value"):
        edits = ((array, np.s_[..., 4, :], np.nan),)
        seen = np.broadcast_to(np.arange(keys) != 4, (*shape[:2], keys, keys))
        cases[f"even, NaN in a {array} behind a mask"] = Case({"attn_mask": seen}, shape, shape, shape, edits)
        cases[f"even, NaN in a {array}, causal"] = Case({"is_causal": True}, shape, shape, shape, edits)
    return cases


def _more_shapes() -> dict[str, Case]:
    """Lengths and groups of heads that told engines apart."""
    one = (1, 1)
    few = ((*one, 5, 4), (*one, 2, 4), (*one, 2, 4))
    grouped = ((2, 6, 5, 8), (2, 2, 7, 8), (2, 2, 7, 8))
    step = ((2, 4, 9, 8),) * 2
    return {
        "bottom right, more queries": Case({"causal": "bottom_right"}, *few),
        "causal, more queries": Case({"is_causal": True}, *few),
        "bottom right + three queries": Case({"causal": "bottom_right"}, (2, 4, 3, 8), *step),
        "bottom right + one query": Case({"causal": "bottom_right"}, (2, 4, 1, 8), *step),
        "one query, lengths": Case({"key_lengths": 5}, (2, 4, 1, 8), *step),
        "groups of three": Case({"enable_gqa": True}, *grouped),
        "groups of three, causal": Case({"enable_gqa": True, "is_causal": True}, *grouped),
        "128 channels, 8 heads": Case({}, (4, 8, 3, 128), (4, 8, 5, 128), (4, 8, 5, 128)),
        "256 channels, grouped": Case({"enable_gqa": True}, (1, 8, 2, 256), (1, 2, 3, 256), (1, 2, 3, 256)),
    }


def _set_numbers(s: Sizes) -> dict[str, Case]:
    """Masks of numbers, and scores and values so large or low that a hidden key shows."""
    keys, flat = np.arange(s.keys), ((1, 1, 6, 4),) * 3
    open_row = s.hidden.copy()
    open_row[..., 0] = True
    everywhere = np.s_[...]
    far = (("query", everywhere, 8.0), ("key", np.s_[..., 5, :], 8000.0 / s.channels))
    low = (("query", everywhere, 10.0), ("key", everywhere, -10.0))
    large = (("query", everywhere, 91.0), ("key", everywhere, 91.0))
    # Scores of 120 and -120, and others 1 and 2 below in size: the largest must be subtracted.
    apart = (
        *(("query", everywhere, 2.0), ("query", np.s_[..., ::2, :], -2.0), ("key", everywhere, 30.0)),
        *(("key", np.s_[..., 1, :], 29.75), ("key", np.s_[..., 2, :], 29.5)),
    )
    return {
        "emptied jointly": s.case({"causal": "bottom_right", "attn_mask": keys > s.keys - s.queries}),
        "mask of one key": s.case({"attn_mask": keys == 2}),
        "mask of -1e4": s.case({"attn_mask": np.where(open_row, 0, np.float32(-1e4))}),
        "mask of -1e9": s.case({"attn_mask": np.where(open_row, 0, np.float32(-1e9))}),
        "hidden keys far above": s.case({"attn_mask": (keys != 5)[None], "scale": 1.0}, edits=far),
        "all scores low": Case({"is_causal": True}, *flat, edits=low),
        "a large value behind": Case({"is_causal": True}, *flat, edits=(("value", np.s_[..., -1, :], 1e9),)),
        "large scores": Case({}, *((2, 2, 4, 64),) * 3, edits=large),
        "scores of 120 and -120": Case({}, *flat, edits=apart),
    }


def _not_numbers(s: Sizes) -> dict[str, Case]:
    """A NaN or an infinity in a key or a value that is hidden from some queries or all."""
    cases, keys = {}, np.arange(s.keys)
    for array in ("key", "value"):
        for number, kind in ((np.nan, "NaN"), (np.inf, "infinity")):
            name, edits = f"{kind} in a {array}", ((array, np.s_[..., 4, :], number),)
            cases[f"{name} behind a mask"] = s.case({"attn_mask": (keys != 4)[None]}, edits=edits)
            cases[f"{name} behind a length"] = s.case({"key_lengths": 4}, edits=edits)
    edits = (("value", np.s_[..., 4, :], np.nan),)
    return cases | {"NaN in a value, causal": s.case({"is_causal": True}, edits=edits)}


def _long() -> dict[str, Case]:
    """Rows beyond one block; values are 1 where a lost or doubled block is seen at any precision."""
    cases = {}
    for keys in (129, 257, 1025, 8192):
        shapes = ((1, 1, 1, 8), (1, 1, keys, 8), (1, 1, keys, 8))
        half = keys // 2
        tail = (keys - 1) // 128 * 128
        for name, start, stop in (("first half", 0, half), ("end", tail, keys)):
            zeros = ("value", np.s_[...], 0.0)
            ones = ("value", np.s_[..., start:stop, :], 1.0)
            cases[f"{keys} keys, value 1 in the {name}"] = Case({}, *shapes, edits=(zeros, ones))
    cases["4096 equal keys"] = Case(
        {},
        *((1, 1, 1, 8), (1, 1, 4096, 8), (1, 1, 4096, 8)),
        edits=(("key", np.s_[...], 0.0), ("value", np.s_[...], 1.0)),
    )
    cases["160 queries, causal"] = Case({"is_causal": True}, *((1, 2, 160, 8),) * 3)
    cases["160 queries"] = Case({}, *((1, 2, 160, 8),) * 3)
    cases["260 queries, 12 keys"] = Case({}, (1, 2, 260, 8), *((1, 2, 12, 8),) * 2)
    return cases
