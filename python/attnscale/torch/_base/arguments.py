# SPDX-License-Identifier: BSD-3-Clause
"""Conversion of a call between operator arguments and options of the array functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

import numpy as np
import torch
from torch import Tensor

from ... import laws, normalizers
from ..._base.checks import fit_to, shown
from ..._base.rows import CallRows
from ..._call.call import Call
from ..._call.rows import read_causal, read_window
from ...laws import Law
from ...laws._registry import open_law, with_values
from ...normalizers import Normalizer
from ...normalizers._base import Rule
from .learned import Entmax, Learned, Sigmoid, Sink
from .private import constant_when_compiled
from .tensors import array, autocast, check_tensors, row_extents

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..._call.types import QKNorm

_NUMBERS = (int, float, np.integer, np.floating)

#: Names of the tensors that may require grad; they come first in a call.
LEARNABLE = (
    *("query", "key", "value", "scale", "attn_mask", "distance_scale", "distance_bias"),
    *("sink", "bias", "alpha"),
)


class TensorDivergenceOptions(TypedDict, total=False):
    """Options of every function of queries and keys: scores, masks and backend."""

    scale: float | Tensor | str | Law | Learned | None
    is_causal: bool
    causal: str | int | None
    attn_mask: Tensor | None
    window: tuple[int | None, int | None] | None
    key_lengths: int | Tensor | None
    document_ids: Tensor | None
    enable_gqa: bool
    softcap: float | None
    layout: str
    backend: str | None


class TensorSelectionOptions(TensorDivergenceOptions, total=False):
    """Options of functions of the weights, which are computed by plain operations of PyTorch."""

    distance_scale: Tensor | None
    distance_bias: Tensor | None
    normalizer: str | Normalizer | Sink | Sigmoid | Entmax
    qk_norm: QKNorm | None


class TensorOptions(TensorSelectionOptions, total=False):
    """Options of :func:`attnscale.torch.attention`."""

    num_threads: int | None


class Arguments(NamedTuple):
    """Arguments of an operator: the tensors of a call, then its other options; "" stands for None.

    The compiler of PyTorch 2.6 traces methods of a named tuple, but no property, slice or ``_make``.
    """

    query: Tensor
    key: Tensor
    value: Tensor | None
    scale: Tensor | None  # a given tensor, or the learned parameters of the law, one after another
    attn_mask: Tensor | None
    distance_scale: Tensor | None
    distance_bias: Tensor | None
    sink: Tensor | None
    bias: Tensor | None
    alpha: Tensor | None
    key_lengths: Tensor | None
    document_ids: Tensor | None
    multiplier: float | None  # a scale= that is a number
    law: str  # a scale= that is a law
    learned: Sequence[str]  # parameters of the law that the tensor `scale` holds
    lengths: Sequence[int]  # length of each parameter; 0: one number for all heads
    alignment: str  # a causal= that is a name
    offset: int | None  # a causal= that is a number
    left: int | None  # keys of the window
    right: int | None
    enable_gqa: bool
    softcap: float | None
    normalizer: str
    qk_norm: str
    layout: str
    num_threads: int | None

    @staticmethod
    def of(arguments: tuple[Any, ...]) -> Arguments:
        """Read a call from an operator's arguments, of which further ones may follow."""
        call = Arguments._make(arguments[: len(Arguments._fields)])
        return call._replace(learned=tuple(call.learned), lengths=tuple(call.lengths))

    def tensors(self) -> tuple[Tensor | None, ...]:
        return tuple(self)[:N_TENSORS]

    def hides(self) -> bool:
        """Whether options other than the mask may hide keys."""
        is_bounded = bool(self.alignment) or not self.offset is self.left is self.right is None
        return is_bounded or not self.key_lengths is self.document_ids is None

    def row_extents(self) -> tuple[tuple[Any, ...], torch.dtype]:
        """Shape (..., heads, n_queries) of rows, and the common type of query, key and value."""
        return row_extents(self.tensors()[:3], self.layout, enable_gqa=self.enable_gqa)

    def is_softmax(self) -> bool:
        """Whether the normalizer is a softmax, with or without a sink, whose rows have a log-sum-exp."""
        if self.sink is not None or self.normalizer == "softmax":
            return True
        return self.bias is None and self.alpha is None and _names_softmax(self.normalizer)

    def mapped(self, function: Callable[[Tensor], Tensor]) -> Arguments:
        tensors = [None if x is None else function(x) for x in self.tensors()]
        every: Any = (*tensors, *tuple(self)[N_TENSORS:])
        return Arguments(*every)

    def arrays(self) -> tuple[Any, Any, Any]:
        query, key, value = self[:3]
        return array(query, "query"), array(key, "key"), None if value is None else array(value, "value")

    def on_arrays(self) -> Call:
        return Call(*self.arrays(), self.options()).read()

    def options(self) -> dict[str, Any]:
        found = {
            "causal": self.alignment or self.offset,
            "window": (self.left, self.right),
            "enable_gqa": self.enable_gqa,
            "softcap": self.softcap,
            "normalizer": self.normalizer,
            "qk_norm": self.qk_norm or None,
            "layout": self.layout,
            "num_threads": self.num_threads,
        }
        for name in _OPTIONAL_ARRAYS:
            if (x := getattr(self, name)) is not None:
                found[name] = array(x, name)
        found["scale"] = self._scale()
        if self.sink is not None or self.bias is not None or self.alpha is not None:
            found["normalizer"] = self._normalizer()
        return found

    def _scale(self) -> Any:
        if self.scale is None:
            return self.law or self.multiplier
        return self._law(self.scale.tolist()) if self.law else array(self.scale, "scale")

    def _law(self, numbers: list[float]) -> laws.Law:
        """The law with its learned parameters set from `numbers`, which holds them one after another."""
        values: dict[str, float | tuple[float, ...]] = {}
        start = 0
        for name, length in zip(self.learned, self.lengths, strict=True):
            values[name] = tuple(numbers[start : start + length]) if length else numbers[start]
            start += length or 1
        return with_values(open_law(self.law, tuple(values)), values)

    def _normalizer(self) -> Any:
        if self.sink is not None:
            return normalizers.Sink._of_one_call(logits=array(self.sink.double()))
        if self.bias is not None:
            return _HeadSigmoid(array(self.bias.double()))
        if self.alpha is not None:
            return normalizers.Entmax(self.alpha.item())
        return self.normalizer


@constant_when_compiled
def _names_softmax(text: str) -> bool:
    return isinstance(normalizers.get(text), (normalizers.Softmax, normalizers.SoftmaxN, normalizers.Sink))


#: Number of arguments that are tensors; they come first.
N_TENSORS = Arguments._fields.index("multiplier")
#: Tensors that are options of the array functions.
_OPTIONAL_ARRAYS = ("attn_mask", "distance_scale", "distance_bias", "key_lengths", "document_ids")
#: Types of arguments in an operator's schema; a dimension of a tensor is a "SymInt" there.
_KINDS = {
    "Tensor": "Tensor",
    "Tensor | None": "Tensor?",
    "float | None": "float?",
    "int | None": "int?",
    "bool": "bool",
    "str": "str",
    "Sequence[str]": "str[]",
    "Sequence[int]": "SymInt[]",
}
SCHEMA = ", ".join(f"{_KINDS[x.__forward_arg__]} {name}" for name, x in Arguments.__annotations__.items())


def read_call(query: Any, key: Any, value: Any, options: Mapping[str, Any]) -> Arguments:
    """Read a call with the options of :func:`attnscale.torch.attention`, in the type of autocast."""
    if not (isinstance(query, Tensor) and isinstance(key, Tensor)):
        check_tensors(query=query, key=key)
    given = options.get
    attn_mask, scale = given("attn_mask"), given("scale")
    tables = given("distance_scale"), given("distance_bias")
    for each in (value, attn_mask, *tables):
        if each is not None and not isinstance(each, Tensor):
            named = dict(zip(("distance_scale", "distance_bias"), tables, strict=True))
            check_tensors(or_none=True, value=value, attn_mask=attn_mask, **named)
    factor, of_scale = (None, _STANDARD) if scale is None else _read_scale(scale)
    normalizer = given("normalizer", "softmax")
    name, sink, bias, alpha = (
        (normalizer, None, None, None) if isinstance(normalizer, str) else _read_normalizer(normalizer)
    )
    query, key, value = autocast(query, key, value)
    lengths, documents = _integers(given("key_lengths"), query), _integers(given("document_ids"), query)
    # Arguments by position, since names take twice as long.
    learnable = query, key, value, factor, attn_mask, *tables, sink, bias, alpha
    aligned = alignment_of(given("is_causal", False), given("causal"))
    seen = *aligned, *read_window(given("window")), given("enable_gqa", False)
    form = given("softcap"), name, given("qk_norm") or "", given("layout", "bhsd"), given("num_threads")
    every: Any = (*learnable, lengths, documents, *of_scale, *seen, *form)
    return Arguments(*every)


def _integers(given: Any, query: Tensor) -> Tensor | None:
    """Convert integers to a tensor; a tensor stays on its device."""
    if given is None:
        return None
    return given if isinstance(given, Tensor) else torch.as_tensor(given, device=query.device)


#: The arguments multiplier, law, learned and lengths of ``scale=None``.
_STANDARD: tuple[Any, Any, Any, Any] = (None, "", (), ())


def _read_scale(scale: Any) -> tuple[Tensor | None, tuple[Any, Any, Any, Any]]:
    """Return the tensor of a scale, and the arguments that describe the scale."""
    if isinstance(scale, Learned):
        return scale.packed, (None, scale.spelling, tuple(scale.parameters), tuple(scale.lengths))
    if isinstance(scale, Tensor):
        return scale, _STANDARD
    if isinstance(scale, (str, Law)):
        return None, (None, scale if isinstance(scale, str) else scale.spelling, (), ())
    # The operator would ignore a scale of any other kind.
    if isinstance(scale, bool) or not isinstance(scale, _NUMBERS):
        raise TypeError(f"scale must be a number, a tensor, a law or the name of one, got {shown(scale)}")
    return None, (float(scale), "", (), ())


def _read_normalizer(normalizer: Any) -> tuple[str, Any, Any, Any]:
    if not isinstance(normalizer, (Normalizer, Sink, Sigmoid, Entmax)):
        normalizers.get(normalizer)  # raises if there is no such normalizer
    return (
        normalizer.spelling if isinstance(normalizer, Normalizer) else "",
        normalizer.logits if isinstance(normalizer, Sink) else None,
        normalizer.bias if isinstance(normalizer, Sigmoid) else None,
        normalizer.alpha if isinstance(normalizer, Entmax) else None,
    )


def alignment_of(is_causal: Any, causal: Any) -> tuple[str, int | None]:
    """Read is_causal= or causal= as the name of an alignment ("" without one) and an offset."""
    found = read_causal(is_causal, causal)
    return (found, None) if isinstance(found, str) else ("", found)


class _HeadSigmoid(Normalizer):
    name = "sigmoid"
    statistics = normalizers.Sigmoid.statistics

    def __init__(self, bias: NDArray[np.float64]) -> None:
        self.bias = bias

    def _rule(self, call: CallRows) -> Rule:
        fitted = fit_to(
            "bias", self.bias[..., None] if self.bias.ndim else self.bias, call.row_shape, "(heads,)"
        )
        return Rule("sigmoid", bias=np.ascontiguousarray(np.broadcast_to(fitted, call.row_shape)))
