# SPDX-License-Identifier: BSD-3-Clause
"""Laws independent of the length: constants, and functions of the model's shape."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from .._base.spelling import as_literal
from ._base import Channels, ClosedForm, Law, head_parameter
from ._meaning import NMeans
from ._parameters import (
    OneOrPerHead,
    acting_channels,
    finite,
    greater_than,
    integer_at_least,
    one_or_per_head,
)
from ._registry import built_in

if TYPE_CHECKING:
    from numpy.typing import NDArray


@built_in
@dataclass(frozen=True)
class Standard(ClosedForm):
    """1 / sqrt(head_dim): what ``scale=None`` means.

    Examples
    --------
    >>> Standard().scale(512, 64)
    0.125
    """

    name: ClassVar[str] = "standard"
    n_means: ClassVar[NMeans] = "not used"
    formula: ClassVar[str] = "1 / sqrt(head_dim)"
    source: ClassVar[str] = "Vaswani et al. 2017, arXiv 1706.03762, section 3.2.1"
    used_by: ClassVar[str] = "nearly every transformer"
    remark: ClassVar[str] = "unit variance of scores for unit-variance q and k; entropy then grows like ln n"


@built_in
@dataclass(frozen=True)
class Unscaled(ClosedForm):
    """1: raw dot products.

    Examples
    --------
    >>> Unscaled().scale(512, 64), Unscaled().multiplier(512, 64)
    (1.0, 8.0)
    """

    name: ClassVar[str] = "unscaled"
    n_means: ClassVar[NMeans] = "not used"
    formula: ClassVar[str] = "1"
    source: ClassVar[str] = "TENER, Yan et al. 2019, arXiv 1911.04474"
    used_by: ClassVar[str] = "TENER, T5 (whose initialisation carries the factor)"


@built_in
@dataclass(frozen=True)
class Constant(ClosedForm):
    """A given scale.

    Parameters
    ----------
    value : float
        The multiplier of q . k itself, not of 1/sqrt(head_dim).

    Examples
    --------
    Gemma 2 27B has head_dim 128, but ``query_pre_attn_scalar`` 144:

    >>> Constant(144**-0.5).multiplier(512, 128)
    0.9428090415820634
    """

    value: float
    name: ClassVar[str] = "constant"
    n_means: ClassVar[NMeans] = "not used"
    formula: ClassVar[str] = "value"
    source: ClassVar[str] = "a choice of the model's configuration"
    used_by: ClassVar[str] = "Gemma 2 and 3 (query_pre_attn_scalar ** -0.5)"

    def _check(self) -> None:
        finite(self, "value")

    def _spell(self) -> str:
        return as_literal(self.value)

    def _derivatives(self, n: NDArray[np.float64], head_dim: int) -> dict[str, Any]:
        return {"value": np.full_like(n, math.sqrt(head_dim))}


@built_in
@dataclass(frozen=True)
class PerHead(Law):
    """A multiple of 1/sqrt(head_dim) for each head, learned elsewhere.

    Parameters
    ----------
    values : float or sequence of float
        One multiple a head.

    Examples
    --------
    >>> PerHead([0.5, 2]).scale(512, 64)
    array([[0.0625],
           [0.25  ]])
    """

    values: OneOrPerHead | Sequence[float]
    name: ClassVar[str] = "per_head"
    n_means: ClassVar[NMeans] = "not used"
    formula: ClassVar[str] = "values[head] / sqrt(head_dim)"
    source: ClassVar[str] = "learned temperatures, e.g. Henry et al. 2020 (QKNorm), arXiv 2010.04245"
    used_by: ClassVar[str] = (
        "models with a learnable scale a head; HeadScale (Wang et al. 2024, arXiv 2404.12224), tuned at the "
        "length that a model without positions is to read"
    )

    def _check(self) -> None:
        one_or_per_head(self, "values")

    def _beta(self, n: NDArray[np.float64], head_dim: int) -> Any:
        return head_parameter(self, "values") * np.ones_like(n)

    def _derivatives(self, n: NDArray[np.float64], head_dim: int) -> dict[str, Any]:
        return {"values": np.ones_like(head_parameter(self, "values")) * np.ones_like(n)}


@built_in
@dataclass(frozen=True)
class MuP(ClosedForm):
    """1 / head_dim: the scale of maximal update parametrisation.

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

    def _check(self) -> None:
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

    def _check(self) -> None:
        integer_at_least(self, "terms", 1)


@built_in
@dataclass(frozen=True)
class LatentScale(ClosedForm):
    """sqrt(hidden / rank) / sqrt(head_dim) on the channels fed by a latent of that rank.

    Parameters
    ----------
    hidden : float
        Width of the model; > 0.
    rank : float
        Width of the latent; > 0.
    channels : {"latent", "all"}, default "latent"
        "all": the latent feeds every channel of the head.

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

    def _check(self) -> None:
        greater_than(self, "hidden", 0)
        greater_than(self, "rank", 0)
        acting_channels(self, "latent")
