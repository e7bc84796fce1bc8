# SPDX-License-Identifier: BSD-3-Clause
"""The config class of transformers, asked what it makes of a config."""

from __future__ import annotations

import logging
import warnings
from copy import deepcopy
from typing import Any

import numpy as np

from .._checks import shown
from ._config.source import ConfigError, read_config
from ._plan.layer import LayerPlan
from ._plan.plan import ScalePlan


def asked(config: dict[str, Any]) -> dict[str, Any]:
    """The keys as the class of the model type writes them; no code of a repository is imported."""
    kind = config.get("model_type")
    try:
        from transformers import CONFIG_MAPPING
    except ImportError:
        raise ConfigError("ask_class needs transformers: pip install transformers") from None
    if kind not in CONFIG_MAPPING:
        raise ConfigError(f"ask_class needs a model_type of transformers, got {shown(kind)}")
    keys = {name: value for name, value in config.items() if name not in ("model_type", "auto_map")}
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)  # classes say much about their own defaults
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found: dict[str, Any] = CONFIG_MAPPING[kind](**deepcopy(keys)).to_dict()
    except Exception as error:
        said = " ".join(str(error).split())[:200]
        raise ConfigError(f"the config class of {kind} refuses the config: {said}") from None
    finally:
        logging.disable(before)
    return read_config({**found, "model_type": kind})


def reads_otherwise(own: ScalePlan, other: ScalePlan) -> str | None:
    """How the config class reads a score otherwise than the keys do, in words; None if both plans agree."""
    if len(own) != len(other):
        return f"the config class has {len(other)} layers, and the keys say {len(own)}"
    for first, second in zip(own.layers, other.layers, strict=True):
        if not _alike(first, second):
            return (
                f"layer {first.index}: the config class reads another scale than the keys, {_shown(second)}"
            )
    return None


#: The first positions, and those around and behind usual training lengths.
_POSITIONS = np.array([0, 1, 4095, 4096, 8192, 32768, 2**20])


def _alike(first: LayerPlan, second: LayerPlan) -> bool:
    if first.refusal or second.refusal:
        return bool(first.refusal) == bool(second.refusal)
    by_layer: list[dict[str, Any]] = [
        {kind: each.multipliers(_POSITIONS, kind) for kind in each.channel_kinds} for each in (first, second)
    ]
    if all(len(np.unique([*found.values()])) == 1 for found in by_layer):
        by_layer = [{"all": next(iter(found.values()))} for found in by_layer]  # all channels are alike
    elif first.rotated != second.rotated:
        return False
    one, other = by_layer
    same = one.keys() == other.keys() and all(np.allclose(one[kind], other[kind], rtol=1e-9) for kind in one)
    sizes = [(each.head_dim, each.softcap, each.sink) for each in (first, second)]
    return same and sizes[0] == sizes[1]


def _shown(layer: LayerPlan) -> str:
    laws = [layer.base.law, *(term.law for term in layer.terms)]
    return f"with head_dim {layer.head_dim}, rotated {layer.rotated}, {', '.join(map(repr, laws))}"
