# SPDX-License-Identifier: BSD-3-Clause
"""Laws that depend on the model's shape, not on the length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ._base import Channels
from ._closed_form import ClosedForm
from ._meaning import NMeans
from ._parameters import acting_channels, greater_than, integer_at_least
from ._registry import built_in


@built_in
@dataclass(frozen=True)
class MuP(ClosedForm):
    """1 / head_dim: the scale that maximal update parametrisation asks for.

    Examples
    --------
    >>> MuP().scale(512, 64), MuP().multiplier(512, 64)
    (0.015625, 0.125)
    """

    name: ClassVar[str] = "mup"
    n_means: ClassVar[NMeans] = "not used"
    formula: ClassVar[str] = "1 / head_dim"
    source: ClassVar[str] = "Yang et al. 2022, arXiv 2203.03466; microsoft/mup"
    used_by: ClassVar[str] = "models trained with muP; Inkling as the base of its temperature"
    remark: ClassVar[str] = "the README of microsoft/mup writes 8/d, which is 1/sqrt(d) at head_dim 64"


@built_in
@dataclass(frozen=True)
class LayerIndex(ClosedForm):
    """1 / ((layer + 1) sqrt(head_dim)).

    Parameters
    ----------
    layer : int
        Counted from 0.

    Examples
    --------
    >>> LayerIndex(3).multiplier(512, 64)
    0.25
    """

    layer: int
    name: ClassVar[str] = "layer_index"
    n_means: ClassVar[NMeans] = "not used"
    config_keys: ClassVar[tuple[str, ...]] = ("scale_attn_by_inverse_layer_idx",)
    formula: ClassVar[str] = "1 / ((layer + 1) * sqrt(head_dim))"
    source: ClassVar[str] = "Karamcheti et al. 2021, Mistral, a journey towards reproducible training"
    used_by: ClassVar[str] = "GPT-2 of Stanford CRFM, Megatron-LM"
    remark: ClassVar[str] = "against overflow in float16; the layers are numbered from 0"

    def __post_init__(self) -> None:
        integer_at_least(self, "layer", 0)


@built_in
@dataclass(frozen=True)
class DisentangledScale(ClosedForm):
    """1 / sqrt(terms * head_dim): for a score that is a sum of several dot products.

    Parameters
    ----------
    terms : int
        1 + the number of relative score terms; at least 1. DeBERTa with both has 3.

    Examples
    --------
    >>> round(DisentangledScale(3).multiplier(512, 64), 6)
    0.57735
    """

    terms: int
    name: ClassVar[str] = "disentangled_scale"
    n_means: ClassVar[NMeans] = "not used"
    config_keys: ClassVar[tuple[str, ...]] = ("pos_att_type",)
    formula: ClassVar[str] = "1 / sqrt(terms * head_dim)"
    source: ClassVar[str] = "He et al. 2020, DeBERTa, arXiv 2006.03654, section 3.1"
    used_by: ClassVar[str] = "DeBERTa (3 terms: content to content, content to position, position to content)"

    def __post_init__(self) -> None:
        integer_at_least(self, "terms", 1)


@built_in
@dataclass(frozen=True)
class LatentScale(ClosedForm):
    """sqrt(hidden / rank) / sqrt(head_dim) on the channels that a latent of that rank feeds.

    Parameters
    ----------
    hidden : float
        Width of the model; > 0.
    rank : float
        Width of the latent; > 0.
    channels : {"latent", "all"}, default "latent"
        "all" says that the latent feeds every channel of the head.

    Examples
    --------
    >>> LatentScale(hidden=6144, rank=1536).multiplier(512, 192)
    2.0
    """

    hidden: float
    rank: float
    channels: Channels = "latent"  # type: ignore[misc]  # of the instance here, of the class for others
    name: ClassVar[str] = "latent_scale"
    n_means: ClassVar[NMeans] = "not used"
    config_keys: ClassVar[tuple[str, ...]] = ("q_lora_rank", "kv_lora_rank")
    formula: ClassVar[str] = "sqrt(hidden / rank) / sqrt(head_dim)"
    source: ClassVar[str] = "LongCat-Flash technical report 2025, arXiv 2509.01322"
    used_by: ClassVar[str] = "LongCat-Flash, on the query's latent and on the key's"
    remark: ClassVar[str] = "a factor of q and one of k: where both channels come from latents, both apply"

    def __post_init__(self) -> None:
        greater_than(self, "hidden", 0)
        greater_than(self, "rank", 0)
        acting_channels(self, "latent")
