# SPDX-License-Identifier: BSD-3-Clause
"""Backends that compute attention, behind one interface.

A backend takes query, key and value in NumPy's arrays of one of its types, and the options of a case; it
returns results, or gradients, by their names.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib.util import find_spec
from typing import Any
from unittest import mock

import attnscale as at
import numpy as np
from attnscale.conformance import Case

from . import truth

Arrays = dict[str, Any]


class Backend:
    """The functions on NumPy arrays, and base of other backends."""

    types: tuple[str, ...] = ("float64", "float32")
    #: Factor on the tolerance of its gradients.
    looseness = 1.0
    #: Statistics that are missing.
    lacks: tuple[str, ...] = ()
    #: Whether gradients, and values, are tested for all cases, or only for those of one option.
    is_thorough = values_are_thorough = True

    def serves(self, case: Case) -> bool:
        """Whether the backend takes the call; test_refusals.py has calls that it refuses."""
        return True

    def has_bits(self, case: Case) -> bool:
        """Whether results are bit by bit those of the functions on arrays."""
        return False

    def values(self, arrays: list[Any], case: Case, statistics: tuple[str, ...]) -> Arrays:
        """Output and statistics."""
        rows = at.attention_statistics(*arrays, statistics=statistics, **case.options)
        names = statistics if arrays[2] is None else ("output", *statistics)
        return {name: getattr(rows, name) for name in names}

    def gradients(self, arrays: list[Any], case: Case, cotangents: Arrays) -> Arrays:
        """Gradients of arrays, and of the parameters of `truth.parameters`."""
        weights = {name: x.astype(arrays[0].dtype) for name, x in cotangents.items()}
        given = weights.pop("output", None)
        learnt = truth.parameters(case.options)
        wanted = {name: _FIELDS.get(name, "law") for name in learnt}
        found = at.attention_gradients(
            *arrays,
            given,
            **{f"grad_{name}": x for name, x in weights.items()},
            wanted=("query", "key", *(() if arrays[2] is None else ("value",)), *{*wanted.values()}),
            **case.options,
        )
        fields = {name: getattr(found, field) for name, field in wanted.items()}
        fields = {name: x[name] if isinstance(x, dict) else x for name, x in fields.items()}
        return fields | {name: getattr(found, name) for name in ("query", "key", "value")}


#: Field of AttentionGradients for each parameter; parameters of a law are in the field `law`.
_FIELDS = {name: name for name in ("scale", "attn_mask", "distance_scale", "distance_bias", "bias", "alpha")}
_FIELDS["logits"] = "sink"


class OnTensors(Backend):
    """attnscale.torch on a device, with a ``backend=``."""

    def __init__(
        self,
        backend: str | None,
        place: Callable[[Any], Any] = lambda x: x,
        types: tuple[str, ...] = ("float64", "float32"),
        around: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        self.backend, self.types, self.around, self._place = backend, types, around, place

    def has_bits(self, case: Case) -> bool:
        return self.backend == "core"

    def serves(self, case: Case) -> bool:
        """Whether the options hold no function of the distance, which is refused."""
        return not callable(case.options.get("distance_bias"))

    def tensor(self, x: Any, *, learns: bool = False) -> Any:
        """Tensor on the backend's device, which may require grad."""
        import torch

        if x.dtype.name == "bfloat16":
            made = torch.from_numpy(x.view(np.int16).copy()).view(torch.bfloat16)
        else:
            made = torch.from_numpy(np.array(x, order="K"))
        return self._place(made.requires_grad_(learns))

    def call(self, tensors: list[Any], options: dict[str, Any], statistics: tuple[str, ...]) -> Arrays:
        """Output and statistics as tensors."""
        options = {"statistics": statistics, "backend": self.backend, **options}
        with self.around():
            rows = at.torch.attention_statistics(*tensors, **options)
        return {name: x for name, x in rows._asdict().items() if x is not None}

    def options(self, case: Case, dtype: Any) -> dict[str, Any]:
        """Options with tensors for arrays."""
        return {
            name: self.tensor(in_type(x, dtype)) if isinstance(x, np.ndarray) else x
            for name, x in case.options.items()
        }

    def values(self, arrays: list[Any], case: Case, statistics: tuple[str, ...]) -> Arrays:
        tensors = [None if x is None else self.tensor(x) for x in arrays]
        found = self.call(tensors, self.options(case, arrays[0].dtype), statistics)
        return {name: to_array(x) for name, x in found.items()}

    def gradients(self, arrays: list[Any], case: Case, cotangents: Arrays) -> Arrays:
        import torch

        dtype = arrays[0].dtype
        names = [name for name, x in zip(("query", "key", "value"), arrays, strict=True) if x is not None]
        learns = {name: self.tensor(x, learns=True) for name, x in zip(names, arrays, strict=False)}
        learnt = truth.parameters(case.options).items()
        parameters = {name: self.tensor(in_type(x, dtype), learns=True) for name, x in learnt}
        options = self.options(case, dtype) | learned_options(case, parameters)
        tensors = [learns.get(name) for name in ("query", "key", "value")]
        found = self.call(tensors, options, tuple(name for name in cotangents if name != "output"))
        # Some results of a row without keys are constants.
        weights = {name: x for name, x in cotangents.items() if found[name].requires_grad}
        with self.around():
            gradients = torch.autograd.grad(
                [found[name] for name in weights],
                [*learns.values(), *parameters.values()],
                [self.tensor(x).to(found[name].dtype) for name, x in weights.items()],
                allow_unused=True,
                materialize_grads=True,
            )
        return dict(zip([*learns, *parameters], map(to_array, gradients), strict=True))


class OnAnotherDevice(OnTensors):
    """Operations of PyTorch on a slow device where a CPU tensor is an error."""

    is_thorough = False


@contextmanager
def in_blocks() -> Iterator[None]:
    """Make operations of PyTorch take a few queries at a time, as for millions of pairs."""
    with mock.patch("attnscale.torch._plain.scores._PAIRS", 300):
        yield


class OnTriton(OnTensors):
    """Triton kernels, and operations of PyTorch for calls that they do not serve."""

    looseness = 10.0
    # Combinations of options are resolved before a kernel, in code that `torch, operations` shares.
    is_thorough = values_are_thorough = False
    lacks = ("renyi2", "min_score")

    def call(self, tensors: list[Any], options: dict[str, Any], statistics: tuple[str, ...]) -> Arrays:
        try:
            return super().call(tensors, options, statistics)
        except ValueError as error:
            if "backend='triton' does not serve this call" not in str(error):
                raise
            return OnTensors("torch").call(tensors, options, statistics)


def learned_options(case: Case, parameters: Arrays) -> dict[str, Any]:
    """Options that hold the learned tensors."""
    of_law = {
        name: x for name, x in parameters.items() if name not in (*case.options, "logits", "bias", "alpha")
    }
    options = {name: x for name, x in parameters.items() if name in case.options}
    if of_law:
        options["scale"] = at.torch.Learned(case.options["scale"], **of_law)
    makes = {"logits": at.torch.Sink, "bias": at.torch.Sigmoid, "alpha": at.torch.Entmax}
    for name, make in makes.items():
        if name in parameters:
            options["normalizer"] = make(parameters[name])
    return options


def in_type(x: Any, dtype: Any) -> Any:
    """Cast 64-bit numbers to the type of the sums; masks of other types keep theirs."""
    with np.errstate(over="ignore"):
        return x.astype(np.float32) if x.dtype == np.float64 != dtype else x


def to_array(x: Any) -> Any:
    x = x.detach().cpu()
    return x.float().numpy() if x.dtype.itemsize == 2 and x.is_floating_point() else x.numpy()


class OnJax(Backend):
    """attnscale.jax, compiled: arrays among the options are traced unless their values are counted.

    A program is compiled for each case, which takes a hundred times as long as the case.
    """

    types = ("float32",)
    is_thorough = False

    def has_bits(self, case: Case) -> bool:
        """Whether no lengths of rows and no products of law and table are computed by JAX."""
        is_law = isinstance(case.options.get("scale"), str)
        is_table = bool(case.options.keys() & {"distance_scale", "distance_bias"})
        return "qk_norm" not in case.options and not (is_law and is_table)

    def serves(self, case: Case) -> bool:
        """Whether no law measures its rows, which is refused."""
        law = case.options.get("scale")
        measures = isinstance(law, (str, at.laws.Law)) and at.laws.get(law).meaning.measures_the_row
        return not measures

    def values(self, arrays: list[Any], case: Case, statistics: tuple[str, ...]) -> Arrays:
        import jax

        traced, fixed = self._split(case, arrays[0].dtype)

        def call(arrays: Any, traced: Any) -> Any:
            options = self._with_sink(fixed | traced)
            return at.jax.attention_statistics(*arrays, statistics=statistics, **options)

        with jax.enable_x64(arrays[0].dtype == np.float64):
            rows = jax.jit(call)(arrays, traced)
        return {name: np.asarray(x) for name, x in rows._asdict().items() if x is not None}

    def gradients(self, arrays: list[Any], case: Case, cotangents: Arrays) -> Arrays:
        import jax

        traced, fixed = self._split(case, arrays[0].dtype)
        named = {name: x for name, x in zip(("query", "key", "value"), arrays, strict=True) if x is not None}
        learns = {name: x for name, x in traced.items() if name in truth.parameters(case.options)}
        traced = {name: x for name, x in traced.items() if name not in learns}

        def gradient(learns: Any, traced: Any, weights: Any) -> Any:
            def call(learns: Any) -> Any:
                arrays = [learns.get(name) for name in ("query", "key", "value")]
                options = {name: x for name, x in learns.items() if name not in named}
                options = self._with_sink(fixed | traced | options)
                statistics = tuple(name for name in weights if name != "output")
                rows = at.jax.attention_statistics(*arrays, statistics=statistics, **options)
                return {name: getattr(rows, name) for name in weights}

            return jax.vjp(call, learns)[1](weights)[0]

        with jax.enable_x64(arrays[0].dtype == np.float64):
            dtype = arrays[0].dtype
            sums = np.float32 if dtype.itemsize == 2 else dtype
            weights = {name: x.astype(dtype if name == "output" else sums) for name, x in cotangents.items()}
            found = jax.jit(gradient)(named | learns, traced, weights)
        return {name: np.asarray(x) for name, x in found.items()}

    def _split(self, case: Case, dtype: Any) -> tuple[Arrays, dict[str, Any]]:
        """Traced options, and static ones."""
        options = {
            name: in_type(x, dtype) if isinstance(x, np.ndarray) else x for name, x in case.options.items()
        }
        if isinstance(options.get("normalizer"), at.normalizers.Sink):
            options["logits"] = in_type(np.asarray(options.pop("normalizer").logits), dtype)
        fixed = ("attn_mask", "key_lengths", "document_ids") if counts(case) else ()
        traced = {
            name: x
            for name, x in options.items()
            if name not in fixed and (isinstance(x, np.ndarray) or name == "key_lengths")
        }
        return traced, {name: x for name, x in options.items() if name not in traced}

    @staticmethod
    def _with_sink(options: dict[str, Any]) -> dict[str, Any]:
        import jax.numpy as jnp

        logits = options.pop("logits", None)
        return options if logits is None else options | {"normalizer": at.jax.Sink(jnp.asarray(logits))}


def counts(case: Case) -> bool:
    """Whether a call reads the values of its masks before the kernels do, to count n or for distances."""
    law, normalizer = case.options.get("scale"), at.normalizers.get(case.options.get("normalizer", "softmax"))
    tables = case.options.keys() & {"distance_scale", "distance_bias"}
    return (
        isinstance(law, (str, at.laws.Law))
        or normalizer.name in ("sigmoid", "relu", "squared_relu")
        or (bool(tables) and case.options.get("causal") == "bottom_right")
    )


def in_python() -> dict[str, Backend]:
    """Backends that this process has.

    Triton's kernels are interpreted in a process of their own. A process that is at a SIMD level by request
    is for the core, and imports no framework.
    """
    found: dict[str, Backend] = {"NumPy": Backend()}
    if "ATTNSCALE_SIMD" in os.environ:
        return found
    if find_spec("torch"):
        import other_device
        import torch

        if os.environ.get("TRITON_INTERPRET") == "1":
            from tests.tensors import triton_calls

            triton_calls.start("cpu")
            return {"Triton": OnTriton("triton", types=("float32",))}
        found["torch, kernels"] = OnTensors("core")
        # A dispatch mode of PyTorch makes every call go through the operator.
        found["torch, operator"] = OnTensors("core", around=lambda: torch.device("cpu"))
        found["torch, operations"] = OnTensors("torch", around=in_blocks)
        if other_device.IS_THERE:
            elsewhere = OnAnotherDevice(None, other_device.there, types=("float32",), around=in_blocks)
            found["torch, another device"] = elsewhere
    if find_spec("jax"):
        found["JAX"] = OnJax()
    return found
