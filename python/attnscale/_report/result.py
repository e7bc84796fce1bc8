# SPDX-License-Identifier: BSD-3-Clause
"""Content of a report: numbers of heads at several lengths, findings in words, and the page."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import numpy as np

from .._base.checks import shown
from .._base.tabled import Labelled, Sheet, Tabled
from ..calibration.calibration import rows_that_count
from .kept import KeptHead
from .measure import OWN, growth_per_doubling
from .page import Page, has_core
from .text import TextRows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .._base.provenance import Provenance
    from ..laws import Law

    Array = NDArray[np.float64]


_SCHEMA = "attnscale.report/2"
#: Key in ``about`` of attention that was seen in a model but could not be measured.
UNMEASURED = "seen, not measured"

#: Key in ``about`` of the rows that were measured, if not all were.
SAMPLED = "rows"

_BY_LENGTH = ("head", "n")
_BY_LAW = ("head", "n", "law")
_BY_MULTIPLE = ("head", "n", "multiple")
#: Axes of the arrays, and units.
_AXES: dict[str, tuple[tuple[str, ...], str]] = {
    "entropy": (_BY_LAW, "nat"),
    "entropy_error": (_BY_LENGTH, "nat"),
    "random_entropy": (_BY_LAW, "nat"),
    "uniform_entropy": (_BY_LENGTH, "nat"),
    "uniform_first_key": (_BY_LENGTH, ""),
    "uniform_received": (_BY_LENGTH, ""),
    "histogram": ((*_BY_LENGTH, "bin"), ""),
    "by_position": ((*_BY_LENGTH, "position"), "nat"),
    "first_key_weight": (_BY_LENGTH, ""),
    "max_weight": (_BY_LENGTH, ""),
    "received": (_BY_LENGTH, ""),
    "received_by": (_BY_LENGTH, ""),
    "curve": (_BY_MULTIPLE, "nat"),
    "random_curve": (_BY_MULTIPLE, "nat"),
    "max_weight_curve": (_BY_MULTIPLE, ""),
    "first_key_curve": (_BY_MULTIPLE, ""),
    "received_curve": (_BY_MULTIPLE, ""),
    "received_by_curve": (_BY_MULTIPLE, ""),
    "beta": (_BY_LENGTH, ""),
    "best": (("head",), ""),
    "best_constant": (("head",), ""),
    "best_misses": (("head",), "nat"),
    "misses": (("head", "law"), "nat"),
}

#: Columns of :meth:`Report.rows` from arrays by head and length.
_OF_ROWS = ("effective_keys", "first_key_weight", "max_weight", "received", "beta")


@dataclass(frozen=True, eq=False, repr=False)
class Report(Page, Tabled):
    """Statistics of heads at several lengths; prints as a table, and displays as a page.

    A head's entropy at length n is the mean over its n rows; for causal rows, over the last eighth, which see
    between 7n/8 and n keys. Laws multiply the head's own scale. Entropies are in nats.

    Attributes
    ----------
    layers, heads : ndarray of int64, shape (n_heads,)
        Layer and number of each head in its model.
    lengths : ndarray of int64, shape (n_lengths,)
        Ascending.
    laws : tuple of Law
        The first one is the standard scale: the unchanged heads.
    multiples : ndarray, shape (n_multiples,)
        Multiples of the head's own scale.
    entropy : ndarray, shape (n_heads, n_lengths, n_laws)
    entropy_error : ndarray, shape (n_heads, n_lengths)
        Standard error of the unchanged head's entropy that measuring some of the rows makes; 0 for all rows.
    random_entropy : ndarray, shape (n_heads, n_lengths, n_laws)
        Entropy of as many random keys: :func:`attnscale.theory.expected_entropy` of keys on a sphere. NaN
        under a law that needs the scores.
    uniform_entropy : ndarray, shape (n_heads, n_lengths)
        Entropy of equal weights on the visible keys and on the layer's sink, if any.
    uniform_first_key, uniform_received : ndarray, shape (n_heads, n_lengths)
        ``first_key_weight`` and ``received`` with all scores 0: the effect of masks alone.
    histogram : ndarray, shape (n_heads, n_lengths, n_bins)
        Number of rows by entropy, in equal bins from 0 to the entropy of equal weights on the most keys.
    by_position : ndarray, shape (n_heads, n_lengths, n_positions)
        Mean entropy of runs of adjacent rows along the text, for causal heads over all rows too.
    curve, random_curve : ndarray, shape (n_heads, n_lengths, n_multiples)
        Entropy at the multiples of the scale, and that of as many random keys.
    max_weight_curve, first_key_curve : ndarray, shape (n_heads, n_lengths, n_multiples)
        Mean largest weight, and mean weight of the first key, at the multiples.
    received_curve, received_by_curve : ndarray, shape (n_heads, n_lengths, n_multiples)
        The largest share of all rows' weight on one key, and the key's index, at the multiples.
    beta : ndarray, shape (n_heads, n_lengths)
        The multiple that keeps the entropy of the first length; see :func:`attnscale.calibrate`.
    best, best_constant : ndarray, shape (n_heads,)
        Index into ``laws`` of the law that keeps it best, and its constant. -1 and NaN where beta is known at
        fewer than two lengths, as in layers with a soft-cap or a sink.
    misses : ndarray, shape (n_heads, n_laws)
        Root mean square error of each law over the lengths, in nats, with the constant of the head; NaN where
        ``best`` is -1.
    about : Mapping of str to str
        The measured model, text, number of tokens.
    plan : str
        The plan of the model's scales from :mod:`attnscale.audit`, or empty.
    provenance : Provenance
    modules : tuple of str
        The module of each head in its model; "" without a model.
    groups : tuple of str
        The part of the page with each head: towers of a model, self- and cross-attention. "" for a single
        group.
    text : TextRows or None
        The rows along the text, if its tokens were given: ``tokens``, ``n_keys``, ``entropy``, ``top_keys``,
        ``top_weights``, ``spans`` and ``span_weights``, at the longest length and the heads' own scale.
    kept : tuple of KeptHead or None
        Queries and keys of the heads, if ``with_heads`` was set; None for a head that the page cannot
        measure.
    """

    layers: NDArray[np.int64]
    heads: NDArray[np.int64]
    lengths: NDArray[np.int64]
    laws: tuple[Law, ...]
    multiples: Array
    entropy: Array
    entropy_error: Array
    random_entropy: Array
    uniform_entropy: Array
    uniform_first_key: Array
    uniform_received: Array
    histogram: Array
    by_position: Array
    curve: Array
    random_curve: Array
    max_weight_curve: Array
    first_key_curve: Array
    received_curve: Array
    received_by_curve: Array
    beta: Array
    best: Array
    best_constant: Array
    misses: Array
    about: Mapping[str, str]
    plan: str
    provenance: Provenance
    modules: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    text: TextRows | None = None
    kept: tuple[KeptHead | None, ...] | None = None

    @property
    def _computes(self) -> bool:
        return self.kept is not None and has_core()

    @property
    def effective_keys(self) -> Array:
        """exp(entropy) of the unchanged heads, shape (n_heads, n_lengths)."""
        return np.asarray(np.exp(self.entropy[..., 0]))

    @property
    def growth(self) -> Array:
        """Rise of the entropy per doubling of the length, first to last; NaN for one length."""
        return growth_per_doubling(self.lengths, self.entropy[..., 0])

    @property
    def first_key_weight(self) -> Array:
        """Mean weight of the first key in the unchanged heads, shape (n_heads, n_lengths)."""
        return self.first_key_curve[..., OWN]

    @property
    def max_weight(self) -> Array:
        """Mean largest weight of a row in the unchanged heads, shape (n_heads, n_lengths)."""
        return self.max_weight_curve[..., OWN]

    @property
    def received(self) -> Array:
        """The largest share of all weight on one key in the unchanged heads, shape (n_heads, n_lengths)."""
        return self.received_curve[..., OWN]

    @property
    def received_by(self) -> Array:
        """Index of that key, shape (n_heads, n_lengths)."""
        return self.received_by_curve[..., OWN]

    @property
    def best_misses(self) -> Array:
        """Error of each head's best law, shape (n_heads,)."""
        found = np.take_along_axis(self.misses, np.maximum(self.best, 0).astype(int)[:, None], axis=1)[:, 0]
        return np.where(self.best >= 0, found, np.nan)

    @property
    def summary(self) -> list[str]:
        """The growth of entropy over all heads, and the law that keeps it best, in a sentence each."""
        return summary(self)

    @property
    def outliers(self) -> list[str]:
        """Unusual heads, in sentences.

        Differences that equal weights, windows or random keys explain, as in an untrained model, are omitted.
        """
        return outliers(self)

    def name(self, index: int) -> str:
        """Text that names a head.

        Examples
        --------
        >>> import attnscale as at
        >>> data = at.datasets.minilm_qk()
        >>> at.report(data.query[:2], data.key[:2], lengths=[64, 128], laws=["log_n"]).name(1)
        'layer 0, head 1'
        """
        if len(set(self.groups)) > 1:
            return f"head {self.heads[index]} of {self.modules[index]}"
        return f"layer {self.layers[index]}, head {self.heads[index]}"

    def beside(self, other: Report, names: tuple[str, str] = ("A", "B")) -> ReportPair:
        """This report beside another: two models, two texts, two scales.

        Raises
        ------
        TypeError
            If the other is not a report, or names is not a pair of str.
        ValueError
            If the heads, lengths or laws differ.
        """
        if not isinstance(other, Report):
            raise TypeError(f"other must be a Report, got {shown(other)}")
        called: Any = names
        if not isinstance(called, (tuple, list)) or len(called) != 2:
            raise TypeError(f"names must be a pair of str, got {shown(names)}")
        mine, theirs = (
            {
                "heads": list(zip(each.layers.tolist(), each.heads.tolist(), strict=True)),
                "lengths": each.lengths.tolist(),
                "laws": [law.spelling for law in each.laws],
            }
            for each in (self, other)
        )
        for what, value in mine.items():
            if value != theirs[what]:
                raise ValueError(
                    f"two reports must have the same {what}, got {shown(value)} and {shown(theirs[what])}"
                )
        return ReportPair(self, other, (str(names[0]), str(names[1])))

    def rows(self) -> list[dict[str, Any]]:
        """One row for each head and length."""
        named = [law.spelling for law in self.laws]
        return [
            {
                **({"module": self.modules[i]} if any(self.modules) else {}),
                "layer": int(self.layers[i]),
                "head": int(self.heads[i]),
                "n": int(n),
                **{
                    f"entropy {law.spelling}": float(self.entropy[i, j, k]) for k, law in enumerate(self.laws)
                },
                **{name: float(getattr(self, name)[i, j]) for name in _OF_ROWS},
                "growth": float(self.growth[i]),
                "best": named[int(self.best[i])] if self.best[i] >= 0 else "",
                "best_misses": float(self.best_misses[i]),
            }
            for i in range(len(self.heads))
            for j, n in enumerate(self.lengths)
        ]

    def to_dict(self) -> dict[str, Any]:
        """The content of the page as JSON types; numbers to six digits, NaN as None.

        ``effective_keys`` are omitted: they are exp of the entropy.
        """
        arrays = {name: _plain(getattr(self, name)) for name in _AXES}
        return {
            "schema": _SCHEMA,
            "title": " ".join(["Attention heads of", self.about.get("model", "queries and keys")]),
            "about": dict(self.about),
            "provenance": self.provenance.to_dict(),
            "plan": self.plan,
            "lengths": self.lengths.tolist(),
            "laws": [{"name": law.spelling, "n_means": law.n_means} for law in self.laws],
            "multiples": _plain(self.multiples),
            "layers": self.layers.tolist(),
            "heads": self.heads.tolist(),
            "modules": list(self.modules),
            "groups": list(self.groups),
            "text": None if self.text is None else self.text.to_dict(),
            "kept": self.kept and [None if head is None else head.to_dict() for head in self.kept],
            **arrays,
            "growth": _plain(self.growth),
            "summary": self.summary,
            "outliers": self.outliers,
        }

    @staticmethod
    def json_schema() -> dict[str, Any]:
        """The JSON Schema (draft 2020-12) of :meth:`to_dict`, of this class and of :class:`ReportPair`.

        Examples
        --------
        >>> import attnscale as at
        >>> at.Report.json_schema()["$defs"]["report"]["properties"]["growth"]["description"]
        '[head], nats a doubling of the length.'
        """
        schema = (files(__package__) / "schema.json").read_text(encoding="utf-8")
        content: dict[str, Any] = json.loads(schema)
        return content

    def _repr_html_(self) -> str:
        return Page._repr_html_(self)

    def _variables(self) -> dict[str, Labelled]:
        found = {
            name: Labelled(dims, getattr(self, name), unit)
            for name, (dims, unit) in _AXES.items()
            if len(dims) < 3 or dims == _BY_LAW
        }
        found["growth"] = Labelled(("head",), self.growth, "nat")
        return {**found, "module": Labelled(("head",), list(self.modules))} if any(self.modules) else found

    def _coordinates(self) -> dict[str, Any]:
        names = [f"L{layer} H{head}" for layer, head in zip(self.layers, self.heads, strict=True)]
        return {"head": names, "n": self.lengths, "law": [law.spelling for law in self.laws]}

    def _sheet(self, nats: float, unit: str) -> Sheet:
        header = (
            "head",
            *(f"entropy ({unit}) at {n}" for n in self.lengths),
            "first key",
            "best law",
            "misses",
        )
        best = [self.laws[int(i)].spelling if i >= 0 else "-" for i in self.best]
        rows = [
            (
                name,
                *(f"{value / nats:.3f}" for value in self.entropy[i, :, 0]),
                f"{self.first_key_weight[i, -1]:.1%}",
                best[i],
                f"{self.best_misses[i] / nats:.3f}" if self.best[i] >= 0 else "-",
            )
            for i, name in enumerate(self._coordinates()["head"])
        ]
        said = (*self.summary, *self.outliers, *told(self))
        return Sheet(f"Report: {len(rows)} heads", header, rows, said)


@dataclass(frozen=True, eq=False, repr=False)
class ReportPair(Page):
    """Two reports of the same heads and lengths, for a page with both and the difference.

    Attributes
    ----------
    first, second : Report
    names : pair of str
        Their names on the page.
    """

    first: Report
    second: Report
    names: tuple[str, str]

    @property
    def differences(self) -> list[str]:
        """The heads that differ most, in sentences."""
        return differences(self.first, self.second, self.names)

    def to_dict(self) -> dict[str, Any]:
        """The content of the page: both reports, and their differences."""
        return {
            "schema": f"{_SCHEMA}+pair",
            "title": f"Attention heads: {self.names[0]} and {self.names[1]}",
            "names": list(self.names),
            "pair": [self.first.to_dict(), self.second.to_dict()],
            "differences": self.differences,
        }

    def __repr__(self) -> str:
        return "\n".join([f"ReportPair: {self.names[0]} and {self.names[1]}", *self.differences])


def _plain(values: Any) -> Any:
    """Lists of numbers to six digits, whole ones as integers, None for NaN and infinity."""
    if np.ndim(values) > 1:
        return [_plain(each) for each in values]
    return [_rounded(each) for each in np.asarray(values, np.float64).tolist()]


def _rounded(value: float) -> float | int | None:
    if not math.isfinite(value):
        return None
    return int(value) if value.is_integer() else float(f"{value:.6g}")


# ---- properties of all heads, and unusual heads, in words ----------------------------------------


#: Least distance of a mentioned head from all that equal weights and random keys of its mask explain:
#: in nats or nats a doubling; for weights, a multiple of equal weights' and a share of all weight.
_NATS = 0.1
_TIMES, _SHARE = 4, 0.01
#: Smaller differences between reports, in nats or nats a doubling, count as none.
_SAME = 0.005
#: Weights are nearly equal if the entropy is this close to its maximum, in nats; data.js has it too.
_NEARLY = 0.05


def summary(found: Report) -> list[str]:
    """The growth of entropy over all heads, and the law that best keeps it over all of them."""
    first, last = int(found.lengths[0]), int(found.lengths[-1])
    growth = found.growth[np.isfinite(found.growth)]
    if not growth.size:
        mean, equal = np.mean(found.entropy[:, -1, 0]), np.mean(found.uniform_entropy[:, -1])
        return [f"At {last} tokens the mean entropy is {mean:.2f} nat, with equal weights {equal:.2f}."]
    equal = np.mean(growth_per_doubling(found.lengths, found.uniform_entropy))
    said = [
        f"From {first} to {last} tokens entropy {_moves(growth.mean())} nat a doubling in the mean of "
        f"{_heads(len(growth))} ({_two(growth.min())} to {_two(growth.max())}), "
        f"with equal weights by {equal:.2f}."
    ]
    known = found.best >= 0
    if not known.any():
        return said
    if (found.uniform_entropy - found.entropy[..., 0] < _NEARLY)[:, 0].all():
        return [
            *said,
            f"At {first} tokens the weights of every head are nearly equal: no law is judged by them.",
        ]
    misses = np.sqrt((found.misses[known] ** 2).mean(0))
    best = int(np.nanargmin(misses))
    heads = "each head" if known.all() else f"each of the {known.sum()} heads where one is determined"
    name, kept = found.laws[best].spelling, f"the entropies of {first} tokens"
    if best == 0:
        law = f"No law of {len(misses)}, with a constant for {heads}, keeps {kept} better"
        return [*said, f"{law} than the standard scale, which misses by {misses[0]:.2f} nat."]
    law = f"Of {len(misses)} laws, with a constant for {heads}, {name} keeps {kept} best"
    return [*said, f"{law}: it misses by {misses[best]:.2f} nat, the standard scale by {misses[0]:.2f}."]


def told(found: Report) -> list[str]:
    """The rows that entropies cover, and the model's attention that could not be measured."""
    causal, last = found.about.get("causal"), rows_that_count(is_causal=True)
    every = rows_that_count(is_causal=False)
    rows = {"yes": last, "no": every}.get(causal or "no", f"{every}, in causal layers over {last}")
    lost = found.about.get(UNMEASURED)
    sample = found.about.get(SAMPLED)
    return [
        f"Entropies are means over {rows}.",
        *([f"Of these rows, and of all for the weight that a key gets: {sample}."] if sample else []),
        *([f"Seen, not measured: {lost}."] if lost else []),
    ]


def outliers(found: Report) -> list[str]:
    """The heads at the ends of each quantity, one sentence each.

    A head is omitted if equal weights or random keys under its mask come as far: then a window, the length or
    initial weights explain it.
    """
    first, last = int(found.lengths[0]), int(found.lengths[-1])
    keys, growth, misses = found.effective_keys, found.growth, found.best_misses
    below, above = _explained(found.random_entropy[..., 0], found.uniform_entropy)
    slower, faster = _explained(
        *(
            growth_per_doubling(found.lengths, x)
            for x in (found.random_entropy[..., 0], found.uniform_entropy)
        )
    )
    said = []
    for far, word in ((growth - faster, "fastest"), (slower - growth, "least")):
        if (i := _largest(far, _NATS)) is not None:
            ends = f"{_few(keys[i, 0])} effective keys at {first}, {_few(keys[i, -1])} at {last}"
            said.append(f"{found.name(i)} spreads {word}: {ends}.")
    if (i := _largest((below - found.entropy[..., 0])[:, -1], _NATS)) is not None:
        said.append(f"{found.name(i)} is the sharpest at {last}: {_few(keys[i, -1])} effective keys.")
    said += _strong_keys(found)
    entropy = found.entropy[..., 0]
    plain = ((entropy > below - _NATS) & (entropy < above + _NATS)).all(1)
    if (i := _largest(np.where(plain, np.nan, misses), _NATS)) is not None:
        law = found.laws[int(found.best[i])].spelling
        keeps = f"None of {len(found.laws)} laws keeps {found.name(i)} well: the best, {law},"
        if len(found.laws) == 1:
            keeps = f"The standard scale keeps {found.name(i)} least: it"
        said.append(f"{keeps} misses by {misses[i]:.2f} nat.")
    return said


def _strong_keys(found: Report) -> list[str]:
    """The heads that give most to the first key and to any key; one sentence if both are the same."""
    last, said = int(found.lengths[-1]), []
    weight = _beyond(found.first_key_weight[:, -1], found.uniform_first_key[:, -1])
    share = _beyond(found.received[:, -1], found.uniform_received[:, -1])
    first, most = _largest(weight), _largest(share)
    key = -1 if most is None else int(found.received_by[most, -1])
    one = first is not None and first == most and key == 0
    if first is not None:
        rows, every = f"{weight[first]:.1%}", f"{share[first]:.1%}"
        also = f", {every} of all weight" if one and every != rows else ""
        said.append(
            f"{found.name(first)} gives the first key the most: {rows} of the weight at {last}{also}."
        )
    if most is not None and not one:
        text = f"key {key}, {share[most]:.1%} of all weight"
        said.append(f"{found.name(most)} has the key that gets the most: {text}.")
    return said


def _explained(random: Array, equal: Array) -> tuple[Array, Array]:
    """The range of random keys and equal weights."""
    return np.fmin(random, equal), np.fmax(random, equal)


def _beyond(weights: Array, equal: Array) -> Array:
    """Weights far above those of equal scores; NaN elsewhere."""
    return np.where(weights > np.maximum(_TIMES * equal, _SHARE), weights, np.nan)


def differences(first: Report, second: Report, names: tuple[str, str]) -> list[str]:
    """The heads that differ most in entropy and growth between two reports, and the numbers of changes."""
    n, change = int(first.lengths[-1]), second.entropy[:, -1, 0] - first.entropy[:, -1, 0]
    if (i := _largest(np.abs(change))) is None:
        return []
    growth = second.growth - first.growth
    most, faster = (float(np.abs(x).max(initial=0, where=np.isfinite(x))) for x in (change, growth))
    if not (most or faster):
        return [f"No head differs, in its entropy at {n} or in its growth."]
    if max(most, faster) < _SAME:
        return [
            f"No head differs by {_SAME} nat in its entropy at {n}, "
            f"or by {_SAME} nat a doubling in its growth."
        ]
    said = []
    if most >= _SAME:
        keys = _apart(first.effective_keys[i, -1], second.effective_keys[i, -1], _few)
        each = f"{keys[0]} effective keys in {names[0]}, {keys[1]} in {names[1]}"
        said.append(f"{first.name(i)} differs most at {n}: {each}.")
    wider, sharper = int((change > _SAME).sum()), int((change < -_SAME).sum())
    said.append(
        f"At {n}, {wider} of {len(change)} heads are wider in {names[1]} and {sharper} are sharper, "
        f"by more than {_SAME} nat; the mean entropy changes by {_change(float(np.nanmean(change)))}."
    )
    if (i := _largest(np.abs(growth), _SAME)) is not None:
        rise = _apart(first.growth[i], second.growth[i], lambda x, digits: f"{x:+.{2 + digits}f}")
        ends = f"{rise[0]} nat a doubling in {names[0]}, {rise[1]} in {names[1]}"
        said.append(f"The growth of {first.name(i)} differs most: {ends}.")
    return said


def _apart(a: float, b: float, text: Callable[[float, int], str]) -> tuple[str, str]:
    """Texts of two numbers, with enough digits to tell them apart; `text` takes the extra digits."""
    pairs = ((text(a, digits), text(b, digits)) for digits in range(4))
    return next((pair for pair in pairs if pair[0] != pair[1]), (text(a, 3), text(b, 3)))


def _change(by: float) -> str:
    """A change in nats, never -0.000."""
    return f"{by:+.3f} nat" if abs(by) >= 0.0005 else "less than 0.001 nat"


def _largest(values: Array, least: float = -np.inf) -> int | None:
    """Index of the largest number above `least`; None without one."""
    if not (values > least).any():
        return None
    return int(np.nanargmax(values))


def _heads(number: int) -> str:
    return "1 head" if number == 1 else f"{number} heads"


def _two(number: float) -> str:
    """A number to two decimals, never -0.00."""
    return f"{round(float(number), 2) + 0.0:.2f}"


def _moves(by: float) -> str:
    return f"{'falls' if round(by, 2) < 0 else 'rises'} by {abs(by):.2f}"


def _few(keys: float, more: int = 0) -> str:
    """A number of keys to two or three digits, or `more`."""
    return f"{keys:.{more + (keys < 100)}f}"
