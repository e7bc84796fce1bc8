# SPDX-License-Identifier: BSD-3-Clause
"""A call of attention in the types of an operator's schema, and as options of the functions on arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from .. import laws, normalizers
from .._checks import fit_to
from ..laws._values import open_law, with_values
from ..normalizers import Normalizer
from ..normalizers._base import Rows, Rule
from ._tensors import array, check_on_cpu

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["FORM_SCHEMA", "LEARNABLE", "TENSOR_SCHEMA", "Arguments", "Form", "sink_of_array"]

#: Tensors that may require grad; they come first.
LEARNABLE = (
    *("query", "key", "value", "scale", "attn_mask", "distance_scale", "distance_bias"),
    *("sink", "bias", "alpha"),
)
TENSOR_SCHEMA = (
    "Tensor query, Tensor key, Tensor? value, Tensor? scale, Tensor? attn_mask, Tensor? distance_scale, "
    "Tensor? distance_bias, Tensor? sink, Tensor? bias, Tensor? alpha, Tensor? key_lengths, "
    "Tensor? document_ids"
)
FORM_SCHEMA = (
    "float? multiplier, str law, str[] learned, SymInt[] lengths, bool is_causal, str causal, int? left, "
    "int? right, bool windowed, bool enable_gqa, float? softcap, str normalizer, str qk_norm, str layout, "
    "int? num_threads"
)


class Form(NamedTuple):
    """What of a call is no tensor; "" is None."""

    multiplier: float | None = None  # scale= a number
    law: str = ""  # scale= a law
    learned: Sequence[str] = ()  # its parameters of which a tensor `scale` has the values, one after another
    lengths: Sequence[int] = ()  # how many of each; 0: one number for all heads
    is_causal: bool = False
    causal: str = ""
    left: int | None = None
    right: int | None = None
    windowed: bool = False
    enable_gqa: bool = False
    softcap: float | None = None
    normalizer: str = "softmax"
    qk_norm: str = ""
    layout: str = "bhsd"
    num_threads: int | None = None


class Arguments(NamedTuple):
    """The tensors of a call, then its form, as the schema has them."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor | None
    scale: torch.Tensor | None
    attn_mask: torch.Tensor | None
    distance_scale: torch.Tensor | None
    distance_bias: torch.Tensor | None
    sink: torch.Tensor | None
    bias: torch.Tensor | None
    alpha: torch.Tensor | None
    key_lengths: torch.Tensor | None
    document_ids: torch.Tensor | None
    form: Form

    @staticmethod
    def of(arguments: tuple[Any, ...]) -> Arguments:
        """From the arguments of an operator, of which there may be more."""
        n, m = len(Arguments._fields) - 1, len(Form._fields)
        return Arguments._make((*arguments[:n], Form._make(arguments[n : n + m])))

    @property
    def tensors(self) -> tuple[torch.Tensor | None, ...]:
        """All of them."""
        return self[:-1]

    def arrays(self) -> tuple[Any, Any, Any]:
        """Query, key and value."""
        check_on_cpu(*self.tensors)
        query, key, value = (None if each is None else array(each) for each in self[:3])
        return query, key, value

    def options(self) -> dict[str, Any]:
        """Options of the functions on arrays."""
        form, causal = self.form, self.form.causal
        arrays = ("attn_mask", "distance_scale", "distance_bias", "key_lengths", "document_ids")
        found = {name: None if (x := getattr(self, name)) is None else array(x) for name in arrays}
        return found | {
            "scale": self._scale(),
            "is_causal": form.is_causal,
            "causal": int(causal) if causal.lstrip("-").isdigit() else causal or None,
            "window": (form.left, form.right) if form.windowed else None,
            "enable_gqa": form.enable_gqa,
            "softcap": form.softcap,
            "normalizer": self._normalizer(),
            "qk_norm": form.qk_norm or None,
            "layout": form.layout,
            "num_threads": form.num_threads,
        }

    def _scale(self) -> Any:
        if self.scale is None:
            return self.form.law or self.form.multiplier
        return self._law(self.scale.tolist()) if self.form.law else array(self.scale)

    def _law(self, numbers: list[float]) -> laws.Law:
        """The law with what is learned of it, one number or one a head after another."""
        values: dict[str, float | tuple[float, ...]] = {}
        start = 0
        for name, length in zip(self.form.learned, self.form.lengths, strict=True):
            values[name] = tuple(numbers[start : start + length]) if length else numbers[start]
            start += length or 1
        return with_values(open_law(self.form.law, tuple(values)), values)

    def _normalizer(self) -> Any:
        if self.sink is not None:
            return sink_of_array(array(self.sink.double()))
        if self.bias is not None:
            return _HeadSigmoid(array(self.bias.double()))
        if self.alpha is not None:
            return normalizers.Entmax(self.alpha.item())
        return self.form.normalizer


def sink_of_array(logits: NDArray[np.float64]) -> Normalizer:
    """A sink with one logit a head, (heads,), or one a row, (batch, heads, n_queries)."""
    return normalizers.Sink(logits) if logits.ndim < 2 else _RowSink(logits)


class _HeadSigmoid(Normalizer):
    name = "sigmoid"
    statistics = normalizers.Sigmoid.statistics

    def __init__(self, bias: NDArray[np.float64]) -> None:
        self.bias = bias

    def _rule(self, call: Rows) -> Rule:
        fitted = fit_to(
            "bias", self.bias[..., None] if self.bias.ndim else self.bias, call.row_shape, "(heads,)"
        )
        return Rule("sigmoid", bias=np.ascontiguousarray(np.broadcast_to(fitted, call.row_shape)))


class _RowSink(Normalizer):
    name = "sink"

    def __init__(self, logits: NDArray[np.float64]) -> None:
        self.logits = logits

    def _rule(self, call: Rows) -> Rule:
        return Rule("softmax", sink=np.broadcast_to(self.logits, call.row_shape))
