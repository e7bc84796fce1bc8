# SPDX-License-Identifier: BSD-3-Clause
"""T15 in prose: a causal language model, trained at one length and read at others; the loss by position."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from attnscale._checks import choose, positive_int, shown
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

from .data.corpus import split_and_encode
from .data.held_out import HeldOut, corpus_facts, held_out_texts, streams_of
from .data.prose import DOCSTRINGS, prose_files
from .models.attention import Trained
from .models.causal import POSITIONS, SCALES, CausalModel, in_short_windows, row_factor
from .models.transformer import token_loss

if TYPE_CHECKING:
    pass


#: Ways to read a model: in windows of the training length or an eighth of it; whole texts, as it was trained
#: or under a law that is put in; the same with clipped distances.
READINGS = (
    "windows / 8",
    "windows",
    "as trained",
    "log_n",
    "yarn",
    "clipped",
    "clipped log_n",
    "clipped yarn",
)
_PUT_IN = ("log_n", "yarn")
_ROTARY = ("rotary", "plain rotary")
_PARTS = 20  # of the training; the mean loss of each is kept
_FIRST = 16  # rows of up to so many keys are one group; the groups after it double
_WINDOWS = {"windows": 1, "windows / 8": 8}  # by what the training length is divided


@dataclass(frozen=True)
class CausalLength(Trained, Study):
    """What a causal language model loses beyond its training length, and what a law gives back (T15).

    A causal transformer without positions, with ALiBi or with rotary positions, or a usual one with rotary
    positions, learns the next token of English prose at 256 tokens under 1/sqrt(d), log n or SSMax. It is
    read at 4096: as it was trained, with log n or YaRN's temperature put in, with clipped distances, and in
    windows of 256 tokens. A query in a causal row of i keys has the law of n = i. The same tokens are read in
    every way, so what a model loses on whole texts and not in windows comes from the length alone: without
    positions from the number of keys.

    Variables: nll and entropy by reading and number of keys, late (the nll of the second half of
    the texts), slope, loss.

    Attributes
    ----------
    corpus : str
        A folder with English prose in files of text or HTML, such as unpacked packages of Debian, or
        "docstrings": those of Python's library.
    layers, width, heads, vocabulary : int
        Sizes of the model, which is normalised before each part.
    positions : tuple of {"none", "alibi", "rotary", "plain rotary"}
        The last is a usual transformer; all others have a short convolution and smeared keys.
    trained : tuple of {"standard", "log_n", "ssmax"}
        Scales of the training: 1/sqrt(d); log n over the log of the training length; s log n, s learned.
    train_length, batch, steps : int
        Tokens of a text, texts of a step, steps.
    learning_rate : float
    length : int
        Tokens at which a model is read: ``train_length`` times a power of two.
    windows : int
        Texts that are read, the same under every law.
    clip : int
        Largest distance where distances are clipped.
    shared : int
        A run of so many tokens that stands in a file of the training too, or in another held-out file, is
        part of no text that is read.
    attention, device, dtype
        As of ``Trained`` in models/attention.py.
    """

    claim = "T15"
    question = (
        "how much of what a causal language model loses beyond its training length is dilution, how much is "
        "positions, and does a law that grows with n help?"
    )

    corpus: str = "prose"
    layers: int = 2
    width: int = 64
    heads: int = 4
    vocabulary: int = 512
    positions: tuple[str, ...] = POSITIONS
    trained: tuple[str, ...] = SCALES
    train_length: int = 256
    batch: int = 4
    steps: int = 2500
    learning_rate: float = 4e-3
    length: int = 4096
    windows: int = 32
    clip: int = 128
    shared: int = 32

    def __post_init__(self) -> None:
        for name in ("layers", "width", "heads", "batch", "steps", "windows", "clip", "shared"):
            positive_int(name, getattr(self, name))
        for name, known in (("positions", POSITIONS), ("trained", SCALES)):
            for value in getattr(self, name):
                choose(name, value, known)
        if self.width % (2 * self.heads):
            raise ValueError(f"width must be a multiple of 2 * heads, got {self.width} and {self.heads}")
        if self.train_length < 4 * _FIRST or self.train_length & (self.train_length - 1):
            raise ValueError(
                f"train_length must be a power of two from {4 * _FIRST} on, got {self.train_length}"
            )
        if self.length <= self.train_length or self.length & (self.length - 1):
            raise ValueError(
                f"length must be train_length={self.train_length} times a power of two, "
                f"got {shown(self.length)}"
            )
        super().__post_init__()

    @classmethod
    def reduced(cls) -> CausalLength:
        """The cells that tests run again, in some seconds; it needs no corpus."""
        return cls(
            corpus=DOCSTRINGS,
            width=32,
            heads=2,
            vocabulary=400,
            train_length=64,
            batch=8,
            steps=100,
            length=256,
            windows=8,
            clip=32,
        )

    @property
    def groups(self) -> tuple[int, ...]:
        """The largest number of keys of each group of rows: 16, 32, ... up to the length."""
        return tuple(_FIRST << i for i in range((self.length // _FIRST).bit_length()))

    def cells(self) -> dict[str, tuple[Any, ...]]:
        """Axes of the models: positions, and scale of the training."""
        return {"positions": self.positions, "trained": self.trained}

    def variables(self) -> dict[str, Variable]:
        """The variables that are measured of each model, by way of reading and number of keys."""
        reading, groups = {"reading": READINGS}, {"n": self.groups}
        text = {"text": tuple(range(self.windows))}
        heads = {"layer": tuple(range(self.layers)), "head": tuple(range(self.heads))}
        rows = "the rows with more than half of n keys, and up to n"
        return {
            "nll": Variable({**reading, **groups}, "nat", f"loss of a token of held-out files, over {rows}"),
            "late": Variable(reading, "nat", "the same of the second half of a text"),
            "late_by_text": Variable({**reading, **text}, "nat", "late of each text"),
            "text_file": Variable(text, "", "place of the text's file among the names of the held-out files"),
            "entropy": Variable({**reading, **groups}, "nat", f"mean over heads and layers, over {rows}"),
            "slope": Variable(heads, "", "SSMax's s times the log of the training length"),
            "loss": training_loss(ends_of_parts(self.steps, _PARTS)),
        }

    def measure(self, cell: dict[str, Any], seed: int, training: Training) -> dict[str, NDArray[np.float64]]:
        """Train one model, and read long texts in every way."""
        streams = training.cached("prose", partial(_streams, self))
        training.note(**corpus_facts(streams))
        held_out = held_out_texts(streams, self.length + 1, self.windows)
        vocabulary = int(max(streams["train"].max(), streams["held_out"].max())) + 1
        sizes = (vocabulary, self.layers, self.width, self.heads)
        kind = {"train_length": self.train_length, "implementation": self.attention, **cell}
        with training.fork("weights"):
            model = CausalModel(*sizes, **kind).to(training.device)
        stream = torch.from_numpy(streams["train"])

        def loss(step: int) -> Tensor:
            generator = training.generator("batches")
            starts = torch.randint(len(stream) - self.train_length, (self.batch, 1), generator=generator)
            texts = stream[starts + torch.arange(self.train_length + 1)].long().to(training.device)
            return token_loss(model(texts[:, :-1]), texts[:, 1:])

        warmup = min(100, self.steps // 10)
        history = training.fit(model, loss, steps=self.steps, learning_rate=self.learning_rate, warmup=warmup)
        found = _read(self, cell, model.eval(), held_out, training.device)
        found["loss"][:] = history.mean_losses(_PARTS)
        return found

    def criterion(self) -> Criterion:
        """What dilution, positions and laws do to the loss in the second half of long texts."""
        return Criterion((*_of_length(), *_of_laws(), *_of_clipping()))


def _streams(study: CausalLength) -> dict[str, NDArray[Any]]:
    return streams_of(split_and_encode(prose_files(study.corpus), study.vocabulary), study.shared)


def _read(
    study: CausalLength, cell: dict[str, Any], model: CausalModel, texts: HeldOut, device: torch.device
) -> dict[str, NDArray[np.float64]]:
    """All measurements of a model but those of its training; NaN where there is no such reading."""
    found = {name: np.full(each.shape, np.nan) for name, each in study.variables().items()}
    found["text_file"][:] = texts.files
    if cell["trained"] == "ssmax":
        found["slope"][:] = (model.slopes.detach() * np.log(study.train_length)).cpu().numpy()
    starts = (0, *study.groups[:-1])
    tokens = torch.from_numpy(texts.tokens).to(device)
    for i, reading in enumerate(READINGS):
        if not _applies(reading, cell):
            continue
        parts = [_read_text(study, model, reading, text) for text in tokens]
        losses, entropies = (np.stack(each) for each in zip(*parts, strict=True))
        for name, rows in (("nll", losses), ("entropy", entropies)):
            found[name][i] = [rows[:, a:b].mean() for a, b in zip(starts, study.groups, strict=True)]
        found["late_by_text"][i] = losses[:, starts[-1] :].mean(1)
    found["late"][:] = found["late_by_text"].mean(-1)
    return found


def _applies(reading: str, cell: dict[str, Any]) -> bool:
    """Only rotary distances can be clipped, and a law is put into models that were trained without one."""
    clipped, law = _parts(reading)
    return (not clipped or "rotary" in cell["positions"]) and (not law or cell["trained"] == "standard")


def _parts(reading: str) -> tuple[bool, str]:
    """Whether distances are clipped, and the law that is put in."""
    law = reading.removeprefix("clipped").strip()
    return reading.startswith("clipped"), law if law in _PUT_IN else ""


def _read_text(
    study: CausalLength, model: CausalModel, reading: str, text: Tensor
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The loss of each token of one text, and the mean entropy of its row."""
    found: tuple[Tensor, Tensor]
    if reading in _WINDOWS:
        found = in_short_windows(model, text, study.train_length // _WINDOWS[reading])
    else:
        clipped, law = _parts(reading)
        head_dim = study.width // study.heads
        factor = row_factor(law, study.length, study.train_length, head_dim) if law else None
        clip = study.clip if clipped else None
        losses, entropies = model.losses(text[None], factor=factor, clip=clip)
        found = losses[0], entropies[0]
    losses, entropies = (each.double().cpu().numpy() for each in found)
    return losses, entropies


def _of_length() -> tuple[Claim, ...]:
    """What models use, and what they lose on whole texts, both without any law."""
    used = ("windows / 8", "windows")
    uses = tuple(_late(f"an eighth of a window less a window, {each}", used, each) for each in POSITIONS)
    none, *rotary = (
        _late(f"whole texts less windows, {each}", ("as trained", "windows"), each)
        for each in ("none", *_ROTARY)
    )
    more = tuple(each.less(none, f"{each.name} less none") for each in rotary)
    alibi = _late("windows less whole texts, alibi", ("windows", "as trained"), "alibi")
    return (
        Claim("models use more than an eighth of the context that they are trained with", uses),
        Claim("without positions the loss rises beyond the training length", (none,)),
        Claim("with rotary positions it rises more", more),
        Claim("with ALiBi it rises by less than 0.02 nats", (replace(alibi, least=-0.02),)),
    )


def _of_laws() -> tuple[Claim, ...]:
    """What laws give a model without positions: put into it, or trained with it."""
    put_in = tuple(_late(f"1/sqrt(d) less {law}, none", ("as trained", law), "none") for law in _PUT_IN)
    place = {"positions": "none", "reading": "as trained"}
    trained = tuple(
        difference(f"trained under 1/sqrt(d) less {law}, none", "late", {"trained": (SCALES[0], law)}, place)
        for law in SCALES[1:]
    )
    return (
        Claim("put into a model without positions, a law lowers the loss", put_in, needs="any"),
        Claim(
            "trained under log n or SSMax, a model without positions has the lower loss", trained, needs="any"
        ),
    )


def _of_clipping() -> tuple[Claim, ...]:
    """What clipped distances give a model with rotary positions, and a law beside them."""
    places = [(positions, law) for positions in _ROTARY for law in _PUT_IN]
    more = tuple(_late(f"{law} less clipped, {each}", (law, "clipped"), each) for each, law in places)
    both = tuple(
        _late(f"1/sqrt(d) less {law}, {each} clipped", ("clipped", f"clipped {law}"), each)
        for each, law in places
    )
    return (
        Claim("with rotary positions, clipped distances gain more than any law", more),
        Claim("where distances are clipped, a law still lowers the loss", both, needs="any"),
    )


def _late(name: str, readings: tuple[str, str], positions: str) -> Contrast:
    """The loss late in a text in the first reading less that in the second, of a model under 1/sqrt(d)."""
    return difference(name, "late", {"reading": readings}, {"positions": positions, "trained": "standard"})
