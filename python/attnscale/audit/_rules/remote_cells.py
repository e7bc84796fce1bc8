# SPDX-License-Identifier: BSD-3-Clause
"""Cells of the table of remote code: flash-linear-attention, and the tabular model Nori of Synthefy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..._base.checks import shown
from ...laws import LogN, SSMax
from .._keys import ConfigError, Keys, check_size, check_table
from .._layer import Term
from .family import ALL_KEYS, Layer, Window
from .kinds import check_list

# ---- flash-linear-attention --------------------------------------------------------------------------


def _specification(keys: Keys, number: int) -> Mapping[str, Any] | None:
    """The entry of the key attn, a table or a list of them, that gives a layer its softmax attention."""
    given = keys.get("attn")
    for each in given if isinstance(given, (list, tuple)) else [given]:
        block = check_table("attn", each)
        if block and number in check_list("attn.layers", block.get("layers")):
            return block
    return None


def listed_in_attn(keys: Keys, count: int) -> list[str]:
    """Softmax attention in the layers of attn, linear attention in the others."""
    for name in ("qk_norm", "qk_activation"):  # of linear layers
        keys.get(name)
    return ["full_attention" if _specification(keys, i) else "linear_attention" for i in range(count)]


def heads_of_attn(layer: Layer) -> int:
    """Width over the heads of the layer's entry of attn."""
    width = layer.keys.size("hidden_size")
    many = check_size("attn.num_heads", (_specification(layer.keys, layer.number) or {}).get("num_heads"))
    if width < many:
        raise ConfigError(f"hidden_size must be at least attn.num_heads, got {width} and {many}")
    layer.keys.seen.sizes["attn.num_heads"] = many
    return width // many


def window_of_attn(layer: Layer) -> Window:
    """The window of the layer's entry of attn."""
    size = (_specification(layer.keys, layer.number) or {}).get("window_size")
    return (
        ALL_KEYS
        if size is None
        else Window(check_size("attn.window_size", size), f"attn.window_size = {size}")
    )


# ---- Nori --------------------------------------------------------------------------------------------


def nori_base(layer: Layer, head_dim: int) -> Term | None:
    """ln n, of a QASSMax without its networks."""
    if _mode(layer.keys) != "log_only":
        return None
    return _nori(SSMax(1.0), layer.keys.origin("use_qassmax") + ", qass_mode = log_only")


def nori_logarithm(layer: Layer, head_dim: int) -> Term | None:
    """ln n / ln attn_n_ref, n at least 2."""
    keys = layer.keys
    length = keys.number("attn_n_ref", default=1024.0, above=1)
    if not keys.flag("use_logn_attention"):
        return None
    return _nori(LogN(max(length, 2.0), floor=2.0), f"use_logn_attention = True, attn_n_ref = {length:g}")


def _nori(law: Any, key: str) -> Term:
    return Term(law, "all", key, "synthefy_nori model/layer.py")


def nori_in_weights(layer: Layer) -> str | None:
    """Reason for no answer, where a weight of the checkpoint multiplies the query."""
    if layer.keys.flag("use_learnable_attn_temperature"):
        return "abs(attn_temperature), a weight of each layer, multiplies the query"
    mode = _mode(layer.keys)
    if mode == "unknown":
        return (
            "the file has neither qass_mode nor use_logn_attention: one release of the code reads it as "
            "full, a later one as log_only"
        )
    if mode in ("full", "base_only"):
        gate = " and 1 + tanh(gate_mlp(q))" if mode == "full" else ""
        return f"the query is multiplied by ln n (1 + tanh(base_mlp(ln n))){gate}, networks in the weights"
    return None


def _mode(keys: Keys) -> str:
    """The mode of the QASSMax; "" without one. Files without the key say it by another one, or not at all."""
    if not keys.flag("use_qassmax"):
        return ""
    mode = keys.get("qass_mode")
    if mode is None:
        return "full" if keys.get("use_logn_attention") is False else "unknown"
    if mode not in ("full", "base_only", "log_only"):
        raise ConfigError(f"qass_mode must be full, base_only or log_only, got {shown(mode)}")
    return str(mode)
