# SPDX-License-Identifier: BSD-3-Clause
"""T15 in prose: loss by position of a causal language model, trained at one length and read at others."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from attnscale._base.checks import choose, positive_int, shown
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

from .data.corpus import package_of, split_and_encode
from .data.held_out import corpus_facts, held_out_texts, streams_of, texts_by_package
from .data.prose import DOCSTRINGS, prose_files
from .models.attention import Trained
from .models.causal import POSITIONS, SCALES, CausalModel, in_short_windows, row_factor
from .models.transformer import token_loss

#: Ways to read a model: in windows of the training length or an eighth of it; whole texts, as trained or
#: under a law put in; whole texts with clipped distances. "x 1.3" after "windows", or in place of a law, is
#: 1.3 times the trained scale.
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
_READING = re.compile(
    r"(?:(windows)(?: / (8))?|(clipped)? ?(log_n|yarn|root_log)?(?:as trained)?)(?: ?x ([\d.]+))?"
)
_PUT_IN = ("log_n", "yarn")
#: Works of seven different authors or projects, on different subjects.
_PACKAGES = (
    "anarchism",
    "debian-policy",
    "exim4-doc-html",
    "gnu-standards",
    "installation-guide-amd64",
    "mh-book",
    "png-definitive-guide",
)
_SHARPENED = (0.85, 1.15, 1.3, 1.5)  # multiples of the trained scale, in windows: the control for laws
_CONSTANT = 1.3  # multiple for whole texts, compared with laws
_ROTARY = ("rotary", "plain rotary")
_PARTS = 20  # parts of the training; the mean loss of each is stored
_FIRST = 16  # rows of up to 16 keys are the first group; each later group doubles that


@dataclass(frozen=True)
class CausalLength(Trained, Study):
    """Loss of a causal language model beyond its training length, and its reduction by a law (T15).

    A causal transformer without positions, with ALiBi or with rotary positions, or a usual one with rotary
    positions, learns the next token of English prose at 256 tokens under 1/sqrt(d), log n or SSMax. It is
    read at 4096: as trained, with log n or YaRN's temperature put in, with clipped distances, and in windows
    of 256 tokens. In a causal row of i keys the law has n = i. Every reading has the same tokens, so a higher
    loss on whole texts than in windows comes from the length alone; without positions, from the number of
    keys.

    ``CausalLength.by_package()`` is the run "packages": whole packages are held out, and models have no
    positions.

    Variables: nll and entropy by reading and number of keys, late (the nll of the second half of
    the texts), slope, loss.

    Attributes
    ----------
    corpus : str
        A folder with English prose in files of text or HTML, such as unpacked packages of Debian, or
        "docstrings" for those of Python's library.
    layers, width, heads, vocabulary : int
        Sizes of the model, which is normalised before each part.
    positions : tuple of {"none", "alibi", "rotary", "plain rotary"}
        The last is an ordinary transformer; all others have a short convolution and smeared keys.
    trained : tuple of {"standard", "log_n", "ssmax", "root_log"}
        Scales of the training: 1/sqrt(d); log n over the log of the training length; s log n, s learned;
        sqrt(1 + ln n) over that of the training length.
    train_length, batch, steps : int
        Tokens of a text, texts of a step, steps.
    learning_rate : float
    length : int
        Tokens at which a model is read: ``train_length`` times a power of two.
    windows : int
        Number of texts that are read, the same under every law.
    clip : int
        Largest distance if distances are clipped.
    shared : int
        Texts that are read share no run of this many tokens with a training file or another held-out file.
    packages : tuple of str
        Packages, folders of ``usr/share/doc`` or ``usr/share``, that are held out whole, in place of every
        tenth file; the same number of texts is read from each.
    readings : tuple of str
        Ways to read a model.
    attention, device, dtype
        See ``Trained`` in models/attention.py.
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
    trained: tuple[str, ...] = ("standard", "log_n", "ssmax")
    train_length: int = 256
    batch: int = 4
    steps: int = 2500
    learning_rate: float = 4e-3
    length: int = 4096
    windows: int = 32
    clip: int = 128
    shared: int = 32
    packages: tuple[str, ...] = ()
    readings: tuple[str, ...] = READINGS

    cluster = staticmethod(package_of)

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
        for reading in self.readings:
            _parts(reading)
        if self.packages and self.windows % len(self.packages):
            raise ValueError(
                f"windows must be a multiple of {len(self.packages)} packages, got {self.windows}"
            )
        super().__post_init__()

    @classmethod
    def by_package(cls) -> CausalLength:
        """The run "packages": 35 texts of seven held-out packages, without positions."""
        sharpened = tuple(f"windows x {each:g}" for each in _SHARPENED)
        return cls(
            positions=("none",),
            trained=("standard", "log_n", "root_log"),
            windows=35,
            packages=_PACKAGES,
            readings=("windows", *sharpened, "as trained", "log_n", "root_log", f"x {_CONSTANT:g}"),
        )

    @classmethod
    def reduced(cls) -> CausalLength:
        """A small run for tests, of some seconds; it needs no corpus."""
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
        """Axes of the models: positions, and scale in training."""
        return {"positions": self.positions, "trained": self.trained}

    def variables(self) -> dict[str, Variable]:
        """Variables measured for each model, by reading and number of keys."""
        reading, groups = {"reading": self.readings}, {"n": self.groups}
        text = {"text": tuple(range(self.windows))}
        heads = {"layer": tuple(range(self.layers)), "head": tuple(range(self.heads))}
        rows = "the rows with more than half of n keys, and up to n"
        package = "place of the text's package among packages, which are the clusters"
        return {
            "nll": Variable({**reading, **groups}, "nat", f"loss of a token of held-out files, over {rows}"),
            "late": Variable(reading, "nat", "the same of the second half of a text"),
            "late_by_text": Variable({**reading, **text}, "nat", "late of each text"),
            "text_file": Variable(text, "", "place of the text's file among the names of the held-out files"),
            **({"text_cluster": Variable(text, "", package)} if self.packages else {}),
            "entropy": Variable({**reading, **groups}, "nat", f"mean over heads and layers, over {rows}"),
            "slope": Variable(heads, "", "SSMax's s times the log of the training length"),
            "loss": training_loss(ends_of_parts(self.steps, _PARTS)),
        }

    def measure(self, cell: dict[str, Any], seed: int, training: Training) -> dict[str, NDArray[np.float64]]:
        """Train one model, and read long texts in every way."""
        streams = training.cached("prose", partial(_streams, self))
        training.note(**corpus_facts(streams))
        clusters = None
        if self.packages:
            each = self.windows // len(self.packages)
            held_out, clusters = texts_by_package(streams, self.length + 1, self.packages, each)
        else:
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
        found = _read(self, cell, model.eval(), torch.from_numpy(held_out.tokens).to(training.device))
        found["loss"][:] = history.mean_losses(_PARTS)
        found["text_file"][:] = held_out.files
        if clusters is not None:
            found["text_cluster"][:] = clusters
        return found

    def criterion(self) -> Criterion:
        """Claims on dilution, positions and laws, judged by the loss in the second half of long texts."""
        if self.packages:
            return Criterion(_of_packages())
        return Criterion((*_of_length(), *_of_laws(), *_of_clipping()))


def _streams(study: CausalLength) -> dict[str, NDArray[Any]]:
    corpus = split_and_encode(prose_files(study.corpus), study.vocabulary, study.packages)
    return streams_of(corpus, study.shared)


def _read(
    study: CausalLength, cell: dict[str, Any], model: CausalModel, tokens: Tensor
) -> dict[str, NDArray[np.float64]]:
    """Measurements of a trained model; NaN where a reading does not apply."""
    found = {name: np.full(each.shape, np.nan) for name, each in study.variables().items()}
    if cell["trained"] == "ssmax":
        found["slope"][:] = (model.slopes.detach() * np.log(study.train_length)).cpu().numpy()
    starts = (0, *study.groups[:-1])
    for i, reading in enumerate(study.readings):
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
    """Whether a reading applies: clipping to rotary positions, laws to models trained without one."""
    _, clipped, law, _ = _parts(reading)
    return (not clipped or "rotary" in cell["positions"]) and (not law or cell["trained"] == "standard")


def _parts(reading: str) -> tuple[int, bool, str, float]:
    """Parts of a reading: divisor of the training length, clipping, law, multiple.

    The divisor is 0 for whole texts, the law "" if none is put in, the multiple that of the trained scale.
    """
    found = _READING.fullmatch(reading)
    if found is None:
        raise ValueError(f"readings must be like those of READINGS, or 'windows x 1.3', got {shown(reading)}")
    windows, part, clipped, law, multiple = found.groups()
    return int(part or 1) if windows else 0, bool(clipped), law or "", float(multiple or 1)


def _read_text(
    study: CausalLength, model: CausalModel, reading: str, text: Tensor
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Loss of each token of one text, and the mean entropy of its row."""
    found: tuple[Tensor, Tensor]
    part, clipped, law, multiple = _parts(reading)
    if part:
        found = in_short_windows(model, text, study.train_length // part, multiple)
    else:
        head_dim = study.width // study.heads
        factor = row_factor(law, study.length, study.train_length, head_dim) if law else None
        factor = np.full(study.length, multiple) if multiple != 1 else factor
        clip = study.clip if clipped else None
        losses, entropies = model.losses(text[None], factor=factor, clip=clip)
        found = losses[0], entropies[0]
    losses, entropies = (each.double().cpu().numpy() for each in found)
    return losses, entropies


def _of_length() -> tuple[Claim, ...]:
    """Claims without a law: the context that models use, and their loss on whole texts."""
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
    """Claims on laws in models without positions: put in afterwards, or used in training."""
    put_in = tuple(_late(f"1/sqrt(d) less {law}, none", ("as trained", law), "none") for law in _PUT_IN)
    place = {"positions": "none", "reading": "as trained"}
    trained = tuple(
        difference(f"trained under 1/sqrt(d) less {law}, none", "late", {"trained": ("standard", law)}, place)
        for law in ("log_n", "ssmax")
    )
    return (
        Claim("put into a model without positions, a law lowers the loss", put_in, needs="any"),
        Claim(
            "trained under log n or SSMax, a model without positions has the lower loss", trained, needs="any"
        ),
    )


def _of_clipping() -> tuple[Claim, ...]:
    """Claims on clipped distances in models with rotary positions, with and without a law."""
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


def _of_packages() -> tuple[Claim, ...]:
    """Claims on laws without positions, against any sharper scale in windows."""

    def trained(law: str, reading: str) -> Contrast:
        place = {"positions": "none", "reading": reading}
        name = f"trained under 1/sqrt(d) less {law}, {reading}"
        return difference(name, "late", {"trained": ("standard", law)}, place)

    whole, windows = (trained("log_n", each) for each in ("as trained", "windows"))
    put_in = _late("1/sqrt(d) less log n put in", ("as trained", "log_n"), "none")
    constant = f"x {_CONSTANT:g}"
    sharper = tuple(
        put_in.less(
            _late("", ("windows", f"windows x {each:g}"), "none"),
            f"{put_in.name}, less what x {each:g} gives in windows",
        )
        for each in _SHARPENED
        if each > 1
    )
    return (
        Claim("trained under log n, whole texts of unseen packages have a lower loss", (whole,)),
        Claim(
            "it is more than windows of the training length gain",
            (whole.less(windows, "the first less the same in windows"),),
        ),
        Claim("trained under sqrt(1 + ln n), they have a lower loss", (trained("root_log", "as trained"),)),
        Claim("log n put in lowers the loss", (put_in,)),
        Claim(
            "log n put in lowers it more than one constant does",
            (_late(f"{constant} less log n put in", (constant, "log_n"), "none"),),
        ),
        Claim("log n put in gives more on whole texts than any sharper scale in windows", sharper),
        Claim(
            "without positions the loss rises beyond the training length",
            (_late("whole texts less windows", ("as trained", "windows"), "none"),),
        ),
    )


def _late(name: str, readings: tuple[str, str], positions: str) -> Contrast:
    """Loss late in a text in the first reading less that in the second, for a model under 1/sqrt(d)."""
    return difference(name, "late", {"reading": readings}, {"positions": positions, "trained": "standard"})
