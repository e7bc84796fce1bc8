# SPDX-License-Identifier: BSD-3-Clause
"""Nodes with classes and noisy features: sampled contexts, and whole graphs of a stochastic block model."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from .tasks import Batch

CLASSES = 8
FEATURES = 16
_NOISE = 3.0
_AGREE = 0.22  # share of neighbours that copy the class of their node; the others have a random class
_DENSITY = 0.25  # share of the nodes that are neighbours, for every graph size
_NEAR = 0.1  # noise of the query in "mirror"


class Graph(NamedTuple):
    """All nodes of a graph.

    Attributes
    ----------
    nodes : Tensor, shape (1, nodes, FEATURES)
    neighbours : Tensor of bool, shape (nodes, nodes)
    label : Tensor of int64, shape (1, nodes)
        Classes of the nodes.
    """

    nodes: Tensor
    neighbours: Tensor
    label: Tensor


class Questions(NamedTuple):
    """Inputs of a model, and the correct labels.

    Attributes
    ----------
    query : Tensor, shape (batch, queries, features)
    tokens : Tensor, shape (batch, tokens, features)
    mask : Tensor of bool or None, shape (queries, tokens)
        True where a query sees a token; None without a mask.
    label : Tensor of int64, shape (batch, queries)
    """

    query: Tensor
    tokens: Tensor
    mask: Tensor | None
    label: Tensor


def class_means(generator: torch.Generator) -> Tensor:
    """The features of the classes without noise."""
    return torch.randn(CLASSES, FEATURES, generator=generator)


def context(batch: int, n: int, means: Tensor, generator: torch.Generator) -> Batch:
    """Nodes with n tokens each: the node itself first, then sampled neighbours."""
    label = torch.randint(CLASSES, (batch,), generator=generator)
    others = torch.randint(CLASSES, (batch, n), generator=generator)
    agree = torch.rand(batch, n, generator=generator) < _AGREE
    agree[:, 0] = True
    classes = torch.where(agree, label[:, None], others)
    tokens = means[classes] + _NOISE * torch.randn(batch, n, FEATURES, generator=generator)
    return Batch(tokens[:, 0], tokens, label)


def graph(nodes: int, degree: float, means: Tensor, generator: torch.Generator) -> Graph:
    """A stochastic block model of mean degree `degree`; neighbours agree as often as in :func:`context`."""
    same = _AGREE + (1 - _AGREE) / CLASSES  # share of the neighbours that have the class of their node
    label = torch.randint(CLASSES, (nodes,), generator=generator)
    density = degree / nodes
    inside, outside = CLASSES * same * density, CLASSES / (CLASSES - 1) * (1 - same) * density
    chance = torch.where(label[:, None] == label, inside, outside)
    above = (torch.rand(nodes, nodes, generator=generator) < chance).triu(1)
    features = means[label] + _NOISE * torch.randn(nodes, FEATURES, generator=generator)
    return Graph(features[None], above | above.T, label[None])


def mirror(batch: int, n: int, means: Tensor, generator: torch.Generator) -> Batch:
    """The mirror image of :func:`context`: only the token that is like the query has the answer.

    A token has a code and a class; the first is the query itself, whose class is not given.
    """
    code = functional.normalize(torch.randn(batch, n, FEATURES, generator=generator), dim=-1)
    classes = torch.randint(CLASSES, (batch, n), generator=generator)
    given = functional.one_hot(classes, CLASSES).float()
    given[:, 0] = 0
    every, chosen = torch.arange(batch), torch.randint(1, n, (batch,), generator=generator)
    code[:, 0] = code[every, chosen] + _NEAR * torch.randn(batch, FEATURES, generator=generator)
    tokens = torch.cat((code, given), -1)
    return Batch(tokens[:, 0], tokens, classes[every, chosen])


def questions(
    cell: dict[str, Any], n: int, batch: int, means: Tensor, generator: torch.Generator, device: Any
) -> Questions:
    """Contexts of n tokens, or a graph with n neighbours on average, including the node itself if seen.

    `cell` has the task, "context", "graph" or "needle", and whether the node's own key is "seen".
    """
    seen = cell["own_key"] == "seen"
    if cell["task"] == "graph":
        drawn = graph(int(n / _DENSITY), n - seen, means, generator)
        itself = torch.eye(len(drawn.neighbours), dtype=torch.bool)
        mask = drawn.neighbours | itself if seen else drawn.neighbours
        parts: tuple[Tensor, ...] = (drawn.nodes, drawn.nodes, mask, drawn.label)
        return Questions(*(each.to(device) for each in parts))
    draw = mirror if cell["task"] == "needle" else context
    rows = draw(batch, n if seen else n + 1, means, generator)
    tokens = rows.tokens if seen else rows.tokens[:, 1:]
    parts = (rows.query[:, None], tokens.contiguous(), rows.label[:, None])
    query, tokens, label = (each.to(device) for each in parts)
    return Questions(query, tokens, None, label)
