# SPDX-License-Identifier: BSD-3-Clause
"""T15, the shape of the law: which multiple of the trained scale reads text best, at each length?"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from attnscale._base.checks import positive_int, shown
from attnscale.experiments import Claim, Criterion, Study, Training, Variable, ends_of_parts, training_loss
from numpy.typing import NDArray

from .data.corpus import package_of
from .data.held_out import corpus_facts, corpus_streams, one_text_a_file
from .models.at_lengths import READINGS
from .models.attention import Trained
from .models.masked import Texts, masked_texts, read_texts, train_masked
from .models.multiples import GRID, at_length, check_multiples, labels, shape_claims
from .models.readings import Reading
from .models.transformer import Transformer

_PARTS = 10  # parts of the training; the mean loss of each is stored
_POSITIONS = dict(zip(READINGS, ("rotary", "clipped"), strict=True))
_DECIMALS = 3  # decimals of the loss of one text, to keep a stored result small


@dataclass(frozen=True)
class TextMultiples(Trained, Study):
    """Which multiple of the trained scale reads text best at each length? (T15)

    A small transformer learns to fill in masked tokens of the standard library's source at 64 tokens, under
    1/sqrt(d). It is read at up to 1024 tokens under a grid of multiples of that scale, and under the
    multiples of log n and of two roots of a logarithm, with unchanged or clipped distances of its rotary
    positions. A law is one multiple at each length, so the grid shows the shape of the best law.

    Variables: nll, accuracy, nll of each text. :func:`best_multiples` finds the best multiple at each length.

    Attributes
    ----------
    layers, width, heads, vocabulary : int
        Sizes of the model, which is normalised before each part and has rotary positions.
    train_length, batch, steps, masked : int
        Sizes of the training; `masked` tokens of each row are replaced by a mask.
    learning_rate : float
    lengths : tuple of int
        Lengths at which a model is read: multiples of ``train_length``, which is the first.
    files : int
        Number of held-out files. One text of the largest length is read from each; every length and multiple
        reads the same masked tokens.
    clip : int
        Largest distance if distances are clipped.
    multiples : tuple of float
        Increasing multiples of the trained scale, including 1.
    constants : tuple of float
        Multiples to compare with log n at all lengths, one for unchanged and one for clipped distances: two
        of ``multiples``.
    shared : int
        Texts that are read share no run of this many tokens with a training file or another held-out file.
    most_bytes : int or None
        Bytes of the source to use; None for all.
    attention, device, dtype
        See ``Trained`` in models/attention.py.
    """

    claim = "T15"
    question = "which multiple of the trained scale reads text best at each length, and is that log n?"

    layers: int = 2
    width: int = 64
    heads: int = 2
    vocabulary: int = 1000
    train_length: int = 64
    batch: int = 32
    steps: int = 2500
    masked: int = 10
    learning_rate: float = 3e-3
    lengths: tuple[int, ...] = (64, 128, 256, 512, 1024)
    files: int = 24
    clip: int = 48
    multiples: tuple[float, ...] = GRID
    constants: tuple[float, ...] = (1.15, 1.3)
    shared: int = 32
    most_bytes: int | None = None

    cluster = staticmethod(package_of)

    def __post_init__(self) -> None:
        sizes = ("layers", "width", "heads", "train_length", "batch", "steps", "masked", "files", "clip")
        for name in (*sizes, "shared"):
            positive_int(name, getattr(self, name))
        if self.width % (2 * self.heads):
            raise ValueError(f"width must be a multiple of 2 * heads, got {self.width} and {self.heads}")
        multiple = all(n % self.train_length == 0 for n in self.lengths)
        if self.lengths[:1] != (self.train_length,) or len(self.lengths) < 2 or not multiple:
            raise ValueError(
                f"lengths must begin with train_length={self.train_length} and go on with multiples of it, "
                f"got {shown(self.lengths)}"
            )
        check_multiples(self.multiples, self.constants, len(READINGS))
        super().__post_init__()

    @classmethod
    def reduced(cls) -> TextMultiples:
        """A small run for tests, of some seconds."""
        return cls(
            vocabulary=600,
            steps=200,
            lengths=(64, 256),
            files=5,
            multiples=(0.7, 1.0, 1.3, 1.8),
            constants=(1.3, 1.3),
            most_bytes=1_000_000,
        )

    @property
    def head_dim(self) -> int:
        """Number of components of q and k."""
        return self.width // self.heads

    def cells(self) -> dict[str, tuple[Any, ...]]:
        """One cell: the scale in training."""
        return {"trained": ("standard",)}

    def variables(self) -> dict[str, Variable]:
        """Variables measured for each model, by reading, multiple and length."""
        table = {"reading": READINGS, "multiple": labels(self.multiples), "n": self.lengths}
        text = {"text": tuple(range(self.files))}
        return {
            "nll": Variable(table, "nat", "negative log-likelihood of a masked token"),
            "accuracy": Variable(table, "", "share of the masked tokens that are the model's first choice"),
            "nll_by_text": Variable({**table, **text}, "nat", "nll of each text, each of another file"),
            "text_file": Variable(text, "", "place of the text's file among the names of the held-out files"),
            "loss": training_loss(ends_of_parts(self.steps, _PARTS)),
        }

    def measure(self, cell: dict[str, Any], seed: int, training: Training) -> dict[str, NDArray[np.float64]]:
        """Train one model, and read it at every length under every multiple of its scale."""
        streams = training.cached(
            "source", lambda: corpus_streams(self.vocabulary, self.most_bytes, self.shared)
        )
        training.note(**corpus_facts(streams))
        held_out = one_text_a_file(streams, self.lengths[-1], self.files)
        texts = masked_texts(self, held_out.tokens, training.device)
        model, history = train_masked(self, streams, training, law=cell["trained"], positions="rotary")
        found = {name: np.full(each.shape, np.nan) for name, each in self.variables().items()}
        found["text_file"][:] = held_out.files
        found["loss"][:] = history.mean_losses(_PARTS)
        for r, reading in enumerate(READINGS):
            for i, n in enumerate(self.lengths):
                betas = at_length(self.multiples, n, self.train_length)
                place = (texts, _POSITIONS[reading], n)
                read = {beta: _read(self, model.eval(), *place, beta) for beta in set(betas)}
                nll, right = (np.stack(each) for each in zip(*(read[beta] for beta in betas), strict=True))
                found["nll_by_text"][r, :, i] = nll.round(_DECIMALS)
                found["nll"][r, :, i], found["accuracy"][r, :, i] = nll.mean(-1), right.mean(-1)
        return found

    def criterion(self) -> Criterion:
        """Claims: log n has a lower loss than the trained scale, a constant, and roots of logarithms."""
        claims: list[Claim] = []
        for reading, constant in zip(READINGS, self.constants, strict=True):
            place = {"trained": "standard", "reading": reading}
            claims += shape_claims(self.lengths, constant, place, f"distances {reading}")
        return Criterion(tuple(claims))


def _read(
    study: TextMultiples, model: Transformer, texts: Texts, positions: str, n: int, beta: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean negative log-likelihood and accuracy of the masked tokens of each text."""
    scales = [beta / math.sqrt(study.head_dim)] * study.layers
    model.mix = Reading(positions, scales, study.clip, study.attention)
    right, nll = read_texts(model, texts, n)
    return nll.double().mean(-1).cpu().numpy(), right.double().mean(-1).cpu().numpy()
