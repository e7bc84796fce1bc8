# SPDX-License-Identifier: BSD-3-Clause
"""A family of models: a row of a table with small rules as cells."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from .._keys import Keys, check_number
from .._layer import Term

QKNorm = Literal["none", "before rotation", "after rotation"]


class Layer(NamedTuple):
    """One layer, as input of the rules."""

    keys: Keys
    number: int  # from 0
    kind: str
    kinds: Sequence[str]  # kinds of all layers
    family: Family
    head_size: str = ""  # the keys of its head size, for the column "from" of a plan

    @property
    def total(self) -> int:
        return len(self.kinds)


class Window(NamedTuple):
    """Largest number of keys that a query sees, and its key of the config."""

    keys: int | None
    origin: str


#: The window of a layer without one.
ALL_KEYS = Window(None, "")


class Rope(NamedTuple):
    """Parameters of the rotary positions of a layer."""

    kind: str
    parameters: Mapping[str, Any]
    name: str  # their key of the config, for messages

    def number(self, key: str) -> float | None:
        """The value of a key as a number above 0; None if the key is null or missing."""
        value = self.parameters.get(key)
        return None if value is None else check_number(f"{self.name}.{key}", value, above=0)

    def origin(self, *keys: str) -> str:
        """The given keys among these, with their values."""
        seen = [f"{key} = {self.parameters[key]}" for key in keys if self.parameters.get(key) is not None]
        return f"{self.name}: " + ", ".join([f"type {self.kind}", *seen])


#: Ways in which config classes read the parameters of rotary positions: rope.py.
Spelling = Literal[
    "flat",
    "either",
    "parameters alone",
    "by kind",
    "by kind with shares",
    "over full attention",
    "over every kind",
    "compressed",
    "listed layers",
    "of its own",
    "of GGUF",
]


@dataclass(frozen=True)
class Family:
    """Rules by which a family of models finds its scale."""

    types: tuple[str, ...]  # model types
    head_dim: Callable[[Layer], int]  # channels of q and k in a layer
    rotated: Callable[[Layer, int], int]  # number of rotated channels in a layer with rotary positions
    rotates: Callable[[Layer], bool]  # whether the layer has rotary positions
    base: Callable[[Layer, int], Term]  # the scale before other factors
    extra: tuple[Callable[[Layer, int], Term | None], ...]  # further factors; None: does not apply
    nope_extra: tuple[Callable[[Layer, int], Term | None], ...]  # only without rotary positions
    rope_extra: tuple[Callable[[Layer, Rope], Term | None], ...]  # with keys among the rope parameters
    own_rope: Callable[[Layer, Rope], Term | None] | None  # factors in place of the common rule
    softcap: tuple[str, ...]  # keys of the soft-cap; the first given one counts
    window: Callable[[Layer], Window]  # largest number of keys that a query of the layer sees
    sink: Callable[[Layer], bool]  # whether the layer has attention sinks
    qk_norm: Callable[[Layer], QKNorm]
    count: Callable[[Keys], int]  # number of layers
    kinds: Callable[[Keys, int], list[str]]  # kinds of so many layers, if the config lists none
    listed: Callable[[list[str]], list[str]]  # kinds in the config to those of the config class
    rope_key: Callable[[Layer], str]  # the layer's entry of nested rope parameters
    spelling: Spelling  # how the parameters of rotary positions are read
    refusal: Callable[[Layer], str | None]  # reason why a layer has no answer, or None
    notes: tuple[str, ...]  # further remarks for readers of the plan
