# SPDX-License-Identifier: BSD-3-Clause
"""Attention with dropout of its weights, in blocks of queries, with a mask drawn again wherever it is read.

The mask is a function of a seed and of the indices of query and key, so the backward pass draws the mask of
the forward pass again and no array of n_queries * n_keys is kept.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple, Unpack

import numpy as np
import torch
from torch import Tensor

from ..._base.statistics import AttentionStatistics
from ..._call.rows import read_causal
from ...laws import Law
from ...normalizers import Sink, Softmax, SoftmaxN
from .._base.arguments import TensorOptions, read_call
from .._base.autograd import by_loop, compute_again
from .._base.learned import Sink as LearnedSink
from .._base.tensors import joined
from .._eager import watching
from .._functional import attention_statistics
from .._ops import row_weights
from .._plain.blocks import scales_of_rows
from .._plain.scores import Visible
from ._inputs import hidden_by, visible_by_place

#: Pairs of query and key of a block: the mask takes one byte each, and 4 while it is drawn.
_PAIRS = 2**22
#: Smallest number of queries of a block, if there are as many, so that each reading of keys serves many.
_ROWS = 128
#: 32-bit random numbers per count of Philox. Each row of the mask begins a new count.
_A_COUNT = 8


class Dropout(NamedTuple):
    """Choice of the dropped weights, by a probability and a seed."""

    p: float
    seed: Tensor  # (2,) of int64: the key of Philox

    @staticmethod
    def draw(p: float) -> Dropout:
        """A dropout with a seed from PyTorch's generator, which ``torch.manual_seed`` sets."""
        if not 0 <= p <= 1:
            raise ValueError(f"dropout must be between 0 and 1, got {p}")
        return Dropout(p, torch.randint(2**63 - 1, (2,), device="cpu"))

    def factor(self) -> float:
        return 1.0 / (1.0 - self.p) if self.p < 1 else 0.0

    def kept(
        self,
        entries: tuple[int, int],
        heads: int,
        rows: tuple[int, int, int],
        n_keys: int,
        device: torch.device | str = "cpu",
    ) -> Tensor:
        """True where a weight is kept, (entries, heads, rows, n_keys); drawn on the CPU for every device.

        `entries` of the batch and `rows` are the first and the one past the last; `rows` also has the number
        of rows of a head.
        """
        first, past = (entry * heads for entry in entries)
        flat = kept(self.seed, self.p, first, past, *rows, n_keys)
        return flat.unflatten(0, (entries[1] - entries[0], heads)).to(device)

    def of_weights(self, weights: Tensor) -> Tensor:
        """The whole matrix of weights (..., heads, n_queries, n_keys) after dropout."""
        batch, heads, n_queries, n_keys = weights[(None,) * (4 - weights.dim())].shape
        mask = self.kept((0, batch), heads, (0, n_queries, n_queries), n_keys, weights.device)
        return weights * mask.view(weights.shape) * self.factor()


@torch.library.custom_op("attnscale::dropout_kept", mutates_args=(), device_types="cpu")
def kept(
    seed: Tensor, p: float, first: int, past: int, start: int, stop: int, n_queries: int, n_keys: int
) -> Tensor:
    """True where a weight is kept, (matrices first ... past, rows start ... stop, n_keys).

    The index of a pair gives its number by Philox 4x64-10 (Salmon et al. 2011, "Parallel random numbers: as
    easy as 1, 2, 3"), so that no number depends on the block in which it is drawn.
    """
    counts = -(-n_keys // _A_COUNT)  # counts of a row
    found = np.empty((past - first, stop - start, n_keys), np.bool_)
    threshold = np.uint64(round(p * 2**32))
    for i, matrix in enumerate(range(first, past)):
        count = (matrix * n_queries + start) * counts
        bits = np.random.Philox(key=seed.numpy().view(np.uint64), counter=count)
        drawn = bits.random_raw((stop - start) * counts * (_A_COUNT // 2)).view(np.uint32)
        drawn = drawn.reshape(stop - start, counts * _A_COUNT)[:, :n_keys]
        np.greater_equal(drawn, threshold, out=found[i])
    return torch.from_numpy(found)


@kept.register_fake
def _(
    seed: Tensor, p: float, first: int, past: int, start: int, stop: int, n_queries: int, n_keys: int
) -> Tensor:
    return seed.new_empty((past - first, stop - start, n_keys), dtype=torch.bool)


kept.register_vmap(partial(by_loop, kept))


def attend_with_dropout(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    dropout: Dropout,
    statistics: tuple[str, ...],
    **options: Unpack[TensorOptions],
) -> AttentionStatistics:
    """Output with dropped weights, and statistics of the weights before dropout.

    Arrays are (batch, heads, n, head_dim) or (heads, n, head_dim). Supported options of
    :func:`attnscale.torch.attention`: a law or a number as scale, masks, causal; with a number as scale and a
    softmax also a window, a soft-cap and shared heads.
    """
    if watching.watchers:
        more: dict[str, Any] = {"dropout": dropout, "statistics": statistics, **options}
        computed = partial(attend_with_dropout, query, key, value, **more)
        found: AttentionStatistics = watching.watchers[-1].around(query, key, options, computed)
        return found
    normalizer, scale = options.setdefault("normalizer", Softmax()), options.get("scale")
    is_softmax = isinstance(normalizer, (Softmax, SoftmaxN, Sink, LearnedSink))
    wanted = tuple(dict.fromkeys((*statistics, "lse") if is_softmax else statistics))
    found = AttentionStatistics()
    if wanted:
        found = attention_statistics(query, key, statistics=wanted, **options)
    lead = (None,) * (4 - query.dim())
    causal, attn_mask = _offset(query, key, options), options.get("attn_mask")
    of_distance = isinstance(scale, Law) and scale.meaning.is_distance
    if not (of_distance or isinstance(scale, float)):
        of_rows = {"scale": scale, "causal": causal, "attn_mask": attn_mask}
        scale = scales_of_rows(read_call(query, key, None, of_rows))[lead]
    call = _DropoutCall(
        query=query[lead],
        key=key[lead],
        value=value[lead],
        scale=scale,
        lse=found.lse[lead] if is_softmax and found.lse is not None else None,
        attn_mask=None if attn_mask is None else attn_mask[(None,) * (4 - attn_mask.dim())],
        causal=causal,
        in_window=visible_by_place(query, key, options) if options.get("window") else None,
        options=options,
        dropout=dropout,
    )
    output = call.output(whole_heads=of_distance and causal is None)
    output = output if query.dim() == 4 else output[0]
    return AttentionStatistics(output, **{name: getattr(found, name) for name in statistics})


def _offset(query: Tensor, key: Tensor, options: TensorOptions) -> int | None:
    """The last key that the first query of a causal call sees; None: the call is not causal."""
    causal = read_causal(options.get("is_causal", False), options.get("causal"))
    if not isinstance(causal, str):
        return causal
    return 0 if causal == "top_left" else key.shape[-2] - query.shape[-2]


class _DropoutCall(NamedTuple):
    """Arguments of one call with four axes each, except the scale of a law of the distance."""

    query: Tensor
    key: Tensor
    value: Tensor
    scale: Any
    lse: Tensor | None  # None: the normalizer's weights are not exp(score - lse)
    attn_mask: Tensor | None
    causal: int | None
    in_window: Visible | None
    options: TensorOptions
    dropout: Dropout

    def output(self, whole_heads: bool) -> Tensor:
        """The output of all blocks; `whole_heads` for a law of the distance unless the call is causal."""
        batch, heads, n_queries, _ = self.query.shape
        entries, rows = _extents(batch, n_queries, heads * self.key.shape[-2], whole_heads=whole_heads)
        parts = []
        for e in range(0, max(batch, 1), entries):
            starts = range(0, max(n_queries, 1), rows)
            blocks = [(e, min(e + entries, batch), i, min(i + rows, n_queries)) for i in starts]
            several = len(starts) > 1 or entries < batch
            parts.append([compute_again(self._block, *each, enabled=several) for each in blocks])
        return joined([joined(each, -2) for each in parts], 0)

    def _block(self, first: int, past: int, start: int, stop: int) -> Tensor:
        """The output of queries start ... stop - 1 of batch entries first ... past - 1."""

        def part(x: Any) -> Any:
            """The block's slice of a tensor (batch, heads, n_queries, ...); other objects unchanged."""
            if not isinstance(x, Tensor):
                return x
            x = x if x.shape[0] == 1 else x[first:past]
            return x if x.shape[2] == 1 else x[:, :, start:stop]

        query, scale, lse, mask = map(part, (self.query, self.scale, self.lse, self.attn_mask))
        key, value, normalizer = self.key[first:past], self.value[first:past], self.options["normalizer"]
        if isinstance(normalizer, LearnedSink) and normalizer.logits.dim() > 2:
            normalizer = LearnedSink(part(normalizer.logits))
        options: Any = {"scale": scale, "normalizer": normalizer, "backend": self.options.get("backend")}
        options["causal"] = None if self.causal is None else self.causal + start
        heads, n_queries = self.query.shape[1:3]
        extents = (first, past), heads, (start, stop, n_queries), key.shape[-2]
        kept = self.dropout.kept(*extents, key.device)
        if lse is None:
            weights = row_weights(query, key, attn_mask=mask, **options) * kept * self.dropout.factor()
            return weights.to(value.dtype) @ value
        if self.in_window is not None:
            mask = hidden_by(mask, self.in_window.of_rows(start, stop))
        options["attn_mask"] = hidden_by(mask, kept)
        options["softcap"] = self.options.get("softcap")
        options["enable_gqa"] = heads != key.shape[1]
        rows = attention_statistics(query, key, value, statistics=("lse",), **options)
        # Share of the row's weight on the kept keys; 0, not NaN, for a row without visible keys.
        share = (rows.lse - lse).masked_fill(lse == -torch.inf, -torch.inf).exp() * self.dropout.factor()
        return (rows.output * share[..., None]).to(rows.output.dtype)


def _extents(batch: int, n_queries: int, pairs: int, *, whole_heads: bool) -> tuple[int, int]:
    """Batch entries and queries per block; one query of an entry has `pairs` pairs."""
    pairs, n_queries = max(pairs, 1), max(n_queries, 1)
    least = n_queries if whole_heads else min(n_queries, _ROWS)
    entries = max(min(_PAIRS // (pairs * least), batch), 1)
    return entries, n_queries if whole_heads else max(min(_PAIRS // (pairs * entries), n_queries), 1)
