# SPDX-License-Identifier: BSD-3-Clause
"""Asking transformers in this process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..._base.checks import InputError
from ..._base.text import counted
from .engine import Engine, largest, not_loaded
from .folder import Prompt


@contextmanager
def loaded(folder: Path, *, dtype: str = "float32", attention: str | None = None) -> Iterator[Engine]:
    """The checkpoint in a folder as transformers loads it; a weight that it leaves out is an error."""
    try:
        import torch
        import transformers
    except ImportError:
        raise InputError(
            "transformers needs torch and transformers: pip install torch transformers"
        ) from None
    with _quiet(transformers):
        try:
            model, found = transformers.AutoModelForCausalLM.from_pretrained(
                folder,
                dtype=getattr(torch, dtype),
                **({} if attention is None else {"attn_implementation": attention}),
                output_loading_info=True,
                local_files_only=True,
            )
        except Exception as error:  # whatever a loader of another package raises
            raise not_loaded(f"{folder}: transformers {transformers.__version__}", error) from error
    _refuse_partial(folder, found)

    def answer(prompt: Prompt) -> dict[int, float]:
        with torch.inference_mode():
            logits = model(torch.tensor([list(prompt.ids)]), logits_to_keep=1).logits[0, -1]
        return largest(logits.float().numpy())

    way = model.config._attn_implementation
    yield Engine(f"transformers {transformers.__version__} {dtype} {way}", answer)


@contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """No bar while weights are loaded."""
    logging = transformers.utils.logging
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _refuse_partial(folder: Path, found: dict[str, Any]) -> None:
    """Refuse a model that has weights of its own, or lacks some of the checkpoint."""
    for kind, what in (("missing_keys", "are not in the checkpoint"), ("unexpected_keys", "were not loaded")):
        if names := sorted(map(str, found[kind])):
            said = f"{counted(len(names), 'tensor')} {what}, as {names[0]}"
            raise InputError(f"{folder}: transformers must load the whole checkpoint: {said}")
