# SPDX-License-Identifier: BSD-3-Clause
"""Attention of a checked call and its backward pass, and rows scaled to a length."""

from __future__ import annotations

import math
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero

from .._base.statistics import COUNTS, DIFFERENTIABLE, KEPT
from ._ffi import call_core

#: Arrays of a call that may have a gradient.
_LEARNABLE = ("query", "key", "value", "scale", "attn_mask", "distance_scale", "distance_bias", "sink")
_ALWAYS = ("query", "key")  # the core always computes their gradients

_Arrays = dict[str, Any]


class Form(NamedTuple):
    """The part of a call besides arrays, which is compiled into a program."""

    swapped: bool  # whether query, key, value and output are (..., n, heads, dim)
    dtype: np.dtype[Any]  # type of the output
    rows: tuple[int, ...]  # (..., heads, n_queries)
    output: tuple[int, ...] | None  # shape in the caller's layout; None: there is no value
    statistics: tuple[str, ...]
    scale: float  # used without an array of scales and without a law
    law: str  # law of the scale in the core's spelling; "": none
    causal: int  # causal_alignment of the core
    causal_offset: int
    left: int  # keys of the window
    right: int
    softcap: float
    normalizer: str  # name in the core
    alpha: float
    k: int
    eps: float
    shown: str  # the normalizer, as the caller gave it
    num_threads: int

    @property
    def arithmetic(self) -> np.dtype[Any]:
        return np.dtype(np.float64 if self.dtype == np.float64 else np.float32)

    @property
    def options(self) -> dict[str, Any]:
        not_read = ("dtype", "rows", "output", "statistics", "shown")
        options = {name: x for name, x in self._asdict().items() if name not in not_read}
        return options | {"wide": self.dtype == np.float64}

    @property
    def has_lse(self) -> bool:
        """Whether the backward pass can start from the log-sum-exp of the rows."""
        return self.normalizer == "softmax"


# ---- forward ------------------------------------------------------------------------------------


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(form: Form, arrays: _Arrays) -> _Arrays:
    """Statistics and "output" of a call, by name; arrays have the same number of leading axes."""
    counts = jax.dtypes.canonicalize_dtype(np.int64)  # int32 without jax_enable_x64
    results = {name: (form.rows, counts if name in COUNTS else form.arithmetic) for name in form.statistics}
    if form.output is not None:
        results["output"] = form.output, form.dtype
    return call_core("attend", arrays, results, **form.options) if results else {}


@lru_cache
def _marks(wanted: tuple[bool, ...]) -> np.ndarray[Any, Any]:
    """An empty array whose shape tells which gradients of _LEARNABLE are wanted.

    A program that is traced once keeps one tree of residuals, that of the last forward pass traced in it,
    while passes with other differentiated arguments are kept beside it and used again. The tree must
    therefore be the same for all of them; the shape of a residual belongs to its own pass.
    """
    return np.empty((0, *map(int, wanted)), np.float32)


def _save(form: Form, arrays: _Arrays) -> tuple[_Arrays, tuple[_Arrays, _Arrays, Any]]:
    wanted = tuple(name in arrays and arrays[name].perturbed for name in _LEARNABLE)
    values = {name: each.value for name, each in arrays.items()}
    also = ("lse",) if form.has_lse and "lse" not in form.statistics else ()
    # A separate call, so that a second derivative reaches the backward pass, which refuses it.
    found = _attend(form._replace(statistics=(*form.statistics, *also)), values)
    kept = {name: found[name] for name in (*KEPT, "output") if name in found}
    return {name: x for name, x in found.items() if name not in also}, (values, kept, _marks(wanted))


# ---- backward -----------------------------------------------------------------------------------


def _pull_back(form: Form, saved: tuple[_Arrays, _Arrays, Any], grads: _Arrays) -> tuple[_Arrays]:
    arrays, kept, marks = saved
    wanted = tuple(name for name, is_wanted in zip(_LEARNABLE, marks.shape[1:], strict=True) if is_wanted)
    given = {
        name: grad
        for name, grad in grads.items()
        if name not in COUNTS and not isinstance(grad, SymbolicZero)
    }
    _check_cotangents(form, given)
    # The returned tree must also be the same for every pass.
    none = {name: SymbolicZero(jax.typeof(x)) if name in _LEARNABLE else None for name, x in arrays.items()}
    if not given or not wanted:
        return (none,)
    return (none | _gradients(form, wanted, arrays, kept, given),)


def _check_cotangents(form: Form, given: _Arrays) -> None:
    rows = [name for name in given if name != "output"]
    for name in rows:
        if name not in DIFFERENTIABLE:
            raise ValueError(f"{name} has no gradient, but one was requested; jax.lax.stop_gradient drops it")
    if rows and form.normalizer != "softmax":
        raise ValueError(
            f"rows of {form.shown} have the gradient of the output alone here, got that of {rows[0]}"
        )


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _gradients(
    form: Form, wanted: tuple[str, ...], arrays: _Arrays, kept: _Arrays, grads: _Arrays
) -> _Arrays:
    """Gradients of the wanted arrays, each with the shape and type of its array."""
    has_output = "output" in grads
    given = dict(arrays)
    if not has_output:
        given.pop("value", None)
    elif "output" in kept:
        given["output"] = kept["output"]
    given |= {f"saved_{name}": x for name, x in kept.items() if name != "output"}
    given |= {f"grad_{name}": x for name, x in grads.items()}
    names = [name for name in _LEARNABLE if name in given and (name in wanted or name in _ALWAYS)]
    if has_output and "value" not in names:
        names.append("value")
    results = {name: (arrays[name].shape, form.arithmetic) for name in names}
    found = call_core("gradients", given, results, **form.options)
    return {
        name: found[name].astype(arrays[name].dtype) if name in found else jnp.zeros_like(arrays[name])
        for name in wanted
    }


def _refuse_second_derivative(*_: Any) -> Any:
    raise RuntimeError(
        "attention of attnscale has first derivatives only, and cannot be differentiated twice "
        "(jax.grad of a gradient, jax.hessian)"
    )


_gradients.defvjp(_refuse_second_derivative, _refuse_second_derivative)
_attend.defvjp(_save, _pull_back, symbolic_zeros=True)

#: Compiled for each form, also outside of the caller's programs.
attend = jax.jit(_attend, static_argnums=0, inline=True)


@partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def with_length(rows: Any, qk_norm: str, dtype: Any) -> Any:
    """Rows of length 1 ("l2") or sqrt(head_dim) ("rms") in this type; rows of zeros stay zero."""
    directions, _ = _split(rows.astype(dtype))
    return _length(rows, qk_norm) * directions


def _length(rows: Any, qk_norm: str) -> float:
    return 1.0 if qk_norm == "l2" else math.sqrt(rows.shape[-1])


def _split(rows: Any) -> tuple[Any, Any]:
    """Rows scaled to length 1, and their lengths."""
    # Dividing by the largest entry first keeps squares from overflowing or vanishing.
    largest = jnp.abs(rows).max(axis=-1, keepdims=True, initial=0)
    rows = rows / jnp.where(largest == 0, 1, largest)
    norm = jnp.sqrt((rows * rows).sum(-1, keepdims=True))
    return rows / jnp.where(norm == 0, 1, norm), norm * largest


def _save_length(rows: Any, qk_norm: str, dtype: Any) -> tuple[Any, Any]:
    return with_length(rows, qk_norm, dtype), rows


def _pull_back_length(qk_norm: str, dtype: Any, rows: Any, gradient: Any) -> tuple[Any]:
    """0 for rows of zeros, and where the gradient is 0, since invisible rows may hold a NaN."""
    directions, lengths = _split(rows.astype(dtype))
    along = (directions * gradient).sum(-1, keepdims=True)
    factor = jnp.where(lengths == 0, 0, _length(rows, qk_norm) / jnp.where(lengths == 0, 1, lengths))
    seen = (gradient != 0).any(-1, keepdims=True)
    return (jnp.where(seen, (gradient - directions * along) * factor, 0).astype(rows.dtype),)


with_length.defvjp(_save_length, _pull_back_length)
