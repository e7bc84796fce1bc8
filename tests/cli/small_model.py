# SPDX-License-Identifier: BSD-3-Clause
"""A model of the commands that is made of modules of attention, and a reason why one cannot be measured."""

from __future__ import annotations

from typing import Any

import torch
import transformers

from tests.models.spellings import WIDTH

#: What is said of a module that leaves its attention to an operator of somebody else.
OPAQUE = "its weights stay inside of the operator attnscale_tests::flash_attn_forward"


class Small(torch.nn.Module):
    """Modules of attention one after another, with the parts of a model of transformers that are read."""

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
