# SPDX-License-Identifier: BSD-3-Clause
"""Factors of extended rotary positions: constants of the model at every length."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from ._base import Channels, ClosedForm
from ._meaning import NMeans
from ._parameters import acting_channels, at_least, greater_than, none_or_at_least
from ._registry import built_in


@built_in
@dataclass(frozen=True)
class YaRN(ClosedForm):
    """m^2 / sqrt(head_dim) on the rotated channels, m = 0.1 ln(factor) + 1.

    Parameters
    ----------
    factor : float
        s: extension factor of the context; > 0. Up to 1 there is no extension and m = 1.
    attention_factor : float, optional
        m itself, if the configuration gives it; >= 0.
    mscale, mscale_all_dim : float, optional
        If both are given and not 0, m = g(s, mscale) / g(s, mscale_all_dim) with g(s, a) = 0.1 a ln s + 1.
        One of them alone has no effect, as in transformers.
    slope : float, default 0.1
        The 0.1 of g. One of the authors' files has 0.07.
    channels : {"rotated", "all"}, default "rotated"
        "all": every channel of the head is rotated, so a scale of the row can express the law.

    Notes
    -----
    The law multiplies cos and sin by m, so q and k both carry it, and a score carries m^2 on the rotated
    channels: m^2 q_r . k_r + q_p . k_p. s is a constant of the configuration, so position 0 is multiplied
    too.

    Examples
    --------
    >>> round(YaRN(factor=16).multiplier(1, 128), 7)
    1.6313902
    >>> YaRN(factor=40, mscale=1.0, mscale_all_dim=1.0).multiplier(1, 192)  # DeepSeek V3: see MLAYaRN
    1.0
    """

    factor: float
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    slope: float = 0.1
    channels: Channels = "rotated"  # type: ignore[misc]  # of the instance here, of the class for others
    name: ClassVar[str] = "yarn"
    n_means: ClassVar[NMeans] = "not used"
    config_keys: ClassVar[tuple[str, ...]] = (
        "rope_type: yarn",
        "factor",
        "attention_factor",
        "mscale",
        "mscale_all_dim",
    )
    formula: ClassVar[str] = (
        "m^2 / sqrt(head_dim); m = attention_factor if given, else g(factor, mscale) / "
        "g(factor, mscale_all_dim) if both are, else g(factor, 1); g(s, a) = 0.1 a ln(s) + 1, 1 for s <= 1"
    )
    source: ClassVar[str] = "Peng et al. 2023, YaRN, arXiv 2309.00071; transformers modeling_rope_utils.py"
    used_by: ClassVar[str] = "gpt-oss, Qwen with extended context, DeepSeek, Ministral 3"
    remark: ClassVar[str] = (
        "squared, because q and k both carry m; not a function of n. Dropping attention_factor where it is "
        "set gave 1.4159 for 1 in vLLM (pull request 48351)"
    )

    def _check(self) -> None:
        greater_than(self, "factor", 0)
        for name in ("attention_factor", "mscale", "mscale_all_dim"):
            none_or_at_least(self, name, 0)
        at_least(self, "slope", 0)
        acting_channels(self, "rotated")

    @property
    def attention_scaling(self) -> float:
        """m: the factor of cos and sin."""
        return math.sqrt(self.multiplier(1, 1))


@built_in
@dataclass(frozen=True)
class MLAYaRN(ClosedForm):
    """g(factor, mscale_all_dim)^2 / sqrt(head_dim) on all channels, g(s, a) = 0.1 a ln(s) + 1.

    Parameters
    ----------
    factor : float
        s: extension factor of the context; > 0. Up to 1 the law is 1.
    mscale_all_dim : float
        a; >= 0. The 16B model of DeepSeek V2 has 0.707, DeepSeek V3 has 1.

    Examples
    --------
    >>> round(MLAYaRN(factor=40, mscale_all_dim=1.0).multiplier(1, 192), 6)  # DeepSeek V3
    1.873854
    """

    factor: float
    mscale_all_dim: float
    name: ClassVar[str] = "mla_yarn"
    n_means: ClassVar[NMeans] = "not used"
    config_keys: ClassVar[tuple[str, ...]] = ("rope_type: yarn", "factor", "mscale_all_dim", "kv_lora_rank")
    formula: ClassVar[str] = "(0.1 * mscale_all_dim * ln(max(1, factor)) + 1)^2 / sqrt(head_dim)"
    source: ClassVar[str] = "DeepSeek-AI 2024, DeepSeek V2 and V3, inference/model.py"
    used_by: ClassVar[str] = "DeepSeek V2 and V3 and others with multi-head latent attention"
    remark: ClassVar[str] = (
        "on top of YaRN's own rule on the rotated channels. transformers applies it at every length, "
        "DeepSeek's code only where max_seq_len exceeds the original length"
    )

    def _check(self) -> None:
        greater_than(self, "factor", 0)
        at_least(self, "mscale_all_dim", 0)


@built_in
@dataclass(frozen=True)
class LongRoPE(ClosedForm):
    """(1 + ln s / ln L) / sqrt(head_dim) = log_L(s L) / sqrt(head_dim) on the rotated channels.

    Parameters
    ----------
    train_length : float
        L (``original_max_position_embeddings``), in tokens; > 1.
    factor : float
        s: extension factor of the context; > 0. Up to 1 the law is 1.
    attention_factor : float, optional
        The root of the multiplier, if the configuration gives it; >= 0.
    channels : {"rotated", "all"}, default "rotated"
        "all": every channel of the head is rotated, so a scale of the row can express the law.

    Examples
    --------
    >>> round(LongRoPE(512, factor=64).multiplier(1, 64), 6) == round(15 / 9, 6)  # log_512(32768)
    True
    """

    train_length: float
    factor: float
    attention_factor: float | None = None
    channels: Channels = "rotated"  # type: ignore[misc]  # of the instance here, of the class for others
    name: ClassVar[str] = "longrope"
    n_means: ClassVar[NMeans] = "not used"
    length_parameter: ClassVar[str | None] = "train_length"
    config_keys: ClassVar[tuple[str, ...]] = (
        "rope_type: longrope",
        "factor",
        "attention_factor",
        "original_max_position_embeddings",
    )
    formula: ClassVar[str] = "(1 + ln(max(1, factor)) / ln(train_length)) / sqrt(head_dim)"
    source: ClassVar[str] = "Ding et al. 2024, arXiv 2402.13753; transformers modeling_rope_utils.py"
    used_by: ClassVar[str] = "Phi-3 and Phi-4 mini"
    remark: ClassVar[str] = "log_n with base L, at the one length s L: the same value at every position"

    def _check(self) -> None:
        greater_than(self, "train_length", 1)
        greater_than(self, "factor", 0)
        none_or_at_least(self, "attention_factor", 0)
        acting_channels(self, "rotated")
