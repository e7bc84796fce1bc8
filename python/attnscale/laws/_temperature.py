# SPDX-License-Identifier: BSD-3-Clause
"""Temperatures that grow slowly with the query's position, in blocks or continuously."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ._base import ClosedForm, head_parameter
from ._meaning import NMeans
from ._parameters import OneOrPerHead, finite, flag, greater_than, one_or_per_head
from ._registry import built_in

if TYPE_CHECKING:
    from numpy.typing import NDArray


@built_in
@dataclass(frozen=True)
class Llama4Temperature(ClosedForm):
    """(1 + a ln(1 + floor((i + 1) / F))) / sqrt(head_dim), on layers without rotary positions.

    Parameters
    ----------
    a : float, default 0.1
        ``attn_scale`` of the configuration.
    floor : float, default 8192
        F (``floor_scale``), in tokens; > 0.

    Examples
    --------
    >>> law = Llama4Temperature()
    >>> [round(law.multiplier(1, 128, position=i), 6) for i in (8190, 8191)]  # the block begins at i = F - 1
    [1.0, 1.069315]
    """

    a: float = 0.1
    floor: float = 8192.0
    name: ClassVar[str] = "llama4_temperature"
    n_means: ClassVar[NMeans] = "query position + 1"
    layers: ClassVar[str] = "those without rotary positions (NoPE)"
    config_keys: ClassVar[tuple[str, ...]] = ("attn_temperature_tuning", "attn_scale", "floor_scale")
    formula: ClassVar[str] = "(1 + a * ln(1 + floor(n / F))) / sqrt(head_dim)"
    source: ClassVar[str] = "Meta 2025, llama-models models/llama4/model.py"
    used_by: ClassVar[str] = "Llama 4 (Scout, Maverick)"
    remark: ClassVar[str] = "counts i + 1; the rule that Ministral made of it counts i"

    def _check(self) -> None:
        finite(self, "a")
        greater_than(self, "floor", 0)

    def _derivatives(self, n: NDArray[np.float64], head_dim: int) -> dict[str, Any]:
        return {"a": np.log1p(np.floor(n / self.floor))}


@built_in
@dataclass(frozen=True)
class MinistralTemperature(ClosedForm):
    """(1 + beta ln(1 + floor(i / L))) / sqrt(head_dim).

    Parameters
    ----------
    beta : float, default 0.1
        ``llama_4_scaling_beta`` of the configuration.
    length : float, default 16384
        L (``original_max_position_embeddings``), in tokens; > 0. Mistral Large 3 has 8192.

    Examples
    --------
    >>> law = MinistralTemperature()
    >>> [round(law.multiplier(1, 128, position=i), 6) for i in (16383, 16384)]
    [1.0, 1.069315]
    """

    beta: float = 0.1
    length: float = 16384.0
    name: ClassVar[str] = "ministral_temperature"
    n_means: ClassVar[NMeans] = "query position"
    length_parameter: ClassVar[str | None] = "length"
    config_keys: ClassVar[tuple[str, ...]] = ("llama_4_scaling_beta", "original_max_position_embeddings")
    formula: ClassVar[str] = "(1 + beta * ln(1 + floor(n / length))) / sqrt(head_dim)"
    source: ClassVar[str] = "Mistral AI 2025, transformers models/ministral3/modeling_ministral3.py"
    used_by: ClassVar[str] = "Ministral 3 (L = 16384), Mistral Large 3 (L = 8192)"
    remark: ClassVar[str] = (
        "counts i, not i + 1, and acts on every layer; on top of YaRN's factor where the model has one. "
        "vLLM ignored it (issue 48621)"
    )

    def _check(self) -> None:
        finite(self, "beta")
        greater_than(self, "length", 0)

    def _derivatives(self, n: NDArray[np.float64], head_dim: int) -> dict[str, Any]:
        return {"beta": np.log1p(np.floor(n / self.length))}


@built_in
@dataclass(frozen=True)
class BeamTemperature(ClosedForm):
    """(1 + (i + 1) / length) ** exponent / sqrt(head_dim), on layers without rotary positions.

    Parameters
    ----------
    exponent : float, default 0.1
    length : float, default 2048
        The divisor of positions, in tokens; > 0.

    Examples
    --------
    >>> round(BeamTemperature().multiplier(2048 * 1023, 128), 12)  # 1024 ** 0.1
    2.0
    """

    exponent: float = 0.1
    length: float = 2048.0
    name: ClassVar[str] = "beam_temperature"
    n_means: ClassVar[NMeans] = "query position + 1"
    length_parameter: ClassVar[str | None] = "length"
    layers: ClassVar[str] = "full-attention layers, which have no rotary positions (NoPE)"
    formula: ClassVar[str] = "(1 + n / length) ** exponent / sqrt(head_dim)"
    source: ClassVar[str] = "transformers models/beam/modeling_beam.py"
    used_by: ClassVar[str] = "Beam"
    remark: ClassVar[str] = "a power of n, not a logarithm; both numbers are constants of the code"

    def _check(self) -> None:
        finite(self, "exponent")
        greater_than(self, "length", 0)

    def _derivatives(self, n: NDArray[np.float64], head_dim: int) -> dict[str, Any]:
        temperature, log = self._beta(n, head_dim), np.log1p(n / self.length)
        of_length = -temperature * self.exponent * n / (self.length * (n + self.length))
        return {"exponent": temperature * log, "length": of_length}


@built_in
@dataclass(frozen=True)
class InklingTemperature(ClosedForm):
    """(1 + alpha ln(max(1, (i + 1) / floor))) / sqrt(head_dim), on full-attention layers.

    Parameters
    ----------
    alpha : float, default 0.1
        ``log_scaling_alpha`` of the configuration.
    floor : float, default 128000
        ``log_scaling_n_floor``, in tokens; > 0.
    over_head_dim : bool, default False
        Divide by head_dim instead of its root, as in the first of the two families.

    Examples
    --------
    >>> InklingTemperature(floor=1000).multiplier([1000, 1000 * np.exp(10)], 128)
    array([1., 2.])
    """

    alpha: float = 0.1
    floor: float = 128000.0
    over_head_dim: bool = False
    name: ClassVar[str] = "inkling_temperature"
    n_means: ClassVar[NMeans] = "query position + 1"
    layers: ClassVar[str] = "full-attention layers"
    config_keys: ClassVar[tuple[str, ...]] = ("log_scaling_alpha", "log_scaling_n_floor")
    formula: ClassVar[str] = "(1 + alpha * ln(max(1, n / floor))) / sqrt(head_dim), or / head_dim"
    source: ClassVar[str] = "transformers models/inkling and models/inkling2"
    used_by: ClassVar[str] = "Inkling (over head_dim), Inkling 2"
    remark: ClassVar[str] = "Inkling multiplies its relative bias by the same factor"

    def _check(self) -> None:
        finite(self, "alpha")
        greater_than(self, "floor", 0)
        flag(self, "over_head_dim")

    def _derivatives(self, n: NDArray[np.float64], head_dim: int) -> dict[str, Any]:
        log = np.log(np.maximum(1.0, n / self.floor))
        return {"alpha": log / math.sqrt(head_dim) if self.over_head_dim else log}


@built_in
@dataclass(frozen=True)
class SelectiveTemperature(ClosedForm):
    """(1 + strength ln(i + 1)) / sqrt(head_dim): the position factor of selective self-attention.

    Parameters
    ----------
    strength : float or sequence of float
        Factor of the logarithm, one for all heads or one a head. The authors learn it as exp(-exp(x)),
        between 0 and 1.

    Examples
    --------
    >>> start = np.exp(-np.exp(1.5))  # of the authors' GPT-2, before any training
    >>> SelectiveTemperature(start).multiplier([1, 1024], 64).round(4)
    array([1.    , 1.0784])
    """

    strength: OneOrPerHead | Sequence[float]
    name: ClassVar[str] = "selective_temperature"
    n_means: ClassVar[NMeans] = "query position + 1"
    formula: ClassVar[str] = "(1 + strength * ln(n)) / sqrt(head_dim)"
    source: ClassVar[str] = (
        "Zhang et al. 2024, Selective Attention, arXiv 2411.12892; umich-sota/selective_attention, "
        "lit_gpt/gpt_2_PTS.py"
    )
    used_by: ClassVar[str] = "its authors, in GPT-2 and in models that they tune, one number a layer"
    remark: ClassVar[str] = (
        "the layer of the paper also has a temperature of the query's token, a learned number for each "
        "query, which is no law: give its product with this one as an array. The values of the paper have a "
        "temperature too, which no scale of q . k can stand for. On causal rows it is SSMax with b = 1"
    )

    def _check(self) -> None:
        one_or_per_head(self, "strength")

    def _derivatives(self, n: NDArray[np.float64], head_dim: int) -> dict[str, Any]:
        return {"strength": np.ones_like(head_parameter(self, "strength")) * np.log(n)}


@built_in
@dataclass(frozen=True)
class NoPETemperature(ClosedForm):
    """(1 + slope ln(i / L)) / sqrt(head_dim) beyond the training length L, else 1 / sqrt(head_dim).

    Parameters
    ----------
    slope : float or sequence of float
        Growth of the best scale with the logarithm of the position, one for all heads or one a head; fitted
        to a model.
    train_length : float, default 2048
        L, in tokens; > 0.

    Examples
    --------
    A slope of 1 / ln(L) makes it log_L(i), the rule of Grok:

    >>> law = NoPETemperature(1 / np.log(2048))
    >>> law.multiplier([2048, 2048**2], 64)
    array([1., 2.])
    """

    slope: OneOrPerHead | Sequence[float]
    train_length: float = 2048.0
    name: ClassVar[str] = "nope_temperature"
    n_means: ClassVar[NMeans] = "query position"
    length_parameter: ClassVar[str | None] = "train_length"
    formula: ClassVar[str] = "(1 + slope * ln(max(1, n / train_length))) / sqrt(head_dim)"
    source: ClassVar[str] = (
        "Wang et al. 2024, arXiv 2404.12224; AntNLP/nope_head_scale, fig/fig_fit.ipynb, which fits it to the "
        "best scale at each position"
    )
    used_by: ClassVar[str] = "its authors, to describe a model without positions beyond its training length"
    remark: ClassVar[str] = (
        "the fit begins at train_length; that shorter rows keep their scale is our reading. Their method for "
        "one target length is per_head: one constant a head, tuned there and never below 1"
    )

    def _check(self) -> None:
        one_or_per_head(self, "slope")
        greater_than(self, "train_length", 0)

    def _derivatives(self, n: NDArray[np.float64], head_dim: int) -> dict[str, Any]:
        slope = head_parameter(self, "slope")
        log = np.log(np.maximum(1.0, n / self.train_length))
        of_length = np.where(n > self.train_length, -1.0, 0.0) / self.train_length
        return {"slope": np.ones_like(slope) * log, "train_length": slope * of_length}
