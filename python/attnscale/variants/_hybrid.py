# SPDX-License-Identifier: BSD-3-Clause
"""Hybrid layers: each head has its own kind of attention."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from .._call.arrays import Inputs, make_output
from .._checks import choose, shown
from .._options import hinted
from ..attention import attention
from ._efficient import efficient_attention
from ._heads import read_whole
from ._linear import linear_attention
from ._performer import performer_attention

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from .._call.types import Causal, Layout

    Kind: TypeAlias = str | Callable[..., NDArray[Any]]

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
        causal=) that returns the output; ``functools.partial`` gives one its options.
    is_causal, causal, enable_gqa, layout
        As for :func:`attnscale.attention`; passed on, so that a kind without a causal form is an error.

    Returns
    -------
    ndarray, shape (..., heads, n_queries, value_dim)

    Raises
    ------
    TypeError, ValueError, MemoryError
        As :func:`attnscale.attention`; not one kind for each head; a name that does not exist.

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
    """The chosen heads of an array; a head of a group takes the key head that the group shares."""
    if array.ndim < 3 or array.shape[-3] == 1:
        return array
    return array[..., heads // (inputs.leading[-1] // array.shape[-3]), :, :]
