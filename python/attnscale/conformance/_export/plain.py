# SPDX-License-Identifier: BSD-3-Clause
"""Calls that other benches can hold: four axes, numbers and arrays as they are stored, and the answer."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ... import normalizers
from ...exact.forward import attention_statistics
from ...laws import Law

if TYPE_CHECKING:
    from .._call import Case

#: Types of arrays that every form has.
DTYPES = ("float32", "float16", "bfloat16")

#: Options that a plain call may have.
_OPTIONS = frozenset(
    {
        *("is_causal", "causal", "window", "attn_mask", "key_lengths", "document_ids"),
        *("scale", "softcap", "normalizer", "enable_gqa", "layout"),
    }
)


#: Least finite number of a mask.
_LOWEST = -1000


class PlainCall(NamedTuple):
    """A call on arrays of (batch, heads, n, dim), or (batch, n, heads, dim) if it is bshd."""

    query: NDArray[Any]
    key: NDArray[Any]
    value: NDArray[Any]
    output: NDArray[Any]
    bshd: bool = False
    causal: str = ""  # "top_left", "bottom_right" or "offset"
    offset: int = 0  # query i sees the keys up to i + offset
    window: tuple[int, int] | None = None  # -1: all keys on that side
    mask: NDArray[Any] | None = None  # with the axes that the case gives it
    lengths: NDArray[np.int64] | None = None  # (batch,)
    documents: NDArray[np.int32] | None = None  # (batch, n_keys)
    scale: float | None = None  # exact in single precision, as is softcap
    softcap: float | None = None
    sink: NDArray[np.float32] | None = None  # a logit for each head

    @property
    def sizes(self) -> dict[str, int]:
        """Length of each axis by its name."""
        heads, queries = (2, 1) if self.bshd else (1, 2)
        return {
            "batch": self.query.shape[0],
            "heads": self.query.shape[heads],
            "key_heads": self.key.shape[heads],
            "queries": self.query.shape[queries],
            "keys": self.key.shape[queries],
            "dim": self.key.shape[3],
            "value_dim": self.value.shape[3],
        }


def slug(name: str) -> str:
    """The name of a case in lower-case letters, digits and underscores."""
    spelled = re.sub(r"-(?=\d)", " minus ", name.lower().replace("+", " and "))
    return re.sub(r"[^a-z0-9]+", "_", spelled).strip("_")


def plain_call(case: Case, kind: np.dtype[Any]) -> PlainCall:
    """A case in a type of arrays; NotImplementedError says why it cannot be a plain call."""
    options = {name: each for name, each in case.options.items() if each is not None and each is not False}
    if left := sorted(options.keys() - _OPTIONS):
        raise NotImplementedError(f"no {', no '.join(left)}")
    _check_shapes(case)
    if "attn_mask" in options:
        options["attn_mask"] = _mask(options["attn_mask"], kind)
    options |= {name: _single(name, options[name]) for name in ("scale", "softcap") if name in options}
    arrays = [_stored(x, kind) for x in case.arrays()]
    output = _answer(arrays, options).astype(kind)
    call = PlainCall(arrays[0], arrays[1], arrays[2], output, bshd=options.get("layout") == "bshd")
    return call._replace(
        **_positions(options),
        **_rows(call, options),
        mask=options.get("attn_mask"),
        scale=options.get("scale"),
        softcap=options.get("softcap"),
        sink=_sink(options.get("normalizer"), call.sizes["heads"]),
    )


def _check_shapes(case: Case) -> None:
    shapes = [shape for shape in (case.query, case.key, case.value) if shape is not None and len(shape) == 4]
    if len(shapes) < 3:
        raise NotImplementedError("arrays of four axes only")
    if any(0 in shape for shape in shapes):
        raise NotImplementedError("no axis of length 0")
    if case.options.get("layout") == "bshd":
        shapes = [(batch, heads, n, dim) for batch, n, heads, dim in shapes]
    query, key, value = (shape[:3] for shape in shapes)
    if not query[0] == key[0] == value[0] or key != value or query[1] % key[1]:
        raise NotImplementedError("one batch, and as many heads of the key as of the value")


def _stored(array: NDArray[Any], kind: np.dtype[Any]) -> NDArray[Any]:
    with np.errstate(over="ignore"):
        found = array.astype(kind)
    if np.isinf(found).sum() > np.isinf(array).sum():
        raise NotImplementedError(f"no numbers beyond {kind.name}")
    return found


def _mask(mask: NDArray[Any], kind: np.dtype[Any]) -> NDArray[Any]:
    """A boolean mask, or numbers in the type of the arrays."""
    if mask.dtype == np.bool_:
        return mask
    if np.issubdtype(mask.dtype, np.integer):
        raise NotImplementedError("no mask of integers")
    with np.errstate(over="ignore"):  # lowest numbers of a wider type become -inf
        stored = mask.astype(kind)
    if ((stored < _LOWEST) & (stored != -np.inf)).any():
        raise NotImplementedError("no mask that hides by a number: where all keys have it, rounding decides")
    return stored


def _single(name: str, given: Any) -> float:
    """A number as it is in single precision."""
    if isinstance(given, (str, Law)) or np.ndim(given):
        raise NotImplementedError(f"one number as {name}")
    return float(np.float32(given))


def _positions(options: Mapping[str, Any]) -> dict[str, Any]:
    """The causal mask and the window."""
    causal = options.get("causal")
    kind = "top_left" if options.get("is_causal") or causal == 0 else ""
    if causal == "bottom_right":
        kind = causal
    elif causal:
        kind = "offset"
    left, right = (-1 if end is None else int(end) for end in options.get("window", (None, None)))
    return {
        "causal": kind,
        "offset": int(causal) if kind == "offset" and causal else 0,
        "window": None if left == right == -1 else (left, right),
    }


def _rows(call: PlainCall, options: Mapping[str, Any]) -> dict[str, Any]:
    """Lengths and documents of each text."""
    batch, n_keys = call.sizes["batch"], call.sizes["keys"]
    shapes = {"key_lengths": (batch,), "document_ids": (batch, n_keys)}
    kinds = {"key_lengths": np.int64, "document_ids": np.int32}
    found = {
        name: np.broadcast_to(np.asarray(options[name]).astype(kinds[name]), shape)
        for name, shape in shapes.items()
        if name in options
    }
    return {"lengths": found.get("key_lengths"), "documents": found.get("document_ids")}


def _sink(given: Any, heads: int) -> NDArray[np.float32] | None:
    """The logit of each head's sink; None without one."""
    normalizer = normalizers.get("softmax" if given is None else given)
    if isinstance(normalizer, normalizers.SoftmaxN):
        return np.full(heads, math.log(normalizer.n), np.float32)
    if isinstance(normalizer, normalizers.Sink):
        return np.broadcast_to(np.asarray(normalizer.logits, np.float32), heads)
    if not isinstance(normalizer, normalizers.Softmax):
        raise NotImplementedError("no normalizer but softmax and sinks")
    return None


def _answer(arrays: list[NDArray[Any]], options: Mapping[str, Any]) -> NDArray[np.float64]:
    exact = [x.astype(np.float64) for x in arrays]
    mask = options.get("attn_mask")
    if mask is not None and mask.dtype != np.bool_:
        options = {**options, "attn_mask": mask.astype(np.float64)}
    output = attention_statistics(*exact, **options).output
    assert output is not None
    return np.asarray(output, np.float64)
