# SPDX-License-Identifier: BSD-3-Clause
"""Laws that multiply by a logarithm of n: of the row, or of the query's position."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ._base import ClosedForm, head_parameter
from ._meaning import NMeans
from ._parameters import OneOrPerHead, at_least, finite, greater_than, one_or_per_head
from ._registry import built_in

if TYPE_CHECKING:
    from numpy.typing import NDArray


@built_in
@dataclass(frozen=True)
class LogN(ClosedForm):
    """log_base(n) / sqrt(head_dim): 1/sqrt(head_dim) at n = base.

    Parameters
    ----------
    base : float, default 512
        The length at which the scale is the standard one; > 1.
    floor : float, default 1
        Shorter rows count as this long; >= 1. bert4keras uses 16.

    Examples
    --------
    >>> LogN().multiplier([512, 512**2], 64)
    array([1., 2.])
    """

    base: float = 512.0
    floor: float = 1.0
    name: ClassVar[str] = "log_n"
    n_means: ClassVar[NMeans] = "visible keys"
    length_parameter: ClassVar[str | None] = "base"
    formula: ClassVar[str] = "ln(max(n, floor)) / ln(base) / sqrt(head_dim)"
    source: ClassVar[str] = "Su Jianlin 2021, kexue.fm/8823, eq. 4 and 5"
    used_by: ClassVar[str] = "bert4keras (softmax_plus, floor=16), GAU-alpha"
    remark: ClassVar[str] = (
        "slows the growth of entropy with n, and does not stop it: for keys uniform on a sphere, "
        "head_dim 64, E[H] = 5.75, 7.46, 9.09 nats at n = 512, 4096, 32768 (1/sqrt(d): 5.75, 7.83, 9.91). "
        "Real heads are not random: with a constant a head, fitted from 64 to 512 tokens, it is third of all "
        "laws on the 18 shipped heads (variance_invariant 0.170, lssa 0.188, log_n 0.222, annealed 0.280 "
        "nats off); other lengths give another order"
    )

    def _check(self) -> None:
        greater_than(self, "base", 1)
        at_least(self, "floor", 1)

    def _derivatives(self, n: NDArray[np.float64], head_dim: int) -> dict[str, Any]:
        return {"base": -self._beta(n, head_dim) / (self.base * math.log(self.base))}


@built_in
@dataclass(frozen=True)
class LogPower(ClosedForm):
    """(ln n / ln base)^power / sqrt(head_dim): 1/sqrt(head_dim) at n = base.

    Parameters
    ----------
    power : float, default 0.5
        At least 0. 0 is the standard scale, 1 is :class:`LogN`.
    base : float, default 4096
        The length at which the scale is the standard one; > 1.

    Examples
    --------
    >>> LogPower().multiplier([4096, 16384], 64).round(4)  # an image of twice the width
    array([1.    , 1.0801])
    """

    power: float = 0.5
    base: float = 4096.0
    name: ClassVar[str] = "log_power"
    n_means: ClassVar[NMeans] = "visible keys"
    length_parameter: ClassVar[str | None] = "base"
    formula: ClassVar[str] = "(ln(n) / ln(base))**power / sqrt(head_dim)"
    source: ClassVar[str] = (
        "power 1/2: Jin et al. 2023, proportional attention of images of other sizes, arXiv 2306.08645"
    )
    used_by: ClassVar[str] = (
        "Lumina-Next in diffusers (power 1/2, base 4096 for 1024 pixels); Lumina 2 could, no pipeline asks"
    )
    remark: ClassVar[str] = (
        "diffusers counts the tokens of the call before its mask, padding too, and gets its base from the "
        "image size of training, (size / 16)^2. Where a call has padding, law.scale(n, head_dim) is that "
        "number. 1/2 is also the power of ln n with which sqrt(1 + 2 ln(n / n0)), the first order of the "
        "scale that keeps the entropy of random keys, grows"
    )

    def _check(self) -> None:
        at_least(self, "power", 0)
        greater_than(self, "base", 1)

    def _derivatives(self, n: NDArray[np.float64], head_dim: int) -> dict[str, Any]:
        beta = self._beta(n, head_dim)
        logs = np.log(np.log(np.maximum(n, 2)) / math.log(self.base))
        return {
            "power": np.where(n > 1, beta * logs, 0.0) if self.power else np.where(n >= 2, logs, 0.0),
            "base": -self.power * beta / (self.base * math.log(self.base)),
        }


@built_in
@dataclass(frozen=True)
class LogNFromTraining(ClosedForm):
    """max(1, log_L(n)) / sqrt(head_dim): the standard scale up to the training length L.

    Parameters
    ----------
    train_length : float
        L, in tokens; > 1.

    Examples
    --------
    >>> LogNFromTraining(512).multiplier([100, 512**2], 64)
    array([1., 2.])
    """

    train_length: float
    name: ClassVar[str] = "log_n_from_training"
    n_means: ClassVar[NMeans] = "query position + 1"
    length_parameter: ClassVar[str | None] = "train_length"
    formula: ClassVar[str] = "max(1, ln(n) / ln(train_length)) / sqrt(head_dim)"
    source: ClassVar[str] = "Su Jianlin 2023, kexue.fm/9708; bojone/rerope"
    used_by: ClassVar[str] = "ReRoPE, at inference only"

    def _check(self) -> None:
        greater_than(self, "train_length", 1)

    def _derivatives(self, n: NDArray[np.float64], head_dim: int) -> dict[str, Any]:
        return {"train_length": by_length(self._beta(n, head_dim), self.train_length)}


@built_in
@dataclass(frozen=True)
class NaturalLogN(ClosedForm):
    """ln(n) / sqrt(head_dim).

    Examples
    --------
    >>> NaturalLogN().multiplier(1024, 64)
    6.931471805599453
    """

    name: ClassVar[str] = "natural_log_n"
    n_means: ClassVar[NMeans] = "row size"
    formula: ClassVar[str] = "ln(n) / sqrt(head_dim)"
    source: ClassVar[str] = "Chiang & Cholak 2022, arXiv 2202.12172 (eq. 1 of section 4.3 in kexue.fm/8823)"
    used_by: ClassVar[str] = (
        "its authors, where one position decides (FIRST, is the first bit a 1?) and in machine translation; "
        "ln n is also SSMax with s = 1"
    )
    remark: ClassVar[str] = (
        "for keys uniform on a sphere, head_dim 64, E[H] = 1.24, 1.17, 1.12 nats at n = 512, 4096, 32768: "
        "nearly constant, at about 3 effective keys. A model that was not trained with it saturates: on the "
        "18 shipped heads, 512 tokens, the median trace of the Jacobian falls from 0.98 to 0.11"
    )


@built_in
@dataclass(frozen=True)
class Kappa(ClosedForm):
    """kappa * ln(n) / head_dim: the entropy-invariant scale before its constant is chosen.

    Parameters
    ----------
    kappa : float
        The constant; sqrt(head_dim) / ln(512) makes it LogN().

    Examples
    --------
    >>> law = Kappa(8 / np.log(512))
    >>> bool(np.isclose(law.scale(4096, 64), LogN().scale(4096, 64)))
    True
    """

    kappa: float
    name: ClassVar[str] = "kappa"
    n_means: ClassVar[NMeans] = "visible keys"
    formula: ClassVar[str] = "kappa * ln(n) / head_dim"
    source: ClassVar[str] = "Su Jianlin 2021, kexue.fm/8823, eq. 4"
    used_by: ClassVar[str] = "the derivation of LogN"

    def _check(self) -> None:
        finite(self, "kappa")

    def _derivatives(self, n: NDArray[np.float64], head_dim: int) -> dict[str, Any]:
        return {"kappa": np.log(n) / math.sqrt(head_dim)}


def by_length(beta: Any, length: float) -> Any:
    """Derivative of beta = max(1, ln n / ln length) by the length."""
    return np.where(beta > 1, -beta / (length * math.log(length)), 0.0)


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

    def _check(self) -> None:
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

    def _check(self) -> None:
        greater_than(self, "length", 1)

    def _derivatives(self, n: NDArray[np.float64], head_dim: int) -> dict[str, Any]:
        return {"length": by_length(self._beta(n, head_dim), self.length)}


@built_in
@dataclass(frozen=True)
class SSMax(ClosedForm):
    """(s * ln(max(n, floor)) + b) / sqrt(head_dim), s and b learned.

    Parameters
    ----------
    s : float or sequence of float, default 0.43
        Slope, one for all heads or one a head.
    b : float or sequence of float, default 0
        Offset, one for all heads or one a head.
    floor : float, default 1
        Shorter rows count as this long; >= 1. axolotl uses 2.

    Examples
    --------
    >>> SSMax(s=[0.4, 0.5]).multiplier(1024, 64).shape
    (2, 1)
    """

    s: OneOrPerHead | Sequence[float] = 0.43
    b: OneOrPerHead | Sequence[float] = 0.0
    floor: float = 1.0
    name: ClassVar[str] = "ssmax"
    n_means: ClassVar[NMeans] = "row size"
    formula: ClassVar[str] = "(s * ln(max(n, floor)) + b) / sqrt(head_dim)"
    source: ClassVar[str] = "Nakanishi 2025, arXiv 2501.19399"
    used_by: ClassVar[str] = (
        "axolotl (floor=2, n from the start of each packed document), Mistral Large 4 (s, b learned a head)"
    )
    remark: ClassVar[str] = "s is learned a head and layer; 0.43 is the value of the paper's figure 1"

    def _check(self) -> None:
        one_or_per_head(self, "s")
        one_or_per_head(self, "b")
        at_least(self, "floor", 1)

    def _derivatives(self, n: NDArray[np.float64], head_dim: int) -> dict[str, Any]:
        shape = np.ones_like(head_parameter(self, "s") + head_parameter(self, "b"))
        return {"s": shape * np.log(np.maximum(n, self.floor)), "b": shape * np.ones_like(n)}


@built_in
@dataclass(frozen=True)
class ASEntmax(ClosedForm):
    """(delta + beta ln(n)^gamma) / sqrt(head_dim), n = i + 2; the scores then go into entmax.

    Parameters
    ----------
    delta, beta, gamma : float or sequence of float
        One for all heads, or one a head. The authors set delta = 1 and compute the others from the query.

    Examples
    --------
    >>> round(ASEntmax(delta=1, beta=0.5, gamma=2).multiplier(100, 64), 6)
    11.603796
    """

    delta: OneOrPerHead | Sequence[float]
    beta: OneOrPerHead | Sequence[float]
    gamma: OneOrPerHead | Sequence[float]
    name: ClassVar[str] = "asentmax"
    n_means: ClassVar[NMeans] = "query position + 2"
    formula: ClassVar[str] = "(delta + beta * ln(n)**gamma) / sqrt(head_dim)"
    source: ClassVar[str] = "Vasylenko et al. 2025, arXiv 2506.16640; deep-spin/asentmax"
    used_by: ClassVar[str] = "ASEntmax"
    remark: ClassVar[str] = (
        "i + 2 keeps the authors' logarithm away from ln 1 = 0. Theirs: beta = softplus(x W), "
        "gamma = 2 tanh(x U), for each query and head"
    )

    def _check(self) -> None:
        for name in ("delta", "beta", "gamma"):
            one_or_per_head(self, name)

    def _derivatives(self, n: NDArray[np.float64], head_dim: int) -> dict[str, Any]:
        delta, beta, gamma = (head_parameter(self, name) for name in ("delta", "beta", "gamma"))
        shape, log = np.ones_like(delta + beta + gamma), np.log(n)
        power = log**gamma
        return {
            "delta": shape * np.ones_like(n),
            "beta": shape * power,
            "gamma": shape * beta * power * np.log(log),  # n is at least 2
        }
