# SPDX-License-Identifier: BSD-3-Clause
"""An engine in plain NumPy, float32, in which slips are planted: written apart from what explains them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Array = Any
#: What the engine can be asked.
_SERVED = {
    *("is_causal", "causal", "window", "key_lengths", "attn_mask", "scale", "softcap", "normalizer"),
    *("enable_gqa", "layout"),
}


class Slipping:
    """An engine with slips by their codes, and what rows without keys hold: 0, "mean" or NaN."""

    def __init__(self, *slips: str, empty: Any = 0.0) -> None:
        self.slips, self.empty = set(slips), empty

    def __call__(self, query: Array, key: Array, value: Array, **options: Any) -> Array:
        softmax = str(options.get("normalizer", "softmax"))
        if (
            set(options) - _SERVED
            or np.ndim(options.get("scale"))
            or not softmax.startswith(("softmax", "sink("))
        ):
            raise NotImplementedError
        bshd = options.get("layout") == "bshd" and query.ndim > 2
        arrays = [x.swapaxes(-3, -2) if bshd else x for x in (query, key, value)]
        output = self.attend(*arrays, **options)
        return output.swapaxes(-3, -2) if bshd else output

    def has(self, slip: str) -> bool:
        return slip in self.slips

    def attend(self, q: Array, k: Array, v: Array, **options: Any) -> Array:
        scale = self.scale(q, v, options.get("scale"))
        if self.has("v = k") and k.shape[-1] == v.shape[-1]:
            v = k
        if options.get("enable_gqa"):
            tile_keys, tile_values = (
                self.has("tiled keys"),
                self.has("tiled keys") or self.has("tiled values"),
            )
            k, v = repeated(k, q, tile_keys), repeated(v, q, tile_values)
        with np.errstate(all="ignore"):
            return self.rows(q, k, v, scale, options)

    def scale(self, q: Array, v: Array, scale: Any) -> float:
        width = max(q.shape[-1], 1)
        if scale is None or (self.has("0 = default") and scale == 0):
            of = {
                "1/d": 1 / width,
                "d of value": max(v.shape[-1], 1) ** -0.5,
                "d x heads": (width * max(q.shape[-3] if q.ndim > 2 else 1, 1)) ** -0.5,
            }
            scale = next((x for slip, x in of.items() if self.has(slip)), width**-0.5)
        scale = abs(scale) if self.has("abs(scale)") else float(scale)
        return 1.0 if self.has("scale 1") else scale

    def rows(self, q: Array, k: Array, v: Array, scale: float, options: dict[str, Any]) -> Array:
        product = np.einsum("...id,...jd->...ij", q, k)
        seen, added = self.seen(product, options)
        if self.has("bias x scale"):
            added = added * scale
        s = self.capped(product, scale, options.get("softcap"), added)
        s = np.where(seen, s, 0.0 if self.has("hidden = 0") else -np.inf)
        shown = seen | self.has("hidden = 0")
        top = np.where(shown, s, -np.inf).max(-1, initial=-np.inf, keepdims=True)
        sink = self.sink(options, scale)
        top = np.maximum(top, sink) if not self.has("sink unshifted") else top
        top = np.where(np.isneginf(top), 0, top)
        weight = np.where(shown, (2.0 if self.has("2**s") else np.e) ** (s - top), 0)
        of_sink = (2.0 if self.has("2**s") else np.e) ** (sink - (0 if self.has("sink unshifted") else top))
        total = weight.sum(-1, keepdims=True) + of_sink
        weight = np.where(total == 0, 0, weight / np.where(total == 0, 1, total))
        output = np.where(weight[..., None] == 0, 0, weight[..., None] * v[..., None, :, :]).sum(-2)
        hides_all = ~shown.any(-1)
        held = v.sum(-2, keepdims=True) / max(v.shape[-2], 1) if self.empty == "mean" else self.empty
        return np.where(hides_all[..., None], held, output).astype(np.float32)

    def capped(self, product: Array, scale: float, cap: float | None, added: Array) -> Array:
        s = product * scale
        s = np.where(np.isfinite(s), s, np.nan)
        if cap is None:
            return s + added
        if self.has("cap(s+mask)"):
            return cap * np.tanh((s + added) / cap)
        if self.has("cap(q.k) x scale"):
            return cap * np.tanh(product / cap) * scale + added
        return cap * np.tanh(s / (1 if self.has("c tanh(s)") else cap)) + added

    def sink(self, options: dict[str, Any], scale: float) -> Array:
        name = str(options.get("normalizer", "softmax"))
        if name == "softmax" or self.has("no sink"):
            return np.array(-np.inf)
        if name.startswith("softmax_n"):
            logit: Array = np.log(float(name.partition("n=")[2].strip(")")))
        elif name == "softmax_1":
            logit = np.array(0.0)
        else:
            logit = np.array(eval(name.partition("=")[2].strip(")")))
            logit = logit[:, None, None] if logit.ndim else logit
        return logit * scale if self.has("sink x scale") else logit

    def seen(self, product: Array, options: dict[str, Any]) -> tuple[Array, Array]:
        n_queries, n_keys = product.shape[-2:]
        lengths: Array = np.asarray(n_keys if options.get("key_lengths") is None else options["key_lengths"])
        lengths = lengths[..., None, None, None] if lengths.ndim else lengths
        if self.has("lengths of batch 0") and lengths.ndim:
            lengths = np.broadcast_to(lengths[:1], lengths.shape)
        i, j = np.arange(n_queries)[:, None], np.arange(n_keys)
        causal = options.get("causal")
        offset = causal if isinstance(causal, int) else lengths - n_queries if causal else 0
        if self.has("abs offset") and causal == "bottom_right":
            offset = abs(offset)
        t = j - i - offset
        seen = np.broadcast_to(self.within(j, lengths, n_keys, options), product.shape)
        if options.get("is_causal") or causal is not None:
            seen = seen & self.causal(t, i, j, n_queries)
        left, right = options.get("window") or (None, None)
        seen = seen if left is None else seen & (t >= -left - self.has("left + 1"))
        seen = seen if right is None or self.has("right open") else seen & (t <= right)
        return self.masked(seen, options.get("attn_mask"))

    def within(self, j: Array, lengths: Array, n_keys: int, options: dict[str, Any]) -> Array:
        if options.get("key_lengths") is None:
            return j < n_keys
        if self.has("last keys"):
            return j >= n_keys - lengths
        return j < lengths + self.has("length + 1")

    def causal(self, t: Array, i: Array, j: Array, n_queries: int) -> Array:
        if self.has("j < i"):
            return t < 0
        if self.has("j <= i+1"):
            return t <= 1
        if self.has("j >= i"):
            return t >= 0
        if self.has("blocks of 4"):
            return j // 4 <= (j - t) // 4
        return (t <= 0) | (self.has("last row open") & (i == n_queries - 1))

    def masked(self, seen: Array, mask: Any) -> tuple[Array, Array]:
        if mask is None:
            return seen, np.float32(0)
        mask = np.asarray(mask)
        if self.has("mask of batch 0") and mask.ndim == 4:
            mask = np.broadcast_to(mask[:1], mask.shape)
        if mask.dtype == np.bool_:
            return (
                (seen, mask.astype(np.float32))
                if self.has("mask as 0/1 added")
                else (seen & mask, np.float32(0))
            )
        if self.has("bias > -1e4"):
            return seen & (mask > -1e4), np.float32(0)
        lets = mask > np.finfo(mask.dtype).min / 2
        return seen & lets, np.where(lets, mask, 0).astype(np.float32)


def repeated(x: Array, query: Array, tiled: bool) -> Array:
    """Heads of the key for every head of the query."""
    if query.ndim < 3:
        return x
    times = query.shape[-3] // max(x.shape[-3], 1)
    return np.concatenate([x] * times, -3) if tiled else x.repeat(times, -3)


Engine = Callable[..., Any]
#: Planted slips, and the names that `check` must find; "mean" or NaN is what rows without keys hold.
SINGLE = {
    "scale 1": "the scale is not applied",
    "1/d": "the scale is applied twice",
    "d of value": "the scale is that of the value's width",
    "d x heads": "the scale is that of all heads' width",
    "0 = default": "scale 0 is read as not given",
    "abs(scale)": "the sign of the scale is lost",
    "2**s": "the exponential is in base 2",
    "cap(s+mask)": "the soft-cap is applied over the mask",
    "cap(q.k) x scale": "the soft-cap is applied before the scale",
    "c tanh(s)": "the soft-cap does not divide",
    "j < i": "the causal mask hides a query's own key",
    "j <= i+1": "the causal mask shows the next key",
    "j >= i": "the causal mask is mirrored",
    "last row open": "the last query has no causal mask",
    "abs offset": "the causal offset is absolute",
    "blocks of 4": "the causal mask is in blocks of 4",
    "left + 1": "the window is 1 key longer on the left",
    "right open": "the right end of the window is not read",
    "length + 1": "key_lengths are 1 too long",
    "last keys": "key_lengths count from the end",
    "lengths of batch 0": "key_lengths of the first text holds for all",
    "mask of batch 0": "attn_mask of the first text holds for all",
    "mask as 0/1 added": "a boolean attn_mask is added as 0 and 1",
    "bias > -1e4": "a float attn_mask is read as boolean",
    "bias x scale": "a float attn_mask is scaled",
    "hidden = 0": "hidden scores are 0",
    "sink x scale": "the sink is scaled",
    "sink unshifted": "the sink is not shifted by the largest score",
    "tiled values": "value heads repeat as a whole, not each in its place",
    "v = k": "values are keys",
}
MEAN, NAN = "rows without keys hold the mean of values, not 0", "rows without keys hold NaN, not 0"
PAIRS: list[tuple[tuple[str, ...], Any, tuple[str, ...]]] = [
    (("scale 1", "no sink"), 0.0, (SINGLE["scale 1"], "the sink is missing")),
    (("1/d", "tiled keys"), 0.0, (SINGLE["1/d"], "key heads repeat as a whole, not each in its place")),
    (("left + 1",), "mean", (SINGLE["left + 1"], MEAN)),
    (("last keys",), np.nan, (SINGLE["last keys"], NAN)),
    (("cap(q.k) x scale",), "mean", (SINGLE["cap(q.k) x scale"], MEAN)),
    (("bias x scale",), np.nan, (SINGLE["bias x scale"], NAN)),
    (("lengths of batch 0", "scale 1"), 0.0, (SINGLE["lengths of batch 0"], SINGLE["scale 1"])),
    (("last row open",), np.nan, (SINGLE["last row open"], NAN)),
    (("mask as 0/1 added", "j < i"), 0.0, (SINGLE["mask as 0/1 added"], SINGLE["j < i"])),
    (("2**s", "sink x scale"), 0.0, (SINGLE["2**s"], SINGLE["sink x scale"])),
]
