# SPDX-License-Identifier: BSD-3-Clause
"""Local and global attention after ETC: neighbours, and a few positions that everybody sees."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from .._call.call import Call
from .._call.options import DEFAULTS, takes
from .._call.types import VariantOptions
from .._checks import shown
from .._options import hinted
from ..attention import attention
from ._heads import offset_of, read_call

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from .._call.types import Scale


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
    """Each position sees those within a radius and the global ones, which see all: O(n (radius + globals)).

    Parameters
    ----------
    query : array_like, shape (..., heads, n, head_dim)
    key : array_like, shape (..., kv_heads, n, head_dim)
    value : array_like, shape (..., kv_heads, n, value_dim)
        As for :func:`attnscale.attention`, with as many queries as keys.
    radius : int >= 0
        Position i sees i - radius ... i + radius; causal: i - radius ... i.
    global_tokens : int >= 0
        The first positions, which see everybody and are seen by everybody.
    scale
        A number, or None for 1/sqrt(head_dim). A law's n would be that of a part.
    is_causal, causal, enable_gqa, layout, num_threads
        As for :func:`attnscale.attention`. Causal: the global positions are first, so that all later ones
        see them ("attention sinks").

    Returns
    -------
    ndarray, shape (..., heads, n, value_dim)

    Raises
    ------
    TypeError, ValueError, MemoryError
        As :func:`attnscale.attention`; not as many queries as keys, more global tokens than positions.

    Notes
    -----
    Ainslie et al. 2020, "ETC: Encoding Long and Structured Inputs in Transformers", arXiv 2004.08483, with
    the global tokens at the front of the sequence and one softmax over both kinds of keys. Computed as two
    calls of the exact kernel: the global positions, and all others, for which tiles of keys out of the
    window are not touched.

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
    inputs, result, output = read_call(query, key, value, options)
    q, k, v = inputs.query, inputs.key, inputs.value
    if q.shape[-2] != k.shape[-2]:
        raise ValueError(
            f"query and key must have the same number of rows, got {q.shape[-2]} and {k.shape[-2]}"
        )
    first, reach = _count("global_tokens", global_tokens), _count("radius", radius)
    if first > q.shape[-2]:
        raise ValueError(f"global_tokens must be at most the {q.shape[-2]} positions, got {first}")
    _check_scale(scale)
    causal = options.get("causal")
    offset = offset_of(inputs, options.get("is_causal", False), causal)
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
    """The positions behind the global ones, into `out`: one call that sees the global keys and a window."""
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


def _check_scale(scale: Any) -> None:
    from ..laws import Law

    if isinstance(scale, (str, Law)):
        raise TypeError(
            f"scale must be a number here: a law would see the n of a part of the keys, got {shown(scale)}"
        )
