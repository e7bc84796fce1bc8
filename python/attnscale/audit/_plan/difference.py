# SPDX-License-Identifier: BSD-3-Clause
"""What differs between two plans, as a result that shows itself."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..._tables.tabled import Labelled, Sheet, Tabled
from .text import named, ranges

_CHANNELS = ("rotated", "unrotated")


@dataclass(frozen=True)
class Difference:
    """One thing that differs in the same way in some layers of two plans.

    Attributes
    ----------
    layers : tuple of int
        The layers' numbers, from 0; empty if the plans have another number of layers.
    what : str
        "rotated", "unrotated" (the multiplier of those channels), "softcap", "capped score" (what
        multiplies it), "window" (the most keys of a query), "sink", "refusal",
        "channels" (how many, and how many of them rotary positions turn), "norm" (of q and k), "kind"
        (of the layer, as "sliding_attention") or "layers" (how many).
    first_position : int or None
        The first position with another multiplier; None for what does not depend on the position.
    here, there : float, bool, str, int or None
        What the one plan says and what the other, at that position.
    keys_here, keys_there : tuple of str
        The keys of the configs that this comes from, with their values.
    """

    layers: tuple[int, ...]
    what: str
    first_position: int | None
    here: Any
    there: Any
    keys_here: tuple[str, ...] = ()
    keys_there: tuple[str, ...] = ()

    @property
    def ratio(self) -> float | None:
        """Here over there, for a multiplier that is not 0 there."""
        if self.first_position is None or not self.there:
            return None
        return float(self.here / self.there)

    @property
    def source(self) -> str:
        """The keys that only one of the plans names, in words; empty if both name the same ones."""
        if set(self.keys_here) == set(self.keys_there):
            return ""
        here = [key for key in self.keys_here if key not in self.keys_there]
        there = [key for key in self.keys_there if key not in self.keys_here]
        return f"from {'; '.join(here) or 'no key'} here, {'; '.join(there) or 'no key'} there"

    def __str__(self) -> str:
        where = f"layers {named(list(self.layers))}, " if self.layers else ""
        if self.first_position is None:
            return f"{where}{self.what}: {_said(self.here)} here, {_said(self.there)} there"
        ratio = "" if self.ratio is None else f" ({self.ratio:.4f} times)"
        what = f"{self.what} channels" if self.what in _CHANNELS else self.what
        return (
            f"{where}{what}: differs from i = {self.first_position} on: "
            f"{self.here:.7g} here, {self.there:.7g} there{ratio}"
        )


class Differences(Tabled, tuple[Difference, ...]):
    """All that differs between two plans: a tuple of :class:`Difference` that shows itself as a table.

    It is empty, and so false, if the plans agree; ``to_pandas()`` has one line for each difference.

    Examples
    --------
    >>> import attnscale as at
    >>> old = {"model_type": "gemma2", "hidden_size": 4608, "num_attention_heads": 32, "head_dim": 128,
    ...        "num_hidden_layers": 46, "query_pre_attn_scalar": 224}
    >>> new = {**old, "query_pre_attn_scalar": 144}
    >>> at.audit.resolve(old).differences(at.audit.resolve(new))
    1 difference
      layers  what     from i        here       there   ratio
      0-45    rotated       0  0.06681531  0.08333333  0.8018
      layers 0-45: from query_pre_attn_scalar = 224 here, query_pre_attn_scalar = 144 there
    """

    __slots__ = ()

    def __new__(cls, found: Iterable[Difference] = ()) -> Differences:
        """The differences, in the order in which they are shown."""
        return super().__new__(cls, found)

    def _variables(self) -> dict[str, Labelled]:
        columns: dict[str, list[Any]] = {
            "layers": [ranges(list(each.layers)) for each in self],
            "what": [each.what for each in self],
            "first_position": [each.first_position for each in self],
            "here": [each.here for each in self],
            "there": [each.there for each in self],
            "keys_here": ["; ".join(each.keys_here) for each in self],
            "keys_there": ["; ".join(each.keys_there) for each in self],
        }
        return {name: Labelled(("difference",), _objects(values)) for name, values in columns.items()}

    def _sheet(self, nats: float, unit: str) -> Sheet:
        if not self:
            return Sheet("no difference")
        rows = [
            (
                named(list(each.layers)) or "all",
                each.what,
                "-" if each.first_position is None else str(each.first_position),
                _cell(each.here),
                _cell(each.there),
                "-" if each.ratio is None else f"{each.ratio:.4f}",
            )
            for each in self
        ]
        notes = tuple(f"  layers {named(list(each.layers))}: {each.source}" for each in self if each.source)
        title = f"{len(self)} difference{'s' if len(self) != 1 else ''}"
        return Sheet(title, ("layers", "what", "from i", "here", "there", "ratio"), rows, notes)


def _objects(values: list[Any]) -> Any:
    """An array of objects, for numbers, texts and None side by side: NumPy would make one type of them."""
    column = np.empty(len(values), object)
    column[:] = values
    return column


def _cell(value: Any) -> str:
    return f"{value:.7g}" if isinstance(value, float) else _said(value)


def _said(value: Any) -> str:
    """A value of a plan in words."""
    words: dict[Any, str] = {None: "none", True: "yes", False: "no"}
    return words[value] if value is None or isinstance(value, bool) else str(value)
