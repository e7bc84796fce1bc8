# SPDX-License-Identifier: BSD-3-Clause
"""Recording a HookedTransformer of TransformerLens, by the hook points that its attention has."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor

from ..._results import AttentionStatistics
from .._functional import attention_statistics
from .._learned import Sink
from .heads import on_host
from .log import AttentionLog

__all__ = ["is_hooked", "recorded"]

#: Positions that are in the queries and keys, or in what the model adds to its embeddings.
_POSITIONS = ("standard", "shortformer", "rotary", "alibi")


def is_hooked(model: Any) -> bool:
    """Whether the model has the blocks, the config and the hook points of a HookedTransformer."""
    attention = [getattr(block, "attn", None) for block in getattr(model, "blocks", ())]
    return hasattr(model, "cfg") and bool(attention) and all(hasattr(each, "hook_q") for each in attention)


@contextmanager
def recorded(model: Any, log: AttentionLog) -> Iterator[None]:
    """Write the statistics of every call of the model's attention into the log."""
    with ExitStack() as stack:
        for layer, block in enumerate(model.blocks):
            _check(model.cfg, layer)
            for handle in _Layer(model.cfg, block.attn, log).hooks():
                stack.callback(handle.remove)
        yield


def _check(cfg: Any, layer: int) -> None:
    """Refuse what changes the scores between the hook points and the weights, and is not known here."""
    positions = cfg.positional_embedding_type
    unknown = [] if positions in _POSITIONS else [f"positional_embedding_type={positions!r}"]
    if getattr(cfg, "use_logn_attn", False):
        unknown.append("use_logn_attn=True")
    if getattr(cfg, "clip_qkv", None) is not None and positions != "rotary":
        unknown.append("clip_qkv")
    if unknown:
        raise NotImplementedError(
            f"layer {layer} of the HookedTransformer has {', '.join(unknown)}, which attnscale does not know "
            "and may not ignore"
        )


class _Layer:
    """One layer's attention: its queries and keys are taken at the hook points, its masks from its call."""

    def __init__(self, cfg: Any, module: Any, log: AttentionLog) -> None:
        self.cfg, self.module, self.log = cfg, module, log
        self._seen: dict[str, Tensor] = {}
        self._given: dict[str, Any] = {}

    def hooks(self) -> list[Any]:
        """The handles of the hooks, which are of PyTorch."""
        middle = "hook_rot_" if self.cfg.positional_embedding_type == "rotary" else "hook_"
        points = {name: getattr(self.module, f"{middle}{name}") for name in ("q", "k")}
        return [
            self.module.register_forward_pre_hook(self._keep_call, with_kwargs=True),
            *(point.register_forward_hook(self._keeper(name)) for name, point in points.items()),
            self.module.register_forward_hook(self._add),
        ]

    def _keep_call(self, module: Any, args: Any, given: dict[str, Any]) -> None:
        self._given = given

    def _keeper(self, name: str) -> Any:
        def keep(point: Any, args: Any, found: Tensor) -> None:
            self._seen[name] = found.detach().transpose(1, 2)  # (batch, heads, n, head_dim)

        return keep

    def _add(self, *_: Any) -> None:
        with torch.no_grad():
            query, key = self._seen.pop("q"), self._seen.pop("k")
            options = self._options(query, key)
            rows = attention_statistics(query, key, statistics=self.log.statistics, **options)
        found = {name: on_host(x) for name, x in rows._asdict().items() if x is not None}
        self.log.add(self.module, AttentionStatistics(**found), query, key, options)

    def _options(self, query: Tensor, key: Tensor) -> dict[str, Any]:
        cfg, module = self.cfg, self.module
        if self._given.get("past_kv_cache_entry") is not None and cfg.positional_embedding_type != "rotary":
            raise NotImplementedError("a HookedTransformer with a cache is only known with rotary positions")
        cap = getattr(cfg, "attn_scores_soft_cap", -1.0)
        options: dict[str, Any] = {
            "scale": 1 / float(module.attn_scale),
            "softcap": cap if cap > 0 else None,
            "enable_gqa": query.shape[1] != key.shape[1],
        }
        direction = getattr(module, "_attention_dir_override", None) or cfg.attention_dir
        if direction == "causal":
            options["causal"] = "bottom_right"
            if getattr(module, "attn_type", "global") == "local":
                options["window"] = (cfg.window_size - 1, 0)
        if (mask := self._mask(query, key)) is not None:
            options["attn_mask"] = mask
        if getattr(cfg, "use_attention_sinks", False):
            options["normalizer"] = Sink(module.sinks.detach().double())
        return options

    def _mask(self, query: Tensor, key: Tensor) -> Tensor | None:
        """What is added to the scores: the padding, and the distances of ALiBi."""
        mask = None
        padding = self._given.get("attention_mask")
        if padding is not None and not bool(padding.all()):
            mask = torch.zeros(padding.shape, dtype=query.dtype, device=query.device).masked_fill(
                padding == 0, -torch.inf
            )
            mask = mask[:, None, None]
        for more in (self._given.get("additive_attention_mask"), self._distances(query, key)):
            if more is not None:
                mask = more if mask is None else mask + more
        return mask

    def _distances(self, query: Tensor, key: Tensor) -> Tensor | None:
        if self.cfg.positional_embedding_type != "alibi":
            return None
        found: Tensor = self.module.alibi[:, -query.shape[2] :, : key.shape[2]]
        return found.detach()
