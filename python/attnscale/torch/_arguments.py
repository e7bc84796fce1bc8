# SPDX-License-Identifier: BSD-3-Clause
"""A call of attention as arguments of an operator, and as options of the functions on arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

import numpy as np
import torch
from torch import Tensor

from .. import laws, normalizers
from .._call.call import Call
from .._call.rows import read_window
from .._checks import fit_to, shown
from ..laws import Law
from ..laws._values import open_law, with_values
from ..normalizers import Normalizer
from ..normalizers._base import Rows, Rule
from ._learned import Entmax, Learned, Sigmoid, Sink
from ._tensors import array, autocast, cached, check_tensors, row_extents

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .._call.types import QKNorm

__all__ = [
    "FORM_SCHEMA",
    "LEARNABLE",
    "TENSOR_SCHEMA",
    "Arguments",
    "Form",
    "TensorOptions",
    "causal_of_text",
    "read_call",
    "sink_of_array",
    "text_of_causal",
]

_NUMBERS = (int, float, np.integer, np.floating)

#: Names of the tensors that may require grad; they come first in a call.
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
    "int? right, bool enable_gqa, float? softcap, str normalizer, str qk_norm, str layout, "
    "int? num_threads"
)


class TensorOptions(TypedDict, total=False):
    """Options of :func:`attnscale.torch.attention`."""

    scale: float | Tensor | str | Law | Learned | None
    is_causal: bool
    causal: str | int | None
    attn_mask: Tensor | None
    window: tuple[int | None, int | None] | None
    key_lengths: int | Tensor | None
    document_ids: Tensor | None
    distance_scale: Tensor | None
    distance_bias: Tensor | None
    enable_gqa: bool
    softcap: float | None
    normalizer: str | Normalizer | Sink | Sigmoid | Entmax
    qk_norm: QKNorm | None
    layout: str
    num_threads: int | None
    backend: str | None


class Form(NamedTuple):
    """The part of a call that is no tensor; in text, "" stands for None."""

    multiplier: float | None = None  # scale= where it is a number
    law: str = ""  # scale= where it is a law
    learned: Sequence[str] = ()  # parameters of the law that the tensor `scale` has, one after another
    lengths: Sequence[int] = ()  # how many numbers each parameter has; 0: one for all heads
    is_causal: bool = False
    causal: str = ""
    left: int | None = None
    right: int | None = None
    enable_gqa: bool = False
    softcap: float | None = None
    normalizer: str = "softmax"
    qk_norm: str = ""
    layout: str = "bhsd"
    num_threads: int | None = None


class Arguments(NamedTuple):
    """The tensors of a call, then its form, in the order of the schema."""

    query: Tensor
    key: Tensor
    value: Tensor | None
    scale: Tensor | None
    attn_mask: Tensor | None
    distance_scale: Tensor | None
    distance_bias: Tensor | None
    sink: Tensor | None
    bias: Tensor | None
    alpha: Tensor | None
    key_lengths: Tensor | None
    document_ids: Tensor | None
    form: Form

    @staticmethod
    def of(arguments: tuple[Any, ...]) -> Arguments:
        """Read a call from an operator's arguments, which may have more behind those of the call."""
        n, m = len(Arguments._fields) - 1, len(Form._fields)
        form = Form._make(arguments[n : n + m])
        form = form._replace(learned=tuple(form.learned), lengths=tuple(form.lengths))
        return Arguments._make((*arguments[:n], form))

    @property
    def tensors(self) -> tuple[Tensor | None, ...]:
        """All tensors of the call."""
        return self[:-1]

    @property
    def flat(self) -> tuple[Any, ...]:
        """The arguments that an operator takes; the inverse of :meth:`of`."""
        return (*self[:-1], *self.form)

    @property
    def row_extents(self) -> tuple[tuple[Any, ...], torch.dtype]:
        """The shape (..., heads, n_queries) of rows, and the common type of query, key and value."""
        return row_extents(self[:3], self.form.layout, enable_gqa=self.form.enable_gqa)

    @property
    def is_softmax(self) -> bool:
        """Whether the normalizer is a softmax, with or without a sink, whose rows have a log-sum-exp."""
        if self.sink is not None or self.form.normalizer == "softmax":
            return True
        return self.bias is None and self.alpha is None and _names_softmax(self.form.normalizer)

    def mapped(self, function: Callable[[Tensor], Tensor]) -> Arguments:
        """The call with the function applied to each of its tensors."""
        return Arguments._make((*(None if x is None else function(x) for x in self.tensors), self.form))

    def arrays(self) -> tuple[Any, Any, Any]:
        """Query, key and value as arrays."""
        query, key, value = self[:3]
        return array(query, "query"), array(key, "key"), None if value is None else array(value, "value")

    def on_arrays(self) -> Call:
        """The call as functions on arrays read it."""
        return Call(*self.arrays(), self.options()).read()

    def options(self) -> dict[str, Any]:
        """The call as options of the functions on arrays."""
        found = _read_options(*self.form[1:]).copy()
        for at, name in _OPTIONAL_ARRAYS:
            if (x := self[at]) is not None:
                found[name] = array(x, name)
        found["scale"] = self._scale()
        if self.sink is not None or self.bias is not None or self.alpha is not None:
            found["normalizer"] = self._normalizer()
        return found

    def _scale(self) -> Any:
        if self.scale is None:
            return self.form.law or self.form.multiplier
        return self._law(self.scale.tolist()) if self.form.law else array(self.scale, "scale")

    def _law(self, numbers: list[float]) -> laws.Law:
        """The law with values for its learned parameters, which `numbers` has one after another."""
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


@torch.compiler.assume_constant_result
def _names_softmax(text: str) -> bool:
    return isinstance(normalizers.get(text), (normalizers.Softmax, normalizers.SoftmaxN, normalizers.Sink))


#: Tensors that are options of the functions on arrays, and where they are in a call.
_OPTIONAL_ARRAYS = [
    (Arguments._fields.index(name), name)
    for name in ("attn_mask", "distance_scale", "distance_bias", "key_lengths", "document_ids")
]


@cached(256)  # of the options alone: making them takes as long as a small attention
def _read_options(*form: Any) -> dict[str, Any]:
    """The options of a form without its multiplier, as the functions on arrays take them."""
    given = Form(None, *form)
    return {
        **dict.fromkeys(name for _, name in _OPTIONAL_ARRAYS),
        "is_causal": given.is_causal,
        "causal": causal_of_text(given.causal),
        "window": (given.left, given.right),
        "enable_gqa": given.enable_gqa,
        "softcap": given.softcap,
        "normalizer": given.normalizer,
        "qk_norm": given.qk_norm or None,
        "layout": given.layout,
        "num_threads": given.num_threads,
    }


def read_call(query: Any, key: Any, value: Any, options: Mapping[str, Any]) -> Arguments:
    """Read a call with the options of :func:`attnscale.torch.attention`, in the type of autocast."""
    if not (isinstance(query, Tensor) and isinstance(key, Tensor)):
        check_tensors(query=query, key=key)
    given = options.get
    attn_mask, scale, window = given("attn_mask"), given("scale"), given("window")
    tables = given("distance_scale"), given("distance_bias")
    for each in (value, attn_mask, *tables):
        if each is not None and not isinstance(each, Tensor):
            named = dict(zip(("distance_scale", "distance_bias"), tables, strict=True))
            check_tensors(or_none=True, value=value, attn_mask=attn_mask, **named)
    factor, of_scale = (None, _STANDARD) if scale is None else _read_scale(scale)
    left, right = (None, None) if window is None else read_window(window)
    normalizer = given("normalizer", "softmax")
    name, sink, bias, alpha = (
        (normalizer, None, None, None) if isinstance(normalizer, str) else _read_normalizer(normalizer)
    )
    # By position: names take twice as long.
    seen = given("is_causal", False), text_of_causal(given("causal")), left, right
    shape = given("qk_norm") or "", given("layout", "bhsd"), given("num_threads")
    form = Form._make((*of_scale, *seen, given("enable_gqa", False), given("softcap"), name, *shape))
    query, key, value = autocast(query, key, value)
    lengths, documents = _integers(given("key_lengths"), query), _integers(given("document_ids"), query)
    learnable = query, key, value, factor, attn_mask, *tables, sink, bias, alpha
    return Arguments(*learnable, lengths, documents, form)


def _integers(given: Any, query: Tensor) -> Tensor | None:
    """Integers as a tensor; a tensor stays on its device."""
    if given is None:
        return None
    return given if isinstance(given, Tensor) else torch.as_tensor(given, device=query.device)


#: What a form begins with: multiplier, law, learned and lengths. This is that of ``scale=None``.
_STANDARD: tuple[Any, Any, Any, Any] = (None, "", (), ())


def _read_scale(scale: Any) -> tuple[Tensor | None, tuple[Any, Any, Any, Any]]:
    """The tensor of a scale, and the fields of a form that describe the scale."""
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
    """The name of a normalizer, and the tensors of one that has some: sink, bias and alpha."""
    if not isinstance(normalizer, (Normalizer, Sink, Sigmoid, Entmax)):
        normalizers.get(normalizer)  # an error
    return (
        normalizer.spelling if isinstance(normalizer, Normalizer) else "",
        normalizer.logits if isinstance(normalizer, Sink) else None,
        normalizer.bias if isinstance(normalizer, Sigmoid) else None,
        normalizer.alpha if isinstance(normalizer, Entmax) else None,
    )


def text_of_causal(causal: str | int | None) -> str:
    """The value of ``causal=`` as text, which an operator's schema can have."""
    return "" if causal is None else str(causal)


def causal_of_text(text: str) -> str | int | None:
    """The value of ``causal=`` that a text means; the inverse of :func:`text_of_causal`."""
    return int(text) if text.lstrip("-").isdigit() else text or None


def sink_of_array(logits: NDArray[np.float64]) -> Normalizer:
    """A sink with one logit for each head, (heads,), or for each row, (batch, heads, n_queries)."""
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
