# SPDX-License-Identifier: BSD-3-Clause
"""Every head of a model at several lengths, and its share of a cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..._base.tabled import Labelled, Sheet, Tabled
from ..._base.text import counted
from ...calibration.calibration import rows_that_count
from .budget import bits_by_head, mean_renyi2, of_key_heads, tokens_by_head

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .log import AttentionLog

#: Statistics recorded of every row.
STATISTICS = ("entropy", "renyi2", "max_weight", "max_score", "n_visible")


@dataclass(frozen=True, eq=False, repr=False)
class DiagnosedHeads(Tabled):
    """Every head at every length; :meth:`Diagnosis.heads` makes it.

    Attributes
    ----------
    bits, tokens : float or None
        Average share of a key head.
    """

    bits: float | None
    tokens: float | None
    _rows: tuple[dict[str, Any], ...]
    _named: bool = False  # whether modules are shown, not numbers of layers

    def rows(self) -> list[dict[str, Any]]:
        """One row for each length, layer and head; entropies in nats."""
        return list(self._rows)

    def _variables(self) -> dict[str, Labelled]:
        return {
            name: Labelled(("line",), [row[name] for row in self._rows], "nat" if _is_entropy(name) else "")
            for name in self._rows[0]
        }

    def _sheet(self, nats: float, unit: str) -> Sheet:
        hidden = ("layer" if self._named else "module", "kind", "uniform_entropy", "key_head")
        names = [name for name in self._rows[0] if name not in hidden]
        digits = {"effective_keys": ".1f", "bits": ".2f"}

        def cell(row: Mapping[str, Any], name: str) -> str:
            value = row[name] / nats if _is_entropy(name) else row[name]
            if name == "n" and not value:  # for images
                return "-"
            return str(value) if isinstance(value, (int, str)) else format(value, digits.get(name, ".3f"))

        header = [
            name.replace("entropy under ", "times ").replace("effective_keys", "keys") for name in names
        ]
        notes = [
            f"Means over {rows_that_count(is_causal=False)} of each head ({unit}), as the model has it;",
            "keys: exp of the mean entropy; max_score: the largest.",
        ]
        if any(name.startswith("times ") for name in header):
            notes.append("times LAW: the entropy with the model's own scale multiplied by the law.")
        if self.bits is not None:
            notes.append(f"bits: of a number in the cache, {self.bits:g} on average over the key heads.")
        if self.tokens is not None:
            kept = counted(f"{self.tokens:g}", "token")
            notes.append(f"tokens: to keep in the cache, {kept} on average over the key heads.")
        rows = [tuple(cell(row, name) for name in names) for row in self._rows]
        return Sheet("DiagnosedHeads", tuple(header), rows, tuple(notes))


def _is_entropy(name: str) -> bool:
    return name in ("entropy", "renyi2", "uniform_entropy") or name.startswith("entropy under ")


class Heads(NamedTuple):
    """Measurements of the heads at each length."""

    values: dict[str, NDArray[np.float64]]  # by name, shape (lengths, layers, heads)
    most_keys: NDArray[np.int64]  # largest number of keys of a row, shape (lengths, layers)
    key_of: list[tuple[int, ...]]  # the key head of each head, for each layer; empty if heads are unknown

    def shares(self, index: int, bits: float | None, tokens: float | None) -> dict[str, list[NDArray[Any]]]:
        """Share of the budget for each key head of each layer at one length."""
        key_heads = [len({*each}) for each in self.key_of]
        ends = np.cumsum(key_heads)[:-1]
        found: dict[str, list[NDArray[Any]]] = {}

        def gathered(name: str, how: Any) -> NDArray[np.float64]:
            layers = zip(self.values[name][index], self.key_of, strict=True)
            return np.concatenate([of_key_heads(values, key_of, how) for values, key_of in layers])

        if bits is not None:
            found["bits"] = np.split(bits_by_head(gathered("renyi2", mean_renyi2), bits), ends)
        if tokens is not None:
            keys = np.exp(gathered("entropy", np.max))
            most = np.repeat(self.most_keys[index], key_heads)
            found["tokens"] = np.split(tokens_by_head(keys, most, tokens), ends)
        return found


def heads_of(log: AttentionLog) -> Heads:
    """The heads of a model recorded at one length, with STATISTICS."""
    values = {name: side_by_side(log.means(name))[None] for name in ("entropy", "renyi2", "max_weight")}
    largest = {name: _of_texts(log, "max_score", name).max(axis=0) for name in log.modules}
    values["max_score"] = side_by_side(largest)[None]
    most = np.array([[_of_texts(log, "n_visible", name).max() for name in log.modules]])
    key_of = [() if each.axes == "unknown" else each.key_of for each in log.calls.values()]
    return Heads(values, most, key_of)


def joined(parts: Sequence[Heads]) -> Heads:
    """The heads of several lengths, concatenated."""
    values = {name: np.concatenate([part.values[name] for part in parts]) for name in parts[0].values}
    return Heads(values, np.concatenate([part.most_keys for part in parts]), parts[0].key_of)


def side_by_side(layers: Mapping[str, NDArray[Any]]) -> NDArray[np.float64]:
    """The heads of all layers, shape (layers, heads), with NaN where a layer has fewer."""
    most = max(map(len, layers.values()))
    rows = [
        np.pad(each.astype(np.float64), (0, most - len(each)), constant_values=np.nan)
        for each in layers.values()
    ]
    return np.stack(rows)


def _of_texts(log: AttentionLog, statistic: str, name: str) -> NDArray[Any]:
    """The rows of a call that belong to texts, shape (rows, heads)."""
    found: NDArray[Any] = np.moveaxis(log[statistic][name], 1, -1)[log.rows[name]]
    return found
