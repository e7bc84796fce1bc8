# SPDX-License-Identifier: BSD-3-Clause
"""The plain family of models, 1/sqrt(head_dim) on all channels of all layers, and how rows differ from it."""

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
    if not layer.keys.code.rotates_partly:
        return head_dim
    turned = int(head_dim * partial_rotary_factor(layer, head_dim))
    return min(head_dim, turned + turned % 2)  # pairs of channels


def refused(reason: str) -> Callable[[Layer], str]:
    return lambda layer: reason


def in_weights(reason: str) -> Callable[[Layer], str]:
    """The rule that no layer has an answer, because it is in the weights of the checkpoint."""
    return refused(f"{reason} (the safetensors have it: attnscale audit CHECKPOINT)")


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
    refusal=lambda layer: None,
    notes=(),
)


def row(types: str, **cells: Any) -> Family:
    """A row of the table for these model types: the plain family with these cells replaced."""
    return replace(PLAIN, types=tuple(types.split()), **cells)


#: Cells of multi-head latent attention.
LATENT: dict[str, Any] = {
    "head_dim": heads.latent,
    "rotated": heads.latent_rotated,
    "rope_extra": (base.mla_yarn,),
}
