# SPDX-License-Identifier: BSD-3-Clause
"""Performer: positive orthogonal random features (FAVOR+), an unbiased estimate of exp(scale q . k)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from .._base.checks import as_array, boolean, generator, number, positive_int, shown
from .._base.hints import hinted
from .._call.arrays import Unread
from .._call.options import VariantOptions, takes
from ._arrays import reals
from ._linear_form import LinearForm, State, attend_in

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from .._call.types import Layout
    from ._arrays import Whole


def performer_projection(
    features: int,
    head_dim: int,
    *,
    orthogonal: bool = True,
    rng: Any = None,
) -> NDArray[np.float64]:
    """Random directions, each row standard normal; the rows of a block of head_dim are orthogonal.

    Parameters
    ----------
    features : int
        Number of rows.
    head_dim : int
        Number of columns.
    orthogonal : bool, default True
        False: all rows are independent, and the estimate varies more.
    rng : None, int, SeedSequence or Generator, optional

    Returns
    -------
    ndarray of float64, shape (features, head_dim)

    Raises
    ------
    TypeError, ValueError
        If a size is not a positive integer.

    Notes
    -----
    Each block is uniform among the rotations (QR of a normal matrix, signs as Mezzadri 2007), its rows
    scaled by independent lengths of normal vectors: every row by itself is standard normal.

    Examples
    --------
    >>> import numpy as np, attnscale as at
    >>> w = at.variants.performer_projection(4, 4, rng=0)
    >>> products = w @ w.T
    >>> bool(np.allclose(products, np.diag(np.diag(products))))
    True
    """
    features, head_dim = positive_int("features", features), positive_int("head_dim", head_dim)
    normal = generator(rng)
    if not boolean("orthogonal", orthogonal):
        return normal.standard_normal((features, head_dim))
    blocks = -(-features // head_dim)
    q, r = np.linalg.qr(normal.standard_normal((blocks, head_dim, head_dim)))
    q *= np.sign(np.diagonal(r, axis1=-2, axis2=-1))[..., None, :]
    rows = np.swapaxes(q, -1, -2).reshape(-1, head_dim)[:features]
    lengths = np.linalg.norm(normal.standard_normal((features, head_dim)), axis=-1, keepdims=True)
    directions: NDArray[np.float64] = rows * lengths
    return directions


def positive_features(
    x: ArrayLike, projection: ArrayLike, *, scale: float | None = None
) -> NDArray[np.float64]:
    """exp(w . x' - \\|x'\\|^2 / 2) / sqrt(features) with x' = sqrt(scale) x, for each row w.

    Parameters
    ----------
    x : array_like, shape (..., n, head_dim)
    projection : array_like, shape (features, head_dim)
        As from :func:`performer_projection`.
    scale : float > 0, optional
        None: 1/sqrt(head_dim).

    Returns
    -------
    ndarray of float64, shape (..., n, features)
        phi(q) . phi(k) has the expectation exp(scale q . k). They overflow where exp does;
        :func:`performer_attention` uses their logarithms.

    Raises
    ------
    TypeError, ValueError
        If the projection is for another head_dim, or the scale is not positive.

    Examples
    --------
    >>> import numpy as np, attnscale as at
    >>> q, k = np.full((1, 4), 0.3), np.full((1, 4), 0.2)
    >>> w = at.variants.performer_projection(100_000, 4, rng=0)
    >>> phi_q, phi_k = (at.variants.positive_features(x, w, scale=1.0) for x in (q, k))
    >>> round((phi_q @ phi_k.T).item(), 2), round(float(np.exp(q @ k.T).item()), 2)
    (1.27, 1.27)
    """
    rows = reals("x", x)
    if rows.ndim < 1:
        raise ValueError(f"x must have at least 1 axis (..., head_dim), got shape {rows.shape}")
    form = performer_form(rows.shape[-1], None, projection, scale, None)
    assert form.projection is not None
    with np.errstate(all="ignore"):  # overflow shows as infinity or NaN in the features
        norms = form.norm_factor * np.square(rows).sum(-1, keepdims=True)
        found: NDArray[np.float64] = np.exp(rows @ form.projection - norms - form.shift)
    return found


def performer_form(head_dim: int, features: Any, projection: Any, scale: Any, rng: Any) -> LinearForm:
    """ln phi(x) = W x' - |x'|^2 / 2 - ln(features) / 2 with x' = sqrt(scale) x."""
    multiplier = 1 / math.sqrt(max(head_dim, 1)) if scale is None else number("scale", scale)
    if multiplier <= 0:
        raise ValueError(f"scale must be positive, got {multiplier}")
    directions: NDArray[np.float64] | Unread
    if projection is None:
        directions = performer_projection(features, max(head_dim, 1), rng=rng)[:, :head_dim]
    else:
        directions = _read_projection(projection, head_dim)
        if rng is not None:
            raise ValueError("rng must be left out with a projection, got both")
        if features not in (None, 256, directions.shape[0]):
            raise ValueError(
                f"features must be the rows of the projection, {directions.shape[0]}, got {shown(features)}"
            )
    read = None if isinstance(directions, Unread) else directions.T
    return LinearForm(
        "projected",
        projection=None if read is None else np.ascontiguousarray(read) * math.sqrt(multiplier),
        norm_factor=multiplier / 2,
        shift=math.log(directions.shape[0]) / 2,
    )


def _read_projection(projection: Any, head_dim: int) -> NDArray[np.float64] | Unread:
    array: Any = projection if type(projection) is Unread else as_array("projection", projection)
    if array.dtype.kind != "f":
        raise TypeError(f"projection must be floating point, got {array.dtype}")
    if array.ndim != 2 or array.shape[1] != head_dim or not array.shape[0]:
        raise ValueError(
            f"projection must have the shape (features, head_dim) with head_dim = {head_dim}, "
            f"got {array.shape}"
        )
    if isinstance(array, Unread):
        return array
    if not np.isfinite(array).all():
        raise ValueError("projection must be finite, got NaN or infinity")
    return array.astype(np.float64)  # type: ignore[no-any-return]


@hinted
@takes(VariantOptions)
def performer_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    *,
    features: int = 256,
    projection: ArrayLike | None = None,
    rng: Any = None,
    scale: float | None = None,
    **options: Unpack[VariantOptions],
) -> NDArray[Any]:
    """Softmax attention with exp(scale q . k) estimated by random features, in O(n features value_dim).

    Parameters
    ----------
    query : array_like, shape (..., heads, n_queries, head_dim)
    key : array_like, shape (..., kv_heads, n_keys, head_dim)
    value : array_like, shape (..., kv_heads, n_keys, value_dim)
        As for :func:`attnscale.attention`.
    features : int, default 256
        Number of random directions; with a projection, 256 or its number of rows.
    projection : array_like, shape (features, head_dim), optional
        The directions, for example from :func:`performer_projection`.
    rng : None, int, SeedSequence or Generator, optional
        Source of the directions.
    scale : float > 0, optional
        None: 1/sqrt(head_dim).
    is_causal, causal, enable_gqa, layout, num_threads
        As for :func:`attnscale.attention`.

    Returns
    -------
    ndarray, shape (..., heads, n_queries, value_dim)

    Raises
    ------
    TypeError, ValueError
        If the projection is for another head_dim, or the scale is not positive; else as
        :func:`attnscale.attention`.

    Notes
    -----
    phi(x)_r = exp(w_r . x - \\|x\\|^2 / 2) / sqrt(features) is positive, and E phi(q) . phi(k) = exp(q . k).
    The error falls like 1/sqrt(features); its constant grows like exp(scale \\|q + k\\|^2), so sharp rows
    need very many. The ratio of two unbiased sums is itself biased by O(1/features). Source: Choromanski
    et al. 2021, "Rethinking Attention with Performers", arXiv 2009.14794.

    Examples
    --------
    >>> import numpy as np, attnscale as at
    >>> q, k, v = 0.5 * np.random.default_rng(0).standard_normal((3, 200, 8))
    >>> exact = at.attention(q, k, v)
    >>> few, many = (
    ...     np.abs(at.variants.performer_attention(q, k, v, features=m, rng=0) - exact).max()
    ...     for m in (16, 4096)
    ... )
    >>> bool(many < few / 4)
    True
    """

    def form_of(inputs: Whole) -> LinearForm:
        return performer_form(inputs.query.shape[-1], features, projection, scale, rng)

    return attend_in(form_of, query, key, value, options)


class PerformerState(State):
    """Performer attention while keys arrive: the sums of each random feature, with its own maximum.

    Parameters
    ----------
    projection : array_like, shape (features, head_dim)
        As from :func:`performer_projection`; states to be merged need the same one.
    scale, enable_gqa, layout
        As for :func:`performer_attention`.

    Examples
    --------
    >>> import numpy as np, attnscale as at
    >>> k, v = np.random.default_rng(0).standard_normal((2, 100, 8))
    >>> w = at.variants.performer_projection(64, 8, rng=0)
    >>> state = at.variants.PerformerState(w).update(k, v)
    >>> whole = at.variants.performer_attention(k[:3], k, v, projection=w)
    >>> bool(np.allclose(state.read(k[:3]), whole))
    True
    """

    def __init__(
        self,
        projection: ArrayLike,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
        layout: Layout = "bhsd",
    ) -> None:
        columns = np.shape(projection)[-1] if np.ndim(projection) else 0
        form = performer_form(columns, None, projection, scale, None)
        super().__init__(form, enable_gqa=enable_gqa, layout=layout)
