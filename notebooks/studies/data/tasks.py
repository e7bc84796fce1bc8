# SPDX-License-Identifier: BSD-3-Clause
"""Tasks in which one query reads a set of tokens, and only their number changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

CODE = 32  # length of a code: the nearest of 4096 random codes has a cosine of about 0.6
LABELS = 8
_NEAR = 0.1  # noise of a query's code: its cosine with the right code is about 0.87
_FAR = 3.0  # noise of a token's label in "average"


class Batch(NamedTuple):
    """Queries and the tokens they read.

    Attributes
    ----------
    query : Tensor, shape (batch, features)
    tokens : Tensor, shape (batch, n, features)
    label : Tensor of int64, shape (batch,)
        The answer to each query.
    """

    query: Tensor
    tokens: Tensor
    label: Tensor


class Task(NamedTuple):
    """A task: ``draw(batch, n, generator)``, and the sizes of a token and of an answer."""

    draw: Callable[[int, int, torch.Generator], Batch]
    features: int
    labels: int


class Mixture(NamedTuple):
    """Queries with two answers, one from a single token and one from all tokens.

    Attributes
    ----------
    query : Tensor, shape (batch, features)
    tokens : Tensor, shape (batch, n, features)
    label : Tensor of int64, shape (batch,)
        The label of the token whose code the query has.
    majority : Tensor of int64, shape (batch,)
        1 if more tokens have the bit 1 than 0, else 0.
    place : Tensor of int64, shape (batch,)
        Position of that token.
    """

    query: Tensor
    tokens: Tensor
    label: Tensor
    majority: Tensor
    place: Tensor


def needle(batch: int, n: int, generator: torch.Generator) -> Batch:
    """The query is the code of one token, with noise; the answer is that token's label."""
    query, tokens, label, _ = _hidden(batch, n, generator)
    return Batch(query, tokens, label)


def mixture(batch: int, n: int, generator: torch.Generator, code: int = CODE) -> Mixture:
    """A needle task with a bit in each token; the answers are the needle's label and the majority."""
    query, tokens, label, place = _hidden(batch, n, generator, code)
    bits, most = _bits(batch, n, generator)
    tokens = torch.cat((tokens, functional.one_hot(bits, 2)), -1)
    return Mixture(functional.pad(query, (0, 2)), tokens, label, most, place)


def _hidden(
    batch: int, n: int, generator: torch.Generator, length: int = CODE
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Queries, tokens with a code and a label, and the label and place of the token to find.

    A query's mean cosine with the right code does not depend on the length of the codes.
    """
    code = functional.normalize(torch.randn(batch, n, length, generator=generator), dim=-1)
    noise = _NEAR * (CODE / length) ** 0.5
    label = torch.randint(LABELS, (batch, n), generator=generator)
    every, chosen = torch.arange(batch), torch.randint(n, (batch,), generator=generator)
    query = code[every, chosen] + noise * torch.randn(batch, length, generator=generator)
    tokens = torch.cat((code, functional.one_hot(label, LABELS)), -1)
    return functional.pad(query, (0, LABELS)), tokens, label[every, chosen], chosen


def average(batch: int, n: int, generator: torch.Generator) -> Batch:
    """All tokens carry the same label, the answer, with much noise; query and codes are irrelevant."""
    label = torch.randint(LABELS, (batch,), generator=generator)
    query = torch.randn(batch, CODE, generator=generator)
    code = torch.randn(batch, n, CODE, generator=generator)
    noise = _FAR * torch.randn(batch, n, LABELS, generator=generator)
    tokens = torch.cat((code / CODE**0.5, functional.one_hot(label, LABELS)[:, None] + noise), -1)
    return Batch(functional.pad(query / CODE**0.5, (0, LABELS)), tokens, label)


def first(batch: int, n: int, generator: torch.Generator) -> Batch:
    """Whether the first of n bits is 1: FIRST of Chiang & Cholak 2022, arXiv 2202.12172."""
    bits = torch.randint(2, (batch, n), generator=generator)
    return _of_bits(bits, bits[:, 0])


def majority(batch: int, n: int, generator: torch.Generator) -> Batch:
    """Whether there are more ones than zeros among n bits."""
    return _of_bits(*_bits(batch, n, generator))


def _bits(batch: int, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Rows of n bits, and whether a row has more ones than zeros; ties flip the last bit."""
    bits = torch.randint(2, (batch, n), generator=generator)
    tie = 2 * bits.sum(1) == n
    bits[tie, -1] = 1 - bits[tie, -1]
    return bits, (2 * bits.sum(1) > n).long()


def _of_bits(bits: Tensor, label: Tensor) -> Batch:
    """A batch of bits with a mark of the first position; the query is a special token (CLS)."""
    batch, n = bits.shape
    place = torch.zeros(batch, n, 2)
    place[:, 0, 0] = 1
    query = torch.tensor([0.0, 0.0, 0.0, 1.0]).expand(batch, 4)
    return Batch(query, torch.cat((functional.one_hot(bits, 2), place), -1), label)


TASKS: dict[str, Task] = {
    "needle": Task(needle, CODE + LABELS, LABELS),
    "first": Task(first, 4, 2),
    "majority": Task(majority, 4, 2),
    "average": Task(average, CODE + LABELS, LABELS),
}
