# SPDX-License-Identifier: BSD-3-Clause
"""Rotary angles of queries and keys that differ between two runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ._pair import Array, Pair, relative

_Complex: TypeAlias = NDArray[np.complex128]
#: Shares of the channels that models rotate, beside what the differing channels suggest.
_SHARES = (1.0, 0.75, 0.5, 0.25)
_BASES = np.geomspace(1e2, 1e8, 61)
_MOST_HEADS = 4  # in a search over bases
_LIMIT = 0.9  # share that must agree with a rotation of any form


class Rotation(NamedTuple):
    """A rotation, or a factor of some channels, that explains a share of the difference."""

    kind: str
    fit: float
    said: str
    factor: float | None
    costs: int


class _Block(NamedTuple):
    """Channels that rotate in pairs: (c, c + half) in halves, or neighbours."""

    start: int
    size: int
    in_halves: bool

    def pairs(self, x: Array) -> _Complex:
        """Pairs of channels as complex numbers, (heads, rows, size / 2)."""
        part = x[..., self.start : self.start + self.size]
        if self.in_halves:
            first, second = np.split(part, 2, axis=-1)
        else:
            first, second = part[..., 0::2], part[..., 1::2]
        found: _Complex = first + 1j * second
        return found

    def put(self, x: Array, pairs: _Complex) -> Array:
        """The channels with these pairs in place of their own."""
        found, stop = x.copy(), self.start + self.size
        if self.in_halves:
            found[..., self.start : stop] = np.concatenate([pairs.real, pairs.imag], -1)
        else:
            found[..., self.start : stop : 2], found[..., self.start + 1 : stop : 2] = pairs.real, pairs.imag
        return found


class _Sides(NamedTuple):
    """Queries and keys of both runs, and the positions."""

    query: tuple[Array, Array]
    key: tuple[Array, Array]


def rotated(pair: Pair) -> Iterator[Rotation]:
    """Explanations by rotary angles: of pairs of channels, or of any form."""
    a, b = pair.a, pair.b
    if a.query is None or a.key is None or b.query is None or b.key is None:
        return
    if a.query.shape != b.query.shape or a.key.shape != b.key.shape or (a.key_of != b.key_of).any():
        return
    sides = _Sides(
        (a.query.astype(np.float64), b.query.astype(np.float64)),
        (a.key.astype(np.float64), b.key.astype(np.float64)),
    )
    found = [each for block in _blocks(sides) for each in _of_pairs(pair, sides, block)]
    best = max(found, key=lambda each: each.fit, default=None)
    if best is not None and best.fit >= _LIMIT:
        yield best
    else:
        yield from _of_any_form(pair, sides)


def _blocks(sides: _Sides) -> list[_Block]:
    """Blocks of channels that may rotate: at the start or at the end of a head."""
    channels = sides.query[0].shape[-1]
    moved = sum((np.abs(x - y) ** 2).sum((0, 1)) for x, y in sides)
    (far,) = np.nonzero(moved > 1e-3 * moved.max())
    sizes = {2 * round(channels * share / 2) for share in _SHARES}
    ends = {channels - int(far[0]) // 2 * 2} if len(far) else set()
    starts = {2 * ((int(far[-1]) + 2) // 2)} if len(far) else set()
    places = {(0, size) for size in sizes | starts} | {(channels - size, size) for size in sizes | ends}
    return [
        _Block(start, size, in_halves)
        for start, size in sorted(places)
        for in_halves in (True, False)
        if size >= 2 and start + size <= channels and start >= 0
    ]


def _of_pairs(pair: Pair, sides: _Sides, block: _Block) -> Iterator[Rotation]:
    """One angle for each position and pair of channels, the same in all heads, and one factor."""
    z = [[block.pairs(x) for x in side] for side in sides]
    products = [(np.conj(here) * there) for here, there in z]
    sizes = [(np.abs(here) ** 2) for here, _ in z]
    if (
        pair.a.positions.shape == pair.a.key_positions.shape
        and (pair.a.positions == pair.a.key_positions).all()
    ):
        both = np.angle(products[0].sum(0) + products[1].sum(0))
        yield _turned(pair, sides, block, (both, both), products, sizes)
    apart = [np.angle(each.sum(0)) for each in products]
    yield _turned(pair, sides, block, (apart[0], apart[1]), products, sizes)


def _turned(
    pair: Pair,
    sides: _Sides,
    block: _Block,
    angles: tuple[Array, Array],
    products: list[_Complex],
    sizes: list[Array],
) -> Rotation:
    """The share that these angles explain, and what they say."""
    turned, gains, count = [], [], 0
    for side, angle, each, square in zip(sides, angles, products, sizes, strict=True):
        straight = (each * np.exp(-1j * angle)).real.sum() / max(square.sum(), np.finfo(float).tiny)
        gains.append(float(straight))
        turned.append(block.put(side[0], block.pairs(side[0]) * (straight * np.exp(1j * angle))))
        count += square.size * 2
    fitted = angles[0].size * (1 if angles[0] is angles[1] else 2) + 2
    made = _scores(pair, *turned)
    fit = _share(pair, made)
    fit = 1 - (1 - fit) * count / max(count - fitted, 1)
    gain = gains[0] * gains[1] * _ratio(pair)
    is_gain = abs(gain - 1) > max(4 * pair.epsilon, 1e-3)
    weight: Array = np.sqrt(sizes[0].sum(0) + sizes[1].sum(0))
    whole = max(weight.sum(), np.finfo(float).tiny)  # 0 where queries and keys of a are zeros
    size = max(float((np.abs(angle) * weight).sum() / whole) for angle in angles)
    if is_gain and size < max(8 * pair.epsilon, 1e-3):
        channels = f"{block.start} to {block.start + block.size - 1}"
        said = f"the scores of the channels {channels} of b are {gain:.6g} times those of a"
        return Rotation("scale", fit, said, gain, 3)
    said = _said(pair, angles, weight)
    said += f"; the scores of rotated channels are {gain:.6g} times those of a" if is_gain else ""
    return Rotation("rotation", fit, said, gain if is_gain else None, fitted)


def _scores(pair: Pair, query: Array, key: Array) -> Array:
    scale = pair.b.scale if pair.has_scales and pair.b.scale is not None else 1.0
    found: Array = query @ key[pair.a.key_of].swapaxes(-1, -2) * scale
    return found


def _ratio(pair: Pair) -> float:
    """The scale of b over that of a."""
    if not pair.has_scales or not pair.a.scale or pair.b.scale is None:
        return 1.0
    return pair.b.scale / pair.a.scale


def _share(pair: Pair, made: Array) -> float:
    here, there = pair.scores
    total = ((here - there) ** 2).sum()
    return float(1 - ((there - made) ** 2).sum() / total) if total else 0.0


def _said(pair: Pair, angles: tuple[Array, Array], weight: Array) -> str:
    """The rule that all angles (rows, pairs) follow, in words."""
    there = weight > 1e-3 * weight.max()
    first = np.where(there, angles[0], 0.0)
    steps = np.exp(1j * (first - first[:1]))
    if np.abs(first).max() > 1e-2 and np.abs(np.angle(steps)).max() < 0.3 * np.abs(first).max():
        return "rotary angles of all positions are off alike: positions begin elsewhere"
    if angles[0] is not angles[1] and np.abs(np.angle(np.exp(1j * (angles[0] - angles[1])))).max() > 0.1:
        return "rotary angles of queries and of keys are off by different amounts: their positions differ"
    differ = int((np.abs(first).max(0) > 0.02).sum())
    return (
        f"rotary angles differ in {differ} of {first.shape[1]} pairs of channels: other frequencies, by "
        f"{_most_a_position(pair.a.positions, first):.3g} rad a position at most"
    )


def _most_a_position(positions: NDArray[np.int64], angles: Array) -> float:
    """The largest difference of an angle from one position to the next."""
    grid = np.linspace(-np.pi, np.pi, 721)
    waves = np.exp(-1j * np.outer(grid, positions))  # (grid, rows)
    found = np.abs(waves @ np.exp(1j * angles)).argmax(0)
    return float(np.abs(grid[found]).max())


# ---- rotations of any form ----------------------------------------------------------------------------


def _of_any_form(pair: Pair, sides: _Sides) -> Iterator[Rotation]:
    """Vectors of equal lengths whose products agree where query and key have the same position."""
    positions = pair.a.positions
    if len(positions) < 3 or not np.array_equal(positions, pair.a.key_positions):
        return
    lengths = [[np.linalg.norm(x, axis=-1) for x in side] for side in sides]
    gains = [float((x * y).sum() / max((x * x).sum(), np.finfo(float).tiny)) for x, y in lengths]
    gain = gains[0] * gains[1] * _ratio(pair)
    # A factor that a plain scale would be is left to the scale.
    off = max(relative(g * x, y) for g, (x, y) in zip(gains, lengths, strict=True))
    here, there = pair.scores
    here = here * gain
    square = (there - here) ** 2
    own = np.eye(len(positions), dtype=bool)
    size = (here**2)[:, own].mean(), (here**2)[:, ~own].mean()
    if not (size[0] and size[1] and square[:, ~own].mean()):
        return
    share = 1 - (square[:, own].mean() / size[0]) / (square[:, ~own].mean() / size[1])
    moved = max(relative(*side) for side in sides)
    if share < _LIMIT or off > (1 - _LIMIT) * moved:
        return
    is_gain = abs(gain - 1) > max(4 * pair.epsilon, 1e-3)
    said = _named(sides, positions) or "rotary angles differ, in no form that is known"
    said += f"; the scores of b are {gain:.6g} times those of a" if is_gain else ""
    yield Rotation("rotation", float(share), said, gain if is_gain else None, sides.query[0][0].size)


def _named(sides: _Sides, positions: NDArray[np.int64]) -> str:
    """The form that turns queries of a into those of b: other pairs, or other rotated channels."""
    x, y = (each[:_MOST_HEADS] for each in sides.query)
    channels = x.shape[-1]
    halves, neighbours = _Block(0, channels, True), _Block(0, channels, False)
    # Weights made for other pairs have their channels in another order.
    orders: list[Callable[[Array], Array]] = [
        lambda x: x,
        lambda x: neighbours.put(x, halves.pairs(x)),
        lambda x: halves.put(x, neighbours.pairs(x)),
    ]
    sizes = sorted({2 * round(channels * share / 2) for share in _SHARES} - {0})
    blocks = [_Block(0, size, in_halves) for size, in_halves in product(sizes, (True, False))]
    best, left = "", 0.3 * relative(x, y)
    for here, there, base in product(blocks, blocks, _BASES):
        if (here.size == there.size) == (here.in_halves == there.in_halves):
            continue
        still = _spun(here, x, positions, -1, base)
        for order in orders:
            error = relative(_spun(there, order(still), positions, 1, base), y)
            if error < left:
                best, left = _form(here, there), error
    return best


def _spun(block: _Block, x: Array, positions: NDArray[np.int64], sign: int, base: float) -> Array:
    speeds = base ** (-np.arange(0, block.size, 2) / block.size)
    return block.put(x, block.pairs(x) * np.exp(sign * 1j * np.outer(positions, speeds)))


def _form(here: _Block, there: _Block) -> str:
    if here.size != there.size:
        return f"{here.size} channels rotate in a, {there.size} in b"
    words = {True: "(c, c + half)", False: "(2c, 2c + 1)"}
    return f"the channels {words[here.in_halves]} rotate as pairs in a, {words[there.in_halves]} in b"
