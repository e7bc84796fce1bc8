# SPDX-License-Identifier: BSD-3-Clause
"""The backward pass of attention and of the statistics of its weights."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from .._base.checks import meant, shown
from .._base.hints import hinted
from .._base.statistics import DIFFERENTIABLE
from .._call.arrays import ARRAY
from .._call.call import Call
from .._call.names import has_names, is_pattern
from .._call.options import AttentionGradientsOptions, takes
from .._core import differentiate_arrays
from .backward import pull_back
from .results import AttentionStatistics, describe_arrays

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray


__all__ = ["AttentionGradients", "attention_gradients"]

#: The gradients of a plain call, in the core's order.
_OF_PLAIN = ("query", "key", "value", "scale", "attn_mask", "sink")
#: Statistics whose rows, or gradients by them, a backward pass reads.
_OF_ROWS = (*DIFFERENTIABLE, "argmax")
_USUAL = ("query", "key", "value", "scale", "law", "sink", "bias", "alpha")


@dataclass(frozen=True, eq=False, repr=False)
class AttentionGradients:
    """Gradients of a number with respect to the inputs of attention, each of the shape of its array.

    Attributes
    ----------
    query, key : ndarray
        Of the type of their arrays; summed over heads and batch entries that share an array.
    value : ndarray or None
        None without grad_output.
    scale : ndarray or None
        Of the shape of a number or array given as ``scale``. For a law, the gradient of the scale that it
        gives, which broadcasts to (..., heads, n_queries). None for ``scale=None`` and laws of the distance.
    law : dict of str to ndarray, or None
        Gradients of the parameters of a law given as ``scale``, by name: those of
        :meth:`attnscale.laws.Law.derivatives`, one number or, for a parameter per head, (heads,).
    sink : ndarray or None
        Gradient of the logits of :class:`attnscale.normalizers.Sink`; of ln n for ``SoftmaxN``.
    attn_mask : ndarray or None
        Gradient of a float mask, summed over its broadcast axes; 0 where it hides the key.
    distance_scale, distance_bias : ndarray or None
        Gradients of the tables; for a function, of the numbers that it returned.
    bias, alpha : ndarray or None
        Gradients of the bias of :class:`attnscale.normalizers.Sigmoid`, if it is a number, and of the alpha
        of :class:`attnscale.normalizers.Entmax`.
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


@hinted
@takes(AttentionGradientsOptions)
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
    **options: Unpack[AttentionGradientsOptions],
) -> AttentionGradients:
    """Gradients of sum(grad_output * output) + sum(grad_lse * lse) + sum(grad_entropy * entropy) + ...

    Parameters
    ----------
    query, key, value : array_like
        As for :func:`attention`; value may be None if grad_output is.
    grad_output : array_like, optional
        Gradient of a loss by the output, of its shape. None: the loss does not depend on the output.
    grad_lse, grad_entropy, grad_max_score, grad_mean_score, grad_score_variance, grad_concentration, \
grad_max_weight, grad_renyi2 : array_like, optional
        Gradients of the loss by statistics of the rows; broadcast to (..., heads, n_queries). Those of
        max_score and max_weight go to the first key with the largest score.
    forward : AttentionStatistics, optional
        The result of :func:`attention_statistics` for the same call, whose fields are not computed again.
        Always useful are output (with grad_output) and lse; entropy with the gradient of entropy, mean_score
        or score_variance; score_variance, concentration and max_weight with their own, concentration also
        with that of renyi2; argmax with those of max_score and max_weight.
    wanted : sequence of str, default ("query", "key", "value", "scale", "law", "sink", "bias", "alpha")
        Fields of :class:`AttentionGradients`; "attn_mask", "distance_scale" and "distance_bias" are computed
        on request only.
    {names}
        As for :func:`attention`. Softmax, SoftmaxN and Sink have gradients of the output and of every
        statistic, the other normalizers of the output alone. The scale of a law that measures the row is held
        constant. Axes have no names.

    Returns
    -------
    AttentionGradients
        The same bits for any number of threads.

    Raises
    ------
    ValueError
        If the normalizer has no gradient of a statistic, or no gradient is given.

    Notes
    -----
    With p the weights, s the scores, H the entropy and m the mean score of a row, the gradient of s_j is
    p_j (g . v_j - g . output + g_lse - g_H (ln p_j + H) + g_m (1 + s_j - m) + ...). Scores are recomputed
    from query and key, weights from lse: memory does not grow with n_queries * n_keys. A query without
    visible keys gets and gives 0; a hidden key gets exactly 0.

    Rows of Sparsemax, Entmax and TopK have gradients only at the keys with a positive weight, which the
    forward pass chooses (among equal scores, the first); where the choice changes there is no derivative.

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
    wanted = _read_wanted(wanted)
    of_rows = {
        "lse": grad_lse,
        "entropy": grad_entropy,
        "max_score": grad_max_score,
        "mean_score": grad_mean_score,
        "score_variance": grad_score_variance,
        "concentration": grad_concentration,
        "max_weight": grad_max_weight,
        "renyi2": grad_renyi2,
    }
    of_rows = {name: rows for name, rows in of_rows.items() if rows is not None}
    if forward is not None and not isinstance(forward, AttentionStatistics):
        raise TypeError(f"forward must be an AttentionStatistics, got {shown(forward)}")
    if options.get("scale") is None and isinstance(options.get("normalizer", ""), str):
        # The core itself reads a plain call.
        saved = {} if forward is None else vars(forward)
        rows, cotangents = tuple(map(saved.get, _OF_ROWS)), tuple(map(of_rows.get, _OF_ROWS))
        output = saved.get("output")
        also = True, True, True, False, "attn_mask" in wanted, False
        plain = differentiate_arrays(
            query, key, value, grad_output, output, _OF_ROWS, rows, cotangents, also, options
        )
        if plain is not None:
            of_plain = dict(zip(_OF_PLAIN, plain, strict=True))
            return AttentionGradients(**{name: of_plain[name] for name in wanted if name in of_plain})
    _refuse_names(query, key, value, options.get("layout", "bhsd"))
    call = Call(query, key, value, options).read()
    gradients = pull_back(call, grad_output, of_rows, forward, wanted)
    return AttentionGradients(**{name: call.bring(gradients[name]) for name in wanted if name in gradients})


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
