# SPDX-License-Identifier: BSD-3-Clause
"""``attnscale diagnose --per-head`` and ``--budget``: every head as a row of a table, of CSV and of JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .._io import InputError
from .._tables.tabled import Unit, nats_per
from .._tables.text import counted, to_text

if TYPE_CHECKING:
    from ..torch import AttentionLog

#: The "schema" of what the command prints as JSON; its fields are in diagnose.schema.json beside this file.
SCHEMA = "attnscale.diagnose/1"

#: What is recorded of every row.
STATISTICS = ("entropy", "renyi2", "max_weight", "max_score", "n_visible")

_NATS = ("entropy", "renyi2")


class Heads(NamedTuple):
    """What the heads did at each length."""

    values: dict[str, NDArray[np.float64]]  # by name, shape (lengths, layers, heads)
    most_keys: NDArray[np.int64]  # that a row of the layer sees, shape (lengths, layers)
    key_heads: list[int]  # of each layer


class Measured(NamedTuple):
    """What the layers did at each length."""

    entropy: dict[
        str, NDArray[np.float64]
    ]  # under each law, shape (lengths, layers, heads); NaN: no such head
    equal: NDArray[np.float64]  # of equal weights on the visible keys, shape (lengths, layers)
    sinks: tuple[int, ...]  # layers whose entropy counts a sink
    modules: list[str]  # the name of each layer's attention in the model
    kinds: list[str]  # "self" or "cross" attention, of each layer
    padding: tuple[int, int]  # rows that were left out as padding, of how many, at the largest length
    heads: Heads | None = None  # more of every head, where it was asked for

    @property
    def layers(self) -> tuple[int, ...]:
        """A number for each layer, that in the names of the modules where it tells them apart."""
        from ..torch._models.by_name import layer_numbers

        return layer_numbers(self.modules)

    @property
    def groups(self) -> dict[tuple[str, str], list[int]]:
        """The layers of each tower and kind, by both; "" where there is one tower, or one kind."""
        from ..torch._models.by_name import towers_of

        towers = towers_of(self.modules)
        several = len(set(self.kinds)) > 1
        found: dict[tuple[str, str], list[int]] = {}
        for layer, (name, kind) in enumerate(zip(self.modules, self.kinds, strict=True)):
            found.setdefault((towers[name], kind if several else ""), []).append(layer)
        return found if len(found) > 1 else {("", ""): [*range(len(self.modules))]}


def heads_of(log: AttentionLog) -> Heads:
    """The heads of a model that was recorded at one length, with STATISTICS."""
    values = {name: side_by_side(log.means(name))[None] for name in ("entropy", "renyi2", "max_weight")}
    largest = {name: _of_texts(log, "max_score", name).max(axis=0) for name in log.modules}
    values["max_score"] = side_by_side(largest)[None]
    most = np.array([[_of_texts(log, "n_visible", name).max() for name in log.modules]])
    return Heads(values, most, [*log.key_heads.values()])


def _of_texts(log: AttentionLog, statistic: str, name: str) -> NDArray[Any]:
    """The rows of a call that are of texts, shape (rows, heads)."""
    found: NDArray[Any] = np.moveaxis(log[statistic][name], 1, -1)[log.rows[name]]
    return found


def side_by_side(layers: Mapping[str, NDArray[Any]]) -> NDArray[np.float64]:
    """The heads of all layers, shape (layers, heads), with NaN where a layer has no such head."""
    most = max(map(len, layers.values()))
    rows = [
        np.pad(each.astype(np.float64), (0, most - len(each)), constant_values=np.nan)
        for each in layers.values()
    ]
    return np.stack(rows)


def joined(parts: Sequence[Heads]) -> Heads:
    """The heads of several lengths, one length after another."""
    values = {name: np.concatenate([part.values[name] for part in parts]) for name in parts[0].values}
    return Heads(values, np.concatenate([part.most_keys for part in parts]), parts[0].key_heads)


def head_rows(
    lengths: Sequence[int], found: Measured, heads: Heads, laws: Sequence[str], budget: Budget
) -> list[dict[str, Any]]:
    """One row for each length, layer and head; entropies in nats."""
    rows, numbers = [], found.layers
    for index, n in enumerate(lengths):
        shares = _shares(heads, index, budget)
        for layer, module in enumerate(found.modules):
            n_heads = int((~np.isnan(heads.values["entropy"][index, layer])).sum())
            for head in range(n_heads):
                where = (index, layer, head)
                values = {name: float(array[where]) for name, array in heads.values.items()}
                key_head = head * heads.key_heads[layer] // n_heads
                rows.append(
                    {"n": n, "layer": numbers[layer], "module": module, "kind": found.kinds[layer]}
                    | {"head": head, "key_head": key_head}
                    | {"entropy": values.pop("entropy")}
                    | {"effective_keys": float(np.exp(heads.values["entropy"][where]))}
                    | values
                    | {"uniform_entropy": float(found.equal[index, layer])}
                    | {f"entropy under {law}": float(found.entropy[law][where]) for law in laws}
                    | {name: each[layer][key_head].item() for name, each in shares.items()}
                )
    return rows


def _shares(heads: Heads, index: int, budget: Budget) -> dict[str, list[NDArray[Any]]]:
    """What each key head of each layer gets of the budget at one length."""
    ends = np.cumsum(heads.key_heads)[:-1]
    found: dict[str, list[NDArray[Any]]] = {}

    def gathered(name: str, how: Any) -> NDArray[np.float64]:
        layers = zip(heads.values[name][index], heads.key_heads, strict=True)
        there = [(values[~np.isnan(values)], count) for values, count in layers]
        return np.concatenate([_of_key_heads(values, count, how) for values, count in there])

    if budget.bits is not None:
        found["bits"] = np.split(bits_by_head(gathered("renyi2", mean_renyi2), budget.bits), ends)
    if budget.tokens is not None:
        keys = np.exp(gathered("entropy", np.max))
        most = np.repeat(heads.most_keys[index], heads.key_heads)
        found["tokens"] = np.split(tokens_by_head(keys, most, budget.tokens), ends)
    return found


def head_table(rows: Sequence[Mapping[str, Any]], unit: Unit, budget: Budget, *, named: bool = False) -> str:
    """The rows as a table, with the names of the modules or the numbers of the layers."""
    nats = nats_per(unit)
    hidden = ("layer" if named else "module", "kind", "uniform_entropy", "key_head")
    names = [name for name in rows[0] if name not in hidden]
    entropies = {name for name in names if name in _NATS or name.startswith("entropy under ")}
    digits = {"effective_keys": ".1f", "bits": ".2f"}

    def cell(row: Mapping[str, Any], name: str) -> str:
        value = row[name] / nats if name in entropies else row[name]
        if name == "n" and not value:  # of images
            return "-"
        return str(value) if isinstance(value, (int, str)) else format(value, digits.get(name, ".3f"))

    titles = [name.removeprefix("entropy under ").replace("effective_keys", "keys") for name in names]
    notes = [
        f"Means over the rows of each head ({unit}); keys: exp of the mean entropy; max_score: the largest.",
        "A law's column is the entropy with the model's own scale multiplied by it.",
    ]
    if budget.bits is not None:
        notes.append(f"bits: of a number in the cache, {budget.bits:g} on average over the key heads.")
    if budget.tokens is not None:
        kept = counted(f"{budget.tokens:g}", "token")
        notes.append(f"tokens: to keep in the cache, {kept} on average over the key heads.")
    table = to_text(titles, [[cell(row, name) for name in names] for row in rows])
    return "\n".join([*notes, "", table])


class Budget(NamedTuple):
    """What a key head gets on average; None is not shared out."""

    bits: float | None = None
    tokens: float | None = None


def read_budget(given: Sequence[str]) -> Budget:
    """The values of ``--budget``: bits=4, tokens=512, or both."""
    found: dict[str, float] = {}
    for text in given:
        name, _, value = text.partition("=")
        try:
            number = float(value)
        except ValueError:
            number = np.nan
        if name not in Budget._fields or name in found or not 0 < number < np.inf:
            rule = "must be bits=B, tokens=N or both, with numbers above 0"
            raise InputError(f"--budget {rule}, got {' '.join(given)}")
        found[name] = number
    return Budget(**found)


def bits_by_head(renyi2: NDArray[np.float64], mean: float) -> NDArray[np.float64]:
    """Bits of a number in the cache of each key head: b + (mean of H_2 - H_2 of the head) / 4, H_2 in bits.

    Parameters
    ----------
    renyi2 : ndarray
        Renyi entropy of order 2 of each key head, in nats.
    mean : float
        Bits of a number on average, b.
    """
    in_bits = renyi2 / np.log(2)
    shared: NDArray[np.float64] = mean + (in_bits.mean() - in_bits) / 4
    return shared


def tokens_by_head(
    effective_keys: NDArray[np.float64], most: NDArray[np.int64], mean: float
) -> NDArray[np.int64]:
    """Tokens to keep of each key head, in proportion to its effective keys, at least 1 and at most `most`.

    What a head cannot use goes to the others. The tokens add up to the mean times the heads, rounded, or to
    the sum of `most` where that is less.
    """
    total = min(round(mean * len(most)), int(most.sum()))
    # The factor of the effective keys is the root of an increasing function, between two that enclose it.
    low, high = 0.0, float((most / effective_keys).max())
    for _ in range(200):
        middle = (low + high) / 2
        less = np.clip(middle * effective_keys, 1, most).sum() < total
        low, high = (middle, high) if less else (low, middle)
    shares = np.clip(high * effective_keys, 1, most)
    whole = np.floor(shares).astype(np.int64)
    left = max(total - int(whole.sum()), 0)
    # The largest remainders are rounded up, until the sum is right.
    for place in np.argsort(whole - shares, kind="stable")[:left]:
        whole[place] += whole[place] < most[place]
    return whole


def _of_key_heads(values: NDArray[Any], key_heads: int, how: Any) -> NDArray[np.float64]:
    """Combine what the query heads that read each key head have."""
    found: NDArray[np.float64] = how(values.reshape(key_heads, -1), axis=1)
    return found


def mean_renyi2(renyi2: NDArray[np.float64], axis: int) -> NDArray[np.float64]:
    """H_2 of several heads that share keys: that of the mean of their sums of squared weights."""
    return np.asarray(-np.log(np.exp(-renyi2).mean(axis=axis)))
