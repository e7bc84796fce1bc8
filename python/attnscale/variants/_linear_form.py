# SPDX-License-Identifier: BSD-3-Clause
"""The linear-time families as the core takes them: from rows to features, from sums to outputs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .._call.call import read_num_threads
from .._checks import as_array
from .._core import linear
from ._arrays import wide_type
from ._heads import Whole, offset_of, read_call

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .._call.types import VariantOptions

    KeySums = tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]


@dataclass(frozen=True, eq=False)
class LinearForm:
    """A family with its options, which the core reads by their names, but for those of Python alone."""

    map: str  # one of _core.feature_map_names
    norm: str = "weights"  # one of _core.linear_norm_names
    scale: float = 1.0
    projection: NDArray[np.float64] | None = None
    norm_factor: float = 0.0
    shift: float = 0.0
    # Of Python alone.
    #: For "turned": the number of positions in a quarter of a turn.
    max_length: int = 1
    #: Of "given": the features of rows (..., n, head_dim), checked.
    function: Callable[[NDArray[Any]], NDArray[Any]] | None = None

    def rows(self, array: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
        """What the core reads in place of rows of queries or keys; `dtype`: of the arithmetic."""
        if self.function is None:
            return array
        rows = array.astype(dtype, copy=False)
        with np.errstate(all="ignore"):  # what overflows shows as infinity or NaN in the output
            return check_features("feature_map(x)", self.function(rows), rows.shape[:-1]).astype(
                dtype, copy=False
            )

    def turn(self, first: int, n: int) -> NDArray[np.float64] | None:
        """Cosine and sine at the positions first ... first + n - 1; None: the form does not turn rows."""
        return self.turns(first, n) if self.map == "turned" else None

    def turns(self, first: int, n: int) -> NDArray[np.float64]:
        """Cosine and sine at the positions first ... first + n - 1, (n, 2)."""
        angle = np.arange(first, first + n) * (math.pi / (2 * self.max_length))
        return np.stack([np.cos(angle), np.sin(angle)], axis=-1)

    def features(self, dim: int) -> int:
        """Features of a row that the core reads."""
        if self.projection is not None:
            return int(self.projection.shape[1])
        return 2 * dim if self.map == "turned" else dim


class LinearCall(NamedTuple):
    """What the core reads and writes, by name: query and out, key and value, or all four.

    Rows are (..., n, dim), and None is what a call does not have.
    """

    form: LinearForm
    query: NDArray[Any] | None = None
    key: NDArray[Any] | None = None
    value: NDArray[Any] | None = None
    out: NDArray[Any] | None = None
    sums: KeySums | None = None  # of a call that lacks queries, and then adds to them, or keys
    offset: int | None = None  # query i sees the keys 0 ... i + offset; None: all
    query_turn: NDArray[np.float64] | None = None
    key_turn: NDArray[np.float64] | None = None
    decay: NDArray[np.float64] | None = None  # logarithms (..., n_keys)
    n_summed: int = 0  # keys in the sums
    num_threads: int = 0  # 0: the default


class LinearGradientCall(NamedTuple):
    """What the core reads and writes for gradients, by name.

    Each head has gradients of its own, also of keys that heads share.
    """

    form: LinearForm
    query: NDArray[Any]
    key: NDArray[Any]
    value: NDArray[Any]
    grad: NDArray[Any]  # of the output
    query_out: NDArray[Any]
    key_out: NDArray[Any]
    value_out: NDArray[Any]
    offset: int | None = None
    query_turn: NDArray[np.float64] | None = None
    key_turn: NDArray[np.float64] | None = None
    decay: NDArray[np.float64] | None = None
    decay_out: NDArray[np.float64] | None = None
    num_threads: int = 0


def check_features(name: str, found: Any, rows: tuple[int, ...]) -> NDArray[Any]:
    """`found` as features of rows of that shape."""
    array = as_array(name, found)
    if array.dtype.kind != "f" and array.dtype.name != "bfloat16":
        raise TypeError(f"{name} must be floating point, got {array.dtype}")
    if array.ndim != len(rows) + 1 or array.shape[:-1] != rows:
        raise ValueError(f"{name} must have the shape (*{rows}, features) of its rows, got {array.shape}")
    if array.size and array.min() < 0:
        raise ValueError(f"{name} must not be negative: weights would be; got {array.min():.6g}")
    return array


def attend_in(
    read_form: Callable[[Whole], LinearForm], query: Any, key: Any, value: Any, options: VariantOptions
) -> NDArray[Any]:
    """The output of a call with these options in the form that its arrays are read to have."""
    inputs, result, output = read_call(query, key, value, options)
    offset = offset_of(inputs, options.get("is_causal", False), options.get("causal"))
    attend(read_form(inputs), inputs, output, offset, options.get("num_threads"))
    return result


def attend(
    form: LinearForm,
    inputs: Whole,
    output: NDArray[Any],
    offset: int | None,
    num_threads: Any,
    decay: NDArray[np.float64] | None = None,
) -> None:
    """Write the output of every query: over all keys, or (with an offset) over the keys 0 ... i + offset.

    `decay`: logarithms (..., n_keys) of what is left of the sums when a key is added.
    """
    dtype = wide_type(inputs.dtype)
    linear(
        LinearCall(
            form,
            query=form.rows(inputs.query, dtype),
            key=form.rows(inputs.key, dtype),
            value=inputs.value,
            out=output,
            offset=offset,
            query_turn=form.turn(offset or 0, inputs.query.shape[-2]),
            key_turn=form.turn(0, inputs.key.shape[-2]),
            decay=decay,
            num_threads=read_num_threads(num_threads),
        )
    )


def empty_sums(leading: tuple[int, ...], features: int, value_dim: int) -> KeySums:
    """References, z and S before any key."""
    lead = (*leading, 1, features)
    return np.full(lead, -np.inf), np.zeros(lead), np.zeros((*leading, features, value_dim))


def sum_keys(
    form: LinearForm,
    inputs: Whole,
    sums: KeySums | None,
    first: int,
    decay: NDArray[np.float64] | None = None,
) -> KeySums:
    """`sums` and those of keys, the first of which has the position `first`."""
    key = form.rows(inputs.key, wide_type(inputs.dtype))
    if sums is None:
        taken = empty_sums(inputs.leading, form.features(key.shape[-1]), inputs.value.shape[-1])
    else:
        reference, total, products = sums
        # Copies: an interrupted call leaves the state as it was.
        taken = reference.copy(), total.copy(), products.copy()
    turn = form.turn(first, key.shape[-2])
    linear(LinearCall(form, key=key, value=inputs.value, sums=taken, key_turn=turn, decay=decay))
    return taken


def read_sums(
    form: LinearForm, query: NDArray[Any], sums: KeySums, n_keys: int, output: NDArray[Any]
) -> None:
    """Write the outputs of queries that see those keys, the last query beside the last key."""
    n = query.shape[-2]
    linear(
        LinearCall(
            form,
            query=form.rows(query, wide_type(query.dtype)),
            out=output,
            sums=sums,
            query_turn=form.turn(n_keys - n, n),
            n_summed=n_keys,
        )
    )
