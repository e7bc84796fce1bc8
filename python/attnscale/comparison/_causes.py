# SPDX-License-Identifier: BSD-3-Clause
"""Causes that may explain the difference of one layer, each with the share that it explains."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._base.text import counted
from .._files.recording import KeptRows
from ._pair import Array, Pair, relative
from ._rotation import rotated

#: Least share of the difference that a cause must explain if noise explains the rest, and if not.
MOST, NEARLY_ALL = 0.6, 0.98
#: Least ratio of a difference to the noise for causes with one factor, and with more numbers: rounding of
#: weights, too, may multiply the scores of a head.
_CLEAR, _CLEARER = 2.0, 3.0
#: Greatest ratio of a difference to the noise beside it that passes for noise.
JUMP = 6.0


@dataclass(frozen=True)
class Cause:
    """Why a layer of two runs differs.

    Attributes
    ----------
    kind : str
        "scale", "temperature", "rotation", "mask", "sink", "softcap", "bias", "head order", "one head",
        "values", "projection" (of queries or keys) or "input" (of the layer: the cause lies before it).
    layer : int
        Number of the layer.
    module : str
        The module that called attention.
    heads : tuple of int
        Heads that differ; empty for all of them.
    factor : float or None
        Scores, or values, of b over those of a; with a temperature, at the last kept position; of a sink or a
        soft-cap, b less a.
    fit : float or None
        Share of the layer's difference that the cause explains, from 0 to 1; None for one that is read from
        options (mask, sink, soft-cap, bias) or from what else agrees.
    sentence : str
        The cause in words.
    factors : tuple of (int, float)
        The factor at each kept position, with a temperature.
    """

    kind: str
    layer: int
    module: str
    heads: tuple[int, ...]
    factor: float | None
    fit: float | None
    sentence: str
    factors: tuple[tuple[int, float], ...] = field(default=(), repr=False)


@dataclass(frozen=True)
class Found:
    """A cause without its place."""

    kind: str
    fit: float | None
    said: str
    factor: float | None = None
    heads: tuple[int, ...] = ()
    factors: tuple[tuple[int, float], ...] = ()
    costs: int = 1  # numbers that were fitted

    def at(self, pair: Pair) -> Cause:
        where = f"layer {pair.a.layer} ({pair.a.module or 'the model'})"
        fit = None if self.fit is None else float(np.clip(self.fit, 0.0, 1.0))
        facts = (self.kind, pair.a.layer, pair.a.module, self.heads, self.factor, fit)
        return Cause(*facts, f"{where}: {self.said}", self.factors)


def structured(pair: Pair, level: float) -> Found | None:
    """The cause that explains most of a difference of the scores; of equal ones that with fewest numbers."""
    if (one := _one_head(pair, level)) is not None:
        return one
    size = pair.size
    noise = (JUMP * level / size) ** 2 if size else 0.0  # the share that noise may have
    least = max(MOST, min(NEARLY_ALL, 1 - noise))
    found = [
        each
        for make in (_scales, _order, rotated_as)
        for each in make(pair)
        if (each.fit or 0.0) >= least and size > level * (_CLEAR if each.costs == 1 else _CLEARER)
    ]
    if not found:
        return None
    best = max(each.fit or 0.0 for each in found)
    near = [each for each in found if 1 - (each.fit or 0.0) <= 2 * (1 - best) + 0.01]
    return min(near, key=lambda each: each.costs)


def by_option(pair: Pair) -> Found | None:
    """A mask, sink, soft-cap or bias that is not the same in both runs."""
    for make in (_mask, _sink, _softcap, _bias):
        if (found := make(pair)) is not None:
            return found
    return None


# ---- factors of the scores ----------------------------------------------------------------------------


def _scales(pair: Pair) -> Iterator[Found]:
    """One factor, one for each row, and one for each head."""
    here, there = pair.scores
    ok = np.isfinite(here) & np.isfinite(there)
    x, y = np.where(ok, here, 0.0), np.where(ok, there, 0.0)
    total = ((x - y) ** 2).sum()
    if not total:
        return
    tolerance = max(2 * pair.epsilon, 1e-4)

    def fitted(*axes: int) -> tuple[Array, float]:
        squares = (x * x).sum(axes, keepdims=True)
        factors = (x * y).sum(axes, keepdims=True) / np.where(squares > 0, squares, 1.0)
        factors = np.where(squares > 0, factors, 1.0)
        free = max(x.size - factors.size, 1)
        left = ((y - factors * x) ** 2).sum() * x.size / free
        return factors.ravel(), float(1 - left / total)

    (whole,), fit = fitted(0, 1, 2)
    if abs(whole - 1) > tolerance:
        times = f"the scores of b are {whole:.6g} times those of a"
        yield Found("scale", fit, times, float(whole))
    rows, fit = fitted(0, 2)
    positions, (far,) = (
        pair.a.positions,
        np.nonzero(np.abs(rows - 1) > max(tolerance, 0.02 * np.abs(rows - 1).max())),
    )
    if len(far) and np.abs(rows - whole).max() > max(tolerance, 0.05 * abs(whole - 1)):
        first, last = positions[far[0]], positions[-1]
        said = (
            f"a factor by position: from position {first} on (of those kept) the scores of b are "
            f"{rows[far[0]]:.6g} times those of a, at position {last} {rows[-1]:.6g} times"
        )
        table = tuple((int(i), float(f)) for i, f in zip(positions, rows, strict=True))
        yield Found("temperature", fit, said, float(rows[-1]), factors=table, costs=len(rows))
    heads, fit = fitted(1, 2)
    if np.abs(heads - whole).max() > max(tolerance, 0.05 * abs(whole - 1)):
        said = (
            f"a factor by head: the scores of b are {heads.min():.6g} to {heads.max():.6g} times those of a"
        )
        yield Found("scale", fit, said, costs=2 * len(heads))


# ---- heads --------------------------------------------------------------------------------------------


def _one_head(pair: Pair, level: float) -> Found | None:
    """One head, or the heads of one key head, that differ while all others agree."""
    each = pair.by_head
    (far,) = np.nonzero(each > JUMP * max(level, _others(each)))
    key_of = pair.a.key_of
    groups = {*key_of[far].tolist()}
    is_group = len(groups) == 1 and len(far) == np.count_nonzero(key_of == next(iter(groups)))
    if not len(far) or len(far) == len(each) or not (len(far) == 1 or is_group):
        return None
    heads = tuple(map(int, far))
    here, there = (np.nan_to_num(x[far]) for x in pair.scores)
    total = ((np.nan_to_num(pair.scores[0]) - np.nan_to_num(pair.scores[1])) ** 2).sum()
    share = float(((here - there) ** 2).sum() / total)
    factor = float((here * there).sum() / max((here * here).sum(), np.finfo(float).tiny))
    is_factor = ((there - factor * here) ** 2).sum() < (1 - MOST) * ((here - there) ** 2).sum()
    name = (
        f"head {heads[0]}" if len(heads) == 1 else f"the heads {', '.join(map(str, heads))} of one key head"
    )
    said = f"{name} alone differs" if len(heads) == 1 else f"{name} alone differ"
    if is_factor:
        said += f": scores of b are {factor:.6g} times those of a"
    return Found("one head", share, said, factor if is_factor else None, heads)


def _others(each: Array) -> float:
    """The level of the heads that agree: the median, and without it the least."""
    return float(np.sort(each)[(len(each) - 1) // 2]) if len(each) > 2 else float(each.min())


def _order(pair: Pair) -> Iterator[Found]:
    """Heads, or key heads, that stand at other places."""
    if pair.a.heads < 2:
        return
    here, there = pair.scores
    if pair.has_products:
        candidates, names = _combined(pair)
    else:
        candidates, names = here, [(head, head) for head in range(len(here))]
    there = np.nan_to_num(there)
    flat, wanted = np.nan_to_num(candidates).reshape(len(names), -1), there.reshape(len(there), -1)
    squares = (flat**2).sum(1) - 2 * wanted @ flat.T
    best = squares.argmin(1)
    total = ((np.nan_to_num(here) - there) ** 2).sum()
    left = ((wanted - flat[best]) ** 2).sum()
    queries, keys = (np.array([names[each][side] for each in best]) for side in (0, 1))
    own = pair.a.key_of if pair.has_products else np.arange(len(there))
    heads = tuple(map(int, np.nonzero((queries != np.arange(len(there))) | (keys != own))[0]))
    if heads and total:
        yield Found(
            "head order", float(1 - left / total), _said_of_order(queries, keys, own), heads=heads, costs=2
        )


def _combined(pair: Pair) -> tuple[Array, list[tuple[int, int]]]:
    """Scores of every head of a with every key head of a."""
    assert pair.a.query is not None
    assert pair.a.key is not None
    scale = pair.a.scale if pair.has_scales and pair.a.scale is not None else 1.0
    query, key = pair.a.query.astype(np.float64) * scale, pair.a.key.astype(np.float64)
    scores = query[:, None] @ key.swapaxes(-1, -2)[None]
    names = [(head, key_head) for head in range(len(query)) for key_head in range(len(key))]
    return scores.reshape(len(names), *scores.shape[2:]), names


def _said_of_order(queries: NDArray[np.intp], keys: NDArray[np.intp], own: NDArray[Any]) -> str:
    """The order of heads in words."""
    heads = np.arange(len(queries))
    if (queries == heads).all():
        count = int(own.max()) + 1
        by_remainder = (keys == heads % count).all() and not (own == heads % count).all()
        way = "by remainder in b, in groups in a" if by_remainder else "otherwise"
        listed = ", ".join(map(str, keys))
        return f"heads share the key heads {way}: those of b use the key heads {listed} of a"
    moved = [f"{queries[head]} of a at {head}" for head in heads if queries[head] != head]
    more = f" and {len(moved) - 4} more" if moved[4:] else ""
    return f"heads stand in another order in b: {', '.join(moved[:4])}{more}"


# ---- rotation -----------------------------------------------------------------------------------------


def rotated_as(pair: Pair) -> Iterator[Found]:
    """Rotary angles that differ, or a factor on a block of channels."""
    if pair.has_products and pair.a.kind == "self":
        for each in rotated(pair):
            yield Found(each.kind, each.fit, each.said, each.factor, costs=each.costs)


# ---- options ------------------------------------------------------------------------------------------


def _mask(pair: Pair) -> Found | None:
    here, there = _seen(pair.a), _seen(pair.b)
    if here is None or there is None or not (differs := (here != there).any(0)).any():
        return None
    (rows,) = np.nonzero(differs.any(0))
    row = int(rows[len(rows) // 2])
    head = int(np.nonzero(differs[:, row])[0][0])
    told = [
        f"{counted(int(count), 'key')} ({first} to {last})"
        for count, first, last in (here[:, head, row], there[:, head, row])
    ]
    (far,) = np.nonzero(differs.any(1))
    heads = tuple(map(int, far)) if len(far) < pair.a.heads else ()
    said = f"the mask: the query at {pair.a.positions[row]} sees {told[0]} in a and {told[1]} in b"
    if (here[1] > 0).any() or (there[1] > 0).any():
        said += f"; at most {here[0].max()} keys in a and {there[0].max()} in b"
    return Found("mask", None, said, heads=heads)


def _seen(rows: KeptRows) -> NDArray[np.int64] | None:
    """Number of visible keys, and the first and the last one, (3, heads, rows)."""
    if rows.visible is None or rows.first is None or rows.last is None:
        return None
    return np.stack([rows.visible, rows.first, rows.last])


def _sink(pair: Pair) -> Found | None:
    logits = [_logits(each.sink, pair.a.heads) for each in (pair.a, pair.b)]
    has = [each is not None for each in logits]
    if pair.a.lse is None or pair.b.lse is None or not any(has):
        return None
    if not all(has):
        said = f"the sink is lost in {'b' if has[0] else 'a'}"
        return Found("sink", None, said)
    here, there = (each for each in logits if each is not None)
    off = there - here
    (far,) = np.nonzero(np.abs(off) > 4 * pair.epsilon * np.maximum(np.abs(here), 1.0) + 1e-4)
    if not len(far):
        return None
    heads = tuple(map(int, far)) if len(far) < len(off) else ()
    said = f"the logit of the sink is off by {off[far].mean():.4g}" + (
        f" in the heads {heads}" if heads else ""
    )
    return Found("sink", None, said, float(off[far].mean()), heads)


def _logits(sink: NDArray[np.float32] | None, heads: int) -> Array | None:
    """The logit of each head; None for a sink without weight."""
    if sink is None or not (sink > -1e4).any():
        return None
    return np.broadcast_to(sink if sink.ndim == 1 else sink.mean(1), heads).astype(np.float64)


def _softcap(pair: Pair) -> Found | None:
    if not (pair.has_products and pair.has_scales):
        return None
    here, there = pair.a.softcap, pair.b.softcap
    if here is None and there is None:
        return None
    if here is None or there is None:
        side = "b" if there is None else "a"
        return Found("softcap", None, f"the soft-cap {here or there:.6g} is lost in {side}")
    if abs(here - there) <= 4 * pair.epsilon * abs(here):
        return None
    return Found("softcap", None, f"the soft-cap is {here:.6g} in a and {there:.6g} in b", there - here)


def _bias(pair: Pair) -> Found | None:
    if not (pair.has_products and pair.has_scales):
        return None
    here, there = (np.zeros(1) if each.bias is None else each.bias for each in (pair.a, pair.b))
    off = relative(*np.broadcast_arrays(here, there))
    if off <= max(JUMP * pair.epsilon, 0.02):
        return None
    lost = "is lost in b" if not there.any() else "is lost in a" if not here.any() else "differs"
    return Found("bias", None, f"the bias of the scores {lost}")


# ---- what is left -------------------------------------------------------------------------------------


def of_values(pair: Pair) -> Found:
    """Outputs that differ while queries, keys, scale, mask and sink agree."""
    here, there = pair.a.output, pair.b.output
    assert here is not None
    assert there is not None
    x, y = here.astype(np.float64), there.astype(np.float64)
    factor = float((x * y).sum() / max((x * x).sum(), np.finfo(float).tiny))
    is_factor = ((y - factor * x) ** 2).sum() < (1 - MOST) * ((y - x) ** 2).sum()
    said = "queries, keys, scale, mask and sink agree, the output does not: values, or what follows them"
    if is_factor:
        said += f"; the output of b is {factor:.6g} times that of a"
    return Found("values", None, said, factor if is_factor else None)


def of_projection(pair: Pair, level: float) -> Found:
    """Queries or keys that differ, without a structure that is known."""
    known = pair.differences
    far = [name for name in ("query", "key") if (known[name] or 0.0) > JUMP * level]
    words = {"query": "queries", "key": "keys"}
    (heads,) = np.nonzero(pair.by_head > JUMP * level)
    chosen = tuple(map(int, heads)) if len(heads) < len(pair.by_head) else ()
    which = " and ".join(words[name] for name in far) or "scores"
    sizes = " and ".join(f"{known[name] or 0.0:.2g}" for name in far or ["scores"])
    said = f"{which} differ, by {sizes} of their size"
    if len(far) == 1:
        said += f", {words['key' if far == ['query'] else 'query']} agree"
    return Found("projection", None, said, heads=chosen)


def of_input(pair: Pair) -> Found:
    """An input that differs already, so that the cause lies before the layer."""
    size = pair.differences["input"] or 0.0
    said = f"what enters it differs already ({size:.2g} of its size), so the cause lies before its attention"
    return Found("input", None, said)
