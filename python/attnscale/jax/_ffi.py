# SPDX-License-Identifier: BSD-3-Clause
"""Calls of the core as foreign functions of XLA."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.extend.core
import numpy as np
from jax.interpreters import batching, mlir

from .. import _core

for _name, _handler in _core.xla_handlers().items():
    jax.ffi.register_ffi_target(f"attnscale_{_name}", _handler, platform="cpu")


def call_core(
    name: str,
    arguments: Mapping[str, Any],
    results: Mapping[str, tuple[tuple[int, ...], Any]],
    **options: Any,
) -> dict[str, Any]:
    """Call a foreign function of the core, a name of ``_core.xla_handlers()``; returns the results by name.

    "query" is among the arguments. All have the same number of leading axes; ``jax.vmap`` adds one in front.
    `results` has the shape and type of each result, `options` are numbers and texts that the handler reads.
    """
    types: Any = [jax.ShapeDtypeStruct(*each) for each in results.values()]
    call: Any = jax.ffi.ffi_call(f"attnscale_{name}", types, vmap_method="expand_dims")
    given = {each: _on_cpu.bind(x) if each == "query" else x for each, x in arguments.items()}
    kept = {each: _attribute(value) for each, value in options.items()}
    found = call(*given.values(), arguments=" ".join(given), results=" ".join(results), **kept)
    return dict(zip(results, found, strict=True))


def _attribute(value: Any) -> Any:
    """An option in a type that does not depend on the settings of JAX."""
    if isinstance(value, str):
        return value
    return np.float64(value) if isinstance(value, float) else np.int64(value)


# ---- other platforms ----------------------------------------------------------------------------


def check_on_cpu(name: str, array: Any) -> None:
    """Refuse an array on another device; traced ones are refused at compilation."""
    if isinstance(array, jax.core.Tracer):
        return
    for device in array.devices():
        if device.platform != "cpu":
            raise ValueError(
                f"attnscale.jax runs on the CPU, got {name} on {device}; "
                f"jax.device_put({name}, jax.devices('cpu')[0]) brings it there"
            )


def _refuse_platform(context: Any, _: Any) -> Any:
    platforms = ", ".join(context.module_context.platforms)
    raise ValueError(
        f"attnscale.jax runs on the CPU and cannot be compiled for {platforms}; "
        "jax.jit under jax.default_device(jax.devices('cpu')[0]) compiles for the CPU"
    )


#: Identity that compiles only for the CPU.
_on_cpu: Any = jax.extend.core.Primitive("attnscale_on_cpu")
_on_cpu.def_impl(lambda x: x)
_on_cpu.def_abstract_eval(lambda x: x)
mlir.register_lowering(_on_cpu, _refuse_platform)
mlir.register_lowering(_on_cpu, lambda context, x: [x], platform="cpu")
batching.primitive_batchers[_on_cpu] = lambda arrays, axes: (_on_cpu.bind(*arrays), *axes)
