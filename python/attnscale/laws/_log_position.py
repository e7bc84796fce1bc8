# SPDX-License-Identifier: BSD-3-Clause
"""Laws that multiply by the logarithm of the query's position, beyond the training length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ._closed_form import ClosedForm
from ._log_n import by_length
from ._meaning import NMeans
from ._parameters import greater_than
from ._registry import built_in

if TYPE_CHECKING:
    from numpy.typing import NDArray


@built_in
@dataclass(frozen=True)
class QwenLogN(ClosedForm):
    """log_L(i + 1) / sqrt(head_dim) beyond the training length L, else 1 / sqrt(head_dim).

    Parameters
    ----------
    train_length : float
        L (``seq_length`` of the configuration), in tokens; > 1.

    Examples
    --------
    >>> QwenLogN(8192).multiplier([8192, 8192**2], 128)
    array([1., 2.])
    """

    train_length: float
    name: ClassVar[str] = "qwen_log_n"
    n_means: ClassVar[NMeans] = "query position + 1"
    length_parameter: ClassVar[str | None] = "train_length"
    config_keys: ClassVar[tuple[str, ...]] = ("use_logn_attn", "seq_length")
    formula: ClassVar[str] = "(ln(n) / ln(train_length) if n > train_length else 1) / sqrt(head_dim)"
    source: ClassVar[str] = "Bai et al. 2023, Qwen technical report, arXiv 2309.16609; its modeling_qwen.py"
    used_by: ClassVar[str] = "Qwen 1 at inference, LMDeploy, RTP-LLM"
    remark: ClassVar[str] = (
        "the original looks at it only when there are more than train_length keys, which under a causal "
        "mask n > train_length implies; its table ends at 32767. vLLM ignored the key (issue 36880)"
    )

    def __post_init__(self) -> None:
        greater_than(self, "train_length", 1)

    def _derivatives(self, n: NDArray[np.float64], head_dim: int) -> dict[str, Any]:
        return {"train_length": by_length(self._beta(n, head_dim), self.train_length)}


@built_in
@dataclass(frozen=True)
class GrokTemperature(ClosedForm):
    """log2(i) / log2(T) / sqrt(head_dim) beyond position T, else 1 / sqrt(head_dim).

    Parameters
    ----------
    length : float
        T (``xai_temperature_len``), in tokens; > 1.

    Examples
    --------
    >>> GrokTemperature(1024).multiplier([1024, 1024**2], 128)
    array([1., 2.])
    """

    length: float
    name: ClassVar[str] = "grok_temperature"
    n_means: ClassVar[NMeans] = "query position"
    length_parameter: ClassVar[str | None] = "length"
    config_keys: ClassVar[tuple[str, ...]] = ("xai_temperature_len",)
    formula: ClassVar[str] = "(log2(n) / log2(length) if n > length else 1) / sqrt(head_dim)"
    source: ClassVar[str] = "SGLang, triton_ops/decode_attention.py and extend_attention.py"
    used_by: ClassVar[str] = "Grok in SGLang"
    remark: ClassVar[str] = "the formula of Qwen's rule, one position later: i, not i + 1"

    def __post_init__(self) -> None:
        greater_than(self, "length", 1)

    def _derivatives(self, n: NDArray[np.float64], head_dim: int) -> dict[str, Any]:
        return {"length": by_length(self._beta(n, head_dim), self.length)}
