# SPDX-License-Identifier: BSD-3-Clause
"""The function ``compare``: where two plans differ."""

from __future__ import annotations

from .difference import Differences
from .plan import ScalePlan


def compare(plan: ScalePlan, other: ScalePlan, *, up_to: int | None = None) -> Differences:
    """What differs between two plans; also ``plan.differences(other)``.

    Parameters
    ----------
    plan, other : ScalePlan
    up_to : int, optional
        Positions below this one are compared; by default all up to the longer of the two models'
        ``max_position_embeddings``, at least 131072 and at most 2^24.

    Returns
    -------
    Differences
        A tuple of :class:`Difference`, empty if the plans agree. Where one plan has more layers, that
        is the first difference, and the layers that both have are compared.

    Examples
    --------
    >>> import attnscale as at
    >>> config = {"model_type": "ministral3", "hidden_size": 4096, "num_attention_heads": 32, "head_dim": 128,
    ...           "num_hidden_layers": 34}
    >>> plan = at.audit.resolve(config)
    >>> for each in at.audit.compare(plan, at.audit.as_framework(plan, "vllm")[0]):
    ...     print(each)
    layers 0-33, rotated channels: differs from i = 0 on: 0.08838835 here, 0.1441959 there (0.6130 times)
    """
    return plan.differences(other, up_to=up_to)
