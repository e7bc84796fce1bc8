# SPDX-License-Identifier: BSD-3-Clause
"""Answers of transformers to a checkpoint, right or with a fault planted into it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import torch
from attnscale import probe as attnscale_probe
from transformers import AutoConfig, AutoModelForCausalLM

#: Log-probabilities kept of each answer.
KEPT = 24


class Engine:
    """Transformers with one checkpoint loaded, and what has been done to it.

    Parameters
    ----------
    folder : path
        A checkpoint of a probe.
    dtype : str
        Type of the weights and of the arithmetic.
    misread : callable, optional
        Changes the config before the model is built, as an engine that reads it otherwise.
    """

    def __init__(self, folder: Path, dtype: str, misread: Callable[[Any], None] | None = None) -> None:
        config = AutoConfig.from_pretrained(folder)
        if misread is not None:
            misread(config)
        self.model, report = AutoModelForCausalLM.from_pretrained(
            folder,
            config=config,
            dtype=getattr(torch, dtype),
            attn_implementation="eager",
            output_loading_info=True,
        )
        wrong = {name: sorted(map(str, found)) for name, found in report.items() if found}
        if wrong:
            raise RuntimeError(f"{folder} was not loaded whole: {wrong}")
        self.undo = ExitStack()

    @property
    def code(self) -> ModuleType:
        """The module of the model's classes."""
        return sys.modules[type(self.model).__module__]

    @property
    def attentions(self) -> list[Any]:
        """The attention of each layer."""
        return [layer.self_attn for layer in self.model.model.layers]

    @property
    def rotary(self) -> Any:
        """The module that computes cosines and sines."""
        return self.model.model.rotary_emb

    def replace(self, name: str, wrapped: Callable[[Any], Any]) -> None:
        """Replace a function of the model's code, given the present one, until the engine is closed."""
        self.undo.enter_context(mock.patch.object(self.code, name, wrapped(getattr(self.code, name))))

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *about: object) -> None:
        self.undo.close()

    def answers(self, prompts: list[Mapping[str, Any]]) -> dict[str, dict[int, float]]:
        """The largest log-probabilities of the next word, by prompt."""
        with torch.inference_mode():
            return {prompt["prompt"]: self._answer(prompt["ids"]) for prompt in prompts}

    def _answer(self, words: list[int]) -> dict[int, float]:
        logits = self.model(torch.tensor([words]), logits_to_keep=1, use_cache=False).logits[0, -1]
        found = torch.log_softmax(logits.double(), -1).topk(KEPT)
        return dict(zip(found.indices.tolist(), found.values.tolist(), strict=True))


def checkpoints(probe: Path) -> list[Path]:
    """The folders of a probe's checkpoints."""
    return [probe / name for name in json.loads((probe / "probe.json").read_text())["checkpoints"]]


def read(probe: Path, engine: Callable[[Path], AbstractContextManager[Engine]]) -> Any:
    """The reading of the answers of an engine to all checkpoints of a probe."""
    file = probe / "answers.jsonl"
    with file.open("w") as lines:
        for folder in checkpoints(probe):
            expected = json.loads((folder / "expected.json").read_text())
            prompts = [json.loads(line) for line in (folder / "prompts.jsonl").read_text().splitlines()]
            with engine(folder) as asked:
                found = asked.answers(prompts)
            about = {"checkpoint": expected["checkpoint"]}
            lines.write(json.dumps({**about, "engine": "transformers", "expected": expected}) + "\n")
            for name, row in found.items():
                lines.write(json.dumps({**about, "prompt": name, "logprobs": row}) + "\n")
    return attnscale_probe.read(file)
