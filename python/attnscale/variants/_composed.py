# SPDX-License-Identifier: BSD-3-Clause
"""Variants composed of other attention: called twice, head by head, on projections or on parts."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, Unpack

import numpy as np

from .._base.checks import as_array, choose, fit_to, shown
from .._base.hints import hinted
from .._call.arrays import Inputs, laid_out, make_output, read_inputs
from .._call.call import Call
from .._call.options import DEFAULTS, VariantOptions, takes
from ..exact.forward import attention
from ..laws import Law
from ._arrays import floats, offset_of, read_layout, read_whole, read_with_output, refuse_causal, wide_type
from ._efficient import efficient_attention
from ._linear import linear_attention
from ._performer import performer_attention

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from .._call.types import Causal, Layout, Scale

    Kind: TypeAlias = str | Callable[..., NDArray[Any]]


def differential_attention(
    query1: ArrayLike,
    key1: ArrayLike,
    query2: ArrayLike,
    key2: ArrayLike,
    value: ArrayLike,
    *,
    lam: float | ArrayLike,
    **options: Any,
) -> NDArray[Any]:
    """(P1 - lam P2) value: weights that both maps share cancel.

    Parameters
    ----------
    query1, query2 : array_like, shape (..., heads, n_queries, head_dim)
    key1, key2 : array_like, shape (..., kv_heads, n_keys, head_dim)
    value : array_like, shape (..., kv_heads, n_keys, value_dim)
        As for :func:`attnscale.attention`; head_dim may differ between the two maps.
    lam : float or array_like
        Broadcasts to (..., heads, n_queries); one number per head has the shape (heads, 1).
    **options
        Options of :func:`attnscale.attention` except out, for both maps: masks, laws, normalizer, layout.

    Returns
    -------
    ndarray, shape (..., heads, n_queries, value_dim)
        The difference is taken in float32, or in float64 for float64 input.

    Raises
    ------
    TypeError, ValueError
        If lam is not finite numbers or does not fit, or the maps differ in shape; else as
        :func:`attnscale.attention`.

    Notes
    -----
    Ye et al. 2024, "Differential transformer" (arXiv 2410.05258), without its projections, its head-wise
    normalisation and its parametrisation of lam. The rows of the difference sum to 1 - lam and have
    negative weights, so they have no entropy; each map does, by :func:`attnscale.attention_entropy`.

    Examples
    --------
    >>> import numpy as np, attnscale as at
    >>> q1, q2, k1, k2 = np.random.default_rng(0).standard_normal((4, 2, 10, 8))
    >>> out = at.variants.differential_attention(q1, k1, q2, k2, np.ones((2, 10, 1)), lam=0.8)
    >>> out.round(12).min(), out.round(12).max()
    (np.float64(0.2), np.float64(0.2))
    """
    if "out" in options:
        raise TypeError("differential_attention has no out: it needs room for both maps")
    layout = read_layout(options.get("layout", "bhsd"))
    v = floats("value", value)
    inputs = read_inputs(query1, key1, v, layout, enable_gqa=options.get("enable_gqa", False))
    second = read_inputs(query2, key2, v, layout, enable_gqa=options.get("enable_gqa", False))
    shapes = [x.row_shape for x in (inputs, second)]
    if shapes[0] != shapes[1]:
        raise ValueError(f"both maps must have the same heads and queries, got {shapes[0]} and {shapes[1]}")
    share = read_lam(lam, shapes[0])
    # 16-bit outputs would be rounded before the difference.
    dtype = np.result_type(*(wide_type(x.dtype) for x in (inputs, second)))
    wide = v.astype(dtype, copy=False)
    first, other = (attention(query, key, wide, **options) for query, key in ((query1, key1), (query2, key2)))
    share = laid_out(share, layout)
    narrow = inputs.dtype if inputs.dtype == second.dtype else dtype
    with np.errstate(all="ignore"):  # overflow shows as infinity or NaN in the output
        result: NDArray[Any] = first - share.astype(dtype) * other
        return result.astype(narrow, copy=False)


def read_lam(lam: Any, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """`lam` of every row, with an axis of channels."""
    array = as_array("lam", lam)
    if array.dtype.kind not in "iuf":
        raise TypeError(f"lam must be a number or an array of numbers, got {shown(lam)}")
    if not np.isfinite(array).all():
        raise ValueError("lam must be finite, got NaN or infinity")
    rows = fit_to("lam", array, shape, "(..., heads, n_queries)").astype(np.float64)
    return np.broadcast_to(rows, shape)[..., None]


_KINDS: dict[str, Callable[..., Any]] = {
    "exact": attention,
    "efficient": efficient_attention,
    "linear": linear_attention,
    "performer": performer_attention,
}


@hinted
def hybrid(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    kinds: Sequence[Kind],
    *,
    is_causal: bool = False,
    causal: Causal | None = None,
    enable_gqa: bool = False,
    layout: Layout = "bhsd",
) -> NDArray[Any]:
    """One call in which every head has its own kind of attention.

    Parameters
    ----------
    query : array_like, shape (..., heads, n_queries, head_dim)
    key : array_like, shape (..., kv_heads, n_keys, head_dim)
    value : array_like, shape (..., kv_heads, n_keys, value_dim)
        As for :func:`attnscale.attention`, with an axis of heads.
    kinds : sequence, one for each head
        "exact", "efficient", "linear", "performer", or a callable (query, key, value, is_causal=,
        causal=) that returns the output; ``functools.partial`` adds options.
    is_causal, causal, enable_gqa, layout
        As for :func:`attnscale.attention`; passed on, so that a kind without a causal form raises an error.

    Returns
    -------
    ndarray, shape (..., heads, n_queries, value_dim)

    Raises
    ------
    TypeError, ValueError
        If there is not one kind per head, or a name does not exist; else as :func:`attnscale.attention`.

    Notes
    -----
    Heads of the same kind (the same object) are computed in one call.

    Examples
    --------
    >>> import numpy as np, attnscale as at
    >>> from functools import partial
    >>> q, k, v = np.random.default_rng(0).standard_normal((3, 4, 100, 8))
    >>> log_n = partial(at.attention, scale="log_n")
    >>> out = at.variants.hybrid(q, k, v, ["exact", log_n, "linear", "linear"], is_causal=True)
    >>> bool(np.allclose(out[0], at.attention(q[0], k[0], v[0], is_causal=True)))
    True
    """
    inputs = read_whole(query, key, value, layout, enable_gqa=enable_gqa)
    if not inputs.leading:
        raise ValueError(f"query must have an axis of heads, got shape {inputs.query.shape}")
    functions = _read_kinds(kinds, inputs.leading[-1])
    result, output = make_output(inputs, inputs.value.shape[-1], layout, None)
    for function in dict.fromkeys(functions):
        heads = np.array([index for index, each in enumerate(functions) if each is function])
        arrays = (_heads_of(x, heads, inputs) for x in (inputs.query, inputs.key, inputs.value))
        output[..., heads, :, :] = function(*arrays, is_causal=is_causal, causal=causal)
    return result


def _read_kinds(kinds: Any, heads: int) -> list[Callable[..., Any]]:
    if isinstance(kinds, str) or not isinstance(kinds, Sequence):
        raise TypeError(f"kinds must be a sequence with one kind for each head, got {shown(kinds)}")
    if len(kinds) != heads:
        raise ValueError(f"kinds must hold one kind for each of the {heads} heads, got {len(kinds)}")
    found = []
    for index, kind in enumerate(kinds):
        found.append(kind if callable(kind) else _KINDS[choose(f"kinds[{index}]", kind, tuple(_KINDS))])
    return found


def _heads_of(array: NDArray[Any], heads: NDArray[np.int64], inputs: Inputs) -> NDArray[Any]:
    """The chosen heads of an array; heads of a group take its shared key head."""
    if array.ndim < 3 or array.shape[-3] == 1:
        return array
    return array[..., heads // (inputs.leading[-1] // array.shape[-3]), :, :]


@hinted
@takes(VariantOptions)
def linformer_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    key_projection: ArrayLike,
    value_projection: ArrayLike | None = None,
    *,
    scale: Scale = None,
    **options: Unpack[VariantOptions],
) -> NDArray[Any]:
    """softmax(scale query (E key)^T) (F value), in O(n rows head_dim).

    Parameters
    ----------
    query : array_like, shape (..., heads, n_queries, head_dim)
    key : array_like, shape (..., kv_heads, n_keys, head_dim)
    value : array_like, shape (..., kv_heads, n_keys, value_dim)
        As for :func:`attnscale.attention`.
    key_projection : array_like, shape (rows, n_keys) or (kv_heads, rows, n_keys)
        E: learned with the model, for one n_keys.
    value_projection : array_like, optional
        F, of the same shape; None: E (called sharing in the paper).
    scale, enable_gqa, layout, num_threads
        As for :func:`attnscale.attention`.
    is_causal, causal
        Must not be used: every projected row mixes all keys.

    Returns
    -------
    ndarray, shape (..., heads, n_queries, value_dim)

    Raises
    ------
    TypeError, ValueError
        If a projection is for another n_keys or a causal form is requested; else as
        :func:`attnscale.attention`.

    Notes
    -----
    Wang, Li, Khabsa, Fang, Ma 2020, "Linformer: Self-Attention with Linear Complexity", arXiv 2006.04768.
    There is no state for decoding: a projection belongs to one length.

    Examples
    --------
    >>> import numpy as np, attnscale as at
    >>> rng = np.random.default_rng(0)
    >>> q, k, v = rng.standard_normal((3, 2, 100, 8))
    >>> at.variants.linformer_attention(q, k, v, rng.standard_normal((16, 100)) / 10).shape
    (2, 100, 8)
    """
    causal = options.pop("is_causal", False), options.pop("causal", None)
    refuse_causal("linformer_attention", "a projected row mixes all keys", *causal)
    layout = options.pop("layout", "bhsd")
    inputs = read_whole(query, key, value, layout, enable_gqa=options.get("enable_gqa", False))
    dtype = wide_type(inputs.dtype)
    given = key_projection if value_projection is None else value_projection
    projected_key = _project("key_projection", key_projection, inputs.key, dtype)
    projected_value = _project("value_projection", given, inputs.value, dtype)
    if projected_key.shape[-2] != projected_value.shape[-2]:
        raise ValueError(
            "key_projection and value_projection must have the same number of rows, got "
            f"{projected_key.shape[-2]} and {projected_value.shape[-2]}"
        )
    output = attention(inputs.query, projected_key, projected_value, scale=scale, **options)
    with np.errstate(over="ignore"):  # numbers too large for 16 bits become infinite
        output = output.astype(inputs.dtype, copy=False)
    return np.ascontiguousarray(laid_out(output, layout)) if layout == "bshd" else output


def _project(name: str, projection: Any, rows: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    array = as_array(name, projection)
    if array.dtype.kind != "f" and array.dtype.name != "bfloat16":
        raise TypeError(f"{name} must be floating point, got {array.dtype}")
    n_keys = rows.shape[-2]
    if array.ndim < 2 or array.shape[-1] != n_keys:
        raise ValueError(
            f"{name} must have the shape (rows, n_keys) with n_keys = {n_keys}: it was made for one length; "
            f"got {array.shape}"
        )
    with np.errstate(all="ignore"):  # overflow shows as infinity or NaN in the output
        projected: NDArray[Any] = array.astype(dtype, copy=False) @ rows.astype(dtype, copy=False)
    return projected


@hinted
@takes(VariantOptions)
def local_global_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    *,
    radius: int,
    global_tokens: int = 0,
    scale: Scale = None,
    **options: Unpack[VariantOptions],
) -> NDArray[Any]:
    """Attention within a radius, plus global positions that see and are seen by all: O(n (radius + globals)).

    Parameters
    ----------
    query : array_like, shape (..., heads, n, head_dim)
    key : array_like, shape (..., kv_heads, n, head_dim)
    value : array_like, shape (..., kv_heads, n, value_dim)
        As for :func:`attnscale.attention`, with as many queries as keys.
    radius : int >= 0
        Position i sees i - radius ... i + radius; causal: i - radius ... i.
    global_tokens : int >= 0
        Number of leading positions that see all positions and are seen by all.
    scale
        A number, or None for 1/sqrt(head_dim). A law would count only a part of the keys.
    is_causal, causal, enable_gqa, layout, num_threads
        As for :func:`attnscale.attention`. Causal: the global positions are first, so all later ones
        see them ("attention sinks").

    Returns
    -------
    ndarray, shape (..., heads, n, value_dim)

    Raises
    ------
    TypeError, ValueError
        If there are not as many queries as keys or more global tokens than positions; else as
        :func:`attnscale.attention`.

    Notes
    -----
    Ainslie et al. 2020, "ETC: Encoding Long and Structured Inputs in Transformers", arXiv 2004.08483, with
    the global tokens at the front of the sequence and one softmax over both kinds of keys. Two calls of the
    exact kernel compute it: one for the global positions, and one for all others, which skips tiles of keys
    outside of the window.

    Examples
    --------
    >>> import numpy as np, attnscale as at
    >>> q, k, v = np.random.default_rng(0).standard_normal((3, 2, 100, 8))
    >>> i = np.arange(100)
    >>> seen = (abs(i[:, None] - i) <= 5) | (i < 3) | (i[:, None] < 3)
    >>> out = at.variants.local_global_attention(q, k, v, radius=5, global_tokens=3)
    >>> bool(np.allclose(out, at.attention(q, k, v, attn_mask=seen)))
    True
    """
    inputs, result, output = read_with_output(query, key, value, options)
    q, k, v = inputs.query, inputs.key, inputs.value
    if q.shape[-2] != k.shape[-2]:
        raise ValueError(
            f"query and key must have the same number of rows, got {q.shape[-2]} and {k.shape[-2]}"
        )
    first, reach = _count("global_tokens", global_tokens), _count("radius", radius)
    if first > q.shape[-2]:
        raise ValueError(f"global_tokens must be at most the {q.shape[-2]} positions, got {first}")
    if isinstance(scale, (str, Law)):
        raise TypeError(
            f"scale must be a number here: a law would count only a part of the keys, got {shown(scale)}"
        )
    causal = options.get("causal")
    offset = offset_of(inputs.extents, options.get("is_causal", False), causal)
    if offset:
        raise ValueError(
            f"causal must align query i with key i here, which is causal=0, got causal={shown(causal)}"
        )
    one_way = offset is not None
    own: dict[str, Any] = {name: options.get(name, DEFAULTS[name]) for name in ("enable_gqa", "num_threads")}
    own["scale"] = scale
    if first:
        attention(q[..., :first, :], k, v, is_causal=one_way, out=output[..., :first, :], **own)
    if first < q.shape[-2]:
        _attend_others(q[..., first:, :], k, v, output[..., first:, :], reach, 0 if one_way else reach, own)
    return result


def _attend_others(
    query: NDArray[Any],
    key: NDArray[Any],
    value: NDArray[Any],
    out: NDArray[Any],
    left: int,
    right: int,
    options: dict[str, Any],
) -> None:
    """Write the positions after the global ones to `out`: one call that sees the global keys and a window."""
    call = Call(query, key, value, options)
    n_keys = key.shape[-2]
    n_global = n_keys - query.shape[-2]
    position = np.arange(n_global, n_keys)
    begin = np.maximum(position - min(left, n_keys), n_global)
    end = np.minimum(position + min(right, n_keys) + 1, n_keys)
    call.read()
    call.core = call.core_of(begin, end)
    call.core.show_leading(n_global)
    call.attend(None, (), out)


def _count(name: str, value: Any) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an integer, got {shown(value)}") from None
    if number < 0:
        raise ValueError(f"{name} must be at least 0, got {number}")
    return number
