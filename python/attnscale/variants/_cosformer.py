# SPDX-License-Identifier: BSD-3-Clause
"""cosFormer: relu features, weighted by the cosine of a distance."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from .._call.options import takes
from .._call.types import VariantOptions
from .._checks import positive_int
from .._options import hinted
from ._linear_form import LinearForm, attend_in
from ._state import State

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from .._call.arrays import Inputs
    from .._call.types import Layout
    from ._linear_form import KeySums


def _check_length(form: LinearForm, length: int) -> None:
    """Refuse more than max_length positions: the cosine, and with it the weight, would be negative."""
    if length > form.max_length:
        raise ValueError(
            f"max_length must be at least the number of positions, {length}, got {form.max_length}"
        )


def cosformer_form(inputs: Inputs, max_length: Any) -> LinearForm:
    """The form that turns the positions of these inputs."""
    form = LinearForm("turned", max_length=positive_int("max_length", max_length))
    _check_length(form, max(inputs.query.shape[-2], inputs.key.shape[-2]))
    return form


@hinted
@takes(VariantOptions)
def cosformer_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    *,
    max_length: int,
    **options: Unpack[VariantOptions],
) -> NDArray[Any]:
    """Weights relu(q_i) . relu(k_j) cos(pi (i - j) / (2 M)), normalised, in O(n head_dim value_dim).

    Parameters
    ----------
    query : array_like, shape (..., heads, n_queries, head_dim)
    key : array_like, shape (..., kv_heads, n_keys, head_dim)
    value : array_like, shape (..., kv_heads, n_keys, value_dim)
        As for :func:`attnscale.attention`.
    max_length : int
        M, at least the number of positions. The paper takes the length of the sequence; a number that
        stays lets the sums stream, since earlier keys need not be turned again.
    is_causal, causal, enable_gqa, layout, num_threads
        As for :func:`attnscale.attention`. With ``causal="bottom_right"`` the last query has the position
        of the last key, otherwise the first that of the first.

    Returns
    -------
    ndarray, shape (..., heads, n_queries, value_dim)
        Rows whose weights are all 0 are 0.

    Raises
    ------
    TypeError, ValueError, MemoryError
        As :func:`attnscale.attention`; more positions than max_length.

    Notes
    -----
    cos(a - b) = cos a cos b + sin a sin b makes it a linear attention with 2 head_dim features. Source: Qin
    et al. 2022, "cosFormer: Rethinking Softmax in Attention", arXiv 2202.08791.

    Examples
    --------
    >>> import numpy as np, attnscale as at
    >>> q, k, v = np.random.default_rng(0).standard_normal((3, 2, 100, 8))
    >>> at.variants.cosformer_attention(q, k, v, max_length=4096, is_causal=True).shape
    (2, 100, 8)
    """
    return attend_in(lambda inputs: cosformer_form(inputs, max_length), query, key, value, options)


class CosformerState(State):
    """cosFormer while keys arrive; a query that is read has the position of the last key.

    Parameters
    ----------
    max_length, enable_gqa, layout
        As for :func:`cosformer_attention`. Keys beyond max_length are a ValueError.

    Examples
    --------
    >>> import numpy as np, attnscale as at
    >>> q, k, v = np.random.default_rng(0).standard_normal((3, 100, 8))
    >>> state = at.variants.CosformerState(max_length=128).update(k, v)
    >>> whole = at.variants.cosformer_attention(q, k, v, max_length=128, is_causal=True)
    >>> bool(np.allclose(state.read(q[99:]), whole[99:]))
    True
    """

    def __init__(self, *, max_length: int, enable_gqa: bool = False, layout: Layout = "bhsd") -> None:
        form = LinearForm("turned", max_length=positive_int("max_length", max_length))
        super().__init__(form, enable_gqa=enable_gqa, layout=layout)

    def _expect(self, n_keys: int) -> None:
        _check_length(self._form, n_keys)

    def _after(self, sums: KeySums, n_keys: int) -> KeySums:
        """Sums whose keys come after others: cos(a + b) and sin(a + b) from those of a and b."""
        reference, total, products = sums
        cos, sin = self._form.turns(n_keys, 1)[0]
        return reference, _rotated(total, -1, cos, sin), _rotated(products, -2, cos, sin)


def _rotated(sums: NDArray[np.float64], axis: int, cos: float, sin: float) -> NDArray[np.float64]:
    of_cosines, of_sines = np.split(sums, 2, axis)
    return np.concatenate([of_cosines * cos - of_sines * sin, of_sines * cos + of_cosines * sin], axis)
