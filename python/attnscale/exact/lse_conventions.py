# SPDX-License-Identifier: BSD-3-Clause
"""Conventions of the log-sum-exp, and those of known engines."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from .._base.checks import boolean, choose, shown

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["LSE_CONVENTIONS", "LseConvention"]


@dataclass(frozen=True)
class LseConvention:
    """Convention by which an engine writes the log-sum-exp of a row of scores s = scale * query . key.

    Attributes
    ----------
    base : {"e", "2"}
        Base of the logarithm: ln sum exp(s), or log2 sum exp(s), which is 1.4427 times as large.
    scaled : bool
        False: the sum is over exp(query . key), without the scale of the call.
    sink : bool
        Whether the sink of :class:`attnscale.normalizers.Sink` or ``SoftmaxN`` is a term of the sum.
    less_max : bool
        True: the largest score is subtracted, log sum exp(s - max s), which is between 0 and the log of the
        number of keys.
    negated : bool
        True: the sign is reversed.
    empty : float or None
        Value of a row without keys and sink, as float64, float32, float16 or bfloat16 rounds it. None:
        unknown.
    hidden_zeros : bool
        True: hidden keys are terms of the sum, with the score 0.

    Examples
    --------
    >>> import attnscale as at
    >>> print(at.LseConvention(base="2", empty=-5e4))
    base 2, scale inside, sinks counted, rows without keys -50000
    """

    base: Literal["e", "2"] = "e"
    scaled: bool = True
    sink: bool = True
    less_max: bool = False
    negated: bool = False
    empty: float | None = -math.inf
    hidden_zeros: bool = False

    def __post_init__(self) -> None:
        choose("base", self.base, ("e", "2"))
        for name in ("scaled", "sink", "less_max", "negated", "hidden_zeros"):
            boolean(name, getattr(self, name))
        if self.empty is not None and not isinstance(self.empty, (int, float)):
            raise TypeError(f"empty must be a number or None, got {shown(self.empty)}")

    def __str__(self) -> str:
        parts = ["natural log" if self.base == "e" else "base 2"]
        parts.append("scale inside" if self.scaled else "without the scale")
        parts.append("sinks counted" if self.sink else "sinks left out")
        parts += ["less the largest score"] * self.less_max
        parts += ["negated"] * self.negated
        parts += ["hidden keys counted with score 0"] * self.hidden_zeros
        parts += [] if self.empty is None else [f"rows without keys {self.empty:.10g}"]
        return ", ".join(parts)

    @property
    def _unit(self) -> float:
        """Factor of the natural logarithm."""
        return (-1 if self.negated else 1) / (math.log(2) if self.base == "2" else 1)

    def _written(self, natural: NDArray[np.float64], top: NDArray[np.float64]) -> NDArray[np.float64]:
        """The written number of rows with a term, from ln of their sum and their largest score."""
        with np.errstate(invalid="ignore"):
            found = natural - top if self.less_max else natural
        return found * self._unit

    def _read(self, written: NDArray[np.float64], top: NDArray[np.float64] | None) -> NDArray[np.float64]:
        """The inverse of :meth:`_written`."""
        return written / self._unit + (0 if top is None else top)

    def _is_empty(self, written: NDArray[np.float64]) -> NDArray[np.bool_]:
        if self.empty is None:
            return np.zeros(written.shape, bool)
        return np.isnan(written) if math.isnan(self.empty) else np.isin(written, _roundings(self.empty))


def in_bfloat16(numbers: Any) -> NDArray[np.float64]:
    """Numbers rounded to bfloat16, half to even."""
    with np.errstate(over="ignore"):
        bits = np.asarray(numbers, np.float32).view(np.uint32)
    rounded = (bits + (np.uint32(0x7FFF) + (bits >> 16 & 1))) & np.uint32(0xFFFF0000)
    return np.where(np.isnan(numbers), np.nan, rounded.view(np.float32)).astype(np.float64)


def in_float16(numbers: Any) -> NDArray[np.float64]:
    with np.errstate(over="ignore"):
        return np.asarray(numbers).astype(np.float16).astype(np.float64)


#: Half of the step at 1 of a 16-bit type, and rounding to the type; the coarser type first.
_NARROW = {"bfloat16": (2.0**-8, in_bfloat16), "float16": (2.0**-11, in_float16)}


def _roundings(number: float) -> list[float]:
    """A number as rounded by each type of an lse."""
    with np.errstate(over="ignore"):
        return [number, float(np.float32(number)), *(float(to(number)) for _, to in _NARROW.values())]


def narrow_type(numbers: NDArray[np.float64]) -> str:
    """The name of a 16-bit type that holds all finite numbers exactly; "" if none does."""
    finite = numbers[np.isfinite(numbers)]
    return next((name for name, (_, to) in _NARROW.items() if np.array_equal(to(finite), finite)), "")


def rounding_of(numbers: NDArray[np.float64]) -> float:
    """Relative rounding error of numbers that a 16-bit type holds exactly; else 0."""
    name = narrow_type(numbers)
    return _NARROW[name][0] if name else 0.0


class _Known(NamedTuple):
    """A convention and its source."""

    convention: LseConvention
    source: str


#: Conventions of engines, each with its source.
_ENGINES = {
    "attnscale": _Known(LseConvention(), "attention_statistics, attention_state and jax of this package"),
    "flash_attention_2": _Known(
        LseConvention(empty=math.inf),
        "Dao-AILab/flash-attention issue 404; vLLM, triton_merge_attn_states.py",
    ),
    "flash_attention_3": _Known(
        LseConvention(), "Dao-AILab/flash-attention discussion 2112; vLLM, triton_merge_attn_states.py"
    ),
    "flex_attention": _Known(LseConvention(), "torch 2.15.0, AuxRequest(lse=True); measured on the CPU"),
    "torch_sdpa_cpu": _Known(
        LseConvention(empty=0.0), "torch 2.15.0, _scaled_dot_product_flash_attention_for_cpu; measured"
    ),
    "jax": _Known(
        LseConvention(empty=float(np.float32(-0.7) * np.finfo(np.float32).max)),
        "jax 0.10.2, dot_product_attention(return_residual=True); measured",
    ),
    "flashinfer": _Known(
        LseConvention(base="2", empty=-5e4), "flashinfer issue 2113, pull request 4547, state.cuh, math.cuh"
    ),
    "vllm_merge": _Known(
        LseConvention(), "vLLM, triton_merge_attn_states.py, which reads inf as -inf for FlashAttention 2"
    ),
    "sglang_merge": _Known(LseConvention(), "flashinfer pull request 4547, of merge_state_v2 in sglang"),
}

#: The convention of each engine by its name; docs/how-to/check-an-engine.md has the sources.
LSE_CONVENTIONS: Mapping[str, LseConvention] = {name: known.convention for name, known in _ENGINES.items()}
