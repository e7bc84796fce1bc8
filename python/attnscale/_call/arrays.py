# SPDX-License-Identifier: BSD-3-Clause
"""Query, key, value and out: from the caller's objects to arrays that fit each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from .._base.checks import as_array, boolean, check_writable

if TYPE_CHECKING:
    from typing import TypeAlias

    from numpy.typing import NDArray

    _Shape = tuple[int, ...]
    _Array: TypeAlias = "NDArray[Any] | Unread"

LAYOUTS = ("bhsd", "bshd")
#: A module's own name is looked up faster than NumPy's, which counts in a small call.
ARRAY = np.ndarray

# NumPy's own types, in native byte order; bfloat16 is known by name.
FLOAT64, FLOAT32, _FLOAT16 = np.dtype("float64"), np.dtype("float32"), np.dtype("float16")
_FLOAT_TYPES = frozenset((FLOAT64, FLOAT32, _FLOAT16))
_FLOAT_NAMES = "float64, float32, float16 or bfloat16"
_NUMPY_TYPES = {"float32": "np.float32", "bool": "bool"}
#: Methods that convert, where they are not NumPy's, by the module of the array's type.
_CONVERSIONS = {
    "torch": {"float32": "float()", "bool": "bool()"},
    "jax": {"float32": "astype(jnp.float32)"},
    "jaxlib": {"float32": "astype(jnp.float32)"},
}


@dataclass(frozen=True, slots=True)
class Unread:
    """An array known by shape and type alone, such as one of a program that is being traced."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def __repr__(self) -> str:
        return f"an array of shape {self.shape} and type {self.dtype}"

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def reshape(self, shape: tuple[int, ...]) -> Unread:
        return Unread(shape, self.dtype)


class Extents(NamedTuple):
    """Extents of a call whose query, key and value fit each other."""

    leading: tuple[int, ...]  # (..., heads) of the result; () for 2-D input
    n_queries: int
    n_keys: int
    head_dim: int
    value_dim: int | None  # None: there is no value
    dtype: np.dtype[Any]  # the common type of the arrays

    @property
    def row_shape(self) -> tuple[int, ...]:
        """(..., heads, n_queries)."""
        return (*self.leading, self.n_queries)

    @property
    def wide(self) -> np.dtype[Any]:
        """The type of the arithmetic, float64 or float32."""
        return FLOAT64 if self.dtype == FLOAT64 else FLOAT32


class Inputs(NamedTuple):
    """Arrays (..., heads, n, dim) of a call."""

    query: NDArray[Any]
    key: NDArray[Any]
    value: NDArray[Any] | None
    extents: Extents

    @property
    def dtype(self) -> np.dtype[Any]:
        """The common type of the arrays."""
        return self.extents.dtype

    @property
    def leading(self) -> tuple[int, ...]:
        """(..., heads) of the result; () for 2-D input."""
        return self.extents.leading

    @property
    def row_shape(self) -> tuple[int, ...]:
        """(..., heads, n_queries)."""
        return self.extents.row_shape


def is_float_type(dtype: np.dtype[Any]) -> bool:
    """Whether the core reads this type. ml_dtypes is not imported: its type is known by name."""
    return dtype in _FLOAT_TYPES or dtype.name == "bfloat16"


def read_inputs(query: Any, key: Any, value: Any, layout: str, *, enable_gqa: bool) -> Inputs:
    """Read and check the arrays, as views if possible; axes go by order, and `value` may be None."""
    q = _read("query", query)
    k = _read("key", key)
    v = None if value is None else _read("value", value)
    extents = read_extents(q, k, v, layout, enable_gqa=enable_gqa)
    if layout == "bshd":
        q, k, v = laid_out(q, layout), laid_out(k, layout), None if v is None else laid_out(v, layout)
    return tuple.__new__(Inputs, (q, k, v, extents))  # the same as Inputs(...), at half the cost


def read_extents(
    query: _Array, key: _Array, value: _Array | None, layout: str, *, enable_gqa: bool
) -> Extents:
    """Extents of a call with arrays of these shapes, whose axes are those of the layout, and types."""
    if enable_gqa is not False:
        boolean("enable_gqa", enable_gqa)
    q, k, v = query.shape, key.shape, None if value is None else value.shape
    if len(q) < 2 or len(k) < 2 or (v is not None and len(v) < 2):
        _explain_axes(q, k, v)
    if layout == "bshd":
        q, k, v = shape_in(layout, q), shape_in(layout, k), None if v is None else shape_in(layout, v)
    if q[-1] != k[-1] or (v is not None and k[-2] != v[-2]):
        _explain_inner_axes(q, k, v)
    dtype = query.dtype
    if key.dtype is not dtype or (value is not None and value.dtype is not dtype):
        dtype = _common_type({x.dtype for x in (query, key, value) if x is not None})
    leading = q[:-2]
    if leading != k[:-2] or (v is not None and leading != v[:-2]):
        leading = _broadcast_leading(q, k, v, enable_gqa=enable_gqa)
    value_dim = None if v is None else v[-1]
    return tuple.__new__(Extents, (leading, q[-2], k[-2], q[-1], value_dim, dtype))


def laid_out(array: NDArray[Any], layout: str) -> NDArray[Any]:
    """An array (..., heads, n, dim) with the axes of the layout, and back; 2-D arrays have no heads."""
    return array.swapaxes(-3, -2) if layout == "bshd" and array.ndim > 2 else array


def shape_in(layout: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape in the layout of an array (..., heads, n, dim), and back."""
    return (*shape[:-3], shape[-2], shape[-3], shape[-1]) if layout == "bshd" and len(shape) > 2 else shape


def make_output(inputs: Inputs, value_dim: int, layout: str, out: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    """The array to return, and a view of it as (..., heads, n_queries, value_dim)."""
    leading, n_queries, *_, dtype = inputs.extents
    shape = (*leading, n_queries, value_dim)
    swapped = layout == "bshd"
    if swapped:
        shape = shape_in(layout, shape)
    if out is None:
        try:
            out = np.empty(shape, dtype)
        except ValueError:  # NumPy's answer to a size beyond the address space
            raise MemoryError(f"an output of shape {shape} and type {dtype} is too large") from None
    else:
        _check_out(out, shape, inputs)
    return out, laid_out(out, layout) if swapped else out


def _common_type(dtypes: set[np.dtype[Any]]) -> np.dtype[Any]:
    """np.result_type, and float32 for float16 with bfloat16, since float32 holds both."""
    if len(dtypes) == 1:
        return dtypes.pop()
    return FLOAT64 if FLOAT64 in dtypes else FLOAT32


def _read(name: str, value: Any) -> NDArray[Any]:
    array = value if type(value) is ARRAY else as_array(name, value)
    dtype = array.dtype
    if dtype is not FLOAT32 and not is_float_type(dtype):
        if value is None:
            raise TypeError(f"{name} must be an array, got None")
        array = in_native_order(name, array, value)
    return array


def in_native_order(name: str, array: NDArray[Any], given: Any = None) -> NDArray[Any]:
    """The array in native byte order, if the core reads its type; `given` is its source, for the error."""
    dtype = array.dtype
    if is_float_type(dtype):
        return array
    if dtype.newbyteorder("=") not in _FLOAT_TYPES:
        raise float_type_error(name, array if given is None else given, dtype)
    return array.astype(dtype.newbyteorder("="))


def float_type_error(name: str, given: Any, dtype: np.dtype[Any]) -> TypeError:
    """The error for an array that is not of a float type, with the conversion that its library offers."""
    hint = f"; use {conversion(name, given, 'float32')}" if dtype.kind in "iub" else ""
    return TypeError(f"{name} must be {_FLOAT_NAMES}, got {dtype}{hint}")


def conversion(name: str, given: Any, to: Literal["float32", "bool"]) -> str:
    """Words that convert an array, a tensor or numbers in a list to a type, for the hint of an error."""
    while isinstance(given, np.ndarray) and given.base is not None:  # views of a tensor lead to the tensor
        given = given.base
    if isinstance(given, list | tuple | int):
        return f"np.asarray({name}, {_NUMPY_TYPES[to]})"
    of = type(given).__module__.partition(".")[0]
    return f"{name}.{_CONVERSIONS.get(of, {}).get(to, f'astype({_NUMPY_TYPES[to]})')}"


def _explain_axes(*shapes: _Shape | None) -> None:
    for name, shape in zip(("query", "key", "value"), shapes, strict=True):
        if shape is not None and len(shape) < 2:
            raise ValueError(f"{name} must have at least 2 axes (..., n, dim), got shape {shape}")


def _explain_inner_axes(query: _Shape, key: _Shape, value: _Shape | None) -> None:
    if query[-1] != key[-1]:
        raise ValueError(
            f"query and key must have the same last dimension (head_dim), got {query[-1]} and {key[-1]}"
        )
    assert value is not None
    raise ValueError(f"key and value must have the same number of keys, got {key[-2]} and {value[-2]}")


def _broadcast_leading(q: _Shape, k: _Shape, v: _Shape | None, *, enable_gqa: bool) -> _Shape:
    """(..., heads) of the result. Batch axes broadcast; heads follow enable_gqa."""
    shapes = [("query", q), ("key", k)] + ([] if v is None else [("value", v)])
    try:
        batch = np.broadcast_shapes(*(x[:-3] for _, x in shapes))
    except ValueError:
        seen = " and ".join(f"{name} {x[:-3]}" for name, x in shapes)
        raise ValueError(f"the batch axes must broadcast, got {seen}") from None
    heads = [(name, x[-3]) for name, x in shapes if len(x) > 2]
    if not heads:
        return ()
    if enable_gqa and len(q) > 2:
        _check_groups(heads)
        return (*batch, q[-3])
    extents = {n for _, n in heads if n != 1}
    if len(extents) > 1:
        _explain_heads(heads)
    return (*batch, extents.pop() if extents else 1)


def _check_groups(heads: list[tuple[str, int]]) -> None:
    n_heads = heads[0][1]
    for name, kv_heads in heads[1:]:
        if kv_heads != n_heads and (kv_heads == 0 or n_heads % kv_heads):
            raise ValueError(
                f"enable_gqa=True needs a number of query heads that is a multiple of the {name} heads, "
                f"got {n_heads} and {kv_heads}"
            )


def _explain_heads(heads: list[tuple[str, int]]) -> None:
    seen = ", ".join(f"{name} {n}" for name, n in heads)
    n_heads = heads[0][1]
    grouped = heads[0][0] == "query" and all(n and n_heads % n == 0 for _, n in heads)
    hint = ". Pass enable_gqa=True to let groups of query heads share a key head" if grouped else ""
    raise ValueError(f"the numbers of heads must be equal or 1, got {seen}{hint}")


def _check_out(out: Any, shape: tuple[int, ...], inputs: Inputs) -> None:
    if not isinstance(out, np.ndarray):
        raise TypeError(f"out must be a NumPy array, got {type(out).__name__}")
    if out.shape != shape:
        raise ValueError(f"out must have the shape of the output, {shape}, got {out.shape}")
    if out.dtype != inputs.dtype:
        raise TypeError(f"out must have the type of the output, {inputs.dtype}, got {out.dtype}")
    check_writable("out", out)
    if out.size and any(stride == 0 and n > 1 for stride, n in zip(out.strides, shape, strict=True)):
        raise ValueError(f"out must not overlap itself, got strides {out.strides}")
    for name, array in (("query", inputs.query), ("key", inputs.key), ("value", inputs.value)):
        if array is not None and _overlap(out, array):
            raise ValueError(f"out must not overlap {name}, which is read while out is written")


def _overlap(a: NDArray[Any], b: NDArray[Any]) -> bool:
    # Exact overlap is a hard problem for wild strides; beyond this much work, assume the worst.
    try:
        return np.shares_memory(a, b, max_work=10_000)  # type: ignore[arg-type]  # any int >= -1
    except np.exceptions.TooHardError:
        return True
