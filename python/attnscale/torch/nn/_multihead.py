# SPDX-License-Identifier: BSD-3-Clause
"""torch.nn.MultiheadAttention with laws, other normalizers, learned scales and statistics."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ... import laws, normalizers
from ..._base.checks import choose, shown
from ..._base.statistics import AttentionStatistics, statistic_names
from ...laws._registry import check_learnable, takes_one_a_head
from .._base.device import BACKENDS
from .._base.learned import Learned
from .._base.tensors import check_tensors
from .._functional import attention_statistics
from .._ops import row_weights
from ._dropout import Dropout, attend_with_dropout
from ._inputs import by_padding, check_inputs, check_masks, join_masks


class MultiheadAttention(torch.nn.MultiheadAttention):
    """:class:`torch.nn.MultiheadAttention` computed by this package: same parameters, more options.

    Parameters
    ----------
    embed_dim, num_heads, bias, add_bias_kv, add_zero_attn, kdim, vdim, batch_first, device, dtype
        As for PyTorch's module. A state_dict of one module loads into the other.
    dropout : float, default 0
        Share of the weights dropped in training. The choice is a function of the indices of query and key and
        of a seed that each forward pass takes from PyTorch's generator, so ``torch.manual_seed`` repeats it.
        The backward pass draws it again; no array of n_queries * n_keys is kept.
    law : str, float, Law or None
        The scale, as :func:`attnscale.laws.get` takes it. None: 1/sqrt(head_dim).
    normalizer : str or Normalizer, default "softmax"
        See :mod:`attnscale.normalizers`.
    learnable_scale : {"head", None}
        "head": a parameter ``scale_factor``, shape (num_heads,), ones at first, multiplies the law.
    learnable_law : sequence of str
        Learned parameters of the law, such as "s" of SSMax: names of :meth:`attnscale.laws.Law.derivatives`.
        They are in ``law_parameters``, one per head where the law allows it, and start at the law's values.
    statistics : sequence of str
        Statistics that each forward pass keeps in ``rows``, an :class:`attnscale.torch.AttentionStatistics`
        of tensors with gradients, for the loss or a log. With dropout, they describe the weights before any
        is dropped.
    rotary_base : float or None
        Base of rotary positions of queries and keys (usually 10000); None: no rotation.
    backend : {None, "auto", "core", "torch"}
        As for :func:`attnscale.torch.attention`. "torch" has second derivatives.

    Attributes
    ----------
    rows : AttentionStatistics or None
        Statistics of the last forward pass, including rows of padding. None in a copy of the module.

    Raises
    ------
    ValueError
        If learnable_scale is not allowed, rotary_base is not above 1, or head_dim is odd with a rotary_base.

    Notes
    -----
    The module works in ``torch.nn.TransformerEncoderLayer``, ``TransformerEncoder``, ``TransformerDecoder``
    and ``Transformer``, as ``self_attn`` and ``multihead_attn``; :func:`attnscale.torch.replace_attention`
    puts it there. A forward hook that does nothing keeps the inference fast path of
    ``TransformerEncoderLayer`` from skipping this module. Nested tensors, such as a ``TransformerEncoder``
    makes in inference with padding, are padded here and come back nested.

    Training with dropout takes two passes over the keys and, if the mask of all queries would be large,
    blocks of queries that the backward pass computes again. With dropout, normalizers other than
    softmax, softmax_n and sinks write out the weights of a block, at n_queries * n_keys^2 per head; laws
    of the distance without ``is_causal`` take all queries of a head as one block.

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
        backend: str | None = None,
    ) -> None:
        super().__init__(
            embed_dim,
            num_heads,
            dropout,
            bias,
            add_bias_kv,
            add_zero_attn,
            kdim,
            vdim,
            batch_first,
            device=device,
            dtype=dtype,
        )
        self._choose(law, normalizer, learnable_scale, learnable_law, statistics, rotary_base, backend)

    @classmethod
    def _of(cls, module: torch.nn.MultiheadAttention, **options: Any) -> MultiheadAttention:
        """A module of this class that shares a PyTorch module's parameters, hooks and mode."""
        found = cls.__new__(cls)
        state = vars(module).items()
        found.__dict__.update({name: copy(x) if isinstance(x, (dict, set)) else x for name, x in state})
        found._choose(**options)
        return found

    def _choose(
        self,
        law: Any = None,
        normalizer: Any = "softmax",
        learnable_scale: str | None = None,
        learnable_law: Sequence[str] = (),
        statistics: Sequence[str] = (),
        rotary_base: float | None = None,
        backend: str | None = None,
    ) -> None:
        """Set up law, normalizer, learned parameters and statistics, which PyTorch's module lacks."""
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
        self.backend = None if backend is None else choose("backend", backend, BACKENDS)
        self.rows: AttentionStatistics | None = None
        ones = torch.nn.Parameter(self.out_proj.weight.new_ones(self.num_heads))
        self.register_parameter("scale_factor", None if learnable_scale is None else ones)
        self.law_parameters = _law_parameters(self.law, learnable_law, ones).train(self.training)
        self.register_forward_pre_hook(_nothing)

    def __getstate__(self) -> dict[str, Any]:
        """The state for a copy, without the last statistics, whose graph cannot be copied."""
        return {**vars(self), "rows": None}

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
        """Output and, if requested, weights, with the arguments and shapes of PyTorch's module.

        ``is_causal`` needs no mask here; a mask given with it is taken for the causal one and not read. The
        weights are those after dropout, and the only array of n_queries * n_keys: use ``need_weights=False``
        except for pictures. Their gradient costs n_queries * n_keys^2 per head. A query with all keys masked
        has output 0, where PyTorch's module gives NaN with ``need_weights=True``.
        """
        check_tensors(query=query, key=key, value=value)
        if query.is_nested or key.is_nested or value.is_nested:
            if not self.batch_first:
                raise ValueError("batch_first must be True for nested tensors, got False")
            wanted = {"need_weights": need_weights, "average_attn_weights": average_attn_weights}
            attend = partial(self.forward, **wanted, is_causal=is_causal)
            masks = {"key_padding_mask": key_padding_mask, "attn_mask": attn_mask}
            return by_padding(attend, query, key, value, **masks)
        check_inputs(query, key, value, (self.embed_dim, self.kdim, self.vdim), batch_first=self.batch_first)
        batched = query.dim() == 3
        projected = self._project(query, key, value)
        q, k, v = (self._split(x, batched) for x in projected)
        check_masks(attn_mask, key_padding_mask, q, k)
        mask = join_masks(None if is_causal else attn_mask, key_padding_mask, q, k)
        if self.rotary_base is not None:
            q, k = rotate(q, self.rotary_base), rotate(k, self.rotary_base)
        more = self._more(k)
        # Added keys, which every query sees, go first if is_causal: a causal query sees the first keys.
        k, v, mask = _extend(k, v, mask, more, in_front=is_causal)
        options = {"scale": self._scale(), "normalizer": self.normalizer, "attn_mask": mask}
        # One by one: the compiler of PyTorch 2.6 joins no dictionaries.
        options["causal"] = len(more) if is_causal else None
        options["backend"] = self.backend
        dropout = Dropout.draw(self.dropout) if self.training and self.dropout else None
        output = self.out_proj(self._join(self._attend(q, k, v, dropout, options), batched))
        if not need_weights:
            return output, None
        weights = row_weights(q, k, **options).to(q.dtype)
        weights = weights if dropout is None else dropout.of_weights(weights)
        weights = weights.roll(-len(more), -1) if is_causal and more else weights
        return output, weights.mean(dim=-3) if average_attn_weights else weights

    def _attend(
        self, q: Tensor, k: Tensor, v: Tensor, dropout: Dropout | None, options: dict[str, Any]
    ) -> Tensor:
        attend: Any = partial(attend_with_dropout, dropout=dropout) if dropout else attention_statistics
        found = attend(q, k, v, statistics=self.statistics, **options)
        self.rows = found if self.statistics else None
        return found.output

    def _project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if self._qkv_same_embed_dim:
            weights = self.in_proj_weight.chunk(3)
        else:
            weights = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        bias = self.in_proj_bias
        biases = (None,) * 3 if bias is None else bias.to(weights[0].dtype).chunk(3)
        rows = zip((query, key, value), weights, biases, strict=True)
        q, k, v = (functional.linear(x, weight, bias) for x, weight, bias in rows)
        return q, k, v

    def _split(self, x: Tensor, batched: bool) -> Tensor:
        """Heads of a projection, (batch, heads, n, head_dim), or without the batch."""
        heads = x.unflatten(-1, (self.num_heads, self.head_dim))
        if not batched:
            return heads.transpose(0, 1)
        return heads.transpose(1, 2) if self.batch_first else heads.permute(1, 2, 0, 3)

    def _join(self, output: Tensor, batched: bool) -> Tensor:
        """The output with its heads side by side; the inverse of _split."""
        if not batched:
            return output.transpose(0, 1).flatten(-2)
        order = (0, 2, 1, 3) if self.batch_first else (2, 0, 1, 3)
        return output.permute(*order).flatten(-2)

    def _more(self, k: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Keys and values, (heads, 1, head_dim), that add_bias_kv and add_zero_attn append."""
        more = [] if self.bias_k is None else [(self.bias_k, self.bias_v)]
        if self.add_zero_attn:
            zeros = k.new_zeros(self.embed_dim)
            more.append((zeros, zeros))
        rows = (self.num_heads, 1, self.head_dim)
        return [(key.reshape(rows), value.reshape(rows)) for key, value in more]

    def _scale(self) -> Any:
        learned = dict(self.law_parameters.items())
        if self.scale_factor is not None:
            return Learned(f"1.0 * {self.law.spelling}", amplitude=self.scale_factor, **learned)
        return Learned(self.law, **learned) if learned else self.law


def _extend(
    k: Tensor, v: Tensor, mask: Tensor | None, more: list[tuple[Tensor, Tensor]], *, in_front: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Keys and values extended by `more`, (heads, 1, head_dim) each, and a mask that shows them."""
    if not more:
        return k, v, mask
    shape = (*k.shape[:-2], 1, k.shape[-1])
    keys, values = ([x.expand(shape).to(k.dtype) for x in rows] for rows in zip(*more, strict=True))
    ends = (len(more), 0) if in_front else (0, len(more))
    if mask is not None:
        mask = functional.pad(mask, ends, value=True if mask.dtype == torch.bool else 0.0)
    k, v = (torch.cat((*x, y) if in_front else (y, *x), dim=-2) for x, y in ((keys, k), (values, v)))
    return k, v, mask


def _law_parameters(law: laws.Law, names: Sequence[str], heads: Tensor) -> torch.nn.ParameterDict:
    """Named parameters of the law at its own values, in the type of a tensor (heads,)."""
    names = (names,) if isinstance(names, str) else names
    check_learnable(law, names)
    first = {}
    for name in names:
        value = heads.new_tensor(law.parameter(name))
        first[name] = value * heads.detach() if takes_one_a_head(law, name) else value
    return torch.nn.ParameterDict(first)


def _nothing(module: Any, arguments: Any) -> None:
    """Forward pre-hook that does nothing; PyTorch's fast path does not skip modules with a hook."""


def rotate(x: Tensor, base: float) -> Tensor:
    """Rotate rows (..., n, head_dim) by their index: channel c of the first half with c of the second.

    The angle of row i is i * base^(-2c / head_dim) (Su et al. 2021, arXiv 2104.09864, in the order of
    channels of GPT-NeoX and Llama).
    """
    n, head_dim = x.shape[-2:]
    half = head_dim // 2
    speed = base ** (-torch.arange(half, dtype=torch.float64, device=x.device) / half)
    angle = torch.arange(n, dtype=torch.float64, device=x.device)[:, None] * speed
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    first, second = x[..., :half], x[..., half:]
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
