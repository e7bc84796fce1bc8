# SPDX-License-Identifier: BSD-3-Clause
"""A12, trained: one row answers for a needle and an average, by heads with one scale or with two."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from attnscale import theory
from attnscale._base.checks import choose, positive_int, shown
from attnscale.experiments import Claim, Contrast, Criterion, Study, Training, Variable, difference
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from .data.tasks import CODE, LABELS, Mixture, mixture
from .models.attention import Trained
from .models.two_scales import TwoScales

#: Laws under which one head is trained.
_ONE = ("standard", "sharp", "log_n", "natural_log_n", "ssmax")
_VARIANTS = (
    *(f"one: {law}" for law in _ONE),
    *(f"shared: {law}" for law in ("pair", "learned")),
    *(f"two: {law}" for law in ("standard", "sharp", "log_n", "ssmax", "pair", "split")),
)
_PAIR = "shared: pair"
_ANSWERED = ("one: standard", "one: log_n", "one: natural_log_n", _PAIR)
_PARTS = ("needle", "majority", "both")
_HEADS = ("sharper", "flatter")
_AT_ONCE = 2**17  # most tokens read at once
_SPARE = 1024  # new tokens, for the mean and variance of a row's scores


@dataclass(frozen=True)
class TwoHeads(Trained, Study):
    """Asked for a needle and a majority at once, do two scales answer where no law of one head does? (A12)

    One query reads a set of tokens and gives two answers: the label of the one token whose code it is, and
    whether more tokens have the bit 1 than 0. Models with one scale or with two are trained with up to 16
    tokens and read with up to 1024.

    In ``TwoHeads.answered()`` codes are longer, training rows shorter, and the answer has hidden units, so
    that one head answers both at the training length. Its accuracy in long rows then depends on its law.

    Variables: accuracy and nll of each part, and the accuracy kept in the longest rows; entropy, weight,
    excess, others_excess, beta, gap, weight_bound, excess_bound and factor of each head, the one with more
    weight on the needle first.

    Attributes
    ----------
    variants : tuple of str
        Heads and their law, in training and after it. "one: LAW" is one head. "two: LAW" are two heads of
        half the width, with their own queries and keys. "shared: LAW" are two heads with the queries and
        keys, and so the number of weights, of one head: their scores differ only by the scale. LAW is
        "standard", "log_n", "natural_log_n", "sharp" (``sharp`` times the standard scale), "pair" (``sharp``
        times it in the first head and ``flat`` times in the second), "split" (log n in the first head,
        standard in the second), or a factor that each head learns: "learned" times the standard scale,
        "ssmax" times log n.
    train_length, batch, steps : int
        Largest length, rows of a step, and steps; the rows of a step have one length, from 2 to
        ``train_length``.
    width : int
    code : int
        Components of a token's code: longer random codes are nearer to orthogonal.
    hidden : int
        Hidden units of the answer; with 0 it is linear.
    sharp, flat : float
        Scales of a pair, as multiples of the standard scale.
    learning_rate : float
    lengths : tuple of int
        Lengths at which a model is read.
    tests : int
        Rows that are read at each length.
    attention, device, dtype
        See ``Trained`` in models/attention.py.
    """

    claim = "A12"
    question = (
        "asked for a needle and a majority at once, do two scales answer where no law of one head does?"
    )

    variants: tuple[str, ...] = _VARIANTS
    train_length: int = 16
    batch: int = 64
    steps: int = 1200
    width: int = 64
    code: int = CODE
    hidden: int = 0
    sharp: float = 5.0
    flat: float = 0.2
    learning_rate: float = 5e-3
    lengths: tuple[int, ...] = (16, 64, 256, 1024)
    tests: int = 400

    def __post_init__(self) -> None:
        for name in ("train_length", "batch", "steps", "width", "code", "tests"):
            positive_int(name, getattr(self, name))
        if self.hidden:
            positive_int("hidden", self.hidden)
        for variant in self.variants:
            choose("variants", variant, _VARIANTS)
        if self.width % 2:
            raise ValueError(f"width must be even, as two heads share it, got {self.width}")
        if self.train_length < 2 or min(self.lengths) < 3:
            raise ValueError(
                f"train_length must be at least 2 and lengths at least 3, got {self.train_length} and "
                f"{shown(self.lengths)}"
            )
        super().__post_init__()

    @classmethod
    def answered(cls) -> TwoHeads:
        """The run "answered": one head is also right at the training length; read at 64 times that length."""
        return cls(
            variants=_ANSWERED,
            train_length=6,
            batch=128,
            steps=10_000,
            width=128,
            code=128,
            hidden=256,
            lengths=(6, 24, 96, 384),
            tests=1000,
        )

    @classmethod
    def reduced(cls) -> TwoHeads:
        """A small run for tests, of some seconds."""
        return cls(variants=("one: log_n", "shared: pair"), steps=400, lengths=(16, 1024))

    def cells(self) -> dict[str, tuple[Any, ...]]:
        """The axis of the models: heads and their law."""
        return {"variant": self.variants}

    def variables(self) -> dict[str, Variable]:
        """Variables measured for each model at each length, and for each of its heads."""
        of_rows = {"n": self.lengths, "part": _PARTS}
        of_heads = {"n": self.lengths, "head": _HEADS}
        return {
            "accuracy": Variable(
                of_rows, "", "share of the rows whose needle, majority, or both are answered"
            ),
            "kept": Variable({"part": _PARTS}, "", "accuracy at the last length, over that at the first"),
            "nll": Variable({**of_rows, "part": _PARTS[:2]}, "nat", "negative log-likelihood of the answer"),
            "entropy": Variable(of_heads, "nat", "entropy of the rows"),
            "weight": Variable(of_heads, "", "weight of the needle, mean over rows"),
            "excess": Variable(
                of_heads, "", "n sum p^2, the error of an average over the best, mean over rows"
            ),
            "others_excess": Variable(
                of_heads, "", "the same among the other keys, as if the needle were hidden"
            ),
            "beta": Variable(of_heads, "", "standard deviation of the scores of a row over new tokens"),
            "gap": Variable(of_heads, "", "score of the needle above their mean, over beta"),
            "weight_bound": Variable(of_heads, "", "needle_weight_bound of each row's gap and beta, mean"),
            "excess_bound": Variable(of_heads, "", "averaging_excess_bound of each row's beta, mean"),
            "factor": Variable({"head": _HEADS}, "", "multiple of its law that a head has at the end"),
        }

    def measure(self, cell: dict[str, Any], seed: int, training: Training) -> dict[str, NDArray[np.float64]]:
        """Train one model, and read it at every length."""
        with training.fork("weights"):
            model = _model(self, cell["variant"])
        model.to(training.device)
        batches = training.generator("batches")

        def loss(step: int) -> Tensor:
            n = int(torch.randint(2, self.train_length + 1, (1,), generator=batches))
            rows = _on(training.device, mixture(self.batch, n, batches, self.code))
            label, most = _nll(model(rows.query[:, None], rows.tokens)[0][:, 0], rows)
            return label + most

        training.fit(model, loss, steps=self.steps, learning_rate=self.learning_rate)
        read = [_test(self, model, n, seed) for n in self.lengths]
        found = {name: np.stack([each[name] for each in read]) for name in read[0]}
        with np.errstate(invalid="ignore", divide="ignore"):  # a model may answer no row correctly
            found["kept"] = found["accuracy"][-1] / found["accuracy"][0]
        found["factor"] = model.factor.detach().cpu().double().numpy()
        heads = len(model.laws)
        order = [*np.argsort(-found["weight"][0]), *range(heads, 2)]  # at the first, short length
        for name, values in found.items():
            if self.variables()[name].dims[-1] == "head":
                filled = np.full((*values.shape[:-1], 2), np.nan)
                filled[..., :heads] = values
                found[name] = filled[..., order]
        return found

    def criterion(self) -> Criterion:
        """Claims at 64 times the training length: the gain of two scales over one, and of separate heads.

        Only models in ``variants`` have claims. With hidden units in the answer these are about the share
        of the accuracy at the training length that is kept.
        """
        if self.hidden:
            return self._of_what_is_kept()
        both = {"n": 64 * self.train_length, "part": "both"}

        def less(model: str, *others: str, least: float = 0.0, **place: Any) -> tuple[Contrast, ...]:
            name = ", majority" if place else ""
            return tuple(
                difference(
                    f"{model} less {other}{name}",
                    "accuracy",
                    {"variant": (model, other)},
                    both | place,
                    least=least,
                )
                for other in others
                if {model, other} <= set(self.variants)
            )

        one = tuple(f"one: {law}" for law in _ONE)
        any_law = (
            "on the same scores two fixed scales answer both better than one under any law that was tried"
        )
        claims = {
            any_law: less("shared: pair", *one),
            "two heads of half the width with two fixed scales do so, too": less("two: pair", *one),
            "training finds two scales on the same scores, and does better than ln n": less(
                "shared: learned", "one: natural_log_n"
            ),
            "two heads with queries and keys of their own need no second scale": less(
                "two: sharp", "two: pair", least=-_LITTLE
            ),
            "in two heads, too, log n costs the majority": less(
                "two: standard", "two: log_n", part="majority"
            ),
        }
        return Criterion(tuple(Claim(text, contrasts) for text, contrasts in claims.items() if contrasts))

    def _of_what_is_kept(self) -> Criterion:
        """Claims: all models are right at the training length; two scales keep more of it than one law."""
        right = tuple(
            Contrast(
                f"{variant} at {self.train_length}",
                "accuracy",
                ((1.0, {"variant": variant, "n": self.train_length, "part": "both"}),),
                least=_RIGHT,
            )
            for variant in self.variants
        )
        more = tuple(
            difference(f"{_PAIR} less {one}", "kept", {"variant": (_PAIR, one)}, {"part": "both"})
            for one in self.variants
            if one != _PAIR
        )
        return Criterion(
            (
                Claim(f"all answer both in {_RIGHT:.0%} of rows of the training length or more", right),
                Claim("two fixed scales keep more of that in rows 64 times as long than one law", more),
            )
        )


def _model(study: TwoHeads, variant: str) -> TwoScales:
    """A new model of a variant."""
    kind, law = variant.split(": ")
    count = 1 if kind == "one" else 2
    log_n = f"log_n(base={study.train_length})"
    laws = {"log_n": [log_n] * count, "ssmax": [log_n] * count, "split": [log_n, "standard"]}
    laws["natural_log_n"] = ["natural_log_n"] * count
    factors = {"sharp": [study.sharp] * count, "pair": [study.sharp, study.flat]}
    return TwoScales(
        *(study.code + LABELS + 2, LABELS + 2),
        width=study.width,
        laws=laws.get(law, ["standard"] * count),
        factors=factors.get(law, [1.0] * count),
        learned=law in ("learned", "ssmax"),
        shared=kind == "shared",
        implementation=study.attention,
        hidden=study.hidden,
    )


def _on(device: torch.device, rows: Mixture) -> Mixture:
    return Mixture(*(each.to(device) for each in rows))


def _nll(logits: Tensor, rows: Mixture, reduction: str = "mean") -> tuple[Tensor, Tensor]:
    """Negative log-likelihoods of the needle's label and of the majority."""
    parts = logits.split((LABELS, 2), -1)
    label, most = (
        functional.cross_entropy(part, answer, reduction=reduction)
        for part, answer in zip(parts, (rows.label, rows.majority), strict=True)
    )
    return label, most


@torch.no_grad()
def _test(study: TwoHeads, model: TwoScales, n: int, seed: int) -> dict[str, NDArray[np.float64]]:
    """Measurements at one length, on rows that all models of a seed share."""
    generator = Training(seed).generator(f"test {n}")
    device = model.factor.device
    spare = _on(device, mixture(1, _SPARE, generator, study.code)).tokens
    sums: dict[str, Any] = {}
    count = 0
    while count < study.tests:
        batch = min(max(1, _AT_ONCE // n), study.tests - count)
        rows = _on(device, mixture(batch, n, generator, study.code))
        for name, values in {**_answers(model, rows), **_of_heads(model, rows, spare)}.items():
            sums[name] = sums.get(name, 0) + values.double().sum(0).cpu().numpy()
        count += batch
    found = {name: values / study.tests for name, values in sums.items()}
    found["beta"] = np.sqrt(found.pop("variance"))
    found["gap"] = found.pop("above") / found["beta"]
    return found


def _answers(model: TwoScales, rows: Mixture) -> dict[str, Tensor]:
    """Correctness and log-likelihood of each part of each row, and the entropies of the row."""
    logits, entropy = model(rows.query[:, None], rows.tokens)
    assert entropy is not None
    label, most = (part.argmax(-1) for part in logits[:, 0].split((LABELS, 2), -1))
    right = torch.stack((label == rows.label, most == rows.majority), -1)
    return {
        "accuracy": torch.cat((right, right.all(-1, keepdim=True)), -1),
        "nll": torch.stack(_nll(logits[:, 0], rows, "none"), -1),
        "entropy": entropy[..., 0],
    }


def _of_heads(model: TwoScales, rows: Mixture, spare: Tensor) -> dict[str, Tensor]:
    """Weights of the needle and of the others for each row and head, with the bounds of theory.

    The mean and variance of a row's scores are taken over `spare` tokens, (1, tokens, features).
    """
    asks, n = rows.query[:, None], rows.tokens.shape[1]
    scores = model.scores(asks, rows.tokens, n)[:, :, 0].double()
    place = rows.place[:, None, None].expand(*scores.shape[:2], 1)
    weights, own = scores.softmax(-1), scores.gather(-1, place)[..., 0]
    others = scores.scatter(-1, place, -torch.inf).softmax(-1)
    drawn = model.scores(asks, spare, n)[:, :, 0].double()
    above, variance = own - drawn.mean(-1), drawn.var(-1)
    return {
        "weight": weights.gather(-1, place)[..., 0],
        "excess": n * weights.square().sum(-1),
        "others_excess": (n - 1) * others.square().sum(-1),
        "above": above,
        "variance": variance,
        "weight_bound": (above - variance / 2 - math.log(n - 1)).sigmoid(),  # theory.needle_weight_bound
        "excess_bound": torch.as_tensor(theory.averaging_excess_bound(n - 1, variance.sqrt().cpu().numpy())),
    }


_RIGHT = 0.9  # of the rows; a model below this at the training length fails for reasons other than length
_LITTLE = 0.1  # of the rows; allowed loss of two heads under one scale against two scales
