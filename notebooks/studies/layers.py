# SPDX-License-Identifier: BSD-3-Clause
"""T34: each layer of a real encoder, fed with the output of every other. Nothing is trained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from attnscale._base.checks import choose, shown
from attnscale.exact.weights import attention_weights
from attnscale.experiments import Cells, Claim, Contrast, Criterion, Study, Training, Variable, difference
from numpy.typing import NDArray
from torch import Tensor

from .models.attention import Computed
from .models.encoder import ENCODERS, Encoder, load, tokenized


@dataclass(frozen=True)
class Layers(Computed, Study):
    """Outputs of other layers that a layer of a trained encoder accepts: claim T34.

    Layer l gets, in place of its own input, the state after layer m (0 is the embedding). Three things are
    compared with the normal model: the direction of the layer's update, its attention maps, and the final
    embedding of the text. The control is the same model with initial weights. A seed chooses the texts, and
    in the control the weights.

    Attributes
    ----------
    models : tuple of str
        "trained", and "untrained": the same model class with initial weights.
    encoder : {"minilm", "reactions"}
        all-MiniLM-L6-v2 on English, or the BERT of rxnfp, which reads chemical reactions, on molecules.
    texts, n : int
        Number of texts per seed, and tokens of each.
    attention, device
        See ``Computed`` in models/attention.py.
    """

    claim = "T34"
    question = "Does a layer of a trained encoder accept the output of another layer, and how far away?"

    models: tuple[str, ...] = ("trained", "untrained")
    encoder: str = "minilm"
    texts: int = 8
    n: int = 32

    def __post_init__(self) -> None:
        if not self.models or not set(self.models) <= {"trained", "untrained"}:
            raise ValueError(f"models must be of 'trained' and 'untrained', got {shown(self.models)}")
        choose("encoder", self.encoder, tuple(ENCODERS))
        if self.texts < 2:
            raise ValueError(f"texts must be at least 2, their mean is taken off, got {self.texts}")
        if not 3 <= self.n <= 512:
            raise ValueError(f"n must be 3 to 512, the positions that the model has, got {self.n}")
        super().__post_init__()

    @classmethod
    def reduced(cls) -> Self:
        """A small run, with few and short texts."""
        return cls(texts=4, n=24)

    def cells(self) -> Cells:
        """Axes of the models."""
        return {"model": self.models}

    def variables(self) -> Mapping[str, Variable]:
        """Variables measured for each model."""
        layers = ENCODERS[self.encoder]
        layer = {"layer": tuple(range(1, layers + 1))}
        fed = layer | {"fed": tuple(range(layers + 1))}
        return {
            "update_cosine": Variable(
                fed, "", "cosine of the layer's update of what it is fed and of its own input"
            ),
            "map_divergence": Variable(
                fed, "", "Jensen-Shannon divergence of rows of weights in bits, 0 to 1"
            ),
            "final_cosine": Variable(
                fed, "", "cosine of the centred sentence embedding with that of the whole model"
            ),
            "crosstalk": Variable(layer, "", "|M OV|_F / (|M|_F |OV|_F), M = W_q^T W_k, mean over heads"),
        }

    def measure(self, cell: dict[str, Any], seed: int, training: Training) -> dict[str, Any]:
        """Feed each layer with every state of the model, and compare with the normal model."""
        with training.fork("weights"):
            trained = cell["model"] == "trained"
            encoder = load(self.attention, training.device, trained=trained, encoder=self.encoder)
        pieces = tokenized(self.n, self.encoder)
        training.note(**pieces.facts)
        chosen = torch.randperm(len(pieces.tokens), generator=training.generator("texts"))[: self.texts]
        tokens = torch.from_numpy(pieces.tokens)[chosen].to(training.device)
        with torch.no_grad():
            states = encoder.states(tokens)
            layers = range(encoder.layers)
            fed = [[_fed(encoder, states, layer, m) for m in range(len(states))] for layer in layers]
            crosstalk = [_crosstalk(encoder, layer) for layer in layers]
        names = ("update_cosine", "map_divergence", "final_cosine")
        tables = np.moveaxis(np.array(fed), -1, 0)
        return {**dict(zip(names, tables, strict=True)), "crosstalk": np.array(crosstalk)}

    def criterion(self) -> Criterion:
        """Claims: the cosine falls from state to state below a layer's input, more than in the control."""
        layers = range(2, ENCODERS[self.encoder] + 1)
        falls = tuple(
            difference(
                f"layer {layer}, fed {back} below less {back + 1}",
                "update_cosine",
                {"fed": (layer - 1 - back, layer - 2 - back)},
                {"model": "trained", "layer": layer},
            )
            for layer in layers
            for back in range(layer - 1)
        )
        first = ((1.0, "trained", 1), (-1.0, "trained", 2), (-1.0, "untrained", 1), (1.0, "untrained", 2))
        steeper = tuple(
            Contrast(
                f"layer {layer}, first fall less that of the control",
                "update_cosine",
                tuple((w, {"model": model, "layer": layer, "fed": layer - back}) for w, model, back in first),
            )
            for layer in layers
        )
        text = "a layer accepts what is near its own input, and less what is far"
        return Criterion((Claim(text, falls + steeper),))


def _fed(encoder: Encoder, states: list[Tensor], layer: int, m: int) -> tuple[float, float, float]:
    """The three measurements of a layer, counted from 0, that gets state m in place of state `layer`."""
    own, other = states[layer], states[m]
    after = encoder.layer(layer, other)
    cosine = torch.cosine_similarity(after - other, states[layer + 1] - own, dim=-1)
    divergence = js_divergence(_maps(encoder, layer, own), _maps(encoder, layer, other))
    for later in range(layer + 1, encoder.layers):
        after = encoder.layer(later, after)
    # Subtract the mean over texts: embeddings share a large part that does not depend on the text.
    found, whole = (state.mean(1) - state.mean((0, 1)) for state in (after, states[-1]))
    final = torch.cosine_similarity(found, whole, dim=-1)
    return float(cosine.mean()), float(divergence.mean()), float(final.mean())


def _maps(encoder: Encoder, layer: int, state: Tensor) -> NDArray[Any]:
    query, key = (each.cpu().double().numpy() for each in encoder.query_and_key(layer, state))
    return attention_weights(query, key)


def js_divergence(one: NDArray[Any], other: NDArray[Any]) -> NDArray[Any]:
    """The Jensen-Shannon divergence of rows, in bits: 0 if they are equal, 1 if disjoint.

    Examples
    --------
    >>> js_divergence(np.array([0.5, 0.5, 0]), np.array([0, 0, 1.0])).item()
    1.0
    """

    def entropy(p: NDArray[Any]) -> Any:
        return -np.where(p > 0, p * np.log2(np.where(p > 0, p, 1)), 0).sum(-1)

    return entropy((one + other) / 2) - (entropy(one) + entropy(other)) / 2


def _crosstalk(encoder: Encoder, layer: int) -> float:
    """Distance of M and OV from orthogonal: |M OV| / (|M| |OV|), 1/sqrt(width) for random matrices."""
    ratios = []
    for query, key, value, output in encoder.weights(layer):
        scores, moved = query.T @ key, output @ value
        ratios.append(float((scores @ moved).norm() / (scores.norm() * moved.norm())))
    return float(np.mean(ratios))
