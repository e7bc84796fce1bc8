# SPDX-License-Identifier: BSD-3-Clause
"""What a family of models is to the audit: a row of a table whose cells are small rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from .._keys import Keys, check_number
from .._layer import Term

QKNorm = Literal["none", "before rotation", "after rotation"]


class Layer(NamedTuple):
    """One layer as the rules see it."""

    keys: Keys
    number: int  # from 0
    kind: str
    kinds: Sequence[str]  # of all layers
    family: Family
    head_size: str = ""  # the keys that its head size comes from, for the column "from" of a plan

    @property
    def total(self) -> int:
        """Number of layers of the model."""
        return len(self.kinds)


class Window(NamedTuple):
    """The most keys that a query sees, and the key of the config that says so."""

    keys: int | None
    origin: str


#: The window of a layer without one.
ALL_KEYS = Window(None, "")


class Rope(NamedTuple):
    """Parameters of the rotary positions of a layer."""

    kind: str
    parameters: Mapping[str, Any]
    name: str  # the key of the config that they come from, for messages

    def number(self, key: str) -> float | None:
        """The value of a key as a number above 0; None where the key is null or missing."""
        value = self.parameters.get(key)
        return None if value is None else check_number(f"{self.name}.{key}", value, above=0)

    def origin(self, *keys: str) -> str:
        """The keys among these that the config gives, with their values."""
        seen = [f"{key} = {self.parameters[key]}" for key in keys if self.parameters.get(key) is not None]
        return f"{self.name}: " + ", ".join([f"type {self.kind}", *seen])


#: How the config class reads the parameters of rotary positions: rope.py.
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
    """How one family of models finds its scale.

    Attributes
    ----------
    types : tuple of str
        Model types.
    head_dim : callable
        Channels of q and k in a layer.
    rotated : callable
        How many of head_dim channels rotary positions turn, where the layer has rotary positions.
    rotates : callable
        Whether the layer has rotary positions.
    base : callable
        The scale before other factors.
    extra : tuple of callables
        Further factors; one that does not apply returns None. Temperatures that act on layers without
        rotary positions only are in ``nope_extra``.
    rope_extra : tuple of callables
        Further factors whose keys are among the rope parameters.
    own_rope : callable or None
        What the rotary positions bring, where it is not the common rule.
    softcap : tuple of str
        Keys of the soft-cap, the first that is given; empty if the family has none.
    window : callable
        The most keys that a query of the layer sees.
    sink : callable
        Whether the layer has attention sinks.
    qk_norm : callable
    count : callable
        Number of layers.
    kinds : callable
        (keys, number of layers) to the kinds of the layers, where the config does not list them.
    listed : callable
        What the config class makes of the kinds that the config lists.
    rope_key : callable
        The entry of nested rope parameters that a layer takes.
    spelling : str
        How the parameters of rotary positions are read.
    refusal : callable
        Why a layer has no answer, or None.
    notes : tuple of str
        What else a reader of the plan should know.
    """

    types: tuple[str, ...]
    head_dim: Callable[[Layer], int]
    rotated: Callable[[Layer, int], int]
    rotates: Callable[[Layer], bool]
    base: Callable[[Layer, int], Term]
    extra: tuple[Callable[[Layer, int], Term | None], ...]
    nope_extra: tuple[Callable[[Layer, int], Term | None], ...]
    rope_extra: tuple[Callable[[Layer, Rope], Term | None], ...]
    own_rope: Callable[[Layer, Rope], Term | None] | None
    softcap: tuple[str, ...]
    window: Callable[[Layer], Window]
    sink: Callable[[Layer], bool]
    qk_norm: Callable[[Layer], QKNorm]
    count: Callable[[Keys], int]
    kinds: Callable[[Keys, int], list[str]]
    listed: Callable[[list[str]], list[str]]
    rope_key: Callable[[Layer], str]
    spelling: Spelling
    refusal: Callable[[Layer], str | None]
    notes: tuple[str, ...]
