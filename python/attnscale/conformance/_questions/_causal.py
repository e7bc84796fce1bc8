# SPDX-License-Identifier: BSD-3-Clause
"""Causal masks, windows, and the order of shared heads."""

from __future__ import annotations

from typing import Any

import numpy as np

from ._asked import Arrays, Asked, attended, draw, mean, subject
from ._empty import contents

question = subject("Causal masks, windows, heads")


def _alignment(asked: Asked, n_queries: int, n_keys: int) -> str:
    """Rule of the causal mask that explains the output, and the content of the rows that it empties."""
    arrays = draw(n_queries, n_keys)
    found = asked.causal(*arrays)["output"]
    i, j = np.ogrid[:n_queries, :n_keys]
    gap = n_keys - n_queries
    open_last = i == n_queries - 1
    rules = {
        "first keys": j <= i,
        "last keys": j <= i + gap,
        "first keys, last row open": (j <= i) | open_last,
        "not read": (j >= 0) & (i >= 0),
        "offset abs(keys - queries)": j <= i + abs(gap),
        "own key hidden": j < i,
        "mirrored": j >= i,
        "mirrored, last keys": j >= i + gap,
    }
    for name, seen in rules.items():
        filled = seen.any(axis=-1)
        truth = {name: attended(*arrays, seen)[:, :, filled]}
        if asked.nearest(found[:, :, filled], truth) == name:
            if filled.all():
                return name
            empty = asked.nearest(found[:, :, ~filled], contents(*arrays, ~filled))
            return f"{name}, rows without: {empty}"
    return asked.nearest(found, {})


@question(
    "causal, 3 queries, 5 keys",
    "Causal mask with fewer queries than keys",
    "first keys",
    "last keys",
    rule="the mask begins at the first keys, or ends at the last ones, as with a cache",
)
def causal_fewer(asked: Asked) -> str:
    return _alignment(asked, 3, 5)


@question(
    "causal, 6 queries, 4 keys",
    "Causal mask with more queries than keys",
    "first keys",
    "last keys, rows without: 0",
    rule="the mask begins at the first keys, or ends at the last ones, and then the first rows see none",
)
def causal_more(asked: Asked) -> str:
    return _alignment(asked, 6, 4)


def _mask_and_causal(asked: Asked) -> tuple[Arrays, Any, Any, Any]:
    """Arrays, both masks and the output; the mask hides keys 0 and 1, which rows 0 and 1 alone would see."""
    arrays = draw()
    shown = np.broadcast_to(np.arange(4) >= 2, (1, 1, 4, 4))
    found = asked.causal(*arrays, attn_mask=asked.mask(shown))
    return arrays, shown, np.tri(4, dtype=np.bool_), found["output"]


@question(
    "mask and causal",
    "A mask and a causal mask in one call",
    "both",
    rule="a key is seen if both show it",
)
def mask_and_causal(asked: Asked) -> str:
    arrays, shown, before, found = _mask_and_causal(asked)
    named = {
        "both": attended(*arrays, shown & before),
        "mask dropped": attended(*arrays, before),
        "causal dropped": attended(*arrays, shown),
    }
    return asked.nearest(found[:, :, 2:], {name: x[:, :, 2:] for name, x in named.items()})


@question(
    "emptied jointly",
    "Rows that mask and causal mask empty jointly",
    "0",
    rule="no key, no output",
)
def emptied_jointly(asked: Asked) -> str:
    arrays, shown, before, found = _mask_and_causal(asked)
    value = arrays[2]
    named = {
        **contents(*arrays, np.s_[:2]),
        "mean of keys up to its own": mean(value, before)[:, :, :2],
        "mean of keys the mask shows": mean(value, shown)[:, :, :2],
        "mean of later keys": mean(value, ~before)[:, :, :2],
        "as causal alone": attended(*arrays, before)[:, :, :2],
        "as mask alone": attended(*arrays, shown)[:, :, :2],
    }
    return asked.nearest(found[:, :, :2], named)


@question(
    "window",
    "Keys of a window with two keys to the left",
    "as given",
    rule="(left, right) counts the keys on each side, beside the query's own",
)
def window(asked: Asked) -> str:
    arrays = draw(8, 8)
    i, j = np.ogrid[:8, :8]
    asks = {
        (2, 1): lambda: asked(*arrays, window=(2, 1)),
        (2, 0): lambda: asked.causal(*arrays, window=(2, None)),
    }
    given = (2, 1)
    try:
        found = asks[2, 1]()["output"]
    except NotImplementedError:
        given = (2, 0)
        found = asked.first(
            asks[2, 0], lambda: asked.causal(*arrays, window=(2, 0)), lambda: asked(*arrays, window=(2, 0))
        )["output"]
    sides = [given, *((left, right) for left in range(8) for right in range(8))]
    named = {
        "as given" if ends == given else f"keys i - {ends[0]} to i + {ends[1]}": attended(
            *arrays, (i - j <= ends[0]) & (j - i <= ends[1])
        )
        for ends in sides
    }
    return asked.nearest(found, named)


def _shared(arrays: Arrays, which: tuple[Any, Any]) -> Any:
    query, key, value = arrays
    return attended(query, key[:, which[0]], value[:, which[1]])


@question(
    "shared heads",
    "Key head of each of 4 query heads, with 2 key heads",
    "0, 0, 1, 1",
    rule="neighbours share a head, as in Llama's weights",
)
def shared_heads(asked: Asked) -> str:
    arrays = draw(heads=(4, 2))
    orders = ([0, 0, 1, 1], [0, 1, 0, 1], [1, 1, 0, 0], [0, 0, 0, 0])
    named = {", ".join(map(str, x)): _shared(arrays, (x, x)) for x in orders}
    return asked.nearest(asked(*arrays, enable_gqa=True)["output"], named)


@question(
    "value heads",
    "Two key heads beside one value head",
    "as the key heads",
    rule="each is shared in its own order",
)
def value_heads(asked: Asked) -> str:
    query, key, value = draw(heads=(4, 2))
    arrays = (query, key, value[:, :1])
    named = {
        "as the key heads": _shared(arrays, ([0, 0, 1, 1], [0] * 4)),
        "key heads 0, 1, 0, 1": _shared(arrays, ([0, 1, 0, 1], [0] * 4)),
    }
    return asked.nearest(asked(*arrays, enable_gqa=True)["output"], named)


@question(
    "value width",
    "A value with twice the channels of the key",
    "right",
    rule="the output has the channels of the value",
)
def value_width(asked: Asked) -> str:
    query, key, value = draw()
    arrays = (query, key, np.concatenate([value, value[..., ::-1]], axis=-1))
    return asked.nearest(asked(*arrays)["output"], {"right": attended(*arrays)})
