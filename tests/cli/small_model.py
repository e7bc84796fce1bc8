# SPDX-License-Identifier: BSD-3-Clause
"""A model of modules of attention for the commands, and the reason why one cannot be measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from attnscale.cli._model import Reader as Reader

from tests.models.spellings import WIDTH

#: Reason for a module that calls a foreign operator.
OPAQUE = "its weights stay inside of the operator attnscale_tests::flash_attn_forward"


def weights_of(path: str, text: str, n: int) -> np.ndarray:
    """Weights (layers, heads, n, n) of the eager attention of a model on the first n tokens of a text."""
    model = transformers.AutoModel.from_pretrained(path, attn_implementation="eager").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    tokens = tokenizer(Path(text).read_text(), truncation=False)["input_ids"]
    with torch.no_grad():
        weights = model(input_ids=torch.tensor([tokens[:n]]), output_attentions=True).attentions
    return np.asarray(torch.stack(weights)[:, 0].double())


class Small(torch.nn.Module):
    """Modules of attention in sequence, with the attributes of a transformers model that are read."""

    def __init__(self, **parts: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = torch.nn.Embedding(50, WIDTH)
        self.parts = torch.nn.ModuleDict(parts)
        self.config = transformers.BertConfig(vocab_size=50)
        self.device = torch.device("cpu")

    def forward(self, input_ids: Any) -> Any:
        x = self.embed(input_ids)
        for part in self.parts.values():
            x = x + part(x)
        return x
