# SPDX-License-Identifier: BSD-3-Clause
"""torch.nn.MultiheadAttention with laws, other normalizers, learned scales and statistics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ... import laws, normalizers
from ..._checks import shown
from ..._results import statistic_names
from ...laws._values import check_learnable, takes_one_a_head
from ...matrix import attention_weights
from .._functional import AttentionStatistics, attention_statistics
from .._learned import Learned
from .._tensors import array
from ._masks import join_masks
from ._rotary import rotate

__all__ = ["MultiheadAttention"]


class MultiheadAttention(torch.nn.MultiheadAttention):
    """:class:`torch.nn.MultiheadAttention` through this package: the same parameters, and more choices.

    Parameters
    ----------
    embed_dim, num_heads, bias, add_bias_kv, add_zero_attn, kdim, vdim, batch_first, device, dtype
        As PyTorch's. A state_dict of one loads into the other.
    dropout : float, default 0
        Of the weights, which are never all there: in training anything but 0 is an error.
    law : str, float, Law or None
        The scale, as :func:`attnscale.laws.get` takes it. None: 1/sqrt(head_dim).
    normalizer : str or Normalizer, default "softmax"
        See :mod:`attnscale.normalizers`.
    learnable_scale : {"head", None}
        "head": a parameter ``scale_factor``, shape (num_heads,), ones at first, multiplies the law.
    learnable_law : sequence of str
        Parameters of the law, such as "s" of SSMax: those of :meth:`attnscale.laws.Law.derivatives`. They are
        in ``law_parameters``, one a head where the law takes that, and begin at the law's own values.
    statistics : sequence of str
        Kept of each forward pass in ``rows``, an :class:`attnscale.torch.AttentionStatistics` whose tensors
        have gradients: for a term of the loss, or to be logged.
    rotary_base : float or None
        Queries and keys are turned by rotary positions of this base (10000 usually).

    Attributes
    ----------
    rows : AttentionStatistics or None
        Statistics of the last forward pass.

    Raises
    ------
    ValueError
        If an argument is out of range.

    Notes
    -----
    ``torch.nn.TransformerEncoderLayer`` never passes by this module on its fast path of inference: a
    forward hook, which does nothing, keeps it from that.

    Examples
    --------
    >>> import attnscale as at, torch
    >>> _ = torch.manual_seed(0)
    >>> module = at.torch.nn.MultiheadAttention(32, 4, batch_first=True, law="log_n", statistics=["entropy"])
    >>> x = torch.randn(2, 10, 32)
    >>> output, _ = module(x, x, x, need_weights=False)
    >>> (output.square().mean() - 0.01 * module.rows.entropy.mean()).backward()
    >>> module.rows.entropy.shape
    torch.Size([2, 4, 10])
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: Any = None,
        dtype: Any = None,
        *,
        law: Any = None,
        normalizer: Any = "softmax",
        learnable_scale: str | None = None,
        learnable_law: Sequence[str] = (),
        statistics: Sequence[str] = (),
        rotary_base: float | None = None,
    ) -> None:
        super().__init__(
            *(embed_dim, num_heads, dropout, bias, add_bias_kv, add_zero_attn, kdim, vdim, batch_first),
            device=device,
            dtype=dtype,
        )
        if learnable_scale not in (None, "head"):
            raise ValueError(f"learnable_scale must be 'head' or None, got {shown(learnable_scale)}")
        if rotary_base is not None and (rotary_base <= 1 or self.head_dim % 2):
            raise ValueError(
                f"rotary_base must be above 1 and head_dim even, got {shown(rotary_base)} and {self.head_dim}"
            )
        self.law = laws.get("standard" if law is None else law)
        self.normalizer = normalizers.get(normalizer)
        self.statistics = statistic_names(statistics)
        self.rotary_base = rotary_base
        self.rows: AttentionStatistics | None = None
        ones = torch.nn.Parameter(torch.ones(num_heads, device=device, dtype=dtype))
        self.register_parameter("scale_factor", None if learnable_scale is None else ones)
        self.law_parameters = _law_parameters(self.law, learnable_law, ones)
        self.register_forward_pre_hook(_nothing)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Output and, if wanted, weights; arguments and shapes are those of PyTorch's module.

        ``is_causal`` needs no mask here. The weights have no gradient, and are an array of n_queries *
        n_keys, which nothing else is: ``need_weights=False`` is meant for all but pictures. A query whose
        keys are all masked has output 0, where PyTorch's has NaN.
        """
        if self.training and self.dropout:
            raise ValueError(
                f"dropout must be 0 in training, as weights are never all there, got {self.dropout}"
            )
        batched = query.dim() == 3
        projected = self._project(query, key, value)
        q, k, v = (self._split(x, batched) for x in projected)
        mask = join_masks(None if is_causal else attn_mask, key_padding_mask, q, k)
        if self.rotary_base is not None:
            q, k = rotate(q, self.rotary_base), rotate(k, self.rotary_base)
        k, v, mask = self._extend(k, v, mask)
        options = {"scale": self._scale(), "normalizer": self.normalizer, "attn_mask": mask}
        if is_causal:
            options["is_causal"] = True
        found = attention_statistics(q, k, v, statistics=self.statistics, **options)
        self.rows = found if self.statistics else None
        assert found.output is not None
        output = self.out_proj(self._join(found.output, batched))
        return output, _weights(q, k, options, average_attn_weights) if need_weights else None

    def _project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What PyTorch's module makes of its inputs, from the same parameters."""
        if self._qkv_same_embed_dim:
            weights = self.in_proj_weight.chunk(3)
        else:
            weights = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        biases = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        rows = zip((query, key, value), weights, biases, strict=True)
        q, k, v = (functional.linear(x, weight, bias) for x, weight, bias in rows)
        return q, k, v

    def _split(self, x: Tensor, batched: bool) -> Tensor:
        """(batch, heads, n, head_dim), or without the batch."""
        heads = x.unflatten(-1, (self.num_heads, self.head_dim))
        if not batched:
            return heads.transpose(0, 1)
        return heads.transpose(1, 2) if self.batch_first else heads.permute(1, 2, 0, 3)

    def _join(self, output: Tensor, batched: bool) -> Tensor:
        """The inverse of _split."""
        if not batched:
            return output.transpose(0, 1).flatten(-2)
        order = (0, 2, 1, 3) if self.batch_first else (2, 0, 1, 3)
        return output.permute(*order).flatten(-2)

    def _extend(self, k: Tensor, v: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        """Keys and values that add_bias_kv and add_zero_attn append; no mask hides them."""
        more = []
        if self.bias_k is not None:
            more.append((self.bias_k, self.bias_v))
        if self.add_zero_attn:
            zeros = k.new_zeros(self.embed_dim)
            more.append((zeros, zeros))
        for of_key, of_value in more:
            rows = (x.reshape(self.num_heads, 1, self.head_dim) for x in (of_key, of_value))
            shape = (*k.shape[:-2], 1, self.head_dim)
            k, v = (torch.cat((x, row.expand(shape)), dim=-2) for x, row in zip((k, v), rows, strict=True))
            if mask is not None:
                mask = functional.pad(mask, (0, 1), value=True if mask.dtype == torch.bool else 0.0)
        return k, v, mask

    def _scale(self) -> Any:
        learned = dict(self.law_parameters.items())
        if self.scale_factor is not None:
            return Learned(f"1.0 * {self.law.spelling}", amplitude=self.scale_factor, **learned)
        return Learned(self.law, **learned) if learned else self.law


def _law_parameters(law: laws.Law, names: Sequence[str], heads: Tensor) -> torch.nn.ParameterDict:
    """Parameters of the law at its own values, in the type of a tensor (heads,)."""
    names = (names,) if isinstance(names, str) else names
    check_learnable(law, names)
    first = {}
    for name in names:
        value = heads.new_tensor(law.parameter(name))
        first[name] = value * heads.detach() if takes_one_a_head(law, name) else value
    return torch.nn.ParameterDict(first)


def _nothing(module: Any, arguments: Any) -> None:
    """A forward pre-hook: modules with one are not passed by."""


@torch.compiler.disable
def _weights(q: Tensor, k: Tensor, options: dict[str, Any], average: bool) -> Tensor:
    """The matrix of weights, (batch, heads, n_queries, n_keys) or its mean over the heads."""
    scale = options["scale"]
    if isinstance(scale, Learned):
        scale = scale.current()
    mask = options["attn_mask"]
    found = attention_weights(
        array(q),
        array(k),
        **{**options, "scale": scale, "attn_mask": None if mask is None else array(mask)},
    )
    weights = torch.from_numpy(found).to(q.dtype)
    return weights.mean(dim=-3) if average else weights
