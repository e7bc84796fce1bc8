# SPDX-License-Identifier: BSD-3-Clause
"""The multiplier of raw q . k as a derivative, for models with their own attention.

A score is linear in raw q and in raw k, so the matrix of its second derivatives by both is the multiplier
times a rotation: its singular values are the multipliers, one for each channel of the head. Biases, masks
and terms with positions in place of q or k have no such derivative and drop out.
"""

from __future__ import annotations

import inspect
import re
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from . import oracle

#: Names of the parts that make raw q and raw k, the last on the way to the score first.
_QUERY = r"projection_query|q_norm|q_layernorm|q_lin|q_head|project_q|Wq|query_proj|linear_q|q_proj|query|q"
_KEY = r"projection_key|k_norm|k_layernorm|k_lin|k_head|project_k|Wk|key_proj|linear_k|k_proj|key|k"
_BOTH = r"c_attn|qkv_proj|query_key_value|Wqkv|att_proj|in_proj|query_key|qkv"


class Softmaxes(TorchFunctionMode):
    """Inputs of each softmax of a model, with the raw q and k before it."""

    def __init__(self) -> None:
        super().__init__()
        self.raw: dict[str, Any] = {}
        self.seen: list[tuple[str, Any, Any, Any]] = []
        self.place = ""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") == "softmax" and args[0].requires_grad:
            self._remember(args[0])
        if getattr(func, "__name__", "") == "amax":  # subtracted from scores, it drops out
            args = (args[0].detach(), *args[1:])
        return func(*args, **(kwargs or {}))

    def _remember(self, scores: Any) -> None:
        q, k = self._last(_QUERY), self._last(_KEY)
        if q is None or k is None:
            q = k = self._last(_BOTH)
        if q is not None and q.requires_grad:
            self.seen.append((self.place, scores, q, k))
        self.raw.clear()

    def _last(self, pattern: str) -> Any:
        for name in pattern.split("|"):  # the first of the pattern is the last on the way to the score
            if name in self.raw:
                return self.raw[name]
        return None

    def watch(self, model: Any) -> None:
        """Hooks on every part that could be the last step of raw q or k."""
        for name, module in model.named_modules():
            part = name.rpartition(".")[2]
            if re.fullmatch("|".join((_QUERY, _KEY, _BOTH)), part):
                module.register_forward_hook(self._hook(name, part))

    def _hook(self, name: str, part: str) -> Any:
        def hook(_: Any, inputs: Any, output: Any) -> Any:
            self.place = name
            if not isinstance(output, torch.Tensor):
                return output
            self.raw[part] = output
            return output.clone()  # some models divide it in place

        return hook


def run(model: Any, **inputs: Any) -> list[tuple[str, Any, Any, Any]]:
    """(name of the part, scores, raw q, raw k) of each softmax of one forward pass."""
    softmaxes = Softmaxes()
    softmaxes.watch(model)
    accepted = inspect.signature(model.forward).parameters
    ids = torch.arange(3, 3 + oracle.LENGTH)[None] % 60 + 3
    if "input_ids" in accepted:
        inputs.setdefault("input_ids", ids)
    if "decoder_input_ids" in accepted:
        inputs.setdefault("decoder_input_ids", ids)
    if "use_cache" in accepted:
        inputs.setdefault("use_cache", False)
    with softmaxes:
        model(**inputs)
    return softmaxes.seen


def singular_values(scores: Any, q: Any, k: Any, seed: int = 0) -> np.ndarray:
    """Singular values of the second derivatives of a score by raw q and raw k, the largest first."""
    flat = scores.reshape(-1)
    visible = torch.nonzero((flat.detach() > -1e4) & (flat.detach() != 0)).ravel()
    rng = np.random.default_rng(seed)
    for index in rng.permutation(visible.numpy())[:20]:
        (by_q,) = torch.autograd.grad(flat[index], q, create_graph=True, retain_graph=True, allow_unused=True)
        if by_q is None or not by_q.requires_grad:
            continue
        by_q = by_q.reshape(-1)
        rows = [
            torch.autograd.grad(by_q[row], k, retain_graph=True, allow_unused=True)[0]
            for row in torch.nonzero(by_q.detach()).ravel()
        ]
        matrix = torch.stack([row.reshape(-1) for row in rows if row is not None]).double()
        matrix = matrix[:, matrix.abs().amax(0) > 0]
        if matrix.numel():
            found = np.linalg.svd(matrix.numpy(), compute_uv=False)
            found = found[found > found[0] * 1e-5]
            return found[::2] if q is k else found  # q and k in one tensor: each number twice
    raise LookupError("no score has a second derivative")
