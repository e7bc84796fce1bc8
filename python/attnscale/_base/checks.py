# SPDX-License-Identifier: BSD-3-Clause
"""Checks of shapes and numbers. Every message names the argument, the rule and what was seen."""

from __future__ import annotations

import math
import operator
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_Error = TypeVar("_Error", bound=Exception)

#: Kinds of memory in DLPack that the CPU reads: its own, and memory shared with CUDA or ROCm.
_OF_THE_CPU = (1, 3, 11, 13)
#: Libraries of arrays that are not in memory, and what keeps them there.
_STORED = {
    "dask": "cut along the leading axes alone, attention and attention_entropy leave it lazy",
    "zarr": "pass some heads or rows at a time",
    "h5py": "pass some heads or rows at a time",
}
#: Bytes from which on reading such an array is worth a warning.
_LARGE = 256 << 20
_LONGEST = 80  # characters of a repr in a message
_MOST_THREADS = 2**31 - 1
_PACKAGE = os.path.dirname(os.path.dirname(__file__))


def shown(value: object) -> str:
    """`value` as messages show it: its repr on one line, or its kind if it is an array or too long."""
    shape = getattr(value, "shape", ())
    if isinstance(shape, tuple) and shape:
        return f"an array of shape {shape} and type {getattr(value, 'dtype', type(value).__name__)}"
    text = " ".join(repr(value).split())
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


class InputError(ValueError):
    """Input that the caller can correct; the message is one line."""


class Refusal(NamedTuple):
    """The parts of a message that refuses arguments; an error has it as ``refusal``."""

    before: str
    arguments: tuple[str, ...]
    rule: str

    def text(self, name_of: Callable[[str], str] = str) -> str:
        """The message, with the caller's own names of the arguments."""
        return f"{self.before}{' and '.join(map(name_of, self.arguments))} {self.rule}"


def refusal(kind: type[_Error], arguments: str | tuple[str, ...], rule: str, *, before: str = "") -> _Error:
    """An error about the rule that one or several arguments must keep; `before` comes first in its text."""
    parts = Refusal(before, (arguments,) if isinstance(arguments, str) else arguments, rule)
    error = kind(parts.text())
    error.refusal = parts  # type: ignore[attr-defined]
    return error


@contextmanager
def errors_of(arguments: str) -> Iterator[None]:
    """Put the names of this function's arguments before errors of a nested call."""
    try:
        yield
    except (TypeError, ValueError) as error:
        raise type(error)(f"of {arguments}: {error}") from None


def choose(name: str, value: object, choices: Sequence[str], also: Iterable[str] = ()) -> str:
    """`value` if it is in `choices` or `also`; the error suggests a near name and lists `choices`."""
    known = [*choices, *also]
    if isinstance(value, str) and value in known:
        return value
    listed = ", ".join(repr(choice) for choice in choices)
    rule = f"must be {'one of ' if len(choices) > 1 else ''}{listed}, got {shown(value)}"
    raise refusal(ValueError, name, rule, before=meant(value, known))


def meant(value: object, known: Sequence[str]) -> str:
    """The beginning of a message, "did you mean 'entropy'? ", where a known name is near; else empty."""
    from difflib import get_close_matches

    near = get_close_matches(value.lower().replace("-", "_"), known, 1) if isinstance(value, str) else []
    return f"did you mean {near[0]!r}? " if near else ""


def number(name: str, value: Any) -> float:
    """`value` as a finite float."""
    if isinstance(value, (bool, np.bool_, str, bytes)):
        raise refusal(TypeError, name, f"must be a number, got {shown(value)}")
    try:
        converted = float(value)
    except (TypeError, ValueError):
        raise refusal(TypeError, name, f"must be a number, got {shown(value)}") from None
    if not math.isfinite(converted):
        raise refusal(ValueError, name, f"must be finite, got {converted}")
    return converted


def positive_int(name: str, value: Any) -> int:
    """`value` as an int, at least 1."""
    try:
        converted = operator.index(value)
    except TypeError:
        raise refusal(TypeError, name, f"must be an integer, got {shown(value)}") from None
    if isinstance(value, (bool, np.bool_)):
        raise refusal(TypeError, name, f"must be an integer, got {shown(value)}")
    if converted < 1:
        raise refusal(ValueError, name, f"must be at least 1, got {converted}")
    return converted


def several(name: str, values: Any, one: str, many: str) -> list[Any]:
    """The members of an iterable, at least one; a text, a mapping or a number is refused."""
    is_one = isinstance(values, (str, bytes, Mapping))
    if is_one or not isinstance(values, Iterable) or getattr(values, "ndim", 1) == 0:
        raise refusal(TypeError, name, f"must be a sequence of {many}, got {shown(values)}")
    found = list(values)
    if not found:
        raise refusal(ValueError, name, f"must be at least one {one}, got none")
    return found


def thread_count(name: str, value: Any) -> int:
    """`value` as a number of threads that fits the core's int."""
    converted = positive_int(name, value)
    if converted > _MOST_THREADS:
        raise refusal(ValueError, name, f"must be at most {_MOST_THREADS}, got {shown(converted)}")
    return converted


def boolean(name: str, value: Any) -> bool:
    """`value`, which must be True or False."""
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    raise refusal(TypeError, name, f"must be True or False, got {shown(value)}")


def check_writable(name: str, array: NDArray[Any]) -> None:
    """Raise unless results can be written into `array`."""
    if not array.flags.writeable:
        raise ValueError(f"{name} must be writable, got a read-only array")
    if not array.flags.aligned:
        raise ValueError(f"{name} must be aligned to its item size")


def generator(rng: Any) -> np.random.Generator:
    """The generator of an ``rng=`` argument."""
    try:
        return np.random.default_rng(rng)
    except (TypeError, ValueError) as error:
        kinds = "None, an integer of at least 0, a SeedSequence, BitGenerator or Generator"
        raise refusal(type(error), "rng", f"must be {kinds}, got {shown(rng)}") from None


def refuse_masked(name: str, value: Any, instead: str) -> None:
    """Raise for a masked array; `instead` says what to pass."""
    if isinstance(value, np.ma.MaskedArray):
        raise refusal(TypeError, name, f"is a masked array, whose mask would be lost; {instead}")


def as_array(name: str, value: Any) -> NDArray[Any]:
    """`value` as an ndarray, without a copy where its memory is on the CPU."""
    refuse_masked(name, value, "pass its data and attn_mask=")
    try:
        if is_on_device(value):
            raise ValueError(f"it is on {getattr(value, 'device', 'a device')}")
        if hasattr(value, "__dlpack__") and not hasattr(value, "__array__"):
            return np.from_dlpack(value)
        warn_of_loading(name, value)
        return np.asarray(value)
    except Exception as error:
        if str(getattr(value, "dtype", "")) == "torch.bfloat16":
            return bfloat16_tensor(name, value)
        if getattr(value, "requires_grad", False):
            raise gradient_lost(name) from None
        kind = type(value).__name__
        if kind.endswith("Tracer") and type(value).__module__.startswith("jax."):
            kept = _twin("jax", _called())
            use = f"{kept} can be traced" if kept else "call this outside of jit, grad and vmap"
            raise TypeError(f"{name} is traced by JAX, and an array is not; {use}") from None
        why = "its rows have different lengths" if "inhomogeneous" in str(error) else error
        raise TypeError(f"{name} cannot be read as an array on the CPU, got {kind}: {why}") from error


def warn_of_loading(name: str, value: Any) -> None:
    """Warn where a large array that is not in memory is read into it as a whole."""
    if isinstance(value, np.ndarray):
        return
    inner = value.data if getattr(value, "chunks", None) is not None and hasattr(value, "dims") else value
    library = type(inner).__module__.partition(".")[0]
    if library in _STORED and inner.nbytes >= _LARGE:
        size = f"{round(inner.nbytes / 2**30, 2):g} GiB"
        warn(f"{name} is an array of {library}, and all of its {size} are read; {_STORED[library]}")


def is_on_device(value: Any) -> bool:
    """Whether an array, by its own word or DLPack's, is in memory that the CPU cannot read."""
    if isinstance(value, np.ndarray):
        return False
    if isinstance(on_cpu := getattr(value, "is_cpu", None), bool):  # a tensor of PyTorch
        return not on_cpu
    try:
        kind = value.__dlpack_device__()[0]
    except Exception:  # not an array, or one that no other library can read
        return False
    return int(kind) not in _OF_THE_CPU


def bfloat16_tensor(name: str, tensor: Any) -> NDArray[Any]:
    """A PyTorch tensor of bfloat16 on the CPU as an array: its own memory, typed by ml_dtypes."""
    try:
        import ml_dtypes
    except ImportError:
        raise TypeError(
            f"{name} is a tensor of bfloat16, which NumPy lacks: it needs the package ml_dtypes "
            f"(pip install ml_dtypes), or {name}.float()"
        ) from None
    import torch

    if tensor.requires_grad:  # the view below would drop the gradient silently
        raise gradient_lost(name)
    try:
        bits: NDArray[Any] = tensor.view(torch.int16).numpy()
    except Exception as error:  # the tensor is on a device
        raise TypeError(f"{name} cannot be read as an array on the CPU, got Tensor: {error}") from error
    return bits.view(ml_dtypes.bfloat16)


def gradient_lost(name: str, function: str | None = None) -> TypeError:
    """The error about a tensor whose gradient an array function, by default the called one, would drop."""
    kept = _twin("torch", function or _called())
    use = f"use {name}.detach()"
    if kept:
        use = f"{kept} keeps the gradient, {name}.detach() drops it"
    return TypeError(f"{name} requires grad, and an array has none; {use}")


def _called() -> str:
    """Name of the function of this package that the user's code called; slow, so for errors only."""
    frame = outermost = sys._getframe(1)
    while frame.f_back is not None and frame.f_back.f_code.co_filename.startswith(_PACKAGE):
        frame = outermost = frame.f_back
    wrapped = outermost.f_locals.get("function")  # of a decorator
    return str(getattr(wrapped, "__name__", outermost.f_code.co_name))


def _twin(library: str, function: str) -> str | None:
    """Name of the function's differentiable twin for arrays of another library, if there is one."""
    from importlib import import_module

    try:
        known = import_module(f"attnscale.{library}").__all__
    except ImportError:
        return None
    # identify_lse and identify_entropy answer in words, so they have no gradient to keep.
    is_there = function in known and not function.startswith("identify_")
    return f"attnscale.{library}.{function}" if is_there else None


def fit_to(name: str, array: NDArray[Any], shape: tuple[int, ...], axes: str) -> NDArray[Any]:
    """`array` without leading axes of extent 1, if it broadcasts to `shape`, whose axes are `axes`."""
    given = array.shape
    surplus = max(len(given) - len(shape), 0)
    own = given[surplus:]
    fits = given[:surplus] == (1,) * surplus and all(
        extent in (1, wanted) for extent, wanted in zip(own, shape[len(shape) - len(own) :], strict=True)
    )
    if not fits:
        raise ValueError(f"{name} must broadcast to {axes} = {shape}, got shape {given}")
    return array.reshape(own) if surplus else array


def sum_over_repeats(values: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """Sum over the axes along which an array of `shape` was repeated: the adjoint of a broadcast."""
    lead = values.ndim - len(shape)
    axes = tuple(lead + at for at, n in enumerate(shape) if n == 1 and values.shape[lead + at] != 1)
    return np.asarray(values.sum((*range(lead), *axes)).reshape(shape))


def read_on_infeasible(on_infeasible: Any) -> str:
    """`on_infeasible`, checked: "warn", "nan" or "raise" where no answer exists."""
    return choose("on_infeasible", on_infeasible, ("warn", "nan", "raise"))


def answer_infeasible(on_infeasible: str, message: str, lost: str = "the result") -> None:
    """Warn or raise because some targets are out of reach; `lost` is NaN there."""
    if on_infeasible == "raise":
        raise ValueError(message)
    if on_infeasible == "warn":
        warn(f'{message}; {lost} is NaN there (on_infeasible="nan" says nothing, "raise" stops)')


def warn(message: str) -> None:
    """Issue a UserWarning at the line of the user's code that called this package."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, UserWarning, stacklevel=level)
