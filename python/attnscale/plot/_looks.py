# SPDX-License-Identifier: BSD-3-Clause
"""How each line looks: a law has the same colour and dashes in every figure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ._style import COLOURS, MARKERS, law_of

_DASHES: tuple[Any, ...] = (
    "-",
    (0, (5, 1.5)),
    (0, (1.2, 1.2)),
    (0, (6, 1.5, 1.2, 1.5)),
    (0, (4, 1.2, 1.2, 1.2, 1.2, 1.2)),
    (0, (8, 2.5)),
)

# One row for each kind of dashes, one column for each colour: the laws that are drawn together most
# often have solid lines.
_LAWS = (
    ("standard", "log_n", "natural_log_n", "entropy_invariant", "annealed", "unscaled", "ssmax"),
    ("mup", "log_n_from_training", "qwen_log_n", "info_scale", "kappa", "grok_temperature", "asentmax"),
    (
        *("constant", "llama4_temperature", "ministral_temperature", "beam_temperature"),
        *("inkling_temperature", "yarn", "longrope"),
    ),
    (
        *("mla_yarn", "layer_index", "disentangled_scale", "latent_scale"),
        *("scale_invariant", "adaptive_temperature", "critical_scale"),
    ),
    ("per_head", "sparsity_invariant", "variance_invariant", "retrieval", "nope_temperature"),
    ("norm_softmax", "qk_norm_scale", "swin_v2", "lssa", "selective_temperature"),
)
_PLACES = {law: (row, column) for row, names in enumerate(_LAWS) for column, law in enumerate(names)}


class Look(NamedTuple):
    """How a line and its marks look."""

    colour: str
    dashes: Any
    marker: str


def looks(names: Sequence[str]) -> list[Look]:
    """The look of each of these laws or other names, no two alike as long as there are looks left.

    A law by its name has its own. With other parameters, ``log_n(base=64)``, or a second time, it keeps
    the colour and gets the next free dashes; other names get what is free.
    """
    taken: dict[tuple[int, int], None] = {}
    places: list[tuple[int, int] | None] = [None] * len(names)
    for exact in (True, False):
        for index, name in enumerate(names):
            own = _PLACES.get(name if exact else family(name))
            if places[index] is None and own is not None:
                places[index] = _free(taken, own, column=own[1] if not exact or own in taken else None)
    for index, place in enumerate(places):
        places[index] = place or _free(taken, (0, 0))
    return [
        Look(COLOURS[column], _DASHES[row], MARKERS[index % len(MARKERS)][0])
        for index, (row, column) in enumerate(place for place in places if place is not None)
    ]


def family(name: str) -> str:
    """The name of the law that is spelled; `name` itself where it spells none."""
    law = law_of(name)
    return name if law is None else law.name


def _free(
    taken: dict[tuple[int, int], None], wanted: tuple[int, int], column: int | None = None
) -> tuple[int, int]:
    """Take `wanted`, or the first look that is free, in that column if one is given."""
    every = [(row, each) for row in range(len(_DASHES)) for each in range(len(COLOURS))]
    own = [place for place in every if place[1] == column]
    choice = next((place for place in (wanted, *own, *every) if place not in taken), wanted)
    taken[choice] = None
    return choice
