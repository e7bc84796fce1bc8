# SPDX-License-Identifier: BSD-3-Clause
"""Quantities that engines and monitors call the entropy, each with its numbers for a call."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from .._base.checks import as_array, choose
from .._call.call import Call
from .._call.names import has_names
from .._call.weights import normalizer_of
from .forward import attention_statistics
from .weights import attention_weights

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Rows = NDArray[np.float64]

#: Units by name: what a row in nats is multiplied by, or None for exp(entropy).
_UNITS = {"nats": 1.0, "bits": 1 / math.log(2), "base 10": 1 / math.log(10), "effective keys": None}
#: Numbers that are usually added to a weight before the logarithm; the last is eps of float32.
_EPS = (1e-12, 1e-10, 1e-9, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, float(np.finfo(np.float32).eps))

#: Rates of dropout that are tried.
_RATES = (0.5, 0.1, 0.2, 0.25, 0.3, 0.4, 0.05, 0.15)
#: The most keys of a row of which every subset is tried.
_FEW_KEYS = 10


@dataclass(frozen=True)
class EntropyQuantity:
    """A quantity that stands for the entropy -sum p ln p of rows of weights.

    Attributes
    ----------
    unit : {"nats", "bits", "base 10", "effective keys"}
        "effective keys": the exponential of the entropy.
    over : {"visible keys", "keys"}, int or None
        What n the entropy is divided by the logarithm of: the keys that the row sees, all keys, hidden ones
        included, or a number that was found. None: the entropy is not normalised.
    negated : bool
        True: the sign is reversed, sum p ln p.
    slip : str
        What the quantity has otherwise than the entropy of the call, in words; "" for nothing.
    eps : float or None
        The number of a slip with eps in it.
    rows : str
        "each", or what one number is of: "mean over queries", "mean row over heads and queries" (the entropy
        of the averaged weights).
    empty : float or None
        Value of rows without keys, if rows are given and all hold the same.

    Examples
    --------
    >>> import attnscale as at
    >>> print(at.EntropyQuantity(unit="bits", slip="the sink is missing"))
    bits, the sink is missing
    """

    unit: Literal["nats", "bits", "base 10", "effective keys"] = "nats"
    over: Literal["visible keys", "keys"] | int | None = None
    negated: bool = False
    slip: str = ""
    eps: float | None = None
    rows: str = "each"
    empty: float | None = None

    def __post_init__(self) -> None:
        choose("unit", self.unit, tuple(_UNITS))

    def __str__(self) -> str:
        parts: list[str] = [self.unit]
        if self.over is not None:
            counted = {"visible keys": "the number of visible keys", "keys": "the number of all keys"}
            parts = [f"over ln of {counted.get(str(self.over), self.over)}"]
        parts += ["negated"] * self.negated
        parts += [self.slip] * bool(self.slip)
        parts += [] if self.eps is None else [f"eps = {self.eps:.3g}"]
        parts += [] if self.rows == "each" else [self.rows]
        parts += [] if self.empty is None else [f"rows without keys {self.empty:.10g}"]
        return ", ".join(parts)

    @property
    def is_entropy(self) -> bool:
        """Whether it is the entropy of the call, in whatever unit."""
        averaged = self.rows == "each" or self.rows.startswith("mean over")
        counts_all = averaged and not self.rows.endswith("more than one key")
        return not self.slip and self.over in (None, "visible keys") and counts_all


def departures(quantity: EntropyQuantity) -> int:
    """The number of ways in which a quantity differs from the entropy in nats, or from its mean."""
    unit = {"nats": 0, "bits": 1}.get(quantity.unit, 2)
    over = 2 if isinstance(quantity.over, int) else quantity.over is not None
    averaged = " of " in quantity.rows or quantity.rows.startswith("mean row")
    return unit + over + quantity.negated + bool(quantity.slip) + averaged


class Weighted(NamedTuple):
    """The weights of a call in float64: those of its keys and of its sink, and how many keys a row sees."""

    p: Rows  # (..., heads, n_queries, n_keys)
    sink: Rows
    n_visible: NDArray[np.int64]
    head_dim: int

    @property
    def entropy(self) -> Rows:
        return entropy_of(self.p) + entropy_of(self.sink[..., None])


def entropy_of(p: Rows) -> Rows:
    """-sum p ln p over the last axis, with 0 ln 0 = 0."""
    found: Rows = -(p * np.log(np.where(p > 0, p, 1))).sum(-1) + 0.0
    return found


def weigh_call(query: Any, key: Any, options: dict[str, Any]) -> Weighted:
    """The weights of a call in float64; its arrays may have names."""
    q, k = (_wide(name, x) for name, x in (("query", query), ("key", key)))
    call = Call(q, k, None, options).read()
    n_visible = np.broadcast_to(call.visible_keys(), call.row_shape)
    p = as_array("weights", attention_weights(q, k, max_bytes=2**62, **options)).astype(np.float64)
    if p.ndim == 2:  # one head
        p, n_visible = p[None], n_visible[None]
    rest = np.maximum(1 - p.sum(-1), 0) if has_sink(options) else np.zeros(p.shape[:-1])
    return Weighted(p, rest, n_visible, call.extents.head_dim)


def _wide(name: str, array: Any) -> Any:
    return array if has_names(array) else as_array(name, array).astype(np.float64)


def has_sink(options: dict[str, Any]) -> bool:
    """Whether the softmax of the call has a sink."""
    from ..normalizers import Sink, SoftmaxN

    return isinstance(normalizer_of(options), (Sink, SoftmaxN))


def slipped(
    query: Any, key: Any, options: dict[str, Any], of: Weighted
) -> Iterator[tuple[EntropyQuantity, Rows]]:
    """The entropy in nats of each row, and what it is with each slip that has no eps."""
    yield EntropyQuantity(), of.entropy
    softmax = normalizer_of(options) is None or has_sink(options)
    if softmax:
        yield EntropyQuantity(slip="exponential in base 2"), _in_base_2(of)
    if has_sink(options):
        yield EntropyQuantity(slip="the sink's term is left out"), entropy_of(of.p)
    for says, changed in other_calls(of.head_dim, options):
        try:
            other = weigh_call(query, key, changed)
        except (TypeError, ValueError):
            continue
        if other.p.shape == of.p.shape:
            yield EntropyQuantity(slip=says), other.entropy
    if softmax and (of.n_visible < of.p.shape[-1]).any():
        yield EntropyQuantity(slip="hidden keys count with score 0"), _with_hidden(query, key, options, of)
    if (of.p == 0).any():
        with_nan = np.where((of.p == 0).any(-1), np.nan, of.entropy)
        yield EntropyQuantity(slip="0 ln 0 is NaN"), with_nan
    if softmax and not has_sink(options):
        more = weigh_call(query, key, {**options, "normalizer": "softmax_1"})
        yield EntropyQuantity(slip="a sink of logit 0 counts"), more.entropy
        yield EntropyQuantity(slip="a sink of logit 0 counts, without its term"), entropy_of(more.p)


def _in_base_2(of: Weighted) -> Rows:
    """Entropy of weights 2^s over their sum, from those of e^s."""
    p, sink = of.p ** math.log(2), of.sink ** math.log(2)
    total = p.sum(-1) + sink
    total = np.where(total > 0, total, 1)
    return entropy_of(p / total[..., None]) + entropy_of((sink / total)[..., None])


def _with_hidden(query: Any, key: Any, options: dict[str, Any], of: Weighted) -> Rows:
    """Entropy where each hidden key has the score 0 in place of none."""
    q, k = (_wide(name, x) for name, x in (("query", query), ("key", key)))
    rows = as_array("lse", attention_statistics(q, k, statistics="lse", **options).lse)
    lse = rows.astype(np.float64).reshape(of.n_visible.shape)
    hidden = of.p.shape[-1] - of.n_visible
    with np.errstate(divide="ignore"):
        total = np.logaddexp(lse, np.log(hidden))
    old, one = np.exp(lse - total), np.exp(-total)  # shares of the visible keys, and of one hidden key
    found: Rows = old * of.entropy + entropy_of(old[..., None]) + hidden * entropy_of(one[..., None])
    return found


#: Options that a monitor may not read.
_UNREAD = (
    *("attn_mask", "window", "key_lengths", "document_ids"),
    *("softcap", "distance_scale", "distance_bias", "qk_norm"),
)


def other_calls(width: int, options: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Calls that a monitor may make in place of this one."""
    yield "the scale is not applied", {**options, "scale": 1.0}
    if options.get("scale") is None:
        if width > 1:
            yield "the scale is applied twice", {**options, "scale": 1 / width}
    else:
        yield "scale is not read", {**options, "scale": None}
    for name in _UNREAD:
        if options.get(name) is not None:
            yield f"{name} is not read", {**options, name: None}
    if options.get("is_causal") or options.get("causal") is not None:
        yield "the causal mask is not read", {**options, "is_causal": False, "causal": None}
    if has_sink(options):
        yield "the sink is missing", {**options, "normalizer": "softmax"}
    elif normalizer_of(options) is not None:
        yield "the weights are those of a softmax", {**options, "normalizer": "softmax"}


def with_eps(of: Weighted) -> Iterator[tuple[EntropyQuantity, Rows]]:
    """The entropy with an eps beside each weight, by the place and size of the eps."""
    p = of.p if not of.sink.any() else np.concatenate([of.p, of.sink[..., None]], -1)
    for eps in _EPS:
        added, clamped = np.log(p + eps), np.log(np.maximum(p, eps))
        inside = {
            "eps inside the logarithm, ln(p + eps)": p * added,
            "eps inside the logarithm, ln(max(p, eps))": p * clamped,
            "eps added to the weights, (p + eps) ln(p + eps)": (p + eps) * added,
            "weights not below eps, max(p, eps) ln(max(p, eps))": np.maximum(p, eps) * clamped,
        }
        for says, terms in inside.items():
            yield EntropyQuantity(slip=says, eps=eps), -terms.sum(-1)


def in_units(quantity: EntropyQuantity, nats: Rows, of: Weighted) -> Iterator[tuple[EntropyQuantity, Rows]]:
    """Rows in nats in every unit, over both numbers of keys, and with either sign."""
    n_keys = of.p.shape[-1]
    with np.errstate(all="ignore"):
        every: list[tuple[dict[str, Any], Rows]] = [
            ({"unit": unit}, np.exp(nats) if factor is None else nats * factor)
            for unit, factor in _UNITS.items()
        ]
        every.append(({"over": "visible keys"}, np.where(of.n_visible > 1, nats / np.log(of.n_visible), 0)))
        if n_keys > 1:
            every.append(({"over": "keys"}, nats / math.log(n_keys)))
    for (changes, rows), negated in product(every, (False, True)):
        yield replace(quantity, negated=negated, **changes), -rows if negated else rows


def of_weights(own: Rows, of: Weighted) -> Iterator[tuple[EntropyQuantity, Rows]]:
    """The entropy of weights as an engine returned them, if they are not those of the call."""
    if np.allclose(own, of.p, rtol=0, atol=1e-6):
        return
    kept = (own > 0) & (of.p > 0)
    with np.errstate(invalid="ignore", divide="ignore"):
        factors = np.where(kept, own / of.p, np.nan)[kept & (of.p > 1e-4)]
    factor = float(np.median(factors)) if factors.size else 1.0
    dropped = ((own == 0) & (of.p > 1e-4)).any() and factor > 1 and np.allclose(factors, factor, rtol=1e-2)
    sums = own.sum(-1)[of.n_visible > 0]
    says = f"of the given weights, whose rows sum to {sums.min():.4g} to {sums.max():.4g}"
    yield EntropyQuantity(slip=_after_dropout(1 - 1 / factor) if dropped else says), entropy_of(own)


def _after_dropout(rate: float) -> str:
    return f"of the weights after dropout of {rate:.2g}"


def behind_dropout(of: Weighted, given: Rows, floor: float) -> tuple[EntropyQuantity, Rows] | None:
    """The quantity of weights of which dropout left some, if chance would hardly explain all rows."""
    seen = of.n_visible > 0
    if of.sink.any() or of.n_visible.max() > _FEW_KEYS or given.shape != of.sink.shape:
        return None
    for rate in _RATES:
        written, chance = np.array(given), float(len(_RATES))
        for at in zip(*np.nonzero(seen), strict=True):
            reachable = _entropies_of_subsets(of.p[at][of.p[at] > 0] / (1 - rate))
            written[at] = reachable[np.abs(reachable - given[at]).argmin()]
            if not abs(written[at] - given[at]) <= floor * max(1, abs(given[at])):
                break
            if abs(given[at]) > floor:  # dropout of every weight gives 0, whatever the row
                chance *= min(1, 2 * floor * reachable.size / max(np.ptp(reachable), floor))
        else:
            if chance < 0.01:
                return EntropyQuantity(slip=_after_dropout(rate)), written
    return None


def _entropies_of_subsets(p: Rows) -> Rows:
    """-sum p ln p over every subset of these weights."""
    found = np.zeros(1)
    for term in -p * np.log(p):
        found = np.concatenate([found, found + term])
    return found
