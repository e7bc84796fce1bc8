# SPDX-License-Identifier: BSD-3-Clause
"""Tensors of GGUF files that a checkpoint does not have: factors of rotary frequencies."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..._base.checks import InputError
from .config import Config

#: A rule: tensors from the config alone.
Extra = Callable[[Config], dict[str, NDArray[Any]]]


def llama3(config: Config) -> dict[str, NDArray[Any]]:
    """Factors that divide the frequencies of rope_type llama3: 1 for fast pairs, the factor for slow ones."""
    rope = config.rope
    if rope["rope_type"] != "llama3":
        return {}
    factor = float(rope.get("factor", 16.0 if config.kind == "exaone4" else 8.0))
    low, high = (float(rope.get(f"{name}_freq_factor", usual)) for name, usual in (("low", 1), ("high", 4)))
    size = config.head_dim
    plain = 1 / rope["rope_theta"] ** (np.arange(0, size, 2, dtype=np.float32) / np.float32(size))
    turns = rope["original_max_position_embeddings"] * plain / (2 * math.pi)
    with np.errstate(divide="ignore", invalid="ignore"):
        share = (turns - low) / (high - low)
        mixed = 1 / ((1 - share) / factor + share)
    factors = np.where(turns > high, 1.0, np.where(turns < low, factor, mixed))
    return {"rope_freqs.weight": factors.astype(np.float32)}


def longrope(config: Config) -> dict[str, NDArray[Any]]:
    """The two lists of factors of Phi-3."""
    rope = config.rope
    if not rope.get("long_factor"):
        return {}
    size = int(rope["partial_rotary_factor"] * config["hidden_size"]) // config["num_attention_heads"] // 2
    found = {}
    for name in ("long", "short"):
        factors = np.asarray(rope.get(f"{name}_factor", ()), np.float32)
        if factors.shape != (size,):
            raise InputError(f"{name}_factor must have {size} numbers, one a pair, got {len(factors)}")
        found[f"rope_factors_{name}.weight"] = factors
    return found
