# SPDX-License-Identifier: BSD-3-Clause
"""Arrays of other libraries: results go back to the library, and to the device, that the query came from."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Makes an array of the caller's library of an array of NumPy.
Convert = Callable[[Any], Any]


def home_of(array: Any) -> Convert | None:
    """What makes an array of the same library of a result; None where results stay arrays of NumPy.

    Tensors of PyTorch, arrays of JAX and of every library with the interface of the array API have a home. A
    sequence, a buffer, a subclass of ndarray and what has nothing but DLPack have none.
    """
    if is_tensor(array):
        return tensor
    if isinstance(array, (np.ndarray, np.generic)) or not hasattr(array, "__array_namespace__"):
        return None
    namespace = array.__array_namespace__()
    return lambda found: namespace.asarray(found)


def apply_at_home(function: Callable[[Any], Any], array: Any) -> Any:
    """A function of NumPy of an array of any library, as an array of that library."""
    convert = home_of(array)
    return function(array) if convert is None else convert(function(np.asarray(array)))


@dataclass(frozen=True)
class Home:
    """Where the results of a call go whose axes have no names; :class:`Names` has the same methods."""

    convert: Convert

    def place_option(self, name: str, array: Any, axes: tuple[str, ...]) -> Any:
        """An option as it is."""
        return array

    def place_out(self, out: Any) -> Any:
        """The array that the call writes to, as it is."""
        return out

    def label_output(self, values: NDArray[Any], out: NDArray[Any] | None, order: str) -> Any:
        """The output as it is; what the caller gave as `out` is what comes back."""
        return values if out is None else out

    def label_rows(
        self, values: NDArray[Any], name: str, axes: tuple[Any, ...], new: Mapping[str, Any] | None = None
    ) -> Any:
        """A result as it is."""
        return values

    def bring(self, values: Any) -> Any:
        """A result as an array of the caller's library."""
        return self.convert(values)


def tensor(array: NDArray[Any]) -> Any:
    """A tensor of PyTorch, which has been imported, on the memory of an array."""
    torch = sys.modules["torch"]
    if array.dtype.kind == "V":  # bfloat16; a name takes NumPy longer
        return torch.from_numpy(array.view("int16")).view(torch.bfloat16)
    return torch.from_numpy(array)


def is_tensor(x: Any) -> bool:
    """Whether x is a tensor of PyTorch, which is not imported for that."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)
