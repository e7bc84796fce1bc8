# SPDX-License-Identifier: BSD-3-Clause
"""Statistics of rows: their names, those a backward pass starts from, and their record for tensors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from .._core import statistic_traits
from .checks import meant, shown

#: The statistics, in the order of the fields of AttentionStatistics.
NAMES: tuple[str, ...] = tuple(statistic_traits)
#: Statistics that count keys or are indices of keys.
COUNTS: tuple[str, ...] = tuple(name for name, traits in statistic_traits.items() if traits.is_count)
#: Statistics whose gradients reach query and key.
DIFFERENTIABLE: tuple[str, ...] = tuple(
    name for name, traits in statistic_traits.items() if traits.has_gradient
)
#: Statistics that the backward pass would compute again if they were not kept.
KEPT = ("lse", "entropy", "score_variance", "concentration", "max_weight", "argmax")


class AttentionStatistics(NamedTuple):
    """Results of ``attention_statistics`` for tensors or JAX arrays, a pytree; None if not requested.

    Shapes and meanings are those of :class:`attnscale.AttentionStatistics`.
    """

    output: Any = None
    lse: Any = None
    entropy: Any = None
    max_score: Any = None
    mean_score: Any = None
    score_variance: Any = None
    concentration: Any = None
    n_visible: Any = None
    argmax: Any = None
    max_weight: Any = None
    sink_weight: Any = None
    support: Any = None
    renyi2: Any = None
    min_score: Any = None


def statistic_names(statistics: Iterable[str]) -> tuple[str, ...]:
    """The requested statistics, checked, without repetition."""
    try:
        wanted = (statistics,) if isinstance(statistics, str) else tuple(dict.fromkeys(statistics))
    except TypeError:
        raise TypeError(f"statistics must be names of statistics, got {shown(statistics)}") from None
    for name in wanted:
        if name not in NAMES:
            raise ValueError(
                f"{meant(name, NAMES)}statistics must be among {', '.join(NAMES)}; got {shown(name)}"
            )
    return wanted
