# SPDX-License-Identifier: BSD-3-Clause
"""What one call costs on this machine."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from .._runtime import get_num_threads
from ..attention import attention_statistics
from ._machine import FmaPeak
from ._session import PEAK, Measured
from ._timing import interleave

__all__ = ["CallCost", "call_cost"]


class CallCost(NamedTuple):
    """Time of one call, its multiplications and additions, and their pace over that of the cores."""

    seconds: float
    flops: float
    share_of_peak: float


def call_cost(
    query: ArrayLike, key: ArrayLike, value: ArrayLike | None = None, *, rounds: int = 7, **options: Any
) -> CallCost:
    """Time a call of :func:`attnscale.attention_statistics`.

    Parameters
    ----------
    query, key, value : array_like
        As there.
    rounds : int, default 7
        Samples, taken in turns with the peak.
    **options
        Those of attention_statistics.

    Returns
    -------
    CallCost
        Medians over the rounds.

    Notes
    -----
    flops = 2 * (visible pairs of query and key) * (head_dim + value_dim): the two products. The
    exponentials and the statistics are not counted. The peak is that of multiply-adds in registers
    at the same SIMD level and number of threads, in the type in which the call computes. The share
    is one of CPU times if other processes take part of the cores.

    Examples
    --------
    >>> import numpy as np
    >>> from attnscale.bench import call_cost
    >>> q, k, v = np.random.default_rng(0).standard_normal((3, 4, 256, 64), np.float32)
    >>> cost = call_cost(q, k, v, rounds=3, is_causal=True)
    >>> cost.flops == 2 * 4 * (256 * 257 / 2) * (64 + 64)
    True
    """
    arrays = [np.asarray(array) for array in (query, key, value) if array is not None]
    dims = arrays[0].shape[-1] + (arrays[2].shape[-1] if value is not None else 0)
    counted = attention_statistics(query, key, **{**options, "statistics": ("n_visible",)})
    assert counted.n_visible is not None
    flops = 2.0 * int(counted.n_visible.sum()) * dims
    wide = np.result_type(*(array.dtype for array in arrays)) == np.float64
    threads = options.get("num_threads") or get_num_threads()
    peak = FmaPeak(np.float64 if wide else np.float32, threads)
    samples = interleave(
        {PEAK: peak, "call": lambda: attention_statistics(query, key, value, **options)},
        rounds,
        min_seconds=0.01,
    )
    measured = Measured(samples, peak.flops, threads)
    fair = measured.on_cpu_time() if measured.disturbed else measured
    return CallCost(samples.seconds("call"), flops, fair.share_of_peak(flops, "call").value)
