# SPDX-License-Identifier: BSD-3-Clause
"""Linear-time families in the form of the core: features from rows, outputs from sums, and states."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from .._base.checks import as_array, boolean
from .._call.arrays import Inputs, Unread, laid_out, read_extents, read_inputs
from .._call.plan import read_num_threads
from .._core import linear
from ._arrays import Whole, offset_of, read_layout, read_whole, read_with_output, wide_type

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from .._call.options import VariantOptions

    KeySums = tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]
    _Shapes = tuple[tuple[int, ...], tuple[int, ...]]  # shapes of keys and values, without their number


@dataclass(frozen=True, eq=False)
class LinearForm:
    """A family with its options, which the core reads by name, except those for Python."""

    map: str  # one of _core.feature_map_names
    norm: str = "weights"  # one of _core.linear_norm_names
    scale: float = 1.0
    projection: NDArray[np.float64] | None = None
    norm_factor: float = 0.0
    shift: float = 0.0
    # For Python only.
    #: For "turned": the number of positions in a quarter of a turn.
    max_length: int = 1
    #: For "given": function that returns the checked features of rows (..., n, head_dim).
    function: Callable[[NDArray[Any]], NDArray[Any]] | None = None

    def rows(self, array: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Rows that the core reads in place of queries or keys; `dtype` is that of the arithmetic."""
        if self.function is None:
            return array
        rows = array.astype(dtype, copy=False)
        with np.errstate(all="ignore"):  # overflow shows as infinity or NaN in the output
            return check_features("feature_map(x)", self.function(rows), rows.shape[:-1]).astype(
                dtype, copy=False
            )

    def turn(self, first: int, n: int) -> NDArray[np.float64] | None:
        """Cosine and sine at the positions first ... first + n - 1; None if the form does not rotate rows."""
        return self.turns(first, n) if self.map == "turned" else None

    def turns(self, first: int, n: int) -> NDArray[np.float64]:
        """Cosine and sine at the positions first ... first + n - 1, (n, 2)."""
        angle = np.arange(first, first + n) * (math.pi / (2 * self.max_length))
        return np.stack([np.cos(angle), np.sin(angle)], axis=-1)

    def features(self, dim: int) -> int:
        """Number of features per row that the core reads."""
        if self.projection is not None:
            return int(self.projection.shape[1])
        return 2 * dim if self.map == "turned" else dim


class LinearCall(NamedTuple):
    """Input and output of the core, by name, with rows (..., n, dim); None: not in this call."""

    form: LinearForm
    query: NDArray[Any] | None = None
    key: NDArray[Any] | None = None
    value: NDArray[Any] | None = None
    out: NDArray[Any] | None = None
    sums: KeySums | None = None  # read by a call without keys, extended by a call without queries
    offset: int | None = None  # query i sees the keys 0 ... i + offset; None: all
    query_turn: NDArray[np.float64] | None = None
    key_turn: NDArray[np.float64] | None = None
    decay: NDArray[np.float64] | None = None  # logarithms (..., n_keys)
    n_summed: int = 0  # keys in the sums
    num_threads: int = 0  # 0: the default


class LinearGradientCall(NamedTuple):
    """Input and output of the core for gradients, by name; each head has its own, also of shared keys."""

    form: LinearForm
    query: NDArray[Any]
    key: NDArray[Any]
    value: NDArray[Any]
    grad: NDArray[Any]  # gradient of the output
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
    """The output of a call with these options; `read_form` returns the form from the inputs."""
    inputs, result, output = read_with_output(query, key, value, options)
    offset = offset_of(inputs.extents, options.get("is_causal", False), options.get("causal"))
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

    `decay`: logarithms (..., n_keys) of the factor of the sums when a key is added.
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
    """Add sums of keys to `sums`; the first key has the position `first`."""
    key = form.rows(inputs.key, wide_type(inputs.dtype))
    if sums is None:
        taken = empty_sums(inputs.leading, form.features(key.shape[-1]), inputs.value.shape[-1])
    else:
        reference, total, products = sums
        # Copies, so that an interrupted call leaves the state unchanged.
        taken = reference.copy(), total.copy(), products.copy()
    turn = form.turn(first, key.shape[-2])
    linear(LinearCall(form, key=key, value=inputs.value, sums=taken, key_turn=turn, decay=decay))
    return taken


def read_sums(
    form: LinearForm, query: NDArray[Any], sums: KeySums, n_keys: int, output: NDArray[Any]
) -> None:
    """Write the outputs of queries that see these keys, the last query beside the last key."""
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


#: Fields of a form that decide the meaning of its sums, with the options that they come from.
_OPTIONS = {
    "norm": "normalization",
    "map": "feature_map",
    "function": "feature_map",
    "scale": "scale",
    "max_length": "max_length",
    "norm_factor": "scale",
    "projection": "projection",
}


class State:
    """Sums over the keys and values so far, for later queries.

    Each family has its own subclass, with the options of its function. ``update`` adds keys and values,
    ``read`` answers queries that see all of them, ``merge`` joins two states over different keys.
    in, ``read`` answers queries that see all of them, ``merge`` joins two states over different keys.

    Attributes
    ----------
    n_keys : int
        Number of keys so far.

    Examples
    --------
    >>> import numpy as np, attnscale as at
    >>> rng = np.random.default_rng(0)
    >>> q, k, v = rng.standard_normal((3, 2, 10, 4))
    >>> state = at.variants.EfficientState()
    >>> rows = [state.update(k[:, [i]], v[:, [i]]).read(q[:, [i]]) for i in range(10)]
    >>> causal = at.variants.efficient_attention(q, k, v, is_causal=True)
    >>> bool(np.allclose(np.concatenate(rows, axis=1), causal))
    True
    """

    n_keys: int

    def __init__(self, form: LinearForm, *, enable_gqa: bool, layout: str) -> None:
        self._form = form
        self._sums: KeySums | None = None
        self._enable_gqa = boolean("enable_gqa", enable_gqa)
        self._layout = read_layout(layout)
        self._shapes: _Shapes | None = None
        self.n_keys = 0

    def update(self, key: ArrayLike, value: ArrayLike) -> Self:
        """Add keys and values after earlier ones; returns the state itself.

        Parameters
        ----------
        key : array_like, shape (..., kv_heads, n, head_dim)
        value : array_like, shape (..., kv_heads, n, value_dim)

        Raises
        ------
        TypeError, ValueError
            As exact attention, and if heads or dimensions differ from the first update.
        """
        inputs = read_whole(key, key, value, self._layout, enable_gqa=False)
        self._expect(self.n_keys + inputs.key.shape[-2])
        self._check_shapes(inputs.key, inputs.value)
        self._sums = sum_keys(self._form, inputs, self._sums, self.n_keys)
        self.n_keys += inputs.key.shape[-2]
        return self

    def read(self, query: ArrayLike) -> NDArray[Any]:
        """Outputs of queries that see all keys so far, the last query beside the last key.

        Parameters
        ----------
        query : array_like, shape (..., heads, n, head_dim)

        Returns
        -------
        ndarray, shape (..., heads, n, value_dim)

        Raises
        ------
        TypeError, ValueError
            As exact attention, and if the state has no keys yet.
        """
        if self._sums is None or self._shapes is None:
            raise ValueError("the state holds no keys yet; update(key, value) comes before read(query)")
        inputs, shape = self._read_query(query, self._shapes)
        self._expect(max(self.n_keys, shape[-2]))
        output = np.empty(shape, inputs.dtype)
        read_sums(self._form, inputs.query, self._sums, self.n_keys, output)
        return laid_out(output, self._layout)

    def merge(self, other: Self) -> Self:
        """The state over the keys of both, those of `other` last; neither is changed.

        Raises
        ------
        TypeError
            If `other` is of another family.
        ValueError
            If the shapes, or the options of the family, differ.
        """
        if type(other) is not type(self):
            raise TypeError(f"other must be a {type(self).__name__}, got {type(other).__name__}")
        if self._shapes and other._shapes and self._shapes != other._shapes:
            raise ValueError(
                "the states must have the same shapes, "
                f"got {_shown(self._shapes)}, and {_shown(other._shapes)}"
            )
        self._check_form(other._form)
        self._expect(self.n_keys + other.n_keys)
        merged = copy.copy(self)
        merged._sums = self._sums
        if other._sums is not None:
            after = other._after(other._sums, self.n_keys)
            merged._sums = after if self._sums is None else _merged(self._sums, after)
        merged._shapes = self._shapes or other._shapes
        merged.n_keys = self.n_keys + other.n_keys
        return merged

    def _check_form(self, other: LinearForm) -> None:
        """Refuse sums made with other options, which cannot be added."""
        for field, option in _OPTIONS.items():
            mine, theirs = getattr(self._form, field), getattr(other, field)
            if not np.array_equal(mine, theirs):
                plain = isinstance(mine, (int, float)) and field != "norm_factor"
                seen = f"{mine} and {theirs}" if plain else "different ones"
                raise ValueError(f"the states must have the same {option}, got {seen}")

    def _expect(self, n_positions: int) -> None:
        """Refuse more positions than the family allows; any number by default."""

    def _after(self, sums: KeySums, n_keys: int) -> KeySums:
        """The sums, moved after `n_keys` other keys."""
        return sums

    def _read_query(self, query: ArrayLike, shapes: _Shapes) -> tuple[Inputs, tuple[int, ...]]:
        q = query if self._layout == "bhsd" else laid_out(np.asarray(query), self._layout)
        inputs = read_inputs(q, q, None, "bhsd", enable_gqa=False)
        key, value = (Unread(shape, inputs.dtype) for shape in shapes)
        extents = read_extents(inputs.query, key, value, "bhsd", enable_gqa=self._enable_gqa)
        return inputs._replace(extents=extents), (*extents.row_shape, value.shape[-1])

    def _check_shapes(self, key: NDArray[Any], value: NDArray[Any]) -> None:
        shapes = (*key.shape[:-2], 0, key.shape[-1]), (*value.shape[:-2], 0, value.shape[-1])
        if self._shapes is not None and shapes != self._shapes:
            raise ValueError(
                "key and value must have the heads and dimensions of the first update, "
                f"{_shown(self._shapes)}, got {_shown(shapes)}"
            )
        if self._enable_gqa and key.ndim > 2 and key.shape[-3] != value.shape[-3]:
            raise ValueError(
                f"key and value of a state must have the same heads, "
                f"got {key.shape[-3]} and {value.shape[-3]}"
            )
        self._shapes = shapes


def _shown(shapes: _Shapes) -> str:
    """Shapes of keys and values with n for their number: "key (2, n, 4) and value (2, n, 3)"."""
    key, value = (f"({', '.join(map(str, (*shape[:-2], 'n', shape[-1])))})" for shape in shapes)
    return f"key {key} and value {value}"


def _merged(one: KeySums, two: KeySums) -> KeySums:
    """The sums over the keys of both states; each feature has the larger reference of the two."""
    top = np.maximum(one[0], two[0])
    at = np.where(np.isneginf(top), 0, top)
    with np.errstate(invalid="ignore", over="ignore"):
        a, b = (np.where(part[0] == top, 1.0, np.exp(part[0] - at)) for part in (one, two))
        total = one[1] * a + two[1] * b
        products = one[2] * np.swapaxes(a, -1, -2) + two[2] * np.swapaxes(b, -1, -2)
    return top, total, products
