# SPDX-License-Identifier: BSD-3-Clause
"""Scale laws side by side: multiples of the standard scale, and entropies of random and of real keys."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from .. import datasets, laws, theory
from .._base.checks import InputError, positive_int, refusal, several, shown
from .._base.drawing import drawn_by
from .._base.tabled import Labelled, Sheet, Tabled
from .._base.text import counted, number_cell
from .._grid.finished import finished
from ..exact.forward import attention_entropy
from ..laws._registry import with_length

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from .._grid.progress import Progress
    from ..laws import Law

__all__ = ["LawComparison", "compare"]


@dataclass(frozen=True, eq=False, repr=False)
class LawComparison(Tabled):
    """Laws at some numbers of keys; :func:`attnscale.laws.compare` makes it.

    Attributes
    ----------
    laws : dict of str to Law
        By the spelling that tables show.
    lengths : ndarray of int64
        Numbers of keys, ascending.
    multiplier : ndarray, shape (laws, lengths)
        Multiple of 1/sqrt(head_dim) for the last of n causal queries. NaN, here and below, where the law has
        no such number: a law of distances or of the row's scores has no multiple, a law of some channels no
        entropy.
    sphere_entropy : ndarray
        Expected entropy in nats of n keys uniform on a sphere.
    minilm_entropy : ndarray
        Mean entropy in nats of the shipped heads over all queries, at that multiple; NaN beyond 512 keys.
    head_dim, train_length : int
    every : bool
        Whether the laws were not chosen.
    interrupted : bool
        Whether Ctrl-C came before the last law.
    """

    laws: dict[str, Law]
    lengths: NDArray[np.int64]
    multiplier: NDArray[np.float64]
    sphere_entropy: NDArray[np.float64]
    minilm_entropy: NDArray[np.float64]
    head_dim: int
    train_length: int
    every: bool = False
    interrupted: bool = False

    def rows(self) -> list[dict[str, Any]]:
        """One row for each law and length."""
        values = {name: getattr(self, name) for name in _ARRAYS}
        return [
            {
                "law": name,
                "definition": repr(law),
                "n_means": law.n_means,
                "n": int(n),
                **{each: float(array[i, j]) for each, array in values.items()},
            }
            for i, (name, law) in enumerate(self.laws.items())
            for j, n in enumerate(self.lengths)
        ]

    def plot(self, *, figure: Figure | None = None) -> Axes:
        """Multiples against n, the largest first, in a panel for every seven laws; returns the first."""
        low = int(self.lengths[0])
        n = np.unique(np.geomspace(low, max(int(self.lengths[-1]), low + 1), 513).round().astype(np.int64))
        curves = {name: multipliers(law, n.tolist(), self.head_dim) for name, law in self.laws.items()}
        axes: Axes = drawn_by("_multiples.law_panels")(curves, n, self.head_dim, figure)
        return axes

    def _variables(self) -> dict[str, Labelled]:
        kinds = {name: "nat" if name.endswith("entropy") else "" for name in _ARRAYS}
        return {name: Labelled(("law", "n"), getattr(self, name), kind) for name, kind in kinds.items()}

    def _coordinates(self) -> dict[str, Any]:
        return {"law": list(self.laws), "n": self.lengths}

    def _attributes(self) -> dict[str, Any]:
        known = {"head_dim": self.head_dim, "train_length": self.train_length}
        return {**known, "interrupted": int(self.interrupted)}  # netCDF has no booleans

    def _sheet(self, nats: float, unit: str) -> Sheet:
        short = np.isfinite(self.minilm_entropy).any(axis=0)
        columns = {
            "m": (self.multiplier, self.lengths, ".4f"),
            "H": (self.sphere_entropy / nats, self.lengths, ".3f"),
            "heads": ((self.minilm_entropy / nats)[:, short], self.lengths[short], ".3f"),
        }
        header = ("law", "n means", *(f"{name}({n})" for name, (_, of, _) in columns.items() for n in of))
        rows = [
            (
                name,
                law.n_means,
                *(_cell(x, form) for values, _, form in columns.values() for x in values[i]),
            )
            for i, (name, law) in enumerate(self.laws.items())
        ]
        title = f"LawComparison: {counted(len(self.laws), 'law')}, {counted(len(self.lengths), 'length')}"
        return Sheet(title, header, rows, tuple(self._notes(nats, unit, heads=bool(short.any()))))

    def _notes(self, nats: float, unit: str, *, heads: bool) -> list[str]:
        equal = ", ".join(f"{np.log(n) / nats:.3f}" for n in self.lengths)
        notes = [
            f"m(n): multiple of 1/sqrt(d) for the last of n causal queries, d = {self.head_dim}.",
            f"H(n): expected entropy ({unit}) of n keys uniform on a sphere; equal weights: {equal}.",
        ]
        if heads:
            notes.append(
                "heads(n): mean entropy of 18 heads of all-MiniLM-L6-v2 (d = 32) over all queries, at m(n)."
            )
        if any(law.length_parameter is not None for law in self.laws.values()):
            notes.append(f"Laws with a training length have {self.train_length}, unless they say another.")
        if self.every:
            notes.append(
                "Laws of rotated channels act on all; their factor is the longest n over that length."
            )
        return notes


_ARRAYS = ("multiplier", "sphere_entropy", "minilm_entropy")


def compare(
    lengths: int | Sequence[int],
    laws: Iterable[str | float | Law] | None = None,
    *,
    head_dim: int = 64,
    train_length: int = 512,
    progress: Progress = False,
) -> LawComparison:
    """Compare laws at some numbers of keys, by their multiples and the entropies under them.

    Parameters
    ----------
    lengths : int or sequence of int
        Numbers of keys.
    laws : iterable of str, float or Law, optional
        As :func:`get` takes them; a training length that a spelling leaves open is ``train_length``. Default:
        every law of :func:`names` that this length and a factor of extension determine. Laws of rotated
        channels then act on all, and their factor is the longest length over ``train_length``.
    head_dim : int, default 64
        Components of q and k, at least 2. The shipped heads keep their own 32.
    train_length : int, default 512
        At least 2.
    progress : bool or callable, default False
        True shows a bar where standard error is a terminal. A function is called with (done, total), in laws.

    Returns
    -------
    LawComparison
        After Ctrl-C it has the finished laws.

    Raises
    ------
    TypeError, ValueError
        If a length, a law or a number is refused, or a law has one value for each head.

    Examples
    --------
    >>> import attnscale as at
    >>> found = at.laws.compare([512, 4096], ["standard", "log_n"])
    >>> found.multiplier.round(4)
    array([[1.    , 1.    ],
           [1.    , 1.3333]])
    >>> found.minilm_entropy[:, 0].round(2)  # at 512 keys both are the standard scale
    array([4.3, 4.3])
    """
    one = isinstance(lengths, (int, float, np.generic))
    given = [lengths] if one else several("lengths", lengths, "number of keys", "numbers of keys")
    chosen_lengths = sorted({positive_int("lengths", n) for n in given})
    for name, size in (("head_dim", head_dim), ("train_length", train_length)):
        if positive_int(name, size) < 2:
            raise refusal(ValueError, name, f"must be at least 2, got {size}")
    if laws is None:
        chosen = _every(chosen_lengths[-1], train_length)
    else:
        spelled = several("laws", laws, "law", "laws")
        chosen = {law.spelling: law for law in (with_length(each, train_length) for each in spelled)}
    found, interrupted = finished(
        list(chosen), lambda name: _columns(chosen[name], chosen_lengths, head_dim), progress
    )
    columns = np.array(list(found.values())).reshape(-1, len(_ARRAYS), len(chosen_lengths))
    return LawComparison(
        laws={name: chosen[name] for name in found},
        lengths=np.array(chosen_lengths, np.int64),
        head_dim=head_dim,
        train_length=train_length,
        every=laws is None,
        interrupted=interrupted,
        **{name: columns[:, i] for i, name in enumerate(_ARRAYS)},
    )


def _every(longest: int, train_length: int) -> dict[str, Law]:
    """All laws that a training length and a factor of extension determine."""
    factor = max(1.0, longest / train_length)
    found = {}
    for name in laws.names():
        # These two laws depend on the extension factor, not on n.
        spelling = f"{name}(factor={factor!r})" if name in ("yarn", "longrope") else name
        try:
            law = with_length(spelling, train_length)
        except TypeError:  # a parameter is undetermined
            continue
        whole = law if law.channels == "all" else dataclasses.replace(cast(Any, law), channels="all")
        found[law.spelling] = whole
    return found


def _columns(law: Law, lengths: Sequence[int], head_dim: int) -> list[NDArray[np.float64]]:
    """The arrays of a law, in the order of _ARRAYS."""
    multiplier = multipliers(law, lengths, head_dim)
    known = np.isfinite(multiplier) & (law.channels == "all")
    sphere = np.full(len(lengths), np.nan)
    if known.any():
        where = np.array(lengths)[known]
        sphere[known] = theory.expected_entropy(where, np.abs(multiplier[known]), head_dim=head_dim)
    return [multiplier, sphere, np.array([_heads_entropy(law, n) for n in lengths])]


def multipliers(law: Law, lengths: Sequence[int], head_dim: int) -> NDArray[np.float64]:
    """Multiple for the last of n causal queries; NaN for a law of distances or of the row's scores."""
    if law.meaning.at_position is None:
        return np.full(len(lengths), np.nan)
    values = np.asarray(law.multiplier_at(lengths, head_dim))
    if values.ndim > 1:
        raise InputError(f"one value for all heads is compared, got {shown(law)}")
    return values


def _heads_entropy(law: Law, n: int) -> float:
    """Mean over the shipped heads and n queries; NaN beyond 512, and for a law of some channels only.

    A counting law gives all queries the scale of the last one; a law of the row's scores or of distances goes
    to attention unchanged.
    """
    query = datasets.minilm_qk().query
    if n > query.shape[-2] or law.channels != "all":
        return float("nan")
    if law.meaning.at_position is None:
        return _mean_entropy(law, n)
    return _entropy_at(float(multipliers(law, [n], query.shape[-1])[0]) / math.sqrt(query.shape[-1]), n)


@lru_cache(maxsize=256)
def _entropy_at(scale: float, n: int) -> float:
    """Mean entropy at a scale, which many laws share at the training length."""
    return _mean_entropy(scale, n)


def _mean_entropy(scale: Law | float, n: int) -> float:
    data = datasets.minilm_qk()
    entropy = attention_entropy(data.query[:, :n], data.key[:, :n], scale=scale)
    return float(np.nanmean(entropy.astype(np.float64)))


def _cell(value: float, form: str) -> str:
    return number_cell(value, form) if np.isfinite(value) else "-"
