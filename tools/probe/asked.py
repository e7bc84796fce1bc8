# SPDX-License-Identifier: BSD-3-Clause
"""Transformers with a checkpoint loaded, in which a fault can be planted, and the reading of its answers."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import attnscale as at
import torch
from attnscale.probe._ask import _ask_all
from attnscale.probe._ask.engine import largest
from attnscale.probe._ask.folder import Prompt, read_folder
from attnscale.probe._ask.transformers import _refuse_partial
from transformers import AutoConfig, AutoModelForCausalLM


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

    name = "transformers"

    def __init__(self, folder: Path, dtype: str, misread: Callable[[Any], None] | None = None) -> None:
        config = AutoConfig.from_pretrained(folder)
        if misread is not None:
            misread(config)
        self.model, found = AutoModelForCausalLM.from_pretrained(
            folder,
            config=config,
            dtype=getattr(torch, dtype),
            attn_implementation="eager",
            output_loading_info=True,
        )
        _refuse_partial(folder, found)
        self._undo = ExitStack()

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
        self._undo.enter_context(mock.patch.object(self.code, name, wrapped(getattr(self.code, name))))

    def answer(self, prompt: Prompt) -> dict[int, float]:
        """The largest log-probabilities of the next word."""
        with torch.inference_mode():
            logits = self.model(torch.tensor([list(prompt.ids)]), logits_to_keep=1, use_cache=False).logits
        return largest(logits[0, -1].float().numpy())

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *about: object) -> None:
        self._undo.close()


def read(probe: Path, engine: Callable[[Path], AbstractContextManager[Any]]) -> at.probe.ProbeReading:
    """The reading of the answers of an engine to all checkpoints of a probe."""
    file = probe / "answers.jsonl"
    _ask_all(read_folder(probe), lambda checkpoint: engine(checkpoint.path), file, False)
    return at.probe.read(file)
