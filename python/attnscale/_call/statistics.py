# SPDX-License-Identifier: BSD-3-Clause
"""Statistics of rows in tensor libraries, and those that a backward pass keeps."""

from __future__ import annotations

from typing import Any, NamedTuple

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
