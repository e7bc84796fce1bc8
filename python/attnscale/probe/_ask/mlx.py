# SPDX-License-Identifier: BSD-3-Clause
"""Asking mlx-lm in this process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from ..._base.checks import InputError
from .engine import Engine, largest, not_loaded
from .folder import Prompt


@contextmanager
def loaded(folder: Path, *, dtype: str = "float32") -> Iterator[Engine]:
    """The checkpoint in a folder as mlx-lm loads it."""
    try:
        import mlx.core as mx
        from mlx.utils import tree_map
        from mlx_lm.utils import load_model
    except ImportError:
        raise InputError("mlx needs mlx-lm: pip install mlx-lm, and off a Mac mlx[cpu]") from None
    number = version("mlx-lm")
    try:
        model, _ = load_model(folder, lazy=False, get_model_classes=_classes)
        model.update(tree_map(lambda each: each.astype(getattr(mx, dtype)), model.parameters()))
    except Exception as error:  # whatever a loader of another package raises
        raise not_loaded(f"{folder}: mlx-lm {number}", error) from error

    def answer(prompt: Prompt) -> dict[int, float]:
        logits = model(mx.array([list(prompt.ids)]))[0, -1]
        return largest(np.array(logits.astype(mx.float32)))

    yield Engine(f"mlx-lm {number} {dtype}", answer)


def _classes(config: dict[str, Any]) -> tuple[type, type]:
    """Classes of the model and of its arguments, as mlx-lm chooses them; gpt-oss gets names that it loads."""
    from mlx_lm.utils import _get_classes

    model, arguments = _get_classes(config)
    if config["model_type"] == "gpt_oss":
        model = type(model.__name__, (model,), {"sanitize": _sanitize, "_plain": model.sanitize})
    return model, arguments


def _sanitize(self: Any, weights: dict[str, Any]) -> Any:
    """The weights of experts under the names that this loader gives quantised ones, rows before columns."""
    for name in [*weights]:
        if name.endswith((".experts.gate_up_proj", ".experts.down_proj")):
            weights[f"{name}.weight"] = weights.pop(name).swapaxes(-1, -2)
    return self._plain(weights)
