# SPDX-License-Identifier: BSD-3-Clause
"""Models that are trained with one attention or another, from the same weights and tokens."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._timing import Action

__all__ = ["gpt_weights", "jax_gpt_step", "study_step", "torch_gpt"]

Attend = Callable[[Any, Any, Any], Any]

#: The small GPT: pre-norm layers with causal attention, a tied embedding, and no weights in the norms.
LAYERS, WIDTH, HEADS, VOCABULARY = 4, 256, 4, 1000
_RATE = 1e-3


def gpt_weights(n: int) -> list[NDArray[Any]]:
    """Embeddings of tokens and positions; query, key and value, output, widening and narrowing per layer."""
    shapes = [(WIDTH, 3 * WIDTH), (WIDTH, WIDTH), (WIDTH, 4 * WIDTH), (4 * WIDTH, WIDTH)] * LAYERS
    rng = np.random.default_rng(0)
    small = np.float32(0.02)
    return [small * rng.standard_normal(s, np.float32) for s in ((VOCABULARY, WIDTH), (n, WIDTH), *shapes)]


def _gpt_tokens(batch: int, n: int) -> NDArray[Any]:
    return np.random.default_rng(1).integers(VOCABULARY, size=(batch, n))


def torch_gpt(torch: Any, attend: Attend, batch: int, n: int) -> tuple[Action, Action]:
    """A step of SGD of the small GPT in PyTorch, which returns the loss, and inference without gradients."""
    weights = [torch.from_numpy(each).requires_grad_() for each in gpt_weights(n)]
    tokens = torch.from_numpy(_gpt_tokens(batch, n))
    functional = torch.nn.functional

    def logits() -> Any:
        x = weights[0][tokens] + weights[1]
        for i in range(2, len(weights), 4):
            qkv = functional.layer_norm(x, (WIDTH,)) @ weights[i]
            heads = qkv.view(batch, n, 3, HEADS, -1).permute(2, 0, 3, 1, 4).unbind(0)
            x = x + attend(*heads).transpose(1, 2).reshape(batch, n, WIDTH) @ weights[i + 1]
            wide = functional.layer_norm(x, (WIDTH,)) @ weights[i + 2]
            x = x + functional.gelu(wide, approximate="tanh") @ weights[i + 3]
        return functional.layer_norm(x, (WIDTH,)) @ weights[0].T

    def step() -> object:
        loss = functional.cross_entropy(logits()[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
        gradients = torch.autograd.grad(loss, weights)
        with torch.no_grad():
            for weight, gradient in zip(weights, gradients, strict=True):
                weight.sub_(gradient, alpha=_RATE)
        return loss.detach()

    return step, torch.no_grad()(logits)


def jax_gpt_step(attend: Attend, batch: int, n: int) -> Action:
    """A compiled step of SGD of the small GPT in JAX, which returns the loss and the new weights.

    Each call takes the first weights. `attend` takes arrays (batch, n, heads, head_dim).
    """
    jax: Any = import_module("jax")
    given = [jax.numpy.asarray(each) for each in gpt_weights(n)]
    tokens = jax.numpy.asarray(_gpt_tokens(batch, n))

    def norm(x: Any) -> Any:
        return (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)

    def loss(weights: Any) -> Any:
        x = weights[0][tokens] + weights[1]
        for i in range(2, len(weights), 4):
            qkv = (norm(x) @ weights[i]).reshape(batch, n, 3, HEADS, -1)
            x = x + attend(qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2]).reshape(x.shape) @ weights[i + 1]
            x = x + jax.nn.gelu(norm(x) @ weights[i + 2]) @ weights[i + 3]
        log_p = jax.nn.log_softmax((norm(x) @ weights[0].T)[:, :-1])
        return -jax.numpy.take_along_axis(log_p, tokens[:, 1:, None], -1).mean()

    @jax.jit  # type: ignore[untyped-decorator]  # JAX may be missing
    def step(weights: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(weights)
        return value, [w - _RATE * g for w, g in zip(weights, gradients, strict=True)]

    return lambda: jax.block_until_ready(step(given))


def study_step(implementation: str) -> Action:
    """A step of AdamW of the model of experiment T15 with the attention of "attnscale" or "torch"."""
    import torch
    from studies.length_generalization import LengthGeneralization
    from studies.models.masked import masked_loss
    from studies.models.transformer import Mixing, Transformer

    study = LengthGeneralization()
    generator = torch.Generator().manual_seed(0)
    stream: Any = torch.randint(2, study.vocabulary, (100_000,), generator=generator)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        mix = Mixing(implementation=implementation)
        model = Transformer(study.vocabulary, study.layers, study.width, study.heads, mix)
    optimizer = torch.optim.AdamW(model.parameters(), lr=study.learning_rate)

    def step() -> object:
        optimizer.zero_grad(set_to_none=True)
        masked_loss(model, stream, study.batch, study.train_length, study.masked, generator).backward()
        return optimizer.step()

    return step
