# SPDX-License-Identifier: BSD-3-Clause
"""Rows without keys, and whether hidden keys are hidden."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ._asked import Asked, attended, cast, draw, mean, subject

question = subject("Rows without keys")
ROW = 1
#: Mask that hides all keys from one row of four.
SEEN = np.broadcast_to((np.arange(4) != ROW)[:, None], (1, 1, 4, 4))
#: Mask that hides all keys from all rows, as an engine with masks of keys alone can read it.
NONE_SEEN = np.zeros((1, 1, 1, 4), np.bool_)


def _row(asked: Asked, mask: Callable[[Any], Any], **options: Any) -> str:
    """Content of the row without keys, if `mask` makes a mask of the keys that are seen."""
    arrays = draw()
    found = asked.first(
        *(lambda x=x: asked(*arrays, attn_mask=mask(x), **options) for x in (SEEN, NONE_SEEN))
    )["output"][:, :, ROW]
    return asked.nearest(found, contents(*arrays, ROW))


def _row_of(asked: Asked, low: float) -> str:
    return _row(asked, lambda seen: asked.float_mask(seen, low))


def contents(query: Any, key: Any, value: Any, row: Any) -> dict[str, Any]:
    """Contents of rows without keys that have a name."""
    plain = attended(query, key, value)[:, :, row]
    return {"0": np.zeros_like(plain), "mean": mean(value)[:, :, 0] + 0 * plain, "unmasked": plain}


@question(
    "boolean",
    "Content of a row that a boolean mask hides all keys from",
    "0",
    rule="no key, no output",
)
def no_keys_boolean(asked: Asked) -> str:
    return _row(asked, np.array)


@question(
    "boolean, float16",
    "Content of a row that a boolean mask hides all keys from, of float16 arrays",
    "0",
    rule="no key, no output",
)
def no_keys_float16(asked: Asked) -> str:
    return _row(asked.as_type("float16"), np.array)


@question("-inf", "Content of a row whose float mask is -inf throughout", "0", rule="no key, no output")
def no_keys_infinite(asked: Asked) -> str:
    return _row_of(asked, -np.inf)


@question(
    "lowest",
    "Content of a row whose float mask is the type's lowest number throughout",
    "mean",
    "0",
    rule="scores vanish beside it, and equal sums give equal weights; or it hides keys",
)
def no_keys_lowest(asked: Asked) -> str:
    if asked.dtype == "bfloat16":
        return _row_of(asked, -3.3895313892515355e38)
    return _row_of(asked, float(np.finfo(np.dtype(asked.dtype)).min))


@question(
    "-1e9",
    "Content of a row whose float mask is -1e9 throughout",
    "mean",
    "unmasked",
    rule="a number shifts all scores alike; float32 rounds them away beside it",
)
def no_keys_billion(asked: Asked) -> str:
    if asked.dtype == "float16":
        raise NotImplementedError("float16 has no -1e9")
    return _row_of(asked, -1e9)


@question(
    "-65504",
    "Content of a row whose float mask is -65504 throughout",
    "unmasked",
    rule="a number shifts all scores alike, and softmax does not see a shift",
)
def no_keys_lowest_half(asked: Asked) -> str:
    if asked.dtype == "float16":
        raise NotImplementedError("this is the lowest float16")
    return _row_of(asked, -65504.0)


@question(
    "-1e4",
    "Content of a row whose float mask is -1e4 throughout",
    "unmasked",
    rule="a number shifts all scores alike, and softmax does not see a shift",
)
def no_keys_ten_thousand(asked: Asked) -> str:
    return _row_of(asked, -1e4)


@question(
    "with a sink",
    "Content of a row without keys beside a sink",
    "0",
    rule="the sink takes all weight, and has no value",
)
def no_keys_sink(asked: Asked) -> str:
    return _row(asked, asked.mask, normalizer="sink(logits=[3.0])")


@question(
    "rows beside",
    "Rows beside a row without keys",
    "right",
    rule="a row depends on its own keys alone",
)
def beside_no_keys(asked: Asked) -> str:
    arrays = draw()
    rest = np.arange(4) != ROW
    found = asked(*arrays, attn_mask=asked.mask(SEEN))["output"][:, :, rest]
    return asked.nearest(found, {"right": attended(*arrays)[:, :, rest]})


@question(
    "gradients",
    "Gradients of a call with a row without keys",
    "finite",
    rule="a row that sees nothing has nothing to change",
)
def no_keys_gradients(asked: Asked) -> str:
    arrays = draw()
    reply = asked(*arrays, attn_mask=asked.mask(SEEN))
    if "gradients" not in reply:
        return "none"
    parts = dict(zip("qkv", reply["gradients"](cast(np.ones_like(arrays[2]), asked.dtype)), strict=True))
    broken = [name for name, x in parts.items() if not np.isfinite(np.asarray(x, np.float64)).all()]
    return f"NaN in d{', d'.join(broken)}" if broken else "finite"


of_hiding = subject("Hidden keys")
_HIDDEN_LAST = np.broadcast_to(np.arange(4) < 3, (1, 1, 4, 4))


def _above(n: int = 4) -> list[Any]:
    """A last key whose score is 20000 above the others, with the value 1 beside values of 0."""
    arrays = [np.zeros((1, 1, n, 8)) for _ in range(3)]
    arrays[0][:], arrays[1][:, :, -1], arrays[2][:, :, -1] = 84, 84, 1
    return arrays


def _seen(asked: Asked, found: Any) -> str:
    return asked.nearest(found, {"hidden": 0.0, "seen": 1.0})


@of_hiding(
    "by mask",
    "A key hidden by a mask whose score is 20000 above the others",
    "hidden",
    rule="a hidden key is hidden, however large its score",
)
def hidden_by_mask(asked: Asked) -> str:
    return _seen(asked, asked(*_above(), attn_mask=asked.mask(_HIDDEN_LAST))["output"])


@of_hiding(
    "by length",
    "A key behind the key length whose score is 20000 above the others",
    "hidden",
    rule="padding is no part of the text",
)
def hidden_by_length(asked: Asked) -> str:
    return _seen(asked, asked(*_above(), key_lengths=np.array([3]))["output"])


@of_hiding(
    "by causal",
    "Later keys with a score 20000 above, with all scores at -200, or of the value 1e9",
    "hidden",
    rule="a query sees no later key",
)
def hidden_by_causal(asked: Asked) -> str:
    arrays, early = _above(), np.s_[:, :, :3]
    says = []
    if asked.nearest(asked.causal(*arrays)["output"][early], {"hidden": 0.0}) != "hidden":
        says.append("seen if 20000 above")
    low = [*arrays[:1], np.full_like(arrays[1], -0.84), arrays[2]]  # q . k / sqrt(8) is -200
    if asked.nearest(asked.causal(*low)["output"][early], {"hidden": 0.0}) != "hidden":
        says.append("counted as score 0")
    if asked.dtype != "float16":
        large = [np.zeros_like(arrays[0]), np.zeros_like(arrays[1]), arrays[2] * 1e9]
        if asked.nearest(asked.causal(*large)["output"][early], {"hidden": 0.0}) != "hidden":
            says.append("a rest of the value 1e9 stays")
    return ", ".join(says) or "hidden"
