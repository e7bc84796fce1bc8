# SPDX-License-Identifier: BSD-3-Clause
"""The backward pass of attention and of the statistics of its weights."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from ._call.arrays import ARRAY, laid_out
from ._call.call import Call
from ._call.gradients import (
    RawGradients,
    differentiate,
    law_gradients,
    read_cotangents,
    table_gradient,
    through_norm,
)
from ._call.names import has_names, is_pattern
from ._call.weights import read_normalizer
from ._checks import meant, shown, sum_over_repeats
from ._core import differentiate_arrays
from ._results import AttentionStatistics, describe_arrays

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from ._call.types import Causal, DistanceTable, KeyLengths, Layout, QKNorm, Scale, Window
    from .normalizers import Normalizer

__all__ = ["AttentionGradients", "attention_gradients"]

_USUAL = ("query", "key", "value", "scale", "law", "sink", "bias", "alpha")


@dataclass(frozen=True, eq=False, repr=False)
class AttentionGradients:
    """Gradients of a number with respect to what went into attention, each of the shape of its array.

    Attributes
    ----------
    query, key : ndarray
        Of the type of their arrays; summed over the heads and batch entries that share them.
    value : ndarray or None
        None without grad_output.
    scale : ndarray or None
        Of the shape of a number or array given as ``scale``. For a law: of the scale that it gives,
        which broadcasts to (..., heads, n_queries). None for ``scale=None`` and laws of the distance.
    law : dict of str to ndarray, or None
        Of the parameters of a law given as ``scale``, by their names: those of
        :meth:`attnscale.laws.Law.derivatives`, one number or, where they are one a head, (heads,).
    sink : ndarray or None
        Of the logits of :class:`attnscale.normalizers.Sink`; of ln n for ``SoftmaxN``.
    attn_mask : ndarray or None
        Of a float mask, summed over the axes along which it was broadcast; 0 where it hides the key.
    distance_scale, distance_bias : ndarray or None
        Of the tables; of a function, the gradient of the numbers that it returned.
    bias, alpha : ndarray or None
        Of the bias of :class:`attnscale.normalizers.Sigmoid`, if it is a number, and of the alpha of
        :class:`attnscale.normalizers.Entmax`.
    """

    query: NDArray[Any] | None = None
    key: NDArray[Any] | None = None
    value: NDArray[Any] | None = None
    scale: NDArray[Any] | None = None
    law: dict[str, NDArray[np.float64]] | None = None
    sink: NDArray[Any] | None = None
    attn_mask: NDArray[Any] | None = None
    distance_scale: NDArray[Any] | None = None
    distance_bias: NDArray[Any] | None = None
    bias: NDArray[Any] | None = None
    alpha: NDArray[Any] | None = None

    def __repr__(self) -> str:
        return describe_arrays(self)


_FIELDS = tuple(field.name for field in fields(AttentionGradients))


def attention_gradients(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike | None,
    grad_output: ArrayLike | None = None,
    *,
    grad_lse: ArrayLike | None = None,
    grad_entropy: ArrayLike | None = None,
    grad_max_score: ArrayLike | None = None,
    grad_mean_score: ArrayLike | None = None,
    grad_score_variance: ArrayLike | None = None,
    grad_concentration: ArrayLike | None = None,
    grad_max_weight: ArrayLike | None = None,
    grad_renyi2: ArrayLike | None = None,
    forward: AttentionStatistics | None = None,
    wanted: Iterable[str] = _USUAL,
    scale: Scale = None,
    is_causal: bool = False,
    causal: Causal | None = None,
    attn_mask: ArrayLike | None = None,
    window: Window | None = None,
    key_lengths: KeyLengths | None = None,
    document_ids: ArrayLike | None = None,
    distance_scale: DistanceTable | None = None,
    distance_bias: DistanceTable | None = None,
    enable_gqa: bool = False,
    softcap: float | None = None,
    normalizer: str | Normalizer = "softmax",
    qk_norm: QKNorm | None = None,
    layout: Layout = "bhsd",
    num_threads: int | None = None,
) -> AttentionGradients:
    """Gradients of sum(grad_output * output) + sum(grad_lse * lse) + sum(grad_entropy * entropy) + ...

    Parameters
    ----------
    query, key, value : array_like
        As for :func:`attention`; value may be None if grad_output is.
    grad_output : array_like, optional
        Gradient of a loss by the output, of its shape. None: the output does not count.
    grad_lse, grad_entropy, grad_max_score, grad_mean_score, grad_score_variance, grad_concentration, \
grad_max_weight, grad_renyi2 : array_like, optional
        Gradients of the loss by statistics of the rows; broadcast to (..., heads, n_queries). Those of
        max_score and max_weight go to the first key with the largest score.
    forward : AttentionStatistics, optional
        The output and statistics of the same call, as :func:`attention_statistics` returned them: what it
        has of them is not computed again. Always of use are output (with grad_output) and lse; entropy
        with the gradient of entropy, mean_score or score_variance; score_variance, concentration and
        max_weight with their own, concentration also with that of renyi2; argmax with those of max_score
        and max_weight.
    wanted : sequence of str, default ("query", "key", "value", "scale", "law", "sink", "bias", "alpha")
        Fields of :class:`AttentionGradients`; "attn_mask", "distance_scale" and "distance_bias" are computed
        if they are asked for.
    scale, is_causal, causal, attn_mask, window, key_lengths, document_ids, distance_scale, \
distance_bias, enable_gqa, softcap, normalizer, qk_norm, layout, num_threads
        As for :func:`attention`. Softmax, SoftmaxN and Sink have gradients of the output and of every
        statistic, the other normalizers of the output alone. The scale of a law that measures the row counts
        as a constant. Axes without names.

    Returns
    -------
    AttentionGradients
        The same bits for any number of threads.

    Raises
    ------
    TypeError, ValueError, MemoryError
        As :func:`attention`; if the normalizer has no gradient of a statistic, or no gradient is given.

    Notes
    -----
    With p the weights, s the scores, H the entropy and m the mean score of a row, the gradient of s_j is
    p_j (g . v_j - g . output + g_lse - g_H (ln p_j + H) + g_m (1 + s_j - m) + ...). Scores are computed
    again from query and key, weights from lse: memory does not grow with n_queries * n_keys. A query that
    sees no key gets and gives 0; a hidden key gets 0 exactly.

    Rows of Sparsemax, Entmax and TopK have gradients at the keys with a positive weight alone, those that the
    forward pass chooses, of equal scores the first; where the choice changes there is no derivative.

    Examples
    --------
    >>> import numpy as np, attnscale as at
    >>> rng = np.random.default_rng(0)
    >>> q, k, v = rng.standard_normal((3, 2, 50, 16))
    >>> rows = at.attention_statistics(q, k, v, is_causal=True)
    >>> g = at.attention_gradients(q, k, v, 2 * rows.output, grad_entropy=-0.1, forward=rows, is_causal=True)
    >>> g
    AttentionGradients(query=<float64 (2, 50, 16)>, key=<float64 (2, 50, 16)>, value=<float64 (2, 50, 16)>)
    """
    found, wanted = read_normalizer(normalizer), _read_wanted(wanted)
    others: tuple[Any, ...] = grad_lse, grad_entropy, grad_max_score, grad_mean_score, grad_score_variance
    others += grad_concentration, grad_max_weight, grad_renyi2, scale, attn_mask, causal, window, key_lengths
    others += document_ids, distance_scale, distance_bias, softcap, qk_norm, num_threads
    options = None, is_causal, enable_gqa, normalizer, layout, others
    of_output = _of_output(query, key, value, grad_output, forward, options)
    if of_output is not None:
        return AttentionGradients(**{name: of_output[name] for name in wanted if name in of_output})
    _refuse_names(query, key, value, layout)
    call = Call(query, key, value, enable_gqa, qk_norm, layout, num_threads)
    call.see(attn_mask, is_causal, causal, window, key_lengths, document_ids)
    call.score(scale, softcap, distance_scale, distance_bias)
    cotangents = read_cotangents(
        call,
        {
            "lse": grad_lse,
            "entropy": grad_entropy,
            "max_score": grad_max_score,
            "mean_score": grad_mean_score,
            "score_variance": grad_score_variance,
            "concentration": grad_concentration,
            "max_weight": grad_max_weight,
            "renyi2": grad_renyi2,
        },
    )
    if grad_output is None and not cotangents:
        raise ValueError("grad_output or the gradient of a statistic must be given, got none of them")
    if forward is not None and not isinstance(forward, AttentionStatistics):
        raise TypeError(f"forward must be an AttentionStatistics, got {shown(forward)}")
    _refuse_without_gradient(found, cotangents)
    raw = differentiate(call, found, grad_output, cotangents, forward, wanted)
    with np.errstate(all="ignore"):  # infinities and NaN are answered in the gradients
        gradients = _as_given(call, raw, found, scale, qk_norm)
    gradients |= {
        name: table_gradient(name, table, getattr(raw, name), call)
        for name, table in (("distance_scale", distance_scale), ("distance_bias", distance_bias))
        if table is not None and name in wanted
    }
    return AttentionGradients(**{name: call.bring(gradients[name]) for name in wanted if name in gradients})


def _of_output(
    query: Any, key: Any, value: Any, grad_output: Any, forward: Any, options: tuple[Any, ...]
) -> dict[str, Any] | None:
    """The gradients of a plain call by its output alone, which the core reads itself; None for any other."""
    saved = {} if forward is None else vars(forward) if isinstance(forward, AttentionStatistics) else None
    if saved is None:
        return None
    found = differentiate_arrays(
        query, key, value, grad_output, saved.get("output"), saved.get("lse"), *options
    )
    return None if found is None else dict(zip(("query", "key", "value"), found, strict=True))


def _refuse_names(query: Any, key: Any, value: Any, layout: Any) -> None:
    """Refuse arrays whose axes have names."""
    plain = type(query) is type(key) is ARRAY and (value is None or type(value) is ARRAY)
    if is_pattern(layout) or (not plain and any(map(has_names, (query, key, value)))):
        raise ValueError(
            "attention_gradients takes arrays without names in layout 'bhsd' or 'bshd', got "
            f"query {shown(query)} and layout={layout!r}; pass the .values of labelled arrays"
        )


def _read_wanted(wanted: Iterable[str]) -> tuple[str, ...]:
    names = (wanted,) if isinstance(wanted, str) else tuple(wanted)
    for name in () if names is _USUAL else names:
        if name not in _FIELDS:
            raise ValueError(
                f"{meant(name, _FIELDS)}wanted must be among {', '.join(_FIELDS)}; got {shown(name)}"
            )
    return names


def _refuse_without_gradient(found: Normalizer | None, cotangents: dict[str, Any]) -> None:
    if found is None or not cotangents:
        return
    from .normalizers import Sink, SoftmaxN

    if not isinstance(found, SoftmaxN) and found.name != Sink.name:
        raise ValueError(
            f"rows of {found!r} have the gradient of the output alone here, got grad_{next(iter(cotangents))}"
        )


def _as_given(
    call: Call, raw: RawGradients, found: Normalizer | None, scale: Any, qk_norm: str | None
) -> dict[str, Any]:
    """The gradients that there are, in the types, shapes and layout of the caller's arrays."""
    query, key, value, _, _ = call.given
    d_query, d_key = raw.query, raw.key
    if qk_norm is not None:
        d_query, d_key = through_norm(query, d_query, qk_norm), through_norm(key, d_key, qk_norm)
    given: dict[str, Any] = {"query": _typed(call, d_query, query), "key": _typed(call, d_key, key)}
    if raw.value is not None and value is not None:
        given["value"] = _typed(call, raw.value, value)
    if scale is not None:
        given["scale"] = _of_scale(call, raw.scale, scale)
        given["law"] = law_gradients(raw.scale, call)
    if raw.attn_mask is not None and call.mask is not None:
        given["attn_mask"] = raw.attn_mask.astype(call.mask.dtype)
    if found is not None:
        given["sink"] = _of_sink(raw.sink, found)
        given["bias"] = _of_numbers(raw.bias, getattr(found, "bias", None))
        given["alpha"] = _of_numbers(raw.alpha, getattr(found, "alpha", None))
    return given


def _typed(call: Call, gradient: NDArray[Any], array: NDArray[Any]) -> NDArray[Any]:
    if gradient.dtype is not array.dtype:
        gradient = gradient.astype(array.dtype, copy=False)
    return laid_out(gradient, call.layout)


def _of_scale(call: Call, rows: NDArray[np.float64], scale: Any) -> NDArray[Any] | None:
    if call.law is not None and call.law.meaning.is_distance:
        return None
    gradient = sum_over_repeats(rows, np.shape(call.scale))
    dtype = getattr(scale, "dtype", None)
    return gradient.astype(dtype) if isinstance(dtype, np.dtype) and dtype.kind == "f" else gradient


def _of_sink(rows: NDArray[np.float64] | None, found: Any) -> NDArray[np.float64] | None:
    """0 without rows; None where the normalizer has no sink."""
    from .normalizers import Sink, SoftmaxN

    logits = getattr(found, "logits", 0.0)
    if rows is None:
        return np.zeros(np.shape(logits)) if isinstance(found, (Sink, SoftmaxN)) else None
    return _of_numbers(rows, logits)


def _of_numbers(rows: NDArray[np.float64] | None, given: Any) -> NDArray[np.float64] | None:
    """Gradient of the numbers of a normalizer: one for all, one a head, or one a row (attnscale.torch).

    None for a normalizer that has none.
    """
    if rows is None or given is None:
        return None
    shape = np.shape(given)
    if len(shape) > 1:  # one a row
        return sum_over_repeats(rows, shape)
    heads = np.atleast_1d(rows.sum(-1))  # of a query without heads one may be given, too
    return sum_over_repeats(heads, shape) if shape else np.asarray(heads.sum())
