# SPDX-License-Identifier: BSD-3-Clause
"""Relay nodes: a few nodes read the sequence by softmax averages, interact, and send messages back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import numpy as np

from .._base.checks import choose
from .._base.hints import hinted
from ..exact.state import AttentionState, attention_state, merge_states
from ._arrays import reals, vectors

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

_ENERGIES = ("bilinear", "residual")
_GRADIENTS = ("bilinear", "residual", "ked")


@hinted
def relay_attention(
    x: ArrayLike, centres: ArrayLike, value: ArrayLike | None = None, *, num_threads: int | None = None
) -> AttentionState:
    """B_k = sum_i A_ik x_i with A_ik = softmax over i of centre_k . x_i, in O(n nodes dim).

    Parameters
    ----------
    x : array_like, shape (..., n, dim)
        The sequence.
    centres : array_like, shape (..., nodes, dim)
        mu_k of the article. Leading axes broadcast.
    value : array_like, shape (..., n, value_dim), optional
        Values to average; None: x itself.
    num_threads
        As for :func:`attnscale.attention`.

    Returns
    -------
    AttentionState
        ``output`` holds the nodes B, shape (..., nodes, value_dim); ``lse`` and ``entropy`` belong to the
        weights over the sequence. States over its parts merge with :func:`attnscale.merge_states`.

    Notes
    -----
    Attention of the nodes to the sequence with scale 1, computed by the exact kernel. With keys
    x centres^T it is the key half of :func:`efficient_attention`: its g_k are the B_k. Source: article 1007
    on self-attention, section "Relay nodes", which names the model KED after its cost O(K E D).

    Examples
    --------
    >>> import numpy as np, attnscale as at
    >>> rng = np.random.default_rng(0)
    >>> x, centres = rng.standard_normal((100, 8)), rng.standard_normal((4, 8))
    >>> nodes = at.variants.relay_attention(x, centres).output
    >>> keys = x @ centres.T
    >>> bool(np.allclose(nodes, at.variants.global_maps(keys, keys, x).values))
    True
    """
    given = x if value is None else value
    return attention_state(centres, x, given, scale=1.0, num_threads=num_threads)


class RelayState:
    """Relay nodes while the sequence arrives.

    Parameters
    ----------
    centres : array_like, shape (..., nodes, dim)

    Examples
    --------
    >>> import numpy as np, attnscale as at
    >>> rng = np.random.default_rng(0)
    >>> x, centres = rng.standard_normal((100, 8)), rng.standard_normal((4, 8))
    >>> state = at.variants.RelayState(centres).update(x[:60]).update(x[60:])
    >>> bool(np.allclose(state.read(), at.variants.relay_attention(x, centres).output))
    True
    """

    def __init__(self, centres: ArrayLike) -> None:
        self._centres = vectors("centres", centres)
        self._state: AttentionState | None = None

    def update(self, x: ArrayLike, value: ArrayLike | None = None) -> Self:
        """Add a part of the sequence; returns the state itself."""
        part = relay_attention(x, self._centres, value)
        self._state = part if self._state is None else merge_states([self._state, part])
        return self

    def read(self) -> NDArray[Any]:
        """The nodes, shape (..., nodes, value_dim)."""
        return self._seen().output

    def merge(self, other: Self) -> Self:
        """The state over both parts of the sequence; the centres must be the same."""
        if type(other) is not type(self):
            raise TypeError(f"other must be a {type(self).__name__}, got {type(other).__name__}")
        if not np.array_equal(self._centres, other._centres):
            raise ValueError("the states must have the same centres, got different ones")
        merged = type(self)(self._centres)
        merged._state = merge_states([self._seen(), other._seen()])
        return merged

    def _seen(self) -> AttentionState:
        if self._state is None:
            raise ValueError("the state has seen no part of the sequence yet; update(x) comes first")
        return self._state


@np.errstate(all="ignore")  # overflow shows as infinity or NaN in the result
def relay_energy(nodes: ArrayLike, weight: ArrayLike, *, kind: str = "bilinear") -> NDArray[np.float64]:
    """The energy of nodes that interact through a matrix W.

    Parameters
    ----------
    nodes : array_like, shape (..., K, dim)
        B.
    weight : array_like, shape (K, K)
        W.
    kind : {"bilinear", "residual"}
        sum_kl W_kl B_k . B_l, or -sum_l \\|sum_k W_kl B_k - B_l\\|^2.

    Returns
    -------
    ndarray of float64, shape (...)

    Raises
    ------
    TypeError, ValueError
        If shapes do not fit, or the kind does not exist.

    Examples
    --------
    >>> import numpy as np, attnscale as at
    >>> nodes = np.array([[1.0, 0], [0, 2]])
    >>> float(at.variants.relay_energy(nodes, np.eye(2)))
    5.0
    >>> float(at.variants.relay_energy(nodes, np.zeros((2, 2)), kind="residual"))
    -5.0
    """
    choose("kind", kind, _ENERGIES)
    b, w = _read_nodes(nodes), _read_weight("weight", weight)
    _check_nodes("weight", w, b)
    if kind == "bilinear":
        return np.asarray(np.einsum("...kd,kl,...ld->...", b, w, b))
    return np.asarray(-np.square(w.T @ b - b).sum((-2, -1)))


@np.errstate(all="ignore")  # overflow shows as infinity or NaN in the result
def relay_energy_gradient(
    nodes: ArrayLike,
    weight: ArrayLike | tuple[ArrayLike, ArrayLike],
    *,
    kind: str = "bilinear",
) -> NDArray[np.float64]:
    """dE/dB_k of :func:`relay_energy`, or the expression that the article uses instead.

    Parameters
    ----------
    nodes : array_like, shape (..., K, dim)
    weight : array_like, shape (K, K), or pair (L, R) for "ked"
        L and R of shape (D, K): the interaction has D dimensions, and costs O(K dim D).
    kind : {"bilinear", "residual", "ked"}
        "ked" is L^T (R B), which defines the model in the article. It is the gradient of B^T L^T R B / 2
        only if L^T R is symmetric; otherwise it is not the gradient of an energy.

    Returns
    -------
    ndarray of float64, shape (..., K, dim)

    Raises
    ------
    TypeError, ValueError
        If shapes do not fit, or the kind does not exist.

    Examples
    --------
    >>> import numpy as np, attnscale as at
    >>> at.variants.relay_energy_gradient([[1.0, 0], [0, 2]], np.eye(2))
    array([[2., 0.],
           [0., 4.]])
    """
    choose("kind", kind, _GRADIENTS)
    b = _read_nodes(nodes)
    if kind == "ked":
        left, right = _read_factors(weight)
        _check_nodes("L", left, b)
        _check_nodes("R", right, b)
        found: NDArray[np.float64] = left.T @ (right @ b)
        return found
    w = _read_weight("weight", weight)
    _check_nodes("weight", w, b)
    if kind == "bilinear":
        return np.asarray((w + w.T) @ b)
    rest = w.T @ b - b
    return np.asarray(-2 * (w @ rest - rest))


@np.errstate(all="ignore")  # overflow shows as infinity or NaN in the result
def relay_message(x: ArrayLike, centres: ArrayLike, gradient: ArrayLike) -> NDArray[np.float64]:
    """dE/dx_i = sum_k A_ik (G_k + (G_k . (x_i - B_k)) centre_k), given G_k = dE/dB_k.

    Parameters
    ----------
    x : array_like, shape (..., n, dim)
    centres : array_like, shape (..., nodes, dim)
    gradient : array_like, shape (..., nodes, dim)
        As from :func:`relay_energy_gradient`, of the nodes of x.

    Returns
    -------
    ndarray of float64, shape (..., n, dim)

    Raises
    ------
    ValueError
        If the gradient has another shape than the nodes; else as :func:`relay_attention`.

    Notes
    -----
    dA_ik = A_ik (centre_k . dx_i - sum_j A_jk centre_k . dx_j): the second term gives x_i - B_k. The weights
    A are recomputed from the log-sum-exp of each node; memory is O(n nodes).

    Examples
    --------
    >>> import numpy as np, attnscale as at
    >>> rng = np.random.default_rng(0)
    >>> x, centres = rng.standard_normal((10, 4)), rng.standard_normal((3, 4))
    >>> nodes = at.variants.relay_attention(x, centres).output
    >>> at.variants.relay_message(x, centres, at.variants.relay_energy_gradient(nodes, np.eye(3))).shape
    (10, 4)
    """
    rows, mu, g = (reals(name, a) for name, a in (("x", x), ("centres", centres), ("gradient", gradient)))
    state = relay_attention(rows, mu)
    if g.shape != state.output.shape:
        raise ValueError(f"gradient must have the shape of the nodes, {state.output.shape}, got {g.shape}")
    weights = np.exp(rows @ np.swapaxes(mu, -1, -2) - state.lse[..., None, :])
    along = rows @ np.swapaxes(g, -1, -2) - np.einsum("...kd,...kd->...k", g, state.output)[..., None, :]
    message: NDArray[np.float64] = weights @ g + (weights * along) @ mu
    return message


def _read_nodes(nodes: Any) -> NDArray[np.float64]:
    array = reals("nodes", nodes)
    if array.ndim < 2:
        raise ValueError(f"nodes must have at least 2 axes (..., K, dim), got shape {array.shape}")
    return array


def _read_weight(name: str, weight: Any) -> NDArray[np.float64]:
    if isinstance(weight, tuple):
        raise TypeError(f'{name} must be one matrix, got a tuple; a pair (L, R) goes with kind="ked"')
    array = reals(name, weight)
    if array.ndim != 2 or array.shape[0] != array.shape[1]:
        raise ValueError(f"{name} must be a matrix (K, K), got shape {array.shape}")
    return array


def _read_factors(weight: Any) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    if not isinstance(weight, tuple) or len(weight) != 2:
        raise TypeError(f'weight must be a pair (L, R) for kind="ked", got {type(weight).__name__}')
    left, right = (reals(name, a) for name, a in zip("LR", weight, strict=True))
    if left.ndim != 2 or left.shape != right.shape:
        raise ValueError(f"L and R must have the same shape (D, K), got {left.shape} and {right.shape}")
    return left, right


def _check_nodes(name: str, matrix: NDArray[Any], nodes: NDArray[Any]) -> None:
    if matrix.shape[-1] != nodes.shape[-2]:
        raise ValueError(
            f"{name} must have one column for each of the {nodes.shape[-2]} nodes, got {matrix.shape}"
        )
