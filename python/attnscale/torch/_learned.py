# SPDX-License-Identifier: BSD-3-Clause
"""Laws and normalizers whose parameter is a tensor, which may require grad."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from .. import laws
from .._checks import shown

__all__ = ["Scaled", "Sink"]


class Scaled:
    """A factor that is a tensor, times a law: what a model learns of its scale.

    ``Scaled("ssmax(s=1)", factor)`` is SSMax with a learned s a head, ``Scaled("standard", factor)`` a
    learned scale.

    Parameters
    ----------
    law : str, float or Law
        As :func:`attnscale.laws.get` takes it.
    factor : Tensor, shape (heads,) or ()
        Multiplies the law's scale. May require grad.

    Examples
    --------
    >>> import attnscale as at, torch
    >>> q, k = torch.randn(2, 2, 50, 8, generator=torch.Generator().manual_seed(0))  # two heads
    >>> factor = torch.ones(2, requires_grad=True)
    >>> at.torch.attention_statistics(q, k, scale=at.torch.Scaled("log_n", factor)).entropy.sum().backward()
    >>> bool((factor.grad < 0).all())  # a larger scale makes rows less even
    True
    """

    def __init__(self, law: Any, factor: Tensor) -> None:
        if not isinstance(factor, Tensor) or factor.ndim > 1:
            raise TypeError(
                f"factor must be a tensor of shape () or (heads,), got {shown(factor)}; 2 * law is a law, too"
            )
        self.law = laws.get(law)
        self.factor = factor


class Sink:
    """:class:`attnscale.normalizers.Sink` with logits that are a tensor.

    Parameters
    ----------
    logits : Tensor, shape (heads,) or ()
        Of each query head, or one for all. May require grad.

    Examples
    --------
    >>> import attnscale as at, torch
    >>> q, k, v = torch.zeros(3, 2, 4, 8)  # two heads
    >>> logits = torch.zeros(2, requires_grad=True)
    >>> at.torch.attention(q, k, v + 1, normalizer=at.torch.Sink(logits)).sum().backward()
    >>> logits.grad  # a larger logit takes weight from the keys
    tensor([-5.1200, -5.1200])
    """

    def __init__(self, logits: Tensor) -> None:
        if not isinstance(logits, Tensor):
            raise TypeError(
                f"logits must be a tensor, got {shown(logits)}; attnscale.normalizers.Sink takes numbers"
            )
        self.logits = logits
