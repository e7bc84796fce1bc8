# SPDX-License-Identifier: BSD-3-Clause
"""Linear attention with feature maps, cosFormer with distances, state-space duality with decays."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self, TypeAlias, Unpack

import numpy as np

from .._base.checks import as_array, choose, fit_to, positive_int
from .._base.hints import hinted
from .._call.arrays import Unread, laid_out, read_inputs
from .._call.options import LayoutOptions, VariantOptions, takes
from ._arrays import offset_of, read_layout, read_whole, read_with_output
from ._linear_form import LinearForm, State, attend, attend_in, check_features, read_sums, sum_keys

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from .._call.arrays import Extents, Inputs
    from .._call.types import Layout
    from ._linear_form import KeySums

    FeatureMap: TypeAlias = str | Callable[[NDArray[Any]], NDArray[Any]] | tuple[ArrayLike, ArrayLike]

_MAPS = ("elu", "relu")
SSD_FORM = LinearForm("given", "none")


@hinted
@takes(VariantOptions)
def linear_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    *,
    feature_map: FeatureMap = "elu",
    **options: Unpack[VariantOptions],
) -> NDArray[Any]:
    """sum_j phi(q) . phi(k_j) v_j / sum_j phi(q) . phi(k_j), in O(n features value_dim).

    Parameters
    ----------
    query : array_like, shape (..., heads, n_queries, head_dim)
    key : array_like, shape (..., kv_heads, n_keys, head_dim)
    value : array_like, shape (..., kv_heads, n_keys, value_dim)
        As for :func:`attnscale.attention`.
    feature_map : {"elu", "relu"}, callable or pair of array_like
        "elu" is elu(x) + 1. A callable takes rows (..., n, head_dim) and returns features (..., n, features)
        of at least 0; it is called once for all queries and once for all keys. A pair holds the features of
        query and key, (..., n, features); the result has their and the value's type.
    is_causal, causal, enable_gqa, layout, num_threads
        As for :func:`attnscale.attention`.

    Returns
    -------
    ndarray, shape (..., heads, n_queries, value_dim)
        Rows with all weights 0 (no key, or relu of a negative vector) are 0.

    Raises
    ------
    TypeError, ValueError
        If features are negative or have another shape; else as :func:`attnscale.attention`.

    Notes
    -----
    Katharopoulos, Vyas, Pappas, Fleuret 2020, "Transformers are RNNs", arXiv 2006.16236. The causal form
    works in blocks: sums over all earlier blocks, and a masked product within. Where elu(x) + 1 = exp(x)
    would leave the range of the type, sums are taken of logarithms. Where other features or their products
    would, a head of less than 64 bits is computed in float64.

    Examples
    --------
    >>> import numpy as np, attnscale as at
    >>> q, k, v = np.random.default_rng(0).standard_normal((3, 2, 100, 8))
    >>> out = at.variants.linear_attention(q, k, v, is_causal=True)
    >>> bool(np.allclose(out[:, 0], v[:, 0]))  # the first query sees the first key alone
    True
    >>> squared = at.variants.linear_attention(q, k, v, feature_map=lambda x: x**2)
    """
    if not isinstance(feature_map, tuple):
        return attend_in(lambda _: read_map(feature_map), query, key, value, options)
    read_with_output(query, key, value, options)
    query, key = given_features(feature_map, query, key)
    return attend_in(lambda _: LinearForm("given"), query, key, value, options)


def read_map(feature_map: Any) -> LinearForm:
    """The form of a feature map that is not a pair."""
    if callable(feature_map):
        return LinearForm("given", function=feature_map)
    if not isinstance(feature_map, str):
        raise TypeError(
            f"feature_map must be a name, a callable or a pair of arrays, got {type(feature_map).__name__}"
        )
    return LinearForm(choose("feature_map", feature_map, _MAPS))


def given_features(pair: tuple[Any, ...], query: Any, key: Any) -> list[NDArray[Any]]:
    """Checked features of a pair, in place of query and key."""
    if len(pair) != 2:
        raise ValueError(f"feature_map must hold two arrays, of query and key, got {len(pair)}")
    return [
        check_features(f"feature_map[{index}]", features, np.shape(rows)[:-1])
        for index, (features, rows) in enumerate(zip(pair, (query, key), strict=True))
    ]


class LinearState(State):
    """Linear attention while keys arrive: S = sum phi(k) v^T and z = sum phi(k).

    Parameters
    ----------
    feature_map : {"elu", "relu"} or callable
    enable_gqa, layout
        As for :func:`linear_attention`.

    Examples
    --------
    >>> import numpy as np, attnscale as at
    >>> k, v = np.random.default_rng(0).standard_normal((2, 100, 8))
    >>> state = at.variants.LinearState(feature_map="relu").update(k, v)
    >>> whole = at.variants.linear_attention(k[:3], k, v, feature_map="relu")
    >>> bool(np.allclose(state.read(k[:3]), whole))
    True
    """

    def __init__(
        self,
        *,
        feature_map: str | Callable[[NDArray[Any]], NDArray[Any]] = "elu",
        enable_gqa: bool = False,
        layout: Layout = "bhsd",
    ) -> None:
        form = read_map(feature_map)
        if form.map == "elu":  # sums of logarithms do not vanish beside later keys
            form = LinearForm("log_elu")
        super().__init__(form, enable_gqa=enable_gqa, layout=layout)


def _check_length(form: LinearForm, length: int) -> None:
    """Refuse more than max_length positions: the cosine, and with it the weight, would be negative."""
    if length > form.max_length:
        raise ValueError(
            f"max_length must be at least the number of positions, {length}, got {form.max_length}"
        )


def cosformer_form(extents: Extents, max_length: Any, offset: int | None) -> LinearForm:
    """The form that rotates the positions of a call; query i has the position i + offset."""
    form = LinearForm("turned", max_length=positive_int("max_length", max_length))
    _check_length(form, max(extents.n_queries + max(offset or 0, 0), extents.n_keys))
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
        M, at least the number of positions. The paper takes the length of the sequence; a fixed number
        lets the sums stream, since earlier keys need no new rotation.
    is_causal, causal, enable_gqa, layout, num_threads
        As for :func:`attnscale.attention`. With ``causal="bottom_right"`` the last query has the position
        of the last key, with a number p query i has the position i + p, otherwise i.

    Returns
    -------
    ndarray, shape (..., heads, n_queries, value_dim)
        Rows with all weights 0 are 0.

    Raises
    ------
    TypeError, ValueError
        If there are more positions than max_length; else as :func:`attnscale.attention`.

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

    def form(inputs: Inputs) -> LinearForm:
        offset = offset_of(inputs.extents, options.get("is_causal", False), options.get("causal"))
        return cosformer_form(inputs.extents, max_length, offset)

    return attend_in(form, query, key, value, options)


class CosformerState(State):
    """cosFormer while keys arrive; the last query of a read has the position of the last key.

    Parameters
    ----------
    max_length, enable_gqa, layout
        As for :func:`cosformer_attention`. More positions than max_length raise ValueError.

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

    def _expect(self, n_positions: int) -> None:
        _check_length(self._form, n_positions)

    def _after(self, sums: KeySums, n_keys: int) -> KeySums:
        """Sums as of keys after `n_keys` others: cos(a + b) and sin(a + b) from those of a and b."""
        reference, total, products = sums
        cos, sin = self._form.turns(n_keys, 1)[0]
        return reference, _rotated(total, -1, cos, sin), _rotated(products, -2, cos, sin)


def _rotated(sums: NDArray[np.float64], axis: int, cos: float, sin: float) -> NDArray[np.float64]:
    of_cosines, of_sines = np.split(sums, 2, axis)
    return np.concatenate([of_cosines * cos - of_sines * sin, of_sines * cos + of_cosines * sin], axis)


@hinted
@takes(LayoutOptions)
def ssd(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    log_decay: ArrayLike,
    **options: Unpack[LayoutOptions],
) -> NDArray[Any]:
    """y_i = sum over j <= i of exp(a_(j+1) + ... + a_i) (q_i . k_j) v_j, in O(n head_dim value_dim).

    Parameters
    ----------
    query : array_like, shape (..., heads, n, head_dim)
        C of the paper, the output matrices.
    key : array_like, shape (..., kv_heads, n, head_dim)
        B, the input matrices.
    value : array_like, shape (..., kv_heads, n, value_dim)
        X, the inputs, times the step size if there is one.
    log_decay : array_like
        a <= 0, finite, that broadcasts to (..., heads, n): the state is multiplied by exp(a_i) before key
        i is added. 0 is linear attention without its normaliser.
    enable_gqa, layout, num_threads
        As for :func:`attnscale.attention`; the layout does not apply to log_decay.

    Returns
    -------
    ndarray, shape (..., heads, n, value_dim)

    Raises
    ------
    TypeError, ValueError
        If a decay is above 0 or not finite, or there are not as many queries as keys; else as
        :func:`attnscale.attention`.

    Notes
    -----
    The recurrence S_i = exp(a_i) S_(i-1) + k_i v_i^T, y_i = q_i^T S_i and the product with the masked matrix
    L_ij (q_i . k_j), L_ij = exp(a_(j+1) + ... + a_i), are the same map; blocks use the matrix inside and the
    recurrence in between. No exponent is positive. Source: Dao and Gu 2024, "Transformers are SSMs",
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
    inputs, result, output = read_with_output(query, key, value, options)
    decay = decay_of(inputs.extents, {"log_decay": log_decay})
    attend(SSD_FORM, inputs, output, 0, options.get("num_threads"), decay)
    return result


def decay_of(extents: Extents, options: dict[str, Any]) -> Any:
    """The decay of each key from the options of ssd, (..., heads, n)."""
    n, n_keys = extents.n_queries, extents.n_keys
    if n != n_keys:
        raise ValueError(f"query and key must have the same number of rows, got {n} and {n_keys}")
    return _read_decay(options["log_decay"], extents.row_shape)


def _read_decay(log_decay: Any, shape: tuple[int, ...]) -> Any:
    array: Any = log_decay if type(log_decay) is Unread else as_array("log_decay", log_decay)
    if array.dtype.kind not in "iuf" and array.dtype.name != "bfloat16":
        raise TypeError(f"log_decay must be numbers, got {array.dtype}")
    fitted: Any = fit_to("log_decay", array, shape, "(..., heads, n)")
    if type(fitted) is Unread:
        return fitted
    fitted = fitted.astype(np.float64)
    if fitted.size and not (np.isfinite(fitted).all() and fitted.max() <= 0):
        seen = fitted.max() if np.isfinite(fitted).all() else "NaN or infinity"
        raise ValueError(f"log_decay must be finite and at most 0, got {seen}")
    if fitted.shape[-1:] != shape[-1:]:
        fitted = np.broadcast_to(fitted, (*fitted.shape[:-1], shape[-1]))
    return np.ascontiguousarray(fitted)


class SsdState:
    """The recurrent form of ssd: one matrix per head, whatever the number of keys.

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

        """
        inputs = read_whole(key, key, value, self._layout, enable_gqa=False)
        n = inputs.key.shape[-2]
        shape = (*inputs.leading, inputs.key.shape[-1], inputs.value.shape[-1])
        if self._sums is not None and self._sums[-1].shape != shape:
            raise ValueError(
                "key and value must have the heads and dimensions of the first update, (..., heads, "
                f"head_dim, value_dim) = {self._sums[-1].shape}, got {shape}"
            )
        decay = _read_decay(log_decay, (*inputs.leading, n))
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
            If the state has no keys yet.
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
