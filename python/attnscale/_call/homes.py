# SPDX-License-Identifier: BSD-3-Clause
"""Results in the library, and on the device, of the query."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .._base.runtime import use_threads_of_torch

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: A function that makes an array of the caller's library from a NumPy array.
Convert = Callable[[Any], Any]


def home_of(array: Any) -> Convert | None:
    """A function that converts results to the library of `array`; None where NumPy arrays are returned.

    Tensors of PyTorch, arrays of JAX and of every library with the array API are converted. Sequences,
    buffers, subclasses of ndarray and objects that have only DLPack give NumPy arrays.
    """
    if is_tensor(array):
        use_threads_of_torch()
        return tensor
    if isinstance(array, (np.ndarray, np.generic)) or not hasattr(array, "__array_namespace__"):
        return None
    namespace = array.__array_namespace__()
    return lambda found: namespace.asarray(found)


def apply_at_home(function: Callable[[Any], Any], array: Any) -> Any:
    """Apply a NumPy function to an array of any library; returns an array of that library."""
    convert = home_of(array)
    return function(array) if convert is None else convert(function(np.asarray(array)))


@dataclass(frozen=True)
class Home:
    """Destination of results whose axes have no names; :class:`Names` has the same methods."""

    convert: Convert

    def place_option(self, name: str, array: Any, axes: tuple[str, ...]) -> Any:
        """The option unchanged."""
        return array

    def place_out(self, out: Any) -> Any:
        """The array that the call writes to, unchanged."""
        return out

    def label_output(self, values: NDArray[Any], out: NDArray[Any] | None, order: str) -> Any:
        """The output unchanged; `out` itself if the caller gave it."""
        return values if out is None else out

    def label_rows(
        self, values: NDArray[Any], name: str, axes: tuple[Any, ...], new: Mapping[str, Any] | None = None
    ) -> Any:
        """A result unchanged."""
        return values

    def bring(self, values: Any) -> Any:
        """A result in the caller's library."""
        return self.convert(values)


def tensor(array: NDArray[Any]) -> Any:
    """A PyTorch tensor on the memory of an array; PyTorch is imported already."""
    torch = sys.modules["torch"]
    if array.dtype.kind == "V":  # bfloat16; NumPy takes longer for its name
        return torch.from_numpy(array.view("int16")).view(torch.bfloat16)
    return torch.from_numpy(array)


def is_tensor(x: Any) -> bool:
    """Whether x is a PyTorch tensor; PyTorch is not imported to tell."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)
