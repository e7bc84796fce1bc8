# SPDX-License-Identifier: BSD-3-Clause
"""Laws and normalizers with parameters that are tensors, which may require grad."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ... import laws
from ..._base.checks import shown
from ...laws._registry import check_learnable, open_law, with_values


class Learned:
    """A law with parameters that are tensors, which may require grad.

    Parameters
    ----------
    law : str, float or Law
        Law as :func:`attnscale.laws.get` takes it; a name needs no values for learned parameters.
    **parameters : Tensor, shape () or (heads,)
        Learned parameters in place of the law's own values, by their names in
        :meth:`~attnscale.laws.Law.derivatives`. One number per head is allowed where the law allows it.

    Raises
    ------
    TypeError, ValueError
        If the law has no such parameter or no gradient of it, or a parameter is not such a tensor.

    Examples
    --------
    SSMax, s ln n + b, with s and b per head:

    >>> import attnscale as at, torch
    >>> q, k = torch.randn(2, 2, 50, 8, generator=torch.Generator().manual_seed(0))  # two heads
    >>> s, b = torch.full((2,), 0.43, requires_grad=True), torch.zeros(2, requires_grad=True)
    >>> law = at.torch.Learned("ssmax", s=s, b=b)
    >>> at.torch.attention_statistics(q, k, scale=law).entropy.sum().backward()
    >>> s.grad.shape, b.grad.shape
    (torch.Size([2]), torch.Size([2]))
    >>> at.torch.Learned("log_n", base=torch.tensor(512.0)).current()
    LogN(base=512.0, floor=1.0)
    """

    def __init__(self, law: Any, **parameters: Tensor) -> None:
        for name, tensor in parameters.items():
            _check(name, tensor)
        # The law as text, which the operator takes and the compiler does not trace.
        self.spelling = law if isinstance(law, str) else laws.get(law).spelling
        self.parameters = parameters
        if not torch.compiler.is_compiling():
            self._check_names()

    def current(self) -> laws.Law:
        """The law with the present values of its tensors."""
        law = open_law(self.spelling, tuple(self.parameters))
        return with_values(law, {name: _numbers(x) for name, x in self.parameters.items()})

    @property
    def packed(self) -> Tensor:
        return torch.cat([x.double().reshape(-1) for x in self.parameters.values()])

    @property
    def lengths(self) -> list[int]:
        """Length of each parameter; 0 for a number without an axis."""
        return [x.shape[0] if x.ndim else 0 for x in self.parameters.values()]

    def _check_names(self) -> None:
        if not self.parameters:
            raise TypeError(f"a parameter of {self.spelling!r} must be given as a tensor, got none")
        check_learnable(open_law(self.spelling, tuple(self.parameters)), self.parameters)


def _check(name: str, given: Any, instead: str = "", *, of_heads: bool = True) -> None:
    """Refuse an object that is not a tensor of one number or one per head."""
    if not isinstance(given, Tensor) or given.ndim > of_heads:
        shape = "() or (heads,)" if of_heads else "()"
        raise TypeError(f"{name} must be a tensor of shape {shape}, got {shown(given)}{instead}")


def _numbers(tensor: Tensor) -> Any:
    """The value of a parameter of a law: a number, or a tuple with a number per head."""
    given = tensor.detach().double().tolist()
    return tuple(given) if isinstance(given, list) else given


class Scaled(Learned):
    """A law times a factor that is a tensor, for example a learned scale.

    ``Scaled("standard", factor)`` is a learned scale. ``Scaled(law, factor)`` means
    ``Learned(1 * law, amplitude=factor)``.

    Parameters
    ----------
    law : str, float or Law
        Law as :func:`attnscale.laws.get` takes it.
    factor : Tensor, shape (heads,) or ()
        Factor of the law's scale, which may require grad.

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
        _check("factor", factor, "; 2 * law is a law, too")
        #: The law inside, as text that :func:`attnscale.laws.get` reads.
        self.law = law if isinstance(law, str) else laws.get(law).spelling
        self.factor = factor
        super().__init__(f"1.0 * {self.law}", amplitude=factor)


class Sink:
    """:class:`attnscale.normalizers.Sink` with logits that are a tensor.

    Parameters
    ----------
    logits : Tensor, shape (), (heads,) or (..., heads, n_queries)
        Logit of the sink for all heads, per query head or per row; may require grad. A sink key has the
        logits ``scale * torch.einsum("...hnd,hd->...hn", query, sink_key)``.

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

    @property
    def _in_core(self) -> Tensor:
        return self.logits


class Sigmoid:
    """:class:`attnscale.normalizers.Sigmoid` with a bias that is a tensor.

    Parameters
    ----------
    bias : Tensor, shape (heads,) or ()
        Bias added to every score, per query head or for all heads; may require grad.

    Examples
    --------
    >>> import attnscale as at, torch
    >>> q, k, v = torch.zeros(3, 2, 4, 8)  # two heads
    >>> bias = torch.zeros(2, requires_grad=True)
    >>> at.torch.attention(q, k, v + 1, normalizer=at.torch.Sigmoid(bias)).sum().backward()
    >>> bias.grad  # 4 queries, 4 keys, 8 channels, the slope 1/4
    tensor([32., 32.])
    """

    def __init__(self, bias: Tensor) -> None:
        _check("bias", bias, "; attnscale.normalizers.Sigmoid takes a number")
        self.bias = bias


class Entmax:
    """:class:`attnscale.normalizers.Entmax` with an alpha that is a tensor, so that sparsity is learned.

    Parameters
    ----------
    alpha : Tensor, shape ()
        A number above 1, which may require grad; ``1 + torch.sigmoid(x)`` stays between softmax
        and sparsemax.

    Notes
    -----
    Correia, Niculae & Martins 2019, "Adaptively sparse transformers" (arXiv 1909.00015).

    Examples
    --------
    >>> import attnscale as at, torch
    >>> q, k, v = torch.randn(3, 1, 6, 8, generator=torch.Generator().manual_seed(0))
    >>> x = torch.zeros((), requires_grad=True)  # alpha = 1.5
    >>> normalizer = at.torch.Entmax(1 + torch.sigmoid(x))
    >>> at.torch.attention(q, k, v, normalizer=normalizer).square().sum().backward()
    >>> bool(x.grad > 0)  # fewer keys: a larger mean of their values
    True
    """

    def __init__(self, alpha: Tensor) -> None:
        _check("alpha", alpha, "; attnscale.normalizers.Entmax takes a number", of_heads=False)
        self.alpha = alpha
