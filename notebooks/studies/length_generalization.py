# SPDX-License-Identifier: BSD-3-Clause
"""T15: a masked language model, trained at one length and read at others under every law."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from attnscale import laws
from attnscale._base.checks import choose, positive_int, shown
from attnscale.experiments import (
    Claim,
    Criterion,
    Study,
    Training,
    Variable,
    difference,
    ends_of_parts,
    training_loss,
)
from numpy.typing import NDArray

from .data.corpus import package_of
from .data.held_out import corpus_facts, corpus_streams, held_out_texts, other_texts
from .models.at_lengths import BY_HEAD, READINGS, read_at_lengths
from .models.attention import Trained
from .models.masked import masked_texts, train_masked
from .models.readings import LAWS

#: The scales that models are trained under, by the article's names: 1/sqrt(d), and log_512(n)/sqrt(d).
_TRAINED = {"O": "standard", "E": "log_n(base=512)"}
_PARTS = 50  # parts of the training; the mean loss of each is stored


@dataclass(frozen=True)
class LengthGeneralization(Trained, Study):
    """Does a scale that grows with log n make a masked language model read longer texts? (T15)

    A small transformer learns to fill in masked tokens of the standard library's source at 64 tokens, and is
    read at up to 1024 under every law that is 1 at 64, with unchanged or clipped distances of its rotary
    positions. All models, laws and lengths see the same masked tokens of held-out files.
    ``LengthGeneralization.paired()`` is a smaller design for many seeds.

    Variables: accuracy, nll, their paired differences to the standard scale, entropy, beta of each head.

    Attributes
    ----------
    layers, width, heads, vocabulary : int
        Sizes of the model, which is normalised before each part.
    positions : tuple of {"rotary", "none"}
    trained : tuple of {"O", "E"}
        Scales of the training: 1/sqrt(d), log_512(n)/sqrt(d).
    train_length, batch, steps, masked : int
        Sizes of the training; `masked` tokens of each row are replaced by a mask.
    learning_rate : float
    lengths : tuple of int
        Lengths at which a model is read: multiples of ``train_length``, which is the first.
    laws : tuple of str
        Laws under which a model is read, "standard" first; "calibrated" is a scale for each head that keeps
        its entropy, and stores the scales and entropies of all heads.
    windows : int
        Number of texts of the largest length; every length reads the same masked tokens. The library of
        Python 3.11 has 149 texts of 1024 tokens.
    clip : int
        Largest distance if distances are clipped.
    calibration_windows : int
        Number of further texts, used only to measure the heads' scales.
    shared : int
        Texts that are read share no run of this many tokens with a training file or another held-out file.
    most_bytes : int or None
        Bytes of the source to use; None for all.
    within : float
        An accuracy. If above 0, the criterion is judged only at 4 times the training length: E less O, and
        whether E and the law put into O differ by less than this.
    attention, device, dtype
        See ``Trained`` in models/attention.py.
    """

    claim = "T15"
    question = "does a scale that grows with log n make a masked language model read longer texts?"

    layers: int = 3
    width: int = 128
    heads: int = 4
    vocabulary: int = 2000
    positions: tuple[str, ...] = ("rotary", "none")
    trained: tuple[str, ...] = ("O", "E")
    train_length: int = 64
    batch: int = 32
    steps: int = 2400
    masked: int = 10
    learning_rate: float = 1e-3
    lengths: tuple[int, ...] = (64, 128, 256, 512, 1024)
    laws: tuple[str, ...] = tuple(LAWS)
    windows: int = 48
    clip: int = 48
    calibration_windows: int = 4
    shared: int = 32
    most_bytes: int | None = None
    within: float = 0.0

    cluster = staticmethod(package_of)

    def __post_init__(self) -> None:
        for name in (
            "layers",
            "width",
            "heads",
            "train_length",
            "batch",
            "steps",
            "masked",
            "windows",
            "calibration_windows",
            "clip",
            "shared",
        ):
            positive_int(name, getattr(self, name))
        for name, known in (
            ("positions", ("rotary", "none")),
            ("trained", tuple(_TRAINED)),
            ("laws", tuple(LAWS)),
        ):
            for value in getattr(self, name):
                choose(name, value, known)
        if self.width % (2 * self.heads):
            raise ValueError(f"width must be a multiple of 2 * heads, got {self.width} and {self.heads}")
        if self.lengths[0] != self.train_length or any(n % self.train_length for n in self.lengths):
            raise ValueError(
                f"lengths must be multiples of train_length={self.train_length}, that the first, "
                f"got {shown(self.lengths)}"
            )
        if self.laws[:1] != ("standard",):
            raise ValueError(f"laws must begin with 'standard', got {shown(self.laws)}")
        super().__post_init__()

    @classmethod
    def paired(cls) -> LengthGeneralization:
        """The run "paired": E against O, small enough to train many seeds on a CPU."""
        return cls(
            layers=2,
            width=64,
            heads=2,
            vocabulary=1000,
            positions=("rotary",),
            batch=32,
            steps=2500,
            learning_rate=3e-3,
            lengths=(64, 128, 256, 512),
            laws=("standard", "log_n"),
            windows=48,
        )

    @classmethod
    def primary(cls) -> LengthGeneralization:
        """The run "primary": one contrast of E and O, and E against the law put in, on new seeds."""
        return replace(cls.paired(), lengths=(64, 256), windows=192, within=0.02)

    @classmethod
    def reduced(cls) -> LengthGeneralization:
        """A small run for tests, of some seconds."""
        return cls(
            layers=2,
            width=64,
            heads=2,
            vocabulary=600,
            positions=("rotary",),
            steps=200,
            learning_rate=3e-3,
            lengths=(64, 256, 512),
            windows=16,
            calibration_windows=2,
            most_bytes=1_000_000,
        )

    @property
    def head_dim(self) -> int:
        """Number of components of q and k."""
        return self.width // self.heads

    def cells(self) -> dict[str, tuple[Any, ...]]:
        """Axes of the models: positions, and scale in training."""
        return {"positions": self.positions, "trained": self.trained}

    def variables(self) -> dict[str, Variable]:
        """Variables measured for each model, by reading, law and length."""
        table = {"reading": READINGS, "law": self.laws, "n": self.lengths}
        layer, head = tuple(range(self.layers)), tuple(range(self.heads))
        over = "mean over the texts, less that under the standard scale"
        error = "its standard error over the files of the texts"
        text = {"text": tuple(range(self.windows))}
        of_heads = {
            "head_entropy": Variable(
                {"head_law": BY_HEAD, "n": self.lengths, "layer": layer, "head": head},
                "nat",
                "the same of each head, as trained",
            ),
            "beta": Variable(
                {"reading": READINGS, "n": self.lengths, "layer": layer, "head": head},
                "",
                "multiple of the trained scale that keeps the head's entropy",
            ),
        }
        return {
            "accuracy": Variable(table, "", "share of the masked tokens that are the model's first choice"),
            "nll": Variable(table, "nat", "negative log-likelihood of a masked token"),
            "accuracy_gain": Variable(table, "", f"accuracy, {over}"),
            "accuracy_gain_error": Variable(table, "", error),
            "nll_gain": Variable(table, "nat", f"nll, {over}"),
            "nll_gain_error": Variable(table, "nat", error),
            "accuracy_by_text": Variable({**table, **text}, "", "accuracy of each text"),
            "nll_by_text": Variable({**table, **text}, "nat", "nll of each text"),
            "text_file": Variable(text, "", "place of the text's file among the names of the held-out files"),
            "entropy": Variable({**table, "layer": layer}, "nat", "mean entropy of the rows"),
            **(of_heads if "calibrated" in self.laws else {}),
            "loss": training_loss(ends_of_parts(self.steps, _PARTS)),
        }

    def measure(self, cell: dict[str, Any], seed: int, training: Training) -> dict[str, NDArray[np.float64]]:
        """Train one model, and read it at every length under every law."""
        streams = training.cached(
            "source", lambda: corpus_streams(self.vocabulary, self.most_bytes, self.shared)
        )
        training.note(**corpus_facts(streams))
        place = (streams, self.lengths[-1], self.windows)
        held_out = held_out_texts(*place)
        texts = masked_texts(self, held_out.tokens, training.device)
        apart = None
        if "calibrated" in self.laws:
            others = other_texts(*place, self.calibration_windows)
            apart = masked_texts(self, others.tokens, training.device).tokens
        law, positions = _TRAINED[cell["trained"]], cell["positions"]
        # After the choice of texts, which may raise.
        model, history = train_masked(self, streams, training, law=law, positions=positions)
        own = self.variables()
        found = {name: np.full(each.shape, np.nan) for name, each in own.items()}
        base = float(laws.get(law).multiplier(self.train_length, self.head_dim))
        read = (self, model.eval(), texts, held_out.files, found)
        read_at_lengths(*read, base=base, positions=positions, apart=apart)
        found["loss"][:] = history.mean_losses(_PARTS)
        return found

    def criterion(self) -> Criterion:
        """Claims at 4 and 8 times the training length: the article's E less O, and the law on O's weights."""
        place = {"positions": "rotary", "reading": "as trained"}
        if self.within:
            return self._of_one_length(place | {"n": 4 * self.train_length})
        laws = {"law": ("log_n", "standard")}
        lengths = [4 * self.train_length, 8 * self.train_length]
        articles = tuple(
            difference(f"E less O at {n}", "accuracy", {"trained": ("E", "O"), **laws}, {"n": n, **place})
            for n in lengths
        )
        weights = tuple(
            difference(
                f"log n less 1/sqrt(d) on O at {n}", "accuracy", laws, {"trained": "O", "n": n, **place}
            )
            for n in lengths
        )
        return Criterion(
            (
                Claim("a model trained under log n reads longer texts better", articles),
                Claim("put into a trained model, log n makes it read longer texts better", weights),
            )
        )

    def _of_one_length(self, place: dict[str, Any]) -> Criterion:
        """Claims at one length: E less O, and equivalence of E and the law put into O within a margin."""
        laws, trained = {"law": ("log_n", "standard")}, {"trained": ("E", "O")}
        there = {"law": "log_n", **place}
        first = difference("E less O", "accuracy", {**trained, **laws}, place)
        above = difference("E less log n put into O", "accuracy", trained, there, least=-self.within)
        back = {"trained": ("O", "E")}
        below = difference("log n put into O less E", "accuracy", back, there, least=-self.within)
        return Criterion(
            (
                Claim("a model trained under log n reads longer texts better", (first,)),
                Claim(
                    f"training under log n and putting it in differ by less than {self.within:g}",
                    (above, below),
                ),
            )
        )
