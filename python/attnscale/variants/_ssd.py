# SPDX-License-Identifier: BSD-3-Clause
"""State-space duality (Mamba-2): linear attention without a normaliser, whose past decays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import numpy as np

from .._call.arrays import read_plain_inputs, swap_heads
from .._checks import as_array, fit_to
from ._arrays import wide_type
from ._heads import read_call, read_layout

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from .._call.types import Layout

__all__ = ["SsdState", "ssd"]

_ROWS = 64  # of a block: its matrix of decays is rows x rows


def ssd(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    log_decay: ArrayLike,
    *,
    enable_gqa: bool = False,
    layout: Layout = "bhsd",
) -> NDArray[Any]:
    """y_i = sum over j <= i of exp(a_(j+1) + ... + a_i) (q_i . k_j) v_j, in O(n head_dim value_dim).

    Parameters
    ----------
    query : array_like, shape (..., heads, n, head_dim)
        C of the paper, the output matrices.
    key : array_like, shape (..., kv_heads, n, head_dim)
        B, the input matrices.
    value : array_like, shape (..., kv_heads, n, value_dim)
        X, the inputs, times the step size where there is one.
    log_decay : array_like
        a <= 0, finite, that broadcasts to (..., heads, n): the state is multiplied by exp(a_i) before key
        i is added. 0 is linear attention without its normaliser.
    enable_gqa, layout
        As for :func:`attnscale.attention`; the layout does not concern log_decay.

    Returns
    -------
    ndarray, shape (..., heads, n, value_dim)

    Raises
    ------
    TypeError, ValueError, MemoryError
        As :func:`attnscale.attention`; a decay above 0 or not finite; not as many queries as keys.

    Notes
    -----
    The recurrence S_i = exp(a_i) S_(i-1) + k_i v_i^T, y_i = q_i^T S_i and the product with the masked matrix
    L_ij (q_i . k_j), L_ij = exp(a_(j+1) + ... + a_i), are the same map; blocks take the matrix within and the
    recurrence between them. No exponent is positive. Source: Dao and Gu 2024, "Transformers are SSMs",
    arXiv 2405.21060, section 6.

    Examples
    --------
    >>> import numpy as np, attnscale as at
    >>> q, k, v = np.random.default_rng(0).standard_normal((3, 2, 100, 8))
    >>> y = at.variants.ssd(q, k, v, np.full(100, -0.1))
    >>> state = at.variants.SsdState().update(k, v, np.full(100, -0.1))
    >>> bool(np.allclose(state.read(q[:, 99:]), y[:, 99:]))
    True
    """
    inputs, result, output = read_call(query, key, value, enable_gqa=enable_gqa, layout=layout)
    n = inputs.query.shape[-2]
    if inputs.key.shape[-2] != n:
        raise ValueError(
            f"query and key must have the same number of rows, got {n} and {inputs.key.shape[-2]}"
        )
    assert inputs.value is not None
    q, k, v = _group(inputs.query, inputs.key, inputs.value, enable_gqa)
    if q.ndim > inputs.query.ndim:  # (..., kv_heads, group, n, dim)
        output = _split_heads(output, q.shape[-4])
    decay = _read_decay(log_decay, (*inputs.leading, n)).reshape(output.shape[:-1])
    _scan((q, k, v), output, decay, wide_type(inputs.dtype))
    return result


def _group(
    query: NDArray[Any], key: NDArray[Any], value: NDArray[Any], enable_gqa: bool
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """With shared key heads: (..., kv_heads, group, n, dim), so that each is summed once."""
    if not enable_gqa or query.ndim < 3 or key.ndim < 3 or value.ndim < 3:
        return query, key, value
    heads = query.shape[-3]
    if key.shape[-3] != value.shape[-3]:
        key, value = (np.repeat(x, heads // x.shape[-3], axis=-3) for x in (key, value))
    kv_heads = key.shape[-3]
    if kv_heads == heads:
        return query, key, value
    return _split_heads(query, kv_heads), key[..., None, :, :], value[..., None, :, :]


def _split_heads(array: NDArray[Any], kv_heads: int) -> NDArray[Any]:
    """A view: splitting one axis never copies."""
    *lead, heads, n, dim = array.shape
    strides = array.strides
    size = heads // kv_heads
    return np.lib.stride_tricks.as_strided(
        array, (*lead, kv_heads, size, n, dim), (*strides[:-3], strides[-3] * size, *strides[-3:])
    )


def _read_decay(log_decay: Any, shape: tuple[int, ...]) -> NDArray[np.float64]:
    array = as_array("log_decay", log_decay)
    if array.dtype.kind not in "iuf" and array.dtype.name != "bfloat16":
        raise TypeError(f"log_decay must be numbers, got {array.dtype}")
    fitted = fit_to("log_decay", array, shape, "(..., heads, n)").astype(np.float64)
    if fitted.size and not (np.isfinite(fitted).all() and fitted.max() <= 0):
        seen = fitted.max() if np.isfinite(fitted).all() else "NaN or infinity"
        raise ValueError(f"log_decay must be finite and at most 0, got {seen}")
    return np.broadcast_to(fitted, shape)


def _scan(
    heads: tuple[NDArray[Any], ...], output: NDArray[Any], decay: NDArray[np.float64], dtype: np.dtype[Any]
) -> None:
    """Matrix within blocks, recurrence between them."""
    state: NDArray[np.float64] | None = None
    n = output.shape[-2]
    with np.errstate(all="ignore"):
        for start in range(0, n, _ROWS):
            rows = np.s_[..., start : min(start + _ROWS, n), :]
            q, k, v = (x[rows].astype(dtype, copy=False) for x in heads)
            past = np.cumsum(decay[rows[:2]], axis=-1)
            between = np.tril(np.exp(np.minimum(past[..., :, None] - past[..., None, :], 0)))
            out = _earlier(np.tril((q @ k.swapaxes(-1, -2)) * between.astype(dtype)), v)
            if state is not None:
                out += (q * np.exp(past)[..., None].astype(dtype)) @ state.astype(dtype)
            state = _carry(state, past, k, v)
            output[rows] = out


def _earlier(weights: NDArray[Any], value: NDArray[Any]) -> NDArray[Any]:
    """weights @ value, of a lower triangle: 0 * NaN of a later key is no part of a row's sum."""
    good = np.isfinite(value)
    out: NDArray[Any] = weights @ (value if good.all() else np.where(good, value, 0))
    for j in np.flatnonzero(~good.all(axis=-1).all(axis=tuple(range(good.ndim - 2)))):
        bad = np.where(good[..., [j], :], 0, weights[..., j:, [j]] * value[..., [j], :])
        out[..., j:, :] += bad
    return out


def _carry(
    state: NDArray[np.float64] | None, past: NDArray[np.float64], key: NDArray[Any], value: NDArray[Any]
) -> NDArray[np.float64]:
    left = np.exp(past[..., -1:] - past)[..., None].astype(key.dtype)
    added = ((key * left).swapaxes(-1, -2) @ value).astype(np.float64)
    carried: NDArray[np.float64] = added
    if state is not None:
        carried = state * np.exp(past[..., -1])[..., None, None] + added
    return carried


class SsdState:
    """The recurrent form: one matrix a head, whatever the number of keys.

    Parameters
    ----------
    layout : {"bhsd", "bshd"}

    Examples
    --------
    >>> import numpy as np, attnscale as at
    >>> q, k, v = np.random.default_rng(0).standard_normal((3, 2, 4))
    >>> at.variants.SsdState().update(k, v, [0.0, -1.0]).read(q).shape
    (2, 4)
    """

    def __init__(self, *, layout: Layout = "bhsd") -> None:
        self._layout = read_layout(layout)
        self._state: NDArray[np.float64] | None = None

    def update(self, key: ArrayLike, value: ArrayLike, log_decay: ArrayLike) -> Self:
        """Decay the state and add keys, one after the other; returns the state itself.

        Parameters
        ----------
        key : array_like, shape (..., heads, n, head_dim)
        value : array_like, shape (..., heads, n, value_dim)
        log_decay : array_like
            As for :func:`ssd`.

        Raises
        ------
        TypeError, ValueError
            As :func:`ssd`.
        """
        inputs = read_plain_inputs(key, key, value, False, self._layout)
        assert inputs.value is not None
        decay = _read_decay(log_decay, (*inputs.leading, inputs.key.shape[-2]))
        dtype = wide_type(inputs.dtype)
        past = np.cumsum(decay, axis=-1)
        if inputs.key.shape[-2]:
            with np.errstate(all="ignore"):  # infinities and NaN are answered when they are read
                self._state = _carry(self._state, past, inputs.key.astype(dtype), inputs.value.astype(dtype))
        return self

    def read(self, query: ArrayLike) -> NDArray[Any]:
        """q^T S for every query.

        Parameters
        ----------
        query : array_like, shape (..., heads, n, head_dim)

        Raises
        ------
        ValueError
            If no key was taken in yet.
        """
        if self._state is None:
            raise ValueError(
                "the state holds no keys yet; update(key, value, log_decay) comes before read(query)"
            )
        inputs = read_plain_inputs(query, query, None, False, self._layout)
        dtype = wide_type(inputs.dtype)
        if inputs.query.shape[-1] != self._state.shape[-2]:
            raise ValueError(
                f"query must have the keys' head_dim, {self._state.shape[-2]}, got {inputs.query.shape[-1]}"
            )
        with np.errstate(all="ignore"):  # infinities and NaN are answered in the output
            output = (inputs.query.astype(dtype) @ self._state.astype(dtype)).astype(inputs.dtype, copy=False)
        return swap_heads(output) if self._layout == "bshd" else output
