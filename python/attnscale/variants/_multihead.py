# SPDX-License-Identifier: BSD-3-Clause
"""Multi-head attention as a layer: projections, mask, prior, dropout, and scales that can be learned."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import normalizers
from .._call.rows import shows, typed_mask
from .._checks import as_array, boolean, choose, generator, number, positive_int, shown
from .._results import AttentionStatistics
from ..attention import attention, attention_statistics
from ._arrays import vectors

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, DTypeLike, NDArray

    from .._call.types import QKNorm, Scale
    from ..normalizers import Normalizer

_WEIGHTS = ("query_weight", "key_weight", "value_weight", "output_weight")
_BIASES = ("query_bias", "key_bias", "value_bias", "output_bias")
# Their weights are exp(score) over a sum, so that leaving keys out changes nothing but this sum.
_EXPONENTIAL = (normalizers.Softmax, normalizers.SoftmaxN, normalizers.Sink)


class MultiHeadAttention:
    """Linear maps to queries, keys and values of several heads, attention, and a linear map back.

    Parameters
    ----------
    embed_dim : int
        Channels of input and output.
    heads : int
    head_dim : int, optional
        embed_dim / heads by default.
    scale : float, array_like of shape (heads,), Law or str, optional
        None: 1/sqrt(head_dim). An array is a parameter: one scale a head, which training may change.
    dropout : float, default 0.0
        Share of the weights that is set to 0 where a call has ``rng``; the others grow by 1/(1 - dropout).
    bias : bool, default True
        Whether the linear maps have one.
    normalizer : str or Normalizer, default "softmax"
        How scores become weights: one of :mod:`attnscale.normalizers`, or its name.
    qk_norm : {"l2", "rms"}, optional
        Projected queries and keys are brought to length 1, or sqrt(head_dim), as in
        :func:`attnscale.attention`.
    rng : None, int, SeedSequence, BitGenerator or Generator, optional
        For the initial weights: normal, of variance 1/(number of inputs); biases are 0.
    dtype : float32 or float64, default float64

    Attributes
    ----------
    query_weight, key_weight, value_weight : ndarray, shape (heads * head_dim, embed_dim)
        A projection is x @ weight.T + bias. The channels of head h are h * head_dim and those after it.
    output_weight : ndarray, shape (embed_dim, heads * head_dim)
    query_bias, key_bias, value_bias, output_bias : ndarray or None
    scale : as given; an array of shape (heads,) of dtype if it is one a head
    normalizer : Normalizer
    qk_norm : str or None

    Raises
    ------
    TypeError, ValueError
        An argument is of the wrong kind or out of range.

    Notes
    -----
    Vaswani et al. 2017 (arXiv 1706.03762), section 3.2.2. Attention is :func:`attnscale.attention`; with
    dropout a mask of n_queries * n_keys booleans a head is drawn, without it memory grows with n alone.
    Dropout of weights that are not those of Softmax, SoftmaxN or Sink also writes out the weights, at
    n_keys / head_dim times the work: they do not say what they would be without a key.

    Examples
    --------
    >>> import numpy as np, attnscale as at
    >>> layer = at.variants.MultiHeadAttention(32, 4, scale=np.full(4, 0.3), rng=0)
    >>> layer.scale[:] = [0.1, 0.3, 0.5, 1.0]  # heads of their own sharpness
    >>> x = np.random.default_rng(1).standard_normal((2, 10, 32))
    >>> layer(x, is_causal=True).shape, sorted(layer.parameters())[-2:]
    ((2, 10, 32), ['value_bias', 'value_weight'])
    >>> layer.statistics(x, statistics=("entropy",)).entropy.shape
    (2, 4, 10)
    """

    query_weight: NDArray[Any]
    key_weight: NDArray[Any]
    value_weight: NDArray[Any]
    output_weight: NDArray[Any]
    query_bias: NDArray[Any] | None
    key_bias: NDArray[Any] | None
    value_bias: NDArray[Any] | None
    output_bias: NDArray[Any] | None

    def __init__(
        self,
        embed_dim: int,
        heads: int,
        *,
        head_dim: int | None = None,
        scale: Scale = None,
        dropout: float = 0.0,
        bias: bool = True,
        normalizer: str | Normalizer = "softmax",
        qk_norm: QKNorm | None = None,
        rng: Any = None,
        dtype: DTypeLike = np.float64,
    ) -> None:
        self.embed_dim, self.heads = positive_int("embed_dim", embed_dim), positive_int("heads", heads)
        if head_dim is None and self.embed_dim % self.heads:
            raise ValueError(
                f"embed_dim must be a multiple of heads, got {embed_dim} and {heads}; or give head_dim"
            )
        self.head_dim = (
            self.embed_dim // self.heads if head_dim is None else positive_int("head_dim", head_dim)
        )
        self.dropout = number("dropout", dropout)
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be at least 0 and less than 1, got {shown(dropout)}")
        self.dtype = np.dtype(dtype)
        if self.dtype not in (np.float32, np.float64):
            raise TypeError(f"dtype must be float32 or float64, got {self.dtype}")
        self.scale = self._read_scale(scale)
        self.normalizer = normalizers.get(normalizer)
        self.qk_norm = qk_norm if qk_norm is None else choose("qk_norm", qk_norm, ("l2", "rms"))
        self._draw(generator(rng), boolean("bias", bias))

    def __repr__(self) -> str:
        parts = [f"{self.embed_dim}, {self.heads}", f"head_dim={self.head_dim}"]
        if self.scale is not None:
            array = isinstance(self.scale, np.ndarray)
            parts.append(f"scale={np.array2string(self.scale, threshold=8) if array else repr(self.scale)}")
        parts += [f"dropout={self.dropout!r}"] if self.dropout else []
        parts += [f"normalizer={self.normalizer!r}"] if self.normalizer != normalizers.get("softmax") else []
        parts += [f"qk_norm={self.qk_norm!r}"] if self.qk_norm is not None else []
        parts += [] if self.dtype == np.float64 else [f"dtype={self.dtype}"]
        count = sum(each.size for each in self.parameters().values())
        return f"MultiHeadAttention({', '.join(parts)})  # {count} parameters"

    def _draw(self, normal: np.random.Generator, bias: bool) -> None:
        """The initial weights, and biases of 0."""
        inner = self.heads * self.head_dim
        for name in _WEIGHTS:
            shape = (self.embed_dim, inner) if name == "output_weight" else (inner, self.embed_dim)
            weight = normal.standard_normal(shape) / math.sqrt(shape[1])
            setattr(self, name, weight.astype(self.dtype))
            setattr(self, name.replace("weight", "bias"), np.zeros(shape[0], self.dtype) if bias else None)

    def parameters(self) -> dict[str, NDArray[Any]]:
        """The arrays that training would change, by name: no copies.

        Returns
        -------
        dict of str to ndarray
            Weights, biases if there are any, and ``scale`` if it is one a head.
        """
        named = {name: getattr(self, name) for name in (*_WEIGHTS, *_BIASES)}
        named = {name: array for name, array in named.items() if array is not None}
        return named | ({"scale": self.scale} if isinstance(self.scale, np.ndarray) else {})

    def project(
        self, query: ArrayLike, key: ArrayLike | None = None, value: ArrayLike | None = None
    ) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """Queries, keys and values of the heads, each (..., heads, n, head_dim).

        Parameters
        ----------
        query : array_like, shape (..., n_queries, embed_dim)
        key, value : array_like, shape (..., n_keys, embed_dim), optional
            key is query by default, value is key.
        """
        key = query if key is None else key
        value = key if value is None else value
        found = []
        for name, given in (("query", query), ("key", key), ("value", value)):
            x = vectors(name, given)
            if x.shape[-1] != self.embed_dim:
                raise ValueError(
                    f"{name} must have embed_dim = {self.embed_dim} channels, got shape {x.shape}"
                )
            rows = _linear(x, getattr(self, f"{name}_weight"), getattr(self, f"{name}_bias"))
            found.append(rows.reshape(*x.shape[:-1], self.heads, self.head_dim).swapaxes(-3, -2))
        return found[0], found[1], found[2]

    def __call__(
        self,
        query: ArrayLike,
        key: ArrayLike | None = None,
        value: ArrayLike | None = None,
        *,
        is_causal: bool = False,
        attn_mask: ArrayLike | None = None,
        prior: ArrayLike | None = None,
        rng: Any = None,
    ) -> NDArray[Any]:
        """The layer's output.

        Parameters
        ----------
        query : array_like, shape (..., n_queries, embed_dim)
        key, value : array_like, shape (..., n_keys, embed_dim), optional
            key is query by default, value is key.
        is_causal, attn_mask
            As for :func:`attnscale.attention`; the mask broadcasts to (..., heads, n_queries, n_keys).
        prior : array_like, optional
            Broadcasts likewise; at least 0. ln(prior) is added to the scores: the weights of a softmax are
            prior * exp(score), normalised. No normalizer sees a key whose prior is 0.
        rng : None, int, SeedSequence, BitGenerator or Generator, optional
            None: no dropout.

        Returns
        -------
        ndarray, shape (..., n_queries, embed_dim)
        """
        q, k, v = self.project(query, key, value)
        mask, options = _with_prior(attn_mask, prior), self._options(is_causal)
        if rng is None or self.dropout == 0:
            rows = attention(q, k, v, attn_mask=mask, **options)
        else:
            shape = (*np.broadcast_shapes(q.shape[:-2], k.shape[:-2]), q.shape[-2], k.shape[-2])
            kept = generator(rng).random(shape, np.float32) >= self.dropout
            few = _drop_from_sum if isinstance(self.normalizer, _EXPONENTIAL) else _drop_from_weights
            rows = few(q, k, v, kept, mask, options) / (1 - self.dropout)
        joined = rows.swapaxes(-3, -2).reshape(*rows.shape[:-3], rows.shape[-2], self.heads * self.head_dim)
        return _linear(joined, self.output_weight, self.output_bias)

    def statistics(
        self,
        query: ArrayLike,
        key: ArrayLike | None = None,
        *,
        is_causal: bool = False,
        attn_mask: ArrayLike | None = None,
        prior: ArrayLike | None = None,
        statistics: Iterable[str] = ("lse", "entropy"),
    ) -> AttentionStatistics:
        """Statistics of the heads' weights, (..., heads, n_queries), before dropout.

        Parameters
        ----------
        query, key, is_causal, attn_mask, prior
            As for a call of the layer.
        statistics
            As for :func:`attnscale.attention_statistics`.
        """
        q, k, _ = self.project(query, key)
        return attention_statistics(
            *(q, k),
            attn_mask=_with_prior(attn_mask, prior),
            statistics=statistics,
            **self._options(is_causal),
        )

    def _options(self, is_causal: bool) -> dict[str, Any]:
        """What every attention of this layer takes beside arrays and mask."""
        scale = self.scale[:, None] if isinstance(self.scale, np.ndarray) else self.scale
        own = {"scale": scale, "normalizer": self.normalizer, "qk_norm": self.qk_norm}
        return own | {"is_causal": is_causal}

    def _read_scale(self, scale: Any) -> Any:
        from .. import laws

        if scale is None or isinstance(scale, (str, laws.Law)):
            return scale if scale is None else laws.get(scale)
        array = as_array("scale", scale)
        if array.ndim == 0:
            return number("scale", scale)
        if array.shape != (self.heads,) or array.dtype.kind not in "iuf":
            raise ValueError(
                f"scale must be a number, a law or ({self.heads},) numbers, one a head, got {shown(scale)}"
            )
        return array.astype(self.dtype)


def _drop_from_sum(
    q: Any, k: Any, v: Any, kept: NDArray[np.bool_], mask: Any, options: dict[str, Any]
) -> NDArray[Any]:
    """sum_j p_j m_j v_j with m_j 0 or 1: attention over the kept keys, times their share of the weight."""
    whole = attention_statistics(q, k, attn_mask=mask, statistics=("lse",), **options).lse
    part = attention_statistics(q, k, v, attn_mask=_both(kept, mask), statistics=("lse",), **options)
    assert whole is not None
    assert part.lse is not None
    assert part.output is not None
    with np.errstate(invalid="ignore"):
        share = np.where(np.isneginf(part.lse), 0, np.exp(part.lse - whole))
    return np.asarray((part.output * share[..., None]).astype(part.output.dtype))


def _drop_from_weights(
    q: Any, k: Any, v: Any, kept: NDArray[np.bool_], mask: Any, options: dict[str, Any]
) -> NDArray[Any]:
    """sum_j w_j m_j v_j of weights that are written out: the output whose values are unit vectors."""
    weights = attention(q, k, np.eye(k.shape[-2], dtype=k.dtype), attn_mask=mask, **options)
    with np.errstate(all="ignore"):  # what overflows shows as infinity or NaN in the output
        return np.asarray((weights * kept) @ v)


def _linear(x: NDArray[Any], weight: NDArray[Any], bias: NDArray[Any] | None) -> NDArray[Any]:
    with np.errstate(all="ignore"):  # what overflows shows as infinity or NaN in the output
        y = x @ weight.T
        return np.asarray(y if bias is None else y + bias)


def _with_prior(attn_mask: Any, prior: Any) -> NDArray[Any] | None:
    """The mask that also multiplies exp(score) by the prior."""
    if prior is None:
        return None if attn_mask is None else typed_mask(attn_mask)
    array = as_array("prior", prior)
    if array.dtype.kind not in "biuf":
        raise TypeError(f"prior must be numbers, got {array.dtype}")
    if not (array >= 0).all() or not np.isfinite(array).all():
        raise ValueError("prior must be at least 0 and finite, got a number that is not")
    with np.errstate(divide="ignore"):
        log = np.log(array.astype(np.float64))
    return log if attn_mask is None else _both(typed_mask(attn_mask), log)


def _both(first: NDArray[Any], second: NDArray[Any] | None) -> NDArray[Any]:
    """One mask that does what both do: two boolean ones, or a float one and a boolean one that hides keys."""
    if second is None:
        return first
    if first.dtype == np.bool_ and second.dtype == np.bool_:
        return np.asarray(first & second)
    # -inf in any type: the sum may have a wider one than the mask whose smallest number hides a key.
    terms = [
        np.where(shows(each), 0.0 if each.dtype == np.bool_ else each, -np.inf) for each in (first, second)
    ]
    return np.asarray(terms[0] + terms[1])
