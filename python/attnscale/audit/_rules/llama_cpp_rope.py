# SPDX-License-Identifier: BSD-3-Clause
"""Rotary positions of llama.cpp: parameters by keys of GGUF, and the factor of cos and sin."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..._base.checks import shown
from ...laws import Law, LongRoPE, YaRN
from .._keys import ConfigError, Keys
from .._layer import Term
from .family import Layer, Rope
from .llama_cpp_table import ARCHITECTURES, Architecture

#: Kinds of layers that may have their own numbers.
WINDOWS = ("sliding_attention", "chunked_attention")


def row_of(keys: Keys) -> Architecture:
    """The row of a file's architecture, or that of a plain one."""
    return ARCHITECTURES.get(keys.architecture, Architecture())


def term(layer: Layer, law: Law, key: str, channels: Any = "all") -> Term:
    """A term that the code of llama.cpp applies to an architecture, whatever the file says."""
    return Term(law, channels, key, f"llama.cpp, src/models, architecture {layer.keys.architecture}")


@dataclass(frozen=True)
class RopeFactor(Law):
    """A factor of cos and sin stated in a file, whatever the type of its rotary positions.

    Parameters
    ----------
    factor : float
        m; the score has its square.
    """

    factor: float
    name: ClassVar[str] = "rope_factor"
    n_means: ClassVar[Any] = "not used"
    channels: ClassVar[Any] = "rotated"
    formula: ClassVar[str] = "factor^2 / sqrt(head_dim)"
    source: ClassVar[str] = "llama.cpp src/llama-context.cpp"
    used_by: ClassVar[str] = "files of llama.cpp with rope.scaling.attn_factor"
    remark: ClassVar[str] = "squared, because q and k both carry it"

    def _beta(self, n: NDArray[np.float64], head_dim: int) -> Any:
        return np.full(n.shape, self.factor**2)


#: Types of scaling in llama.cpp; without a type it is linear, and without a factor that is plain.
_TYPES = {"none": "default", "linear": "linear", "yarn": "yarn", "longrope": "longrope"}


def rope_parameters(keys: Keys) -> dict[str, dict[str, Any]]:
    """The parameters of rotary positions by kind of layer, under usual names.

    Their entry "read" holds the names of the keys, which count as used in layers with these parameters.
    """
    row, given = row_of(keys), keys.given
    if row.rotates == "none":
        return {key: {"rope_type": "default"} for key in ("full", "sliding", "compressed")}
    full = _scaled(row, given) | {"rope_theta": given.get("rope.freq_base", 10000.0)}
    usual = full["rope_theta"] if row.same_base else 10000.0
    base = {"rope_theta": given.get("rope.freq_base_swa", usual)}
    sliding = {**(full if row.same_scaling else {"rope_type": "default", "read": ()}), **base}
    compressed = {**full, "rope_theta": given.get("attention.compress_rope_freq_base", 10000.0)}
    full["read"] += ("rope.freq_base",)
    sliding["read"] += ("rope.freq_base_swa",) if "rope.freq_base_swa" in given else ("rope.freq_base",)
    compressed["read"] += ("attention.compress_rope_freq_base", "attention.compress_ratios")
    return {"full": full, "sliding": sliding, "compressed": compressed}


def _scaled(row: Architecture, given: Mapping[str, Any]) -> dict[str, Any]:
    """The type of scaling and its parameters."""
    stated = given.get("rope.scaling.type")
    if stated is not None and stated not in _TYPES:
        raise ConfigError(f"rope.scaling.type must be one of {', '.join(_TYPES)}, got {shown(stated)}")
    factors = [name for name in ("rope.scaling.factor", "rope.scale_linear") if given.get(name)]
    kind = ("linear" if factors else "default") if stated is None else _TYPES[stated]
    if kind in ("linear", "yarn") and not factors:
        kind = "default"
    if kind == "default":
        return {"rope_type": "default", "read": ("rope.scaling.type",)}
    names = {"factor": factors[0]} if factors else {}
    if kind != "linear":
        name = "rope.scaling.original_context_length"
        names["original_max_position_embeddings"] = name if given.get(name) else "context_length"
    usual = {}
    if row.betas and kind == "yarn":
        usual = {"beta_fast": row.betas, "beta_slow": 1.0}
        names |= {name: f"rope.scaling.yarn_{name}" for name in usual}
    found = {name: given.get(key, usual.get(name)) for name, key in names.items()}
    found = {name: value for name, value in found.items() if value is not None}
    return {"rope_type": kind, **found, "read": ("rope.scaling.type", *names.values())}


class Factors(NamedTuple):
    """Parts of the factor on cos and sin in llama.cpp."""

    own: float  # YaRN's factor, with its weights; 1 without YaRN
    stated: float  # rope.scaling.attn_factor
    growth: float  # logarithm of the factor, 0 up to 1
    weight: float  # yarn_log_multiplier as the architecture reads it, or 0


def factors_of(layer: Layer, rope: Rope | None) -> Factors:
    keys, row = layer.keys, row_of(layer.keys)
    stated = keys.number("rope.scaling.attn_factor", default=1.0)
    factor = 1.0 if rope is None else (rope.number("factor") or 1.0)
    growth = math.log(factor) if factor > 1 else 0.0
    weight = _weight(keys) if row.weighs else 0.0
    if rope is None or not is_yarn(keys, rope):
        yarn = keys.number("rope.scaling.yarn_attn_factor", default=1.0) if row.states_yarn else 1.0
        return Factors(1.0, stated * yarn, growth, weight)
    own = 0.1 * growth + 1
    if weight:
        first = weight if keys.architecture == "deepseek2" and weight != 1 else 1.0
        own = (0.1 * first * growth + 1) / (0.1 * weight * growth + 1)
    return Factors(own, stated, growth, weight)


def is_yarn(keys: Keys, rope: Rope) -> bool:
    """Whether YaRN is on: by its type, or by the extrapolation factor if it is read and not negative."""
    name = "rope.scaling.yarn_ext_factor"
    if row_of(keys).states_yarn and keys.get(name) is not None and keys.number(name) >= 0:
        return keys.number(name) != 0
    return rope.kind == "yarn"


def _weight(keys: Keys) -> float:
    """yarn_log_multiplier; files of latent attention have 0.1 times it, in single precision."""
    given = keys.number("rope.scaling.yarn_log_multiplier", default=0.0)
    return round(float(np.float32(given) / np.float32(0.1)), 6) if row_of(keys).latent else given


def said(keys: Keys, *names: str) -> str:
    """The keys of the file among these, with their values."""
    return ", ".join(f"{name} = {keys.get(name)}" for name in names if keys.get(name) is not None)


YARN_KEYS = tuple(f"rope.scaling.{name}" for name in ("type", "factor", "attn_factor", "yarn_log_multiplier"))


def rope_factor(layer: Layer, rope: Rope) -> Term | None:
    """The factor of cos and sin, on the rotated channels."""
    keys = layer.keys
    if row_of(keys).plain_sliding and layer.kind in WINDOWS:
        return None
    found = factors_of(layer, rope)
    origin = said(keys, *(YARN_KEYS if row_of(keys).weighs else YARN_KEYS[:-1]))
    if is_yarn(keys, rope):
        factor = rope.number("factor") or 1.0
        weights = _yarn_weights(keys, found.weight)
        if found.stated != 1:
            weights = {"attention_factor": found.own * found.stated}
        return term(layer, YaRN(factor, **weights), origin, "rotated")
    if found.stated == 1:
        return None
    if rope.kind == "longrope" and rope.parameters.get("original_max_position_embeddings"):
        length = rope.number("original_max_position_embeddings") or 0.0
        law = LongRoPE(length, rope.number("factor") or 1.0, attention_factor=found.stated)
        return term(layer, law, origin, "rotated")
    if row_of(keys).states_yarn:
        origin = said(keys, *YARN_KEYS[:-1], "rope.scaling.yarn_attn_factor")
    return term(layer, RopeFactor(found.stated), origin, "rotated")


def _yarn_weights(keys: Keys, weight: float) -> dict[str, Any]:
    if not weight:
        return {}
    first = weight if keys.architecture == "deepseek2" else 1.0
    return {"mscale": first, "mscale_all_dim": weight}
