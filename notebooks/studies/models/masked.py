# SPDX-License-Identifier: BSD-3-Clause
"""Masked language modelling: batches, loss, and predictions of the same masked tokens at any length."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from attnscale.experiments import History, Training
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from ..data.corpus import MASK
from .transformer import Mixing, Transformer

_TOKENS_AT_ONCE = 16_384  # tokens per call in evaluation: a few hundred MB of scores at n = 1024


class Texts(NamedTuple):
    """Windows of text with the same masked tokens at every length to which they are cut.

    Attributes
    ----------
    tokens : Tensor of int64, shape (windows, n)
        Tokens, with MASK in the masked places.
    places, targets : Tensor of int64, shape (windows, masked)
        Positions of the masked tokens, and the original tokens.
    """

    tokens: Tensor
    places: Tensor
    targets: Tensor


def _mask(tokens: Tensor, masked: int, generator: torch.Generator) -> Texts:
    """Hide `masked` random tokens in each row."""
    order = torch.rand(tokens.shape, generator=generator)
    places = order.topk(masked, dim=-1).indices.sort(-1).values
    return Texts(tokens.scatter(-1, places, MASK), places, tokens.gather(-1, places))


def masked_loss(
    model: Transformer, stream: Tensor, batch: int, n: int, masked: int, generator: torch.Generator
) -> Tensor:
    """Mean negative log-likelihood of the masked tokens of a random batch from the stream, in nats.

    The stream and the generator are on the CPU; the batch is moved to the model's device.
    """
    starts = torch.randint(len(stream) - n, (batch, 1), generator=generator)
    texts = _mask(stream[starts + torch.arange(n)], masked, generator)
    tokens, places, targets = (each.to(model.embedding.weight.device) for each in texts)
    hidden = model.hidden(tokens)
    chosen = hidden.gather(1, places[..., None].expand(-1, -1, hidden.shape[-1]))
    return functional.cross_entropy(model.head(chosen).flatten(0, 1), targets.flatten())


def train_masked(
    study: Any, streams: Mapping[str, NDArray[Any]], training: Training, *, law: str, positions: str
) -> tuple[Transformer, History]:
    """Train a model to fill in the masked tokens of a stream; return it with its history.

    Parameters
    ----------
    study : object
        An object with the sizes of the model (layers, width, heads, attention) and of its training
        (train_length, batch, steps, masked, learning_rate).
    streams : dict of str to ndarray
        See :func:`corpus_streams`; the model is trained on "train".
    training : Training
    law : str
        Law of the scale.
    positions : {"rotary", "none"}
    """
    mix = Mixing(law=law, positions=positions, implementation=study.attention)
    vocabulary = int(max(streams["train"].max(), streams["held_out"].max())) + 1
    with training.fork("weights"):
        model = Transformer(vocabulary, study.layers, study.width, study.heads, mix)
    model.to(training.device)
    stream = torch.from_numpy(streams["train"])

    def loss(step: int) -> Tensor:
        generator = training.generator("batches")
        return masked_loss(model, stream, study.batch, study.train_length, study.masked, generator)

    warmup = min(100, study.steps // 10)
    history = training.fit(model, loss, steps=study.steps, learning_rate=study.learning_rate, warmup=warmup)
    return model, history


def hide_tokens(windows: NDArray[np.int64], block: int, masked: int, generator: torch.Generator) -> Texts:
    """Hide `masked` random tokens in each block of texts, (windows, n)."""
    count, n = windows.shape
    texts = _mask(torch.from_numpy(windows).view(-1, block), masked, generator)
    first = torch.arange(0, n, block)[:, None]
    return Texts(
        texts.tokens.view(count, n),
        (texts.places.view(count, -1, masked) + first).flatten(1),
        texts.targets.view(count, -1),
    )


def masked_texts(study: Any, windows: NDArray[np.int64], device: torch.device) -> Texts:
    """Hide as many tokens as in training in each `train_length` tokens of texts, (windows, n).

    The same tokens are hidden for all seeds.
    """
    generator = Training(0).generator("evaluation")
    hidden = hide_tokens(windows, study.train_length, study.masked, generator)
    return Texts(*(each.to(device) for each in hidden))


@torch.no_grad()
def read_texts(model: Transformer, texts: Texts, n: int) -> tuple[Tensor, Tensor]:
    """Whether each masked token is the model's first choice, and its negative log-likelihood.

    Parameters
    ----------
    model : Transformer
        The model, with the ``mix`` for this reading.
    texts : Texts
        Windows on the model's device.
    n : int
        Length to which the windows are cut; it divides their own length.

    Returns
    -------
    right, nll : Tensor, shape (windows, masked)
    """
    windows, length = texts.tokens.shape
    pieces = texts.tokens.view(-1, n).split(max(1, _TOKENS_AT_ONCE // n))
    hidden = torch.cat([model.hidden(piece) for piece in pieces]).view(windows, length, -1)
    right, nll = [], []
    for rows, places, targets in zip(hidden, texts.places, texts.targets, strict=True):
        logits = model.head(rows[places])
        right.append((logits.argmax(-1) == targets).float())
        nll.append(functional.cross_entropy(logits, targets, reduction="none"))
    return torch.stack(right), torch.stack(nll)
