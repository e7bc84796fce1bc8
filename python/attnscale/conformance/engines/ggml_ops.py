# SPDX-License-Identifier: BSD-3-Clause
"""flash_attn_ext and soft_max_ext of ggml, by the libraries inside a wheel of pywhispercpp."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.metadata import files
from typing import Any

import numpy as np

from ._calls import added_mask, heads_agree, one_number, sink_logits
from ._engine import Engine, refuse

#: Types of ggml by the names of NumPy.
_TYPES = {"float32": 0, "float16": 1, "bfloat16": 30}
#: Arguments of the functions that are called: p a pointer, i and l integers, f a float, z a size.
_FUNCTIONS = {
    "ggml_new_tensor_4d": "pillll",
    "ggml_get_data": "p",
    "ggml_free": "p",
    "ggml_flash_attn_ext": "pppppfff",
    "ggml_flash_attn_ext_add_sinks": "pp",
    "ggml_mul_mat": "ppp",
    "ggml_soft_max_ext": "pppff",
    "ggml_soft_max_add_sinks": "pp",
    "ggml_new_graph_custom": "pzi",
    "ggml_build_forward_expand": "pp",
    "ggml_graph_compute_with_ctx": "ppi",
}
_KINDS = {
    "p": ctypes.c_void_p,
    "i": ctypes.c_int,
    "l": ctypes.c_int64,
    "f": ctypes.c_float,
    "z": ctypes.c_size_t,
}


class _Parameters(ctypes.Structure):
    _fields_ = (("size", ctypes.c_size_t), ("buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool))


class _Context:
    """Memory of ggml, and its functions."""

    def __init__(self, size: int) -> None:
        self._functions = _library()
        self._context = self._functions["ggml_init"](_Parameters(size, None, False))

    def __call__(self, name: str, *given: Any) -> Any:
        return self._functions["ggml_" + name](self._context, *given)

    def plain(self, name: str, *given: Any) -> Any:
        """A function that takes no context."""
        return self._functions["ggml_" + name](*given)

    def tensor(self, array: Any) -> Any:
        """A tensor with the numbers of an array; ggml counts axes from the last."""
        array = np.ascontiguousarray(array)
        shape = (*array.shape[::-1], *(1,) * (4 - array.ndim))
        made = self("new_tensor_4d", _TYPES[array.dtype.name], *shape)
        ctypes.memmove(self.plain("get_data", made), array.ctypes.data, array.nbytes)
        return made

    def compute(self, *results: Any) -> None:
        graph = self("new_graph_custom", 64, 0)
        for result in results:
            self.plain("build_forward_expand", graph, result)
        self("graph_compute_with_ctx", graph, 1)

    def array(self, tensor: Any, *shape: int) -> Any:
        """A copy of the float32 numbers of a tensor."""
        numbers = ctypes.cast(self.plain("get_data", tensor), ctypes.POINTER(ctypes.c_float))
        return np.ctypeslib.as_array(numbers, shape).copy()


@contextmanager
def _memory(*arrays: Any) -> Iterator[_Context]:
    context = _Context(2**22 + 16 * sum(x.size for x in arrays))
    try:
        yield context
    finally:
        context("free")


@cache
def _library() -> dict[str, Any]:
    """The functions of ggml by name."""
    found = {str(path).rpartition("/")[2]: path for path in files("pywhispercpp") or ()}
    loaded = [
        ctypes.CDLL(str(path.locate()), ctypes.RTLD_GLOBAL)
        for part in ("libggml-base-", "libggml-cpu-")
        for name, path in found.items()
        if name.startswith(part)
    ]
    functions: dict[str, Any] = {}
    for name, kinds in {"ggml_init": "", **_FUNCTIONS}.items():
        function = getattr(loaded["compute" in name], name)
        function.argtypes = [_Parameters] if name == "ggml_init" else [_KINDS[kind] for kind in kinds]
        function.restype = ctypes.c_void_p
        functions[name] = function
    return functions


def _checked(arrays: tuple[Any, ...], enable_gqa: bool, rest: dict[str, Any]) -> None:
    """Refuse what ends the process."""
    refuse(rest, *arrays)
    heads_agree(arrays, enable_gqa)
    query, key, value = arrays
    if not all(x.size for x in arrays):
        raise NotImplementedError("no arrays without numbers")
    if query.dtype.name not in _TYPES:
        raise NotImplementedError("no arrays of float64")
    if query.shape[3] != key.shape[3] or key.shape[2] != value.shape[2] or query.shape[1] % key.shape[1]:
        raise NotImplementedError("arrays of sizes that agree")


def _flash(
    query: Any,
    key: Any,
    value: Any,
    *,
    attn_mask: Any = None,
    scale: Any = None,
    softcap: Any = None,
    normalizer: Any = None,
    enable_gqa: bool = False,
    **rest: Any,
) -> Any:
    _checked((query, key, value), enable_gqa, rest)
    batch, heads, n_queries, width = query.shape
    factor = one_number(scale)
    sinks = sink_logits(normalizer, heads, np.float32)
    mask = None if attn_mask is None else added_mask(attn_mask, query, key, np.float16)
    with _memory(query, key, value, *([] if mask is None else [mask])) as ggml:
        given = [ggml.tensor(query.astype(np.float32)), ggml.tensor(key), ggml.tensor(value)]
        given.append(None if mask is None else ggml.tensor(mask))
        numbers = (width**-0.5 if factor is None else factor, 0.0, softcap or 0.0)
        result = ggml("flash_attn_ext", *given, *numbers)
        if sinks is not None:
            ggml.plain("flash_attn_ext_add_sinks", result, ggml.tensor(sinks))
        ggml.compute(result)
        return ggml.array(result, batch, n_queries, heads, value.shape[3]).swapaxes(1, 2)


def _soft_max(
    query: Any,
    key: Any,
    value: Any,
    *,
    attn_mask: Any = None,
    scale: Any = None,
    normalizer: Any = None,
    enable_gqa: bool = False,
    **rest: Any,
) -> Any:
    _checked((query, key, value), enable_gqa, rest)
    batch, heads, n_queries, width = query.shape
    factor = one_number(scale)
    sinks = sink_logits(normalizer, heads, np.float32)
    mask = None if attn_mask is None else added_mask(attn_mask, query, key, np.float32)
    size = np.empty((batch, heads, n_queries, key.shape[2]))
    with _memory(query, key, value, size, size, *([] if mask is None else [mask])) as ggml:
        scores = ggml("mul_mat", ggml.tensor(key), ggml.tensor(query.astype(np.float32)))
        given = None if mask is None else ggml.tensor(mask)
        weights = ggml("soft_max_ext", scores, given, width**-0.5 if factor is None else factor, 0.0)
        if sinks is not None:
            ggml.plain("soft_max_add_sinks", weights, ggml.tensor(sinks))
        result = ggml("mul_mat", ggml.tensor(value.swapaxes(2, 3)), weights)
        ggml.compute(result)
        return {
            "output": ggml.array(result, batch, heads, n_queries, value.shape[3]),
            "scores": ggml.array(scores, *size.shape),
            "weights": ggml.array(weights, *size.shape),
        }


_REQUIREMENTS = ("pywhispercpp==1.5.1",)
_NOTES = "ggml 0.13.1, one thread. Keys and values keep their type, queries become float32; masks are full"

GGML = Engine(
    name="ggml",
    call="ggml_flash_attn_ext",
    package="pywhispercpp",
    run_with="1.5.1",
    attend=_flash,
    requirements=_REQUIREMENTS,
    notes=f"{_NOTES} and of float16, as the operator demands.",
)

GGML_SOFTMAX = Engine(
    name="ggml-softmax",
    call="ggml_mul_mat, ggml_soft_max_ext, ggml_mul_mat",
    package="pywhispercpp",
    run_with="1.5.1",
    attend=_soft_max,
    requirements=_REQUIREMENTS,
    notes=f"{_NOTES} and of float32. Scores are those before the scale.",
)
