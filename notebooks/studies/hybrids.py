# SPDX-License-Identifier: BSD-3-Clause
"""T27: a causal language model whose heads are dot-product, efficient, linear or sparse, or of two kinds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from attnscale._base.checks import positive_int, shown
from attnscale.experiments import (
    Claim,
    Contrast,
    Criterion,
    Study,
    Training,
    Variable,
    difference,
    ends_of_parts,
    training_loss,
)
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from .data.corpus import package_of
from .data.held_out import corpus_facts, corpus_streams, held_out_texts
from .models.attention import Trained
from .models.families import check_variant, effective_keys, mix_heads
from .models.transformer import Transformer, token_loss

_PARTS = 50  # parts of the training; the mean loss of each is stored
_AT_ONCE = 16  # most texts read at once


@dataclass(frozen=True)
class Hybrids(Trained, Study):
    """Does a language model with efficient heads learn as well, and does one dot-product head suffice? (T27)

    A causal transformer learns the standard library's source with all heads of one family (dot products,
    efficient, linear, entmax), or with one or two of four heads of dot products and efficient ones. In
    ``Hybrids.sizes()`` one of 4 or of 16 heads is a dot-product head, in models of two widths.

    Variables: nll, nll_by_position, effective_keys, loss.

    Attributes
    ----------
    variants : tuple of str
        Families of the heads of every layer, such as "dot + 3 efficient": dot, sparse, efficient, linear.
    layers, width, vocabulary : int
    widths : tuple of int
        Widths of models as an axis of its own; if empty, `width` alone.
    n, batch, steps : int
        Tokens of a text, texts of a step, steps.
    learning_rate : float
    windows : int
        Number of texts of held-out files on which the loss is measured.
    shared : int
        Texts that are read share no run of this many tokens with a training file or another held-out file.
    most_bytes : int or None
        Bytes of the source to use; None for all.
    attention, device, dtype
        See ``Trained`` in models/attention.py.
    """

    claim = "T27"
    question = "does a language model with efficient heads learn as well, and is one dot-product head enough?"

    variants: tuple[str, ...] = (
        "4 dot",
        "4 efficient",
        "4 linear",
        "4 sparse",
        "dot + 3 efficient",
        "2 dot + 2 efficient",
    )
    layers: int = 2
    width: int = 128
    widths: tuple[int, ...] = ()
    vocabulary: int = 1000
    n: int = 256
    batch: int = 32
    steps: int = 5000
    learning_rate: float = 1e-3
    windows: int = 256
    shared: int = 32
    most_bytes: int | None = None

    cluster = staticmethod(package_of)

    def __post_init__(self) -> None:
        for name in ("layers", "width", "vocabulary", "n", "batch", "steps", "windows", "shared"):
            positive_int(name, getattr(self, name))
        for width in self.widths:
            positive_int("widths", width)
        for variant in self.variants:
            heads = len(check_variant("variants", variant))
            for width in self.widths or (self.width,):
                if width % heads:
                    raise ValueError(
                        f"variants must have a number of heads that divides the width {width}, "
                        f"got {shown(variant)} with {heads}"
                    )
        super().__post_init__()

    @classmethod
    def sizes(cls) -> Hybrids:
        """The run "sizes": one dot-product head of 4 or of 16, and two widths."""
        return cls(
            variants=("4 dot", "dot + 3 efficient", "16 dot", "dot + 15 efficient"),
            widths=(64, 128),
            n=512,
            batch=4,
            steps=1500,
            learning_rate=3e-3,
            windows=64,
        )

    @classmethod
    def reduced(cls) -> Hybrids:
        """A small run for tests, of some seconds."""
        return cls(
            variants=("4 dot", "4 efficient", "dot + 3 efficient"),
            width=64,
            vocabulary=400,
            n=64,
            batch=16,
            steps=150,
            windows=32,
            most_bytes=600_000,
        )

    @property
    def heads(self) -> int:
        """Largest number of heads of a layer over all variants."""
        return max(len(check_variant("variants", variant)) for variant in self.variants)

    def cells(self) -> dict[str, tuple[Any, ...]]:
        """Axes of the models: the families of their heads, and the width if there are several."""
        return {"variant": self.variants, **({"width": self.widths} if self.widths else {})}

    def variables(self) -> dict[str, Variable]:
        """Variables measured for each model."""
        places = tuple(int(part[-1]) + 1 for part in _places(self.n))
        text = {"text": tuple(range(self.windows))}
        heads = {"layer": tuple(range(self.layers)), "head": tuple(range(self.heads))}
        return {
            "nll": Variable({}, "nat", "loss of a token of held-out files"),
            "nll_by_position": Variable(
                {"position": places}, "nat", "the same by the number of tokens before it, to the one named"
            ),
            "nll_by_text": Variable(text, "nat", "nll of each text"),
            "text_file": Variable(text, "", "place of the text's file among the names of the held-out files"),
            "effective_keys": Variable(
                heads,
                "",
                "mean of exp(entropy) of the rows of the second half; NaN where there is no such head",
            ),
            "loss": training_loss(ends_of_parts(self.steps, _PARTS)),
        }

    def measure(self, cell: dict[str, Any], seed: int, training: Training) -> dict[str, NDArray[np.float64]]:
        """Train one model, and read held-out texts."""
        streams = training.cached(
            "source", lambda: corpus_streams(self.vocabulary, self.most_bytes, self.shared)
        )
        training.note(**corpus_facts(streams))
        held_out = held_out_texts(streams, self.n + 1, self.windows)
        vocabulary = int(max(streams["train"].max(), streams["held_out"].max())) + 1
        with training.fork("weights"):
            model = language_model(self, cell["variant"], vocabulary, cell.get("width"))
        model.to(training.device)
        stream = torch.from_numpy(streams["train"])

        def loss(step: int) -> Tensor:
            texts = _windows(stream, self.batch, self.n + 1, training.generator("batches"))
            texts = texts.to(training.device)
            return token_loss(model(texts[:, :-1]), texts[:, 1:])

        warmup = min(100, self.steps // 10)
        history = training.fit(model, loss, steps=self.steps, learning_rate=self.learning_rate, warmup=warmup)
        keys = np.full((self.layers, self.heads), np.nan)
        by_place, by_text, found = _read(model.eval(), torch.from_numpy(held_out.tokens).to(training.device))
        keys[:, : found.shape[1]] = found
        return {
            "nll": by_text.mean(),
            "nll_by_position": np.array([by_place[part].mean() for part in _places(self.n)]),
            "nll_by_text": by_text,
            "text_file": held_out.files.astype(np.float64),
            "effective_keys": keys,
            "loss": history.mean_losses(_PARTS),
        }

    def criterion(self) -> Criterion:
        """Claims: efficient heads lose, and the hybrid with one dot-product head is nearer to dot products.

        With several widths, the claims are about how the hybrid's cost depends on width, heads and place.
        """
        if self.widths:
            return _of_sizes(self)
        behind = difference("4 efficient less 4 dot", "nll", {"variant": ("4 efficient", "4 dot")}, {})
        parts = ((1.0, "4 efficient"), (1.0, "4 dot"), (-2.0, "dot + 3 efficient"))
        nearer = Contrast(
            "the hybrid's distance to 4 efficient less that to 4 dot",
            "nll",
            tuple((weight, {"variant": variant}) for weight, variant in parts),
        )
        return Criterion(
            (
                Claim("a language model of efficient heads alone learns less", (behind,)),
                Claim("with one head of dot products it is nearer to dot products alone", (nearer,)),
            )
        )


def _places(n: int) -> list[NDArray[np.int64]]:
    """Positions in groups that grow as powers of two: 0, 1, 2 to 3, 4 to 7, ..."""
    edges = [0, *(2**i for i in range(64) if 2**i < n), n]
    return [np.arange(start, stop) for start, stop in pairwise(edges)]


class _Mix:
    """The causal ``mix`` of heads by family; if `keys` is a list, it collects each head's effective keys."""

    def __init__(self, families: tuple[str, ...], implementation: str) -> None:
        self.families, self.implementation = families, implementation
        self.keys: list[Tensor] | None = None

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, layer: int) -> Tensor:
        if self.keys is not None:
            rows = effective_keys(query, key, self.families, causal=True)
            self.keys.append(rows[..., rows.shape[-1] // 2 :].mean((0, 2)))
        return mix_heads(query, key, value, self.families, causal=True, implementation=self.implementation)


class _Model(Transformer):
    """A transformer with learned positions, as in GPT-2: heads of all families see the same positions."""

    def __init__(self, study: Hybrids, vocabulary: int, mix: _Mix, width: int) -> None:
        super().__init__(vocabulary, study.layers, width, len(mix.families), mix)
        self.places = torch.nn.Parameter(0.02 * torch.randn(study.n, width))

    def hidden(self, tokens: Tensor) -> Tensor:
        """The last hidden states, (batch, n, width)."""
        x = self.embedding(tokens) + self.places[: tokens.shape[1]]
        for layer, block in enumerate(self.blocks):
            x = block(x, self.mix, layer)
        normed: Tensor = self.norm(x)
        return normed


def language_model(study: Hybrids, variant: str, vocabulary: int, width: int | None = None) -> _Model:
    """The model of a variant, with weights from PyTorch's generator; the study's width by default."""
    mix = _Mix(check_variant("variants", variant), study.attention)
    return _Model(study, vocabulary, mix, study.width if width is None else width)


def _windows(stream: Tensor, count: int, n: int, generator: torch.Generator) -> Tensor:
    """Texts of n tokens from random places, (count, n)."""
    starts = torch.randint(len(stream) - n, (count, 1), generator=generator)
    return stream[starts + torch.arange(n)].long()


@torch.no_grad()
def _read(
    model: _Model, texts: Tensor
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Mean loss of each position over the texts and of each text, and effective keys, (layers, heads)."""
    mix, parts, keys = model.mix, [], []
    assert isinstance(mix, _Mix)
    for part in texts.split(_AT_ONCE):
        mix.keys = []
        logits = model(part[:, :-1])
        parts.append(functional.cross_entropy(logits.transpose(1, 2), part[:, 1:], reduction="none"))
        keys.append(torch.stack(mix.keys) * len(part))
    mix.keys = None
    losses = torch.cat(parts).double().cpu().numpy()
    mean_keys = torch.stack(keys).sum(0) / len(texts)
    return losses.mean(0), losses.mean(1), mean_keys.double().cpu().numpy()


_HARM = 0.02  # nats per token; a smaller cost counts as none


def _of_sizes(study: Hybrids) -> Criterion:
    """Claims on the cost of one dot-product head among 4 or 16 against only such heads."""
    narrow, wide, n = study.widths[0], study.widths[-1], study.n
    cost = _cost(4, {"width": wide})
    late, early = (
        replace(_cost(4, {"width": wide, "position": place}), variable="nll_by_position")
        for place in (n, n // 16)
    )
    of_4 = replace(cost, name=f"dot + 3 efficient less 4 dot, width {wide}", least=_HARM)
    by_width = _cost(4, {"width": narrow}).less(cost, f"cost at width {narrow} less cost at {wide}")
    of_16 = _cost(16, {"width": wide}).less(cost, f"cost of one of 16 less cost of one of 4, width {wide}")
    by_place = late.less(early, f"cost up to {n} tokens less cost up to {n // 16}, width {wide}")
    return Criterion(
        (
            Claim(f"one head of dot products of 4 costs {_HARM} nats or more", (of_4,)),
            Claim("it costs less in a wider model", (by_width,)),
            Claim("one of 16 costs more than one of 4", (of_16,)),
            Claim("it costs more late in a text than early", (by_place,)),
        )
    )


def _cost(heads: int, place: dict[str, Any]) -> Contrast:
    """Loss with one dot-product head among `heads` less that of dot products alone."""
    variants = {"variant": (f"dot + {heads - 1} efficient", f"{heads} dot")}
    return difference(f"cost of one of {heads}", "nll", variants, place)
