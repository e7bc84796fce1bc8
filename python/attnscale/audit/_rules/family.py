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
    kinds: Sequence[str]  # of all layers
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
    """Rules by which a family of models finds its scale.

    Attributes
    ----------
    types : tuple of str
        Model types.
    head_dim : callable
        Channels of q and k in a layer.
    rotated : callable
        Number of rotated channels in a layer with rotary positions.
    rotates : callable
        Whether the layer has rotary positions.
    base : callable
        The scale before other factors.
    extra : tuple of callables
        Further factors; one that does not apply returns None. ``nope_extra`` has temperatures that act only
        on layers without rotary positions.
    rope_extra : tuple of callables
        Further factors whose keys are among the rope parameters.
    own_rope : callable or None
        Factors of the rotary positions, if they do not follow the common rule.
    softcap : tuple of str
        Keys of the soft-cap, of which the first given one counts; empty if the family has none.
    window : callable
        Largest number of keys that a query of the layer sees.
    sink : callable
        Whether the layer has attention sinks.
    qk_norm : callable
    count : callable
        Number of layers.
    kinds : callable
        Function from keys and number of layers to the kinds of the layers, if the config does not list them.
    listed : callable
        Function from the kinds in the config to those of the config class.
    rope_key : callable
        The entry of nested rope parameters for a layer.
    spelling : str
        How the parameters of rotary positions are read.
    refusal : callable
        Reason why a layer has no answer, or None.
    notes : tuple of str
        Further remarks for readers of the plan.
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
