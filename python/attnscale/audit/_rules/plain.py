# SPDX-License-Identifier: BSD-3-Clause
"""The plain family, whose scale is 1/sqrt(head_dim), and how rows differ from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from . import bases as base
from . import heads as heads
from . import kinds as kinds
from . import windows as windows
from .family import Family, Layer
from .rope import partial_rotary_factor


def _share_of_channels(layer: Layer, head_dim: int) -> int:
    """The number of rotated channels by partial_rotary_factor, for the families whose code reads it."""
    if not layer.keys.rotates_partly:
        return head_dim
    turned = int(head_dim * partial_rotary_factor(layer, layer.family, head_dim))
    return min(head_dim, turned + turned % 2)  # pairs of channels


def _answers(layer: Layer) -> str | None:
    return None


def refused(reason: str) -> Callable[[Layer], str]:
    """The rule that no layer has an answer, for this reason."""
    return lambda layer: reason


PLAIN = Family(
    types=(),
    head_dim=heads.key_or_quotient,
    rotated=_share_of_channels,
    rotates=heads.has_rope,
    base=base.standard,
    extra=(),
    nope_extra=(),
    rope_extra=(),
    own_rope=None,
    softcap=(),
    window=windows.by_kind,
    sink=heads.never,
    qk_norm=heads.norm_by_type,
    count=kinds.layer_count,
    kinds=kinds.uniform("full_attention"),
    listed=lambda kinds: kinds,
    rope_key=lambda layer: layer.kind,
    spelling="flat",
    refusal=_answers,
    notes=(),
)


def family(*types: str, **cells: Any) -> Family:
    """A row of the table, which is the plain family but for these cells."""
    return replace(PLAIN, types=types, **cells)
