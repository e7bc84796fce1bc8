# SPDX-License-Identifier: BSD-3-Clause
"""Attention on JAX arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Unpack

from .._base.statistics import AttentionStatistics
from .._call.options import check_known, takes
from ._arguments import JaxOptions, read_traced_call
from ._autograd import attend

if TYPE_CHECKING:
    import jax

_USUAL = ("lse", "entropy")


@takes(JaxOptions)
def attention(query: jax.Array, key: jax.Array, value: jax.Array, **options: Unpack[JaxOptions]) -> jax.Array:
    """:func:`attnscale.attention` on JAX arrays on the CPU, under ``jit``, ``vmap`` and ``grad``.

    Parameters
    ----------
    query, key, value : jax.Array
        Arrays with shapes and types as for :func:`attnscale.attention`. NumPy arrays are converted by
        ``jnp.asarray``: float64 needs ``jax_enable_x64``.
    scale, attn_mask, distance_scale, distance_bias : jax.Array, optional
        May be traced and differentiated, as may the logits of a :class:`Sink`.
    key_lengths, document_ids : jax.Array, optional
        May be traced; their numbers are checked when the program runs.
    is_causal, causal, window, enable_gqa, softcap, normalizer, qk_norm, layout, num_threads
        As for :func:`attnscale.attention`; layout is "bhsd" or "bshd". They are compiled into the program.

    Returns
    -------
    jax.Array, shape (..., heads, n_queries, value_dim)

    Raises
    ------
    TypeError, ValueError
        As :func:`attnscale.attention`, while the call is traced. ValueError also for arrays on another
        device, for compilation for one, and for laws and normalizers that count keys or measure scores that
        are not known then.
    jax.errors.JaxRuntimeError
        When the program runs: for a scale or table that is not finite, key_lengths out of range, a document
        that is not one run, or lack of memory.
    RuntimeError
        If a second derivative is taken.

    Notes
    -----
    The kernels are those of :func:`attnscale.attention` and :func:`attnscale.attention_gradients`, as foreign
    functions of XLA; no array of n_queries * n_keys is made. ``jax.vmap`` adds one axis before the batch.
    ``qk_norm`` is computed by JAX.

    Examples
    --------
    >>> import attnscale as at, jax
    >>> q, k, v = jax.random.normal(jax.random.key(0), (3, 2, 8, 100, 64))
    >>> loss = jax.jit(lambda q: (at.jax.attention(q, k, v, is_causal=True) ** 2).sum())
    >>> jax.grad(loss)(q).shape
    (2, 8, 100, 64)
    """
    check_known(attention, options)
    if value is None:
        raise TypeError("value must be an array, got None; attention_statistics works without a value")
    output: jax.Array = attend(*read_traced_call(query, key, value, (), options))["output"]
    return output


@takes(JaxOptions)
def attention_statistics(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array | None = None,
    *,
    statistics: Sequence[str] = _USUAL,
    **options: Unpack[JaxOptions],
) -> AttentionStatistics:
    """:func:`attnscale.attention_statistics` on JAX arrays: output and statistics, all in one pass.

    Parameters
    ----------
    query, key, value : jax.Array
        As for :func:`attention`; without a value there is no output.
    statistics : sequence of str, default ("lse", "entropy")
        Names of fields of :class:`attnscale.AttentionStatistics`. All but n_visible, argmax, support,
        sink_weight and min_score have a gradient.
    {names}
        As for :func:`attention`.

    Returns
    -------
    AttentionStatistics
        A named tuple of arrays; fields that were not requested are None. n_visible, argmax and support are
        int64 with ``jax_enable_x64``, else int32.

    Raises
    ------
    ValueError
        If the gradient of a statistic without one is taken; other errors as :func:`attention`.

    Examples
    --------
    Entropy in the loss: d entropy / d ln(scale) is minus the variance of the scores.

    >>> import attnscale as at, jax, jax.numpy as jnp
    >>> q, k = jnp.ones((1, 1, 4)), jnp.diag(jnp.arange(4.0))[None]  # (heads, n, dim)
    >>> def entropy(scale):
    ...     return at.jax.attention_statistics(q, k, scale=scale).entropy.sum()
    >>> slope = jax.jit(jax.grad(entropy))(jnp.array(0.5))
    >>> rows = at.jax.attention_statistics(q, k, scale=0.5, statistics="score_variance")
    >>> print(f"{slope:.4f} {-rows.score_variance.sum() / 0.5:.4f}")
    -0.5107 -0.5107
    """
    check_known(attention_statistics, options)
    call = read_traced_call(query, key, value, statistics, options, leave_out=statistics is _USUAL)
    return AttentionStatistics(**attend(*call))


@takes(JaxOptions)
def attention_entropy(query: jax.Array, key: jax.Array, **options: Unpack[JaxOptions]) -> jax.Array:
    """:func:`attnscale.attention_entropy` on JAX arrays: the entropy of every row of weights, in nats.

    Parameters
    ----------
    query, key, {names}
        As for :func:`attention`.

    Returns
    -------
    jax.Array, shape (..., heads, n_queries)
        float64 for float64 input, else float32; differentiable.

    Examples
    --------
    >>> import attnscale as at, jax
    >>> q, k = jax.random.normal(jax.random.key(0), (2, 8, 512, 64))
    >>> print(f"{at.jax.attention_entropy(q, k).mean():.1f} of at most ln 512 = 6.2 nats")
    5.7 of at most ln 512 = 6.2 nats
    """
    check_known(attention_entropy, options)
    entropy: jax.Array = attend(*read_traced_call(query, key, None, ("entropy",), options))["entropy"]
    return entropy
