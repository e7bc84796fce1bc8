# SPDX-License-Identifier: BSD-3-Clause
"""``attnscale laws --n``: what every law makes of the same lengths."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from .. import datasets, laws
from .._checks import shown
from .._io import InputError
from .._tables.tabled import nats_per
from .._tables.text import to_text
from ..attention import attention_entropy
from ..laws._registry import with_length
from ._figure import Drawing
from ._interrupt import finished
from ._output import Answer, bad_input
from ._spelling import read_law, read_laws

_DEFAULTS = {"head_dim": 64, "train_length": 512}


class Comparison(NamedTuple):
    """One law at some lengths; NaN where the law has no such number."""

    law: laws.Law
    multiplier: NDArray[np.float64]
    sphere: NDArray[np.float64]
    heads: NDArray[np.float64]


def compare(options: argparse.Namespace) -> Answer:
    """The table of what each law is at each length."""
    lengths = sorted(set(options.n))
    options.unit = options.unit or "nats"
    _read_numbers(options)
    chosen = _laws(options, lengths[-1])
    with bad_input():  # the laws may give a scale that is not finite
        compared, interrupted = finished(
            list(chosen), lambda name: _compare(chosen[name], lengths, options.head_dim)
        )
    drawing = Drawing(lambda axes: _draw(options, chosen, lengths, axes), (6.4, 4.4))
    text, rows = _text(options, compared, lengths), _rows(compared, lengths)
    return Answer(text, rows, drawing=drawing, interrupted=interrupted)


def _read_numbers(options: argparse.Namespace) -> None:
    """Put in the defaults; refuse numbers that are too small, and a length that no law takes."""
    given = options.train_length
    for name, default in _DEFAULTS.items():
        if getattr(options, name) is None:
            setattr(options, name, default)
        if getattr(options, name) < 2:
            raise InputError(f"--{name.replace('_', '-')} must be at least 2, got {getattr(options, name)}")
    if given is None or not options.laws:
        return
    if all(read_law(text, given) == read_law(text, given + 1) for text in options.laws):
        raise InputError(f"--train-length {given}: each of --laws says its length itself, or has none")


def _laws(options: argparse.Namespace, longest: int) -> dict[str, laws.Law]:
    """The laws that were asked for, or all that a training length and a factor of extension determine."""
    if options.laws:
        return read_laws(options.laws, options.train_length)
    factor = max(1.0, longest / options.train_length)
    found = {}
    for name in laws.names():
        # These two laws depend on how far the context is extended, and not on an n.
        spelling = f"{name}(factor={factor!r})" if name in ("yarn", "longrope") else name
        try:
            law = with_length(spelling, options.train_length)
        except TypeError:  # a parameter that nothing here determines
            continue
        found[law.spelling] = law if law.channels == "all" else replace(cast(Any, law), channels="all")
    return found


def _compare(law: laws.Law, lengths: Sequence[int], head_dim: int) -> Comparison:
    from .. import theory

    multiplier = _multipliers(law, lengths, head_dim)
    known = np.isfinite(multiplier) & (law.channels == "all")
    sphere = np.full(len(lengths), np.nan)
    if known.any():
        sphere[known] = theory.expected_entropy(
            np.array(lengths)[known], np.abs(multiplier[known]), head_dim=head_dim
        )
    return Comparison(law, multiplier, sphere, np.array([_heads_entropy(law, n) for n in lengths]))


def _multipliers(law: laws.Law, lengths: Sequence[int], head_dim: int) -> NDArray[np.float64]:
    """Multiplier of the last of n causal queries; NaN for a law of distances or of the row's scores."""
    if law.meaning.at_position is None:
        return np.full(len(lengths), np.nan)
    values = np.asarray(law.multiplier_at(lengths, head_dim))
    if values.ndim > 1:
        raise InputError(f"one value for all heads is compared, got {shown(law)}")
    return values


def _heads_entropy(law: laws.Law, n: int) -> float:
    """Mean over the shipped heads and n queries; NaN beyond 512, and for a law of some channels only.

    A law that counts gives all queries the scale of the last one; a law of the row's scores or of distances
    is given to attention as it is.
    """
    data = datasets.minilm_qk()
    if n > data.query.shape[-2] or law.channels != "all":
        return float("nan")
    head_dim = data.query.shape[-1]
    scale: Any = law
    if law.meaning.at_position is not None:
        scale = float(_multipliers(law, [n], head_dim)[0]) / np.sqrt(head_dim)
    entropy = attention_entropy(data.query[:, :n], data.key[:, :n], scale=scale)
    return float(np.nanmean(entropy.astype(np.float64)))


def _rows(compared: Mapping[str, Comparison], lengths: Sequence[int]) -> list[dict[str, Any]]:
    return [
        {
            "law": name,
            "definition": repr(each.law),
            "n_means": each.law.n_means,
            "n": n,
            "multiplier": float(each.multiplier[index]),
            "sphere_entropy": float(each.sphere[index]),
            "minilm_entropy": float(each.heads[index]),
        }
        for name, each in compared.items()
        for index, n in enumerate(lengths)
    ]


def _text(options: argparse.Namespace, compared: Mapping[str, Comparison], lengths: Sequence[int]) -> str:
    short = [
        n for n in lengths if np.isfinite([each.heads[lengths.index(n)] for each in compared.values()]).any()
    ]
    nats = nats_per(options.unit)
    header = ["law", "n means", *(f"m({n})" for n in lengths), *(f"H({n})" for n in lengths)]
    header += [f"heads({n})" for n in short]
    table = [
        [
            name,
            each.law.n_means,
            *(_cell(value, 4) for value in each.multiplier),
            *(_cell(value / nats, 3) for value in each.sphere),
            *(_cell(each.heads[lengths.index(n)] / nats, 3) for n in short),
        ]
        for name, each in compared.items()
    ]
    lines = [
        f"m(n): multiple of 1/sqrt(d) for the last of n causal queries, d = {options.head_dim}.",
        f"H(n): expected entropy ({options.unit}) of n keys uniform on a sphere; "
        f"equal weights: {', '.join(f'{np.log(n) / nats:.3f}' for n in lengths)}.",
    ]
    if short:
        lines.append(
            "heads(n): mean entropy of 18 heads of all-MiniLM-L6-v2 (d = 32), at the m of the last query."
        )
    open_lengths = any(each.law.length_parameter is not None for each in compared.values())
    if open_lengths:
        lines.append(f"Laws with a training length have {options.train_length}, unless they say another.")
    if not options.laws:
        lines.append("Laws of rotated channels act on all; their factor is the longest n over that length.")
    return "\n".join([*lines, "", to_text(header, table)])


def _cell(value: float, digits: int) -> str:
    return f"{value:.{digits}f}" if np.isfinite(value) else "-"


def _draw(
    options: argparse.Namespace, chosen: Mapping[str, laws.Law], lengths: Sequence[int], axes: Any
) -> None:
    from .. import plot  # needs matplotlib

    low, high = lengths[0], max(lengths[-1], lengths[0] + 1)
    n = np.unique(np.geomspace(low, high, 513).round().astype(np.int64))
    curves = {name: _multipliers(law, n.tolist(), options.head_dim) for name, law in chosen.items()}
    plot.multiplier_vs_length({name: m for name, m in curves.items() if np.isfinite(m).any()}, n, ax=axes)
    axes.set_title(f"Multiple of $1/\\sqrt{{d}}$, $d = {options.head_dim}$")
