# SPDX-License-Identifier: BSD-3-Clause
"""Scales, numbers of 16 bits, NaN, and whether a result is the same again."""

from __future__ import annotations

from typing import Any

import numpy as np

from ._asked import WIDTH, Asked, attended, cast, draw, subject

of_scales = subject("Scales")


def _scaled(asked: Asked, scale: float, *, causal: bool = False) -> str:
    """Meaning of a scale, of a causal call or a full one."""
    arrays = draw()
    seen: Any = np.tri(4, dtype=np.bool_) if causal else True
    found = (asked.causal if causal else asked)(*arrays, scale=scale)["output"]
    factors = {
        "right": scale,
        "default": WIDTH**-0.5,
        "sign lost": abs(scale),
        "1": 1.0,
        "divides": scale and 1 / scale,
    }
    named = {name: attended(*arrays, seen, factor) for name, factor in factors.items()}
    return asked.nearest(found, named)


@of_scales("0", "Scale 0", "right", rule="all scores are 0, and the weights are equal")
def scale_zero(asked: Asked) -> str:
    return _scaled(asked, 0.0)


@of_scales(
    "0, causal",
    "Scale 0 of a causal call",
    "right",
    rule="all scores are 0, and the weights are equal",
)
def scale_zero_causal(asked: Asked) -> str:
    return _scaled(asked, 0.0, causal=True)


@of_scales("-0.5", "Scale -0.5", "right", rule="a scale multiplies the scores")
def scale_negative(asked: Asked) -> str:
    return _scaled(asked, -0.5)


@of_scales("-0.5, causal", "Scale -0.5 of a causal call", "right", rule="a scale multiplies the scores")
def scale_negative_causal(asked: Asked) -> str:
    return _scaled(asked, -0.5, causal=True)


of_bits = subject("16 bits")


def _sum(asked: Asked, dtype: str) -> str:
    """Sum of the weights of 4096 equal keys."""
    query, key, value = np.full((1, 1, 1, WIDTH), 0.5), *np.ones((2, 1, 1, 4096, WIDTH))
    found = asked.first(
        lambda: asked(query, key, value, dtype=dtype),
        lambda: asked(np.repeat(query, 4096, axis=2), key, value, dtype=dtype),
    )["output"]
    total = float(found.mean())
    return "1" if abs(total - 1) < 0.01 else f"{total:.3g}"


@of_bits("sum, float16", "Sum of the weights of 4096 equal keys in float16", "1", rule="weights sum to 1")
def sum_float16(asked: Asked) -> str:
    return _sum(asked, "float16")


@of_bits("sum, bfloat16", "Sum of the weights of 4096 equal keys in bfloat16", "1", rule="weights sum to 1")
def sum_bfloat16(asked: Asked) -> str:
    return _sum(asked, "bfloat16")


@of_bits(
    "score 720000",
    "Scores of 720000 and 480000 from float16 arrays",
    "right",
    rule="scores are numbers of float32, beside float16 arrays too",
)
def large_scores(asked: Asked) -> str:
    query, key, value = (np.zeros((1, 1, 4, 64)) for _ in range(3))
    query[:], key[:], value[:] = 300, 200, np.arange(4)[:, None]
    key[:, :, 1] = 300
    found = asked(query, key, value, dtype="float16")["output"]
    return asked.nearest(found, {"right": 1.0, "mean": 1.5, "0": 0.0}, "float16")


of_nans = subject("NaN in a key or value that rows do not see")
_OWN = np.broadcast_to(np.arange(4)[:, None] >= np.array([0, 0, 0, 3]), (1, 1, 4, 4))
_STAYS = "a key that a row does not see has no part in it"


def _nan(asked: Asked, name: str, *, causal: bool = False) -> str:
    """Where a NaN of the last key goes, which the last row alone sees."""
    arrays = draw()
    seen = np.tri(4, dtype=np.bool_) if causal else _OWN
    truth = attended(*arrays, seen)[:, :, :3]
    arrays[{"key": 1, "value": 2}[name]][:, :, 3] = np.nan
    found = (asked.causal(*arrays) if causal else asked(*arrays, attn_mask=asked.mask(seen)))["output"]
    said = {"NaN": "reaches", "NaN in part": "reaches some", "other numbers": "other numbers"}
    others = asked.nearest(found[:, :, :3], {"stays": truth})
    where = said.get(others, others)
    return where if np.isnan(found[:, :, 3]).all() else f"{where}, swallowed"


@of_nans("key, mask", "NaN in a key behind a mask", "stays", rule=_STAYS)
def nan_key_mask(asked: Asked) -> str:
    return _nan(asked, "key")


@of_nans("value, mask", "NaN in a value behind a mask", "stays", rule=_STAYS)
def nan_value_mask(asked: Asked) -> str:
    return _nan(asked, "value")


@of_nans("key, causal", "NaN in a later key", "stays", rule=_STAYS)
def nan_key_causal(asked: Asked) -> str:
    return _nan(asked, "key", causal=True)


@of_nans("value, causal", "NaN in a later value", "stays", rule=_STAYS)
def nan_value_causal(asked: Asked) -> str:
    return _nan(asked, "value", causal=True)


of_repeats = subject("The call again")


def _differing(asked: Asked, one: Any, other: Any) -> str:
    """Whether results are the same to the bit, as of rounding, or different."""
    if np.array_equal(one, other, equal_nan=True):
        return "same bits"
    return asked.nearest(one, {"rounding": other}).replace("other numbers", "differs")


@of_repeats(
    "second call",
    "The call again, behind a call of another size",
    "same bits",
    rule="a call has no memory",
)
def second_call(asked: Asked) -> str:
    arrays = draw(8, 8)
    one = asked(*arrays)["output"]
    asked(*draw(4, 4))
    return _differing(asked, asked(*arrays)["output"], one)


@of_repeats(
    "row alone",
    "A row alone, and among 64",
    "same bits",
    "rounding",
    rule="a row depends on its own query alone",
)
def row_alone(asked: Asked) -> str:
    query, key, value = draw(64, 64)
    among = asked(query, key, value)["output"][:, :, 5:6]
    alone = asked(query[:, :, 5:6], key, value)["output"]
    found = _differing(asked, alone, among)
    exact = attended(query[:, :, 5:6], key, value)
    return found if asked.nearest(alone, {"right": exact}) == "right" else f"{found}, wrong alone"


@of_repeats("inputs", "The arrays behind the call", "unchanged", rule="inputs are read")
def inputs_after(asked: Asked) -> str:
    arrays = [cast(x, asked.dtype) for x in draw()]
    before = [x.copy() for x in arrays]
    asked.attend(*arrays)
    return "unchanged" if all(map(np.array_equal, arrays, before)) else "changed"
