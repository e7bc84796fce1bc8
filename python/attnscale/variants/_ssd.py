# SPDX-License-Identifier: BSD-3-Clause
"""State-space duality (Mamba-2): linear attention without a normaliser, whose past decays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self, Unpack

import numpy as np

from .._call.arrays import laid_out, read_inputs
from .._call.options import takes
from .._call.types import FormOptions
from .._checks import as_array, fit_to
from .._options import hinted
from ._heads import read_call, read_layout, read_whole
from ._linear_form import LinearForm, attend, read_sums, sum_keys

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from .._call.types import Layout
    from ._linear_form import KeySums

SSD_FORM = LinearForm("given", "none")


@hinted
@takes(FormOptions)
def ssd(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    log_decay: ArrayLike,
    **options: Unpack[FormOptions],
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
    enable_gqa, layout, num_threads
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
    inputs, result, output = read_call(query, key, value, options)
    n = inputs.query.shape[-2]
    if inputs.key.shape[-2] != n:
        raise ValueError(
            f"query and key must have the same number of rows, got {n} and {inputs.key.shape[-2]}"
        )
    decay = read_decay(log_decay, (*inputs.leading, n))
    attend(SSD_FORM, inputs, output, 0, options.get("num_threads"), decay)
    return result


def read_decay(log_decay: Any, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """`log_decay`, whose leading axes broadcast to `shape`, with all of its rows."""
    array = as_array("log_decay", log_decay)
    if array.dtype.kind not in "iuf" and array.dtype.name != "bfloat16":
        raise TypeError(f"log_decay must be numbers, got {array.dtype}")
    fitted = fit_to("log_decay", array, shape, "(..., heads, n)").astype(np.float64)
    if fitted.size and not (np.isfinite(fitted).all() and fitted.max() <= 0):
        seen = fitted.max() if np.isfinite(fitted).all() else "NaN or infinity"
        raise ValueError(f"log_decay must be finite and at most 0, got {seen}")
    if fitted.shape[-1:] != shape[-1:]:
        fitted = np.broadcast_to(fitted, (*fitted.shape[:-1], shape[-1]))
    return np.ascontiguousarray(fitted)


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
        self._sums: KeySums | None = None

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
        inputs = read_whole(key, key, value, self._layout, enable_gqa=False)
        n = inputs.key.shape[-2]
        shape = (*inputs.leading, inputs.key.shape[-1], inputs.value.shape[-1])
        if self._sums is not None and self._sums[-1].shape != shape:
            raise ValueError(
                "key and value must have the heads and dimensions of the first update, (..., heads, "
                f"head_dim, value_dim) = {self._sums[-1].shape}, got {shape}"
            )
        decay = read_decay(log_decay, (*inputs.leading, n))
        if n:
            self._sums = sum_keys(SSD_FORM, inputs, self._sums, 0, decay)
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
        if self._sums is None:
            raise ValueError(
                "the state holds no keys yet; update(key, value, log_decay) comes before read(query)"
            )
        inputs = read_inputs(query, query, None, self._layout, enable_gqa=False)
        *leading, head_dim, value_dim = self._sums[-1].shape
        if inputs.query.shape[-1] != head_dim:
            raise ValueError(f"query must have the keys' head_dim, {head_dim}, got {inputs.query.shape[-1]}")
        lead = np.broadcast_shapes(inputs.query.shape[:-2], tuple(leading))
        output = np.empty((*lead, inputs.query.shape[-2], value_dim), inputs.dtype)
        read_sums(SSD_FORM, inputs.query, self._sums, 1, output)
        return laid_out(output, self._layout)
