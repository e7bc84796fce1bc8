# SPDX-License-Identifier: BSD-3-Clause
"""Rotary positions: rotation of queries and keys, and the resulting dependence of scores on distance."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .._base.checks import as_array, boolean, number, positive_int, shown
from ._arrays import floats, vectors, wide_type

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray


def rotary_frequencies(rotary_dim: int, *, base: float = 10000.0) -> NDArray[np.float64]:
    """base^(-2 c / rotary_dim) for the pairs of channels c = 0, 1, ..., in radians per position.

    Parameters
    ----------
    rotary_dim : int
        Number of rotated channels; even.
    base : float, default 10000.0
        > 0.

    Returns
    -------
    ndarray of float64, shape (rotary_dim / 2,)

    Raises
    ------
    TypeError, ValueError
        If rotary_dim is odd, or base is not above 0.

    Examples
    --------
    >>> rotary_frequencies(4)
    array([1.  , 0.01])
    """
    dim = positive_int("rotary_dim", rotary_dim)
    if dim % 2:
        raise ValueError(f"rotary_dim must be even, since channels are turned in pairs, got {dim}")
    if number("base", base) <= 0:
        raise ValueError(f"base must be greater than 0, got {shown(base)}")
    return np.asarray(float(base) ** (-np.arange(0, dim, 2) / dim))


def apply_rotary(
    x: ArrayLike,
    positions: ArrayLike | None = None,
    *,
    base: float = 10000.0,
    frequencies: ArrayLike | None = None,
    rotary_dim: int | None = None,
    interleaved: bool = False,
) -> NDArray[Any]:
    """Queries or keys with each pair of channels rotated by position * frequency.

    Parameters
    ----------
    x : array_like, shape (..., n, head_dim)
        Any float type.
    positions : array_like of numbers, optional
        Broadcasts to (..., n); 0 ... n - 1 by default.
    base : float, default 10000.0
        Base of :func:`rotary_frequencies`.
    frequencies : array_like, shape (rotary_dim / 2,), optional
        Radians per position, in place of those of ``base``. A 0 leaves its pair unchanged.
    rotary_dim : int, optional
        Number of leading channels to rotate; even. The others are unchanged. Default: head_dim.
    interleaved : bool, default False
        False: pairs are channels c and c + rotary_dim / 2 (GPT-NeoX, Llama); True: 2 c and 2 c + 1 (RoFormer,
        GPT-J). A model's weights require one of them.

    Returns
    -------
    ndarray, shape (..., n, head_dim)
        The type is that of x.

    Raises
    ------
    TypeError, ValueError
        If shapes do not fit, or rotary_dim is odd or above head_dim.

    Notes
    -----
    Su et al. 2021, RoFormer (arXiv 2104.09864), equation 34. Norms do not change, and a score depends
    only on the difference of positions. Angles are computed in float64, so that large positions keep their
    phase; torch code that uses float32 differs there.

    Examples
    --------
    >>> import numpy as np, attnscale as at
    >>> q, k = np.random.default_rng(0).standard_normal((2, 1, 64))
    >>> turn = at.variants.apply_rotary
    >>> near, far = (turn(q, [m]) @ turn(k, [m - 3]).T for m in (3, 1000))
    >>> bool(np.isclose(near, far))
    True
    """
    rows = vectors("x", x)
    wide = rows.astype(wide_type(rows.dtype))  # a copy: the result
    theta = _frequencies(frequencies, rotary_dim, rows.shape[-1], base)
    angle = _positions(positions, rows.shape[:-1])[..., None] * theta
    cos, sin = np.cos(angle).astype(wide.dtype), np.sin(angle).astype(wide.dtype)
    first, second = _pairs(len(theta), interleaved)
    a, b = wide[..., first].copy(), wide[..., second].copy()
    with np.errstate(all="ignore"):  # overflow shows as infinity or NaN in the output
        wide[..., first] = a * cos - b * sin
        wide[..., second] = a * sin + b * cos
        return wide.astype(rows.dtype, copy=False)


def rotary_score(
    query: ArrayLike,
    key: ArrayLike,
    distances: ArrayLike,
    *,
    base: float = 10000.0,
    frequencies: ArrayLike | None = None,
    rotary_dim: int | None = None,
    interleaved: bool = False,
) -> NDArray[Any]:
    """Dot product of a rotated query and a rotated key, as a function of their distance.

    Parameters
    ----------
    query, key : array_like, shape (..., head_dim)
        Before rotation. Leading axes broadcast.
    distances : array_like of numbers, shape (n_distances,)
        Position of the query minus that of the key; negative to the right of the query.
    base, frequencies, rotary_dim, interleaved
        As for :func:`apply_rotary`.

    Returns
    -------
    ndarray of float64, shape (..., n_distances)
        Without scale.

    Raises
    ------
    TypeError, ValueError
        If shapes do not fit, or rotary_dim is odd or above head_dim.

    Notes
    -----
    With pairs of channels as complex numbers it is the sum over pairs of Re(q_c conj(k_c) e^(i t theta_c)):
    ``|q_c| |k_c|`` is the amplitude of a wave in t, and the angle between q_c and k_c its phase.

    Examples
    --------
    >>> import numpy as np, attnscale as at
    >>> k = np.ones(64)
    >>> q = at.variants.apply_rotary(k[None], [1])[0]  # q = R_1 k: largest one to the right
    >>> int(at.variants.rotary_score(q, k, np.arange(-5, 6)).argmax() - 5)
    -1
    """
    q, k = floats("query", query), floats("key", key)
    if q.ndim == 0 or k.ndim == 0 or q.shape[-1] != k.shape[-1]:
        raise ValueError(f"query and key must be (..., head_dim) alike, got shapes {q.shape} and {k.shape}")
    theta = _frequencies(frequencies, rotary_dim, q.shape[-1], base)
    t = _distances(distances)
    first, second = _pairs(len(theta), interleaved)
    waves = np.exp(1j * np.multiply.outer(theta, t))
    with np.errstate(all="ignore"):  # overflow shows as infinity or NaN in the scores
        products = [x.astype(np.float64)[..., first] + 1j * x.astype(np.float64)[..., second] for x in (q, k)]
        turning = products[0] * products[1].conj()
        passing = q[..., 2 * len(theta) :].astype(np.float64) * k[..., 2 * len(theta) :]
        return np.asarray((turning @ waves).real + passing.sum(-1)[..., None])


def rotary_decay(
    distances: ArrayLike, head_dim: int, *, base: float = 10000.0, frequencies: ArrayLike | None = None
) -> NDArray[np.float64]:
    """Mean of cos(t theta_c) over the pairs: the share of the expected score that is left at distance t.

    Parameters
    ----------
    distances : array_like of numbers, shape (n_distances,)
    head_dim : int
        Even; all channels are rotated.
    base, frequencies
        As for :func:`apply_rotary`.

    Returns
    -------
    ndarray of float64, shape (n_distances,)
        1 at distance 0; between -1 and 1, of both signs.

    Raises
    ------
    TypeError, ValueError
        If head_dim is odd, or distances do not have one axis.

    Notes
    -----
    For components with E[q_c k_c] = r and no other correlation, E[score] = r head_dim decay(t), exactly. With
    r = 0, q and k independent and one of them isotropic, mean and variance are the same as without positions
    at every distance, since a rotation keeps the law of an isotropic vector: random keys do not decay.

    Examples
    --------
    >>> rotary_decay([0, 1, 100, 10000], 64).round(3)
    array([1.   , 0.966, 0.559, 0.049])
    """
    theta = _frequencies(frequencies, None, positive_int("head_dim", head_dim), base)
    return np.asarray(np.cos(np.multiply.outer(_distances(distances), theta)).mean(-1))


def rotary_bound(
    distances: ArrayLike, head_dim: int, *, base: float = 10000.0, frequencies: ArrayLike | None = None
) -> NDArray[np.float64]:
    """Mean of ``|S_j|``, S_j the sum of the first j waves e^(i t theta_c): the curve of RoFormer's figure 2.

    ``|score| <= max_c |h_(c+1) - h_c| (head_dim / 2) bound(t)`` with h_c = q_c conj(k_c) and 0 after the
    last: summation by parts.

    Parameters
    ----------
    distances, head_dim, base, frequencies
        As for :func:`rotary_decay`.

    Returns
    -------
    ndarray of float64, shape (n_distances,)
        (head_dim / 2 + 1) / 2 at distance 0.

    Raises
    ------
    TypeError, ValueError
        If head_dim is odd, or distances do not have one axis.

    Notes
    -----
    Su et al. 2021, RoFormer (arXiv 2104.09864), section 3.4.3. The curve bounds the score; the score
    itself need not fall with it.

    Examples
    --------
    >>> rotary_bound([0, 10, 100], 128).round(2)
    array([32.5 , 17.95, 10.23])
    """
    theta = _frequencies(frequencies, None, positive_int("head_dim", head_dim), base)
    waves = np.exp(1j * np.multiply.outer(_distances(distances), theta))
    return np.asarray(np.abs(np.cumsum(waves, axis=-1)).mean(-1))


def _frequencies(frequencies: Any, rotary_dim: Any, head_dim: int, base: float) -> NDArray[np.float64]:
    dim = head_dim if rotary_dim is None else positive_int("rotary_dim", rotary_dim)
    if dim > head_dim:
        raise ValueError(f"rotary_dim must be at most head_dim = {head_dim}, got {dim}")
    default = rotary_frequencies(dim, base=base)
    if frequencies is None:
        return default
    theta = _numbers("frequencies", frequencies)
    if theta.shape != default.shape:
        raise ValueError(
            f"frequencies must have shape (rotary_dim / 2,) = {default.shape}, got {theta.shape}"
        )
    return theta


def _positions(positions: Any, rows: tuple[int, ...]) -> NDArray[np.float64]:
    if positions is None:
        return np.arange(rows[-1], dtype=np.float64)
    array = _numbers("positions", positions)
    try:
        np.broadcast_to(array, rows)
    except ValueError:
        raise ValueError(f"positions must broadcast to (..., n) = {rows}, got shape {array.shape}") from None
    return array


def _distances(distances: Any) -> NDArray[np.float64]:
    t = _numbers("distances", distances)
    if t.ndim != 1:
        raise ValueError(f"distances must have one axis, got shape {t.shape}")
    return t


def _numbers(name: str, value: Any) -> NDArray[np.float64]:
    array = as_array(name, value)
    if array.dtype.kind not in "iuf":
        raise TypeError(f"{name} must be numbers, got {array.dtype}")
    wide = array.astype(np.float64)
    if not np.isfinite(wide).all():
        raise ValueError(f"{name} must be finite, got NaN or infinity")
    return wide


def _pairs(n_pairs: int, interleaved: bool) -> tuple[slice, slice]:
    """Slices of the first and second channels of the pairs."""
    if boolean("interleaved", interleaved):
        return slice(0, 2 * n_pairs, 2), slice(1, 2 * n_pairs, 2)
    return slice(0, n_pairs), slice(n_pairs, 2 * n_pairs)
